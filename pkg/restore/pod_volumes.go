package restore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Names that Velero's node agents and ours know (docs/contracts/velero-restore.md 3.8).
const (
	resticWait        = "restic-wait" // before Velero 1.10
	restoreHelper     = "/velero-restore-helper"
	restoresDir       = "/restores/"
	uploaderRestic    = "restic"
	restoreHelperUser = int64(1000)
)

// podSnapshot is what restic or kopia has stored of a volume of a pod.
type podSnapshot struct {
	volume, id, uploaderType string
	bytes                    int64  // 0 if the backup does not say
	failed                   bool   // although there is a snapshot
	remark                   string // of a backup that is complete, such as files that it could not read
}

// podSnapshots returns what is restored into a pod's volumes, sorted, and why the others are not. The pod is the backup's.
func (s *scope) podSnapshots(pod *unstructured.Unstructured) ([]podSnapshot, []string) {
	found := s.recordedSnapshots(pod)
	if len(found) == 0 {
		return nil, nil
	}
	if runsWindows(pod.Object) {
		return nil, nil // see emptyVolumes
	}
	names := strings.Join(slices.Sorted(maps.Keys(found)), ", ")
	if s.leavesOutData() {
		return nil, []string{"its volumes are not restored, because the Restore leaves out claims or volumes: " + names}
	}
	var warnings []string
	volumes := map[string]map[string]any{}
	for volume := range objectsOf(pod.Object, "spec", "volumes") {
		volumes[textOf(volume, "name")] = volume
	}
	for name, snapshot := range found {
		if snapshot.failed {
			warnings = append(warnings, fmt.Sprintf("the backup of its volume %q had failed: what it has is restored, and may not be all", name))
		}
		if snapshot.remark != "" {
			warnings = append(warnings, fmt.Sprintf("the backup of its volume %q has completed, and says: %s", name, snapshot.remark))
		}
		if volumes[name] == nil {
			warnings = append(warnings, fmt.Sprintf("the backup has data of its volume %q, which the pod does not have", name))
			delete(found, name)
		}
		// The API server fills these; Velero before 1.6 backed them up all the same.
		if volumes[name]["projected"] != nil || volumes[name]["downwardAPI"] != nil {
			delete(found, name)
		}
	}
	slices.Sort(warnings)
	return slices.SortedFunc(maps.Values(found), func(a, b podSnapshot) int { return cmp.Compare(a.volume, b.volume) }), warnings
}

// leavesOutData reports whether the Restore asks for no data of pods' volumes.
func (s *scope) leavesOutData() bool {
	return s.selection != nil && (!s.selection.takesResource(claimResource) || !s.selection.takesResource(volumeResource))
}

// emptyVolumes says which of a pod's volumes stay empty because their backup failed, or because no node agent runs where the pod
// does. The warnings are of volumes that were empty, and of which their backup says more. Claims have an error or a warning of their own
// (fill), or are kept (keptClaims).
func (s *scope) emptyVolumes(pod *unstructured.Unstructured) (warnings, problems []string) {
	if found := s.recordedSnapshots(pod); len(found) > 0 && runsWindows(pod.Object) {
		problems = append(problems, "its volumes are not restored, because the node agent does not run on Windows: "+strings.Join(slices.Sorted(maps.Keys(found)), ", "))
	}
	for _, pvb := range s.notStored[podKey{pod.GetNamespace(), pod.GetName()}] {
		for volume := range objectsOf(pod.Object, "spec", "volumes") {
			if textOf(volume, "name") != pvb.Spec.Volume || volume["persistentVolumeClaim"] != nil {
				continue
			}
			text := fmt.Sprintf("its volume %q stays empty: %s", pvb.Spec.Volume, whyNotStored(pvb))
			switch {
			case pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted:
				problems = append(problems, text)
			case emptyWithRemark(pvb):
				warnings = append(warnings, text)
			}
		}
	}
	slices.Sort(warnings)
	slices.Sort(problems)
	return warnings, problems
}

// recordedSnapshots are the snapshots of a pod, by volume, from the records or, where Velero 1.0 and before made none, from
// the pod's annotations.
func (s *scope) recordedSnapshots(pod *unstructured.Unstructured) map[string]podSnapshot {
	found := map[string]podSnapshot{}
	for volume, pvb := range s.podVolumeBackups(pod.GetNamespace(), pod.GetName()) {
		snapshot := podSnapshot{
			volume: volume, id: pvb.Status.SnapshotID, bytes: pvb.Status.Progress.TotalBytes,
			uploaderType: v1alpha1.UploaderName(pvb.Spec.UploaderType), failed: pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted,
		}
		if !snapshot.failed {
			snapshot.remark = pvb.Status.Message
		}
		found[volume] = snapshot
	}
	if len(found) > 0 {
		return found
	}
	for volume, id := range annotatedSnapshots(pod) {
		found[volume] = podSnapshot{volume: volume, id: id, uploaderType: uploaderRestic}
	}
	return found
}

// waitForVolumes has a pod wait until its volumes are restored. The init container of an earlier restore goes in any case: a
// pod that kept it would wait for that restore for ever.
func waitForVolumes(ctx context.Context, s *scope, in *actionInput) (actionOutput, error) {
	spec, ok := fieldOf[map[string]any](in.item.Object, "spec")
	if !ok {
		return actionOutput{}, nil
	}
	removeObjects(spec, "initContainers", isWait)
	snapshots, warnings := s.podSnapshots(in.original)
	if len(snapshots) > 0 {
		initContainers, _ := spec["initContainers"].([]any)
		spec["initContainers"] = append([]any{s.waitContainer(spec, snapshots)}, initContainers...)
	}
	emptyWarnings, errs := s.emptyVolumes(in.original)
	keptWarnings, kept, err := s.keptClaims(ctx, in.original)
	out := actionOutput{warnings: slices.Concat(warnings, emptyWarnings, keptWarnings), errors: slices.Concat(errs, kept)}
	if s.leavesOutData() {
		out.warnings, out.errors = append(out.warnings, out.errors...), nil
	} else {
		out.warnings = append(out.warnings, s.unawaitedClaims(in.original)...)
	}
	return out, err
}

// unawaitedClaims returns a warning for each claim of a pod into which data comes through other pods only: a server backs a claim up from the first pod
// that has it. Nothing holds this pod back until the data is there.
func (s *scope) unawaitedClaims(pod *unstructured.Unstructured) (warnings []string) {
	for volume, name := range claimsByVolume(pod.Object) {
		through := ""
		for _, stored := range s.volumes.storedFrom(types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}) {
			if through = stored.pod; through == pod.GetName() {
				break
			}
		}
		if through != "" && through != pod.GetName() {
			warnings = append(warnings, fmt.Sprintf("its volume %q is the claim %q, which is restored through pod %s: this pod does not wait for the data, and may begin before all of it is there", volume, name, through))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// keptClaims returns which volumes of a pod are claims that the restore has not created, and into which no data comes although the
// backup should have it. The warnings are of claims that were empty, and of which their backup says more, and of those that have the volume which
// they would get anyway. Claims that the restore has created have an error or a warning of their own, see fill.
func (s *scope) keptClaims(ctx context.Context, pod *unstructured.Unstructured) (warnings, problems []string, err error) {
	for volume, name := range claimsByVolume(pod.Object) {
		claim := types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}
		from := s.sourceOfClaim(claim)
		reason, remark := s.whyNotBackedUp(claim, from), s.remarkOnEmpty(claim)
		if reason == "" && remark == "" {
			continue
		}
		object, err := s.findObject(ctx, claimObjects, s.targetClaim(claim))
		switch {
		case apierrors.IsNotFound(err): // its own error says why
		case err != nil:
			return nil, nil, fmt.Errorf("look for claim %q: %w", name, err)
		case s.foreign(object):
			text := fmt.Sprintf("its volume %q is the claim %q, which exists and keeps what it has, not the data of the backup: %s", volume, name, cmp.Or(reason, remark))
			mayBeKept := from.dataFrom == fromSameVolume || from.dataFrom == fromElsewhere // a new claim would get the volume, with a warning
			if reason == "" || mayBeKept && textOf(object.Object, "spec", "volumeName") == s.volumeOfClaim(claim) {
				warnings = append(warnings, text)
			} else {
				problems = append(problems, text)
			}
		}
	}
	slices.Sort(warnings)
	slices.Sort(problems)
	return warnings, problems, nil
}

// whyNotBackedUp returns why the backup has no data of a claim that was to be backed up from a pod; "" if it has, or was not asked to.
func (s *scope) whyNotBackedUp(claim types.NamespacedName, from source) string {
	switch {
	case from.problem != "":
		return fmt.Sprintf("Velero could not back it up (%s)", from.problem)
	case from.dataFrom == fromPodVolume || len(s.volumes.podVolumes[claim]) > 0:
		return s.noPodVolumeData(claim)
	default:
		return ""
	}
}

// isWait reports whether an init container, or its status, is that of one that waits for volumes.
func isWait(container map[string]any) bool {
	return slices.Contains([]string{v1alpha1.ContainerRestoreWait, resticWait}, textOf(container, "name"))
}

// waitsForOther reports whether a pod waits for volumes of another Restore than uid. That may have ended before it asked for them.
func waitsForOther(pod *unstructured.Unstructured, uid types.UID) bool {
	for status := range objectsOf(pod.Object, "status", "initContainerStatuses") {
		if _, ended := fieldOf[map[string]any](status, "state", "terminated"); ended && isWait(status) && numberOf(status, "state", "terminated", "exitCode") == 0 {
			return false
		}
	}
	for container := range objectsOf(pod.Object, "spec", "initContainers") {
		args, _ := fieldOf[[]any](container, "args")
		if isWait(container) && !slices.Contains(args, any(string(uid))) {
			return true
		}
	}
	return false
}

// warnOfVolumes warns that the volumes of a pod that exists are not filled, unless it waits for this Restore, which has asked for that.
func (r *run) warnOfVolumes(i *item, existing *unstructured.Unstructured) {
	snapshots, _ := r.podSnapshots(i.original)
	switch {
	case len(snapshots) == 0:
	case waitsForOther(existing, r.Restore.UID):
		i.warn("its volumes are not restored by this Restore: it waits for those of an earlier one. If nobody restores them (no PodVolumeRestore is for this pod), " +
			"delete it, with what owns it, and restore again")
	case r.existedBefore(existing) || !r.isOurs(existing):
		names := make([]string, 0, len(snapshots))
		for _, snapshot := range snapshots {
			names = append(names, snapshot.volume)
		}
		i.warn("the data of its volumes is not restored, because the pod exists: %s. To restore it, delete the pod, with what owns it, and restore again", strings.Join(names, ", "))
	}
}

// waitContainer is the init container that waits for volumes.
func (s *scope) waitContainer(spec map[string]any, snapshots []podSnapshot) map[string]any {
	mounts := make([]any, 0, len(snapshots))
	for _, snapshot := range snapshots {
		mounts = append(mounts, map[string]any{"name": snapshot.volume, "mountPath": restoresDir + snapshot.volume})
	}
	fromPod := func(name, path string) any {
		return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": path}}}
	}
	security := runtime.DeepCopyJSON(s.wait.security)
	if security == nil {
		security = waitSecurityContext(spec)
	}
	return map[string]any{
		"name":            v1alpha1.ContainerRestoreWait,
		"image":           s.wait.image,
		"command":         []any{s.wait.command},
		"args":            []any{string(s.Restore.UID)},
		"env":             []any{fromPod("POD_NAMESPACE", "metadata.namespace"), fromPod("POD_NAME", "metadata.name")},
		"volumeMounts":    mounts,
		"resources":       runtime.DeepCopyJSON(s.wait.resources),
		"securityContext": security,
	}
}

// waitSecurityContext is that of the pod's first container, as in Velero: whoever wrote the volumes can look into them, and
// what the namespace's policy allows the pod it allows this container. Without one it is restricted, with the pod's user.
func waitSecurityContext(spec map[string]any) map[string]any {
	for container := range objectsOf(spec, "containers") {
		if own, ok := fieldOf[map[string]any](container, "securityContext"); ok {
			return runtime.DeepCopyJSON(own)
		}
		break
	}
	restricted := map[string]any{
		"allowPrivilegeEscalation": false,
		"capabilities":             map[string]any{"drop": []any{"ALL"}},
		"seccompProfile":           map[string]any{"type": "RuntimeDefault"},
		"runAsNonRoot":             true,
		"runAsUser":                restoreHelperUser,
	}
	pod, _ := fieldOf[map[string]any](spec, "securityContext")
	for _, field := range []string{"runAsUser", "runAsGroup"} {
		if id, ok := pod[field]; ok {
			restricted[field] = id
		}
	}
	if id, ok := pod["runAsUser"]; ok && id == int64(0) {
		delete(restricted, "runAsNonRoot")
	}
	return restricted
}
