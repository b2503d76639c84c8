package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podVolume names a volume of a pod.
type podVolume struct{ namespace, pod, volume string }

// storedVolume is the volume of a pod as the backup names it.
type storedVolume struct {
	podVolume
	snapshot string // of restic or kopia; "" where only an annotation of the pod has it
}

// isSourceOf reports whether its data is that of a PodVolumeRestore. Resource modifiers may have given the pod another name.
func (s storedVolume) isSourceOf(spec *velerov1.PodVolumeRestoreSpec) bool {
	if s.snapshot == "" {
		return s.pod == spec.Pod.Name && s.volume == spec.Volume
	}
	return s.snapshot == spec.SnapshotID
}

var (
	// errUnknownClaim comes for a created claim of which it is not known what it was in the backup.
	errUnknownClaim = errors.New("it is none of the backup's claims under the resource modifiers (spec.resourceModifier) as they are now, so it was not checked whether it gets its data, " +
		"and its new volume keeps the reclaim policy and labels of its storage class. Look at it")
	// errUnknownFilledClaim is errUnknownClaim for one that gets data.
	errUnknownFilledClaim = errors.New("its data is restored, but it is none of the backup's claims under the resource modifiers (spec.resourceModifier) as they are now: " +
		"its new volume keeps the reclaim policy and labels of its storage class")
	// errNotFilled comes for a created claim that gets no data and may be another one of the backup than the one of its name.
	errNotFilled = errors.New("no PodVolumeRestore fills it, and it is not known which claim of the backup it is. Look at it")
	// errLostWithClaim comes for a claim that was deleted before it had the data that the backup has of it.
	errLostWithClaim = fmt.Errorf("%w since the restore created it; the data of the backup is not in the cluster. Restore it again, with the pods that use it", errClaimGone)
	// errFullClaimGone comes for a claim that was deleted after data went into it. Where not all did, that is an error of its own.
	errFullClaimGone = fmt.Errorf("%w since the restore created it. Data of the backup went into it before; its volume may be kept", errClaimGone)
	// errUnknownClaimGone is errUnknownClaim for one that was deleted.
	errUnknownClaimGone = fmt.Errorf("%w since the restore created it. It is none of the backup's claims under the resource modifiers (spec.resourceModifier) as they are now, "+
		"so it is not known whether the backup has data of it, and whether that was restored", errClaimGone)
)

// checkFilled adds to the results which created claims stay empty, or may, although the backup has their data.
func (r *run) checkFilled(ctx context.Context, created map[types.NamespacedName]bool, outcome *Outcome) {
	stored, unknown := r.storedClaims(created), r.unknownClaims(created)
	namespaces := namespacesOf(stored)
	maps.Copy(namespaces, namespacesOf(unknown))
	check := r.newFillCheck(ctx, namespaces, outcome.PodVolumes)
	unfilled := map[types.NamespacedName]error{}
	for claim, from := range stored {
		problem := r.whyUnfilled(claim, from, check)
		if errors.Is(problem, errFullClaimGone) {
			outcome.Results.Warnings.Add(claim.Namespace, fmt.Errorf("persistentvolumeclaims/%s: %w", claim.Name, problem))
		} else if problem != nil {
			unfilled[claim] = problem
		}
	}
	for claim := range unknown {
		filled, gone, err := check.claimState(claim)
		switch {
		case gone && filled:
			outcome.Results.Warnings.Add(claim.Namespace, fmt.Errorf("persistentvolumeclaims/%s: %w", claim.Name, errFullClaimGone))
		case gone:
			unfilled[claim] = errUnknownClaimGone
		case filled:
			outcome.Results.Warnings.Add(claim.Namespace, fmt.Errorf("persistentvolumeclaims/%s: %w", claim.Name, errUnknownFilledClaim))
		case err != nil:
			unfilled[claim] = fmt.Errorf("%w: %w", errUnknownClaim, err)
		default:
			unfilled[claim] = errUnknownClaim
		}
	}
	for _, claim := range slices.SortedFunc(maps.Keys(unfilled), compareNames) {
		outcome.Results.Errors.Add(claim.Namespace, fmt.Errorf("persistentvolumeclaims/%s: %w", claim.Name, unfilled[claim]))
	}
	if len(created) > 0 && r.lostModifiers() {
		outcome.Results.Warnings.Velero = append(outcome.Results.Warnings.Velero, fmt.Sprintf("the resource modifiers of the restore (ConfigMap %q, spec.resourceModifier) cannot be read any more. "+
			"Claims that they have renamed are not recognized: look at the reclaim policy of their volumes, and whether those are empty that should have data", r.Restore.Spec.ResourceModifier.Name))
	}
}

// lostModifiers reports whether the restore was begun with resource modifiers that this process could not read.
func (r *run) lostModifiers() bool {
	return r.Restore.Spec.ResourceModifier != nil && r.Modifiers == nil
}

// storedClaims returns the created claims of which restic or kopia has data, with the volumes of pods from which it was backed up.
func (r *run) storedClaims(created map[types.NamespacedName]bool) map[types.NamespacedName][]storedVolume {
	stored := map[types.NamespacedName][]storedVolume{}
	for _, claim := range slices.AppendSeq(slices.Collect(maps.Keys(r.volumes.podVolumes)), maps.Keys(r.volumes.annotated)) {
		target, from := r.targetClaim(claim), r.volumes.storedFrom(claim)
		if created[target] && len(from) > 0 {
			stored[target] = from
		}
	}
	return stored
}

// unknownClaims returns the created claims that are none of the backup's, as far as the resource modifiers tell: those may have changed
// since another process created the claims.
func (r *run) unknownClaims(created map[types.NamespacedName]bool) map[types.NamespacedName]bool {
	if r.Archive == nil {
		return nil
	}
	unknown := maps.Clone(created)
	for item := range r.Archive.ItemsOf(claimResource.String()) {
		delete(unknown, r.targetClaim(types.NamespacedName{Namespace: item.Namespace, Name: item.Name}))
	}
	return unknown
}

// whyUnfilled returns why a created claim stays empty, though the backup has its data: its pod was not created, or gets no data, or it
// was deleted: errFullClaimGone if after it was filled. It returns nil if data goes into it.
func (r *run) whyUnfilled(claim types.NamespacedName, from []storedVolume, check *fillCheck) error {
	filled, gone, err := check.claimState(claim)
	if err == nil && !filled && r.lostModifiers() {
		err = errNotFilled
	}
	switch {
	case gone && (filled || check.filledBefore(claim, from)):
		return errFullClaimGone
	case gone:
		return errLostWithClaim
	case filled:
		return nil
	case err != nil:
		return fmt.Errorf("it is not known whether its data was restored: %w", err)
	default:
		return fmt.Errorf("its new volume is empty: it would be filled through pod %s, from which it was backed up, and the restore has not created that, or not restored its volumes. "+
			"Delete the claim, and restore it together with its pod", from[0].pod)
	}
}

// fillCheck finds out whether claims get the data that the backup has of them. It goes by their UIDs: resource modifiers may have given
// the claims, their pods and the claims of these other names.
type fillCheck struct {
	volumes []velerov1.PodVolumeRestore        // all have ended; those that have not ended well are errors of the restore
	filled  map[types.UID]bool                 // the claims behind the volumes of pods that are restored
	claims  map[types.NamespacedName]types.UID // those in the cluster
	going   map[types.NamespacedName]bool      // those of them that are being deleted
	errs    map[string]error                   // why those of a namespace are not known
}

// newFillCheck lists the claims of namespaces, each once.
func (r *run) newFillCheck(ctx context.Context, namespaces map[string]bool, volumes []velerov1.PodVolumeRestore) *fillCheck {
	check := &fillCheck{
		volumes: volumes, filled: map[types.UID]bool{}, claims: map[types.NamespacedName]types.UID{}, going: map[types.NamespacedName]bool{}, errs: map[string]error{},
	}
	for i := range volumes {
		if uid := volumes[i].Labels[velerov1.PVCUIDLabel]; uid != "" {
			check.filled[types.UID(uid)] = true
		}
	}
	for namespace := range namespaces {
		err := r.engine.retry(ctx, func() error {
			list, err := r.listObjects(ctx, claimObjects, namespace, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range list.Items {
				claim := &list.Items[i]
				name := types.NamespacedName{Namespace: namespace, Name: claim.GetName()}
				check.claims[name], check.going[name] = claim.GetUID(), claim.GetDeletionTimestamp() != nil
			}
			return nil
		})
		if err != nil {
			check.errs[namespace] = fmt.Errorf("list the claims of its namespace: %w", err)
		}
	}
	return check
}

// claimState reports whether data goes into a claim, and whether that was deleted. Of one that is there no more it does not know the former.
func (c *fillCheck) claimState(claim types.NamespacedName) (filled, gone bool, err error) {
	if err := c.errs[claim.Namespace]; err != nil {
		return false, false, err
	}
	uid, ok := c.claims[claim]
	return c.filled[uid], !ok || c.going[claim], nil
}

// filledBefore reports whether data of the backup went into a claim that is there no more: a PodVolumeRestore had it, and no other claim
// got it.
func (c *fillCheck) filledBefore(claim types.NamespacedName, from []storedVolume) bool {
	there := map[types.UID]bool{}
	for _, uid := range c.claims {
		there[uid] = true
	}
	return slices.ContainsFunc(c.volumes, func(pvr velerov1.PodVolumeRestore) bool {
		ofClaim := slices.ContainsFunc(from, func(s storedVolume) bool { return s.isSourceOf(&pvr.Spec) })
		return ofClaim && pvr.Spec.Pod.Namespace == claim.Namespace && !there[types.UID(pvr.Labels[velerov1.PVCUIDLabel])]
	})
}
