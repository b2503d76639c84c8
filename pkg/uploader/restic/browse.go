package restic

import (
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
		return u.pastDeadLocks(ctx, w, func() error { return do(w) })
	})
}

// listing takes what restic ls prints.
type listing struct {
	entry func(uploader.Entry) error
	stop  context.CancelCauseFunc

	found   bool // restic has named the snapshot
	entries int
	failed  error // the first line that could not be read, or what entry returned
}

func (u *Uploader) list(ctx context.Context, w *workspace, req uploader.BrowseRequest, entry func(uploader.Entry) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l := &listing{entry: entry, stop: stop}
	args := []string{jsonFlag}
	if req.Recursive {
		args = append(args, "--recursive")
	}
	args = append(append(args, lockArgs(req.Repository)...), req.SnapshotID, "/"+req.Inner())
	err := u.run(ctx, w, invocation{command: "ls", args: args, stdout: l.line})
	switch {
	case l.failed != nil:
		return l.failed
	case err != nil:
		return l.explain(err)
	case !l.found:
		return uploader.ErrSnapshotNotFound
	case l.entries == 0 && req.Inner() != "":
		return fmt.Errorf("%w: %s", uploader.ErrPathNotFound, printable(req.Path))
	}
	return nil
}

// explain tells a snapshot that is not there from any other error.
func (l *listing) explain(err error) error {
	if exit, ok := errors.AsType[*ExitError](err); ok && !l.found && exit.cause == nil && exit.Signal == nil && absent.MatchString(exit.Message) {
		return fmt.Errorf("%w: %w", uploader.ErrSnapshotNotFound, err)
	}
	return err
}

// line takes one line of restic ls: the snapshot's, or an entry's.
func (l *listing) line(line []byte) {
	if l.failed != nil || len(line) == 0 {
		return
	}
	var node struct {
		ID         string      `json:"id"`
		Path       *string     `json:"path"` // absent: it is the snapshot
		Mode       os.FileMode `json:"mode"`
		Size       int64       `json:"size"`
		ModTime    time.Time   `json:"mtime"`
		LinkTarget string      `json:"linktarget"`
	}
	if err := json.Unmarshal(line, &node); err != nil {
		l.fail(fmt.Errorf("read what restic ls prints: %w", err))
		return
	}
	if node.Path == nil {
		l.found = l.found || node.ID != ""
		return
	}
	l.entries++
	err := l.entry(uploader.Entry{
		Path: strings.TrimPrefix(*node.Path, "/"), Mode: node.Mode, Size: node.Size, ModTime: node.ModTime, Target: node.LinkTarget,
	})
	if err != nil {
		l.fail(err)
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
	if !entry.Mode.IsRegular() && !entry.Mode.IsDir() {
		return fmt.Errorf("%s is neither a file nor a directory: %w", printable(req.Path), uploader.ErrUnsupported)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &dump{out: out, stop: stop}
	args := lockArgs(req.Repository)
	if entry.Mode.IsDir() {
		args = append(args, "--archive", "tar")
	} else {
		d.skip = max(req.Offset, 0)
	}
	err := u.run(ctx, w, invocation{command: "dump", args: append(args, req.SnapshotID, "/"+req.Inner()), output: d})
	switch {
	case d.failed != nil:
		return d.failed
	case err != nil:
		return err
	case entry.Mode.IsRegular() && d.read != entry.Size:
		return fmt.Errorf("restic dump gave %d bytes of %s, and the snapshot says %d", d.read, printable(req.Path), entry.Size)
	}
	return nil
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
