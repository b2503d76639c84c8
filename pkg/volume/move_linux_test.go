package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// stageOf makes a volume with a stage that holds files.
func stageOf(t *testing.T, inVolume, staged map[string]string) (string, *Stage) {
	t.Helper()
	dir := t.TempDir()
	writeAll(t, dir, inVolume)
	s, err := OpenStage(openForTest(t, dir), "1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	writeAll(t, filepath.Join(dir, StageName("1"), stageFiles), staged)
	return dir, s
}

// writeAll writes files; a content that begins with -> makes a link.
func writeAll(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if target, isLink := cutLink(content); isLink {
			err = errors.Join(err, os.Symlink(target, file))
		} else {
			err = errors.Join(err, os.WriteFile(file, []byte(content), 0o600), os.Chtimes(file, time.Unix(1e9, 0), time.Unix(1e9, 0)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func cutLink(content string) (string, bool) {
	if len(content) > 2 && content[:2] == "->" {
		return content[2:], true
	}
	return "", false
}

func openForTest(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func never(time.Time, time.Time) bool  { return false }
func always(time.Time, time.Time) bool { return true }

func TestMove(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for name, test := range map[string]struct {
		volume, staged map[string]string
		replace        Replace
		want           Moved
		after          map[string]string
		conflict       bool
	}{
		"new":                 {staged: map[string]string{"a": "1", "d/e/f": "2", "l": "->a"}, replace: never, want: Moved{New: 5}, after: map[string]string{"a": "1", "d/e/f": "2"}},
		"left":                {volume: map[string]string{"d/a": "old"}, staged: map[string]string{"d/a": "new", "d/b": "new"}, replace: never, want: Moved{New: 1, Left: 1, LeftPaths: []string{"d/a"}}, after: map[string]string{"d/a": "old", "d/b": "new"}},
		"the same":            {volume: map[string]string{"d/a": "one"}, staged: map[string]string{"d/a": "one"}, replace: never, want: Moved{Same: 1}, after: map[string]string{"d/a": "one"}},
		"other content":       {volume: map[string]string{"d/a": "one"}, staged: map[string]string{"d/a": "two"}, replace: never, want: Moved{Left: 1, LeftPaths: []string{"d/a"}}, after: map[string]string{"d/a": "one"}},
		"replaced":            {volume: map[string]string{"d/a": "old"}, staged: map[string]string{"d/a": "new"}, replace: always, want: Moved{Replaced: 1}, after: map[string]string{"d/a": "new"}},
		"a link is replaced":  {volume: map[string]string{"a": "->" + outside + "/target"}, staged: map[string]string{"a": "new"}, replace: always, want: Moved{Replaced: 1}, after: map[string]string{"a": "new"}},
		"not through a link":  {volume: map[string]string{"d": "->" + outside}, staged: map[string]string{"a": "1", "d/b": "2"}, replace: always, conflict: true},
		"a file as directory": {volume: map[string]string{"d": "file"}, staged: map[string]string{"a": "1", "d/b": "2"}, replace: always, conflict: true, after: map[string]string{"d": "file"}},
		"a directory as file": {volume: map[string]string{"d/x": "file"}, staged: map[string]string{"a": "1", "d": "2"}, replace: always, conflict: true, after: map[string]string{"d/x": "file"}},
	} {
		for _, linkOnly := range []bool{false, true} {
			dir, s := stageOf(t, test.volume, test.staged)
			var changed atomic.Int64
			s.linkOnly = linkOnly
			moved, err := s.Move(t.Context(), test.replace, &changed)
			if errors.Is(err, ErrConflict) != test.conflict || err != nil && !test.conflict {
				t.Errorf("%s: %v", name, err)
			}
			if moved.New != test.want.New || moved.Replaced != test.want.Replaced || moved.Same != test.want.Same || moved.Left != test.want.Left || len(moved.LeftPaths) != len(test.want.LeftPaths) {
				t.Errorf("%s: got %+v, want %+v", name, moved, test.want)
			}
			if changed.Load() != test.want.New+test.want.Replaced {
				t.Errorf("%s: %d changed", name, changed.Load())
			}
			for file, want := range test.after {
				if got, err := os.ReadFile(filepath.Join(dir, file)); string(got) != want {
					t.Errorf("%s: %s has %q, %v, want %q", name, file, got, err, want)
				}
			}
			if _, err := os.Lstat(filepath.Join(dir, "a")); test.conflict && err == nil {
				t.Errorf("%s: something was moved before the conflict", name)
			}
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".plimsoll*")); len(left) > 0 {
				t.Errorf("%s: %q are left", name, left)
			}
		}
	}
	if entries, err := os.ReadDir(outside); len(entries) > 0 || err != nil {
		t.Errorf("%v was written outside, %v", entries, err)
	}
}

func TestMoveEnds(t *testing.T) {
	t.Parallel()
	dir, s := stageOf(t, nil, map[string]string{"a": "1"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Move(ctx, never, new(atomic.Int64)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "a")); err == nil {
		t.Error("a was moved")
	}
}

// TestStageIsNoLink: what a pod has put in the place of a stage is not followed.
func TestStageIsNoLink(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, StageName("1"))); err != nil {
		t.Fatal(err)
	}
	volume := openForTest(t, dir)
	if _, err := OpenStage(volume, "1"); !errors.Is(err, ErrUnsafe) {
		t.Errorf("got %v, want ErrUnsafe", err)
	}
	if err := RemoveStage(volume, "1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}
