package kopiaworker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// outage is a storage that does not take one pack of files' contents.
type outage struct {
	blob.Storage
	cause *atomic.Pointer[error] // nil when it is over
}

func (s *outage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, options blob.PutOptions) error {
	if strings.HasPrefix(string(id), "p") {
		if cause := s.cause.Swap(nil); cause != nil {
			return *cause
		}
	}
	return s.Storage.PutBlob(ctx, id, data, options)
}

// TestStorageFails: a storage that is away for a while must not cost files. kopia leaves out those that it was writing,
// and calls the rest complete. (In a process of its own: it changes kopia's list of storages and
// its metrics, and the working directory.)
func TestStorageFails(t *testing.T) {
	const child = "TEST_STORAGE_FAILS"
	if os.Getenv(child) == "" {
		again := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestStorageFails$")
		again.Env = append(os.Environ(), child+"=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var cause atomic.Pointer[error]
	blob.AddSupportedStorage("filesystem", filesystem.Options{},
		func(ctx context.Context, o *filesystem.Options, isCreate bool) (blob.Storage, error) {
			st, err := filesystem.New(ctx, o, isCreate)
			return &outage{Storage: st, cause: &cause}, err
		})
	t.Cleanup(func() { blob.AddSupportedStorage("filesystem", filesystem.Options{}, filesystem.New) })
	volume := t.TempDir()
	sizes := map[string]int64{"large": 26 << 20, "small": 1 << 20} // a pack has 20 MiB
	for name, size := range sizes {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		if err := os.WriteFile(filepath.Join(volume, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(volume)
	private := t.TempDir()
	newWorker := func() *job {
		j := &job{out: json.NewEncoder(io.Discard), Request: protocol.Request{
			Directory: filepath.Join(private, "repository"), ConfigFile: filepath.Join(private, "repository.config"),
			Password: "static-passw0rd", ProgressInterval: time.Hour, Parallel: 1, Source: "volume",
		}}
		j.meter.setLimits(0, 0)
		return j
	}
	if err := newWorker().initialize(t.Context()); err != nil {
		t.Fatal(err)
	}

	full := error(&fs.PathError{Op: "write", Path: "p", Err: syscall.ENOSPC})
	cause.Store(&full)
	got, err := newWorker().backup(t.Context(), t.Context(), func() {})
	if err == nil || got.SnapshotID != "" {
		t.Fatalf("a pack was not stored, got %+v, %v", got, err)
	}
	if err := failureOf(err).Cause.Err(); !errors.Is(err, uploader.ErrNoSpace) {
		t.Errorf("got %v, want ErrNoSpace", err)
	}
	if cause.Load() != nil {
		t.Fatal("the storage did not fail")
	}

	got, err = newWorker().backup(t.Context(), t.Context(), func() {})
	if err != nil || got.SnapshotID == "" || got.Errors != 0 || got.TotalBytes != sizes["large"]+sizes["small"] {
		t.Errorf("with the storage back, got %+v, %v", got, err)
	}
	if got.BytesUploaded > sizes["large"]/2 {
		t.Errorf("%d bytes uploaded: what the first backup stored was not used", got.BytesUploaded)
	}
}
