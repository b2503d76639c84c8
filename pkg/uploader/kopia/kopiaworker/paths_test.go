package kopiaworker

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// TestLongestPathsFitIntoTheResult: a path that the kernel has refused may be longer than any, and each byte quoted.
func TestLongestPathsFitIntoTheResult(t *testing.T) {
	t.Parallel()
	p := &backupProgress{root: emptyVolume(t), job: newJob()}
	for range protocol.MaxFailedPaths + 1 {
		p.Error(strings.Repeat("\x01", 8<<10), errors.New("file name too long"), false)
	}
	line, err := json.Marshal(protocol.Message{Result: &protocol.Result{SnapshotID: "0a", FailedPaths: p.failedPaths(), Errors: p.errors.Load()}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := protocol.Decode(line)
	if err != nil || len(m.Result.FailedPaths) != protocol.MaxFailedPaths || !strings.HasSuffix(m.Result.FailedPaths[0], "…") {
		t.Errorf("%d bytes: %v", len(line), err)
	}
}

// emptyVolume makes a volume in which nothing is there any more.
func emptyVolume(t *testing.T) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}
