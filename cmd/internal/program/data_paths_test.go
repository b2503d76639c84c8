package program

import (
	"log/slog"
	"strings"
	"testing"
)

// Landlock 1 confines backups and nothing else: that must not go unsaid.
func TestUnconfinedWorkersAreTold(t *testing.T) {
	t.Parallel()
	for abi, want := range []string{"workers run unconfined", "restores run unconfined", ""} {
		var out strings.Builder
		WarnUnconfined(slog.New(slog.NewTextHandler(&out, nil)), abi)
		if got := out.String(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("Landlock %d: logged %q, want %q", abi, got, want)
		}
	}
}
