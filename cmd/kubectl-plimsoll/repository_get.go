package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

type repositoryGet struct {
	fileSource
	path      string
	dest      string
	overwrite bool

	out, errOut io.Writer
}

// toStdout is the --output that is no file.
const toStdout = "-"

func repositoryGetCommand(c *connection) *cobra.Command {
	var (
		o    repositoryGet
		spec v1alpha1.FileRequestSpec
	)
	cmd := &cobra.Command{
		Use:   "get --backup NAME --volume NAMESPACE/POD:VOLUME [PATH]",
		Short: "Get a file or directory out of the backup of a volume",
		Long: `Get PATH, relative to the volume, or the whole volume, out of a backup. A worker in the cluster reads the repository; no credential
leaves the cluster. The SHA-256 of all content is compared at the end.

What was cut off stays as FILE.ID.part or DIRECTORY.ID.unpacking, and the same command goes on with it. A directory is unpacked without owners, devices
and links that lead out of it; with -o - it comes as a tar archive, with all that the backup has of it. Nothing that exists is
replaced without --overwrite, and directories never are.

What takes longer than a few seconds shows how far it is on standard error, a line each ten seconds.

The exit code is 3 if a directory is there but for some entries, which are counted.`,
		Example: `  kubectl plimsoll repository get --backup nightly --volume shop/db-0:data dumps/monday.sql
  kubectl plimsoll repository get --backup nightly --volume shop/db-0:data dumps -o /tmp/dumps
  kubectl plimsoll repository get --backup nightly --volume shop/db-0:data dumps -o - | tar tv`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			if o.path, err = pathArgument(args); err != nil {
				return err
			}
			if o.dest == "" {
				return program.Misused(errors.New("--output is empty"))
			}
			spec, err = o.spec()
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out, o.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return withFiles(cmd.Context(), c, &spec, cmd.ErrOrStderr(), func(s *fileSession) error { return o.run(cmd.Context(), s) })
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.dest, "output", "o", ".", "the file or directory to write, an existing directory to write it into, or - for standard output")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace a file that exists")
	return cmd
}

func (o *repositoryGet) run(ctx context.Context, s *fileSession) (err error) {
	v, err := s.volume(ctx)
	if err != nil {
		return err
	}
	query := protocol.Query{PodVolumeBackup: v.PodVolumeBackup, Path: o.path}
	if o.dest == toStdout {
		return o.toStdout(ctx, s, &v, query)
	}
	target, err := o.target(&v)
	if err != nil {
		return err
	}
	// The id makes the name ours: no file of somebody else's has it, and no part of another backup's file.
	sum := sha256.Sum256([]byte(v.UID + "\x00" + v.SnapshotID + "\x00" + protocol.Clean(o.path)))
	d := &download{target: target, part: fmt.Sprintf("%s.%x.part", target, sum[:4]), overwrite: o.overwrite}
	defer func() { err = errors.Join(err, d.putBack()) }()
	if query.Offset, err = d.resumeAt(); err != nil {
		return err
	}
	answer, err := s.ask(ctx, protocol.Content, query)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	shownFrom := query.Offset
	if d.from != nil && answer.Header.Get(protocol.HeaderOffset) == "" {
		shownFrom = 0
	}
	defer answer.showProgress(o.errOut, cmp.Or(protocol.Clean(o.path), v.Volume), shownFrom)()
	switch answer.Header.Get(protocol.HeaderType) {
	case protocol.TypeFile:
		err = d.file(answer, query.Offset)
	case protocol.TypeDirectory:
		err = d.directory(answer, protocol.Clean(o.path), o.errOut)
	default:
		err = answer.endWithoutContent()
	}
	if err != nil {
		return explainPath(err, o.path)
	}
	fmt.Fprintf(o.out, "%s: %s, checksum verified\n", describe.Clean(target), describe.Bytes(d.bytes))
	return d.refused()
}

// toStdout writes the content to standard output, and how far it is to standard error.
func (o *repositoryGet) toStdout(ctx context.Context, s *fileSession, v *protocol.Volume, query protocol.Query) error {
	stop := func() {}
	err := s.content(ctx, query, func(answer *fileAnswer, _ string, _ int64) io.Writer {
		stop = answer.showProgress(o.errOut, cmp.Or(protocol.Clean(o.path), v.Volume), 0)
		return o.out
	})
	stop()
	return err
}

// target returns what is to be written, which does not exist unless it may be replaced.
func (o *repositoryGet) target(v *protocol.Volume) (string, error) {
	target := o.dest
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		name := path.Base(protocol.Clean(o.path))
		if protocol.Clean(o.path) == "" {
			name = v.Volume
		}
		if !filepath.IsLocal(name) || name != filepath.Base(name) || !keepsName(runtime.GOOS, name) {
			return "", fmt.Errorf("no file of this machine can be named %q: choose a name with -o", name)
		}
		target = filepath.Join(target, name)
	}
	info, err := os.Lstat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return target, nil
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s exists, and only a file can be replaced: choose another name with -o", target)
	case !o.overwrite:
		return "", fmt.Errorf("%s exists: --overwrite replaces it, -o chooses another name", target)
	}
	return target, nil
}

// errChecksum says that bytes were changed on their way.
var errChecksum = errors.New("the checksum differs from what the server has read: the content was changed on its way")

// endWith is end for content with this SHA-256.
func (a *fileAnswer) endWith(sum []byte) error {
	end, err := a.end()
	if err == nil && end.SHA256 != hex.EncodeToString(sum) {
		err = errChecksum
	}
	return err
}

// endWithoutContent returns why the server sends neither a file nor a directory.
func (a *fileAnswer) endWithoutContent() error {
	if _, err := a.end(); err != nil {
		return err
	}
	return errors.New("the server sends neither a file nor a directory: it is of another version")
}

// download is content that is written to this machine.
type download struct {
	target    string
	part      string // a file of ours, with what has come of the target
	overwrite bool
	bytes     int64
	unpacked  *unpacking  // of a directory
	from      *checkpoint // where to go on with a directory; nil: at its begin
	root      *os.Root    // the directory that is unpacked into
	taken     bool        // the checkpoint was taken over, and is not used up
}

// resumeAt returns how much of the file is there already, or of the directory's archive.
func (d *download) resumeAt() (int64, error) {
	info, err := os.Lstat(d.part)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.resumeDirectoryAt()
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is not a file that this command has left: remove it, or choose another name with -o", d.part)
	case !onlyOurs(info):
		return 0, fmt.Errorf("%s: %w", d.part, errNotOurs)
	}
	return info.Size(), nil
}

// openPart makes the part, or opens the one that an earlier command has left. In a directory that others can write to, somebody may have made a file or
// a link of its name.
func (d *download) openPart() (*os.File, error) {
	part, err := os.OpenFile(d.part, os.O_RDWR|os.O_CREATE|os.O_EXCL|noFollow, 0o600)
	if !errors.Is(err, fs.ErrExist) {
		return part, err
	}
	if part, err = os.OpenFile(d.part, os.O_RDWR|noFollow, 0); err != nil {
		return nil, err
	}
	info, err := part.Stat()
	if err == nil {
		err = checkOurs(d.part, info)
	}
	if err != nil {
		return nil, errors.Join(err, part.Close())
	}
	return part, nil
}

// file writes a file's content from offset on, and makes it the target when all of it is right.
func (d *download) file(answer *fileAnswer, offset int64) (err error) {
	size, err := strconv.ParseInt(answer.Header.Get(protocol.HeaderSize), 10, 64)
	if err != nil {
		return fmt.Errorf("read the size: %w", err)
	}
	part, err := d.openPart()
	if err != nil {
		return err
	}
	defer part.Close()
	hash := sha256.New()
	if _, err := io.CopyN(hash, part, offset); err != nil {
		return fmt.Errorf("read %s: %w", d.part, err)
	}
	n, err := io.Copy(io.MultiWriter(part, hash), answer)
	if err != nil {
		return fmt.Errorf("%s has %s of %s: %w", d.part, describe.Bytes(offset+n), describe.Bytes(size), errors.Join(err, part.Close()))
	}
	err = answer.endWith(hash.Sum(nil))
	if info, statErr := part.Stat(); err == nil && statErr != nil {
		err = statErr
	} else if err == nil && (offset+n != size || info.Size() != size) { // two commands may write to one part
		err = errChecksum
	}
	if errors.Is(err, errChecksum) {
		return fmt.Errorf("%w; run the command again, which begins anew: %w", err, errors.Join(part.Close(), os.Remove(d.part)))
	}
	if err := errors.Join(err, part.Sync(), part.Close()); err != nil {
		return err
	}
	d.bytes = size
	if !d.overwrite {
		return d.rename(d.part)
	}
	return os.Rename(d.part, d.target)
}

// rename makes what was written the target, unless somebody has made one meanwhile.
func (d *download) rename(from string) error {
	if _, err := os.Lstat(d.target); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s was created meanwhile and is left as it is; what was got is in %s", d.target, from), err)
	}
	return os.Rename(from, d.target)
}

// directory unpacks an archive into a directory of its own, and makes that the target when all of it has come. If the answer ends before, it
// keeps what is there for the next command.
func (d *download) directory(answer *fileAnswer, prefix string, errOut io.Writer) error {
	if _, err := os.Lstat(d.target); err == nil {
		return fmt.Errorf("%s exists, and a directory replaces nothing: choose another name with -o", d.target)
	}
	if err := d.makeUnpacking(answer); err != nil {
		return err
	}
	d.unpacked = &unpacking{root: d.root, prefix: prefix, report: func(name string, why error) {
		fmt.Fprintf(errOut, "not written: %s: %s\n", describe.Clean(name), text.Line(why.Error(), noteLimit))
	}}
	var last checkpoint
	if d.from != nil {
		last = *d.from
	}
	err := d.unpackFrom(answer, &last)
	if releaseErr := d.release(); releaseErr != nil {
		return errors.Join(err, releaseErr)
	}
	if err != nil {
		return d.keepOrRemove(answer, &last, err)
	}
	d.bytes = d.unpacked.bytes
	_ = os.Remove(d.resuming()) // the reserve, which may not be there
	if err := d.rename(d.unpacking()); err != nil {
		return errors.Join(errKept, err)
	}
	return nil
}

// The names of a directory that is being unpacked, of its checkpoint, and of one that a command has taken over. The part's name makes them ours.
func (d *download) unpacking() string  { return strings.TrimSuffix(d.part, "part") + "unpacking" }
func (d *download) checkpoint() string { return strings.TrimSuffix(d.part, "part") + "resume" }
func (d *download) resuming() string   { return strings.TrimSuffix(d.part, "part") + "resuming" }

// makeUnpacking makes the directory for what is unpacked, or goes on with the one of the checkpoint, which is used up by that.
func (d *download) makeUnpacking(answer *fileAnswer) error {
	dir := d.unpacking()
	if d.from != nil {
		d.taken = false // what is unpacked from now on is not in it; it stays as the reserve
		if answer.Header.Get(protocol.HeaderOffset) == strconv.FormatInt(d.from.Offset, 10) {
			return nil
		}
		d.from = nil // a server of an earlier version, which sends all of it
		if err := errors.Join(d.root.Close(), os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory for what is unpacked (remove it if an earlier command was killed, and none is running): %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	d.root = root
	_ = writeAnew(d.resuming(), make([]byte, reserve)) // if the disk is full already, nothing will be there to be kept
	return nil
}

// unpackFrom unpacks an answer, and compares its checksum. last is how far it has come.
func (d *download) unpackFrom(answer *fileAnswer, last *checkpoint) error {
	content, err := newArchiveReader(answer, d.from)
	if err != nil {
		return err
	}
	if d.from != nil {
		d.unpacked.goOnFrom(d.from)
		err = content.skipPadding()
	}
	if err == nil {
		err = d.unpacked.archive(content, func() { *last = d.unpacked.checkpoint(content) })
	}
	if diskFailed(err) {
		return err // the rest may be long
	}
	if _, drainErr := io.Copy(io.Discard, content); err == nil {
		err = drainErr
	}
	if err != nil {
		// Where the server has ended the archive it says why.
		if _, why := answer.end(); why != nil {
			return why
		}
		return err
	}
	return answer.endWith(content.hash.Sum(nil))
}

// keepOrRemove keeps what is unpacked if the rest may come another time: the connection has ended, the server could not read on, the command was
// interrupted, or the disk is full. Otherwise it removes it.
func (d *download) keepOrRemove(answer *fileAnswer, last *checkpoint, err error) error {
	info, statErr := os.Lstat(d.unpacking())
	// A file system without owners or permissions cannot show the next command that only this user has written there.
	keep := last.Hash != nil && statErr == nil && onlyOurs(info)
	_, notRead := errors.AsType[*answerError](err)
	if keep && (errors.Is(err, errSessionLost) || notRead || answer.ctx.Err() != nil || diskFailed(err)) {
		last.Tally = d.unpacked.tally // with the directories above an entry that was cut off
		writeErr := last.write(d.checkpoint(), d.resuming())
		if writeErr == nil {
			return fmt.Errorf("%s has %s of it, and the same command goes on there: %w", d.unpacking(), text.Count(last.Tally.Entries, "entry", "entries"), err)
		}
		err = errors.Join(err, writeErr)
	}
	_ = os.Remove(d.resuming()) // the reserve, which may not be there
	return errors.Join(err, os.RemoveAll(d.unpacking()))
}

// diskFailed reports whether the error is of this machine's disk, such as that it is full, and not of what was to be written there.
func diskFailed(err error) bool {
	return errors.Is(err, errWrite) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EROFS)
}

// errKept says that what was unpacked is complete, and stays.
var errKept = errors.New("the directory is complete under another name")

// refused returns an error if a directory lacks entries of the backup.
func (d *download) refused() error {
	if d.unpacked == nil || d.unpacked.refused == 0 {
		return nil
	}
	return &program.ExitError{Code: exitFailed, Err: fmt.Errorf("%s of the backup could not be written to %s, such as %s; '-o -' gives an archive with all of them",
		text.Count(d.unpacked.refused, "entry", "entries"), d.target, d.unpacked.example)}
}
