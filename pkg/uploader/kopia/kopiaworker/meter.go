package kopiaworker

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/kopia/kopia/repo/blob"
	"golang.org/x/time/rate"
)

// meter counts what goes to a storage and slows it down.
//
// kopia's own counter runs before a blob is sent, once for each blob and again for each try: it reached three times the
// size of a volume when the storage failed. Its own limits work through a bucket of 60 seconds, so that the first 120 MB
// at 20 MB/s go unhindered (docs/contracts/restic-kopia.md 9).
type meter struct {
	uploaded         atomic.Int64                 // bytes stored, and those of the tries that are under way
	failed           atomic.Pointer[storageError] // the first blob that was not stored
	upload, download *rate.Limiter
}

// burst is how many bytes may pass at once: with so little, the rate is right within a second.
const burst = 256 << 10

// setLimits takes bytes per second; 0 is no limit.
func (m *meter) setLimits(upload, download int64) {
	m.upload, m.download = limiter(upload), limiter(download)
}

func limiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return rate.NewLimiter(rate.Inf, burst)
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), burst)
}

// pass waits until n bytes may go.
func pass(ctx context.Context, l *rate.Limiter, n int) error {
	for n > 0 {
		part := min(n, burst)
		if err := l.WaitN(ctx, part); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

// metered is a storage behind a meter. It marks the storage's errors, all of them final: the storage's own tries are behind
// it.
type metered struct {
	blob.Storage
	meter *meter
	packs *packMemory // nil: kopia has a cache
}

// storageError is an error of the repository's storage. A backup has to tell it from a file's, as kopia does not: what
// fails while a file is read or written is the file's to kopia, and leaves it out.
type storageError struct{ err error }

func (e *storageError) Error() string { return e.err.Error() }

func (e *storageError) Unwrap() error { return e.err }

func ofStorage(err error) error {
	if err == nil {
		return nil
	}
	return &storageError{err}
}

// PutBlob counts the bytes as the storage takes them, and takes back those of a try that failed.
func (s *metered) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, options blob.PutOptions) error {
	counted := &meteredBytes{Bytes: data, ctx: ctx, meter: s.meter}
	modified := options.GetModTime
	options.GetModTime = nil // kopia's S3 would ask for the time of what it could not store, and say that it is not found
	err := s.Storage.PutBlob(ctx, id, counted, options)
	if err == nil && modified != nil {
		var metadata blob.Metadata
		metadata, err = s.Storage.GetMetadata(ctx, id)
		*modified = metadata.Timestamp
	}
	if err != nil {
		counted.move(0)
		s.meter.failed.CompareAndSwap(nil, &storageError{err})
		return ofStorage(err)
	}
	counted.move(int64(data.Length()))
	return nil
}

// GetBlob slows the download down.
func (s *metered) GetBlob(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) error {
	if s.packs.read(ctx, s, id, offset, length, output) {
		return nil
	}
	return s.download(ctx, id, offset, length, output)
}

func (s *metered) download(ctx context.Context, id blob.ID, offset, length int64, output blob.OutputBuffer) error {
	return ofStorage(s.Storage.GetBlob(ctx, id, offset, length, meteredBuffer{OutputBuffer: output, ctx: ctx, meter: s.meter}))
}

// GetMetadata only marks errors.
func (s *metered) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	metadata, err := s.Storage.GetMetadata(ctx, id)
	return metadata, ofStorage(err)
}

// ListBlobs only marks errors.
func (s *metered) ListBlobs(ctx context.Context, prefix blob.ID, each func(blob.Metadata) error) error {
	return ofStorage(s.Storage.ListBlobs(ctx, prefix, each))
}

// DeleteBlob only marks errors.
func (s *metered) DeleteBlob(ctx context.Context, id blob.ID) error {
	return ofStorage(s.Storage.DeleteBlob(ctx, id))
}

// meteredBytes is a blob on its way. Its position counts, so that a second try counts what it sends once.
type meteredBytes struct {
	blob.Bytes
	ctx      context.Context //nolint:containedctx // lives for one call
	meter    *meter
	position atomic.Int64
}

func (b *meteredBytes) move(to int64) { b.meter.uploaded.Add(to - b.position.Swap(to)) }

func (b *meteredBytes) advance(n int) error {
	b.position.Add(int64(n))
	b.meter.uploaded.Add(int64(n))
	return pass(b.ctx, b.meter.upload, n)
}

// WriteTo is how the file system takes a blob.
func (b *meteredBytes) WriteTo(w io.Writer) (int64, error) {
	b.move(0)
	return b.Bytes.WriteTo(meteredWriter{Writer: w, bytes: b})
}

type meteredWriter struct {
	io.Writer
	bytes *meteredBytes
}

// write is how much is written between two looks at the limit.
const write = 64 << 10

func (w meteredWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n, err := w.Writer.Write(p[:min(len(p), write)])
		written += n
		p = p[n:]
		if err != nil {
			return written, err
		}
		if err := w.bytes.advance(n); err != nil {
			return written, err
		}
	}
	return written, nil
}

// Reader is how everything behind a network takes a blob.
func (b *meteredBytes) Reader() io.ReadSeekCloser {
	b.move(0)
	return &meteredReader{ReadSeekCloser: b.Bytes.Reader(), bytes: b}
}

type meteredReader struct {
	io.ReadSeekCloser
	bytes *meteredBytes
}

func (r *meteredReader) Read(p []byte) (int, error) {
	n, err := r.ReadSeekCloser.Read(p[:min(len(p), write)])
	if n > 0 {
		if limitErr := r.bytes.advance(n); limitErr != nil {
			return n, limitErr
		}
	}
	return n, err
}

func (r *meteredReader) Seek(offset int64, whence int) (int64, error) {
	position, err := r.ReadSeekCloser.Seek(offset, whence)
	if err == nil {
		r.bytes.move(position)
	}
	return position, err
}

// meteredBuffer is where a download goes.
type meteredBuffer struct {
	blob.OutputBuffer
	ctx   context.Context //nolint:containedctx // lives for one call
	meter *meter
}

func (b meteredBuffer) Write(p []byte) (int, error) {
	if err := pass(b.ctx, b.meter.download, len(p)); err != nil {
		return 0, err
	}
	return b.OutputBuffer.Write(p)
}
