package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// reasonVolumeLost is why a volume in memory is not handed over again: its node was started before the pod used it.
const reasonVolumeLost = "VolumeLost: the volume is in memory, and its node was started again before the pod used it: restore it again"

// newDoneFileRecord is what a record says of the operation's volume, which was found, before it is handed over.
func (op *Operation) newDoneFileRecord(pvr *velerov1.PodVolumeRestore) donefile.Record {
	return donefile.Record{Volume: op.Volume, Restore: donefile.RestoreUID(pvr), PodVolumeRestore: pvr.UID, Dir: op.foundDir, Boot: donefile.BootID()}
}

// writeDoneFile tells the pod's init container that the volume is complete. The record comes first: from then on the restore is not
// tried again, because the pod may begin to use the volume.
func (a *Agent) writeDoneFile(op *Operation, pvr *velerov1.PodVolumeRestore, dir *os.File) error {
	rec := op.newDoneFileRecord(pvr)
	rec.Marked = true
	if err := a.records.Save(op.foundPodUID, rec); err != nil { // no reason to hold back the data
		op.log.Warn("The directory .velero will stay in the restored volume: let the agent write into kubelet's pods directory", "error", err)
	}
	return donefile.Write(dir, rec.Restore, "")
}

// alreadyRestored reports whether the volume is complete: it was handed over, by an agent that has not lived to say so on the
// object, or in an attempt that failed after that. To restore it again would rewrite files under a pod that uses them.
func (a *Agent) alreadyRestored(ctx context.Context, op *Operation, pvr *velerov1.PodVolumeRestore) (bool, error) {
	uid := op.Pod.UID
	if uid == "" { // an object that somebody has written by hand
		pod, err := a.pod(ctx, op.PodVolume)
		if err != nil {
			return false, err
		}
		uid = pod.UID
	}
	rec, err := a.records.Complete(uid, pvr)
	if rec == nil || err != nil {
		return false, err
	}
	pod, err := a.pod(ctx, op.PodVolume)
	if err != nil {
		return classify(err).reason == ReasonPodGone, ignorePodGone(err)
	}
	if PodEnding(pod) != nil || RestoreWaitSucceeded(pod) { // it waited, and has gone on
		return true, nil
	}
	dir, err := a.openVolume(ctx, op)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	there, err := donefile.Exists(dir, donefile.Name(rec.Restore, ""))
	if there || err != nil {
		return there, err
	}
	if rec.LostWithNode(dir) {
		return false, nil
	}
	return true, a.writeDoneFile(op, pvr, dir)
}

func ignorePodGone(err error) error {
	if classify(err).reason == ReasonPodGone {
		return nil
	}
	return err
}

// removeDoneFile removes what tells the init container that the volume is complete: it is about to be written again, for the same
// Restore, so that the pod must not begin.
func (a *Agent) removeDoneFile(op *Operation, pvr *velerov1.PodVolumeRestore, dir *os.File) error {
	rec := op.newDoneFileRecord(pvr)
	if err := a.records.Remove(op.foundPodUID, rec); err != nil {
		return err
	}
	if err := donefile.Remove(dir, rec.Restore); err != nil {
		return fmt.Errorf("remove the marker of an earlier restore: %w", err)
	}
	return nil
}

// watchPods settles the markers in the volumes of this node's pods when a pod changes, or a restore into it ends.
func (a *Agent) watchPods(mgr ctrl.Manager) error {
	waits := predicate.NewPredicateFuncs(func(o client.Object) bool { return HasRestoreWait(o.(*corev1.Pod)) })
	return ctrl.NewControllerManagedBy(mgr).Named("handover").
		For(&corev1.Pod{}, builder.WithPredicates(waits)).
		Watches(&velerov1.PodVolumeRestore{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			s := FromRestore(o.(*velerov1.PodVolumeRestore))
			if !s.Terminal() {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: s.Pod.Namespace, Name: s.Pod.Name}}}
		})).
		Complete(a.requireNodeLock(a.reconcilePod))
}

// reconcilePod lets the markers lie in a pod's volumes while its init container runs, and only then.
func (a *Agent) reconcilePod(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	err := a.client.Get(ctx, req.NamespacedName, &pod)
	if err != nil || !WaitsForVolumes(&pod) {
		a.mu.Lock()
		delete(a.unmarkedSince, req.NamespacedName)
		a.mu.Unlock()
	}
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // gone: kubelet has unmounted its volumes
	}
	records, err := a.records.List(pod.UID)
	if err != nil || len(records) == 0 {
		return reconcile.Result{}, err
	}
	err = a.reconcileMarkers(&pod, records)
	busy := errors.Is(err, errMarkersBusy)
	if err != nil && !busy {
		return reconcile.Result{}, fmt.Errorf("settle the markers of pod %s: %w", req, err)
	}
	if busy || WaitsForVolumes(&pod) {
		return reconcile.Result{RequeueAfter: a.cfg.ProgressInterval}, nil
	}
	return reconcile.Result{}, nil
}

// errSettling means that a volume must be checked again soon: it does not answer, which must not hold up the other pods, or is
// still worked on.
var errMarkersBusy = errors.New("a volume of the pod is busy")

// reconcileMarkers runs settle beside the controller, once at a time for each pod: the kernel may hold it for as long as a device or
// a file server does not answer. A stopping agent waits for it as long, so that nothing is written after its end.
func (a *Agent) reconcileMarkers(pod *corev1.Pod, records []donefile.Record) error {
	if _, busy := a.markersBusy.LoadOrStore(pod.UID, nil); busy {
		return errMarkersBusy
	}
	done := make(chan error, 1)
	go func() {
		var all []error
		for _, rec := range records {
			all = append(all, a.reconcileMarker(pod, rec))
		}
		a.markersBusy.Delete(pod.UID)
		done <- errors.Join(all...)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(a.cfg.ProgressInterval):
		return errMarkersBusy
	}
}

// reconcileMarker writes or removes the marker of one volume, by what the pod does now.
func (a *Agent) reconcileMarker(pod *corev1.Pod, rec donefile.Record) error {
	if a.restoring(pod, rec.Volume) {
		return errMarkersBusy
	}
	waits := WaitsForVolumes(pod)
	if !waits && !rec.Marked {
		return a.rememberUnmarked(pod, rec)
	}
	dir, err := a.pods.Open(pod.UID, rec.Dir)
	switch {
	case err == nil:
		defer dir.Close()
	case waits || !isUnmounted(err):
		return err
	case pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded:
		return nil // it comes back, or the pod goes
	default:
		a.cfg.Logger.Warn("A volume was unmounted before the agent could remove its marker: remove the directory if an application objects to it",
			"pod", pod.Namespace+"/"+pod.Name, "volume", rec.Volume, "directory", donefile.Dir)
		return a.rememberUnmarked(pod, rec)
	}
	if waits {
		return a.keepMarker(pod, rec, dir)
	}
	if err := donefile.Remove(dir, rec.Restore); err != nil {
		return err
	}
	return a.rememberUnmarked(pod, rec)
}

// restoring reports whether an operation still writes into a volume of the pod, or hands it over.
func (a *Agent) restoring(pod *corev1.Pod, volume string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, op := range a.operations {
		if op.Kind == Restore && op.Volume == volume && op.Pod.Name == pod.Name && op.Pod.Namespace == pod.Namespace {
			return true
		}
	}
	return false
}

// rememberUnmarked remembers that a volume has no marker, and whether the pod has begun to use it.
func (a *Agent) rememberUnmarked(pod *corev1.Pod, rec donefile.Record) error {
	now := rec
	now.Marked, now.Used = false, rec.Used || RestoreWaitSucceeded(pod)
	if now == rec {
		return nil
	}
	return a.records.Save(pod.UID, now)
}

func isUnmounted(err error) bool {
	return errors.Is(err, volume.ErrNotMounted) || errors.Is(err, volume.ErrPodNotFound)
}

// keepMarker writes the marker of a volume whose pod's init container runs. One that was there may be missing because the init
// container has removed it, and the pod does not show yet that it has ended. So that is believed after a while only; then
// another pod that shares the volume has removed it, or the node was started again.
func (a *Agent) keepMarker(pod *corev1.Pod, rec donefile.Record, dir *os.File) error {
	there, err := donefile.Exists(dir, donefile.Name(rec.Restore, rec.Failure))
	if err != nil {
		return err
	}
	if missing := a.markerMissingFor(pod, rec.Volume, there); there || rec.Marked && missing < a.cfg.ProgressInterval {
		return nil
	}
	if rec.Failure == "" && !rec.Used && rec.LostWithNode(dir) {
		rec.Failure = reasonVolumeLost
	}
	rec.Marked = true
	if err := a.records.Save(pod.UID, rec); err != nil {
		return err
	}
	return donefile.Write(dir, rec.Restore, rec.Failure)
}

// markerMissingFor returns for how long a volume's marker is missing, as this agent has seen it.
func (a *Agent) markerMissingFor(pod *corev1.Pod, volume string, there bool) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	volumes := a.unmarkedSince[client.ObjectKeyFromObject(pod)]
	if volumes == nil {
		volumes = map[string]time.Time{}
		a.unmarkedSince[client.ObjectKeyFromObject(pod)] = volumes
	}
	if there {
		delete(volumes, volume)
		return 0
	}
	if _, seen := volumes[volume]; !seen {
		volumes[volume] = time.Now()
	}
	return time.Since(volumes[volume])
}
