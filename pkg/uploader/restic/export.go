package restic

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.Exporter = (*Uploader)(nil)

// Export has restic list the snapshot and, at the same time, write it as an archive, and joins the two. The list has times to the
// nanosecond and says of FIFOs, sockets and devices what they are; the archive has content, names in their bytes and targets of links.
// Both come in one order. restic compares the hash of each piece of content with its name.
func (u *Uploader) Export(ctx context.Context, req uploader.ExportRequest, each func(uploader.Exported) error) (uploader.ExportResult, error) {
	if err := checkSnapshotID(req.SnapshotID); err != nil {
		return uploader.ExportResult{}, fmt.Errorf("export: %w", err)
	}
	req.Repository.ReadOnly = true
	var result uploader.ExportResult
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		w.cacheDir = "" // what it holds is not what the repository has
		var err error
		result, err = u.export(ctx, w, req, each)
		return err
	})
	if err != nil {
		return uploader.ExportResult{}, fmt.Errorf("export snapshot %s: %w", req.SnapshotID, err)
	}
	return result, nil
}

// listedAhead is how many entries the list may be ahead of the archive.
const listedAhead = 1000

func (u *Uploader) export(ctx context.Context, w *workspace, req uploader.ExportRequest, each func(uploader.Exported) error) (result uploader.ExportResult, _ error) {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	x := &export{each: each, listed: make(chan uploader.Entry, listedAhead)}
	listed := make(chan struct{})
	go func() {
		browse := uploader.BrowseRequest{Repository: req.Repository, SnapshotID: req.SnapshotID, Recursive: true}
		var err error
		result.Time, err = u.listSnapshot(running, w, browse, func(e uploader.Entry) error { return x.add(running, e) })
		if err != nil {
			stop(err)
		}
		close(x.listed)
		close(listed)
	}()
	archive, output := io.Pipe()
	dumped := make(chan error, 1)
	go func() {
		args := append(lockArgs(req.Repository), "--archive", "tar", req.SnapshotID, "/")
		err := u.run(running, w, invocation{command: "dump", args: args, output: output})
		_ = output.CloseWithError(err) // never fails; nil means the end
		dumped <- err
	}()
	joinErr := x.join(archive)
	if joinErr != nil {
		stop(joinErr)
	}
	_ = archive.CloseWithError(errEnough) // never fails; what is left is not wanted
	dumpErr := <-dumped
	<-listed
	switch {
	case ctx.Err() != nil:
		return result, context.Cause(ctx)
	case x.refused != nil && x.unread == nil:
		return result, x.refused
	}
	first := context.Cause(running) // whoever failed first has stopped the others
	if first == nil {
		first = dumpErr // the archive was complete before
	}
	if first == nil {
		return result, nil
	}
	return result, u.damagedOr(ctx, w, x.current, first)
}

// export joins the list of a snapshot and its archive.
type export struct {
	each    func(uploader.Exported) error
	listed  chan uploader.Entry
	current string // the file that is being read; empty: none
	refused error  // what each returned
	unread  error  // why a file's content could not be read
}

// content is the content of a file in the archive.
type content struct {
	io.Reader
	export *export
}

// Read notes why it fails: that is not the fault of who reads.
func (c content) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.export.unread = err
	}
	return n, err
}

func (x *export) add(ctx context.Context, e uploader.Entry) error {
	select {
	case x.listed <- e:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errUnlike comes when list and archive do not agree.
var errUnlike = errors.New("restic dump and restic ls do not agree")

// join hands the entries on.
func (x *export) join(r io.Reader) error {
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return x.rest()
		}
		if err != nil {
			return fmt.Errorf("read the archive that restic dump wrote: %w", err)
		}
		entry, err := x.match(header)
		if err != nil {
			return err
		}
		exported := uploader.Exported{Entry: entry, Attributes: hasAttributes(header)}
		if entry.Mode.IsRegular() {
			exported.Content, x.current = content{archive, x}, printable(entry.Path)
		}
		if err := x.hand(exported); err != nil {
			return err
		}
		x.current = ""
	}
}

func (x *export) hand(e uploader.Exported) error {
	x.refused = x.each(e)
	return x.refused
}

// match returns the listed entry of a header.
func (x *export) match(header *tar.Header) (uploader.Entry, error) {
	name := strings.Trim(header.Name, "/")
	for e := range x.listed {
		if e.Path != asListed(name) {
			if !isSpecial(e.Mode) {
				return e, fmt.Errorf("%w: the list has %s, the archive %s", errUnlike, printable(e.Path), printable(name))
			}
			if err := x.hand(uploader.Exported{Entry: e}); err != nil {
				return e, err
			}
			continue
		}
		e.Path, e.Target = name, header.Linkname
		return e, matches(&e, header)
	}
	return uploader.Entry{}, fmt.Errorf("%w: the list has no %s", errUnlike, printable(name))
}

// rest makes sure that nothing is listed any more but what restic does not archive.
func (x *export) rest() error {
	for e := range x.listed {
		if !isSpecial(e.Mode) {
			return fmt.Errorf("%w: the archive has no %s", errUnlike, printable(e.Path))
		}
		if err := x.hand(uploader.Exported{Entry: e}); err != nil {
			return err
		}
	}
	return nil
}

// asListed is how restic ls prints a name: each byte that is no UTF-8 as U+FFFD.
func asListed(name string) string { return string([]rune(name)) }

func isSpecial(mode os.FileMode) bool {
	return mode&os.ModeType&^(os.ModeDir|os.ModeSymlink) != 0
}

// matches compares an entry of the list with its header in the archive. restic archives FIFOs and the like, if at all, as empty files.
func matches(e *uploader.Entry, header *tar.Header) error {
	want := byte(tar.TypeReg)
	switch {
	case e.Mode.IsDir():
		want = tar.TypeDir
	case e.Mode&os.ModeSymlink != 0:
		want = tar.TypeSymlink
	}
	if header.Typeflag != want || e.Mode.IsRegular() && header.Size != e.Size {
		return fmt.Errorf("%w about %s: type %q with %d bytes, and %s with %d", errUnlike, printable(e.Path), header.Typeflag, header.Size, e.Mode, e.Size)
	}
	return nil
}

// hasAttributes reports whether an entry has extended attributes or access control lists.
func hasAttributes(header *tar.Header) bool {
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") || strings.HasPrefix(key, "SCHILY.acl.") {
			return true
		}
	}
	return false
}

// damagedOr makes an error that means damage an uploader.ErrDamaged, and returns every other error. An object that the storage does not
// have is damage only if the repository itself can still be opened.
func (u *Uploader) damagedOr(ctx context.Context, w *workspace, current string, err error) error {
	exit, ok := errors.AsType[*ExitError](err)
	switch {
	case errors.Is(err, uploader.ErrSnapshotNotFound):
	case errors.Is(err, errUnlike), ok && exit.cause == nil && exit.Signal == nil && (damage.MatchString(exit.Message) || absent.MatchString(exit.Message)):
		err = fmt.Errorf("%w: %w", uploader.ErrDamaged, err)
	default:
		return err
	}
	if again := u.run(ctx, w, invocation{command: commandCat, args: append([]string{"config"}, lockArgs(w.repository)...)}); again != nil {
		return fmt.Errorf("look at the repository again: %w", errors.Join(again, errors.New(err.Error())))
	}
	if current != "" {
		return fmt.Errorf("%s: %w", current, err)
	}
	return err
}
