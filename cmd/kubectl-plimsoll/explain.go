package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/live"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func explainCommand(c *connection) *cobra.Command {
	var (
		of     reference
		format output
	)
	cmd := &cobra.Command{
		Use:   "explain KIND NAME",
		Short: "Explain why a backup or restore waits or has failed, and what to do",
		Long: `Explains the state of a Backup, Restore, PodVolumeBackup or PodVolumeRestore, and what to do: what it is queued behind, the owner
of the lock, why its pod does not start, a missing node agent, since when no byte has moved, why it failed.
For VolumePluginBackups and VolumePluginRestores it shows the reports of their plugin, for RepositoryTasks what they have found.

The command reads the objects, their pods, nodes and Events, and the progress of the node agents.`,
		Example: `  kubectl plimsoll explain backup nightly
  kubectl plimsoll explain pvb/nightly-x7k2p
  kubectl plimsoll explain restore nightly-1 -o json`,
		ValidArgsFunction: completeReferences(c, describe.KindBackup, describe.KindRestore, describe.KindPodVolumeBackup, describe.KindPodVolumeRestore,
			describe.KindVolumePluginBackup, describe.KindVolumePluginRestore, describe.KindRepositoryTask),
		Args: func(_ *cobra.Command, args []string) error {
			var err error
			of, err = parseReference(args)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := format.validate(); err != nil {
				return err
			}
			s, err := newScene(cmd.Context(), c, of)
			if err != nil {
				return err
			}
			e, err := s.explain(cmd.Context(), of)
			if err != nil {
				return err
			}
			return format.print(cmd.OutOrStdout(), e, func(w io.Writer) error { return e.Print(w, s.view.At) })
		},
	}
	format.addFlag(cmd)
	return cmd
}

// scene is what an explanation looks at. What cannot be read is left out, with a note.
type scene struct {
	objects
	view   describe.View // all volumes of the namespace that have not ended long ago
	agents map[string][]corev1.Pod
	notes  []string
}

func newScene(ctx context.Context, c *connection, of reference) (*scene, error) {
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	s := &scene{objects: objects{api, c.namespace}}
	// Before anything else, so that a name that does not exist is said at once.
	if err := s.get(ctx, of, newObject(of.kind)); err != nil {
		return nil, err
	}
	options, err := c.follow(live.Selection{})
	if err != nil {
		return nil, err
	}
	if s.view, err = live.Look(ctx, options); err != nil {
		return nil, err
	}
	s.notes = s.view.Notes
	var pods corev1.PodList
	if s.could("Pods", api.List(ctx, &pods, client.InNamespace(c.namespace), client.MatchingLabels{"name": "node-agent"})) {
		s.agents = map[string][]corev1.Pod{}
		for i := range pods.Items {
			node := pods.Items[i].Spec.NodeName
			s.agents[node] = append(s.agents[node], pods.Items[i])
		}
	}
	return s, nil
}

// could reports whether something was read, and otherwise notes the reason, once for each kind.
func (s *scene) could(what string, err error) bool {
	if err == nil {
		return true
	}
	what += " cannot be read: "
	if !slices.ContainsFunc(s.notes, func(note string) bool { return strings.HasPrefix(note, what) }) {
		s.notes = append(s.notes, what+err.Error())
	}
	return false
}

func (s *scene) explain(ctx context.Context, of reference) (*describe.Explanation, error) {
	object := newObject(of.kind)
	if err := s.get(ctx, of, object); err != nil {
		return nil, err
	}
	var e describe.Explanation
	switch o := object.(type) {
	case *velerov1.Backup:
		e = s.explainOperation(ctx, describe.OfBackup(o), o)
	case *velerov1.Restore:
		e = s.explainOperation(ctx, describe.OfRestore(o), o)
	case *v1alpha1.RepositoryTask:
		e = describe.ExplainTask(o, s.events(ctx, s.namespace, o.UID), s.view.At)
	default:
		e = s.explainVolume(ctx, describe.VolumeOf(o), o)
	}
	e.Notes = s.notes
	return &e, nil
}

// explainVolume explains one volume that is backed up or restored.
func (s *scene) explainVolume(ctx context.Context, v describe.Volume, object client.Object) describe.Explanation {
	v = s.current(v)
	c := describe.VolumeCase{At: s.view.At, Volume: v, Deleting: object.GetDeletionTimestamp() != nil, AgentsKnown: s.agents != nil}
	switch o := object.(type) {
	case *velerov1.PodVolumeBackup:
		c.Canceled, c.PodUID = o.Spec.Cancel, o.Spec.Pod.UID
		c.Deadline = s.deadline(ctx, &v)
	case *velerov1.PodVolumeRestore:
		c.Canceled, c.PodUID = o.Spec.Cancel, o.Spec.Pod.UID
	}
	if !v.Ended() {
		s.lookAtPod(ctx, &c)
		s.lookAtNode(ctx, &c)
	}
	c.Events = s.events(ctx, s.namespace, object.GetUID())
	if c.Pod != nil {
		c.AddPodEvents(s.events(ctx, c.Pod.Namespace, c.Pod.UID))
	}
	return c.Explain()
}

// current returns the volume with the progress that its agent reports now, if it does.
func (s *scene) current(v describe.Volume) describe.Volume {
	for i := range s.view.Volumes {
		if s.view.Volumes[i].UID == v.UID {
			return s.view.Volumes[i]
		}
	}
	return v
}

func (s *scene) lookAtPod(ctx context.Context, c *describe.VolumeCase) {
	if c.Volume.Pod == "" {
		return
	}
	var pod corev1.Pod
	err := s.api.Get(ctx, types.NamespacedName{Namespace: c.Volume.PodNamespace, Name: c.Volume.Pod}, &pod)
	switch {
	case apierrors.IsNotFound(err):
		c.PodMissing = true
	case s.could("Pods of volumes", err):
		c.Pod = &pod
		if c.Volume.Node == "" {
			c.Volume.Node = pod.Spec.NodeName
		}
	}
}

func (s *scene) lookAtNode(ctx context.Context, c *describe.VolumeCase) {
	name := c.Volume.Node
	if name == "" {
		return
	}
	c.Agents = s.agents[name]
	for i := range s.view.Volumes {
		if v := &s.view.Volumes[i]; v.Node == name && v.UID != c.Volume.UID && !v.Ended() {
			c.Others = append(c.Others, *v)
		}
	}
	var node corev1.Node
	err := s.api.Get(ctx, types.NamespacedName{Name: name}, &node)
	switch {
	case apierrors.IsNotFound(err):
		c.NodeMissing = true
	case s.could("Nodes", err):
		c.Node = &node
	}
}

// serverTimeout is the default of the Velero server's --fs-backup-timeout (docs/contracts/velero-node-agent.md 2.3).
const serverTimeout = 4 * time.Hour

// deadline is when the server of a backup that runs gives up on its volumes.
func (s *scene) deadline(ctx context.Context, v *describe.Volume) time.Time {
	var backup velerov1.Backup
	err := s.api.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: v.Owner}, &backup)
	owner := describe.OfBackup(&backup)
	if err != nil || !owner.Owns(v) || backup.Status.Phase != velerov1.BackupPhaseInProgress || backup.Status.StartTimestamp == nil {
		return time.Time{} // without a Backup that runs there is none
	}
	timeout, err := time.ParseDuration(backup.Annotations[velerov1.PodVolumeOperationTimeoutAnnotation])
	if err != nil {
		timeout = serverTimeout
	}
	return backup.Status.StartTimestamp.Add(timeout)
}

// events reads the Events of an object. The old API shows those of the new one, too.
func (s *scene) events(ctx context.Context, namespace string, uid types.UID) []describe.Event {
	var list corev1.EventList
	if !s.could("Events", s.api.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"involvedObject.uid": string(uid)})) {
		return nil
	}
	return describe.OfEvents(list.Items)
}

// explainedVolumes is how many volumes of an operation are explained: each takes some requests.
const explainedVolumes = 20

func (s *scene) explainOperation(ctx context.Context, o describe.Operation, object client.Object) describe.Explanation {
	c := describe.OperationCase{At: s.view.At, Operation: o, Deleting: object.GetDeletionTimestamp() != nil}
	c.Events = s.events(ctx, s.namespace, object.GetUID())
	volumes, found := s.volumesOf(ctx, &o)
	c.Totals = describe.Sum(volumes)
	describe.Sort(volumes, s.view.At)
	for i := range volumes {
		if volumes[i].Progress.State == progress.StateCompleted && volumes[i].Progress.Errors == 0 {
			continue
		}
		if len(c.Volumes) == explainedVolumes {
			s.notes = append(s.notes, fmt.Sprintf("more than %d volumes have not completed; the most urgent are shown", explainedVolumes))
			break
		}
		c.Volumes = append(c.Volumes, s.explainVolume(ctx, volumes[i], found[volumes[i].UID]))
	}
	if o.Verdict() == describe.VerdictRunning {
		s.lookAtServers(ctx, &c)
		s.lookAtOthers(ctx, &c)
	}
	if o.Verdict() == describe.VerdictDeleting {
		s.lookAtServers(ctx, &c)
		s.lookAtDeletions(ctx, &c)
	}
	return c.Explain()
}

// volumesOf reads the volumes of an operation, and returns their objects by UID, too.
func (s *scene) volumesOf(ctx context.Context, o *describe.Operation) ([]describe.Volume, map[types.UID]client.Object) {
	kinds := map[string]client.ObjectList{"PodVolumeBackups": &velerov1.PodVolumeBackupList{}, "VolumePluginBackups": &v1alpha1.VolumePluginBackupList{}}
	if o.Kind == describe.KindRestore {
		kinds = map[string]client.ObjectList{"PodVolumeRestores": &velerov1.PodVolumeRestoreList{}, "VolumePluginRestores": &v1alpha1.VolumePluginRestoreList{}}
	}
	found := map[types.UID]client.Object{}
	var volumes []describe.Volume
	for what, list := range kinds {
		err := s.api.List(ctx, list, client.InNamespace(s.namespace))
		if meta.IsNoMatchError(err) {
			continue // few clusters have plugins that report
		}
		if err == nil {
			err = meta.EachListItem(list, func(item runtime.Object) error {
				object := item.(client.Object)
				if v := describe.VolumeOf(object); o.Owns(&v) {
					v = s.current(v) // before the sum, so that it agrees with what is said of each volume
					v.DropStale(s.view.At)
					volumes, found[v.UID] = append(volumes, v), object
				}
				return nil
			})
		}
		s.could(what, err)
	}
	return volumes, found
}

// lookAtServers finds the pods of Velero's server and, for restores, of our restore controller.
func (s *scene) lookAtServers(ctx context.Context, c *describe.OperationCase) {
	var pods corev1.PodList
	if !s.could("Pods", s.api.List(ctx, &pods, client.InNamespace(s.namespace))) {
		return
	}
	c.ServersKnown = true
	for i := range pods.Items {
		labels := pods.Items[i].Labels
		ours := labels["app.kubernetes.io/name"] == "plimsoll-restore-controller" && c.Operation.Kind == describe.KindRestore
		veleros := labels["deploy"] == "velero" || labels["app.kubernetes.io/name"] == "velero" && labels["name"] != "node-agent"
		if ours || veleros {
			c.Servers = append(c.Servers, pods.Items[i])
		}
	}
}

// lookAtOthers finds what the server does meanwhile.
func (s *scene) lookAtOthers(ctx context.Context, c *describe.OperationCase) {
	var all []describe.Operation
	if c.Operation.Kind == describe.KindRestore {
		var list velerov1.RestoreList
		s.could("Restores", s.api.List(ctx, &list, client.InNamespace(s.namespace)))
		for i := range list.Items {
			all = append(all, describe.OfRestore(&list.Items[i]))
		}
	} else {
		var list velerov1.BackupList
		s.could("Backups", s.api.List(ctx, &list, client.InNamespace(s.namespace)))
		for i := range list.Items {
			all = append(all, describe.OfBackup(&list.Items[i]))
		}
	}
	for i := range all {
		if all[i].UID != c.Operation.UID && all[i].Phase == string(velerov1.BackupPhaseInProgress) {
			c.Others = append(c.Others, all[i])
		}
	}
}

// lookAtDeletions finds who has asked for the deletion of a Backup, and what came of it.
func (s *scene) lookAtDeletions(ctx context.Context, c *describe.OperationCase) {
	var list velerov1.DeleteBackupRequestList
	if !s.could("DeleteBackupRequests", s.api.List(ctx, &list, client.InNamespace(s.namespace))) {
		return
	}
	c.DeletionsKnown = true
	for i := range list.Items {
		uid := list.Items[i].Labels[velerov1.BackupUIDLabel]
		if list.Items[i].Spec.BackupName == c.Operation.Name && (uid == "" || uid == string(c.Operation.UID)) {
			c.Deletions = append(c.Deletions, list.Items[i])
		}
	}
}
