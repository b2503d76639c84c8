package kopiaworker

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// node is an entry of a snapshot.
type node struct {
	kopiafs.Entry
	path   string // relative to the snapshot's root; empty: the root
	stored *snapshot.DirEntry
}

// list sends the entries at and beneath a path of a snapshot.
func (j *job) list(ctx context.Context) (protocol.Result, error) {
	var result protocol.Result
	err := j.browse(ctx, func(r repo.Repository, top node) error {
		return walk(ctx, r, top, func(n node) (bool, error) {
			if n.path == "" {
				return true, nil
			}
			entry, err := n.entry(ctx)
			if err != nil {
				return false, err
			}
			result.TotalFiles++
			j.say(protocol.Message{Entry: entry})
			return j.Recursive || n.path == j.Path, nil
		})
	})
	return result, err
}

// read sends the content of a file, or an archive of a directory.
func (j *job) read(ctx context.Context) (protocol.Result, error) {
	out := &dataWriter{say: j.say}
	err := j.browse(ctx, func(r repo.Repository, top node) error {
		buffered := bufio.NewWriterSize(out, protocol.MaxData)
		var err error
		switch entry := top.Entry.(type) {
		case kopiafs.Directory:
			err = archive(ctx, buffered, r, top)
		case kopiafs.File:
			err = copyFile(ctx, buffered, entry, max(j.Offset, 0))
		default:
			err = fmt.Errorf("it is neither a file nor a directory: %w", uploader.ErrUnsupported)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", protocol.Printable(j.Path), err)
		}
		return buffered.Flush()
	})
	return protocol.Result{TotalBytes: out.written}, err
}

// dataWriter sends bytes to the agent.
type dataWriter struct {
	say     func(protocol.Message)
	written int64
}

func (w *dataWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), protocol.MaxData)
		w.say(protocol.Message{Data: rest[:n]})
		rest = rest[n:]
	}
	w.written += int64(len(p))
	return len(p), nil
}

// browse opens the repository, and hands the entry at j.Path on.
func (j *job) browse(ctx context.Context, do func(repo.Repository, node) error) (err error) {
	r, err := j.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	top, err := j.find(ctx, r)
	if err != nil {
		return err
	}
	return do(r, top)
}

// find returns the entry at j.Path.
func (j *job) find(ctx context.Context, r repo.Repository) (node, error) {
	root, err := snapshotRoot(ctx, r, j.Snapshot)
	if err != nil {
		return node{}, err
	}
	found := newNode(r, "", root)
	if j.Path == "" {
		return found, nil
	}
	for name := range strings.SplitSeq(j.Path, "/") {
		if !found.IsDir() {
			return node{}, fmt.Errorf("%w: %s", uploader.ErrPathNotFound, protocol.Printable(j.Path))
		}
		entries, err := readDirectory(ctx, r, found.stored)
		if err != nil {
			return node{}, fmt.Errorf("look for %s: %w", protocol.Printable(j.Path), err)
		}
		switch named := withName(entries, name); len(named) {
		case 0:
			return node{}, fmt.Errorf("%w: %s", uploader.ErrPathNotFound, protocol.Printable(j.Path))
		case 1:
			found = newNode(r, path.Join(found.path, name), named[0])
		default:
			return node{}, fmt.Errorf("the snapshot has %d entries of the name %s, since kopia does not store names that are no UTF-8 as they were: get the directory that they are in",
				len(named), protocol.Printable(path.Join(found.path, name)))
		}
	}
	return found, nil
}

// snapshotRoot returns the top directory of a snapshot. An unfinished one would look like a backup of fewer files.
func snapshotRoot(ctx context.Context, r repo.Repository, id string) (*snapshot.DirEntry, error) {
	man, err := loadSnapshot(ctx, r, id)
	switch {
	case err != nil:
		return nil, err
	case man.IncompleteReason != "":
		return nil, fmt.Errorf("%w: the snapshot is that of an unfinished backup (%s)", uploader.ErrUnsupported, man.IncompleteReason)
	case man.RootEntry == nil:
		return nil, errors.New("open the snapshot: it has no root")
	}
	return man.RootEntry, nil
}

func newNode(r repo.Repository, at string, stored *snapshot.DirEntry) node {
	return node{snapshotfs.EntryFromDirEntry(r, stored), at, stored}
}

// directoryStream is what the object of a directory begins with.
const directoryStream = "kopia:directory"

// readDirectory returns all entries of a directory, sorted by the bytes of their names. The library's own iterator keeps one of
// several entries with the same name, which is what names become that are no UTF-8, and hands out the times of directories as those of what
// is in them.
func readDirectory(ctx context.Context, r repo.Repository, dir *snapshot.DirEntry) ([]*snapshot.DirEntry, error) {
	reader, err := r.OpenObject(ctx, dir.ObjectID)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return parseDirectory(reader)
}

func parseDirectory(content io.Reader) ([]*snapshot.DirEntry, error) {
	var stored snapshot.DirManifest
	if err := json.NewDecoder(content).Decode(&stored); err != nil {
		return nil, err
	}
	if stored.StreamType != directoryStream {
		return nil, fmt.Errorf("it is no directory but %s", protocol.Printable(strconv.Quote(stored.StreamType)))
	}
	for _, entry := range stored.Entries {
		if entry == nil || !isName(entry.Name) {
			return nil, fmt.Errorf("an entry has the name %s, which no file can have", protocol.Printable(nameOf(entry)))
		}
	}
	slices.SortStableFunc(stored.Entries, func(a, b *snapshot.DirEntry) int { return strings.Compare(a.Name, b.Name) })
	return stored.Entries, nil
}

func nameOf(entry *snapshot.DirEntry) string {
	if entry == nil {
		return ""
	}
	return entry.Name
}

// withName returns the entries of sorted ones that have this name.
func withName(entries []*snapshot.DirEntry, name string) []*snapshot.DirEntry {
	first, _ := slices.BinarySearchFunc(entries, name, func(e *snapshot.DirEntry, name string) int { return strings.Compare(e.Name, name) })
	last := first
	for last < len(entries) && entries[last].Name == name {
		last++
	}
	return entries[first:last]
}

// walk calls visit for the node and for those beneath each directory for which visit returns true.
func walk(ctx context.Context, r repo.Repository, n node, visit func(node) (descend bool, err error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := n.failed(); err != nil {
		return err
	}
	descend, err := visit(n)
	if err != nil || !n.IsDir() || !descend {
		return err
	}
	entries, err := readDirectory(ctx, r, n.stored)
	if err != nil {
		return fmt.Errorf("read the directory %s: %w", protocol.Printable(cmp.Or(n.path, ".")), err)
	}
	for _, entry := range entries {
		if err := walk(ctx, r, newNode(r, path.Join(n.path, entry.Name), entry), visit); err != nil {
			return err
		}
	}
	return nil
}

// isName reports whether a file can have this name. A repository that somebody has forged may have others, which would lead out of
// the volume.
func isName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// failed is the error of an entry of an unknown kind.
func (n node) failed() error {
	if failed, ok := n.Entry.(kopiafs.ErrorEntry); ok {
		return fmt.Errorf("%s: %w", protocol.Printable(n.path), failed.ErrorInfo())
	}
	return nil
}

// entry returns what the agent is told of a node.
func (n node) entry(ctx context.Context) (*protocol.Entry, error) {
	target, err := linkTarget(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("read the link %s: %w", protocol.Printable(n.path), err)
	}
	return &protocol.Entry{
		Path: []byte(n.path), Mode: n.Mode(), Size: size(n), ModTime: n.stored.ModTime.ToTime(), Target: []byte(target),
		UID: n.stored.UserID, GID: n.stored.GroupID,
	}, nil
}

func linkTarget(ctx context.Context, n node) (string, error) {
	if link, ok := n.Entry.(kopiafs.Symlink); ok {
		return link.Readlink(ctx)
	}
	return "", nil
}

// size is that of a file; directories have the size of what they hold.
func size(n node) int64 {
	if _, ok := n.Entry.(kopiafs.File); ok {
		return n.Size()
	}
	return 0
}

// copyFile writes a file from offset on.
func copyFile(ctx context.Context, w io.Writer, file kopiafs.File, offset int64) error {
	reader, err := file.Open(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	offset = min(offset, file.Size())
	if _, err := reader.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(w, &canceledReader{ctx, reader})
	if err != nil {
		return err
	}
	if n != file.Size()-offset {
		return errSize
	}
	return nil
}

// canceledReader ends when ctx does: the library reads what it has in memory without a look at ctx.
type canceledReader struct {
	ctx context.Context //nolint:containedctx // of one call
	io.Reader
}

func (r *canceledReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}

// archive writes a directory as a tar archive. What is no file, directory or symbolic link is left out.
func archive(ctx context.Context, w io.Writer, r repo.Repository, top node) error {
	out := tar.NewWriter(w)
	err := walk(ctx, r, top, func(n node) (bool, error) {
		if n.path == "" {
			return true, nil
		}
		if err := archiveEntry(ctx, out, n); err != nil {
			return false, fmt.Errorf("%s: %w", protocol.Printable(n.path), err)
		}
		return true, nil
	})
	return errors.Join(err, out.Close())
}

func archiveEntry(ctx context.Context, out *tar.Writer, n node) error {
	if kind := n.Mode() & os.ModeType; kind != 0 && kind != os.ModeDir && kind != os.ModeSymlink {
		return nil
	}
	target, err := linkTarget(ctx, n)
	if err != nil {
		return err
	}
	header, err := tar.FileInfoHeader(n, target)
	if err != nil {
		return err
	}
	header.Format = tar.FormatPAX // with nanoseconds
	header.Name, header.ModTime = n.path, n.stored.ModTime.ToTime()
	header.Uid, header.Gid = int(n.Owner().UserID), int(n.Owner().GroupID)
	if n.IsDir() {
		header.Name += "/"
	}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	if file, ok := n.Entry.(kopiafs.File); ok {
		return copyFile(ctx, out, file, 0)
	}
	return nil
}
