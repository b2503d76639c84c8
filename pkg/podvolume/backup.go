package podvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// settingParallelUpload is a key of uploaderSettings (docs/contracts/velero-node-agent.md 2.1).
const settingParallelUpload = "ParallelFilesUpload"

// backup makes one attempt to store the volume in its repository.
func (op *Operation) backup(ctx context.Context) (attemptResult, error) {
	pvb := op.Object.(*velerov1.PodVolumeBackup)
	up, err := op.uploader()
	if err != nil {
		return attemptResult{}, err
	}
	req := uploader.BackupRequest{Resume: op.attempt > 1 || op.resumed}
	if req.Parallel, err = op.intSetting(settingParallelUpload); err != nil {
		return attemptResult{}, err
	}
	earlier, err := op.earlierBackups(ctx, pvb)
	if err != nil {
		return attemptResult{}, err
	}
	req.Parent = newestSnapshot(earlier, pvb)
	if req.Volume, req.Repository, err = op.open(ctx); err != nil {
		return attemptResult{}, err
	}
	defer req.Volume.Close()
	result := attemptResult{path: req.Volume.Name()}
	if err := op.setSnapshotSource(ctx, pvb, &req); err != nil {
		return result, err
	}
	uploaded, err := op.upload(ctx, up, req)
	if err != nil {
		return result, err
	}
	if err := op.checkVolumeStillThere(ctx, req.Volume, uploaded.Vanished); err != nil {
		return result, fmt.Errorf("the volume was torn down while it was read, its snapshot is not complete: %w", err)
	}
	if err := op.acceptUnreadable(ctx, uploaded); err != nil {
		return result, err // without a snapshot id: a server would restore it otherwise (docs/contracts/velero-node-agent.md 2.2)
	}
	var readBack string
	if result.verified, readBack, err = op.proveAfterDamage(ctx, pvb, up, req, uploaded); err != nil {
		return result, err
	}
	result.snapshotID, result.totalBytes, result.newBytes, result.errors = uploaded.SnapshotID, uploaded.TotalBytes, uploaded.BytesUploaded, uploaded.Errors
	result.lackAttrs, result.manyVanished = uploaded.LackAttributes.Entries > 0, manyVanished(&uploaded)
	result.message = joinMessages(backupMessage(uploaded), readBack)
	if before := newestWithData(earlier); before != nil && foundNoData(&uploaded) {
		result.becameEmpty, result.message = true, joinMessages(result.message, op.becameEmptyText(before, uploaded.Excluded > 0))
	}
	return result, nil
}

// uploader returns the data path that the object asks for.
func (op *Operation) uploader() (uploader.Uploader, error) {
	if u, ok := op.env.Uploaders[op.UploaderName()]; ok {
		return u, nil
	}
	return nil, Permanent(v1alpha1.ReasonUnsupported, fmt.Errorf("uploader type %q is not served by this node agent", op.UploaderName()))
}

// earlierBackups returns the completed backups of the same claim, the oldest first; none of a volume without a claim.
func (op *Operation) earlierBackups(ctx context.Context, pvb *velerov1.PodVolumeBackup) ([]velerov1.PodVolumeBackup, error) {
	claim := pvb.Labels[velerov1.PVCUIDLabel]
	if claim == "" {
		return nil, nil
	}
	var list velerov1.PodVolumeBackupList
	// No watch has objects that have ended. The API server answers from its own watch cache: a list that is a moment old will do.
	err := op.env.patientAPI.List(ctx, &list, client.InNamespace(op.env.Namespace), client.MatchingLabels{velerov1.PVCUIDLabel: claim},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	if err != nil {
		return nil, fmt.Errorf("list earlier backups of the volume's claim: %w", err)
	}
	earlier := slices.DeleteFunc(list.Items, func(b velerov1.PodVolumeBackup) bool {
		return b.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted || b.Status.StartTimestamp == nil
	})
	slices.SortStableFunc(earlier, func(a, b velerov1.PodVolumeBackup) int {
		return a.Status.StartTimestamp.Compare(b.Status.StartTimestamp.Time)
	})
	return earlier, nil
}

// newestSnapshot returns the snapshot that a backup is compared with, that of the newest earlier one with the same location and uploader type; empty if
// there is none. Without one restic looks for a snapshot of the same host and path, which only fits pods that keep their UID.
func newestSnapshot(earlier []velerov1.PodVolumeBackup, pvb *velerov1.PodVolumeBackup) string {
	for _, b := range slices.Backward(earlier) {
		if v1alpha1.UploaderName(b.Spec.UploaderType) == v1alpha1.UploaderName(pvb.Spec.UploaderType) && b.Spec.BackupStorageLocation == pvb.Spec.BackupStorageLocation {
			return b.Status.SnapshotID
		}
	}
	return ""
}

// newestWithData returns the newest backup that has data, wherever it is, nil if none has. It need not be the last one: a volume that stays empty is worth a look
// for as long as there is something to bring back.
func newestWithData(earlier []velerov1.PodVolumeBackup) *velerov1.PodVolumeBackup {
	for i := range slices.Backward(earlier) {
		if s := &earlier[i].Status; s.SnapshotID != "" && s.Progress.TotalBytes > 0 {
			return &earlier[i]
		}
	}
	return nil
}

// foundNoData reports whether a backup has no data. Files that could not be read have words of their own.
func foundNoData(uploaded *uploader.BackupResult) bool {
	return uploaded.TotalBytes == 0 && uploaded.Errors == 0
}

// becameEmptyText says what an earlier backup has of a volume without data, and where to look. leftOut is set where the volume itself keeps all out that
// it still has.
func (op *Operation) becameEmptyText(before *velerov1.PodVolumeBackup, leftOut bool) string {
	has, look := "the volume has no data", fmt.Sprintf("see whether it is mounted on node %s, and what has removed its files", op.env.NodeName)
	if leftOut {
		has, look = "the backup has no data", "see whether that is meant"
	}
	return fmt.Sprintf("%s, and in its backup of %s it had %s: %s",
		has, cmp.Or(before.Labels[velerov1.BackupNameLabel], before.Name), text.Bytes(before.Status.Progress.TotalBytes), look)
}

// upload runs the uploader. If the repository does not exist, it creates it first.
func (op *Operation) upload(ctx context.Context, up uploader.Uploader, req uploader.BackupRequest) (uploader.BackupResult, error) {
	uploaded, err := up.Backup(ctx, req, op.tracker)
	if !errors.Is(err, uploader.ErrRepositoryNotFound) || !op.env.InitRepositories || req.Repository.ReadOnly {
		return uploaded, err
	}
	if err := op.createRepository(ctx, up, req.Repository); err != nil {
		return uploaded, err
	}
	op.tracker.Report(progress.Reading{Stage: progress.StageScanning})
	return up.Backup(ctx, req, op.tracker)
}

// checkVolumeStillThere returns an error if kubelet has removed what a backup was reading, or may have: files that vanish are no
// errors. kubelet removes the files of its own volumes as soon as the pod's containers have ended, although the object of an
// evicted pod stays, and it may be late to say so. Other volumes it can only unmount, which the kernel refuses while a worker reads:
// their snapshots are complete whatever has become of the pod, also if its object was deleted by force. Where its claim went, too, a provisioner may
// have removed the files by a way of its own: then some have vanished.
// That does not hold where the driver may put files into the directory without a mount.
func (op *Operation) checkVolumeStillThere(ctx context.Context, opened *os.File, vanished int64) error {
	outlivesPod := op.foundDir.Mounted && !op.foundKubelets
	if outlivesPod && vanished == 0 {
		return nil
	}
	pod, err := op.patientPod(ctx)
	switch {
	case isUnanswered(err), isPodGone(err):
		return err
	case err != nil:
		return nil //nolint:nilerr // another answer says nothing about the volume
	case outlivesPod:
		return nil
	}
	if ending := PodEnding(pod); ending != nil {
		return Permanent(v1alpha1.ReasonPodGone, ending)
	}
	return op.checkSameDirectory(pod, opened)
}

// checkSameDirectory returns an error unless the directory that was opened is still the volume's. Its inode tells, which no other directory has as
// long as it is open.
func (op *Operation) checkSameDirectory(pod *corev1.Pod, opened *os.File) error {
	now, err := op.env.openDir(pod, op.foundDir)
	if err != nil {
		return err
	}
	defer now.Close()
	before, err := opened.Stat()
	if err != nil {
		return retryable(v1alpha1.ReasonVolumeIO, err)
	}
	after, err := now.Stat()
	if err != nil {
		return retryable(v1alpha1.ReasonVolumeIO, err)
	}
	if !os.SameFile(before, after) {
		return retryable(v1alpha1.ReasonVolumeNotFound, fmt.Errorf("%s is another directory than before", now.Name()))
	}
	return nil
}

// backupMessage returns the message of a Completed backup, empty if there is nothing to say.
func backupMessage(uploaded uploader.BackupResult) string {
	message := ""
	switch {
	case uploaded.SnapshotID == "":
		message = "volume was empty so no snapshot was taken" // Velero's words, which people search for
	case uploaded.Errors > 0:
		message = fmt.Sprintf("snapshot %s was saved without %s", uploaded.SnapshotID, describeUnreadable("that could not be read", uploaded))
	}
	if lack := uploaded.LackAttributes; lack.Entries > 0 {
		message = joinMessages(message, lackAttributesText(lack))
	}
	if uploaded.Vanished > 0 {
		message = joinMessages(message, vanishedText(&uploaded))
	}
	if uploaded.Excluded > 0 {
		message = joinMessages(message, excludedText(&uploaded))
	}
	return message
}

// excludedText says what the volume itself keeps out of its backup.
func excludedText(res *uploader.BackupResult) string {
	said := text.Count(res.Excluded, "file or directory is", "files and directories are") + " left out, as .kopiaignore or CACHEDIR.TAG in the volume say"
	if res.TotalFiles == 0 {
		said = "the snapshot has no file: " + said
	}
	return said
}

// lackAttributesText says which entries were stored without attributes.
func lackAttributesText(lack uploader.LackAttributes) string {
	return "extended attributes of " + text.Count(lack.Entries, "entry", "entries") + ", such as " + text.ShortPath(lack.Example) +
		", could not be read, and the snapshot lacks them"
}

// vanishedText says what went away while it was read.
func vanishedText(res *uploader.BackupResult) string {
	said := text.Count(res.Vanished, "entry", "entries") + " of the volume vanished while it was read"
	if n := res.VanishedDirectories; n > 0 {
		said += ", " + text.Count(n, "directory", "directories") + " among them with all that was in it: what was renamed meanwhile is missing"
	}
	return said
}
