package kopiaworker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"golang.org/x/sys/unix"
)

// maxContent bounds the memory of a comparison, in bytes. kopia's splitters make contents of 16 MiB at most; a larger one
// counts as different.
const maxContent = 32 << 20

// comparison compares files in the volume with the snapshot's. It hashes the file piece by piece, as kopia does to name the
// contents that make a file, so it fetches no data.
type comparison struct {
	repository repo.Repository
	hash       func(data []byte) []byte // kopia's, with the repository's key
	same       atomic.Int64             // bytes compared so far in files that do not differ yet
}

func newComparison(r repo.DirectRepository) *comparison {
	hash := r.ContentReader().ContentFormat().HashFunc()
	return &comparison{repository: r, hash: func(data []byte) []byte {
		b := zeroArgument(hash)
		b.Slices = [][]byte{data}
		return hash(nil, b)
	}}
}

// zeroArgument returns a zero value of the type of a hash function's argument, which is in an internal package of kopia.
func zeroArgument[T any](func([]byte, T) []byte) (zero T) { return zero }

// isSame reports whether the file at path has the attributes and the content of e.
func (c *comparison) isSame(ctx context.Context, path string, e kopiafs.File) bool {
	o, ok := e.(object.HasObjectID)
	if !ok {
		return false
	}
	file, err := openUnchanged(path, e)
	if err != nil || file == nil {
		return false
	}
	defer file.Close()
	// The page cache may hold what the disk has lost: after a failed write the kernel takes the pages for clean.
	if unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) != nil {
		return false
	}
	f := comparedFile{comparison: c, File: file}
	if !f.hasObject(ctx, o.ObjectID(), 0, e.Size()) {
		c.same.Add(-f.same)
		return false
	}
	return true
}

// openUnchanged opens the file at path if its attributes are those of e. It returns nil if they are not.
func openUnchanged(path string, e kopiafs.File) (*os.File, error) {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !hasAttributes(info, e) {
		return nil, file.Close()
	}
	return file, nil
}

// hasAttributes reports whether info is of a regular file with the size, time, mode and owner of e, and without another name.
func hasAttributes(info os.FileInfo, e kopiafs.File) bool {
	inode, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && info.Size() == e.Size() && info.ModTime().Equal(e.ModTime()) &&
		(info.Mode()^e.Mode())&kopiafs.ModBits == 0 &&
		inode.Uid == e.Owner().UserID && inode.Gid == e.Owner().GroupID && inode.Nlink == 1
}

// comparedFile is a file in the volume that is being compared.
type comparedFile struct {
	*comparison
	*os.File
	same   int64 // bytes that did not differ
	buffer []byte
}

// hasObject reports whether length bytes from start on are those of an object.
func (f *comparedFile) hasObject(ctx context.Context, id object.ID, start, length int64) bool {
	index, ok := id.IndexObjectID()
	if !ok {
		return ctx.Err() == nil && f.hasContent(id, start, length)
	}
	entries, err := f.entries(ctx, index)
	if err != nil {
		return false
	}
	position := int64(0)
	for _, entry := range entries {
		if entry.Start != position || entry.Length <= 0 || entry.Length > length-position ||
			!f.hasObject(ctx, entry.Object, start+position, entry.Length) {
			return false
		}
		position += entry.Length
	}
	return position == length
}

// hasContent reports whether length bytes from start on are the one content that an object consists of.
func (f *comparedFile) hasContent(id object.ID, start, length int64) bool {
	content, compressed, ok := id.ContentID()
	if !ok || compressed || length > maxContent { // compressed: the name is of the compressed bytes, up to kopia 0.8
		return false
	}
	if int64(cap(f.buffer)) < length {
		f.buffer = make([]byte, length)
	}
	data := f.buffer[:length]
	if _, err := f.ReadAt(data, start); err != nil {
		return false
	}
	if !bytes.Equal(f.hash(data), content.Hash()) {
		return false
	}
	f.same += length
	f.comparison.same.Add(length)
	return true
}

// entries loads the list of the objects that make a larger one.
func (c *comparison) entries(ctx context.Context, index object.ID) ([]object.IndirectObjectEntry, error) {
	reader, err := c.repository.OpenObject(ctx, index)
	if err != nil {
		return nil, fmt.Errorf("read the list of a file's contents: %w", err)
	}
	defer reader.Close()
	var list struct {
		Entries []object.IndirectObjectEntry `json:"entries"`
	}
	if err := json.NewDecoder(reader).Decode(&list); err != nil {
		return nil, fmt.Errorf("read the list of a file's contents: %w", err)
	}
	return list.Entries, nil
}
