package main

import (
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
)

// checkpoint is how far a directory is unpacked: up to an offset in its archive, behind the content of an entry. It is kept when the connection
// ends, and the next command goes on there.
type checkpoint struct {
	Offset  int64  `json:"offset"`
	Hash    []byte `json:"hash"` // the state of the SHA-256 of the archive up to the offset
	Tally   tally  `json:"tally"`
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused,omitempty"`
	Example string `json:"example,omitempty"`
	Without string `json:"without,omitempty"`
}

// tally tells whether a directory still holds what was unpacked into it, in whichever order it is read.
type tally struct {
	Entries int64             `json:"entries"`
	Sum     [sha256.Size]byte `json:"sum"` // of the hashes of all entries, by exclusive or
}

// What tallies count.
const (
	countedFile      = "file"      // with the hash of its content
	countedLink      = "link"      // with its target
	countedDirectory = "directory" // with nothing
	countedOther     = "other"     // nothing that was unpacked
)

func (t *tally) add(kind, name string, content []byte) {
	one := sha256.New()
	fmt.Fprintf(one, "%s\x00%s\x00%s", kind, name, content) // never fails
	t.Entries++
	for i, b := range one.Sum(nil) {
		t.Sum[i] ^= b
	}
}

// tallyOf reads all that there is in a directory.
func tallyOf(root *os.Root) (t tally, err error) {
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case entry.IsDir():
			t.add(countedDirectory, name, nil)
		case entry.Type()&fs.ModeSymlink != 0:
			target, err := root.Readlink(name)
			t.add(countedLink, name, []byte(target))
			return err
		case !entry.Type().IsRegular():
			t.add(countedOther, name, nil)
		default:
			sum, err := sumOf(root, name)
			t.add(countedFile, name, sum)
			return err
		}
		return nil
	})
	return t, err
}

func sumOf(root *os.Root, name string) ([]byte, error) {
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	return sum.Sum(nil), err
}

// errNotOurs says that somebody else may have written what a command is to go on with. Who knows the backup can make it fit to the checksum.
var errNotOurs = errors.New("it is not what this command has left, or others have rights to it: remove it, or choose another name with -o")

// checkOurs returns errNotOurs if what was opened may be somebody else's, or that of a link.
func checkOurs(name string, opened fs.FileInfo) error {
	there, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if !os.SameFile(there, opened) || !onlyOurs(opened) {
		return fmt.Errorf("%s: %w", name, errNotOurs)
	}
	return nil
}

// readCheckpoint returns where to go on with a directory, and the directory, if it holds what the checkpoint says; nil: nowhere.
func readCheckpoint(name, dir string) (*checkpoint, *os.Root, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil {
		err = checkOurs(name, info)
	}
	if err != nil {
		return nil, nil, err
	}
	c := &checkpoint{}
	if json.NewDecoder(file).Decode(c) != nil || c.Offset <= 0 {
		return nil, nil, nil
	}
	if _, err := newArchiveReader(nil, c); err != nil { // another version's state of the hash
		return nil, nil, nil
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if info, err = root.Stat("."); err == nil {
		err = checkOurs(dir, info)
	}
	if err == nil {
		if there, err := tallyOf(root); err == nil && there == c.Tally {
			return c, root, nil
		}
	}
	return nil, nil, errors.Join(err, root.Close())
}

// write keeps the checkpoint. It writes under another name and renames that: neither follows a link.
func (c *checkpoint) write(name, temporary string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := writeAnew(temporary, text); err != nil {
		return err
	}
	return os.Rename(temporary, name)
}

// reserve is how much space a command takes for the checkpoint that it may write when the disk is full.
const reserve = 8 << 10

// writeAnew writes a file in place of one that may be there.
func writeAnew(name string, content []byte) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// resumeDirectoryAt takes over a directory that an earlier command has left, and returns how much of the archive is unpacked there already. What is
// not as it was left is removed.
func (d *download) resumeDirectoryAt() (int64, error) {
	info, err := os.Lstat(d.checkpoint())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is not a file that this command has left: remove it, or choose another name with -o", d.checkpoint())
	}
	// Who renames the checkpoint has the directory: another command must neither write nor remove there while this one reads and asks.
	err = os.Rename(d.checkpoint(), d.resuming())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("take over what an earlier command has unpacked: %w", err)
	}
	d.taken = true
	if d.from, d.root, err = readCheckpoint(d.resuming(), d.unpacking()); err != nil {
		return 0, err
	}
	if d.from == nil {
		d.taken = false
		return 0, errors.Join(os.Remove(d.resuming()), os.RemoveAll(d.unpacking())) // in this order: without the directory it may be another command's
	}
	return d.from.Offset, nil
}

// putBack leaves a checkpoint that is not used up to the next command.
func (d *download) putBack() (err error) {
	if d.root != nil {
		err = d.root.Close()
	}
	if d.taken {
		err = errors.Join(err, os.Rename(d.resuming(), d.checkpoint()))
	}
	return err
}

// errReplaced: another directory has taken the name of the one that the archive was unpacked into.
var errReplaced = errors.New("another process has removed or replaced the directory while it was unpacked; run the command again")

// release closes the directory, which Windows can rename or remove only then. The error is errReplaced if its name is not its own any more.
func (d *download) release() error {
	unpacked, err := d.root.Stat(".")
	if err != nil {
		return errors.Join(err, d.root.Close())
	}
	there, err := os.Lstat(d.unpacking())
	if err != nil || !os.SameFile(unpacked, there) {
		err = errors.Join(errReplaced, err)
	}
	return errors.Join(err, d.root.Close())
}

// archiveReader counts and hashes an archive while it is read.
type archiveReader struct {
	io.Reader

	n    int64
	hash hash.Hash
}

// newArchiveReader reads an archive from the checkpoint on; nil: from its begin.
func newArchiveReader(r io.Reader, from *checkpoint) (*archiveReader, error) {
	a := &archiveReader{Reader: r, hash: sha256.New()}
	if from == nil {
		return a, nil
	}
	state, ok := a.hash.(encoding.BinaryUnmarshaler)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	a.n = from.Offset
	return a, state.UnmarshalBinary(from.Hash)
}

// Read reads from the archive.
func (a *archiveReader) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	a.n += int64(n)
	a.hash.Write(p[:n]) // never fails
	return n, err
}

// tarBlock is what headers and contents are padded to.
const tarBlock = 512

// skipPadding reads what follows the content of the last entry, up to the next header.
func (a *archiveReader) skipPadding() error {
	_, err := io.CopyN(io.Discard, a, (tarBlock-a.n%tarBlock)%tarBlock)
	return err
}

// state returns the state of the hash; nil if it has none that can be kept.
func (a *archiveReader) state() []byte {
	state, ok := a.hash.(encoding.BinaryMarshaler)
	if !ok {
		return nil
	}
	text, err := state.MarshalBinary()
	if err != nil {
		return nil
	}
	return text
}

// checkpoint returns how far the archive is unpacked, behind an entry.
func (u *unpacking) checkpoint(a *archiveReader) checkpoint {
	return checkpoint{Offset: a.n, Hash: a.state(), Tally: u.tally, Bytes: u.bytes, Refused: u.refused, Example: u.example, Without: u.without}
}

// goOnFrom takes over what was unpacked before.
func (u *unpacking) goOnFrom(c *checkpoint) {
	u.tally, u.bytes, u.refused, u.example, u.without = c.Tally, c.Bytes, c.Refused, c.Example, c.Without
}
