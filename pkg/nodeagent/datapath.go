package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Keys of uploaderSettings (docs/contracts/velero-node-agent.md 2.1 and 2.2).
const (
	settingParallelUpload   = "ParallelFilesUpload"
	settingParallelDownload = "ParallelFilesDownload"
	settingSparse           = "WriteSparseFiles"
)

// maxNamedPaths is how many unreadable files a message names; the others are only counted.
const maxNamedPaths = 5

func (a *Agent) uploader(s PodVolume) (uploader.Uploader, error) {
	if u, ok := a.cfg.Uploaders[s.UploaderName()]; ok {
		return u, nil
	}
	return nil, Permanent(ReasonUnsupported, fmt.Errorf("uploader type %q is not served by this node agent", s.UploaderName()))
}

// backup moves one volume into its repository.
func (a *Agent) backup(ctx context.Context, op *Operation) (attemptResult, error) {
	pvb := op.Object.(*velerov1.PodVolumeBackup)
	up, err := a.uploader(op.PodVolume)
	if err != nil {
		return attemptResult{}, err
	}
	req := uploader.BackupRequest{Resume: op.attempt > 1 || op.resumed}
	if req.Parallel, err = op.intSetting(settingParallelUpload); err != nil {
		return attemptResult{}, err
	}
	if req.Parent, err = a.parent(ctx, pvb); err != nil {
		return attemptResult{}, err
	}
	if req.Volume, req.Repository, err = a.open(ctx, op); err != nil {
		return attemptResult{}, err
	}
	defer req.Volume.Close()
	out := attemptResult{path: req.Volume.Name()}
	if err := a.setSnapshotSource(ctx, pvb, &req); err != nil {
		return out, err
	}
	res, err := up.Backup(ctx, req, op.tracker)
	if errors.Is(err, uploader.ErrRepositoryNotFound) && a.cfg.InitRepositories && !req.Repository.ReadOnly {
		if err := a.createRepository(ctx, up, req.Repository, op); err != nil {
			return out, err
		}
		op.tracker.Report(progress.Reading{Stage: progress.StageScanning})
		res, err = up.Backup(ctx, req, op.tracker)
	}
	if err != nil {
		return out, err
	}
	if err := a.volumeRemoved(ctx, op.PodVolume); err != nil {
		return out, fmt.Errorf("the volume was torn down while it was read, its snapshot is not complete: %w", err)
	}
	if err := a.acceptBackup(ctx, op, res); err != nil {
		return out, err // without a snapshot id: a server would restore it otherwise (docs/contracts/velero-node-agent.md 2.2)
	}
	out.snapshotID, out.totalBytes, out.newBytes, out.errors = res.SnapshotID, res.TotalBytes, res.BytesUploaded, res.Errors
	out.vanished = manyVanished(res.Vanished, res.TotalFiles)
	switch {
	case res.SnapshotID == "":
		out.message = "volume was empty so no snapshot was taken" // Velero's words, people search for them
	case res.Errors > 0:
		out.message = unreadable(res)
	}
	if res.Vanished > 0 {
		out.message = strings.TrimPrefix(out.message+"; "+progress.Count(res.Vanished, "entry", "entries")+" of the volume vanished while it was read", "; ")
	}
	return out, nil
}

// volumeRemoved says that kubelet has taken away what a backup was reading, or may have: files that vanish are no errors. kubelet
// removes the files of its own volumes as soon as the pod's containers have ended, although an evicted pod's object stays.
// Others it can only unmount, which the kernel refuses while a worker reads.
func (a *Agent) volumeRemoved(ctx context.Context, s PodVolume) error {
	pod, err := a.pod(ctx, s)
	for limit := time.Now().Add(a.cfg.ResourceTimeout); err != nil; pod, err = a.pod(ctx, s) {
		_, away := errors.AsType[unansweredError](err)
		switch {
		case away && (stopCause(ctx) != nil || time.Now().After(limit)), classify(err).reason == ReasonPodGone:
			return err
		case !away:
			return nil
		}
	}
	if vol := volumeOf(pod, s.Volume); vol == nil || !volume.IsKubelets(vol) {
		return nil
	}
	if ended := PodEnding(pod); ended != nil {
		return Permanent(ReasonPodGone, ended)
	}
	return nil
}

// unreadable counts and names the files that a snapshot lacks.
func unreadable(res uploader.BackupResult) string {
	return fmt.Sprintf("snapshot %s was saved without %s", res.SnapshotID, describeFiles("that could not be read", res.Errors, res.FailedPaths))
}

// restore writes one snapshot into its volume and hands the volume over to the pod.
func (a *Agent) restore(ctx context.Context, op *Operation) (attemptResult, error) {
	pvr := op.Object.(*velerov1.PodVolumeRestore)
	up, err := a.uploader(op.PodVolume)
	if err != nil {
		return attemptResult{}, err
	}
	req := uploader.RestoreRequest{SnapshotID: pvr.Spec.SnapshotID, TotalBytes: pvr.Spec.SnapshotSize}
	if req.Sparse, err = op.boolSetting(settingSparse); err != nil {
		return attemptResult{}, err
	}
	if req.Parallel, err = op.intSetting(settingParallelDownload); err != nil {
		return attemptResult{}, err
	}
	if _, err := a.partial(ctx, op.PodVolume); err != nil { // a wrong annotation is told before the volume is written
		return attemptResult{}, err
	}
	if done, err := a.alreadyRestored(ctx, op, pvr); done || err != nil {
		return attemptResult{totalBytes: max(op.TotalBytes, pvr.Spec.SnapshotSize)}, err
	}
	if op.exhausted != nil {
		return attemptResult{}, op.exhausted
	}
	if req.Volume, req.Repository, err = a.open(ctx, op); err != nil {
		return attemptResult{}, err
	}
	defer req.Volume.Close()
	if err := a.removeDoneFile(op, pvr, req.Volume); err != nil {
		return attemptResult{}, err
	}
	began := time.Now()
	res, err := up.Restore(ctx, req, op.tracker)
	if err != nil {
		return attemptResult{}, err
	}
	// restic leaves that to the kernel: a file system that is full or broken says so only now, and the node may lose power.
	if err := unix.Syncfs(int(req.Volume.Fd())); err != nil {
		return attemptResult{}, fmt.Errorf("flush the volume: %w: %w", uploader.ErrFlush, err)
	}
	if err := stopCause(ctx); err != nil { // it may have been left behind meanwhile
		return attemptResult{}, err
	}
	var out attemptResult
	if err := a.acceptRestore(ctx, op, req.Volume, res, time.Since(began), &out); err != nil {
		return attemptResult{}, err
	}
	if err := a.writeDoneFile(op, pvr, req.Volume); err != nil {
		return attemptResult{}, fmt.Errorf("tell the pod's init container that the data is there: %w", err)
	}
	return out, nil
}

// open finds the operation's volume and its repository, within the resource timeout.
func (a *Agent) open(ctx context.Context, op *Operation) (*os.File, uploader.Repository, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ResourceTimeout)
	defer cancel()
	repo, err := a.repository(ctx, op.PodVolume)
	if err != nil {
		return nil, repo, err
	}
	dir, err := a.openVolume(ctx, op)
	return dir, repo, err
}

// openVolume finds the volume on the host and opens its directory.
func (a *Agent) openVolume(ctx context.Context, op *Operation) (*os.File, error) {
	pod, err := a.pod(ctx, op.PodVolume)
	if err != nil {
		return nil, err
	}
	dir, err := a.volumeDir(ctx, pod, op.Volume)
	if err != nil {
		return nil, err
	}
	op.foundPodUID, op.foundDir = pod.UID, dir
	f, err := a.pods.Open(pod.UID, dir)
	switch {
	case err == nil:
		return f, nil
	case uploader.IsVolumeIO(err):
		return nil, retryable(ReasonVolumeIO, err)
	case errors.Is(err, volume.ErrNotMounted) && dir.Mounted:
		if ended := PodEnding(pod); ended != nil {
			return nil, Permanent(ReasonPodGone, fmt.Errorf("%w, and its volume is not mounted any more: %w", ended, err))
		}
		return nil, retryable(ReasonVolumeNotFound, notMountedError{err})
	case errors.Is(err, volume.ErrAmbiguous), errors.Is(err, volume.ErrBadName), errors.Is(err, volume.ErrUnsafe):
		return nil, Permanent(ReasonVolumeNotFound, err)
	default:
		return nil, retryable(ReasonVolumeNotFound, err)
	}
}

// pod returns the subject's pod, if it is still the one that was meant.
func (a *Agent) pod(ctx context.Context, s PodVolume) (*corev1.Pod, error) {
	var pod corev1.Pod
	err := a.patientAPI.Get(ctx, types.NamespacedName{Namespace: s.Pod.Namespace, Name: s.Pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err):
		return nil, Permanent(ReasonPodGone, fmt.Errorf("pod %s/%s does not exist any more", s.Pod.Namespace, s.Pod.Name))
	case err != nil:
		return nil, fmt.Errorf("get pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
	case s.Pod.UID != "" && pod.UID != s.Pod.UID:
		return nil, Permanent(ReasonPodGone, fmt.Errorf("pod %s/%s was replaced by another one of the same name", s.Pod.Namespace, s.Pod.Name))
	case pod.Spec.NodeName != a.cfg.NodeName:
		return nil, Permanent(ReasonPodGone, fmt.Errorf("pod %s/%s runs on node %q now, not on %q", s.Pod.Namespace, s.Pod.Name, pod.Spec.NodeName, a.cfg.NodeName))
	}
	return &pod, nil
}

func (a *Agent) volumeDir(ctx context.Context, pod *corev1.Pod, name string) (volume.Dir, error) {
	vol := volumeOf(pod, name)
	if vol == nil {
		return volume.Dir{}, Permanent(ReasonVolumeNotFound, fmt.Errorf("pod %s/%s has no volume %q", pod.Namespace, pod.Name, name))
	}
	pv, err := a.persistentVolume(ctx, pod, vol)
	if err != nil {
		return volume.Dir{}, err
	}
	var lookup error
	dir, err := volume.DirOf(vol, pv, func(driver string) bool {
		exists, err := a.isCSIDriver(ctx, driver)
		lookup = err
		return exists
	})
	switch {
	case lookup != nil:
		return volume.Dir{}, lookup
	case errors.Is(err, volume.ErrBlockVolume), errors.Is(err, volume.ErrNoHostDirectory):
		return volume.Dir{}, Permanent(ReasonUnsupportedVolume, err)
	case errors.Is(err, volume.ErrNotBound):
		return volume.Dir{}, retryable(ReasonVolumeNotFound, err)
	}
	dir.Mounted = dir.Mounted && !a.cfg.AllowUnmounted
	return dir, err
}

// volumeOf returns the pod's volume of that name, nil if it has none.
func volumeOf(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// PodEnding says that a pod has ended or shall end, after which kubelet takes its volumes away; nil while it does neither.
func PodEnding(pod *corev1.Pod) error {
	switch {
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return fmt.Errorf("pod %s/%s has ended (%s)", pod.Namespace, pod.Name, strings.TrimSpace(string(pod.Status.Phase)+" "+pod.Status.Reason))
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
	default:
		return nil
	}
}

// persistentVolume returns what a volume's claim is bound to, nil for a volume without a claim.
func (a *Agent) persistentVolume(ctx context.Context, pod *corev1.Pod, vol *corev1.Volume) (*corev1.PersistentVolume, error) {
	name, ok := volume.ClaimName(pod.Name, vol)
	if !ok {
		return nil, nil
	}
	var pvc corev1.PersistentVolumeClaim
	err := a.patientAPI.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name}, &pvc)
	switch {
	case apierrors.IsNotFound(err):
		return nil, retryable(ReasonVolumeNotFound, fmt.Errorf("PersistentVolumeClaim %s/%s of volume %q does not exist", pod.Namespace, name, vol.Name))
	case err != nil:
		return nil, fmt.Errorf("get the PersistentVolumeClaim of volume %q: %w", vol.Name, err)
	case pvc.Spec.VolumeName == "":
		return nil, nil // DirOf says what that means
	}
	var pv corev1.PersistentVolume
	if err := a.patientAPI.Get(ctx, types.NamespacedName{Name: pvc.Spec.VolumeName}, &pv); err != nil {
		return nil, fmt.Errorf("get the PersistentVolume of volume %q: %w", vol.Name, err)
	}
	return &pv, nil
}

func (a *Agent) isCSIDriver(ctx context.Context, name string) (bool, error) {
	var driver storagev1.CSIDriver
	err := a.patientAPI.Get(ctx, types.NamespacedName{Name: name}, &driver)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get CSIDriver %s: %w", name, err)
	}
	return true, nil
}

// repository finds the subject's repository and what opens it.
func (a *Agent) repository(ctx context.Context, s PodVolume) (uploader.Repository, error) {
	var location velerov1.BackupStorageLocation
	err := a.patientAPI.Get(ctx, types.NamespacedName{Namespace: a.cfg.Namespace, Name: s.Location}, &location)
	if apierrors.IsNotFound(err) {
		return uploader.Repository{}, Permanent(ReasonInvalidLocation,
			fmt.Errorf("BackupStorageLocation %s/%s does not exist", a.cfg.Namespace, s.Location))
	}
	if err != nil {
		return uploader.Repository{}, fmt.Errorf("get BackupStorageLocation %s: %w", s.Location, err)
	}
	repo, err := a.resolver.Resolve(ctx, &location, repository.Request{
		UploaderType: s.UploaderType, Identifier: s.RepoIdentifier, Namespace: s.RepoNamespace, Config: a.repositoryConfig(ctx, s),
	})
	if errors.Is(err, repository.ErrMisconfigured) {
		return repo, Permanent(ReasonInvalidLocation, err)
	}
	return repo, err
}

// secret implements repository.SecretReader with live reads: the agent needs no right to list or watch Secrets.
func (a *Agent) secret(ctx context.Context, name string) (map[string][]byte, error) {
	var secret corev1.Secret
	if err := a.patientAPI.Get(ctx, types.NamespacedName{Namespace: a.cfg.Namespace, Name: name}, &secret); err != nil {
		return nil, err
	}
	return secret.Data, nil
}

// parent finds the snapshot that a backup is compared with: the newest one of the same claim, location and data path.
// Without one restic looks for a snapshot of the same host and path, which only fits pods that keep their UID.
func (a *Agent) parent(ctx context.Context, pvb *velerov1.PodVolumeBackup) (string, error) {
	claim, ok := pvb.Labels[velerov1.PVCUIDLabel]
	if !ok {
		return "", nil
	}
	var list velerov1.PodVolumeBackupList
	err := a.client.List(ctx, &list, client.InNamespace(a.cfg.Namespace), client.MatchingLabels{velerov1.PVCUIDLabel: claim})
	if err != nil {
		return "", fmt.Errorf("list earlier backups of the volume's claim: %w", err)
	}
	var newest *velerov1.PodVolumeBackup
	for i := range list.Items {
		b := &list.Items[i]
		if b.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted || b.Status.StartTimestamp == nil ||
			b.Spec.UploaderType != pvb.Spec.UploaderType || b.Spec.BackupStorageLocation != pvb.Spec.BackupStorageLocation {
			continue
		}
		if newest == nil || newest.Status.StartTimestamp.Before(b.Status.StartTimestamp) {
			newest = b
		}
	}
	if newest == nil {
		return "", nil
	}
	return newest.Status.SnapshotID, nil
}
