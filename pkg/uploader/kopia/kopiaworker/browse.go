package kopiaworker

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// node is an entry of a snapshot.
type node struct {
	kopiafs.Entry
	path    string    // relative to the snapshot's root; empty: the root
	modTime time.Time // Entry's own is that of the newest entry in a directory
}

// list sends the entries at and beneath a path of a snapshot.
func (j *job) list(ctx context.Context) (protocol.Result, error) {
	var result protocol.Result
	err := j.browse(ctx, func(r repo.Repository, top node) error {
		return walk(ctx, r, top, func(n node) (bool, error) {
			if n.path == "" {
				return true, nil
			}
			target, err := linkTarget(ctx, n)
			if err != nil {
				return false, fmt.Errorf("read the link %s: %w", protocol.Printable(n.path), err)
			}
			result.TotalFiles++
			j.say(protocol.Message{Entry: &protocol.Entry{Path: []byte(n.path), Mode: n.Mode(), Size: size(n), ModTime: n.modTime, Target: []byte(target)}})
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
	man, err := loadSnapshot(ctx, r, j.Snapshot)
	if err != nil {
		return node{}, err
	}
	root, err := snapshotfs.SnapshotRoot(r, man)
	if err != nil {
		return node{}, fmt.Errorf("open the snapshot: %w", err)
	}
	found := node{Entry: root}
	if j.Path == "" {
		return found, nil
	}
	for name := range strings.SplitSeq(j.Path, "/") {
		dir, ok := found.Entry.(kopiafs.Directory)
		if !ok {
			return node{}, fmt.Errorf("%w: %s", uploader.ErrPathNotFound, protocol.Printable(j.Path))
		}
		child, err := dir.Child(ctx, name)
		if errors.Is(err, kopiafs.ErrEntryNotFound) {
			return node{}, fmt.Errorf("%w: %s", uploader.ErrPathNotFound, protocol.Printable(j.Path))
		}
		if err == nil {
			found, err = below(ctx, r, found, dir, child)
		}
		if err != nil {
			return node{}, fmt.Errorf("look for %s: %w", protocol.Printable(j.Path), err)
		}
	}
	return found, nil
}

// below returns the node of one entry of a directory.
func below(ctx context.Context, r repo.Repository, parent node, dir kopiafs.Directory, child kopiafs.Entry) (node, error) {
	if !child.IsDir() {
		return parent.child(child, nil), nil
	}
	times, err := directoryTimes(ctx, r, dir)
	return parent.child(child, times), err
}

// child returns the node of an entry of n, with the times of n's directories.
func (n node) child(entry kopiafs.Entry, times map[string]time.Time) node {
	at := entry.ModTime()
	if own, ok := times[entry.Name()]; ok {
		at = own
	}
	return node{entry, path.Join(n.path, entry.Name()), at}
}

// walk calls visit for the node and for those beneath each directory for which visit returns true.
func walk(ctx context.Context, r repo.Repository, n node, visit func(node) (descend bool, err error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if failed, ok := n.Entry.(kopiafs.ErrorEntry); ok {
		return fmt.Errorf("%s: %w", protocol.Printable(n.path), failed.ErrorInfo())
	}
	descend, err := visit(n)
	dir, ok := n.Entry.(kopiafs.Directory)
	if err != nil || !ok || !descend {
		return err
	}
	if err := walkDirectory(ctx, r, n, dir, visit); err != nil {
		return fmt.Errorf("read the directory %s: %w", protocol.Printable(cmp.Or(n.path, ".")), err)
	}
	return nil
}

func walkDirectory(ctx context.Context, r repo.Repository, n node, dir kopiafs.Directory, visit func(node) (bool, error)) error {
	times, err := directoryTimes(ctx, r, dir)
	if err != nil {
		return err
	}
	entries, err := dir.Iterate(ctx)
	if err != nil {
		return err
	}
	defer entries.Close()
	for {
		child, err := entries.Next(ctx)
		if child == nil || err != nil {
			return err
		}
		if !isName(child.Name()) {
			return fmt.Errorf("an entry has the name %s, which no file can have", protocol.Printable(child.Name()))
		}
		if err := walk(ctx, r, n.child(child, times), visit); err != nil {
			return err
		}
	}
}

// isName reports whether a file can have this name. A repository that somebody has forged may have others, which would lead out of
// the volume.
func isName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
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
	header.Name, header.ModTime = n.path, n.modTime
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
