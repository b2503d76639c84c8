package volumeinfo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Tracker collects, while a restore runs, how its volumes are restored. It is safe for concurrent use.
//
// It never fails: what cannot be found out goes to the restore's log, and the list has what is known. It has pod volumes, CSI
// snapshots and claims that got no data. Velero's lists also have native snapshots and moved data, which only a Velero server
// restores.
type Tracker struct {
	reader client.Reader
	log    *slog.Logger

	mu         sync.Mutex
	podVolumes map[types.UID]*velerov1.PodVolumeRestore
	outcomes   map[claimKey]outcome
	found      found // by the last Populate
}

type claimKey = types.NamespacedName

type outcome struct {
	volume string // the PersistentVolume, where it is known
	is     Outcome
	reason string
}

// NewTracker returns a tracker for a restore. The reader must see the namespaces that are restored. The log is the restore's own.
func NewTracker(reader client.Reader, log *slog.Logger) *Tracker {
	return &Tracker{
		reader: reader, log: log,
		podVolumes: map[types.UID]*velerov1.PodVolumeRestore{}, outcomes: map[claimKey]outcome{},
	}
}

// TrackPodVolume notes a PodVolumeRestore as it is now: when it has been created, and again when it has ended.
func (t *Tracker) TrackPodVolume(pvr *velerov1.PodVolumeRestore) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.podVolumes[pvr.UID] = pvr.DeepCopy()
}

// TrackOutcome notes what became of a claim into whose volume nothing was restored, and why. The volume's name may be
// empty. A claim that turns out to be restored in another way is listed with that.
func (t *Tracker) TrackOutcome(namespace, claim, volume string, is Outcome, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes[claimKey{Namespace: namespace, Name: claim}] = outcome{volume, is, reason}
}

// Result is the list, sorted by claim, volume and pod, of what is known so far. It sends no requests.
func (t *Tracker) Result() []RestoredVolume {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := []RestoredVolume{}
	listed := map[claimKey]bool{}
	add := func(claim claimKey, v RestoredVolume) {
		v.PVCNamespace, v.PVCName = claim.Namespace, claim.Name
		if bound := t.found.claims[claim]; bound != nil && v.PVName == "" {
			v.PVName = bound.Spec.VolumeName
		}
		listed[claim] = listed[claim] || claim.Name != ""
		list = append(list, v)
	}
	for _, pvr := range t.podVolumes {
		add(t.found.claimOf(pvr), podVolume(pvr))
	}
	for claim, snapshot := range t.found.snapshots {
		add(claim, RestoredVolume{RestoreMethod: MethodCSISnapshot, CSISnapshot: &snapshot})
	}
	for claim, o := range t.outcomes {
		if !listed[claim] {
			add(claim, RestoredVolume{PVName: o.volume, Outcome: o.is, Reason: o.reason})
		}
	}
	slices.SortFunc(list, compare)
	return list
}

func compare(a, b RestoredVolume) int {
	podVolumeName := func(v RestoredVolume) string {
		if v.PodVolume == nil {
			return ""
		}
		return v.PodVolume.PodNamespace + "/" + v.PodVolume.PodName + "/" + v.PodVolume.VolumeName
	}
	return cmp.Or(
		cmp.Compare(a.PVCNamespace, b.PVCNamespace), cmp.Compare(a.PVCName, b.PVCName), cmp.Compare(a.PVName, b.PVName),
		cmp.Compare(podVolumeName(a), podVolumeName(b)),
	)
}

// podVolume is what a PodVolumeRestore says of its volume.
func podVolume(pvr *velerov1.PodVolumeRestore) RestoredVolume {
	v := RestoredVolume{
		RestoreMethod:  MethodPodVolumeRestore,
		StartTimestamp: pvr.Status.StartTimestamp, CompletionTimestamp: pvr.Status.CompletionTimestamp,
		PodVolume: &PodVolumeInfo{
			SnapshotHandle: pvr.Spec.SnapshotID, Size: max(pvr.Status.Progress.TotalBytes, 0), UploaderType: pvr.Spec.UploaderType,
			VolumeName: pvr.Spec.Volume, PodName: pvr.Spec.Pod.Name, PodNamespace: pvr.Spec.Pod.Namespace, NodeName: pvr.Status.Node,
		},
	}
	if v.PodVolume.Size == 0 {
		v.PodVolume.Size = pvr.Spec.SnapshotSize
	}
	switch pvr.Status.Phase {
	case velerov1.PodVolumeRestorePhaseCompleted:
		v.Result = ResultSucceeded
	case velerov1.PodVolumeRestorePhaseFailed, velerov1.PodVolumeRestorePhaseCanceled:
		v.Result, v.Reason = ResultFailed, pvr.Status.Message
	default: // still on its way
	}
	return v
}

// found is what the cluster says of the claims of a restore.
type found struct {
	claims    map[claimKey]*corev1.PersistentVolumeClaim
	snapshots map[claimKey]CSISnapshotInfo // of claims whose data a CSI driver restores
	pods      map[types.NamespacedName]*corev1.Pod
}

// claimOf returns the claim of the volume that a PodVolumeRestore is about, an empty key for a volume that is none.
func (f *found) claimOf(pvr *velerov1.PodVolumeRestore) claimKey {
	pod := f.pods[types.NamespacedName{Namespace: pvr.Spec.Pod.Namespace, Name: pvr.Spec.Pod.Name}]
	if pod == nil {
		return claimKey{}
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name != pvr.Spec.Volume {
			continue
		}
		switch {
		case v.PersistentVolumeClaim != nil:
			return claimKey{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
		case v.Ephemeral != nil:
			return claimKey{Namespace: pod.Namespace, Name: pod.Name + "-" + v.Name}
		}
	}
	return claimKey{}
}

// claimKind is the key of claims in a restore's resource list.
const claimKind = "v1/PersistentVolumeClaim"

// Populate asks the cluster about the claims that a restore has made or changed, which its resource list names, and about
// the pods whose volumes were tracked: a list for each namespace and kind, not a call for each volume. Call it when the
// items are restored, and again when late claims are bound.
func (t *Tracker) Populate(ctx context.Context, resources map[string][]string) {
	wanted := map[claimKey]bool{}
	namespaces := map[string]bool{}
	for _, entry := range resources[claimKind] {
		name, action, _ := strings.Cut(strings.TrimSuffix(entry, ")"), "(")
		namespace, name, ok := strings.Cut(name, "/")
		if ok && (action == "created" || action == "updated") {
			wanted[claimKey{Namespace: namespace, Name: name}], namespaces[namespace] = true, true
		}
	}
	t.mu.Lock()
	for _, pvr := range t.podVolumes {
		namespaces[pvr.Spec.Pod.Namespace] = true
	}
	t.mu.Unlock()

	f := found{
		claims: map[claimKey]*corev1.PersistentVolumeClaim{}, snapshots: map[claimKey]CSISnapshotInfo{},
		pods: map[types.NamespacedName]*corev1.Pod{},
	}
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		if err := t.readNamespace(ctx, &f, namespace, wanted); err != nil {
			t.log.Warn("Restore volume info is not complete", "namespace", namespace, "error", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found = f
}

// readNamespace reads a namespace's claims, pods and, where claims come from them, VolumeSnapshots.
func (t *Tracker) readNamespace(ctx context.Context, f *found, namespace string, wanted map[claimKey]bool) error {
	var claims corev1.PersistentVolumeClaimList
	var pods corev1.PodList
	errClaims := t.reader.List(ctx, &claims, client.InNamespace(namespace))
	errPods := t.reader.List(ctx, &pods, client.InNamespace(namespace))
	for i := range pods.Items {
		f.pods[client.ObjectKeyFromObject(&pods.Items[i])] = &pods.Items[i]
	}
	snapshots := map[claimKey]string{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		key := client.ObjectKeyFromObject(claim)
		f.claims[key] = claim
		if source := claim.Spec.DataSource; wanted[key] && source != nil && source.Kind == "VolumeSnapshot" {
			snapshots[key] = source.Name
		}
	}
	var errSnapshots error
	if len(snapshots) > 0 {
		errSnapshots = t.lookForSnapshots(ctx, f, namespace, snapshots)
	}
	return errors.Join(errClaims, errPods, errSnapshots)
}

// What Velero notes on the VolumeSnapshots that it restores.
const (
	snapshotHandleAnnotation = "velero.io/csi-volumesnapshot-handle"
	snapshotDriverAnnotation = "velero.io/csi-driver-name"
)

// lookForSnapshots finds out about the VolumeSnapshots that claims of a namespace are made of.
func (t *Tracker) lookForSnapshots(ctx context.Context, f *found, namespace string, names map[claimKey]string) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshotList"})
	if err := t.reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list VolumeSnapshots: %w", err)
	}
	byName := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		byName[list.Items[i].GetName()] = &list.Items[i]
	}
	var missing error
	for claim, name := range names {
		snapshot := byName[name]
		if snapshot == nil {
			missing = errors.Join(missing, fmt.Errorf("claim %s is made of VolumeSnapshot %q, which is not there", claim, name))
			continue
		}
		f.snapshots[claim] = csiSnapshot(snapshot)
	}
	return missing
}

func csiSnapshot(snapshot *unstructured.Unstructured) CSISnapshotInfo {
	content, _, _ := unstructured.NestedString(snapshot.Object, "spec", "source", "volumeSnapshotContentName")
	bound, _, _ := unstructured.NestedString(snapshot.Object, "status", "boundVolumeSnapshotContentName")
	size, _, _ := unstructured.NestedString(snapshot.Object, "status", "restoreSize")
	ready, known, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse")
	info := CSISnapshotInfo{
		SnapshotHandle: snapshot.GetAnnotations()[snapshotHandleAnnotation], Driver: snapshot.GetAnnotations()[snapshotDriverAnnotation],
		VSCName: cmp.Or(content, bound),
	}
	if quantity, err := resource.ParseQuantity(size); err == nil {
		info.Size = quantity.Value()
	}
	if known {
		info.ReadyToUse = &ready
	}
	return info
}
