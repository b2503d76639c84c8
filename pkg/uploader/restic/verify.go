package restic

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Verify has restic write the snapshot as an archive into a pipe, and compares the archive with restic's list of the
// snapshot. restic itself compares the hash of each piece that it reads with the piece's name, in every version, and ends at
// the first one that is damaged or missing (docs/contracts/restic-kopia.md 11). So Verify names one damaged file, and counts
// those after it as not compared. It uses no cache. VerifyRequest.Parallel has no effect, nor have SamplePart and SampleParts: restic dump
// reads whole snapshots.
func (u *Uploader) Verify(ctx context.Context, req uploader.VerifyRequest, p progress.Sink) (uploader.VerifyResult, error) {
	if err := checkSnapshotID(req.SnapshotID); err != nil {
		return uploader.VerifyResult{}, fmt.Errorf("verify: %w", err)
	}
	var result uploader.VerifyResult
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		w.cacheDir = "" // what it holds proves nothing of the repository
		return u.pastDeadLocks(ctx, w, func() error {
			v := &verification{sink: orDiscard(p)}
			v.reading.TotalBytes = max(req.TotalBytes, 0)
			var err error
			result, err = u.verify(ctx, w, req, v)
			return err
		})
	})
	if err != nil {
		return uploader.VerifyResult{}, fmt.Errorf("verify snapshot %s: %w", req.SnapshotID, err)
	}
	return result, nil
}

// verify lists the snapshot and then reads it.
func (u *Uploader) verify(ctx context.Context, w *workspace, req uploader.VerifyRequest, v *verification) (uploader.VerifyResult, error) {
	v.reading.Stage = progress.StageScanning
	v.sink.Report(v.reading)
	args := listArgs(uploader.RestoreRequest{Repository: req.Repository, SnapshotID: req.SnapshotID})
	if err := u.run(ctx, w, invocation{command: "ls", args: args, stdout: v.list}); err != nil {
		return u.damageOr(ctx, w, v, err)
	}
	switch {
	case v.malformed > 0:
		return uploader.VerifyResult{}, fmt.Errorf("restic ls printed %d lines that cannot be read", v.malformed)
	case !v.found:
		return uploader.VerifyResult{}, fmt.Errorf("%w: %s", uploader.ErrSnapshotNotFound, req.SnapshotID)
	}
	v.begin()
	archive, output := io.Pipe()
	read := make(chan error, 1)
	go func() {
		err := v.readArchive(archive)
		_, _ = io.Copy(io.Discard, archive) // or restic would wait for a reader
		read <- err
	}()
	args = append([]string{"--archive", "tar", req.SnapshotID, "/"}, lockArgs(req.Repository)...)
	err := u.run(ctx, w, invocation{command: "dump", args: args, output: output})
	_ = output.Close() // never fails
	readErr := <-read
	switch {
	case err != nil:
		return u.damageOr(ctx, w, v, err)
	case readErr != nil:
		return uploader.VerifyResult{}, fmt.Errorf("read the archive that restic dump wrote: %w", readErr)
	}
	return v.result(), nil
}

// counted are files and their bytes.
type counted struct {
	files    int64
	withData int64 // files that are not empty
	bytes    int64
}

func (c *counted) add(size int64) {
	c.files++
	c.bytes += size
	if size > 0 {
		c.withData++
	}
}

// verification is the comparison of one snapshot with restic's records of it, in constant memory.
type verification struct {
	sink    progress.Sink
	reading progress.Reading

	found     bool // restic ls has named the snapshot
	malformed int
	listed    counted
	compared  counted
	current   string // the file that is being read; empty: none
}

// list takes one line of restic ls.
func (v *verification) list(line []byte) {
	var node struct {
		Type string  `json:"type"`
		Path *string `json:"path"` // absent: it is the snapshot
		ID   string  `json:"id"`
		Size int64   `json:"size"`
	}
	switch {
	case len(line) == 0:
	case json.Unmarshal(line, &node) != nil || node.Size < 0:
		v.malformed++
	case node.Path == nil:
		v.found = v.found || node.ID != ""
	case node.Type == "file":
		v.listed.add(node.Size)
	}
	v.reading.Steps++
	v.sink.Report(v.reading)
}

// begin reports that the size is known.
func (v *verification) begin() {
	v.reading.Stage, v.reading.TotalBytes, v.reading.TotalFinal = progress.StageTransferring, v.listed.bytes, true
	v.reading.FilesTotal = v.listed.files
	v.sink.Report(v.reading)
}

// Write counts what was read of a file.
func (v *verification) Write(p []byte) (int, error) {
	v.reading.BytesDone = min(v.reading.BytesDone+int64(len(p)), max(v.reading.TotalBytes-1, 0))
	v.sink.Report(v.reading)
	return len(p), nil
}

// readArchive reads restic's archive to its end.
func (v *verification) readArchive(r io.Reader) error {
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		v.current = printable(header.Name)
		v.reading.CurrentItem = v.current
		if _, err := io.CopyBuffer(struct{ io.Writer }{v}, struct{ io.Reader }{archive}, make([]byte, 64<<10)); err != nil {
			return err
		}
		v.compared.add(header.Size)
		v.reading.FilesDone = min(v.compared.files, v.listed.files)
		v.current = ""
	}
}

// result is that of a dump without an error.
func (v *verification) result() uploader.VerifyResult {
	r := uploader.VerifyResult{Files: v.listed.files, Bytes: v.compared.bytes}
	listed, read := v.listed, v.compared
	// restic dump writes FIFOs as empty files, so there may be more of these.
	if read.withData != listed.withData || read.bytes != listed.bytes || read.files < listed.files {
		r.Files, r.Mismatched, r.FailedPaths = read.withData, 1, []string{"."}
		r.LastError = fmt.Sprintf("the snapshot lists %d files with data, %d bytes, and %d empty files; %d with %d bytes and %d empty ones can be read",
			listed.withData, listed.bytes, listed.files-listed.withData, read.withData, read.bytes, read.files-read.withData)
	}
	return r
}

// damage matches what restic 0.14 to 0.19 prints for a damaged repository: the hash of a piece is wrong, or a file's size is
// (archive/tar).
var damage = regexp.MustCompile(`ciphertext verification failed|hash mismatch|invalid hash|wrong hash|invalid data returned|does not match|` +
	`not found in (the )?(repository|index)|id [0-9a-f]+ not found|ReadFull\(.*\): (unexpected )?EOF|unexpected EOF|file (is )?too short|truncated|archive/tar: `)

// damageOr turns an error that means damage into a result, and returns every other error. An object that the storage does not
// have is damage only if the repository itself can still be opened.
func (u *Uploader) damageOr(ctx context.Context, w *workspace, v *verification, err error) (uploader.VerifyResult, error) {
	exit, ok := errors.AsType[*ExitError](err)
	if !ok || exit.cause != nil || exit.Signal != nil || ctx.Err() != nil {
		return uploader.VerifyResult{}, err
	}
	if !damage.MatchString(exit.Message) && !absent.MatchString(exit.Message) {
		return uploader.VerifyResult{}, err
	}
	if !v.found && absent.MatchString(exit.Message) {
		return uploader.VerifyResult{}, fmt.Errorf("%w: %w", uploader.ErrSnapshotNotFound, err)
	}
	if again := u.run(ctx, w, invocation{command: commandCat, args: append([]string{"config"}, lockArgs(w.repository)...)}); again != nil {
		return uploader.VerifyResult{}, fmt.Errorf("look at the repository again: %w", errors.Join(again, err))
	}
	r := uploader.VerifyResult{
		Files: v.compared.files, Bytes: v.compared.bytes, Mismatched: 1,
		NotCompared: max(v.listed.files-v.compared.files-1, 0),
		FailedPaths: []string{"."}, LastError: printable(exit.Message),
	}
	if v.current != "" {
		r.FailedPaths, r.LastError = []string{v.current}, v.current+": "+r.LastError
	}
	return r, nil
}
