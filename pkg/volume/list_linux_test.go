package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// crowd makes a directory with as many entries, in memory if there is a file system for that.
func crowd(t *testing.T, entries int) *os.File {
	t.Helper()
	at, err := os.MkdirTemp("/dev/shm", "crowd") //nolint:usetesting // a file system in memory
	if err != nil {
		at = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(at) })
	dir := open(t, at)
	for i := range entries {
		if err := unix.Mknodat(int(dir.Fd()), fmt.Sprintf("a-name-of-some-length-%d", i), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// liveBytes returns what is in use on the heap.
func liveBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Whoever writes into a volume decides how many names a directory has. A whole list of these takes 10 MB.
func TestWalkDirTakesNoMemoryForNames(t *testing.T) { //nolint:paralleltest // it measures the heap
	const entries = 200_000
	dir := crowd(t, entries)
	before, most, seen := liveBytes(), int64(0), 0
	err := WalkDir(t.Context(), dir, func(e Walked) error {
		if seen++; seen%(entries/5) == 1 {
			most = max(most, liveBytes()-before)
		}
		return e.Err
	})
	if err != nil || seen != entries || most > 1<<20 {
		t.Errorf("%d of %d entries with %d bytes of memory, %v", seen, entries, most, err)
	}
}

func TestWalkDir(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(at, "a", "b"), 0o700), os.WriteFile(filepath.Join(at, "a", "b", "file"), []byte("data"), 0o600),
		os.Symlink("/", filepath.Join(at, "link")), unix.Mkfifo(filepath.Join(at, "fifo"), 0o600), os.Mkdir(filepath.Join(at, "odd\xff"), 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	dir := open(t, at)
	for range 2 { // it does not move the caller's position
		seen = nil
		err = WalkDir(t.Context(), dir, func(e Walked) error {
			seen = append(seen, e.Path)
			if e.Path == "a/b/file" && e.Stat.Size != 4 {
				t.Errorf("the file has %d bytes", e.Stat.Size)
			}
			return e.Err
		})
	}
	if slices.Index(seen, "a") > slices.Index(seen, "a/b") || slices.Index(seen, "a/b") > slices.Index(seen, "a/b/file") {
		t.Errorf("not from the top: %q", seen)
	}
	slices.Sort(seen)
	if want := []string{"a", "a/b", "a/b/file", "fifo", "link", "odd\xff"}; err != nil || !slices.Equal(seen, want) {
		t.Errorf("seen %q, %v", seen, err)
	}
	stop := errors.New("stop")
	if err := WalkDir(t.Context(), dir, func(Walked) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("it goes on after %v", err)
	}
}

// TestWalkDirOfADeepTree: what lies too deep is not passed over silently.
func TestWalkDirOfADeepTree(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range maxDescent + 1 {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		fd = below
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	var deepest int
	var tooDeep error
	err = WalkDir(t.Context(), open(t, at), func(e Walked) error {
		deepest = max(deepest, strings.Count(e.Path, "/")+1)
		tooDeep = errors.Join(tooDeep, e.Err)
		return nil
	})
	if err != nil || deepest != maxDescent || !errors.Is(tooDeep, errors.ErrUnsupported) {
		t.Errorf("came to level %d, %v, %v", deepest, tooDeep, err)
	}
}
