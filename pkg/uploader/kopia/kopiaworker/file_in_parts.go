package kopiaworker

import (
	"context"
	"errors"
	"io"

	kopiafs "github.com/kopia/kopia/fs"
)

// errShrunk is what is wrong with a file that became smaller than it was listed while parts of it were read.
var errShrunk = errors.New("the file became smaller while its parts were read, so that they do not fit together")

// fileInParts is a file that kopia reads in parts at the same time. kopia joins whatever each part had (kopia 0.23, upload.concatenateParts):
// of a file that is truncated meanwhile it would store one that never was, with its later parts at wrong places.
type fileInParts struct{ kopiafs.File }

// Open opens the file for one part.
func (f fileInParts) Open(ctx context.Context) (kopiafs.Reader, error) {
	r, err := f.File.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &partReader{Reader: r, size: f.Size()}, nil
}

// partReader fails where the file ends before the size that it was listed with.
type partReader struct {
	kopiafs.Reader
	at, size int64 // in bytes
}

// Seek sets where the part begins.
func (r *partReader) Seek(offset int64, whence int) (int64, error) {
	at, err := r.Reader.Seek(offset, whence)
	if err == nil {
		r.at = at
	}
	return at, err
}

// Read reads on. kopia reads no part but the last up to the end of the file.
func (r *partReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.at += int64(n)
	if errors.Is(err, io.EOF) && r.at < r.size {
		return n, errShrunk
	}
	return n, err
}
