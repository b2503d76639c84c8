package backupstore

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// slowBody gives a byte each interval, and after some of them nothing more.
type slowBody struct {
	ctx      context.Context //nolint:containedctx // as that of an HTTP response has it
	interval time.Duration
	left     int
}

func (b *slowBody) Read(p []byte) (int, error) {
	wait := time.After(b.interval)
	if b.left--; b.left < 0 {
		wait = nil
	}
	select {
	case <-wait:
		return copy(p, "x"), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *slowBody) Close() error { return nil }

// TestSlowIsNotStalled reads for hours from a storage that sends little, then from one that sends nothing. Between two reads as
// much time may pass as the reader likes.
func TestSlowIsNotStalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := cloudReader{
			r: &slowBody{ctx: ctx, interval: stallTimeout - time.Second, left: 100}, cancel: cancel, stall: stallTimeout,
			fault: func(err error) error {
				return (&cloud{hide: func(s string) string { return s }}).fault(ctx, "read", "b", err)
			},
		}
		if _, err := io.ReadFull(r, make([]byte, 99)); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := r.Read(make([]byte, 1))
		if waited := time.Since(start); !errors.Is(err, ErrStalled) || waited != stallTimeout {
			t.Errorf("after %s: %v", waited, err)
		}
		if want := "read b: nothing has come for 2m0s: the storage has stopped sending"; err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	})
}

// TestStalledUploadEnds writes to somebody who takes a little each time, and then nothing more.
func TestStalledUploadEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		conn := uploadConn{Conn: ours}
		go func() {
			for range 10 {
				<-time.After(stallTimeout - time.Second)
				_, _ = theirs.Read(make([]byte, 1))
			}
		}()
		for range 10 {
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		_, err := conn.Write([]byte("x"))
		if waited := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || waited != stallTimeout {
			t.Errorf("after %s: %v", waited, err)
		}
	})
}
