package main

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
		warnUnconfined(slog.New(slog.NewTextHandler(&out, nil)), abi)
		if got := out.String(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("Landlock %d: logged %q, want %q", abi, got, want)
		}
	}
}

func TestMemoryShare(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, tc := range []struct {
		limit int64
		slots int
		want  int64
	}{
		{0, 4, 0},
		{2048 * mib, 1, 1856 * mib},
		{2048 * mib, 4, 464 * mib},
		{256 * mib, 4, 128 * mib},
	} {
		if got := memoryShare(tc.limit, tc.slots); got != tc.want {
			t.Errorf("%d bytes for %d volumes: %d, want %d", tc.limit, tc.slots, got, tc.want)
		}
	}
}
