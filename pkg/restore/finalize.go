package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

var (
	volumeObjects = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	podObjects    = pods.WithVersion("v1")
)

var (
	// errUnbound comes for a claim that binds only when a pod uses it.
	errUnbound = errors.New("its storage class waits until a pod that uses it is scheduled")
	// errUnused is errUnbound where there is no such pod. Nobody knows when there will be one: it is not waited for.
	errUnused = fmt.Errorf("%w, and no pod uses it", errUnbound)
	// errNotMade comes for such a claim when it is its storage's turn.
	errNotMade = errors.New("a node is chosen for the pod that uses it, and its storage has not made the volume")
	// errClaimGone comes for a claim that was deleted since the restore created it.
	errClaimGone = errors.New("the claim was deleted")
)

// finalizeClaims completes the new volumes of created claims. Those that stay empty are errors.
func (r *run) finalizeClaims(ctx context.Context, outcome *Outcome) error {
	created := createdClaims(outcome.Resources)
	ofSnapshots, end := r.claimsOfSnapshots(created), time.Now().Add(r.engine.config.ResourceTimeout)
	waiting := r.volumesToPatch(created)
	bound := maps.Clone(waiting)
	problems := r.patchVolumes(ctx, waiting)
	maps.DeleteFunc(bound, func(claim types.NamespacedName, _ *volumeinfo.PVInfo) bool { return problems[claim] != nil })
	failedSnapshots := r.failedSnapshots(ctx, ofSnapshots, end)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, claim := range slices.SortedFunc(maps.Keys(failedSnapshots), compareNames) {
		switch problem := failedSnapshots[claim]; {
		case errors.Is(problem, errFullClaimGone) || errors.Is(problem, errClaimGone) && bound[claim] != nil:
			outcome.Results.Warnings.Add(claim.Namespace, fmt.Errorf("persistentvolumeclaims/%s: %w", claim.Name, errFullClaimGone))
		case errors.Is(problem, errClaimGone):
			outcome.Results.Errors.Add(claim.Namespace, fmt.Errorf("persistentvolumeclaims/%s: %w", claim.Name, problem))
		default:
			outcome.Results.Errors.Add(claim.Namespace, fmt.Errorf("persistentvolumeclaims/%s: it gets no data: %w. %s", claim.Name, problem, otherBackup))
		}
	}
	for _, claim := range slices.SortedFunc(maps.Keys(problems), compareNames) {
		if errors.Is(problems[claim], errClaimGone) {
			continue // what counts is its data
		}
		err := fmt.Errorf("persistentvolumeclaims/%s: reclaim policy and labels of its old volume: %w", claim.Name, problems[claim])
		// Where no volume was made of a snapshot, the storage may not have that any more.
		if errors.Is(err, errUnbound) || errors.Is(err, errNotMade) && !ofSnapshots[claim] {
			outcome.Results.Warnings.Add(claim.Namespace, err)
		} else {
			outcome.Results.Errors.Add(claim.Namespace, err)
		}
	}
	r.checkFilled(ctx, created, outcome)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// patchVolumes goes round the claims until each is bound and its volume changed, or the time is up, and returns what is wrong
// with those that are not. It looks again when a claim has changed.
func (r *run) patchVolumes(ctx context.Context, waiting map[types.NamespacedName]*volumeinfo.PVInfo) map[types.NamespacedName]error {
	problems := map[types.NamespacedName]error{}
	timeout := r.engine.config.ResourceTimeout
	ctx, cancel := context.WithTimeout(ctx, timeout)
	changed := make(chan struct{}, 1)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	for followed := false; ; followed = true {
		r.patchBoundVolumes(ctx, waiting, problems)
		if len(waiting) == 0 || ctx.Err() != nil {
			break
		}
		for namespace := range namespacesOf(waiting) {
			if !followed {
				followers.Go(func() { r.watchClaims(ctx, namespace, changed) })
			}
		}
		select {
		case <-changed:
		case <-time.After(r.engine.config.bindingInterval):
		case <-ctx.Done():
		}
	}
	for claim := range waiting {
		problems[claim] = fmt.Errorf("not done within %s: %w", timeout, cmp.Or(problems[claim], ctx.Err()))
	}
	maps.DeleteFunc(problems, func(_ types.NamespacedName, problem error) bool { return problem == nil })
	return problems
}

// patchBoundVolumes looks at each claim once, and takes those out of which nothing more can become.
func (r *run) patchBoundVolumes(ctx context.Context, waiting map[types.NamespacedName]*volumeinfo.PVInfo, problems map[types.NamespacedName]error) {
	used := map[string]map[string]bool{} // claims that pods use, by namespace
	for claim, info := range waiting {
		problem := r.patchVolumeOf(ctx, claim, info)
		if errors.Is(problem, errUnbound) {
			problem = r.whyUnbound(ctx, claim, used)
		}
		if ctx.Err() != nil {
			return // else it says nothing about the claim
		}
		if problems[claim] = problem; problem == nil || isFinal(problem) {
			delete(waiting, claim)
		}
	}
}

// watchClaims signals each change of a claim in a namespace until ctx ends. Where the API server does not let it watch, it goes on
// asking, and those who wait look at intervals.
func (r *run) watchClaims(ctx context.Context, namespace string, changed chan<- struct{}) {
	for ctx.Err() == nil {
		claims, err := r.engine.cluster.Resource(claimObjects).Namespace(namespace).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			r.Log.Debug("Cannot watch claims; trying again", "namespace", namespace, "error", err)
			_ = apiretry.Sleep(ctx, r.engine.config.bindingInterval)
			continue
		}
		for range claims.ResultChan() { // it begins with the claims as they are
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		claims.Stop()
		_ = apiretry.Sleep(ctx, pollInterval)
	}
}

func namespacesOf[T any](claims map[types.NamespacedName]T) map[string]bool {
	namespaces := map[string]bool{}
	for claim := range claims {
		namespaces[claim.Namespace] = true
	}
	return namespaces
}

// whyUnbound returns why a claim is not bound that binds when a pod uses it. used is what earlier calls have found.
func (r *run) whyUnbound(ctx context.Context, claim types.NamespacedName, used map[string]map[string]bool) error {
	if used[claim.Namespace] == nil {
		list, err := r.listObjects(ctx, podObjects, claim.Namespace, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("look for the pods that use it: %w", err)
		}
		claims := map[string]bool{}
		for i := range list.Items {
			if leftOut(pods, &list.Items[i]) != "" {
				continue
			}
			for _, name := range claimsByVolume(list.Items[i].Object) {
				claims[name] = true
			}
		}
		used[claim.Namespace] = claims
	}
	if !used[claim.Namespace][claim.Name] {
		return errUnused
	}
	return errUnbound
}

// patchVolumeOf changes the volume of a claim that is bound.
func (r *run) patchVolumeOf(ctx context.Context, claim types.NamespacedName, info *volumeinfo.PVInfo) error {
	volume, err := r.boundVolume(ctx, claim)
	if err != nil {
		return err
	}
	return r.patchVolume(ctx, volume, info)
}

func compareNames(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// createdClaims reads the claims that a restore has created out of its resource list.
func createdClaims(resources map[string][]string) map[types.NamespacedName]bool {
	created := map[types.NamespacedName]bool{}
	for _, entry := range resources["v1/PersistentVolumeClaim"] {
		if name, ok := strings.CutSuffix(entry, "(created)"); ok {
			namespace, claim, _ := strings.Cut(name, "/")
			created[types.NamespacedName{Namespace: namespace, Name: claim}] = true
		}
	}
	return created
}

// volumesToPatch returns the created claims with new volumes, and what these are to have of the old ones.
func (r *run) volumesToPatch(created map[types.NamespacedName]bool) map[types.NamespacedName]*volumeinfo.PVInfo {
	wanted := map[types.NamespacedName]*volumeinfo.PVInfo{}
	for i := range r.VolumeInfos {
		info := &r.VolumeInfos[i]
		claim := r.targetClaim(types.NamespacedName{Namespace: info.PVCNamespace, Name: info.PVCName})
		provisioned := info.BackupMethod == volumeinfo.MethodPodVolumeBackup || info.BackupMethod == volumeinfo.MethodCSISnapshot
		if provisioned && info.PV != nil && created[claim] {
			wanted[claim] = info.PV
		}
	}
	return wanted
}

// isFinal reports whether it is of no use to wait.
func isFinal(err error) bool {
	return errors.Is(err, errUnused) || errors.Is(err, errClaimGone) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

// boundVolume returns the volume of a claim once both are bound to each other.
func (r *run) boundVolume(ctx context.Context, name types.NamespacedName) (*corev1.PersistentVolume, error) {
	var claim corev1.PersistentVolumeClaim
	err := r.readObject(ctx, claimObjects, name, &claim)
	if apierrors.IsNotFound(err) || err == nil && claim.DeletionTimestamp != nil {
		return nil, errClaimGone
	}
	if err != nil {
		return nil, err
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		waits, err := r.waitsForConsumer(ctx, &claim)
		switch {
		case err != nil:
			return nil, err
		case waits && claim.Annotations[selectedNode] != "":
			return nil, errNotMade
		case waits:
			return nil, errUnbound
		}
		return nil, fmt.Errorf("the claim is %s", claim.Status.Phase)
	}
	volume := &corev1.PersistentVolume{}
	if err := r.readObject(ctx, volumeObjects, types.NamespacedName{Name: claim.Spec.VolumeName}, volume); err != nil {
		return nil, err
	}
	if ref := volume.Spec.ClaimRef; ref == nil || volume.Status.Phase != corev1.VolumeBound || ref.Namespace != name.Namespace || ref.Name != name.Name {
		return nil, fmt.Errorf("volume %s is %s, and not bound to the claim", volume.Name, volume.Status.Phase)
	}
	return volume, nil
}

// waitsForConsumer reports whether a pending claim is not bound before a pod uses it.
func (r *run) waitsForConsumer(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	if claim.Status.Phase != corev1.ClaimPending || claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "" {
		return false, nil
	}
	var class storagev1.StorageClass
	if err := r.readObject(ctx, storageClasses, types.NamespacedName{Name: *claim.Spec.StorageClassName}, &class); err != nil {
		return false, fmt.Errorf("its storage class: %w", err)
	}
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer, nil
}

// patchVolume gives a volume a reclaim policy and labels. It keeps the labels that its provisioner has given it, and adds none that
// say where the old volume was: the scheduler lets pods use a volume only on nodes that have the same. Velero overwrites them,
// and after a restore into another zone no node has all labels of the volume.
func (r *run) patchVolume(ctx context.Context, volume *corev1.PersistentVolume, info *volumeinfo.PVInfo) error {
	labels := map[string]string{}
	for name, value := range info.Labels {
		if _, ok := volume.Labels[name]; !ok && !isTopologyLabel(name) {
			labels[name] = value
		}
	}
	same := info.ReclaimPolicy == "" || string(volume.Spec.PersistentVolumeReclaimPolicy) == info.ReclaimPolicy
	if same && len(labels) == 0 {
		return nil
	}
	change := map[string]any{"metadata": map[string]any{"labels": labels}}
	if !same {
		change["spec"] = map[string]any{"persistentVolumeReclaimPolicy": info.ReclaimPolicy}
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = r.engine.cluster.Resource(volumeObjects).Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patch volume %s: %w", volume.Name, err)
	}
	return nil
}

// isTopologyLabel reports whether a label says in which zone or region something is.
func isTopologyLabel(label string) bool {
	return strings.HasPrefix(label, "topology.kubernetes.io/") || strings.HasPrefix(label, "failure-domain.beta.kubernetes.io/")
}
