package kopiaworker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// verify compares a snapshot's files with the repository's records of them.
func (j *job) verify(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	man, err := loadSnapshot(ctx, r, j.Snapshot)
	if err != nil {
		return protocol.Result{}, err
	}
	if man.IncompleteReason != "" {
		return protocol.Result{}, fmt.Errorf("%w: the snapshot is that of an unfinished backup (%s)", uploader.ErrUnsupported, man.IncompleteReason)
	}
	if man.RootEntry == nil {
		return protocol.Result{}, errors.New("open the snapshot: it has no root")
	}
	v := newVerification(r, man, j.TotalBytes)
	v.sample = sample{uint32(j.SamplePart), uint32(j.SampleParts)}
	defer j.reportOnTimer(v.reading)()
	if err := v.run(ctx, man.RootEntry, j.Parallel); err != nil {
		return protocol.Result{}, err
	}
	return v.result(), nil
}

// formatBlob is the first object of every repository.
const formatBlob blob.ID = "kopia.repository"

// verification is the comparison of one snapshot with the repository's records. Damage is counted, and what is still
// there is compared. What the storage fails to deliver proves nothing, and ends it.
type verification struct {
	*comparison

	contents content.Reader
	storage  blob.Reader
	progress *restoreProgress // the snapshot's size
	manifest kopiafs.DirectorySummary
	sample   sample
	packs    packs // of a sample

	read         atomic.Int64 // bytes that are what they should be, those of files that are not complete included
	files, bytes atomic.Int64 // compared
	listedFiles  atomic.Int64
	listedBytes  atomic.Int64
	hidden       atomic.Int64 // entries with the name of another one, of which a restore writes only one
	damaged      atomic.Bool  // a directory: what it held is not known
	problems     atomic.Int64 // mismatched files and directories
	current      atomic.Pointer[string]
	lastError    atomic.Pointer[string]

	mu     sync.Mutex
	failed []string
}

func newVerification(r repo.DirectRepository, man *snapshot.Manifest, expected int64) *verification {
	return &verification{
		comparison: newComparison(r), contents: r.ContentReader(), storage: r.BlobReader(),
		progress: newRestoreProgress(man, expected), manifest: rootSummary(man),
	}
}

// listedFile is a file to be compared.
type listedFile struct {
	path string
	file kopiafs.File
}

// run compares everything below root, parallel files at a time.
func (v *verification) run(ctx context.Context, root *snapshot.DirEntry, parallel int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if v.sample.parts > 0 {
		var err error
		if v.packs, err = listPacks(ctx, v.storage); err != nil {
			return err
		}
	}
	files := make(chan listedFile)
	var readers sync.WaitGroup
	for range max(parallel, 1) {
		readers.Go(func() {
			for f := range files {
				if err := v.file(ctx, f); err != nil {
					cancel(err)
				}
			}
		})
	}
	err := v.entry(ctx, newNode(v.repository, ".", root), files)
	close(files)
	readers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	v.checkTotals()
	return v.checkStorage(ctx)
}

// entry lists what is below a directory, and hands files on. Paths are relative to the snapshot's root.
func (v *verification) entry(ctx context.Context, n node, files chan<- listedFile) error {
	switch entry := n.Entry.(type) {
	case kopiafs.Directory:
		return v.directory(ctx, n, files)
	case kopiafs.File:
		v.listedFiles.Add(1)
		v.listedBytes.Add(entry.Size())
		select {
		case files <- listedFile{n.path, entry}:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case kopiafs.Symlink:
		_, err := entry.Readlink(ctx)
		return v.judge(ctx, n.path, err)
	case kopiafs.ErrorEntry:
		return v.judge(ctx, n.path, entry.ErrorInfo())
	default:
		return v.judge(ctx, n.path, fmt.Errorf("an entry of unknown kind %T", entry))
	}
}

// directory follows all entries, also those that have become one name: kopia counts each of them in the snapshot's totals.
func (v *verification) directory(ctx context.Context, dir node, files chan<- listedFile) error {
	entries, err := readDirectory(ctx, v.repository, dir.stored)
	if err != nil {
		v.damaged.Store(true)
		return v.judge(ctx, dir.path, err)
	}
	for i, stored := range entries {
		if i > 0 && stored.Name == entries[i-1].Name {
			v.hidden.Add(1)
		}
		if err := v.entry(ctx, newNode(v.repository, path.Join(dir.path, stored.Name), stored), files); err != nil {
			return err
		}
	}
	return nil
}

// file compares one file. The error is not the file's.
func (v *verification) file(ctx context.Context, f listedFile) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	v.current.Store(&f.path)
	id, ok := f.file.(object.HasObjectID)
	if !ok {
		return v.judge(ctx, f.path, errors.New("the snapshot does not say where its content is"))
	}
	if err := v.object(ctx, id.ObjectID(), f.file.Size()); err != nil {
		return v.judge(ctx, f.path, err)
	}
	v.files.Add(1)
	v.bytes.Add(f.file.Size())
	return nil
}

// errSize comes when pieces do not add up.
var errSize = errors.New("its content has another size than the snapshot says")

// object compares length bytes, of which an object must consist.
func (v *verification) object(ctx context.Context, id object.ID, length int64) error {
	index, ok := id.IndexObjectID()
	if !ok {
		return v.content(ctx, id, length)
	}
	entries, err := v.entries(ctx, index)
	if err != nil {
		return err
	}
	position := int64(0)
	for _, entry := range entries {
		if entry.Start != position || entry.Length <= 0 || entry.Length > length-position {
			return errSize
		}
		if err := v.object(ctx, entry.Object, entry.Length); err != nil {
			return err
		}
		position += entry.Length
	}
	if position != length {
		return errSize
	}
	return nil
}

// sample is the part of the content to read, counted from 1; of 0 parts: all of it.
type sample struct{ part, parts uint32 }

// has reports whether a content is in the part. Its name is a hash, so each part has about as much, also of one large file.
func (s sample) has(name content.ID) bool {
	return s.parts == 0 || binary.BigEndian.Uint32(name.Hash())%s.parts+1 == s.part
}

// content reads the one content that an object consists of, and compares its hash with its name. What is not in the sample is only looked for.
func (v *verification) content(ctx context.Context, id object.ID, length int64) error {
	name, compressed, ok := id.ContentID()
	if !ok {
		return errors.New("the snapshot names its content in an unknown way")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !v.sample.has(name) {
		return v.listed(ctx, name, length, compressed)
	}
	data, err := v.contents.GetContent(ctx, name)
	if err != nil {
		return err
	}
	if !bytes.Equal(v.hash(data), name.Hash()) {
		return errors.New("its content has another hash than the repository's records say")
	}
	size := int64(len(data))
	if compressed { // up to kopia 0.8: the name is of the compressed bytes
		if size, err = v.unpackedSize(ctx, id); err != nil {
			return err
		}
	}
	if size != length {
		return errSize
	}
	v.read.Add(size)
	return nil
}

// listed compares what the index says of a content, and whether its pack is there.
func (v *verification) listed(ctx context.Context, name content.ID, length int64, compressed bool) error {
	info, err := v.contents.ContentInfo(ctx, name)
	if err != nil {
		return err
	}
	if !compressed && int64(info.OriginalLength) != length {
		return errSize
	}
	size, known := v.packs[info.PackBlobID]
	if !known { // maintenance may have made it since
		pack, err := v.storage.GetMetadata(ctx, info.PackBlobID)
		if err != nil {
			return fmt.Errorf("look for pack %s: %w", info.PackBlobID, err)
		}
		size = pack.Length
	}
	if int64(info.PackOffset)+int64(info.PackedLength) > size {
		return fmt.Errorf("pack %s is cut off after %d bytes", info.PackBlobID, size)
	}
	return nil
}

func (v *verification) unpackedSize(ctx context.Context, id object.ID) (int64, error) {
	reader, err := v.repository.OpenObject(ctx, id)
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	return reader.Length(), nil
}

// judge counts damage at a path. It returns the errors that are no damage: of the storage, and of ctx.
func (v *verification) judge(ctx context.Context, at string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if failed, ok := errors.AsType[*storageError](err); ok && !isLost(failed) {
		return fmt.Errorf("read %s: %w", protocol.Printable(at), err)
	}
	v.mismatch(at, err.Error())
	return nil
}

// isLost reports whether the storage answered that it does not have an object, or not all of it. A directory says the latter
// with an error that has no name (kopia 0.23, filesystem_storage.go, GetBlobFromPath).
func isLost(err *storageError) bool {
	return errors.Is(err, blob.ErrBlobNotFound) || errors.Is(err, blob.ErrInvalidRange) || strings.HasSuffix(err.Error(), "invalid length")
}

func (v *verification) mismatch(at, why string) {
	v.problems.Add(1)
	text := protocol.Printable(at + ": " + why)
	v.lastError.Store(&text)
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.failed) < protocol.MaxFailedPaths {
		v.failed = append(v.failed, protocol.Printable(at))
	}
}

// checkTotals compares the directories with what the snapshot itself says of them. Files that a directory has lost have no
// entry that could be missed.
func (v *verification) checkTotals() {
	files, size := v.listedFiles.Load(), v.listedBytes.Load()
	if !v.progress.known || v.damaged.Load() || files == v.manifest.TotalFileCount && size == v.manifest.TotalFileSize {
		return
	}
	v.mismatch(".", fmt.Sprintf("the snapshot has %d files with %d bytes, its directories list %d with %d",
		v.manifest.TotalFileCount, v.manifest.TotalFileSize, files, size))
}

// checkStorage makes sure that what was missing is, and not the storage as a whole: a directory that is not mounted any more
// has no object either.
func (v *verification) checkStorage(ctx context.Context) error {
	if v.problems.Load() == 0 {
		return nil
	}
	if _, err := v.storage.GetMetadata(ctx, formatBlob); err != nil {
		return fmt.Errorf("look at the repository again: %w", err)
	}
	return nil
}

// result is what a complete verification has found.
func (v *verification) result() protocol.Result {
	r := protocol.Result{
		Sampled: v.sample.parts > 0, TotalFiles: v.files.Load(), TotalBytes: v.bytes.Load(), Errors: v.problems.Load(), FailedPaths: v.failed, LastError: load(&v.lastError),
		Absent: max(int64(v.manifest.FatalErrorCount)+int64(v.manifest.IgnoredErrorCount), 0), SameNames: v.hidden.Load(),
	}
	if v.damaged.Load() {
		r.NotCompared = max(v.manifest.TotalFileCount-v.listedFiles.Load(), 0)
	}
	if r.Sampled {
		r.TotalBytes = v.read.Load()
	}
	return r
}

// reading is what is known now. The last byte is done only when the verification has ended well.
func (v *verification) reading() progress.Reading {
	r := progress.Reading{
		Stage: progress.StageTransferring, TotalFinal: v.progress.known,
		BytesDone: v.read.Load(), TotalBytes: v.progress.total, Errors: v.problems.Load(), LastError: load(&v.lastError),
		FilesDone: v.files.Load(), FilesTotal: v.progress.files, CurrentItem: protocol.Printable(load(&v.current)),
	}
	if v.sample.parts > 0 { // a guess: equal pieces are all in one part
		r.TotalFinal, r.TotalBytes = false, max(r.TotalBytes/int64(v.sample.parts), r.BytesDone+1)
	}
	if r.TotalBytes > 0 {
		r.BytesDone = min(r.BytesDone, r.TotalBytes-1)
	}
	return r
}
