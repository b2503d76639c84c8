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
//
// With req.Previous only what has changed is written, each file and directory by a restic of its own: see planReads.
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
	reads := u.planReads(ctx, w, req)
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	x := &export{each: each, listed: make(chan uploader.Entry, listedAhead)}
	x.dump = func(at string, take func(io.Reader) error) error { return u.dumpTo(running, w, req, at, take) }
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
	if err := x.walk(reads); err != nil {
		stop(err)
	}
	<-listed
	switch {
	case ctx.Err() != nil:
		return result, context.Cause(ctx)
	case x.refused != nil && x.unread == nil:
		return result, x.refused
	}
	if first := context.Cause(running); first != nil { // whoever failed first has stopped the others
		return result, u.damagedOr(ctx, w, x.current, first)
	}
	return result, nil
}

// dumpTo has restic write a file, or a directory as an archive, and calls take with it. Both must end well.
func (u *Uploader) dumpTo(ctx context.Context, w *workspace, req uploader.ExportRequest, at string, take func(io.Reader) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	written, output := io.Pipe()
	dumped := make(chan error, 1)
	go func() {
		args := append(lockArgs(req.Repository), "--archive", "tar", req.SnapshotID, "/"+at)
		err := u.run(ctx, w, invocation{command: "dump", args: args, output: output})
		_ = output.CloseWithError(err) // never fails; nil means the end
		dumped <- err
	}()
	err := take(written)
	if err != nil {
		stop(err)
	}
	_ = written.CloseWithError(errEnough) // never fails; what is left is not wanted
	if dumpErr := <-dumped; err == nil {
		err = dumpErr
	}
	return err
}

// export joins the list of a snapshot and what restic writes of it.
type export struct {
	each    func(uploader.Exported) error
	listed  chan uploader.Entry
	ahead   *uploader.Entry // listed, and not taken yet
	dump    func(at string, take func(io.Reader) error) error
	current string // the file that is being read; empty: none
	refused error  // what each returned
	unread  error  // why a file's content could not be read
}

// content is the content of a file that restic writes.
type content struct {
	io.Reader
	export *export
	left   int64 // of the size that the snapshot says
}

// Read notes why it fails: that is not the fault of who reads.
func (c *content) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.left -= int64(n)
	if c.left < 0 || c.left > 0 && errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w about the size of %s", errUnlike, c.export.current)
	}
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

// walk hands all entries on: those at and beneath the paths of reads with what restic writes of them, all others as unchanged.
func (x *export) walk(reads []string) error {
	for {
		if len(reads) > 0 && reads[0] == "" {
			return x.directory("") // all of the volume: nothing comes after it
		}
		e := x.next()
		switch {
		case e == nil && len(reads) > 0:
			return fmt.Errorf("%w: the list has no %s", errUnlike, printable(reads[0]))
		case e == nil:
			return nil
		case len(reads) == 0 || reads[0] != e.Path:
			if err := x.unchanged(e); err != nil {
				return err
			}
			continue
		}
		reads = reads[1:]
		read := x.file
		if e.Mode.IsDir() {
			read = x.directoryWithin
		}
		if err := read(e); err != nil {
			return err
		}
	}
}

// peek returns the next listed entry without taking it; nil: there is none.
func (x *export) peek() *uploader.Entry {
	if x.ahead == nil {
		if e, ok := <-x.listed; ok {
			x.ahead = &e
		}
	}
	return x.ahead
}

func (x *export) next() *uploader.Entry {
	e := x.peek()
	x.ahead = nil
	return e
}

// unchanged hands an entry on that does not have to be read.
func (x *export) unchanged(e *uploader.Entry) error {
	exported := uploader.Exported{Entry: *e, Unchanged: e.Mode.IsRegular() || e.Mode&os.ModeSymlink != 0}
	if e.Mode.IsRegular() && e.Size == 0 {
		exported.Unchanged, exported.Content = false, strings.NewReader("")
	}
	return x.hand(exported)
}

// file hands a file on as restic writes it alone.
func (x *export) file(e *uploader.Entry) error {
	if !e.Mode.IsRegular() {
		return fmt.Errorf("%w about %s: it is %s", errUnlike, printable(e.Path), e.Mode)
	}
	x.current = printable(e.Path)
	err := x.dump(e.Path, func(r io.Reader) error {
		all := &content{r, x, e.Size}
		if err := x.hand(uploader.Exported{Entry: *e, Content: all}); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, all) // up to its end, which says that restic has ended well
		return err
	})
	if err == nil {
		x.current = ""
	}
	return err
}

// directoryWithin hands a directory and what it holds on.
func (x *export) directoryWithin(e *uploader.Entry) error {
	if err := x.hand(uploader.Exported{Entry: *e}); err != nil {
		return err
	}
	return x.directory(e.Path)
}

// directory hands on what a directory holds, as restic writes it; empty: the volume itself.
func (x *export) directory(at string) error {
	return x.dump(at, func(r io.Reader) error { return x.join(r, at) })
}

// join hands on what an archive has of a directory.
func (x *export) join(r io.Reader, dir string) error {
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return x.rest(dir)
		}
		if err != nil {
			return fmt.Errorf("read the archive that restic dump wrote: %w", err)
		}
		if dir != "" && strings.Trim(header.Name, "/") == dir {
			continue // itself, which restic archives or not
		}
		entry, err := x.match(header)
		if err != nil {
			return err
		}
		exported := uploader.Exported{Entry: entry, Attributes: hasAttributes(header)}
		if entry.Mode.IsRegular() {
			exported.Content, x.current = &content{archive, x, entry.Size}, printable(entry.Path)
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
	for e := x.next(); e != nil; e = x.next() {
		if e.Path != asListed(name) {
			if !isSpecial(e.Mode) {
				return *e, fmt.Errorf("%w: the list has %s, the archive %s", errUnlike, printable(e.Path), printable(name))
			}
			if err := x.hand(uploader.Exported{Entry: *e}); err != nil {
				return *e, err
			}
			continue
		}
		e.Path, e.Target = name, header.Linkname
		return *e, matches(e, header)
	}
	return uploader.Entry{}, fmt.Errorf("%w: the list has no %s", errUnlike, printable(name))
}

// rest makes sure that nothing more is listed in a directory but what restic does not archive.
func (x *export) rest(dir string) error {
	for e := x.peek(); e != nil && (dir == "" || strings.HasPrefix(e.Path, dir+"/")); e = x.peek() {
		if !isSpecial(e.Mode) {
			return fmt.Errorf("%w: the archive has no %s", errUnlike, printable(e.Path))
		}
		if err := x.hand(uploader.Exported{Entry: *x.next()}); err != nil {
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
