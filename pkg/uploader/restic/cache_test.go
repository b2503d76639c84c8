package restic

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// restic keeps caches for ever. Each repository has a directory of its own; those that were used last stay.
func TestCachesStayWithinTheLimit(t *testing.T) {
	parts.Slow(t)
	eachBehavior(t, func(t *testing.T, version string) {
		dir := t.TempDir()
		plain := newUploader(t, version, Options{CacheDir: dir})
		first, second := initialized(t, plain, 1<<20), initialized(t, plain, 1<<20)
		size := uploader.NewCaches(0, slog.New(slog.DiscardHandler), dir).Size()
		if size == 0 {
			t.Fatal("restic has no cache: the test proves nothing")
		}
		limited := newUploader(t, version, Options{CacheDir: dir, Caches: uploader.NewCaches(size-1, slog.New(slog.DiscardHandler), dir)})
		if _, err := limited.Backup(t.Context(), uploader.BackupRequest{Repository: second, Volume: volumeOf(t, 10)}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, uploader.CacheName("restic", first))); !os.IsNotExist(err) {
			t.Errorf("the cache that was not used is still there: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, uploader.CacheName("restic", second))); err != nil {
			t.Error(err)
		}
	})
}
