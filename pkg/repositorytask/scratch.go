package repositorytask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// scratchError says why a volume was not restored into a scratch claim, or not compared there.
type scratchError struct {
	reason  v1alpha1.Reason
	mayPass bool
	message string
}

func (e *scratchError) Error() string { return e.message }

// Names in the scratch pod, and of those that it must run beside.
const (
	scratchVolume  = "volume"
	labelName      = "app.kubernetes.io/name"
	labelPartOf    = "app.kubernetes.io/part-of"
	nodeAgentName  = "plimsoll-node-agent"
	scratchName    = "plimsoll-scratch"
	scratchUser    = 65532
	excludedLabel  = "velero.io/exclude-from-backup"
	minScratchSize = 1 << 30
)

// interruptedCleanUp is how long the clean-up takes at most in a process that has to end.
const interruptedCleanUp = 20 * time.Second

// agentSilence is how long a PodVolumeRestore that an agent has seen may stay the same: node agents write what they wait for every ten minutes.
const agentSilence = 30 * time.Minute

// maxPollInterval is the longest time between two looks at the objects of a scratch claim.
const maxPollInterval = 2 * time.Second

// scratch is a claim that one volume is restored into, the pod that mounts it, and the restore. All belong to the task, so that they go with it.
type scratch struct {
	*run
	backup *velerov1.PodVolumeBackup
	size   int64 // of the volume's files, as far as it is known
	index  int   // of the volume

	claim *corev1.PersistentVolumeClaim
	pod   *corev1.Pod
	pvr   *velerov1.PodVolumeRestore
}

// restoreOnce restores a volume into a scratch claim, has the node agent compare it with the snapshot, and deletes the claim in every case.
func (r *run) restoreOnce(ctx context.Context, i int, v *v1alpha1.RepositoryTaskVolume) (uploader.VerifyResult, error) {
	s := r.newScratch()
	s.backup, s.size, s.index = &r.backups[i], max(r.backups[i].Status.Progress.TotalBytes, 0), i
	if err := s.remove(ctx); err != nil { // what an earlier try has left
		return uploader.VerifyResult{}, err
	}
	defer s.cleanUp(ctx)
	address, err := r.repositories.addressOf(ctx, s.backup)
	if err != nil {
		return uploader.VerifyResult{}, err
	}
	v.Address = address
	if err := s.create(ctx); err != nil {
		return uploader.VerifyResult{}, err
	}
	if err := s.awaitPod(ctx); err != nil {
		return uploader.VerifyResult{}, err
	}
	v.StorageClassName = s.class()
	if err := s.createRestore(ctx); err != nil {
		return uploader.VerifyResult{}, err
	}
	result, err := s.awaitRestore(ctx)
	if err != nil {
		return result, err
	}
	switch now, err := r.repositories.addressOf(ctx, s.backup); {
	case err != nil:
		return uploader.VerifyResult{}, err
	case now != address:
		v.Address = now
		return uploader.VerifyResult{}, &scratchError{v1alpha1.ReasonInvalidSettings, true, fmt.Sprintf("BackupStorageLocation %s was edited during the restore: nobody knows which repository it has read", s.backup.Spec.BackupStorageLocation)}
	}
	return result, nil
}

// cleanUp removes the scratch claim, also when ctx has ended: then the process may have to end, too, and the next one looks again.
func (s *scratch) cleanUp(ctx context.Context) {
	limit := s.cfg.ScratchTimeout
	if ctx.Err() != nil {
		limit = min(limit, interruptedCleanUp)
	}
	removing, stop := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer stop()
	if err := s.remove(removing); err != nil {
		s.log.Warn("A scratch claim is not deleted yet", "claim", s.claim.Name, "error", err)
		s.note = strings.TrimSpace(s.note + " " + err.Error())
	}
}

// newScratch returns what a task restores into. It has one name: whatever an earlier process has left, it is found.
func (r *run) newScratch() *scratch {
	s := &scratch{run: r}
	meta := metav1.ObjectMeta{
		Namespace: r.object.Namespace, Name: "plimsoll-verify-" + string(r.object.UID),
		Labels: map[string]string{labelName: scratchName, labelPartOf: "plimsoll", excludedLabel: yes},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "RepositoryTask", Name: r.object.Name, UID: r.object.UID, Controller: new(true),
		}},
	}
	s.claim = &corev1.PersistentVolumeClaim{ObjectMeta: *meta.DeepCopy()}
	s.pod = &corev1.Pod{ObjectMeta: *meta.DeepCopy()}
	s.pvr = &velerov1.PodVolumeRestore{ObjectMeta: *meta.DeepCopy()}
	return s
}

// remove deletes what there is, and waits until it is gone. What is still there when ctx ends Kubernetes deletes later.
func (s *scratch) remove(ctx context.Context) error {
	objects := []client.Object{s.pvr, s.pod, s.claim}
	policy := apiretry.Policy{Retry: func(err error) bool { return !apierrors.IsForbidden(err) && !apiretry.Final(err) }}
	for _, object := range objects {
		err := policy.Do(ctx, func() error { return client.IgnoreNotFound(s.client.Delete(ctx, object)) })
		if err != nil {
			return refusedRight("delete "+objectName(object), err)
		}
	}
	for _, object := range objects {
		if err := s.awaitGone(ctx, object); err != nil {
			return &scratchError{v1alpha1.ReasonPodNotReady, true, fmt.Sprintf("%s is not deleted yet: %v", objectName(object), err)}
		}
	}
	return nil
}

func (s *scratch) awaitGone(ctx context.Context, object client.Object) error {
	ctx, stop := context.WithTimeoutCause(ctx, s.cfg.ScratchTimeout/3, errors.New("the API server still has it"))
	defer stop()
	there := object.DeepCopyObject().(client.Object)
	for {
		err := s.api.Get(ctx, client.ObjectKeyFromObject(object), there)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case apierrors.IsForbidden(err):
			return err
		}
		if err := apiretry.Sleep(ctx, s.pollInterval()); err != nil {
			return err
		}
	}
}

// objectName names an object of a scratch claim.
func objectName(object client.Object) string {
	kind := "PodVolumeRestore"
	switch object.(type) {
	case *corev1.PersistentVolumeClaim:
		kind = "PersistentVolumeClaim"
	case *corev1.Pod:
		kind = "Pod"
	}
	return kind + " " + object.GetName()
}

// refusedRight wraps an error of the API server. Rights to restore are not part of every installation.
func refusedRight(doing string, err error) error {
	switch {
	case apiretry.Refused(err):
		return &scratchError{v1alpha1.ReasonUnsupported, false, fmt.Sprintf("%s: %v (the rights to restore are those of deploy/repository-tasks-restore)", doing, err)}
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // such as by a quota
		return &scratchError{v1alpha1.ReasonInvalidSettings, false, fmt.Sprintf("%s: %v", doing, err)}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func (s *scratch) pollInterval() time.Duration { return min(s.cfg.ProgressInterval, maxPollInterval) }

// create makes the claim and the pod that mounts it.
func (s *scratch) create(ctx context.Context) error {
	image, secrets, err := s.image(ctx)
	if err != nil {
		return err
	}
	target := s.object.Spec.RestoreTo
	storage := resource.NewQuantity(max(s.size+s.size/4, minScratchSize), resource.BinarySI)
	if target.Storage != nil {
		storage = target.Storage
	}
	s.claim.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *storage}},
	}
	if target.StorageClassName != "" {
		s.claim.Spec.StorageClassName = &target.StorageClassName
	}
	s.pod.Spec = scratchPodSpec(image, string(s.object.UID), s.claim.Name)
	s.pod.Spec.ImagePullSecrets = secrets
	if err := s.createObject(ctx, s.claim); err != nil {
		return err
	}
	return s.createObject(ctx, s.pod)
}

func (s *scratch) createObject(ctx context.Context, object client.Object) error {
	if err := s.client.Create(ctx, object); err != nil {
		return refusedRight("create "+objectName(object), err)
	}
	return nil
}

// image returns the image of this process, which has the node agent's program, too, and the secrets to pull it with.
func (c *Controller) image(ctx context.Context) (string, []corev1.LocalObjectReference, error) {
	var pod corev1.Pod
	if err := c.api.Get(ctx, client.ObjectKey{Namespace: c.cfg.Namespace, Name: c.cfg.Pod}, &pod); err != nil {
		return "", nil, refusedRight(fmt.Sprintf("find the image of this pod, %q", c.cfg.Pod), err)
	}
	return pod.Spec.Containers[0].Image, pod.Spec.ImagePullSecrets, nil
}

// scratchPodSpec is that of a pod that waits in its init container while its volume is restored, as one does that a Velero server restores. It need
// not see what is in the volume. It runs where a node agent of Plimsoll does.
func scratchPodSpec(image, uid, claim string) corev1.PodSpec {
	container := corev1.Container{
		Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/usr/local/bin/node-agent"},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	wait, end := container, container
	wait.Name, wait.Args = v1alpha1.ContainerRestoreWait, []string{v1alpha1.ContainerRestoreWait, uid}
	wait.VolumeMounts = []corev1.VolumeMount{{Name: scratchVolume, MountPath: "/restores/" + scratchVolume}}
	end.Name, end.Args = "end", []string{"version"}
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(1)),
		NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(scratchUser)), RunAsGroup: new(int64(scratchUser)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelName: nodeAgentName}}, TopologyKey: corev1.LabelHostname,
		}}}},
		InitContainers: []corev1.Container{wait}, Containers: []corev1.Container{end},
		Volumes: []corev1.Volume{{Name: scratchVolume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}},
	}
}

// awaitPod waits until the pod's init container runs, so that the claim is bound and mounted.
func (s *scratch) awaitPod(ctx context.Context) error {
	limit := time.Now().Add(s.cfg.ScratchTimeout)
	for {
		err := s.api.Get(ctx, client.ObjectKeyFromObject(s.pod), s.pod)
		if err == nil {
			err = s.api.Get(ctx, client.ObjectKeyFromObject(s.claim), s.claim)
		}
		why := s.unready()
		switch {
		case apierrors.IsNotFound(err):
			return &scratchError{v1alpha1.ReasonPodGone, true, "somebody has deleted the scratch pod or claim " + s.pod.Name}
		case err == nil && why == "":
			return nil
		case err == nil && (s.pod.Status.Phase == corev1.PodFailed || s.pod.Status.Phase == corev1.PodSucceeded):
			return &scratchError{v1alpha1.ReasonPodGone, true, "the scratch pod has ended before the restore: " + why}
		case err != nil && time.Now().After(limit):
			return fmt.Errorf("read the scratch claim: %w", err)
		case time.Now().After(limit):
			return &scratchError{v1alpha1.ReasonPodNotReady, false, fmt.Sprintf("the scratch claim was not mounted within %s: %s", s.cfg.ScratchTimeout, joined(why, s.lastEvent(ctx)))}
		}
		s.tracker.Report(progress.Reading{Stage: progress.StageWaiting, Reason: v1alpha1.ReasonPodNotReady, Message: "the scratch claim is not mounted yet: " + why})
		if err := apiretry.Sleep(ctx, s.pollInterval()); err != nil {
			return err
		}
	}
}

// unready returns why the pod's init container does not run yet. Empty: it does.
func (s *scratch) unready() string {
	why := []string{}
	if s.claim.Status.Phase != corev1.ClaimBound {
		why = append(why, fmt.Sprintf("claim %s of class %q is %s", s.claim.Name, s.class(), cmp.Or(string(s.claim.Status.Phase), "new")))
	}
	for i := range s.pod.Status.InitContainerStatuses {
		switch state := s.pod.Status.InitContainerStatuses[i].State; {
		case state.Running != nil:
			return ""
		case state.Waiting != nil:
			why = append(why, "the pod's init container is waiting: "+joined(state.Waiting.Reason, state.Waiting.Message))
		case state.Terminated != nil:
			why = append(why, fmt.Sprintf("the pod's init container has ended with exit code %d: %s", state.Terminated.ExitCode, joined(state.Terminated.Reason, state.Terminated.Message)))
		}
	}
	for _, condition := range s.pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			why = append(why, "the pod is not scheduled: "+condition.Message)
		}
	}
	why = append(why, "the pod is "+cmp.Or(string(s.pod.Status.Phase), "new"))
	return strings.Join(why, "; ")
}

func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

func (s *scratch) class() string {
	if s.claim.Spec.StorageClassName == nil {
		return ""
	}
	return *s.claim.Spec.StorageClassName
}

// lastEvent returns what provisioner, scheduler or kubelet last complained of. Empty: nothing is known.
func (s *scratch) lastEvent(ctx context.Context) string {
	var last corev1.Event
	for _, object := range []client.Object{s.claim, s.pod} {
		var list corev1.EventList
		if err := s.api.List(ctx, &list, client.InNamespace(object.GetNamespace()), client.MatchingFields{"involvedObject.uid": string(object.GetUID())}); err != nil {
			s.log.Debug("Cannot list the Events of a scratch claim", "error", err)
			continue
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Type == corev1.EventTypeWarning && !seenAt(e).Before(seenAt(&last)) {
				last = *e
			}
		}
	}
	return joined(last.Reason, last.Message)
}

// seenAt is when an Event was seen last.
func seenAt(e *corev1.Event) time.Time {
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}
