package kopiaworker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot/restore"
)

// writeContent writes a file that only root and its owner can read yet, and closes it: some network file systems only then say what was not
// stored, and set the time of what they store.
func (t *target) writeContent(ctx context.Context, path string, e kopiafs.File, progress restore.FileWriteProgress) (err error) {
	if o, ok := e.(object.HasObjectID); ok {
		t.packs.expect(ctx, o.ObjectID())
	}
	content, err := e.Open(ctx)
	if err != nil {
		return fmt.Errorf("open a file of the snapshot: %w", err)
	}
	defer content.Close()
	file, err := t.create(path)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, file.Close())
		if isUnwritable(err) {
			_ = t.root.Remove(path) // what there is of it would be taken for the file
		}
	}()
	// As kopia: ext4 then has less to write to its journal while it stores the bytes. On a disk that was full beneath it the journal failed
	// without, and with it the file system.
	if err := file.Truncate(e.Size()); err != nil {
		return err
	}
	written, err := t.copy(file, content, progress)
	if err == nil && written != e.Size() {
		if err := file.Truncate(written); err != nil {
			return err
		}
		return t.unwritten.add(path, max(e.Size()-written, 0), fmt.Errorf("its content has %d bytes, and the snapshot says %d", written, e.Size()))
	}
	return err
}

// create makes a file, in place of what had its name before.
func (t *target) create(path string) (file *os.File, err error) {
	err = t.make(path, func() (err error) {
		file, err = t.root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	return file, err
}

// copyBuffer is what content passes through. They are kept: to make one for each file takes longer than to write a small one.
type copyBuffer [64 << 10]byte

// copy writes what content has, and returns how much that was.
func (t *target) copy(file *os.File, content io.Reader, progress restore.FileWriteProgress) (written int64, err error) {
	buffer, ok := t.buffers.Get().(*copyBuffer)
	if !ok {
		buffer = new(copyBuffer)
	}
	defer t.buffers.Put(buffer)
	w := &writeback{file: file}
	defer w.end()
	for {
		n, err := io.ReadFull(content, buffer[:])
		if n > 0 {
			if err := t.write(file, buffer[:n], written); err != nil {
				return written, err
			}
			written += int64(n)
			w.advance(int64(n))
			if progress != nil {
				progress(int64(n))
			}
		}
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF: // what wraps them is an error of the storage, in the middle of a file
			return written, nil
		case err != nil:
			return written, fmt.Errorf("read a file of the snapshot: %w", err)
		}
	}
}

// hole is how many zeros in a row are left out of a sparse file: no common file system has larger blocks.
const hole = 4 << 10

// write writes data at offset. Of a sparse file blocks of zeros are left out.
func (t *target) write(file *os.File, data []byte, offset int64) error {
	if !t.sparse {
		_, err := file.Write(data)
		return err
	}
	for len(data) > 0 {
		block := data[:min(len(data), hole)]
		if !bytes.Equal(block, t.zeros[:len(block)]) {
			if _, err := file.WriteAt(block, offset); err != nil {
				return err
			}
		}
		data, offset = data[len(block):], offset+int64(len(block))
	}
	return nil
}
