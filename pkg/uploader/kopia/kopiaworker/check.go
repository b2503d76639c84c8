package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// maxLooks bounds how often a repository is looked at that changes under the looks.
const maxLooks = 4

// check looks at the repository as a whole. kopia has no locks, so that backups and maintenance may run meanwhile, and what they do can
// look like damage: a pack that is gone since the index was read. So a look that finds nothing proves that the repository is whole, and
// damage counts if two looks in succession find the same.
func (j *job) check(ctx context.Context) (protocol.Result, error) {
	var before *checkLook
	for number := int64(1); ; number++ {
		l := j.newLook(number, before)
		stop := j.reportOnTimer(l.reading)
		err := l.run(ctx)
		stop()
		if err != nil && before != nil {
			err = fmt.Errorf("%w; an earlier look found something that could not be confirmed: %s", err, before.example())
		}
		if err != nil {
			return protocol.Result{}, err
		}
		agreed := l.agreed()
		switch {
		case len(l.findings) == 0:
			return protocol.Result{Check: l.result(nil)}, l.lacks(j.Wanted)
		case len(agreed) > 0:
			return protocol.Result{Check: l.result(agreed)}, nil
		case number == maxLooks:
			return protocol.Result{}, fmt.Errorf("%w: %d looks found other things each, the last one %s", uploader.ErrUnconfirmed, maxLooks, l.example())
		}
		l.forget()
		before = l
	}
}

// lacks returns uploader.ErrSnapshotNotFound unless the repository has all of the snapshots. A repository without any is whole, too.
func (l *checkLook) lacks(wanted []string) error {
	left := slices.DeleteFunc(slices.Clone(wanted), func(id string) bool { return slices.Contains(l.ids, id) })
	if len(left) == 0 {
		return nil
	}
	hint := ""
	if l.unindexed > 0 {
		hint = "; " + unindexedText(l.unindexed) + ": 'kubectl plimsoll repository repair --index' reads them again"
	}
	return fmt.Errorf("%w: what the repository has is whole, but %d of %d snapshots that PodVolumeBackups name are not there, such as %s%s",
		uploader.ErrSnapshotNotFound, len(left), len(wanted), protocol.Printable(left[0]), hint)
}

// unindexedText is about packs that nothing refers to.
func unindexedText(packs int) string {
	return text.Count(packs, "pack is", "packs are") + " in no index file: a backup runs or was interrupted, or an index file is lost"
}

// followSnapshots reads the directories of all finished snapshots, and looks for the contents of their files.
func (l *checkLook) followSnapshots(ctx context.Context, r repo.DirectRepository) error {
	ids, err := snapshot.ListSnapshotManifests(ctx, r, nil, nil)
	if err == nil {
		l.snapshots.Store(int64(len(ids)))
		var failed error
		err = eachSnapshot(ctx, r, func(man *snapshot.Manifest) {
			if failed == nil {
				failed = l.snapshot(ctx, r, man)
			}
		})
		if failed != nil {
			return failed
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !isDamage(err):
		return fmt.Errorf("read the snapshots: %w", err)
	}
	l.unknown = "the list of the snapshots cannot be read: " + err.Error()
	if len(l.findings) == 0 { // else it is what the packs have lost
		l.add(finding{kindSnapshots, "list", err.Error()})
	}
	return nil
}

// snapshot follows one snapshot. Of those of unfinished backups nobody restores anything.
func (l *checkLook) snapshot(ctx context.Context, r repo.Repository, man *snapshot.Manifest) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if man.IncompleteReason != "" {
		l.snapshots.Add(-1)
		return nil
	}
	l.ids = append(l.ids, string(man.ID))
	if man.RootEntry == nil {
		l.add(finding{kindDirectory, string(man.ID), "it names no directory"})
		return nil
	}
	touched, err := l.entry(ctx, r, newNode(r, ".", man.RootEntry))
	if err != nil {
		return err
	}
	if touched {
		l.touched = append(l.touched, string(man.ID))
	}
	l.done.Add(1)
	return nil
}

// entry reports whether an entry of a snapshot, or what is beneath it, needs what counts as damaged.
func (l *checkLook) entry(ctx context.Context, r repo.Repository, n node) (touched bool, err error) {
	has, ok := n.Entry.(object.HasObjectID)
	if !ok {
		return false, nil // it could not be read when the snapshot was made
	}
	if _, ok := n.Entry.(kopiafs.Directory); ok {
		return l.directory(ctx, r, n)
	}
	touched, _, err = l.object(ctx, has.ObjectID())
	if touched {
		l.showPath(n.path)
	}
	return touched, err
}

func (l *checkLook) showPath(at string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := protocol.Printable(at); len(l.paths) < uploader.MaxExamples && !slices.Contains(l.paths, at) {
		l.paths = append(l.paths, at)
	}
}

// directory is entry for a directory. Each is read once, in however many snapshots it is.
func (l *checkLook) directory(ctx context.Context, r repo.Repository, dir node) (touched bool, err error) {
	id := dir.stored.ObjectID
	for {
		l.mu.Lock()
		touched, known := l.directories[id]
		busy := l.walking[id]
		if !known && busy == nil {
			l.walking[id] = make(chan struct{})
		}
		l.mu.Unlock()
		if known {
			return touched, nil
		}
		if busy == nil {
			break
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	touched, err = l.readDirectory(ctx, r, dir)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.directories[id] = touched
	close(l.walking[id])
	delete(l.walking, id)
	return touched, err
}

func (l *checkLook) readDirectory(ctx context.Context, r repo.Repository, dir node) (bool, error) {
	touched, lost, err := l.object(ctx, dir.stored.ObjectID)
	if err != nil {
		return false, err
	}
	if lost {
		l.cannotRead(touched)
		return touched, nil
	}
	entries, err := readDirectory(ctx, r, dir.stored)
	if err != nil {
		return l.lostDirectory(ctx, dir.stored.ObjectID, dir.path, err)
	}
	var beneath atomic.Bool
	var beside sync.WaitGroup
	for _, stored := range entries {
		entry := newNode(r, path.Join(dir.path, stored.Name), stored)
		follow := func() {
			touched, err := l.entry(ctx, r, entry)
			if err != nil {
				l.cancel(err)
			}
			if touched {
				beneath.Store(true)
			}
		}
		if !entry.IsDir() {
			follow()
			continue
		}
		select {
		case l.tokens <- struct{}{}:
			beside.Go(func() {
				defer func() { <-l.tokens }()
				follow()
			})
		default:
			follow()
		}
	}
	beside.Wait()
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return beneath.Load(), nil
}

// lostDirectory is about a directory that cannot be read although its contents are there.
func (l *checkLook) lostDirectory(ctx context.Context, id object.ID, at string, err error) (bool, error) {
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case !isDamage(err):
		return false, fmt.Errorf("read directory %s: %w", protocol.Printable(at), err)
	}
	f := finding{kindDirectory, id.String(), at + ": " + err.Error()}
	l.add(f)
	counts := l.counts(f.key())
	l.cannotRead(counts)
	return counts, nil
}

func (l *checkLook) cannotRead(counts bool) {
	if !counts {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unread++
}

// object looks for the contents of an object. It is lost if one is, and touched if that counts.
func (l *checkLook) object(ctx context.Context, id object.ID) (touched, lost bool, err error) {
	index, ok := id.IndexObjectID()
	if !ok {
		return l.content(ctx, id)
	}
	l.mu.Lock()
	touched, known := l.large[id]
	l.mu.Unlock()
	if known {
		return touched, touched, nil
	}
	touched, lost, err = l.list(ctx, id, index)
	if err == nil {
		l.mu.Lock()
		l.large[id] = touched
		l.mu.Unlock()
	}
	return touched, lost, err
}

// list is object for one that is a list of others.
func (l *checkLook) list(ctx context.Context, id, index object.ID) (touched, lost bool, err error) {
	if touched, lost, err = l.object(ctx, index); lost || err != nil {
		return touched, lost, err
	}
	entries, err := l.objects.entries(ctx, index)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return false, false, context.Cause(ctx)
	case !isDamage(err):
		return false, false, err
	default:
		f := finding{kindContent, id.String(), err.Error()}
		l.add(f)
		return l.counts(f.key()), true, nil
	}
	for _, entry := range entries {
		counts, gone, err := l.object(ctx, entry.Object)
		if err != nil {
			return false, false, err
		}
		touched, lost = touched || counts, lost || gone
	}
	return touched, lost, nil
}

// content is object for one that is one content.
func (l *checkLook) content(ctx context.Context, id object.ID) (touched, lost bool, err error) {
	name, _, ok := id.ContentID()
	if !ok {
		f := finding{kindContent, id.String(), "it is named in an unknown way"}
		l.add(f)
		return l.counts(f.key()), true, nil
	}
	info, err := l.contents.ContentInfo(ctx, name)
	switch {
	case errors.Is(err, content.ErrContentNotFound):
		f := finding{kindContent, name.String(), "is in no index file"}
		l.add(f)
		return l.counts(f.key()), true, nil
	case err != nil:
		return false, false, fmt.Errorf("look for content %s: %w", name, err)
	}
	f, lost := l.inLostPack(info)
	if lost {
		l.add(f) // comparePacks has left out what is marked as deleted, which a snapshot may need all the same
		return l.counts(f.key()), true, nil
	}
	if info.Deleted && l.job.ReadData && l.firstOf(name) {
		if err := l.readContent(ctx, info); err != nil {
			return false, false, err
		}
	}
	l.mu.Lock()
	pack, broken := l.broken[name]
	l.mu.Unlock()
	return broken && l.counts(finding{kind: kindPack, id: pack}.key()), broken, nil
}

// maintenanceNote says whose kopia's maintenance is, and whether one runs. It is no damage if that is not known.
func maintenanceNote(ctx context.Context, r repo.DirectRepository) string {
	params, err := maintenance.GetParams(ctx, r)
	if err != nil {
		return protocol.Printable("the parameters of kopia's maintenance cannot be read: " + err.Error())
	}
	note := "kopia's maintenance belongs to " + params.Owner
	if us := r.ClientOptions().UsernameAtHost(); params.Owner != us {
		note = fmt.Sprintf("kopia's maintenance belongs to %q, and not to Velero's user %s", params.Owner, us)
	}
	schedule, err := maintenance.GetSchedule(ctx, r)
	if err != nil {
		return protocol.Printable(note + "; its schedule cannot be read: " + err.Error())
	}
	if began, running := runningSince(params, schedule, r.Time()); running {
		note += "; one began at " + began.UTC().Format(time.RFC3339) + " and has not recorded its end"
	}
	if next := schedule.NextFullMaintenanceTime; next.IsZero() {
		note += "; no full one has run"
	} else {
		note += "; the next full one is due at " + next.UTC().Format(time.RFC3339)
	}
	return protocol.Printable(note)
}
