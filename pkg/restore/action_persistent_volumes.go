package restore

import (
	"context"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// Annotations by which Kubernetes keeps track of what is bound to what, and of who provisions a volume where.
const (
	bindCompleted     = "pv.kubernetes.io/bind-completed"
	boundByController = "pv.kubernetes.io/bound-by-controller"
	provisioner       = "volume.kubernetes.io/storage-provisioner"
	betaProvisioner   = "volume.beta.kubernetes.io/storage-provisioner"
	selectedNode      = "volume.kubernetes.io/selected-node"
)

var claimObjects = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}

// errNativeSnapshot comes for a PersistentVolume that is not restored, because it leads to a disk that has lived on since the
// backup, while the data of the backup is in a snapshot.
var errNativeSnapshot = errors.New("only a snapshot plugin of a Velero server can restore a native snapshot")

// preparePersistentVolume leaves a volume out whose claim gets a new one, or whose data only Velero can restore. Others are
// bound to the restored claim.
func preparePersistentVolume(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	claim := claimedBy(in.original)
	from := s.sourceOf(in.original.GetName(), claim)
	if from.dataFrom == fromNative {
		return actionOutput{}, fmt.Errorf("not restored, its data is in %s: %w; %s", from.snapshot, errNativeSnapshot, whatToDo(in.original.GetName()))
	}
	if from.provisioned() {
		out := actionOutput{skip: fmt.Sprintf("claim %s gets a new volume", claim)}
		if findItem(s.Archive, key{claimResource, claim.Namespace, claim.Name}) == nil {
			out.warnings = []string{fmt.Sprintf("not restored: %s, and the backup does not have its claim, which would get a new volume", from.describe())}
		}
		return out, nil
	}
	if ref, ok := fieldOf[map[string]any](in.item.Object, "spec", "claimRef"); ok {
		delete(ref, "uid")
		delete(ref, "resourceVersion")
		ref["namespace"] = s.targetNamespace(claim.Namespace)
	}
	removeAnnotations(in.item, bindCompleted, boundByController)
	return actionOutput{}, nil
}

// whatToDo is advice on a volume of which there is a native snapshot.
func whatToDo(volume string) string {
	return fmt.Sprintf("make a volume of the snapshot with the storage provider's tools, and a PersistentVolume %q for it, or restore again with annotation %s=true to keep the volume that it had",
		volume, v1alpha1.AnnotationKeepNativeVolumes)
}

// describe names what a backup has of a volume that is provisioned anew.
func (s source) describe() string {
	switch s.dataFrom {
	case fromPodVolume:
		return "its data was backed up from a pod"
	case fromCSISnapshot:
		return fmt.Sprintf("its data is in VolumeSnapshot %q", s.snapshot)
	case fromDataMover:
		return "Velero's data mover has its data"
	default:
		return s.reason
	}
}

// prepareClaim takes away what the source cluster has noted on a claim, and has its volume restored before it. Claims of
// ephemeral volumes are left out: Kubernetes makes them for their pods, and refuses to use one that it has not made.
func prepareClaim(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	if pod := s.ephemeralOwner(in.original); pod != "" {
		return actionOutput{skip: "it is made anew for an ephemeral volume of pod " + pod}, nil
	}
	forgetBinding(in.item)
	var out actionOutput
	if volume := textOf(in.original.Object, "spec", "volumeName"); volume != "" && textOf(in.original.Object, "status", "phase") == "Bound" {
		out.additional = []key{{resource: volumeResource, name: volume}}
	}
	return out, nil
}

// forgetBinding takes away what the source cluster and Velero have noted on a claim.
func forgetBinding(claim *unstructured.Unstructured) {
	removeAnnotations(claim, bindCompleted, boundByController, provisioner, betaProvisioner, selectedNode,
		velerov1.VolumeSnapshotLabel, velerov1.DataUploadNameAnnotation)
}

// ephemeralOwner returns the pod for whose generic ephemeral volume Kubernetes has made a claim, or "". Nobody makes a claim anew
// that a pod owns for another reason, such as those that a Spark driver makes for its executors.
func (s *scope) ephemeralOwner(claim *unstructured.Unstructured) string {
	owner := metav1.GetControllerOf(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return ""
	}
	pod := findItem(s.Archive, key{pods, claim.GetNamespace(), owner.Name})
	for volume := range objectsOf(pod, "spec", "volumes") {
		if _, ok := fieldOf[map[string]any](volume, "ephemeral"); ok && claim.GetName() == owner.Name+"-"+textOf(volume, "name") {
			return owner.Name
		}
	}
	return ""
}

// prepareClaimVolume lets a claim get its data from where the backup has it. A claim that does not get data that the backup should
// have is an error (docs/decisions/0044-volume-without-data-is-an-error.md), one without for another reason a warning. A claim that exists, and is not
// being deleted, keeps what it has.
func prepareClaimVolume(ctx context.Context, s *scope, in *actionInput) (actionOutput, error) {
	volume := textOf(in.original.Object, "spec", "volumeName")
	if volume == "" {
		return actionOutput{}, nil
	}
	claim := types.NamespacedName{Namespace: in.original.GetNamespace(), Name: in.original.GetName()}
	from := s.sourceOf(volume, claim)
	if from.dataFrom == fromElsewhere && from.problem == "" {
		return actionOutput{}, nil
	}
	target := s.targetClaim(claim)
	existing, err := s.findObject(ctx, claimObjects, target)
	if err == nil {
		return actionOutput{warnings: s.keptOverSnapshot(existing, from)}, nil
	}
	if !apierrors.IsNotFound(err) {
		return actionOutput{}, fmt.Errorf("look for the claim: %w", err)
	}
	if from.dataFrom == fromSameVolume {
		if from.reason, err = s.whyWithheld(ctx, volume, target); err != nil {
			return actionOutput{}, fmt.Errorf("look for its PersistentVolume: %w", err)
		}
	}
	return s.fill(in, claim, target, from), nil
}

// keptOverSnapshot returns a warning for a claim that exists while the backup has its data in a snapshot, of which only a new claim is made.
// What pods bring into a claim that exists, they say themselves.
func (s *scope) keptOverSnapshot(existing *unstructured.Unstructured, from source) []string {
	if from.dataFrom != fromCSISnapshot && from.dataFrom != fromDataMover || !s.foreign(existing) {
		return nil
	}
	again := "restore again"
	if from.dataFrom == fromDataMover {
		again = "restore it with a Velero server, 1.12 or later"
	}
	return []string{fmt.Sprintf("it exists and keeps what it has, not the data of the backup: %s. To restore that, delete the claim, with the pods that use it, and %s", from.describe(), again)}
}

// whyWithheld returns why a claim that is about to be created does not get the PersistentVolume that it had, which was restored
// before it if it could be; "" if it does.
func (s *scope) whyWithheld(ctx context.Context, volume string, claim types.NamespacedName) (string, error) {
	object, err := s.findObject(ctx, volumeObjects, types.NamespacedName{Name: volume})
	if apierrors.IsNotFound(err) {
		return "which is not in the cluster and was not restored", nil
	}
	if err != nil {
		return "", err
	}
	switch owner := claimedBy(object); {
	case owner.Name == "":
		return "", nil
	case owner != claim:
		return fmt.Sprintf("which belongs to claim %s", owner), nil
	case textOf(object.Object, "spec", "claimRef", "uid") != "":
		return "which still belongs to an earlier claim of this name: take spec.claimRef.uid away from it to have them bound", nil
	default:
		return "", nil
	}
}

// otherBackup tells people what to do about a claim whose volume got no data.
const otherBackup = "Delete the claim, with the pods that use it, and restore it from another backup"

// unfilledClaim is a claim that gets no data of the backup.
type unfilledClaim struct {
	target      types.NamespacedName // the claim in the cluster
	volume      string               // the one that it had
	provisioned bool                 // it gets a new one
}

func (u unfilledClaim) output(outcome volumeinfo.Outcome, reason string) actionOutput {
	v := &volumeinfo.RestoredVolume{PVCNamespace: u.target.Namespace, PVCName: u.target.Name, Outcome: outcome, Reason: reason}
	if !u.provisioned {
		v.PVName = u.volume
	}
	return actionOutput{unfilled: v}
}

func (u unfilledClaim) warn(outcome volumeinfo.Outcome, format string, args ...any) actionOutput {
	reason := fmt.Sprintf(format, args...)
	out := u.output(outcome, reason)
	out.warnings = []string{reason}
	return out
}

func (u unfilledClaim) fail(outcome volumeinfo.Outcome, format string, args ...any) actionOutput {
	reason := fmt.Sprintf(format, args...)
	out := u.output(outcome, reason)
	out.errors = []string{fmt.Sprintf("volume %q: %s", u.volume, reason)}
	return out
}

// fill has a claim of the backup get its data as target in the cluster.
func (s *scope) fill(in *actionInput, claim, target types.NamespacedName, from source) actionOutput {
	if from.provisioned() {
		releaseVolume(in.item)
	}
	volume := textOf(in.original.Object, "spec", "volumeName")
	u := unfilledClaim{target: target, volume: volume, provisioned: from.provisioned()}
	switch from.dataFrom {
	case fromCSISnapshot:
		return s.fillFromSnapshot(in, claim, from.snapshot)
	case fromPodVolume:
		if reason := s.noPodVolumeData(claim); reason != "" {
			return u.fail(volumeinfo.OutcomeEmpty, "its new volume stays empty: %s. %s", reason, otherBackup)
		}
		if remark := s.remarkOnEmpty(claim); remark != "" {
			return u.warn(volumeinfo.OutcomeEmpty, "its new volume is empty: %s", remark)
		}
	case fromSameVolume:
		if from.reason != "" {
			return u.warn(volumeinfo.OutcomeWaiting, "it waits for PersistentVolume %q, %s", volume, from.reason)
		}
		if from.snapshot != "" {
			return u.warn(volumeinfo.OutcomeKept, "it gets the volume %q that it had, as it is now, not the data of the backup in %s, because the Restore is annotated with %s=true",
				volume, from.snapshot, v1alpha1.AnnotationKeepNativeVolumes)
		}
		if from.problem != "" {
			return u.warn(volumeinfo.OutcomeKept, "it gets the volume %q that it had, as it is now, because Velero could not back it up (%s)", volume, from.problem)
		}
		return u.output(volumeinfo.OutcomeKept, "the backup has no data of it, and its PersistentVolume leads to the same storage as before")
	case fromNative:
		return u.fail(volumeinfo.OutcomeUnsupported, "it waits for PersistentVolume %q, which is not restored, because its data is in %s, and %v: %s",
			volume, from.snapshot, errNativeSnapshot, whatToDo(volume))
	case fromDataMover:
		return u.fail(volumeinfo.OutcomeUnsupported, "its new volume is empty: the data was moved by Velero's data mover, and only a Velero server, 1.12 or later, can restore it from there. "+
			"Delete the claim, and restore it with that")
	case fromNowhere:
		if from.lost {
			return u.fail(volumeinfo.OutcomeEmpty, "its new volume is empty: %s. %s", from.reason, otherBackup)
		}
		return u.warn(volumeinfo.OutcomeEmpty, "its new volume is empty: %s", from.reason)
	default:
		if from.problem != "" {
			return u.warn(volumeinfo.OutcomeWaiting, "it is bound to PersistentVolume %q if that is there: it is not in the backup, and Velero could not back up its data (%s)", volume, from.problem)
		}
	}
	return actionOutput{}
}

// releaseVolume takes away what leads a claim to its old volume, or a new one to where that came from: the claim would wait for
// it for ever. What the claim was made from in the source cluster is long part of its data. The label that Velero's data mover
// has selected its volume by is on no new one, and provisioners refuse claims with a selector; any other was asked for by a user.
func releaseVolume(claim *unstructured.Unstructured) {
	spec, _ := fieldOf[map[string]any](claim.Object, "spec")
	for _, field := range []string{"volumeName", "dataSource", "dataSourceRef"} {
		delete(spec, field)
	}
	selector, _ := fieldOf[map[string]any](spec, "selector")
	matchLabels, _ := fieldOf[map[string]any](selector, "matchLabels")
	if _, ok := matchLabels[velerov1.DynamicPVRestoreLabel]; !ok {
		return
	}
	delete(matchLabels, velerov1.DynamicPVRestoreLabel)
	if len(matchLabels) == 0 {
		delete(selector, "matchLabels")
	}
	if len(selector) == 0 {
		delete(spec, "selector")
	}
}

// noPodVolumeData returns why a claim gets no data though it was backed up from a pod; "" if it does, or was empty.
func (s *scope) noPodVolumeData(claim types.NamespacedName) string {
	records := s.volumes.podVolumes[claim]
	if len(records) == 0 && len(s.volumes.annotated[claim]) == 0 {
		return "the backup says that restic or kopia has stored it, but the record of that (PodVolumeBackup) is missing"
	}
	var reason string
	for _, pvb := range records {
		if pvb.Status.SnapshotID != "" || pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted {
			return ""
		}
		reason = whyNotStored(pvb)
	}
	return reason
}
