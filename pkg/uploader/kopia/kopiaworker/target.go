package kopiaworker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/restore"
	"golang.org/x/sys/unix"
)

// target is the volume that a restore writes into: the working directory. What is in the way of a file, a directory or a
// symbolic link is replaced. kopia's own output would write through a symbolic link that happens to be there, and fails
// where a file has become a directory or the other way round.
type target struct {
	*restore.FilesystemOutput
	*comparison
	foreign   atomic.Int64 // entries that do not have their owner
	renamed   atomic.Int64 // bytes of files whose names were not UTF-8: kopia gives several of them one name
	current   *atomic.Pointer[string]
	times     sync.Map // of directories that are not finished: the time, by path
	unwritten unwritten
}

var _ restore.Output = (*target)(nil)

func newTarget(ctx context.Context, r repo.DirectRepository, sparse bool) (*target, error) {
	t := &target{
		FilesystemOutput: &restore.FilesystemOutput{
			TargetPath: ".", OverwriteDirectories: true, OverwriteFiles: true, OverwriteSymlinks: true,
			// As Velero: volumes on NFS often permit nobody to give files away. Entries without their owner are counted.
			IgnorePermissionErrors: true, WriteSparseFiles: sparse,
		},
		comparison: newComparison(r),
	}
	return t, t.Init(ctx)
}

// FileExists reports whether a file need not be written again, because an earlier attempt has restored it: its attributes and
// all its bytes are the snapshot's. Size and time prove nothing: after a power loss files have both, and zeros in them.
func (t *target) FileExists(ctx context.Context, path string, e kopiafs.File) bool {
	t.current.Store(&path)
	if strings.ContainsRune(path, utf8.RuneError) {
		t.renamed.Add(e.Size())
	}
	return t.isSame(ctx, path, e)
}

// SymlinkExists makes kopia write every link: it would not look where an existing one leads.
func (t *target) SymlinkExists(context.Context, string, kopiafs.Symlink) bool { return false }

// BeginDirectory makes a directory, in place of whatever else has its name.
func (t *target) BeginDirectory(ctx context.Context, path string, e kopiafs.Directory) error {
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
	if info, err := os.Lstat(filepath.Join(".", path)); err == nil && !info.IsDir() {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if err := t.FilesystemOutput.BeginDirectory(ctx, path, e); err != nil {
		return err
	}
	return t.learnTimes(ctx, path, e)
}

// learnTimes finds out the times of a directory's directories.
func (t *target) learnTimes(ctx context.Context, path string, e kopiafs.Directory) error {
	times, err := directoryTimes(ctx, t.repository, e)
	for name, at := range times {
		t.times.Store(filepath.Join(path, name), at)
	}
	return err
}

// directoryTimes returns the times of a directory's directories, by name. kopia stores them, but in their place hands out the time
// of the newest entry in each.
func directoryTimes(ctx context.Context, r repo.Repository, e kopiafs.Directory) (map[string]time.Time, error) {
	if d, ok := e.(kopiafs.DirectoryWithSummary); ok {
		summary, err := d.Summary(ctx)
		if err == nil && summary != nil && summary.TotalDirCount <= 1 {
			return nil, nil // it counts itself
		}
	}
	o, ok := e.(object.HasObjectID)
	if !ok {
		return nil, nil
	}
	reader, err := r.OpenObject(ctx, o.ObjectID())
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	defer reader.Close()
	var listing snapshot.DirManifest
	if err := json.NewDecoder(reader).Decode(&listing); err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	times := map[string]time.Time{}
	for _, entry := range listing.Entries {
		if entry.Type == snapshot.EntryTypeDirectory {
			times[entry.Name] = entry.ModTime.ToTime()
		}
	}
	return times, nil
}

// FinishDirectory sets a directory's attributes.
func (t *target) FinishDirectory(ctx context.Context, path string, e kopiafs.Directory) error {
	if t.unwritten.covers(path) {
		return nil
	}
	err := t.finishDirectory(ctx, path, e)
	if isUnwritable(err) {
		return t.unwritten.add(path, 0, err)
	}
	return err
}

func (t *target) finishDirectory(ctx context.Context, path string, e kopiafs.Directory) error {
	if err := t.FilesystemOutput.FinishDirectory(ctx, path, e); err != nil {
		return err
	}
	if modified, ok := t.times.LoadAndDelete(path); ok {
		if err := setTime(path, modified.(time.Time)); err != nil {
			return err
		}
	}
	t.checkOwner(path, e)
	return nil
}

// WriteFile writes a file, in place of whatever else has its name. The old one is removed and not overwritten, because
// other names, here or elsewhere, may lead to it.
func (t *target) WriteFile(ctx context.Context, path string, e kopiafs.File, progress restore.FileWriteProgress) error {
	t.current.Store(&path)
	if t.unwritten.covers(path) {
		return t.unwritten.add(path, e.Size(), errParent)
	}
	err := t.writeFile(ctx, path, e, progress)
	switch {
	case !isUnwritable(err):
		return err
	case isOfAttribute(err):
		return t.unwritten.add(path, 0, err)
	default:
		_ = remove(path) // what there is of it would be taken for the file
		return t.unwritten.add(path, e.Size(), err)
	}
}

func (t *target) writeFile(ctx context.Context, path string, e kopiafs.File, progress restore.FileWriteProgress) error {
	if err := remove(path); err != nil {
		return err
	}
	w := &writeback{path: path}
	defer w.end()
	advance := func(n int64) {
		w.advance(n)
		if progress != nil {
			progress(n)
		}
	}
	if err := t.FilesystemOutput.WriteFile(ctx, path, e, advance); err != nil {
		return err
	}
	t.checkOwner(path, e)
	return nil
}

// CreateSymlink makes a symbolic link, in place of whatever else has its name.
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
	if err := remove(path); err != nil {
		return err
	}
	if err := t.FilesystemOutput.CreateSymlink(ctx, path, e); err != nil {
		return err
	}
	t.checkOwner(path, e)
	return setTime(path, e.ModTime()) // kopia drops the nanoseconds
}

const opSetTime = "set time of"

// setTime sets the modification time of the entry itself, not of what it leads to.
func setTime(path string, modified time.Time) error {
	at := unix.NsecToTimespec(modified.UnixNano())
	err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return &os.PathError{Op: opSetTime, Path: path, Err: err}
	}
	return nil
}

// remove removes a file or an empty directory, if there is one.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// checkOwner counts entries that root could not give their owner. Others than root cannot be expected to.
func (t *target) checkOwner(path string, e kopiafs.Entry) {
	if os.Geteuid() != 0 {
		return
	}
	info, err := os.Lstat(filepath.Join(".", path))
	if err != nil {
		return
	}
	inode, ok := info.Sys().(*syscall.Stat_t)
	if ok && (inode.Uid != e.Owner().UserID || inode.Gid != e.Owner().GroupID) {
		t.foreign.Add(1)
	}
}
