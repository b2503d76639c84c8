package backupstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// half passes connections on to an S3 server, and of what that answers only so many bytes, all connections together: then
// it is silent and leaves the connections open.
type half struct {
	server string

	mu   sync.Mutex
	left int64
}

// startHalf ends with the test. The proxy has the server's IP: its certificate is for that.
func startHalf(t *testing.T, server *s3.Server, left int64) (endpoint string) {
	t.Helper()
	ip, _, err := net.SplitHostPort(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	h := &half{server: server.Endpoint, left: left}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { h.pass(t.Context(), &serving, conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return listener.Addr().String()
}

func (h *half) pass(ctx context.Context, serving *sync.WaitGroup, conn net.Conn) {
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.server)
	if err != nil {
		_ = conn.Close()
		return
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	serving.Go(func() {
		_, _ = io.Copy(server, conn)
		_ = server.Close()
	})
	_, _ = io.Copy(halfWriter{h, conn}, server)
}

type halfWriter struct {
	*half
	conn net.Conn
}

// Write implements io.Writer. What is beyond the limit is taken, and goes nowhere.
func (w halfWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	n := min(int64(len(p)), w.left)
	w.left -= n
	w.mu.Unlock()
	if _, err := w.conn.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// TestStalledDownloadEnds reads an archive from a real S3 server of which the second half does not come.
func TestStalledDownloadEnds(t *testing.T) {
	t.Parallel()
	server := s3.Start(t)
	noise := make([]byte, 4<<20)
	_, _ = rand.Read(noise)
	packed := archive(tarEntry{name: "metadata/version", content: "1.1.0\n"}, tarEntry{name: "resources/secrets/namespaces/shop/s.json", content: string(noise)})
	for name, read := range map[string]func(*backupstore.Store) error{
		"archive": func(store *backupstore.Store) error {
			nightly, err := store.Backup("nightly")
			if err != nil {
				return err
			}
			opened, err := nightly.OpenArchive(t.Context(), backupstore.ArchiveOptions{Dir: t.TempDir()})
			if err == nil {
				err = opened.Close()
			}
			return err
		},
		"download": func(store *backupstore.Store) error {
			r, err := store.OpenDownload(t.Context(), velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindBackupContents, Name: "nightly"})
			if err != nil {
				return err
			}
			content, err := io.ReadAll(r)
			if err == nil && !bytes.Equal(content, packed) {
				err = errors.New("the content is another one")
			}
			return errors.Join(err, r.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := onServer(t, server)
			p.put(t, "backups/nightly/nightly.tar.gz", packed)
			if err := read(p.open(t)); err != nil {
				t.Fatal(err)
			}
			p.location.Spec.Config["s3Url"] = "https://" + startHalf(t, server, int64(len(packed)/2))
			store := p.open(t)
			store.SetStallTimeout(300 * time.Millisecond)
			wantError(t, read(store), backupstore.ErrStalled, "read s3:https://", "nightly.tar.gz", "nothing has come for 300ms")
		})
	}
}

// TestStalledListEnds lists the files of a restore on a real S3 server that stops in the middle of its answer. Before a restore
// begins that is asked, in the place of all others.
func TestStalledListEnds(t *testing.T) {
	t.Parallel()
	server := s3.Start(t)
	p := onServer(t, server)
	const files = 300
	for i := range files {
		p.put(t, fmt.Sprintf("restores/r1/%d", i), nil)
	}
	list := func(store *backupstore.Store) (int, error) {
		r, err := store.Restore("r1")
		if err != nil {
			return 0, err
		}
		found, err := r.Files(t.Context())
		return len(found), err
	}
	if n, err := list(p.open(t)); n != files || err != nil {
		t.Fatal(n, err)
	}
	const handshake = 32 << 10 // and more
	p.location.Spec.Config["s3Url"] = "https://" + startHalf(t, server, handshake)
	store := p.open(t)
	store.SetOpenTimeout(time.Second)
	_, err := list(store)
	wantError(t, err, backupstore.ErrStalled, "list s3:https://", "restores/r1/", "nothing has come for 1s")
}
