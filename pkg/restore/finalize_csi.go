package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

var (
	snapshotObjects        = snapshotResource.WithVersion("v1")
	snapshotContentObjects = snapshotContentResource.WithVersion("v1")
)

// errSnapshotGone is the error of a VolumeSnapshot, or its content, that does not exist and that nobody will create.
var errSnapshotGone = errors.New("is not in the cluster")

// snapshotInterval is how often failedSnapshots looks: each time it sends up to three requests for each claim.
const snapshotInterval = 5 * time.Second

// claimsOfSnapshots returns the created claims whose volumes a CSI driver makes of snapshots.
func (r *run) claimsOfSnapshots(created map[types.NamespacedName]bool) map[types.NamespacedName]bool {
	claims := map[types.NamespacedName]bool{}
	if r.Archive == nil {
		return claims
	}
	for item := range r.Archive.ItemsOf(claimResource.String()) {
		claim := types.NamespacedName{Namespace: item.Namespace, Name: item.Name}
		target := r.targetClaim(claim)
		if !created[target] {
			continue
		}
		object, err := r.Archive.Object(item)
		if err != nil {
			continue // collecting it said so
		}
		volume := textOf(object.Object, "spec", "volumeName")
		if volume != "" && r.sourceOf(volume, claim).dataFrom == fromCSISnapshot {
			claims[target] = true
		}
	}
	return claims
}

// failedSnapshots returns why claims that are not bound yet will not get the data of their snapshots. It waits until each snapshot can be
// used, or the end: the snapshot controller takes a while, and says of much that it is an error before it tries again.
func (r *run) failedSnapshots(ctx context.Context, claims map[types.NamespacedName]bool, end time.Time) map[types.NamespacedName]error {
	for {
		problems, mayPass := map[types.NamespacedName]error{}, false
		for claim := range claims {
			if problem := r.snapshotProblem(ctx, claim); problem != nil {
				problems[claim] = problem
				mayPass = mayPass || !errors.Is(problem, errSnapshotGone) && !isFinal(problem)
			}
		}
		if !mayPass || !time.Now().Before(end) || apiretry.Sleep(ctx, snapshotInterval) != nil {
			return problems
		}
	}
}

// snapshotProblem returns why the snapshot of a claim cannot be used, nil if it can or is not needed any more; errFullClaimGone
// or errLostWithClaim for a claim that was deleted.
func (r *run) snapshotProblem(ctx context.Context, name types.NamespacedName) error {
	claim, err := r.getObject(ctx, claimObjects, name)
	if apierrors.IsNotFound(err) {
		return errLostWithClaim
	}
	if err != nil {
		return err
	}
	bound := textOf(claim.Object, "status", "phase") == string(corev1.ClaimBound)
	switch gone := claim.GetDeletionTimestamp() != nil; {
	case gone && bound:
		return errFullClaimGone
	case gone:
		return errLostWithClaim
	}
	source := textOf(claim.Object, "spec", "dataSource", "name")
	if bound || textOf(claim.Object, "spec", "dataSource", "kind") != "VolumeSnapshot" {
		return nil
	}
	snapshot, err := r.getObject(ctx, snapshotObjects, types.NamespacedName{Namespace: name.Namespace, Name: source})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("VolumeSnapshot %q %w", source, errSnapshotGone)
	}
	if err != nil {
		return fmt.Errorf("VolumeSnapshot %q: %w", source, err)
	}
	contentName := cmp.Or(textOf(snapshot.Object, "spec", "source", "volumeSnapshotContentName"), textOf(snapshot.Object, "status", "boundVolumeSnapshotContentName"))
	content, err := r.getObject(ctx, snapshotContentObjects, types.NamespacedName{Name: contentName})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("VolumeSnapshotContent %q of VolumeSnapshot %q %w", contentName, source, errSnapshotGone)
	}
	if err != nil {
		return fmt.Errorf("VolumeSnapshotContent %q: %w", contentName, err)
	}
	if ready, _ := fieldOf[bool](snapshot.Object, "status", "readyToUse"); ready {
		return nil
	}
	reason := cmp.Or(textOf(snapshot.Object, "status", "error", "message"), textOf(content.Object, "status", "error", "message"), "it is not ready to use")
	return fmt.Errorf("VolumeSnapshot %q, of snapshot %q of the storage: %s", source, textOf(content.Object, "spec", "source", "snapshotHandle"), reason)
}
