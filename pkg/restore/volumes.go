package restore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// dataFrom is the source of a restored claim's data.
type dataFrom int

const (
	fromElsewhere   dataFrom = iota // the backup does not say: the claim asks for the volume that it had
	fromSameVolume                  // the PersistentVolume is restored, and leads where it led
	fromPodVolume                   // restic or kopia put it into a new volume
	fromCSISnapshot                 // a CSI driver makes the new volume of it
	fromNative                      // a snapshot that only a plugin of Velero can read
	fromDataMover                   // a snapshot that only Velero's data mover can read
	fromNowhere                     // the new volume is empty
)

// source is what a backup has of a volume.
type source struct {
	dataFrom
	snapshot string // which
	reason   string // why from nowhere, or why not even from the same volume
	lost     bool   // from nowhere, although the backup says that it has the data
	problem  string // why Velero could not back it up from a pod, though it was asked to
}

// provisioned reports whether the claim gets a new volume.
func (s source) provisioned() bool {
	return slices.Contains([]dataFrom{fromPodVolume, fromCSISnapshot, fromDataMover, fromNowhere}, s.dataFrom)
}

// volumeRecords is what a backup says about its volumes.
type volumeRecords struct {
	infos  map[string]*volumeinfo.BackupVolume    // of PersistentVolumes; none before Velero 1.13
	native map[string]*backupstore.NativeSnapshot // of PersistentVolumes
	// podVolumes are those of claims, with and without a snapshot.
	podVolumes map[types.NamespacedName][]*velerov1.PodVolumeBackup
	// annotated are the claims of pods that Velero 1.0 and before annotated with the snapshots of their volumes, with these volumes.
	annotated map[types.NamespacedName][]podVolume
}

func newVolumeRecords(input *Input) *volumeRecords {
	r := &volumeRecords{
		infos: map[string]*volumeinfo.BackupVolume{}, native: map[string]*backupstore.NativeSnapshot{},
		podVolumes: map[types.NamespacedName][]*velerov1.PodVolumeBackup{}, annotated: map[types.NamespacedName][]podVolume{},
	}
	for i := range input.VolumeInfos {
		info := &input.VolumeInfos[i]
		// A volume that one pod's annotations left out and another pod's did not is listed twice.
		if known := r.infos[info.PVName]; info.PVName != "" && (known == nil || known.BackupMethod == "") {
			r.infos[info.PVName] = info
		}
	}
	for i := range input.NativeSnapshots {
		snapshot := &input.NativeSnapshots[i]
		r.native[snapshot.Spec.PersistentVolumeName] = snapshot
	}
	for i := range input.PodVolumeBackups {
		pvb := &input.PodVolumeBackups[i]
		if claim := claimOf(input.Archive, pvb); claim.Name != "" {
			r.podVolumes[claim] = append(r.podVolumes[claim], pvb)
		}
	}
	r.readAnnotatedPods(input.Archive)
	return r
}

// addListedBackups returns the PodVolumeBackups of the backup, and those that only its list of volumes knows.
func addListedBackups(input *Input) []velerov1.PodVolumeBackup {
	of := func(pvb *velerov1.PodVolumeBackup) podVolume {
		return podVolume{pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume}
	}
	all, known := slices.Clip(input.PodVolumeBackups), map[podVolume]bool{}
	for i := range all {
		known[of(&all[i])] = true
	}
	for i := range input.VolumeInfos {
		pvb := input.VolumeInfos[i].PodVolumeBackup()
		if pvb == nil || known[of(pvb)] {
			continue
		}
		if pvb.Status.SnapshotID == "" {
			pvb.Status.Message = "the backup's list of volumes has no snapshot of it"
		}
		input.Log.Warn("The backup's list of volumes has a pod volume without a PodVolumeBackup", "namespace", pvb.Spec.Pod.Namespace, "pod", pvb.Spec.Pod.Name,
			"volume", pvb.Spec.Volume, "snapshot", pvb.Status.SnapshotID, "phase", string(pvb.Status.Phase))
		known[of(pvb)], all = true, append(all, *pvb)
	}
	return all
}

// whyNotStored is what the record of a volume says that has no snapshot.
func whyNotStored(pvb *velerov1.PodVolumeBackup) string {
	record := "PodVolumeBackup " + pvb.Name
	if pvb.Name == "" {
		record = "its PodVolumeBackup is missing"
	}
	return fmt.Sprintf("its backup %s (%s): %s", cmp.Or(string(pvb.Status.Phase), "of unknown end"), record, pvb.Status.Message)
}

// emptyVolume is the message of a backup that found no data. These are Velero's words; the node agent adds what else it has to say, such as
// that an earlier backup has data.
const emptyVolume = "volume was empty so no snapshot was taken"

// emptyWithRemark reports whether a backup found no data, and says more than that.
func emptyWithRemark(pvb *velerov1.PodVolumeBackup) bool {
	return pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && pvb.Status.SnapshotID == "" && strings.HasPrefix(pvb.Status.Message, emptyVolume+"; ")
}

// remarkOnEmpty returns what the backup says of a claim that it found empty; "" if it says no more than that, or has data.
func (s *scope) remarkOnEmpty(claim types.NamespacedName) string {
	remark := ""
	for _, pvb := range s.volumes.podVolumes[claim] {
		if pvb.Status.SnapshotID != "" {
			return ""
		}
		if emptyWithRemark(pvb) {
			remark = whyNotStored(pvb)
		}
	}
	return remark
}

// claimOf returns the claim behind the volume of a pod that was backed up; its name is empty for a volume that is none.
func claimOf(archive *backupstore.Archive, pvb *velerov1.PodVolumeBackup) types.NamespacedName {
	claim := types.NamespacedName{Namespace: pvb.Spec.Pod.Namespace, Name: pvb.Annotations["velero.io/pvc-name"]}
	if claim.Name == "" {
		pod := findItem(archive, key{pods, pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name})
		claim.Name = claimsByVolume(pod)[pvb.Spec.Volume]
	}
	return claim
}

// claimsByVolume returns the names of a pod's claims by those of its volumes.
func claimsByVolume(pod map[string]any) map[string]string {
	claims := map[string]string{}
	for volume := range objectsOf(pod, "spec", "volumes") {
		if claim := textOf(volume, "persistentVolumeClaim", "claimName"); claim != "" {
			claims[textOf(volume, "name")] = claim
		}
	}
	return claims
}

// readAnnotatedPods looks for annotated pods in an archive that is old enough to have any.
func (r *volumeRecords) readAnnotatedPods(archive *backupstore.Archive) {
	if archive == nil || archive.FormatVersion() != "1" && archive.FormatVersion() != "" {
		return
	}
	for item := range archive.ItemsOf(pods.String()) {
		pod, err := archive.Object(item)
		if err != nil {
			continue // restoring it says so
		}
		claims := claimsByVolume(pod.Object)
		for volume := range annotatedSnapshots(pod) {
			if isSubdomain(claims[volume]) && isSubdomain(volume) { // nothing else is kept of what may be made to harm
				claim := types.NamespacedName{Namespace: item.Namespace, Name: claims[volume]}
				r.annotated[claim] = append(r.annotated[claim], podVolume{item.Namespace, item.Name, volume})
			}
		}
	}
}

// storedFrom returns the volumes of pods, as the backup names them, from which it has the data of a claim.
func (r *volumeRecords) storedFrom(claim types.NamespacedName) (stored []storedVolume) {
	for _, pvb := range r.podVolumes[claim] {
		if pvb.Status.SnapshotID != "" {
			stored = append(stored, storedVolume{podVolume{pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, pvb.Spec.Volume}, pvb.Status.SnapshotID})
		}
	}
	for _, volume := range r.annotated[claim] {
		stored = append(stored, storedVolume{podVolume: volume})
	}
	return stored
}

// annotatedSnapshots returns the snapshots of a pod's volumes as Velero 1.0 and before noted them on the pod, by volume.
func annotatedSnapshots(pod *unstructured.Unstructured) map[string]string {
	snapshots := map[string]string{}
	for name, snapshot := range pod.GetAnnotations() {
		if volume, ok := strings.CutPrefix(name, "snapshot.velero.io/"); ok && snapshot != "" {
			snapshots[volume] = snapshot
		}
	}
	return snapshots
}

// findItem returns the content of an item, nil if the backup does not have it or it cannot be read.
func findItem(archive *backupstore.Archive, k key) map[string]any {
	if archive == nil {
		return nil
	}
	item, ok := archive.Find(k.resource.String(), k.namespace, k.name)
	if !ok {
		return nil
	}
	object, err := archive.Object(item)
	if err != nil {
		return nil
	}
	return object.Object
}

// sourceOf returns where the claim of a PersistentVolume, which it must have been bound to, has its data from. Either may be
// missing in the backup. It follows docs/contracts/velero-restore.md 3.7.
func (s *scope) sourceOf(volume string, claim types.NamespacedName) source {
	recorded := s.recordedSource(volume, claim)
	restorePVs := s.Restore.Spec.RestorePVs == nil || *s.Restore.Spec.RestorePVs
	switch recorded.dataFrom {
	case fromNative:
		if s.Restore.Annotations[v1alpha1.AnnotationKeepNativeVolumes] == "true" {
			recorded.dataFrom = fromSameVolume
			return recorded
		}
		fallthrough
	case fromCSISnapshot, fromDataMover:
	default:
		if !recorded.lost || recorded.problem != "" {
			return recorded
		}
	}
	if !restorePVs {
		return source{dataFrom: fromNowhere, reason: "the Restore asks for no volumes of snapshots (spec.restorePVs)"}
	}
	return recorded
}

// sourceOfClaim returns where a claim of the backup has its data from.
func (s *scope) sourceOfClaim(claim types.NamespacedName) source {
	volume := s.volumeOfClaim(claim)
	if volume == "" {
		return source{}
	}
	return s.sourceOf(volume, claim)
}

// volumeOfClaim returns the PersistentVolume that a claim of the backup was bound to.
func (s *scope) volumeOfClaim(claim types.NamespacedName) string {
	return textOf(findItem(s.Archive, key{claimResource, claim.Namespace, claim.Name}), "spec", "volumeName")
}

// recordedSource is what the backup has, whatever the Restore says.
func (s *scope) recordedSource(volume string, claim types.NamespacedName) source {
	if info := s.volumes.infos[volume]; info != nil {
		switch {
		case info.BackupMethod == volumeinfo.MethodNativeSnapshot:
			return s.nativeSource(volume)
		case info.BackupMethod == volumeinfo.MethodPodVolumeBackup:
			return source{dataFrom: fromPodVolume}
		case info.BackupMethod == volumeinfo.MethodCSISnapshot && info.SnapshotDataMoved:
			return source{dataFrom: fromDataMover}
		case info.BackupMethod == volumeinfo.MethodCSISnapshot:
			return s.csiSource(claim)
		}
		return s.sourceByPolicy(volume, info.SkippedReason)
	}
	if s.volumes.native[volume] != nil {
		return s.nativeSource(volume)
	}
	// Whatever its phase: where there is a snapshot it is restored, and must not be written over the old volume.
	if len(s.volumes.storedFrom(claim)) > 0 {
		return source{dataFrom: fromPodVolume}
	}
	object := findItem(s.Archive, key{claimResource, claim.Namespace, claim.Name})
	if textOf(object, "metadata", "annotations", velerov1.DataUploadNameAnnotation) != "" {
		return source{dataFrom: fromDataMover}
	}
	if csi := s.csiSource(claim); csi.dataFrom == fromCSISnapshot && findItem(s.Archive, key{snapshotResource, claim.Namespace, csi.snapshot}) != nil {
		return csi
	}
	return s.sourceByPolicy(volume, "")
}

func (s *scope) nativeSource(volume string) source {
	snapshot := "a native snapshot that is not recorded"
	if info := s.volumes.infos[volume]; info != nil && info.NativeSnapshot != nil && info.NativeSnapshot.SnapshotHandle != "" {
		snapshot = fmt.Sprintf("native snapshot %q", info.NativeSnapshot.SnapshotHandle)
	}
	if native := s.volumes.native[volume]; native != nil && native.Status.ProviderSnapshotID != "" {
		snapshot = fmt.Sprintf("native snapshot %q of %q (VolumeSnapshotLocation %q)",
			native.Status.ProviderSnapshotID, native.Spec.ProviderVolumeID, native.Spec.Location)
	}
	return source{dataFrom: fromNative, snapshot: snapshot}
}

// csiSource is the VolumeSnapshot that the backup's copy of the claim names.
func (s *scope) csiSource(claim types.NamespacedName) source {
	object := findItem(s.Archive, key{claimResource, claim.Namespace, claim.Name})
	snapshot := textOf(object, "metadata", "annotations", velerov1.VolumeSnapshotLabel)
	if snapshot == "" {
		return source{dataFrom: fromNowhere, reason: "the backup does not name the claim's VolumeSnapshot", lost: true}
	}
	return source{dataFrom: fromCSISnapshot, snapshot: snapshot}
}

// podVolumeProblem is in the list of volumes, among the reasons why a volume was skipped, where Velero was to back it up from a pod, but
// the pod was not running, its node had no node agent, or the repository could not be used. A Backup may be Completed all the same. It
// comes from skipAllPodVolumes in pkg/podvolume/backupper.go, the same in Velero 1.14.1, 1.16.2, 1.17.2 and 1.18.3, and from SerializeSkipReasons in pkg/backup/pv_skip_tracker.go.
const podVolumeProblem = "podvolume: encountered a problem with backing up the PVC of pod "

// sourceByPolicy is for volumes of which the backup has no data. A volume whose reclaim policy is Delete went with its claim.
func (s *scope) sourceByPolicy(volume, skipped string) source {
	skipped, problem := strings.TrimSuffix(skipped, ";"), ""
	if strings.Contains(skipped, podVolumeProblem) {
		problem = skipped
	}
	object := findItem(s.Archive, key{volumeResource, "", volume})
	switch textOf(object, "spec", "persistentVolumeReclaimPolicy") {
	case "":
		return source{problem: problem}
	case "Delete":
		if problem != "" {
			return source{dataFrom: fromNowhere, reason: fmt.Sprintf("Velero could not back it up (%s)", problem), lost: true, problem: problem}
		}
		reason := "the backup has no data of it"
		if skipped != "" {
			reason += fmt.Sprintf(" (%s)", skipped)
		}
		return source{dataFrom: fromNowhere, reason: reason + ", and the reclaim policy of its volume is Delete"}
	default:
		return source{dataFrom: fromSameVolume, problem: problem}
	}
}
