package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

type volumeBackup struct {
	output
	waitOptions
	target   podVolume
	location string
	uploader string
	keep     keepFlags
	schedule string
	image    string
	runID    string // empty: each call creates a PodVolumeBackup
}

func volumeBackupCommand(c *connection) *cobra.Command {
	var o volumeBackup
	cmd := &cobra.Command{
		Use:   "backup NAMESPACE/POD VOLUME",
		Short: "Back up a volume of a pod",
		Long: `Back up a volume of a pod. The command creates a PodVolumeBackup as a Velero server does, but without a Backup; the node agent
of the pod's node carries it out. No server is needed, and restic works with every version of Velero.

The command waits until the backup has ended; the exit code is 3 if it is not Completed. If interrupted, the backup continues.

With --keep-... it then forgets older backups of this volume in the same location, as 'kubectl plimsoll repository forget --yes' does; the
exit code is 3 if that is not possible, too. What they leave in the storage goes with 'kubectl plimsoll repository prune'.

With --schedule it creates nothing, but prints a CronJob that makes this backup, with a ServiceAccount and its rights.`,
		Example: `  kubectl plimsoll volume backup shop/database-0 data
  kubectl plimsoll volume backup shop/database-0 data --to default --uploader kopia --timeout 2h
  kubectl plimsoll volume backup shop/database-0 data --schedule "0 3 * * *" --keep-daily 7 --keep-weekly 4 | kubectl apply -f -`,
		Args: func(_ *cobra.Command, args []string) error {
			var err error
			o.target, err = parsePodVolume(args)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			api, err := newVolumes(c)
			if err != nil {
				return err
			}
			return o.run(cmd, api)
		},
	}
	o.addFlag(cmd)
	o.addWaitFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.location, "to", "", "the BackupStorageLocation (default: the default location)")
	f.StringVar(&o.uploader, "uploader", uploaderRestic, "restic or kopia")
	o.keep.addFlags(f)
	f.StringVar(&o.schedule, "schedule", "", "print a CronJob with this schedule instead of backing up")
	f.StringVar(&o.runID, "run-id", os.Getenv(runIDVariable), "follow the PodVolumeBackup that an earlier call with the same id has created, if there is one (default: the variable "+runIDVariable+", in which a CronJob gives each Job its own)")
	f.StringVar(&o.image, "image", "", "image of the CronJob, which must contain kubectl-plimsoll (default: the node agent's)")
	return cmd
}

func (o *volumeBackup) validate() error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if err := checkSchedule(o.schedule); err != nil {
		return err
	}
	switch {
	case o.schedule != "" && o.format == formatJSON:
		return program.Misused(errors.New("--schedule prints YAML only"))
	case o.schedule == "" && o.image != "":
		return program.Misused(errors.New("--image needs --schedule"))
	case o.schedule != "" && o.runID != os.Getenv(runIDVariable):
		return program.Misused(errors.New("--schedule cannot be combined with --run-id: each Job has its own"))
	}
	if err := o.waitOptions.validate(); err != nil {
		return err
	}
	policy, err := o.keep.policy()
	switch {
	case err != nil:
		return err
	case policy != nil && o.schedule == "" && (o.noWait || o.format != formatTable):
		return program.Misused(errors.New("--keep-... cannot be combined with --no-wait, -o json or -o yaml"))
	}
	if o.schedule != "" && (o.noWait || o.cancelOnInterrupt) {
		return program.Misused(errors.New("--schedule cannot be combined with --no-wait or --cancel-on-interrupt"))
	}
	return checkUploader(o.uploader)
}

func (o *volumeBackup) run(cmd *cobra.Command, v *volumes) error {
	ctx := cmd.Context()
	p, err := o.prepare(ctx, v)
	if err != nil {
		return cannot("back up %s: %w", o.target, err)
	}
	if o.schedule != "" {
		return o.printSchedule(cmd, v, p)
	}
	pvb := p.pvb
	if !p.ours && o.uploader == uploaderRestic {
		fmt.Fprintf(cmd.ErrOrStderr(), "The node agent of node %s is not Plimsoll's: Velero's own, from 1.17 on, backs nothing up with restic.\n", describe.Clean(pvb.Spec.Node))
	}
	for _, warning := range p.warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), warning)
	}
	if err := o.create(cmd, v, pvb); err != nil {
		return err
	}
	if o.noWait {
		return o.report(cmd, describe.OfPodVolumeBackup(pvb))
	}
	ended, err := o.follow(cmd, v, pvb)
	if reportErr := o.report(cmd, ended); err == nil {
		err = reportErr
	}
	if err != nil {
		return err
	}
	return o.forget(cmd, v, pvb.Spec.BackupStorageLocation)
}

// create creates the PodVolumeBackup. With --run-id it takes the one that an earlier try of the same run has created.
func (o *volumeBackup) create(cmd *cobra.Command, v *volumes, pvb *velerov1.PodVolumeBackup) error {
	if o.runID != "" {
		o.nameByRun(pvb)
	}
	err := v.client.Create(cmd.Context(), pvb)
	switch {
	case o.runID != "" && apierrors.IsAlreadyExists(err):
		fmt.Fprintf(cmd.ErrOrStderr(), "PodVolumeBackup %s of this run exists.\n", describe.Clean(pvb.Name))
		if err := v.api.Get(cmd.Context(), client.ObjectKeyFromObject(pvb), pvb); err != nil {
			return fmt.Errorf("read the PodVolumeBackup of this run: %w", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("create the PodVolumeBackup: %w", err)
	}
	o.announce(cmd, o.format, "podvolumebackup", pvb.Name)
	return nil
}

// nameByRun gives a PodVolumeBackup a name that another run, volume, location or uploader does not have.
func (o *volumeBackup) nameByRun(pvb *velerov1.PodVolumeBackup) {
	pvb.Name = nameOfRun(pvb.GenerateName, o.runID, pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume, pvb.Spec.BackupStorageLocation, pvb.Spec.UploaderType)
	pvb.GenerateName = ""
}

// forget forgets the backups of the volume that the flags do not keep, if there are any such flags.
func (o *volumeBackup) forget(cmd *cobra.Command, v *volumes, location string) error {
	if o.keep == (keepFlags{}) {
		return nil
	}
	task := forgetTask{newTask: newTask{kind: v1alpha1.TaskForget, volume: o.target.namespace + "/" + o.target.pod + ":" + o.target.volume, ttl: forgetTTL}, keep: o.keep, location: location, yes: true}
	task.output, task.timeout = o.output, o.timeout
	object, err := task.task(v.namespace)
	if err != nil {
		return err
	}
	return task.run(cmd, v.client, object)
}

// report prints the result of the backup.
func (o *volumeBackup) report(cmd *cobra.Command, backed describe.Volume) error {
	return o.print(cmd.OutOrStdout(), backed, func(w io.Writer) error {
		if backed.Phase != string(velerov1.PodVolumeBackupPhaseCompleted) {
			return nil // the error has the result, or the command did not wait
		}
		if backed.SnapshotID == "" {
			_, err := fmt.Fprintf(w, "Completed without a snapshot: %s\n", describe.Clean(backed.Message))
			return err
		}
		_, err := fmt.Fprintf(w, "Completed: snapshot %s of %s; restore it with --from %s\n",
			describe.Clean(backed.SnapshotID), describe.Bytes(backed.Progress.TotalBytes), describe.Clean(backed.Name))
		if backed.Message != "" {
			fmt.Fprintln(w, describe.Clean(backed.Message))
		}
		return err
	})
}

// prepared is a backup that is not yet created.
type prepared struct {
	pvb      *velerov1.PodVolumeBackup
	claim    string // of the volume, a generic ephemeral one among them; empty: it has none
	ours     bool   // the agent that will see it is Plimsoll's
	warnings []string
}

// prepare makes the PodVolumeBackup as a Velero server does (docs/contracts/velero-node-agent.md 2.1), but without a Backup: there
// is none to own it, to label it and to tag its snapshot.
func (o *volumeBackup) prepare(ctx context.Context, v *volumes) (prepared, error) {
	location, err := v.location(ctx, o.location)
	if err != nil {
		return prepared{}, err
	}
	if location.Spec.AccessMode == velerov1.BackupStorageLocationAccessModeReadOnly {
		return prepared{}, fmt.Errorf("BackupStorageLocation %s is read-only", location.Name)
	}
	pod, vol, err := v.podOf(ctx, o.target)
	if err != nil {
		return prepared{}, err
	}
	in := &describe.BackupInput{
		Namespace: v.namespace, Spec: velerov1.BackupSpec{StorageLocation: location.Name}, Server: describe.Server{Uploader: o.uploader},
	}
	if in.Agents, err = v.agents(ctx); err != nil {
		return prepared{}, err
	}
	if in.Repositories, err = v.repositories(ctx, pod.Namespace, location.Name, o.uploader); err != nil {
		return prepared{}, err
	}
	if err := v.readClaim(ctx, pod, vol, in); err != nil {
		return prepared{}, err
	}
	if why := describe.CannotBackUp(in, pod, vol); why != "" {
		return prepared{}, errors.New(describe.Clean(why))
	}
	p := prepared{pvb: newPodVolumeBackup(v.namespace, pod, vol, in), warnings: statusWarnings(location, in.Repositories)}
	p.claim, _ = describe.ClaimOf(pod, vol)
	p.ours = slices.ContainsFunc(in.Agents, func(a corev1.Pod) bool { return a.Spec.NodeName == pod.Spec.NodeName && oursIs(a.Labels) })
	return p, nil
}

// oursIs knows Plimsoll's node agent by the labels that deploy/ gives it.
func oursIs(labels map[string]string) bool {
	return labels[agentLabel] == agentName
}

// The label of Plimsoll's node agents.
const agentLabel, agentName = "app.kubernetes.io/name", "plimsoll-node-agent"

// readClaim reads what is behind a volume. Who may not read PersistentVolumes leaves them to the node agent.
func (v *volumes) readClaim(ctx context.Context, pod *corev1.Pod, vol *corev1.Volume, in *describe.BackupInput) error {
	name, ok := describe.ClaimOf(pod, vol)
	if !ok {
		return nil
	}
	var claim corev1.PersistentVolumeClaim
	if err := v.api.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: name}, &claim); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		return fmt.Errorf("get PersistentVolumeClaim %s/%s: %w", pod.Namespace, name, err)
	}
	in.Claims = []corev1.PersistentVolumeClaim{claim}
	if claim.Spec.VolumeName == "" {
		return nil
	}
	persistent := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName}}
	err := v.api.Get(ctx, client.ObjectKeyFromObject(&persistent), &persistent)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil && !apierrors.IsForbidden(err):
		return fmt.Errorf("get PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	in.Persistent = []corev1.PersistentVolume{persistent}
	return nil
}

func newPodVolumeBackup(namespace string, pod *corev1.Pod, vol *corev1.Volume, in *describe.BackupInput) *velerov1.PodVolumeBackup {
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: pod.Name + "-" + vol.Name + "-"},
		Spec: velerov1.PodVolumeBackupSpec{
			Node: pod.Spec.NodeName, Pod: referenceTo(pod), Volume: vol.Name,
			BackupStorageLocation: in.Spec.StorageLocation, UploaderType: in.Server.Uploader,
			RepoIdentifier: identifier(in.Repositories, in.Server.Uploader),
			Tags:           map[string]string{"pod": pod.Name, "pod-uid": string(pod.UID), "ns": pod.Namespace, "volume": vol.Name},
		},
	}
	if len(in.Claims) > 0 { // also that of an ephemeral volume, which has another one with each pod of the name
		claim := &in.Claims[0]
		if vol.PersistentVolumeClaim != nil {
			pvb.Annotations = map[string]string{pvcNameAnnotation: claim.Name}
		}
		pvb.Labels = map[string]string{velerov1.PVCUIDLabel: string(claim.UID)} // by which the next backup finds this one
		pvb.Spec.Tags["pvc-uid"] = string(claim.UID)
	}
	return pvb
}

// pvcNameAnnotation names the claim of a PodVolumeBackup (docs/contracts/velero-node-agent.md 1.5).
const pvcNameAnnotation = "velero.io/pvc-name"
