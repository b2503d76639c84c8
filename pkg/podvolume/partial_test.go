package podvolume

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func TestParsePartial(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Partial{"complete": 100, "fail": 0, "1%": 1, "0.5%": 0.5, "0%": 0, "100%": 100} {
		if got, err := ParsePartial(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "maybe", "1", "-1%", "101%", "NaN%", "%"} {
		if got, err := ParsePartial(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestPartialTolerates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allowed       Partial
		failed, moved int64
		want          bool
	}{
		{0, 0, 0, true},
		{0, 1, 1000, false},
		{1, 1, 1, true},
		{1, 2, 1, false}, // the most of the volume is missing
		{1, 5, 20, true},
		{1, 6, 20, false},
		{1, 10, 990, true},
		{1, 11, 989, false},
		{1, 1, 0, false},
		{100, 1000, 1, true},
	} {
		if got := c.allowed.tolerates(c.failed, c.moved); got != c.want {
			t.Errorf("%v %% with %d failed and %d moved: got %v", c.allowed, c.failed, c.moved, got)
		}
	}
}

// TestUnlistedSnapshot: an error of a restore may stand for a directory with all files of the volume.
func TestUnlistedSnapshot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		res  uploader.RestoreResult
		want map[Partial]bool
	}{
		"a file":      {uploader.RestoreResult{TotalFiles: 5000, Errors: 1}, map[Partial]bool{0: false, 1: true, 100: true}},
		"a directory": {uploader.RestoreResult{TotalFiles: 5000, Errors: 1, Unlisted: true}, map[Partial]bool{0: false, 1: false, 99: false, 100: true}},
		"the root":    {uploader.RestoreResult{Errors: 1, Unlisted: true}, map[Partial]bool{0: false, 1: false, 100: false}},
	} {
		for allowed, want := range test.want {
			if got := allowed.toleratesUnwritten(test.res); got != want {
				t.Errorf("%s, %v %%: got %v", name, allowed, got)
			}
		}
	}
}

// TestUnreadableDirectory: it may be the database, and the file beside it not worth a backup.
func TestUnreadableDirectory(t *testing.T) {
	t.Parallel()
	lacks := uploader.BackupResult{SnapshotID: "1", TotalFiles: 5000, Errors: 3, UnreadableDirectories: 1, FailedPaths: []string{"a", "b", "pgdata/"}}
	for allowed, want := range map[Partial]bool{0: false, 1: false, 99: false, 100: true} {
		if got := allowed.toleratesUnreadable(lacks); got != want {
			t.Errorf("%v %%: got %v", allowed, got)
		}
	}
	const want = "1 directory and 2 files could not be read: pgdata/, a, b"
	if got := describeUnreadable("could not be read", lacks); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
