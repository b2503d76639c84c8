package uploader

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"time"
)

// ErrPathNotFound is returned if the snapshot has no file or directory at the path.
var ErrPathNotFound = errors.New("not in the snapshot")

// Browser is a data path that can show what a snapshot holds without restoring it.
type Browser interface {
	// List hands the entry of the path, unless that is the volume itself, and those beneath it to entry, each directory before
	// what it holds, in constant memory. It ends with the first error that entry returns. ErrPathNotFound: there is no such path.
	List(ctx context.Context, req BrowseRequest, entry func(Entry) error) error

	// Read writes the content of a file, from Offset on, to w; of a directory, a tar archive with names relative to the volume.
	// The repository's records are compared on the way: an error after some bytes means that they are not all.
	Read(ctx context.Context, req BrowseRequest, w io.Writer) error

	// Diff hands each entry that two snapshots do not have alike to change, in the order of List, in constant memory. Content is
	// compared by what the repository's records say of it, never by size and time. It ends with the first error that change returns;
	// an error after some changes means that they are not all. ErrSnapshotNotFound: there is no such snapshot.
	Diff(ctx context.Context, req DiffRequest, change func(Change) error) error
}

// BrowseRequest is a part of a snapshot.
type BrowseRequest struct {
	Repository Repository
	SnapshotID string
	Path       string // relative to the volume, separated by slashes, in the bytes that the volume had; empty: the volume itself
	Recursive  bool   // List: directories beneath the path, too
	Offset     int64  // Read, of a file: leave out so many bytes
	Uncached   bool   // read from the storage only: a cache would prove what it holds, and not what the repository has
}

// Inner returns Path without a slash at its begin and end, and without empty, "." and ".." parts. Empty: the volume itself.
func (r BrowseRequest) Inner() string { return innerPath(r.Path) }

func innerPath(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

// InnerPaths returns Paths as BrowseRequest.Inner does.
func (r RestoreRequest) InnerPaths() []string {
	inner := make([]string, len(r.Paths))
	for i, p := range r.Paths {
		inner[i] = innerPath(p)
	}
	return inner
}

// Entry is one file, directory or link of a snapshot.
type Entry struct {
	Path    string // relative to the volume. It is hostile input: print it with text.Line
	Mode    os.FileMode
	Size    int64 // of a file, in bytes
	ModTime time.Time
	Target  string // of a symbolic link
	UID     uint32
	GID     uint32
}
