package restore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const snapshotGroup = "snapshot.storage.k8s.io"

var (
	snapshotResource        = schema.GroupResource{Group: snapshotGroup, Resource: "volumesnapshots"}
	snapshotContentResource = schema.GroupResource{Group: snapshotGroup, Resource: "volumesnapshotcontents"}
	secretResource          = schema.GroupResource{Resource: "secrets"}
	snapshotClasses         = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotclasses"}
)

// What the CSI actions leave out, where the Restore says so.
const noSnapshots = "the Restore asks for no volumes of snapshots (spec.restorePVs)"

// restoredSnapshot is the name that a restored VolumeSnapshot and its content share. Each restore makes its own, as Velero
// does.
func (s *scope) restoredSnapshot(name string) string {
	hash := sha256.Sum256([]byte(string(s.Restore.UID) + "/" + name))
	return hex.EncodeToString(hash[:])
}

func (s *scope) leavesSnapshots() bool {
	return s.Restore.Spec.RestorePVs != nil && !*s.Restore.Spec.RestorePVs
}

// fillFromSnapshot has the CSI driver make a claim's volume of a snapshot.
func (s *scope) fillFromSnapshot(in *actionInput, claim types.NamespacedName, snapshot string) actionOutput {
	if spec, ok := fieldOf[map[string]any](in.item.Object, "spec"); ok {
		delete(spec, "dataSourceRef") // else the API server copies it
		spec["dataSource"] = map[string]any{"apiGroup": snapshotGroup, "kind": "VolumeSnapshot", "name": s.restoredSnapshot(snapshot)}
		growClaim(spec, s.restoreSize(claim.Namespace, snapshot))
	}
	return actionOutput{additional: []key{{snapshotResource, claim.Namespace, snapshot}}}
}

// restoreSize is how large a volume that is made of a VolumeSnapshot must be, as far as the backup says it; else 0.
func (s *scope) restoreSize(namespace, snapshot string) resource.Quantity {
	object := findItem(s.Archive, key{snapshotResource, namespace, snapshot})
	content := findItem(s.Archive, key{resource: snapshotContentResource, name: textOf(object, "status", "boundVolumeSnapshotContentName")})
	size := *resource.NewQuantity(numberOf(content, "status", "restoreSize"), resource.BinarySI)
	noted, err := resource.ParseQuantity(textOf(object, "metadata", "annotations", velerov1.VolumeSnapshotRestoreSize))
	if err == nil && noted.Cmp(size) > 0 {
		return noted
	}
	return size
}

// growClaim makes a claim ask for at least a size. The storage may have given the old volume more than was asked for, and no
// driver makes a smaller volume of its snapshot: the claim would be pending for ever. Velero has done so when it restores, then
// when it backs up.
func growClaim(spec map[string]any, size resource.Quantity) {
	requests, _ := fieldOf[map[string]any](spec, "resources", "requests")
	asked, err := resource.ParseQuantity(textOf(requests, "storage"))
	if err == nil && asked.Cmp(size) < 0 {
		requests["storage"] = size.String()
	}
}

// prepareSnapshot makes a VolumeSnapshot of a claim one of the snapshot that the storage has: its content is restored
// before it, and both stay when either is deleted.
func prepareSnapshot(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	if s.leavesSnapshots() {
		return actionOutput{skip: noSnapshots}, nil
	}
	content := textOf(in.original.Object, "status", "boundVolumeSnapshotContentName")
	spec, ok := fieldOf[map[string]any](in.item.Object, "spec")
	if content == "" || !ok {
		return actionOutput{}, errors.New("the snapshot had no content when it was backed up (status.boundVolumeSnapshotContentName)")
	}
	name := s.restoredSnapshot(in.original.GetName())
	in.item.SetName(name)
	spec["source"] = map[string]any{"volumeSnapshotContentName": name}
	delete(spec, "volumeSnapshotClassName") // the target need not have it
	annotate(in.item, velerov1.VSCDeletionPolicyAnnotation, "Retain")
	out := actionOutput{additional: []key{{resource: snapshotContentResource, name: content}}}
	if group := in.original.GetAnnotations()[velerov1.VolumeGroupSnapshotHandleAnnotation]; group != "" {
		out.warnings = []string{fmt.Sprintf(
			"it is part of group snapshot %q, which is not restored: a driver that looks for the group refuses to make a volume of the snapshot", group)}
	}
	return out, nil
}

// prepareSnapshotContent makes the content of a VolumeSnapshot lead to the snapshot that the storage has.
func prepareSnapshotContent(ctx context.Context, s *scope, in *actionInput) (actionOutput, error) {
	if s.leavesSnapshots() {
		return actionOutput{skip: noSnapshots}, nil
	}
	handle := textOf(in.original.Object, "status", "snapshotHandle")
	snapshot := textOf(in.original.Object, "spec", "volumeSnapshotRef", "name")
	spec, _ := fieldOf[map[string]any](in.item.Object, "spec")
	ref, ok := fieldOf[map[string]any](spec, "volumeSnapshotRef")
	if handle == "" || snapshot == "" || !ok {
		return actionOutput{}, errors.New("the snapshot was not complete when it was backed up (status.snapshotHandle)")
	}
	class, err := s.snapshotClass(ctx, textOf(spec, "driver"))
	if err != nil {
		return actionOutput{}, err
	}
	name := s.restoredSnapshot(snapshot)
	in.item.SetName(name)
	delete(ref, "uid")
	delete(ref, "resourceVersion")
	ref["name"], ref["namespace"] = name, s.targetNamespace(textOf(ref, "namespace"))
	spec["deletionPolicy"] = "Retain" // the backup's snapshot outlives the restored objects
	spec["source"] = map[string]any{"snapshotHandle": handle}
	delete(spec, "volumeSnapshotClassName")
	if class != "" {
		spec["volumeSnapshotClassName"] = class
	}
	return actionOutput{additional: annotatedSecret(
		in.item, velerov1.PrefixedSecretNameAnnotation, velerov1.PrefixedSecretNamespaceAnnotation)}, nil
}

// snapshotClass finds a VolumeSnapshotClass of a driver in the target, whose secrets some drivers need; "" if there is none.
func (s *scope) snapshotClass(ctx context.Context, driver string) (string, error) {
	classes, err := s.listObjects(ctx, snapshotClasses, "", metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil // then creating the content says that there are no CSI snapshots here
	}
	if err != nil {
		return "", fmt.Errorf("look for a VolumeSnapshotClass of driver %q: %w", driver, err)
	}
	for _, class := range classes.Items {
		if textOf(class.Object, "driver") == driver && class.GetDeletionTimestamp() == nil {
			return class.GetName(), nil
		}
	}
	return "", nil
}

// prepareSnapshotClass has the secret restored that lists snapshots.
func prepareSnapshotClass(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	if s.leavesSnapshots() {
		return actionOutput{skip: noSnapshots}, nil
	}
	return actionOutput{additional: annotatedSecret(
		in.item, velerov1.PrefixedListSecretNameAnnotation, velerov1.PrefixedListSecretNamespaceAnnotation)}, nil
}

// annotatedSecret returns the Secret that two annotations name, if they do.
func annotatedSecret(item *unstructured.Unstructured, name, namespace string) []key {
	annotations := item.GetAnnotations()
	if annotations[name] == "" || annotations[namespace] == "" {
		return nil
	}
	return []key{{secretResource, annotations[namespace], annotations[name]}}
}

// skipGroupSnapshot leaves out objects of snapshots of groups of volumes.
func skipGroupSnapshot(context.Context, *scope, *actionInput) (actionOutput, error) {
	return actionOutput{
		skip:     "group snapshots are not restored",
		warnings: []string{"not restored: Plimsoll restores no group snapshots, only the VolumeSnapshots in them"},
	}, nil
}
