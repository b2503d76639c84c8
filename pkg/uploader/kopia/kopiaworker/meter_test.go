package kopiaworker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/retrying"
)

// failing is a storage whose first tries break off after half of the blob.
type failing struct {
	blob.Storage
	tries int // that fail
}

func (s *failing) PutBlob(_ context.Context, _ blob.ID, data blob.Bytes, _ blob.PutOptions) error {
	if s.tries > 0 {
		s.tries--
		_, err := io.CopyN(io.Discard, data.Reader(), int64(data.Length()/2))
		return errors.Join(err, errors.New("connection reset"))
	}
	_, err := io.Copy(io.Discard, data.Reader())
	return err
}

// slice is a blob.
type slice []byte

func (s slice) WriteTo(w io.Writer) (int64, error) { return bytes.NewReader(s).WriteTo(w) }
func (s slice) Length() int                        { return len(s) }
func (s slice) Reader() io.ReadSeekCloser {
	return struct {
		io.ReadSeeker
		io.Closer
	}{bytes.NewReader(s), io.NopCloser(nil)}
}

// refusing is a storage that takes nothing and has nothing, and says so as kopia's S3 does.
type refusing struct{ blob.Storage }

var errRefused = errors.New("access denied")

func (refusing) PutBlob(_ context.Context, _ blob.ID, _ blob.Bytes, options blob.PutOptions) error {
	if options.GetModTime != nil {
		return blob.ErrBlobNotFound
	}
	return errRefused
}

// TestRefusedPut: the error of a blob that the storage did not take is the storage's.
func TestRefusedPut(t *testing.T) {
	t.Parallel()
	var m meter
	m.setLimits(0, 0)
	var modified time.Time
	err := (&metered{Storage: refusing{}, meter: &m}).PutBlob(t.Context(), "s", make(slice, 1), blob.PutOptions{GetModTime: &modified})
	if !errors.Is(err, errRefused) {
		t.Errorf("got %v", err)
	}
}

// TestRetriesCountOnce: kopia counts each try of an upload.
func TestRetriesCountOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m meter
		m.setLimits(0, 0)
		st := &metered{Storage: retrying.NewWrapper(&failing{tries: 3}), meter: &m}
		if err := st.PutBlob(t.Context(), "p1", make(slice, 1<<20), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := m.uploaded.Load(); got != 1<<20 {
			t.Errorf("%d bytes uploaded, want each of 1 MiB once", got)
		}
		broken := &metered{Storage: &failing{tries: 1}, meter: &m}
		if err := broken.PutBlob(t.Context(), "p2", make(slice, 1<<20), blob.PutOptions{}); err == nil {
			t.Fatal("no error")
		}
		if got := m.uploaded.Load(); got != 1<<20 {
			t.Errorf("%d bytes uploaded after a failure, want what it was", got)
		}
	})
}

// drain is a storage that takes blobs as the file system does.
type drain struct{ blob.Storage }

func (drain) PutBlob(_ context.Context, _ blob.ID, data blob.Bytes, _ blob.PutOptions) error {
	_, err := data.WriteTo(io.Discard)
	return err
}

// TestLimitHoldsFromTheStart: kopia's own limit lets six seconds' worth through at once, and a minute's worth after a
// pause.
func TestLimitHoldsFromTheStart(t *testing.T) {
	t.Parallel()
	const rate = 20 << 20
	for name, st := range map[string]blob.Storage{"stream": &failing{}, "file": drain{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var m meter
				m.setLimits(rate, 0)
				limited := &metered{Storage: st, meter: &m}
				start := time.Now()
				for range 5 {
					if err := limited.PutBlob(t.Context(), "p", make(slice, rate), blob.PutOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(start); took < 4900*time.Millisecond || took > 5100*time.Millisecond {
					t.Errorf("five seconds' worth of bytes took %v", took)
				}
			})
		})
	}
}

func TestLimitEndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m meter
		m.setLimits(1<<10, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := (&metered{Storage: drain{}, meter: &m}).PutBlob(ctx, "p", make(slice, 1<<20), blob.PutOptions{})
		if err == nil || time.Since(start) > time.Second || m.uploaded.Load() != 0 {
			t.Errorf("%v after %v, %d bytes uploaded", err, time.Since(start), m.uploaded.Load())
		}
	})
}
