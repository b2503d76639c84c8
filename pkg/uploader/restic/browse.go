package restic

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.Browser = (*Uploader)(nil)

// List has restic list the path. restic prints JSON: bytes of names that are no UTF-8 arrive as U+FFFD. It does not say where
// symbolic links lead to.
func (u *Uploader) List(ctx context.Context, req uploader.BrowseRequest, entry func(uploader.Entry) error) error {
	err := u.browse(ctx, req, func(w *workspace) error { return u.list(ctx, w, req, entry) })
	if err != nil {
		return fmt.Errorf("list snapshot %s: %w", req.SnapshotID, err)
	}
	return nil
}

// Read has restic write the file's content, or the archive. restic compares the hash of each piece with its name
// (docs/contracts/restic-kopia.md 11), and Read the file's size with the snapshot's.
func (u *Uploader) Read(ctx context.Context, req uploader.BrowseRequest, w io.Writer) error {
	err := u.browse(ctx, req, func(own *workspace) error { return u.read(ctx, own, req, w) })
	if err != nil {
		return fmt.Errorf("read from snapshot %s: %w", req.SnapshotID, err)
	}
	return nil
}

func (u *Uploader) browse(ctx context.Context, req uploader.BrowseRequest, do func(*workspace) error) error {
	if err := checkSnapshotID(req.SnapshotID); err != nil {
		return err
	}
	if strings.ContainsRune(req.Path, 0) { // no program can be given such an argument
		return uploader.ErrPathNotFound
	}
	return u.inWorkspace(req.Repository, func(w *workspace) error {
		if req.Uncached {
			w.cacheDir = ""
		}
		return u.pastDeadLocks(ctx, w, func() error { return do(w) })
	})
}

// listing takes what restic ls prints.
type listing struct {
	entry func(uploader.Entry) error
	stop  context.CancelCauseFunc

	found   bool // restic has named the snapshot
	time    time.Time
	entries int
	failed  error // the first line that could not be read, or what entry returned
}

func (u *Uploader) list(ctx context.Context, w *workspace, req uploader.BrowseRequest, entry func(uploader.Entry) error) error {
	_, err := u.listSnapshot(ctx, w, req, entry)
	return err
}

// listSnapshot is list, and returns when the snapshot was made.
func (u *Uploader) listSnapshot(ctx context.Context, w *workspace, req uploader.BrowseRequest, entry func(uploader.Entry) error) (time.Time, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l := &listing{entry: entry, stop: stop}
	args := []string{jsonFlag}
	if req.Recursive {
		args = append(args, "--recursive")
	}
	args = append(append(args, lockArgs(req.Repository)...), req.SnapshotID, "/"+req.Inner())
	err := u.run(ctx, w, invocation{command: "ls", args: args, stdout: l.line, complete: true})
	switch {
	case l.failed != nil:
		return l.time, l.failed
	case err != nil:
		return l.time, explainList(err, l.found)
	case !l.found:
		return l.time, uploader.ErrSnapshotNotFound
	case l.entries == 0 && req.Inner() != "":
		return l.time, fmt.Errorf("%w: %s", uploader.ErrPathNotFound, printable(req.Path))
	}
	return l.time, nil
}

// explainList tells a snapshot that is not there from any other error. found: restic has named the snapshot before.
func explainList(err error, found bool) error {
	if exit, ok := errors.AsType[*ExitError](err); ok && !found && exit.cause == nil && exit.Signal == nil && absent.MatchString(exit.Message) {
		return fmt.Errorf("%w: %w", uploader.ErrSnapshotNotFound, err)
	}
	return err
}

// line takes one line of restic ls: the snapshot's, or an entry's.
func (l *listing) line(line []byte) {
	if l.failed != nil || len(line) == 0 {
		return
	}
	node, err := parseNode(line)
	if err != nil {
		l.fail(err)
		return
	}
	if node.Path == nil {
		if node.ID != "" {
			l.found, l.time = true, node.Time
		}
		return
	}
	l.entries++
	if err := l.entry(node.entry()); err != nil {
		l.fail(err)
	}
}

// listedNode is a line of restic ls: the snapshot, or an entry of it.
type listedNode struct {
	ID         string      `json:"id"`
	Path       *string     `json:"path"` // absent: it is the snapshot
	Time       time.Time   `json:"time"` // of a snapshot
	Mode       os.FileMode `json:"mode"`
	UID        uint32      `json:"uid"`
	GID        uint32      `json:"gid"`
	Size       int64       `json:"size"`
	ModTime    time.Time   `json:"mtime"`
	AccessTime time.Time   `json:"atime"`
	ChangeTime time.Time   `json:"ctime"`
	Inode      uint64      `json:"inode"`
	LinkTarget string      `json:"linktarget"`
}

func parseNode(line []byte) (listedNode, error) {
	var node listedNode
	if err := json.Unmarshal(line, &node); err != nil {
		return node, fmt.Errorf("read what restic ls prints: %w", err)
	}
	return node, nil
}

func (n *listedNode) entry() uploader.Entry {
	return uploader.Entry{
		Path: strings.TrimPrefix(*n.Path, "/"), Mode: n.Mode, Size: n.Size, ModTime: n.ModTime, Target: n.LinkTarget, UID: n.UID, GID: n.GID,
	}
}

func (l *listing) fail(err error) {
	l.failed = err
	l.stop(err)
}

// errEnough ends a listing whose rest nobody wants.
var errEnough = errors.New("enough")

// stat returns the entry of a path that is not the volume itself.
func (u *Uploader) stat(ctx context.Context, w *workspace, req uploader.BrowseRequest) (found uploader.Entry, err error) {
	req.Recursive = false
	err = u.list(ctx, w, req, func(e uploader.Entry) error {
		found = e
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return found, err
}

func (u *Uploader) read(ctx context.Context, w *workspace, req uploader.BrowseRequest, out io.Writer) error {
	entry := uploader.Entry{Mode: os.ModeDir}
	if req.Inner() != "" {
		var err error
		if entry, err = u.stat(ctx, w, req); err != nil {
			return err
		}
	}
	switch {
	case entry.Mode.IsDir():
		return u.readDirectory(ctx, w, req, out)
	case !entry.Mode.IsRegular():
		return fmt.Errorf("%s is neither a file nor a directory: %w", printable(req.Path), uploader.ErrUnsupported)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &dump{out: out, stop: stop, skip: max(req.Offset, 0)}
	err := u.run(ctx, w, invocation{command: "dump", args: append(lockArgs(req.Repository), req.SnapshotID, "/"+req.Inner()), output: d})
	switch {
	case d.failed != nil:
		return d.failed
	case err != nil:
		return err
	case d.read != entry.Size:
		return fmt.Errorf("restic dump gave %d bytes of %s, and the snapshot says %d", d.read, printable(req.Path), entry.Size)
	}
	return nil
}

// archived counts what an archive must hold, or holds.
type archived struct {
	dirs, links, files, bytes int64 // files with data

	empty int64 // files without data; an archive may have more, since restic makes such of FIFOs
}

func (a *archived) add(mode os.FileMode, size int64) {
	switch {
	case mode.IsDir():
		a.dirs++
	case mode&os.ModeSymlink != 0:
		a.links++
	case mode.IsRegular() && size > 0:
		a.files++
		a.bytes += size
	case mode.IsRegular():
		a.empty++
	}
}

// lacks reports whether an archive does not hold what it must.
func (a archived) lacks(want archived) bool {
	more := a.empty - want.empty
	a.empty = want.empty
	return a != want || more < 0
}

// readDirectory compares restic's archive with its list. Up to 0.18 restic dump ends at a directory that it cannot load with a
// whole archive and exit code 0, without what follows; restic ls ends with an error.
func (u *Uploader) readDirectory(ctx context.Context, w *workspace, req uploader.BrowseRequest, out io.Writer) error {
	var want archived
	req.Recursive = true
	err := u.list(ctx, w, req, func(e uploader.Entry) error {
		want.add(e.Mode, e.Size)
		return nil
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	archive, output := io.Pipe()
	var got archived
	counted := make(chan error, 1)
	go func() {
		err := got.readArchive(archive, req.Inner())
		_, _ = io.Copy(io.Discard, archive) // or restic would wait for a reader
		counted <- err
	}()
	d := &dump{out: io.MultiWriter(out, output), stop: stop}
	err = u.run(ctx, w, invocation{command: "dump", args: append(lockArgs(req.Repository), "--archive", "tar", req.SnapshotID, "/"+req.Inner()), output: d})
	_ = output.Close() // never fails
	countErr := <-counted
	switch {
	case d.failed != nil:
		return d.failed
	case err != nil:
		return err
	case countErr != nil:
		return fmt.Errorf("read the archive that restic dump wrote: %w", countErr)
	}
	if req.Inner() != "" {
		got.dirs++ // itself, which restic archives or not
	}
	if got.lacks(want) {
		return fmt.Errorf("restic dump left something out: its archive has %d directories, %d links, %d empty files and %d files with %d bytes; the snapshot has %d, %d, %d, and %d with %d",
			got.dirs, got.links, got.empty, got.files, got.bytes, want.dirs, want.links, want.empty, want.files, want.bytes)
	}
	return nil
}

// readArchive counts what an archive holds beneath a directory.
func (a *archived) readArchive(r io.Reader, dir string) error {
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.Trim(header.Name, "/") != dir {
			a.add(header.FileInfo().Mode(), header.Size)
		}
	}
}

// dump hands what restic dump writes on, but for the first skip bytes.
type dump struct {
	out        io.Writer
	stop       context.CancelCauseFunc
	skip, read int64
	failed     error // what out returned
}

// Write takes all of p, whatever out says: restic would wait.
func (d *dump) Write(p []byte) (int, error) {
	left := p[min(int64(len(p)), max(d.skip-d.read, 0)):]
	d.read += int64(len(p))
	if d.failed == nil && len(left) > 0 {
		if _, d.failed = d.out.Write(left); d.failed != nil {
			d.stop(d.failed)
		}
	}
	return len(p), nil
}
