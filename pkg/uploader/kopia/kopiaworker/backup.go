package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/localfs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/upload"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// What Velero writes into its snapshots (docs/contracts/velero-node-agent.md 6.4).
const (
	description = "Kopia Uploader"
	pin         = "velero-pin"
)

// volumeTag tells the volume of a snapshot from others that had the same source, such as the emptyDir of a replaced pod. Velero's agents do not read it.
const volumeTag = "plimsoll-volume"

// backup stores the working directory. When stop ends it stores what is there so far and fails.
func (j *job) backup(ctx, stop context.Context, abort func()) (_ protocol.Result, err error) {
	// Not with stop: storages keep the context that they are opened with, and are needed after it has ended.
	opened := context.AfterFunc(stop, abort)
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(ctx)) }()
	if !opened() {
		return protocol.Result{}, protocol.ErrCanceled
	}
	empty, err := isEmpty(".")
	if err != nil || empty {
		return protocol.Result{}, err
	}
	root, err := os.OpenRoot(".")
	if err != nil {
		return protocol.Result{}, fmt.Errorf("read the volume: %w", err)
	}
	defer root.Close()
	p := &backupProgress{job: j, root: root}
	defer j.reportOnTimer(p.reading)()

	var man *snapshot.Manifest
	err = repo.WriteSession(ctx, r, repo.WriteSessionOptions{Purpose: description}, func(ctx context.Context, w repo.RepositoryWriter) error {
		man, err = j.snapshot(ctx, stop, w, p)
		return err
	})
	failed := p.storage.Load()
	switch {
	case failed != nil: // what failed after it is its consequence
		return protocol.Result{}, fmt.Errorf("the repository's storage failed while files were stored: %w", failed)
	case err != nil:
		return protocol.Result{}, errors.Join(p.volumeError(), err)
	case p.unusable(rootSummary(man)) != nil:
		return protocol.Result{}, p.unusable(rootSummary(man))
	case man.IncompleteReason != "" && stop.Err() != nil:
		return protocol.Result{}, protocol.ErrCanceled
	case man.IncompleteReason != "" && j.meter.failed.Load() != nil:
		// A checkpoint that fails looks like a cancellation, without an error.
		return protocol.Result{}, fmt.Errorf("backup ended early, because the repository's storage failed: %w", j.meter.failed.Load())
	case man.IncompleteReason != "":
		return protocol.Result{}, fmt.Errorf("backup ended early: %s", j.complain.String())
	}
	p.logOmitted()
	summary := rootSummary(man)
	return protocol.Result{
		SnapshotID: string(man.ID), TotalBytes: summary.TotalFileSize, TotalFiles: summary.TotalFileCount,
		BytesUploaded: j.meter.uploaded.Load(), Errors: p.errors.Load(), FailedPaths: p.failedPaths(), UnreadableDirectories: p.directories.Load(), Vanished: p.vanished.Load(), VanishedDirectories: p.vanishedDirs.Load(),
		Excluded: p.leftOut(summary),
	}, nil
}

// volumeError is how the volume's file system failed, nil if it did not.
func (p *backupProgress) volumeError() error {
	if err := p.volume.Load(); err != nil {
		return fmt.Errorf("read the volume: %w: %w", uploader.ErrVolumeIO, *err)
	}
	return nil
}

// unusable says why a snapshot must not be taken for a backup of the volume, nil if it may.
func (p *backupProgress) unusable(summary kopiafs.DirectorySummary) error {
	failed, listed, vanished := p.errors.Load(), p.listed.Load(), p.vanished.Load()
	switch {
	case p.volume.Load() != nil:
		return p.volumeError()
	case summary.TotalFileCount > 0:
		return nil
	case failed > listed:
		return fmt.Errorf("%w: %d errors, such as %s", uploader.ErrNothingRead, failed, load(&p.lastError))
	case listed+vanished > 0:
		return fmt.Errorf("%w: it lists entries, and says of each of them that it does not exist (%d)", uploader.ErrVolumeIO, listed+vanished)
	default:
		return nil
	}
}

// isEmpty reports whether a directory has no entry.
func isEmpty(name string) (bool, error) {
	dir, err := os.Open(name)
	if err != nil {
		return false, fmt.Errorf("read the volume: %w", err)
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the volume: %w", err)
	}
	return false, nil
}

// snapshot uploads the working directory and saves its manifest, an incomplete one if stop ended meanwhile: the next
// backup then finds all that was uploaded. Ending ctx instead would lose it (docs/contracts/restic-kopia.md 9).
func (j *job) snapshot(ctx, stop context.Context, w repo.RepositoryWriter, p *backupProgress) (*snapshot.Manifest, error) {
	source, tags := snapshot.SourceInfo{UserName: identity, Host: identity, Path: j.Source}, j.snapshotTags()
	previous, err := j.previous(ctx, w, source)
	if err != nil {
		return nil, fmt.Errorf("find the previous snapshot: %w", err)
	}
	tree, err := setPolicy(ctx, w, source, j.Parallel)
	if err != nil {
		return nil, err
	}
	entry, err := localfs.NewEntry(".")
	if err != nil {
		return nil, fmt.Errorf("read the volume: %w", err)
	}
	dir, ok := entry.(kopiafs.Directory)
	if !ok {
		return nil, errors.New("the volume is no directory")
	}
	p.expect(previous)
	scanned := &watchedDirectory{Directory: dir, path: ".", vanished: func(string) {}, vanishedDirectory: func() {}} // the upload counts what vanishes
	defer p.scan(ctx, scanned, tree)()

	u := upload.NewUploader(w)
	watched := &watchedDirectory{Directory: dir, path: ".", vanished: p.hasVanished, vanishedDirectory: func() { p.vanishedDirs.Add(1) }}
	u.Progress, u.ParallelUploads = p, j.Parallel
	p.cancel = u.Cancel
	u.CheckpointInterval, u.CheckpointLabels = j.CheckpointInterval, tags
	defer context.AfterFunc(stop, u.Cancel)()
	man, err := u.Upload(ctx, watched, tree, source, previous...)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	p.checkVanished()
	man.Tags, man.Description = tags, description
	if p.unusable(rootSummary(man)) != nil {
		// It must not look complete, but the next backup finds what it has stored.
		man.IncompleteReason = upload.IncompleteReasonCanceled
	}
	if man.IncompleteReason == "" {
		p.finish(rootSummary(man))
		man.Pins = []string{pin}
	}
	if _, err := snapshot.SaveSnapshot(ctx, w, man); err != nil {
		return nil, fmt.Errorf("save the snapshot: %w", err)
	}
	// Its effect is that incomplete snapshots do not pile up.
	if _, err := policy.ApplyRetentionPolicy(ctx, w, source, true); err != nil {
		return nil, fmt.Errorf("remove incomplete snapshots: %w", err)
	}
	return man, nil
}

// snapshotTags returns the tags of this backup's snapshots, checkpoints included.
func (j *job) snapshotTags() map[string]string {
	if j.VolumeID == "" {
		return j.Tags
	}
	tags := maps.Clone(j.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[volumeTag] = j.VolumeID
	return tags
}

// previous returns the snapshots to compare the volume with: the parent, or without one the last complete snapshot of this very volume, and all
// incomplete ones of it since then. kopia takes a file for unchanged by its name, mode, owner, size and time of modification, which a file of another
// volume may have as well.
func (j *job) previous(ctx context.Context, r repo.Repository, source snapshot.SourceInfo) ([]*snapshot.Manifest, error) {
	last := j.parent(ctx, r)
	named := last != nil
	var incomplete []*snapshot.Manifest
	all, err := j.ofThisVolume(ctx, r, source)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		switch {
		case m.IncompleteReason != "":
			incomplete = append(incomplete, m)
		case !named && (last == nil || m.StartTime.After(last.StartTime)):
			last = m
		}
	}
	if last == nil {
		return incomplete, nil
	}
	previous := []*snapshot.Manifest{last}
	for _, m := range incomplete {
		if m.StartTime.After(last.StartTime) {
			previous = append(previous, m)
		}
	}
	return previous, nil
}

// ofThisVolume returns the snapshots of a source that say that they are of the volume, none if the request does not identify it.
func (j *job) ofThisVolume(ctx context.Context, r repo.Repository, source snapshot.SourceInfo) ([]*snapshot.Manifest, error) {
	if j.VolumeID == "" {
		return nil, nil
	}
	all, err := snapshot.ListSnapshots(ctx, r, source)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(m *snapshot.Manifest) bool { return m.Tags[volumeTag] != j.VolumeID }), nil
}

// parent loads the snapshot that the request names, nil if it names none, or that is gone or says that it is of another volume.
func (j *job) parent(ctx context.Context, r repo.Repository) *snapshot.Manifest {
	if j.Parent == "" {
		return nil
	}
	man, err := loadSnapshot(ctx, r, j.Parent)
	if err != nil {
		j.note(slog.LevelWarn, "the parent cannot be used: "+err.Error())
		return nil
	}
	if of := man.Tags[volumeTag]; of != "" && j.VolumeID != "" && of != j.VolumeID {
		j.note(slog.LevelWarn, "the parent is a snapshot of another volume and is not used")
		return nil
	}
	return man
}

// loadSnapshot reads a manifest.
func loadSnapshot(ctx context.Context, r repo.Repository, id string) (*snapshot.Manifest, error) {
	if !protocol.IsSnapshotID(id) {
		return nil, snapshot.ErrSnapshotNotFound
	}
	return snapshot.LoadSnapshot(ctx, r, manifest.ID(id))
}

// rootSummary is what a snapshot holds. man.Stats is wrong for files that were not read again.
func rootSummary(man *snapshot.Manifest) kopiafs.DirectorySummary {
	if man.RootEntry == nil || man.RootEntry.DirSummary == nil {
		return kopiafs.DirectorySummary{}
	}
	return *man.RootEntry.DirSummary
}
