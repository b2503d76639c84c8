package restic

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// A restic init that is interrupted after its first key leaves a repository that nobody can open, and that restic does not
// make again: an agent that stops lets it end.
func TestInitializeEndsThoughTheAgentStops(t *testing.T) {
	t.Parallel()
	u, calls := newFake(t, Options{})
	repository := scripted()
	repository.Env["SCRIPT_cat"] = "err Fatal: repository does not exist: unable to open config file\nexit 10"
	repository.Env["SCRIPT_init"] = "wait stopped"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	result := make(chan error, 1)
	go func() { result <- u.Initialize(ctx, repository) }()
	calls = filepath.Join(calls, uploader.CacheName("restic", repository))
	begun := filepath.Join(calls, "init.json")
	for _, err := os.Stat(begun); err != nil; _, err = os.Stat(begun) {
		select {
		case err := <-result:
			t.Fatalf("it ended before it began: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	stop()
	if err := os.WriteFile(filepath.Join(calls, "stopped"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("restic init was interrupted: %v", err)
	}
}
