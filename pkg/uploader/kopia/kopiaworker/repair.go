package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// maxRecovered is how many entries are added to the index before it is written: they are in memory until then.
const maxRecovered = 100_000

// repairIndex adds to the index what it lacks of the packs that are there, as 'kopia index recover' does. An entry that the index has, or has as
// deleted, is newer than the one in the pack, and stays. What maintenance has dropped from the index, and whose pack is still there, comes back,
// and the next full maintenance marks it as deleted again.
func (j *job) repairIndex(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	if err := refuseBesideMaintenance(ctx, r); err != nil {
		return protocol.Result{}, err
	}
	there, err := listPacks(ctx, r.BlobReader())
	if err != nil {
		return protocol.Result{}, err
	}
	rec := &recovery{packs: there}
	defer j.reportOnTimer(rec.reading)()
	err = repo.DirectWriteSession(ctx, r, repo.WriteSessionOptions{Purpose: "repair the index"}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return rec.run(ctx, w, max(j.Parallel, 1))
	})
	if err != nil {
		return protocol.Result{}, err
	}
	return protocol.Result{Repair: &rec.repaired}, nil
}

// refuseBesideMaintenance returns uploader.ErrRepositoryLocked while a maintenance may run: by the index that it has read it removes packs that
// the repair finds again.
func refuseBesideMaintenance(ctx context.Context, r repo.DirectRepository) error {
	params, err := maintenance.GetParams(ctx, r)
	if err != nil {
		if !isDamage(err) {
			return fmt.Errorf("read the maintenance parameters: %w", err)
		}
		params = new(maintenance.DefaultParams()) // what the index lacks may be these
	}
	schedule, err := maintenance.GetSchedule(ctx, r)
	if err != nil {
		return fmt.Errorf("read the maintenance schedule: %w", err)
	}
	return refuseRunning(params, schedule, r.Time())
}

// recovery reads the packs.
type recovery struct {
	packs packs
	done  atomic.Int64

	mu       sync.Mutex
	repaired uploader.IndexRepair
	pending  int // entries that are not written yet
}

func (rec *recovery) reading() progress.Reading {
	return progress.Reading{Stage: progress.StageTransferring, BytesDone: rec.done.Load(), TotalBytes: int64(len(rec.packs)) + 1, TotalFinal: true}
}

// run reads all packs, each at its end only.
func (rec *recovery) run(ctx context.Context, w repo.DirectRepositoryWriter, parallel int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tokens := make(chan struct{}, parallel)
	var readers sync.WaitGroup
	for id, length := range rec.packs {
		tokens <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		readers.Go(func() {
			defer func() { <-tokens }()
			if err := rec.pack(ctx, w, id, length); err != nil {
				cancel(err)
			}
			rec.done.Add(1)
		})
	}
	readers.Wait()
	return context.Cause(ctx)
}

// pack adds to the index what it lacks of one pack. The error says nothing of the pack.
func (rec *recovery) pack(ctx context.Context, w repo.DirectRepositoryWriter, id blob.ID, length int64) error {
	entries, err := w.ContentManager().RecoverIndexFromPackBlob(ctx, id, length, false)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		if !isDamage(err) {
			return fmt.Errorf("read pack %s: %w", id, err)
		}
		rec.mu.Lock()
		defer rec.mu.Unlock()
		rec.repaired.Unread++
		rec.repaired.Example = protocol.Printable(fmt.Sprintf("pack %s: %v", id, err))
		return nil
	}
	lacks, err := lacksAny(ctx, w, entries)
	if err != nil || !lacks {
		return err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if _, err := w.ContentManager().RecoverIndexFromPackBlob(ctx, id, length, true); err != nil {
		return fmt.Errorf("read pack %s again: %w", id, err)
	}
	rec.repaired.Added++
	if rec.pending += len(entries); rec.pending < maxRecovered {
		return nil
	}
	rec.pending = 0
	if err := w.Flush(ctx); err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	return nil
}

// lacksAny reports whether the index lacks one of the contents.
func lacksAny(ctx context.Context, w repo.DirectRepositoryWriter, entries []content.Info) (bool, error) {
	for _, e := range entries {
		_, err := w.ContentReader().ContentInfo(ctx, e.ContentID)
		switch {
		case errors.Is(err, content.ErrContentNotFound):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("look for content %s: %w", e.ContentID, err)
		}
	}
	return false, nil
}
