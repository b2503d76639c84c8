package kopiaworker

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"os"
	"path"
	"time"
	"unicode/utf8"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// treeWriter writes the directories of a snapshot whose entries come in the order of a walk: those that are open are in memory.
type treeWriter struct {
	writer   repo.RepositoryWriter
	metadata compression.Name
	open     []*openDirectory // the root first
	top      topEntries
}

// openDirectory is a directory of which more may come.
type openDirectory struct {
	path  string // empty: the root
	entry *snapshot.DirEntry
	built snapshotfs.DirManifestBuilder
	last  string // the name of the last entry
}

func newTreeWriter(w repo.RepositoryWriter, metadata compression.Name) *treeWriter {
	return &treeWriter{writer: w, metadata: metadata, open: []*openDirectory{{entry: &snapshot.DirEntry{Type: snapshot.EntryTypeDirectory}}}}
}

func (t *treeWriter) current() *openDirectory { return t.open[len(t.open)-1] }

// errOrder comes when entries do not come as a walk finds them.
var errOrder = errors.New("the entries of the snapshot do not come in their order")

// leave writes the directories that are complete before an entry of the directory dir comes.
func (t *treeWriter) leave(ctx context.Context, dir string) error {
	for t.current().path != dir {
		if len(t.open) == 1 {
			return errOrder
		}
		if err := t.close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkOrder refuses what would not be found again: a name twice, or before another one.
func (t *treeWriter) checkOrder(name string) error {
	if name <= t.current().last {
		return errOrder
	}
	t.current().last = name
	return nil
}

func (t *treeWriter) enter(at string, entry *snapshot.DirEntry) {
	t.note(entry)
	t.open = append(t.open, &openDirectory{path: at, entry: entry})
}

// add adds an entry to the current directory.
func (t *treeWriter) add(entry *snapshot.DirEntry) {
	t.note(entry)
	t.current().built.AddEntry(entry)
}

func (t *treeWriter) note(entry *snapshot.DirEntry) {
	if len(t.open) == 1 {
		t.top.add(entry)
	}
}

// close writes the current directory, and adds it to the one above.
func (t *treeWriter) close(ctx context.Context) error {
	d := t.current()
	if err := t.write(ctx, d); err != nil {
		return err
	}
	t.open = t.open[:len(t.open)-1]
	t.current().built.AddEntry(d.entry)
	return nil
}

func (t *treeWriter) write(ctx context.Context, d *openDirectory) error {
	manifest := d.built.Build(d.entry.ModTime, "")
	id, err := snapshotfs.WriteDirManifest(ctx, t.writer, d.path, manifest, t.metadata)
	if err != nil {
		return fmt.Errorf("write directory %s: %w", protocol.Printable(d.path), err)
	}
	d.entry.ObjectID, d.entry.DirSummary = id, manifest.Summary
	return nil
}

// finish writes what is open, and returns the root.
func (t *treeWriter) finish(ctx context.Context, at time.Time) (*snapshot.DirEntry, error) {
	if err := t.leave(ctx, ""); err != nil {
		return nil, err
	}
	root := t.current()
	t.top.describe(root.entry)
	root.entry.ModTime = kopiafs.UTCTimestampFromTime(at)
	return root.entry, t.write(ctx, root)
}

// fileWriter writes as kopia's uploader does for Velero's policy, which compresses nothing.
func (t *treeWriter) fileWriter(ctx context.Context, name string) object.Writer {
	return t.writer.NewObjectWriter(ctx, object.WriterOptions{Description: "FILE:" + name, MetadataCompressor: t.metadata})
}

func (t *treeWriter) symlink(ctx context.Context, entry *snapshot.DirEntry, target []byte) error {
	writer := t.writer.NewObjectWriter(ctx, object.WriterOptions{Description: "SYMLINK:" + entry.Name, MetadataCompressor: t.metadata})
	defer writer.Close()
	if _, err := writer.Write(target); err != nil {
		return err
	}
	id, err := writer.Result()
	if err != nil {
		return err
	}
	entry.ObjectID, entry.FileSize = id, int64(len(target))
	t.add(entry)
	return nil
}

// topEntries is what the entries at the top of a volume have in common. restic's snapshots do not say what the volume's own directory
// was like, and a restore by kopia sets what the snapshot says.
type topEntries struct {
	owners  map[[2]uint32]struct{} // up to 2
	dirs    int
	setgids int
}

func (t *topEntries) add(e *snapshot.DirEntry) {
	if e.Name == "lost+found" {
		return
	}
	if t.owners == nil {
		t.owners = map[[2]uint32]struct{}{}
	}
	if len(t.owners) < 2 {
		t.owners[[2]uint32{e.UserID, e.GroupID}] = struct{}{}
	}
	if e.Type == snapshot.EntryTypeDirectory {
		t.dirs++
		if os.FileMode(e.Permissions)&os.ModeSetgid != 0 {
			t.setgids++
		}
	}
}

// Modes of the top directory.
const (
	oneOwner   = 0o775
	manyOwners = 0o777
)

// describe gives the top directory an owner and a mode with which whoever has made its entries can go on.
func (t *topEntries) describe(root *snapshot.DirEntry) {
	root.Permissions = manyOwners
	if len(t.owners) == 1 {
		root.Permissions = oneOwner
		for owner := range t.owners {
			root.UserID, root.GroupID = owner[0], owner[1]
		}
	}
	if t.dirs > 0 && t.setgids == t.dirs {
		root.Permissions |= snapshot.Permissions(os.ModeSetgid)
	}
}

// isStored reports whether kopia stores entries of this kind.
func isStored(mode os.FileMode) bool {
	return mode&os.ModeType&^(os.ModeDir|os.ModeSymlink) == 0
}

// newStoredEntry is how the directory of an entry lists it, without its content. Its error is uploader.ErrUnsupported for what kopia
// would change.
func newStoredEntry(e *protocol.Entry) (*snapshot.DirEntry, error) {
	name := path.Base(string(e.Path))
	at := kopiafs.UTCTimestampFromTime(e.ModTime)
	switch {
	case !isName(name) || path.Clean(string(e.Path)) != string(e.Path):
		return nil, errors.New("no file can have this name")
	case !utf8.Valid(e.Path), !utf8.Valid(e.Target):
		return nil, fmt.Errorf("kopia does not store names that are no UTF-8: %w", uploader.ErrUnsupported)
	case !at.ToTime().Equal(e.ModTime):
		return nil, fmt.Errorf("kopia does not store times such as %s: %w", e.ModTime.UTC().Format(time.RFC3339), uploader.ErrUnsupported)
	}
	entry := &snapshot.DirEntry{
		Name: name, Type: snapshot.EntryTypeFile, Permissions: snapshot.Permissions(e.Mode & kopiafs.ModBits), ModTime: at, UserID: e.UID, GroupID: e.GID,
	}
	switch {
	case e.Mode.IsDir():
		entry.Type = snapshot.EntryTypeDirectory
	case e.Mode&os.ModeSymlink != 0:
		entry.Type = snapshot.EntryTypeSymlink
	default:
		entry.FileSize = e.Size
	}
	return entry, nil
}

// parentOf is the path of an entry's directory; empty: the root.
func parentOf(at string) string {
	if dir := path.Dir(at); dir != "." {
		return dir
	}
	return ""
}

// fingerprint is a hash of all that is compared of an entry.
type fingerprint [16]byte

// storedPrint is what is known of an entry that was stored.
type storedPrint struct {
	fingerprint

	reused bool // it has its content from the earlier snapshot, and the fingerprint the object that it is
}

// reusedPrint is the fingerprint of an entry that has its content from the earlier snapshot.
func reusedPrint(at string, e *snapshot.DirEntry) fingerprint {
	return fingerprintOf(at, e, "", []byte("object "+e.ObjectID.String()))
}

// newContentHash hashes the content of a file.
func newContentHash() hash.Hash { return sha256.New() }

func fingerprintOf(at string, e *snapshot.DirEntry, target string, content []byte) fingerprint {
	sum := sha256.New()
	size := e.FileSize
	if e.Type != snapshot.EntryTypeFile {
		size = 0 // kopia's uploader gives directories and links sizes of their own
	}
	for _, text := range []string{at, string(e.Type), target, string(content)} {
		_ = binary.Write(sum, binary.LittleEndian, int64(len(text)))
		_, _ = sum.Write([]byte(text))
	}
	for _, number := range []int64{int64(e.Permissions), size, int64(e.ModTime), int64(e.UserID), int64(e.GroupID)} {
		_ = binary.Write(sum, binary.LittleEndian, number)
	}
	return fingerprint(sum.Sum(nil)[:16])
}
