package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// reasonVolumeLost is why a volume in memory is not handed over again: its node was started before the pod used it.
const reasonVolumeLost = "VolumeLost: the volume is in memory, and its node was started again before the pod used it: restore it again"

// reasonOverwritten is why a volume is not handed over that was complete, until another restore into the same directory ended half way.
const reasonOverwritten = "Overwritten: another restore of the Restore into the same claim has overwritten the data, and ended before it was complete: restore it again"

// watchPods settles the markers in the volumes of this node's pods when a pod changes, or a restore into it ends.
func (a *Agent) watchPods(mgr ctrl.Manager) error {
	waits := predicate.NewPredicateFuncs(func(o client.Object) bool { return podvolume.HasRestoreWait(o.(*corev1.Pod)) })
	return ctrl.NewControllerManagedBy(mgr).Named("handover").
		For(&corev1.Pod{}, builder.WithPredicates(waits)).
		Watches(&velerov1.PodVolumeRestore{}, podsOfEndedRestores()).
		WatchesRawSource(source.Kind[client.Object](a.own, &velerov1.PodVolumeRestore{}, podsOfEndedRestores())).
		Complete(a.requireNodeLock(a.reconcilePod))
}

// podsOfEndedRestores queues the pods of restores that have ended. A restore that ends leaves the watches, which looks like a deletion.
func podsOfEndedRestores() handler.EventHandler {
	add := func(o client.Object, left bool, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		if pv := podvolume.FromObject(o); left || pv.Terminal() {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pv.Pod.Namespace, Name: pv.Pod.Name}})
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(e.Object, false, q)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(e.ObjectNew, false, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(e.Object, true, q)
		},
	}
}

// reconcilePod lets the markers lie in a pod's volumes while its init container runs, and only then.
func (a *Agent) reconcilePod(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	err := a.client.Get(ctx, req.NamespacedName, &pod)
	if err != nil || !podvolume.WaitsForVolumes(&pod) {
		a.mu.Lock()
		delete(a.unmarkedSince, req.NamespacedName)
		a.mu.Unlock()
	}
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // gone: kubelet has unmounted its volumes
	}
	records, err := a.env.Records.List(pod.UID)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(records) > 0 { // the record of a restore whose object was deleted comes after the last change that the watches bring
		err = a.reconcileMarkers(ctx, &pod, records)
	}
	busy := errors.Is(err, errMarkersBusy)
	if err != nil && !busy {
		return reconcile.Result{}, fmt.Errorf("settle the markers of pod %s: %w", req, err)
	}
	if busy || podvolume.WaitsForVolumes(&pod) {
		return reconcile.Result{RequeueAfter: a.cfg.ProgressInterval}, nil
	}
	return reconcile.Result{}, nil
}

// errMarkersBusy means that a volume must be checked again soon: it does not answer, which must not hold up the other pods, is not
// mounted yet, or is still worked on.
var errMarkersBusy = errors.New("a volume of the pod is busy")

// reconcileMarkers runs reconcileMarker beside the controller, once at a time for each pod: the kernel may hold it for as long as a device
// or a file server does not answer. A stopping agent waits for it no longer than ProgressInterval, so the marker of a slow volume may be
// written after the agent's end; the next agent settles it like any other.
func (a *Agent) reconcileMarkers(ctx context.Context, pod *corev1.Pod, records []donefile.Record) error {
	if _, busy := a.markersBusy.LoadOrStore(pod.UID, nil); busy {
		return errMarkersBusy
	}
	err := volume.Within(a.cfg.ProgressInterval, func() error {
		defer a.markersBusy.Delete(pod.UID)
		var all []error
		busy := false
		for _, rec := range records {
			if err := a.reconcileMarker(ctx, pod, rec); errors.Is(err, errMarkersBusy) {
				busy = true
			} else {
				all = append(all, err)
			}
		}
		err := errors.Join(all...)
		if !busy {
			return err
		}
		if err != nil { // the others must not wait as long as a queue waits after errors
			a.cfg.Logger.Warn("A marker of the pod is not written or removed", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
		return errMarkersBusy
	})
	if errors.Is(err, volume.ErrNoAnswer) {
		return errMarkersBusy
	}
	return err
}

// reconcileMarker writes or removes the marker of one volume, by what the pod does now.
func (a *Agent) reconcileMarker(ctx context.Context, pod *corev1.Pod, rec donefile.Record) error {
	if rec.Paths {
		return nil
	}
	waits := podvolume.WaitsForVolumes(pod)
	if busy, err := a.restoring(ctx, pod, rec, waits); busy || err != nil {
		return cmp.Or(err, errMarkersBusy)
	}
	if !waits && rec.Reserved && !podvolume.RestoreWaitSucceeded(pod) && podvolume.PodEnding(pod) == nil {
		return nil // the init container is yet to begin, and in a full volume there may be no other room for what it waits for
	}
	if !waits && !rec.Marked && !rec.Reserved {
		return a.rememberUnmarked(pod, rec)
	}
	dir, err := a.env.Pods.Open(pod.UID, rec.Dir)
	switch {
	case err == nil:
		defer dir.Close()
	case waits && isUnmounted(err): // yet
		return errMarkersBusy
	case !isUnmounted(err):
		return err
	case pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded:
		return nil // it comes back, or the pod goes
	default:
		a.cfg.Logger.Warn("A volume was unmounted before the agent could remove its marker: remove the directory if an application objects to it",
			"pod", pod.Namespace+"/"+pod.Name, "volume", rec.Volume, "directory", donefile.Dir)
		return a.rememberUnmarked(pod, rec)
	}
	unlock, ok, err := a.env.LockDirectory(dir)
	if err != nil || !ok { // a restore writes into the directory, under whatever name
		return cmp.Or(err, errMarkersBusy)
	}
	defer unlock()
	if changed, err := a.env.Records.Changed(pod.UID, rec); changed || err != nil { // by a restore that had the lock meanwhile
		return cmp.Or(err, errMarkersBusy)
	}
	if waits {
		return a.keepMarker(ctx, pod, rec, dir)
	}
	if err := donefile.Remove(dir, rec.Restore); err != nil {
		return err
	}
	return a.rememberUnmarked(pod, rec)
}

// restoring reports whether an operation still writes into a volume of the pod, or hands it over. While the pod waits, it may also be one that
// is to write into the same directory under another name.
func (a *Agent) restoring(ctx context.Context, pod *corev1.Pod, rec donefile.Record, waits bool) (bool, error) {
	if a.hasRestore(pod, rec.Volume) {
		return true, nil
	}
	if !waits {
		return false, nil
	}
	pending, err := a.env.PendingRestore(ctx, pod, rec)
	return pending != "", err
}

// hasRestore reports whether there is an operation that restores a volume of the pod.
func (a *Agent) hasRestore(pod *corev1.Pod, volume string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, op := range a.operations {
		same := op.Pod.Name == pod.Name && op.Pod.Namespace == pod.Namespace && (op.Pod.UID == "" || op.Pod.UID == pod.UID)
		if op.Kind == podvolume.Restore && op.Volume == volume && same {
			return true
		}
	}
	return false
}

// rememberUnmarked remembers that a volume has no marker, and whether the pod has begun to use it.
func (a *Agent) rememberUnmarked(pod *corev1.Pod, rec donefile.Record) error {
	now := rec
	now.Marked, now.Reserved, now.Used = false, false, rec.Used || podvolume.RestoreWaitSucceeded(pod)
	if now == rec {
		return nil
	}
	return a.env.Records.Save(pod.UID, now)
}

func isUnmounted(err error) bool {
	return errors.Is(err, volume.ErrNotMounted) || errors.Is(err, volume.ErrPodNotFound)
}

// keepMarker writes the marker of a volume whose pod's init container runs. One that was there may be missing because the init
// container has removed it, and the pod does not show yet that it has ended. So that is believed after a while only; then
// another pod that shares the volume has removed it, or the node was started again. No restore that is to write into the directory
// may be pending.
func (a *Agent) keepMarker(ctx context.Context, pod *corev1.Pod, rec donefile.Record, dir *os.File) error {
	overwritten := rec.Overwritten && rec.Failure == "" && !rec.Used
	if overwritten {
		rec.Failure, rec.Inherited = reasonOverwritten, true
	}
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
	rec.Marked, rec.Reserved = true, false
	if err := a.env.Records.Save(pod.UID, rec); err != nil {
		return err
	}
	if overwritten {
		if err := a.env.FailBeside(ctx, pod, rec); err != nil {
			return err
		}
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
