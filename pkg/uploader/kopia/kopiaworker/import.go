package kopiaworker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync/atomic"
	"time"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// originTag is the tag of a snapshot that names the snapshot of another data path which it was made of. A snapshot has it only if every
// entry was compared.
const originTag = "plimsoll-origin"

// importSnapshot stores what comes on stdin, reads it back, and only if all of it is there saves the snapshot. Until then nothing in the
// repository refers to what was stored. kopia's maintenance lets such contents be for a day, so the next try finds them. What is older
// when that try finds it may go before the snapshot is saved: so all of it is looked up once more right before that.
func (j *job) importSnapshot(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	p := &importProgress{job: j}
	defer j.reportOnTimer(p.reading)()
	source := snapshot.SourceInfo{UserName: identity, Host: identity, Path: j.Source}
	i := &importer{job: j, progress: p}
	err = repo.WriteSession(ctx, r, repo.WriteSessionOptions{Purpose: description}, func(ctx context.Context, w repo.RepositoryWriter) error {
		return i.store(ctx, w, source)
	})
	if err != nil {
		return protocol.Result{}, err
	}
	c := &importComparison{importer: i, repository: r}
	if err := c.run(ctx); err != nil {
		return protocol.Result{}, err
	}
	result := protocol.Result{
		TotalBytes: c.bytes, TotalFiles: c.files, Errors: c.mismatched, FailedPaths: c.failed, LastError: c.lastError,
		Special: i.special, Attributes: i.end.Attributes, Reused: c.reused, ReusedBytes: c.reusedBytes,
	}
	if c.mismatched > 0 {
		return result, nil
	}
	if err := c.confirm(ctx); err != nil {
		return protocol.Result{}, err
	}
	err = repo.WriteSession(ctx, r, repo.WriteSessionOptions{Purpose: description}, func(ctx context.Context, w repo.RepositoryWriter) error {
		id, err := snapshot.SaveSnapshot(ctx, w, i.manifest(source))
		result.SnapshotID = string(id)
		return err
	})
	if err != nil {
		return protocol.Result{}, fmt.Errorf("save the snapshot: %w", err)
	}
	result.BytesUploaded = j.meter.uploaded.Load()
	return result, nil
}

// importer stores the entries that come on stdin.
type importer struct {
	job      *job
	progress *importProgress

	writer  repo.RepositoryWriter
	tree    *treeWriter
	root    *snapshot.DirEntry
	earlier *earlierTree  // nil: there is no earlier snapshot that entries could be taken from
	prints  []storedPrint // of the entries, in their order
	special int64
	end     protocol.End
	flushed time.Time
}

// errShort comes when stdin ends before the last frame.
var errShort = errors.New("the source ended before all of the snapshot had come")

// store reads frames until the last one.
func (i *importer) store(ctx context.Context, w repo.RepositoryWriter, source snapshot.SourceInfo) error {
	policies, err := setPolicy(ctx, w, source, i.job.Parallel)
	if err != nil {
		return err
	}
	if i.job.Previous != "" {
		if i.earlier, err = newEarlierTree(ctx, w, i.job.Previous, i.job.PreviousOrigin); err != nil {
			return err
		}
	}
	i.writer, i.flushed = w, time.Now()
	i.tree = newTreeWriter(w, policies.EffectivePolicy().MetadataCompressionPolicy.MetadataCompressor())
	for {
		frame, err := i.next(ctx)
		switch {
		case err != nil:
			return err
		case frame.End != nil:
			i.end = *frame.End
			i.root, err = i.tree.finish(ctx, i.end.Time)
			return err
		case frame.Entry == nil:
			return errors.New("data came that belongs to no file")
		}
		if err := i.entry(ctx, frame.Entry, frame.Unchanged); err != nil {
			return fmt.Errorf("%s: %w", protocol.Printable(string(frame.Entry.Path)), err)
		}
	}
}

// next reads one frame.
func (i *importer) next(ctx context.Context) (protocol.Frame, error) {
	var frame protocol.Frame
	err := i.job.in.Decode(&frame)
	switch {
	case ctx.Err() != nil:
		return frame, context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return frame, errShort
	}
	return frame, err
}

// entry stores one entry.
func (i *importer) entry(ctx context.Context, e *protocol.Entry, unchanged bool) error {
	if !isStored(e.Mode) {
		i.special++
		return nil
	}
	stored, err := newStoredEntry(e)
	if err != nil {
		return err
	}
	if err := i.tree.leave(ctx, parentOf(string(e.Path))); err != nil {
		return err
	}
	if err := i.tree.checkOrder(stored.Name); err != nil {
		return err
	}
	var hash []byte
	switch {
	case unchanged:
		return i.reuse(ctx, stored, string(e.Path))
	case stored.Type == snapshot.EntryTypeDirectory:
		i.tree.enter(string(e.Path), stored)
	case stored.Type == snapshot.EntryTypeSymlink:
		if err := i.tree.symlink(ctx, stored, e.Target); err != nil {
			return err
		}
	default:
		if hash, err = i.file(ctx, stored, e); err != nil {
			return err
		}
	}
	i.prints = append(i.prints, storedPrint{fingerprint: fingerprintOf(string(e.Path), stored, string(e.Target), hash)})
	return nil
}

// reuse stores an entry with the content of the earlier snapshot. All else of it is what came.
func (i *importer) reuse(ctx context.Context, stored *snapshot.DirEntry, at string) error {
	if i.earlier == nil {
		return errors.New("an entry came without its content")
	}
	before, err := i.earlier.find(ctx, at)
	if err != nil {
		return fmt.Errorf("look it up in the earlier snapshot: %w", err)
	}
	if before.Type != stored.Type || stored.Type == snapshot.EntryTypeFile && before.FileSize != stored.FileSize {
		return fmt.Errorf("it is said to be unchanged, and is of type %s with %d bytes, in the earlier snapshot of type %s with %d", stored.Type, stored.FileSize, before.Type, before.FileSize)
	}
	stored.ObjectID, stored.FileSize = before.ObjectID, before.FileSize
	i.tree.add(stored)
	if stored.Type == snapshot.EntryTypeFile {
		i.progress.files.Add(1)
		i.progress.copied.Add(stored.FileSize)
	}
	i.prints = append(i.prints, storedPrint{reused: true, fingerprint: reusedPrint(at, stored)})
	return nil
}

// file stores the content of a file, and returns its hash.
func (i *importer) file(ctx context.Context, stored *snapshot.DirEntry, e *protocol.Entry) ([]byte, error) {
	path := protocol.Printable(string(e.Path))
	i.progress.current.Store(&path)
	writer := i.tree.fileWriter(ctx, stored.Name)
	defer writer.Close()
	sum := newContentHash()
	for left := e.Size; left > 0; {
		frame, err := i.next(ctx)
		switch {
		case err != nil:
			return nil, err
		case len(frame.Data) == 0, int64(len(frame.Data)) > left:
			return nil, errSize
		}
		if _, err := writer.Write(frame.Data); err != nil {
			return nil, err
		}
		sum.Write(frame.Data)
		left -= int64(len(frame.Data))
		i.progress.copied.Add(int64(len(frame.Data)))
		if err := i.flush(ctx); err != nil {
			return nil, err
		}
	}
	id, err := writer.Result()
	if err != nil {
		return nil, err
	}
	stored.ObjectID = id
	i.tree.add(stored)
	i.progress.files.Add(1)
	return sum.Sum(nil), nil
}

// flush makes what was stored so far findable for the next try, now and then.
func (i *importer) flush(ctx context.Context) error {
	if time.Since(i.flushed) < i.job.CheckpointInterval {
		return nil
	}
	i.flushed = time.Now()
	return i.writer.Flush(ctx)
}

// manifest is what Velero's uploader writes, with the time of the original.
func (i *importer) manifest(source snapshot.SourceInfo) *snapshot.Manifest {
	tags := map[string]string{}
	maps.Copy(tags, i.job.Tags)
	tags[originTag] = i.job.Origin
	summary := i.root.DirSummary
	at := kopiafs.UTCTimestampFromTime(i.end.Time)
	return &snapshot.Manifest{
		Source: source, Description: description, StartTime: at, EndTime: at, RootEntry: i.root, Tags: tags, Pins: []string{pin},
		Stats: snapshot.Stats{
			TotalFileCount: int32(min(summary.TotalFileCount, 1<<31-1)), TotalFileSize: summary.TotalFileSize,
			TotalDirectoryCount: int32(min(summary.TotalDirCount, 1<<31-1)),
		},
	}
}

// importProgress counts. A byte is done when it was stored and compared: each counts half.
type importProgress struct {
	job              *job
	copied, compared atomic.Int64
	files            atomic.Int64
	current          atomic.Pointer[string]
}

func (p *importProgress) reading() progress.Reading {
	total := max(p.job.TotalBytes, p.copied.Load())
	done := (p.copied.Load() + p.compared.Load()) / 2
	if total > 0 {
		done = min(done, total-1)
	}
	return progress.Reading{
		Stage: progress.StageTransferring, BytesDone: done, TotalBytes: total, TotalFinal: p.job.TotalBytes > 0,
		BytesUploaded: p.job.meter.uploaded.Load(), FilesDone: p.files.Load(), CurrentItem: load(&p.current),
	}
}

// imported sends the snapshots that imports have made.
func (j *job) imported(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	var sent int64
	err = eachSnapshot(ctx, r, func(man *snapshot.Manifest) {
		if origin := man.Tags[originTag]; origin != "" && man.IncompleteReason == "" {
			sent++
			j.say(protocol.Message{Snapshot: &protocol.Snapshot{ID: string(man.ID), Time: man.StartTime.ToTime(), Origin: origin}})
		}
	})
	return protocol.Result{TotalFiles: sent}, err
}

// importComparison compares what can be read out of the repository with what came on stdin.
type importComparison struct {
	*importer

	repository repo.Repository
	at         int // in prints
	files      int64
	bytes      int64
	mismatched int64

	reused, reusedBytes int64
	failed              []string
	lastError           string
}

func (c *importComparison) run(ctx context.Context) error {
	err := walk(ctx, c.repository, newNode(c.repository, "", c.root), func(n node) (bool, error) {
		if n.path == "" {
			return true, nil
		}
		return true, c.entry(ctx, n)
	})
	if err != nil {
		return fmt.Errorf("read back what was stored: %w", err)
	}
	if c.at != len(c.prints) {
		c.mismatch(".", fmt.Errorf("%d entries were stored, and %d can be read", len(c.prints), c.at))
	}
	return nil
}

func (c *importComparison) entry(ctx context.Context, n node) error {
	file, isFile := n.Entry.(kopiafs.File)
	reused := c.at < len(c.prints) && c.prints[c.at].reused
	var found fingerprint
	var err error
	if reused {
		found, err = c.lookUp(ctx, n)
	} else {
		found, err = c.read(ctx, n)
	}
	if err != nil {
		return err
	}
	switch {
	case c.at >= len(c.prints) || c.prints[c.at].fingerprint != found:
		c.mismatch(n.path, errors.New("what was read back is not what came from the other repository"))
	case isFile:
		c.files, c.bytes = c.files+1, c.bytes+file.Size()
		if reused {
			c.reused, c.reusedBytes = c.reused+1, c.reusedBytes+file.Size()
		}
	}
	c.at++
	return nil
}

// read reads an entry with its content.
func (c *importComparison) read(ctx context.Context, n node) (fingerprint, error) {
	target, err := linkTarget(ctx, n)
	if err != nil {
		return fingerprint{}, err
	}
	var hash []byte
	if file, isFile := n.Entry.(kopiafs.File); isFile {
		path := protocol.Printable(n.path)
		c.progress.current.Store(&path)
		sum := newContentHash()
		if err := copyFile(ctx, io.MultiWriter(sum, countWriter{&c.progress.compared}), file, 0); err != nil {
			return fingerprint{}, fmt.Errorf("%s: %w", path, err)
		}
		hash = sum.Sum(nil)
	}
	return fingerprintOf(n.path, n.stored, target, hash), nil
}

// lookUp makes sure that the repository's records have all pieces of an entry that has its content from the earlier snapshot, which were
// read and compared when that was stored.
func (c *importComparison) lookUp(ctx context.Context, n node) (fingerprint, error) {
	if err := c.hasContent(ctx, n); err != nil {
		return fingerprint{}, err
	}
	c.progress.compared.Add(size(n))
	return reusedPrint(n.path, n.stored), nil
}

// hasContent is an error if the repository's records lack a piece of an entry, or have one that a maintenance has marked as deleted: it may
// be gone tomorrow.
func (c *importComparison) hasContent(ctx context.Context, n node) error {
	pieces, err := c.repository.VerifyObject(ctx, n.stored.ObjectID)
	for _, id := range pieces {
		piece, infoErr := c.repository.ContentInfo(ctx, id)
		if infoErr == nil && piece.Deleted {
			infoErr = fmt.Errorf("content %v is marked as deleted", id)
		}
		err = errors.Join(err, infoErr)
	}
	if err != nil {
		return fmt.Errorf("look the content of %s up: %w", protocol.Printable(cmp.Or(n.path, ".")), err)
	}
	return nil
}

// confirm looks all of the tree up in the records as they are now. A piece that the repository had before, such as from a try that was
// killed, was not written again, and the maintenance of another client may have removed it since. The next try writes it again.
func (c *importComparison) confirm(ctx context.Context) error {
	if err := c.repository.Refresh(ctx); err != nil {
		return fmt.Errorf("read the repository's records again: %w", err)
	}
	return walk(ctx, c.repository, newNode(c.repository, "", c.root), func(n node) (bool, error) { return true, c.hasContent(ctx, n) })
}

func (c *importComparison) mismatch(path string, err error) {
	c.mismatched++
	c.lastError = protocol.Printable(path + ": " + err.Error())
	if len(c.failed) < protocol.MaxFailedPaths {
		c.failed = append(c.failed, protocol.Printable(path))
	}
}

// countWriter counts bytes.
type countWriter struct{ n *atomic.Int64 }

func (w countWriter) Write(p []byte) (int, error) {
	w.n.Add(int64(len(p)))
	return len(p), nil
}
