package uploader

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCaches(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	const mib = 1 << 20
	at := time.Now().Add(-time.Hour)
	oldOfRestic := strings.Repeat("0a", 32)
	names := []string{"stranger", oldOfRestic}
	for i, url := range []string{"/first", "/second", "/third"} {
		names = append(names, CacheName([]string{"kopia", "restic"}[i%2], Repository{URL: url}))
	}
	for i, name := range names {
		makeCache(t, filepath.Join(parent, name), mib, at.Add(time.Duration(i)*time.Minute))
	}
	first, second, third := names[2], names[3], names[4]

	caches := NewCaches(3*mib+mib/2, slog.New(slog.DiscardHandler), parent, filepath.Join(parent, "missing"))
	wantCaches(t, "at the start", parent, "stranger", first, second, third)
	if size := caches.Size(); size < 3*mib || size > 3*mib+mib/2 {
		t.Errorf("%d bytes, want those of three", size)
	}
	releaseFirst := use(t, caches, filepath.Join(parent, first))
	releaseSecond := use(t, caches, filepath.Join(parent, second))
	makeCache(t, filepath.Join(parent, second), 3*mib, at)
	releaseSecond()
	wantCaches(t, "when one has grown", parent, "stranger", first) // in use, and so is too much

	releaseFourth := use(t, caches, filepath.Join(parent, CacheName("kopia", Repository{URL: "/fourth"})))
	makeCache(t, filepath.Join(parent, CacheName("kopia", Repository{URL: "/fourth"})), 3*mib, at)
	releaseFirst()
	releaseFourth()
	wantCaches(t, "when both are free", parent, "stranger", CacheName("kopia", Repository{URL: "/fourth"}))
}

// TestCachesWithoutALimit: 0 is no limit, and neither is nil.
func TestCachesWithoutALimit(t *testing.T) {
	t.Parallel()
	for _, caches := range []*Caches{nil, NewCaches(0, slog.New(slog.DiscardHandler))} {
		path := filepath.Join(t.TempDir(), CacheName("kopia", Repository{}))
		release := use(t, caches, path)
		makeCache(t, path, 1<<20, time.Now())
		release()
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func use(t *testing.T, caches *Caches, path string) (release func()) {
	t.Helper()
	release, err := caches.Use(path)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func makeCache(t *testing.T, path string, size int, used time.Time) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "content"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, used, used); err != nil {
		t.Fatal(err)
	}
}

func wantCaches(t *testing.T, when, parent string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q are there, want %q", when, got, want)
	}
}
