package kopiaworker

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/localfs"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// watchedDirectory is a directory of the volume that tells which of its entries vanish between the listing and the look
// at each. kopia's own iterator leaves them out without a word (kopia 0.23, localfs.toDirEntryOrNil), however many.
type watchedDirectory struct {
	kopiafs.Directory
	path     string // relative to the working directory
	vanished func(path string)
	// vanishedDirectory is told of a directory that was one when its parent was read, and is not there any more, with all that was in it. kopia
	// tells the path.
	vanishedDirectory func()
}

// Iterate lists the entries.
func (d *watchedDirectory) Iterate(context.Context) (kopiafs.DirectoryIterator, error) {
	handle, err := os.OpenFile(d.path, syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if uploader.IsVanished(err) {
		d.vanishedDirectory()
	}
	if err != nil {
		return nil, err
	}
	prefix := d.path + "/"
	if d.path == "." {
		prefix = ""
	}
	return &watchedIterator{directory: d, handle: handle, prefix: prefix}, nil
}

// Child returns one entry. The ignore file of a directory is none if it is a link: kopia would follow it out of the volume, and leave
// the whole directory out where it leads nowhere (kopia 0.23, ignorefs.buildContext).
func (d *watchedDirectory) Child(ctx context.Context, name string) (kopiafs.Entry, error) {
	entry, err := d.Directory.Child(ctx, name)
	if err != nil {
		return nil, err
	}
	if _, link := entry.(kopiafs.Symlink); link && name == ignoreFile {
		return nil, kopiafs.ErrEntryNotFound
	}
	return d.watch(entry, path.Join(d.path, name)), nil
}

// watch makes an entry a watched directory, or a file that is read in parts, if it is one and not one of kopia's placeholders, which stand for
// something else.
func (d *watchedDirectory) watch(entry kopiafs.Entry, at string) kopiafs.Entry {
	if _, placeholder := entry.(snapshot.HasDirEntryOrNil); placeholder {
		return entry
	}
	switch entry := entry.(type) {
	case kopiafs.Directory:
		return &watchedDirectory{Directory: entry, path: at, vanished: d.vanished, vanishedDirectory: d.vanishedDirectory}
	case kopiafs.File:
		if entry.Size() > parallelAbove {
			return fileInParts{entry}
		}
	}
	return entry
}

// ignoreFile is the name that kopia's policies have for lists of what not to store.
const ignoreFile = ".kopiaignore"

// watchedIterator lists a directory.
type watchedIterator struct {
	directory *watchedDirectory
	handle    *os.File
	prefix    string // of the paths of its entries: path.Join would make a second string for each
	batch     []kopiafs.Entry
}

// iteratorBatch is how many entries are read at once.
const iteratorBatch = 100

// Next returns the next entry, nil after the last one.
func (i *watchedIterator) Next(context.Context) (kopiafs.Entry, error) {
	for len(i.batch) == 0 {
		names, err := i.handle.Readdirnames(iteratorBatch)
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if err := i.fillBatch(names); err != nil {
			return nil, err
		}
	}
	entry := i.batch[0]
	i.batch = i.batch[1:]
	return entry, nil
}

// fillBatch looks at each of the names at once: kopia may upload for hours before it asks for the next, and of a name that is not there any more nobody
// knows then whether it was a directory.
func (i *watchedIterator) fillBatch(names []string) error {
	i.batch = make([]kopiafs.Entry, 0, len(names))
	for _, name := range names {
		if strings.HasSuffix(name, localfs.ShallowEntrySuffix) {
			i.batch = append(i.batch, unreadableEntry{name: name, err: errPlaceholder})
			continue
		}
		at := i.prefix + name
		entry, err := localfs.NewEntry(at)
		switch {
		case err == nil:
			i.batch = append(i.batch, i.directory.watch(entry, at))
		case uploader.IsVanished(err):
			i.directory.vanished(at)
		case errors.Is(err, fs.ErrPermission):
			i.batch = append(i.batch, unreadableEntry{name: name, err: err})
		default:
			return err
		}
	}
	return nil
}

// errPlaceholder is what is wrong with an entry that kopia takes for one of its placeholders: it would store another entry by another
// name, drop a link without a word, or end at a directory.
var errPlaceholder = errors.New("kopia takes what has this name for its own placeholder and cannot store it: rename it")

// Close ends the listing.
func (i *watchedIterator) Close() { _ = i.handle.Close() }

// unreadableEntry is an entry that may not be looked at, such as another user's FUSE mount: it is no reason to leave out
// its whole directory.
type unreadableEntry struct {
	name string
	err  error
}

var _ kopiafs.ErrorEntry = unreadableEntry{}

func (e unreadableEntry) Name() string              { return e.name }
func (e unreadableEntry) ErrorInfo() error          { return e.err }
func (unreadableEntry) Size() int64                 { return 0 }
func (unreadableEntry) Mode() fs.FileMode           { return 0 }
func (unreadableEntry) ModTime() time.Time          { return time.Time{} }
func (unreadableEntry) IsDir() bool                 { return false }
func (unreadableEntry) Sys() any                    { return nil }
func (unreadableEntry) Owner() kopiafs.OwnerInfo    { return kopiafs.OwnerInfo{} }
func (unreadableEntry) Device() kopiafs.DeviceInfo  { return kopiafs.DeviceInfo{} }
func (unreadableEntry) LocalFilesystemPath() string { return "" }
func (unreadableEntry) Close()                      {}
