package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// usage measures the repository.
func (j *job) usage(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	var counted atomic.Int64 // snapshots, contents and objects
	defer j.reportOnTimer(func() progress.Reading {
		return progress.Reading{Stage: progress.StageScanning, FilesDone: counted.Load()}
	})()
	var result protocol.Result
	if result.TotalFiles, result.Usage.Unfinished, err = j.snapshots(ctx, r, &counted); err != nil {
		return protocol.Result{}, err
	}
	u := &result.Usage
	err = r.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(c content.Info) error {
		u.Pieces, u.DataBytes, u.RawBytes = u.Pieces+1, u.DataBytes+int64(c.PackedLength), u.RawBytes+int64(c.OriginalLength)
		counted.Add(1)
		return ctx.Err()
	})
	if err != nil {
		return protocol.Result{}, fmt.Errorf("read the index: %w", err)
	}
	err = r.BlobReader().ListBlobs(ctx, "", func(m blob.Metadata) error {
		u.Storage.Add(m.Length, isPack(m.BlobID))
		counted.Add(1)
		return ctx.Err()
	})
	if err != nil {
		return protocol.Result{}, fmt.Errorf("list the storage: %w", err)
	}
	return result, nil
}

// maxLoaded is how many manifests are in memory at once.
const maxLoaded = 1000

// snapshots sends the snapshots of finished backups, and returns how many those and the others are.
func (j *job) snapshots(ctx context.Context, r repo.Repository, counted *atomic.Int64) (finished, unfinished int64, err error) {
	err = eachSnapshot(ctx, r, func(man *snapshot.Manifest) {
		counted.Add(1)
		if man.IncompleteReason != "" {
			unfinished++
			return
		}
		finished++
		j.say(protocol.Message{Snapshot: &protocol.Snapshot{ID: string(man.ID), Time: man.StartTime.ToTime(), Bytes: recordedSize(man)}})
	})
	return finished, unfinished, err
}

// eachSnapshot reads the manifests of a repository, those of unfinished backups, too.
func eachSnapshot(ctx context.Context, r repo.Repository, do func(*snapshot.Manifest)) error {
	ids, err := snapshot.ListSnapshotManifests(ctx, r, nil, nil)
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	for len(ids) > 0 {
		chunk := ids[:min(len(ids), maxLoaded)]
		ids = ids[len(chunk):]
		loaded, err := snapshot.LoadSnapshots(ctx, r, chunk)
		if err != nil {
			return fmt.Errorf("read the snapshots: %w", err)
		}
		if len(loaded) != len(chunk) { // the library leaves out what it cannot read, and goes on
			return fmt.Errorf("%d of %d snapshots cannot be read", len(chunk)-len(loaded), len(chunk))
		}
		for _, man := range loaded {
			do(man)
		}
	}
	return nil
}

// recordedSize returns nil where the snapshot does not say its size.
func recordedSize(man *snapshot.Manifest) *int64 {
	switch root := man.RootEntry; {
	case root == nil:
		return nil
	case root.Type == snapshot.EntryTypeFile:
		return &root.FileSize
	case root.DirSummary == nil:
		return nil
	default:
		return &root.DirSummary.TotalFileSize
	}
}

func isPack(id blob.ID) bool {
	for _, prefix := range content.PackBlobIDPrefixes {
		if strings.HasPrefix(string(id), string(prefix)) {
			return true
		}
	}
	return false
}

// measureOther counts the objects of another program's repository.
func (j *job) measureOther(ctx context.Context) (protocol.Result, error) {
	info, err := j.storage()
	if err != nil {
		return protocol.Result{}, err
	}
	st, err := blob.NewStorage(ctx, info, false)
	if err != nil {
		return protocol.Result{}, err
	}
	var size uploader.StorageSize
	err = listObjects(ctx, st, j.Parts, func(m blob.Metadata) error {
		size.Add(m.Length, strings.HasPrefix(string(m.BlobID), j.PackPart))
		return ctx.Err()
	})
	return protocol.Result{Usage: protocol.Usage{Storage: size}}, errors.Join(err, st.Close(ctx))
}
