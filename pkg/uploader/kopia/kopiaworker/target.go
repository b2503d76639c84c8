package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/restore"
)

// target is the volume that a restore writes into: the working directory. What was in the way of a file, a directory or a
// symbolic link before the restore is replaced, what the restore has written is not, and no link is followed out of the volume. kopia's own output would write through a symbolic link that happens to
// be there, fails where a file has become a directory or the other way round, and removes NAME.kopia-entry when it has written NAME.
type target struct {
	*comparison
	root      *os.Root
	sparse    bool
	zeros     [hole]byte // never written
	packs     *packFetcher
	buffers   sync.Pool
	refused   refused
	current   *atomic.Pointer[string]
	steps     atomic.Int64 // directories begun and finished, which kopia does not count
	times     sync.Map     // of directories that are not finished: the time, by path
	existing  sync.Map     // of directories that are not finished: those that had entries before (existing), by path in the root
	unwritten unwritten
}

var _ restore.Output = (*target)(nil)

func newTarget(r repo.DirectRepository, sparse bool) (*target, error) {
	root, err := os.OpenRoot(".")
	if err != nil {
		return nil, err
	}
	return &target{comparison: newComparison(r), root: root, sparse: sparse, packs: newPackFetcher(r)}, nil
}

// Parallelizable lets kopia write several files at the same time.
func (t *target) Parallelizable() bool { return true }

// WriteDirEntry is for placeholders, which a restore of whole directories does not write.
func (t *target) WriteDirEntry(context.Context, string, *snapshot.DirEntry, kopiafs.Directory) error {
	return errors.ErrUnsupported
}

// Close ends a restore. The volume is flushed after it.
func (t *target) Close(context.Context) error { return t.root.Close() }

// inRoot is what the root calls a path: kopia calls the volume itself nothing.
func inRoot(path string) string { return filepath.Join(".", path) }

// FileExists reports whether a file need not be written again, because an earlier attempt has restored it: its attributes and
// all its bytes are the snapshot's. Size and time prove nothing: after a power loss files have both, and zeros in them.
func (t *target) FileExists(ctx context.Context, path string, e kopiafs.File) bool {
	t.current.Store(&path)
	return t.wasThere(path) && t.isSame(ctx, path, e)
}

// SymlinkExists makes kopia write every link: it would not look where an existing one leads.
func (t *target) SymlinkExists(context.Context, string, kopiafs.Symlink) bool { return false }

// BeginDirectory makes a directory, in place of whatever else had its name before.
func (t *target) BeginDirectory(ctx context.Context, path string, e kopiafs.Directory) error {
	defer t.steps.Add(1)
	if t.unwritten.covers(path) {
		return t.unwritten.add(path, 0, errParent)
	}
	err := t.beginDirectory(ctx, path, e)
	if isUnwritable(err) && path != "" { // nothing can be written without the volume's root
		t.unwritten.cover(path)
		return t.unwritten.add(path, 0, err)
	}
	return err
}

func (t *target) beginDirectory(ctx context.Context, path string, e kopiafs.Directory) error {
	existed, err := t.makeDirectory(path)
	if err != nil {
		return err
	}
	entries, err := t.learn(ctx, path, e)
	if err != nil || !existed {
		return err
	}
	return t.noteExisting(path, entries)
}

// makeDirectory makes a directory, unless it existed. The root always does.
func (t *target) makeDirectory(path string) (existed bool, err error) {
	if path != "" {
		replace, made := t.claim(path)
		defer made()
		if err := t.root.Mkdir(path, ownerOnly); !errors.Is(err, os.ErrExist) {
			return false, err
		}
		if !replace {
			return false, errNamesake
		}
	}
	info, err := t.root.Lstat(inRoot(path))
	switch {
	case err != nil:
		return false, err
	case !info.IsDir():
		if err := t.root.Remove(path); err != nil {
			return false, err
		}
		return false, beforeNamesake(t.root.Mkdir(path, ownerOnly))
	case info.Mode()&ownerOnly != ownerOnly: // an earlier attempt has finished it, and who is not root could not write into it
		return true, permitted(t.root.Chmod(inRoot(path), info.Mode()&kopiafs.ModBits|ownerOnly))
	}
	return true, nil
}

// ownerOnly is the mode of a directory that is not finished.
const ownerOnly = 0o700

// errSameName is what is wrong with an entry of which kopia has stored the name as that of another one: it hands out the last of them only.
var errSameName = errors.New("another entry has its name, since kopia does not store names that are no UTF-8 as they were: 'repository get' of the directory brings all")

// learn finds out the times of a directory's directories, which kopia stores, but in their place hands out the time of the newest entry in
// each, and which of its entries kopia does not hand out. It returns the entries.
func (t *target) learn(ctx context.Context, path string, e kopiafs.Directory) ([]*snapshot.DirEntry, error) {
	o, ok := e.(object.HasObjectID)
	if !ok {
		return nil, nil
	}
	entries, err := readDirectory(ctx, t.repository, &snapshot.DirEntry{ObjectID: o.ObjectID()})
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	for i, entry := range entries {
		at := filepath.Join(path, entry.Name)
		if entry.Type == snapshot.EntryTypeDirectory {
			t.times.Store(at, entry.ModTime.ToTime())
		}
		if _, selected := e.(*part); !selected && i+1 < len(entries) && entries[i+1].Name == entry.Name {
			_ = t.unwritten.add(at, storedBytes(entry), errSameName)
		}
	}
	return entries, nil
}

// storedBytes is the size of a file, or of all files in a directory.
func storedBytes(entry *snapshot.DirEntry) int64 {
	switch {
	case entry.Type == snapshot.EntryTypeFile:
		return entry.FileSize
	case entry.DirSummary != nil:
		return entry.DirSummary.TotalFileSize
	default:
		return 0
	}
}

// FinishDirectory sets a directory's attributes.
func (t *target) FinishDirectory(ctx context.Context, path string, e kopiafs.Directory) error {
	defer t.steps.Add(1)
	if t.unwritten.covers(path) {
		return nil
	}
	err := t.finishDirectory(ctx, path, e)
	if isUnwritable(err) {
		return t.unwritten.add(path, 0, err)
	}
	return err
}

func (t *target) finishDirectory(_ context.Context, path string, e kopiafs.Directory) error {
	t.existing.Delete(inRoot(path))
	modified := e.ModTime()
	if stored, ok := t.times.LoadAndDelete(path); ok {
		modified = stored.(time.Time)
	}
	return t.setAttributes(path, e, modified)
}

// WriteFile writes a file, in place of whatever else had its name before. The old one is removed and not overwritten, because
// other names, here or elsewhere, may lead to it.
func (t *target) WriteFile(ctx context.Context, path string, e kopiafs.File, progress restore.FileWriteProgress) error {
	t.current.Store(&path)
	if t.unwritten.covers(path) {
		return t.unwritten.add(path, e.Size(), errParent)
	}
	err := t.writeContent(ctx, path, e, progress)
	if isUnwritable(err) {
		return t.unwritten.add(path, e.Size(), err)
	}
	if err == nil {
		err = t.setAttributes(path, e, e.ModTime())
	}
	if isUnwritable(err) { // the content is whole
		return t.unwritten.add(path, 0, err)
	}
	return err
}

// CreateSymlink makes a symbolic link, in place of whatever else had its name before.
func (t *target) CreateSymlink(ctx context.Context, path string, e kopiafs.Symlink) error {
	if t.unwritten.covers(path) {
		return t.unwritten.add(path, 0, errParent)
	}
	err := t.createSymlink(ctx, path, e)
	if isUnwritable(err) {
		return t.unwritten.add(path, 0, err)
	}
	return err
}

func (t *target) createSymlink(ctx context.Context, path string, e kopiafs.Symlink) error {
	leadsTo, err := e.Readlink(ctx)
	if err != nil {
		return fmt.Errorf("read where a link leads: %w", err)
	}
	if err := t.make(path, func() error { return t.root.Symlink(leadsTo, path) }); err != nil {
		return err
	}
	owner := e.Owner()
	if err := permitted(t.root.Lchown(path, int(owner.UserID), int(owner.GroupID))); err != nil {
		return err
	}
	if err := setLinkTime(path, e.ModTime()); err != nil {
		return err
	}
	info, err := t.root.Lstat(path)
	if err != nil {
		return err
	}
	t.refused.check(path, info, e, e.ModTime())
	return nil
}

// make makes a file or link, in place of what had its name before.
func (t *target) make(path string, attempt func() error) error {
	replace, made := t.claim(path)
	defer made()
	err := attempt()
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if !replace {
		return errNamesake
	}
	if err := t.root.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return beforeNamesake(attempt())
}

// beforeNamesake is errNamesake if another entry of the snapshot has come into the place that was just made free.
func beforeNamesake(err error) error {
	if errors.Is(err, os.ErrExist) {
		return errNamesake
	}
	return err
}
