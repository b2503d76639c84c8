package restore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

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

var (
	podVolumeRestores  = velerov1.SchemeGroupVersion.WithResource("podvolumerestores")
	backupRepositories = velerov1.SchemeGroupVersion.WithResource("backuprepositories")
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
			uploaderType: cmp.Or(pvb.Spec.UploaderType, uploaderRestic), failed: pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted,
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
	}
	return out, err
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
		object, err := s.findObject(ctx, claimObjects, types.NamespacedName{Namespace: s.targetNamespace(claim.Namespace), Name: name})
		switch {
		case apierrors.IsNotFound(err): // its own error says why
		case err != nil:
			return nil, nil, fmt.Errorf("look for claim %q: %w", name, err)
		case s.existedBefore(object) || object.GetLabels()[velerov1.RestoreNameLabel] != label.GetValidName(s.Restore.Name):
			text := fmt.Sprintf("its volume %q is the claim %q, which exists and keeps what it has, not the data of the backup: %s", volume, name, cmp.Or(reason, remark))
			if reason == "" || from.dataFrom == fromSameVolume && textOf(object.Object, "spec", "volumeName") == s.volumeOfClaim(claim) {
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

// restorePodVolumes asks the node agents to restore the volumes of a pod that was just created: one PodVolumeRestore for each,
// in the Restore's namespace. original is the pod as the backup has it. It returns those that it has made, and warnings; each
// error names a volume whose pod waits for ever, unless another Restore fills that volume.
func (s *scope) restorePodVolumes(ctx context.Context, original, created *unstructured.Unstructured) (made []velerov1.PodVolumeRestore, warnings []string, errs []error) {
	snapshots, _ := s.podSnapshots(original)
	for _, snapshot := range snapshots {
		pvr, warning, err := s.restorePodVolume(ctx, original.GetNamespace(), created, snapshot)
		if err != nil {
			errs = append(errs, fmt.Errorf("restore volume %q of pod %s/%s: %w", snapshot.volume, created.GetNamespace(), created.GetName(), err))
			continue
		}
		made = append(made, *pvr)
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return made, warnings, errs
}

func (s *scope) restorePodVolume(ctx context.Context, sourceNamespace string, pod *unstructured.Unstructured, snapshot podSnapshot) (made *velerov1.PodVolumeRestore, warning string, err error) {
	pvr := s.podVolumeRestore(sourceNamespace, pod, snapshot)
	again := false
	err = s.engine.retry(ctx, func() (err error) {
		if warning, err = s.complete(ctx, pvr, claimsByVolume(pod.Object)[snapshot.volume]); err != nil {
			return err
		}
		// The answer to an earlier request may be what was lost. Two would write the same volume.
		if again {
			if made, err = s.findPodVolumeRestore(ctx, pvr); err != nil || made != nil {
				return err
			}
		}
		again = true
		made, err = s.createPodVolumeRestore(ctx, pvr)
		return err
	})
	return made, warning, err
}

// complete adds what the cluster must be asked for. The warning tells of a claim that may hold something already.
func (s *scope) complete(ctx context.Context, pvr *velerov1.PodVolumeRestore, claim string) (warning string, err error) {
	if claim != "" {
		object, err := s.findObject(ctx, claimObjects, types.NamespacedName{Namespace: pvr.Spec.Pod.Namespace, Name: claim})
		if err != nil {
			return "", fmt.Errorf("get its claim: %w", err)
		}
		pvr.Labels[velerov1.PVCUIDLabel] = string(object.GetUID())
		if s.existedBefore(object) {
			warning = fmt.Sprintf("its volume %q is the claim %q, which was there before this restore: files of the backup replace those of the same name, and all others stay",
				pvr.Spec.Volume, claim)
		}
	}
	if pvr.Spec.UploaderType == uploaderRestic {
		pvr.Spec.RepoIdentifier, err = s.resticIdentifier(ctx, pvr.Spec.SourceNamespace)
	}
	return warning, err
}

// clockSlack is how far the clocks of an API server and a controller may be apart.
const clockSlack = 10 * time.Second

// existedBefore reports whether an object was made before this restore began. Its labels do not tell: an update adds them.
func (s *scope) existedBefore(object *unstructured.Unstructured) bool {
	began := s.Restore.Status.StartTimestamp
	return began != nil && object.GetCreationTimestamp().Time.Before(began.Add(-clockSlack))
}

// podVolumeRestore is the object as Velero makes it, without what the cluster must be asked for.
func (s *scope) podVolumeRestore(sourceNamespace string, pod *unstructured.Unstructured, snapshot podSnapshot) *velerov1.PodVolumeRestore {
	return &velerov1.PodVolumeRestore{
		TypeMeta: metav1.TypeMeta{APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "PodVolumeRestore"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Restore.Namespace, GenerateName: s.Restore.Name + "-",
			// The agent tells the init container the UID of the owner, see waitContainer.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "Restore", Name: s.Restore.Name, UID: s.Restore.UID, Controller: new(true),
			}},
			Labels: map[string]string{
				velerov1.RestoreNameLabel: label.GetValidName(s.Restore.Name),
				velerov1.RestoreUIDLabel:  string(s.Restore.UID),
				velerov1.PodUIDLabel:      string(pod.GetUID()),
			},
		},
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod:    corev1.ObjectReference{Kind: "Pod", Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUID()},
			Volume: snapshot.volume, SnapshotID: snapshot.id, SnapshotSize: snapshot.bytes, UploaderType: snapshot.uploaderType,
			BackupStorageLocation: s.Backup.Spec.StorageLocation, SourceNamespace: sourceNamespace,
			UploaderSettings: uploaderSettings(s.Restore.Spec.UploaderConfig),
		},
	}
}

// uploaderSettings spells a Restore's settings as node agents read them.
func uploaderSettings(config *velerov1.UploaderConfigForRestore) map[string]string {
	if config == nil {
		return nil
	}
	sparse := config.WriteSparseFiles != nil && *config.WriteSparseFiles
	settings := map[string]string{"WriteSparseFiles": strconv.FormatBool(sparse)}
	if config.ParallelFilesDownload > 0 {
		settings["ParallelFilesDownload"] = strconv.Itoa(config.ParallelFilesDownload)
	}
	return settings
}

// resticIdentifier returns where a Velero server says that the repository of a namespace is. Without a server it is empty, and
// our agent derives it from the location. What the PodVolumeBackup says is not asked: the bucket may have moved since.
func (s *scope) resticIdentifier(ctx context.Context, sourceNamespace string) (string, error) {
	repositories, err := s.listObjects(ctx, backupRepositories, s.Restore.Namespace, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{
			velerov1.VolumeNamespaceLabel: label.GetValidName(sourceNamespace),
			velerov1.StorageLocationLabel: label.GetValidName(s.Backup.Spec.StorageLocation),
			velerov1.RepositoryTypeLabel:  uploaderRestic,
		}).String(),
	})
	if apierrors.IsNotFound(err) {
		return "", nil // no such CRD
	}
	if err != nil {
		return "", fmt.Errorf("look for its BackupRepository: %w", err)
	}
	for _, repository := range repositories.Items {
		if identifier := textOf(repository.Object, "spec", "resticIdentifier"); identifier != "" {
			return identifier, nil
		}
	}
	return "", nil
}

// findPodVolumeRestore returns the one that was made for the same volume, nil if there is none.
func (s *scope) findPodVolumeRestore(ctx context.Context, wanted *velerov1.PodVolumeRestore) (*velerov1.PodVolumeRestore, error) {
	list, err := s.listObjects(ctx, podVolumeRestores, wanted.Namespace, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{
			velerov1.RestoreUIDLabel: wanted.Labels[velerov1.RestoreUIDLabel], velerov1.PodUIDLabel: wanted.Labels[velerov1.PodUIDLabel],
		}).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("look for its PodVolumeRestore: %w", err)
	}
	for i := range list.Items {
		if textOf(list.Items[i].Object, "spec", "volume") == wanted.Spec.Volume {
			return decodePodVolumeRestore(&list.Items[i])
		}
	}
	return nil, nil //nolint:nilnil // documented
}

// createPodVolumeRestore creates it, under another name if the one that the API server chose was taken.
func (s *scope) createPodVolumeRestore(ctx context.Context, pvr *velerov1.PodVolumeRestore) (*velerov1.PodVolumeRestore, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pvr)
	if err != nil {
		return nil, err
	}
	var created *unstructured.Unstructured
	err = retry.OnError(retry.DefaultRetry, apierrors.IsAlreadyExists, func() error {
		created, err = s.engine.cluster.Resource(podVolumeRestores).Namespace(pvr.Namespace).Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create its PodVolumeRestore: %w", err)
	}
	return decodePodVolumeRestore(created)
}

func decodePodVolumeRestore(object *unstructured.Unstructured) (*velerov1.PodVolumeRestore, error) {
	pvr := &velerov1.PodVolumeRestore{}
	return pvr, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pvr)
}
