package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/creation"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

const uploaderKopia = "kopia"

// migrate copies the snapshots that are not in the kopia repository yet, and then the Backups of which all are.
func (r *run) migrate(ctx context.Context) error {
	if r.cfg.Exporter == nil || r.cfg.Importer == nil {
		return refuse(v1alpha1.ReasonUnsupported, "this process cannot migrate")
	}
	doing := "Migrating"
	if r.object.Spec.DryRun {
		doing = "Planning the migration of"
	}
	if err := r.begin(ctx, doing); err != nil {
		return err
	}
	defer r.reporting(ctx)()
	for i := range r.backups {
		v := r.status().Volumes[i]
		if v.Result == v1alpha1.VolumePending {
			var err error
			if v, err = r.migrateVolume(ctx, i, v); err != nil {
				return err
			}
			if v.Result == v1alpha1.VolumePending {
				if err := r.writeLeft(ctx, i, v); err != nil {
					return err
				}
				continue
			}
			if err := r.writeVolume(ctx, i, v); err != nil {
				return err
			}
		}
		r.done += v.Bytes
		r.sizes[i] = v.Bytes
		r.wrong += v.Mismatched
	}
	if r.parked != nil {
		return nil
	}
	return r.migrateBackups(ctx)
}

// migrateVolume copies one snapshot, and tries again after failures that may pass. The error is that of ctx.
func (r *run) migrateVolume(ctx context.Context, i int, v v1alpha1.RepositoryTaskVolume) (v1alpha1.RepositoryTaskVolume, error) {
	if err := r.admit(ctx, &r.backups[i]); err != nil {
		return r.leave(v, err), nil
	}
	for try := 1; ; try++ {
		done, err := r.migrateOnce(ctx, i, v)
		if err == nil {
			return done, nil
		}
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		if volume := volumeOf(&r.backups[i]); r.compared[volume] != (uploader.ImportedSnapshot{}) {
			delete(r.compared, volume)
			r.log.Warn("Snapshot was not migrated; reading all of it", "pod", v.Namespace+"/"+v.Pod, "volume", v.Volume, "error", err)
			try--
			continue
		}
		reason, mayPass := classify(err)
		v.Result, v.Reason, v.Message = v1alpha1.VolumeFailed, reason, messageOf(err.Error())
		if errors.Is(err, uploader.ErrDamaged) {
			v.Result = v1alpha1.VolumeMismatched
		}
		if !mayPass || try >= r.cfg.Tries {
			if err := r.learn(ctx, &r.backups[i], reason); err != nil {
				return r.leave(v, err), nil
			}
			return v, nil
		}
		r.log.Warn("Snapshot was not migrated; trying again", "pod", v.Namespace+"/"+v.Pod, "volume", v.Volume, "reason", reason, "after", r.cfg.RetryDelay, "error", err)
		r.tracker.Report(waiting(reason, v.Message))
		if err := apiretry.Sleep(ctx, r.cfg.RetryDelay); err != nil {
			return v, err
		}
	}
}

// migrateOnce copies one snapshot, unless it was copied before.
func (r *run) migrateOnce(ctx context.Context, i int, v v1alpha1.RepositoryTaskVolume) (v1alpha1.RepositoryTaskVolume, error) {
	pvb := &r.backups[i]
	imported, err := r.importedSnapshots(ctx, pvb)
	if err != nil {
		return v, err
	}
	v.Reason, v.Message, v.Paths = "", "", nil
	if id := imported[v.SnapshotID]; id != "" {
		v.Result, v.MigratedSnapshotID, v.Message = v1alpha1.VolumeMigrated, id, "it was migrated before"
		return v, nil
	}
	from, err := r.repositories.Of(ctx, pvb)
	if err != nil {
		return v, err
	}
	to, err := r.kopiaRepository(ctx, pvb)
	if err != nil {
		return v, err
	}
	if r.object.Spec.DryRun {
		v.Result, v.Bytes = v1alpha1.VolumePlanned, max(pvb.Status.Progress.TotalBytes, 0)
		return v, nil
	}
	if imported == nil {
		if err := r.openSource(ctx, from); err != nil { // a wrong password would become that of the new repository
			return v, err
		}
		if err := r.create(ctx, to); err != nil {
			return v, err
		}
	}
	req := uploader.ImportRequest{
		Repository: to, Source: kopiaSource(pvb), Tags: kopiaTags(), Origin: v.SnapshotID, TotalBytes: max(pvb.Status.Progress.TotalBytes, 0), Previous: r.previous(pvb),
	}
	result, err := r.cfg.Importer.Import(ctx, req, func(ctx context.Context, each func(uploader.Exported) error) (uploader.ExportResult, error) {
		return r.cfg.Exporter.Export(ctx, uploader.ExportRequest{Repository: from, SnapshotID: v.SnapshotID, Previous: req.Previous.Origin}, each)
	}, progress.SinkFunc(func(reading progress.Reading) { r.report(i, reading) }))
	if err != nil {
		delete(r.imported, kopiaRepositoryOf(pvb)) // a worker may have ended after it has stored the snapshot
		return v, err
	}
	return r.withImport(pvb, v, &result), nil
}

// openSource opens the restic repository. One that is locked has opened.
func (r *run) openSource(ctx context.Context, from uploader.Repository) error {
	opener, ok := r.cfg.Exporter.(uploader.Opener)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := opener.Open(ctx, from); !errors.Is(err, uploader.ErrRepositoryLocked) {
		return err
	}
	return nil
}

// comparedVolume is a volume of which this run has copied a snapshot.
type comparedVolume struct {
	repository v1alpha1.RepositoryKey
	source     string
}

func volumeOf(pvb *velerov1.PodVolumeBackup) comparedVolume {
	return comparedVolume{kopiaRepositoryOf(pvb), kopiaSource(pvb)}
}

// previous returns the snapshot of the volume that this run has copied last, whose content the next one may refer to. Those of earlier runs do
// not count: so each run reads all that it relies on back from the storage, once.
func (r *run) previous(pvb *velerov1.PodVolumeBackup) uploader.ImportedSnapshot {
	if pvb.Status.Progress.TotalBytes < r.cfg.ReadAllBelow {
		delete(r.compared, volumeOf(pvb))
	}
	return r.compared[volumeOf(pvb)]
}

// withImport takes what was stored and compared into the entry of a volume.
func (r *run) withImport(pvb *velerov1.PodVolumeBackup, v v1alpha1.RepositoryTaskVolume, result *uploader.ImportResult) v1alpha1.RepositoryTaskVolume {
	v.Files, v.Bytes, v.Mismatched, v.UploadedBytes, v.NotStored = result.Files, result.Bytes, result.Mismatched, result.BytesUploaded, result.Special+result.Attributes
	if result.Mismatched > 0 || result.SnapshotID == "" {
		v.Result, v.Reason = v1alpha1.VolumeFailed, v1alpha1.ReasonMismatched
		v.Message = messageOf(text.Count(result.Mismatched, "entry", "entries") + " came back from the kopia repository with a difference, such as " + result.LastError)
		for _, path := range result.FailedPaths[:min(len(result.FailedPaths), maxPaths)] {
			v.Paths = append(v.Paths, text.Line(path, maxPath))
		}
		return v
	}
	v.Result, v.MigratedSnapshotID, v.Message = v1alpha1.VolumeMigrated, result.SnapshotID, strings.Join(remarks(result), "; ")
	r.imported[kopiaRepositoryOf(pvb)] = withSnapshot(r.imported[kopiaRepositoryOf(pvb)], v.SnapshotID, result.SnapshotID)
	if r.compared == nil {
		r.compared = map[comparedVolume]uploader.ImportedSnapshot{}
	}
	r.compared[volumeOf(pvb)] = uploader.ImportedSnapshot{SnapshotID: result.SnapshotID, Origin: v.SnapshotID}
	return v
}

// remarks says what a copy lacks, and what of it was not read.
func remarks(result *uploader.ImportResult) []string {
	var remarks []string
	if result.Special > 0 {
		remarks = append(remarks, text.Count(result.Special, "FIFO, socket or device is", "FIFOs, sockets and devices are")+" not in the copy: kopia does not store them")
	}
	if result.Attributes > 0 {
		remarks = append(remarks, text.Count(result.Attributes, "entry has lost its", "entries have lost their")+" extended attributes: kopia does not store them")
	}
	if result.Reused > 0 {
		remarks = append(remarks, fmt.Sprintf("%s, %s, not read again: restic's ids of their content are those of the snapshot before; their extended attributes are not counted",
			text.Count(result.Reused, "file", "files"), text.Bytes(result.ReusedBytes)))
	}
	return remarks
}

func withSnapshot(known map[string]string, from, to string) map[string]string {
	if known == nil {
		known = map[string]string{}
	}
	known[from] = to
	return known
}

func kopiaRepositoryOf(pvb *velerov1.PodVolumeBackup) v1alpha1.RepositoryKey {
	return v1alpha1.RepositoryKey{BackupStorageLocation: pvb.Spec.BackupStorageLocation, VolumeNamespace: pvb.Spec.Pod.Namespace, Uploader: uploaderKopia}
}

// kopiaRepository returns where the snapshots of a restic PodVolumeBackup go.
func (r *run) kopiaRepository(ctx context.Context, pvb *velerov1.PodVolumeBackup) (uploader.Repository, error) {
	as := pvb.DeepCopy()
	as.Spec.UploaderType, as.Spec.RepoIdentifier = uploaderKopia, ""
	to, err := r.repositories.Of(ctx, as)
	if err == nil && to.ReadOnly {
		err = fmt.Errorf("%w: BackupStorageLocation %s is read-only", repository.ErrMisconfigured, pvb.Spec.BackupStorageLocation)
	}
	return to, err
}

// importedSnapshots returns which of restic's snapshots the kopia repository has. nil: there is no such repository yet. The repository is
// asked once, and not the status of earlier tasks: what it has is what a restore finds.
func (r *run) importedSnapshots(ctx context.Context, pvb *velerov1.PodVolumeBackup) (map[string]string, error) {
	key := kopiaRepositoryOf(pvb)
	if known := r.imported[key]; known != nil {
		return known, nil
	}
	to, err := r.kopiaRepository(ctx, pvb)
	if err != nil {
		return nil, err
	}
	found, err := r.cfg.Importer.Imported(ctx, to)
	if errors.Is(err, uploader.ErrRepositoryNotFound) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, err
	}
	if r.imported == nil {
		r.imported = map[v1alpha1.RepositoryKey]map[string]string{}
	}
	r.imported[key] = found
	return found, nil
}

// creationTimeout bounds how long the creation of a repository takes, and the wait for others who create it.
const creationTimeout = 10 * time.Minute

func (r *run) create(ctx context.Context, repo uploader.Repository) error {
	r.tracker.Report(progress.Reading{Stage: progress.StageWaiting, Reason: v1alpha1.ReasonRepositoryInitializing, Message: "creating the kopia repository"})
	err := creation.Creator{
		REST: r.rest, Namespace: r.cfg.Namespace, Identity: "repository-tasks/" + string(r.object.UID), Timeout: creationTimeout, Logger: r.log,
	}.Create(ctx, r.cfg.Importer, repo)
	if err == nil && r.imported == nil {
		r.imported = map[v1alpha1.RepositoryKey]map[string]string{}
	}
	return err
}

// kopiaSource is the name under which Velero from 1.17 on files the snapshots of a volume (docs/contracts/velero-node-agent.md 6.4).
func kopiaSource(pvb *velerov1.PodVolumeBackup) string {
	name := pvb.Annotations[claimAnnotation]
	if name == "" {
		name = pvb.Spec.Volume
	}
	return path.Join("snapshot-pod-volume", uploaderKopia, pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, name)
}

// kopiaTags are those by which Velero from 1.17 on finds the snapshots that continue each other.
func kopiaTags() map[string]string {
	return map[string]string{"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": uploaderKopia}
}
