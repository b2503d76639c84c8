package uploader

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Caches keeps the caches of a node's repositories within a limit: whenever a run has ended, those that were not used for the
// longest time are removed until the others fit. One that a run uses stays. It is safe for concurrent use, and a nil
// *Caches has no limit.
type Caches struct {
	limit   int64 // bytes; 0: none
	parents []string
	logger  *slog.Logger

	mu    sync.Mutex
	sizes map[string]int64 // bytes on disk by path, as of the end of the last run
}

// NewCaches returns Caches with a limit in bytes, 0 for none, for directories that hold a directory for each repository.
func NewCaches(limit int64, logger *slog.Logger, parents ...string) *Caches {
	c := &Caches{limit: limit, parents: parents, logger: logger, sizes: map[string]int64{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, path := range c.paths() {
		c.sizes[path] = diskUsage(path)
	}
	c.trim()
	return c
}

// Size returns how many bytes the caches have on disk, without what running workers have written since they began.
func (c *Caches) Size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sum int64
	for _, size := range c.sizes {
		sum += size
	}
	return sum
}

// Use makes the directory at path, which lies in one of the parents, and keeps it until release is called.
func (c *Caches) Use(path string) (release func(), err error) {
	if c == nil {
		return func() {}, os.MkdirAll(path, 0o700)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	// Where a file system has no locks, trim gets none either, and removes nothing.
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	return func() {
		size := diskUsage(path)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sizes[path] = size
		now := time.Now()
		if err := errors.Join(os.Chtimes(path, now, now), lock.Close()); err != nil {
			c.logger.Warn("Cannot note that a cache was used", "cache", path, "error", err)
		}
		c.trim()
	}, nil
}

// cacheNames are the names of caches: CacheName's, and those that restic gives to its own. Nothing else is removed.
var cacheNames = regexp.MustCompile(`^([a-z]+-[0-9a-f]{32}|[0-9a-f]{64})$`)

// CacheName returns the name of the directory for a program's cache of a repository.
func CacheName(program string, repository Repository) string {
	sum := sha256.Sum256([]byte(repository.URL))
	return fmt.Sprintf("%s-%x", program, sum[:16])
}

func (c *Caches) paths() []string {
	var paths []string
	for _, parent := range c.parents {
		entries, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.logger.Warn("Cannot list the caches", "directory", parent, "error", err)
		}
		for _, entry := range entries {
			if entry.IsDir() && cacheNames.MatchString(entry.Name()) {
				paths = append(paths, filepath.Join(parent, entry.Name()))
			}
		}
	}
	return paths
}

// trim removes caches until the limit is kept. c.mu is held.
func (c *Caches) trim() {
	if c.limit <= 0 {
		return
	}
	var sum int64
	used := map[string]time.Time{}
	for path, size := range c.sizes {
		if info, err := os.Lstat(path); err == nil {
			used[path] = info.ModTime()
		}
		sum += size
	}
	oldestFirst := slices.SortedFunc(maps.Keys(c.sizes), func(a, b string) int {
		return cmp.Or(used[a].Compare(used[b]), cmp.Compare(a, b))
	})
	for _, path := range oldestFirst {
		if sum <= c.limit {
			return
		}
		switch err := sweep(path); {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			c.logger.Info("Removed a cache to keep the limit", "cache", path, "bytes", c.sizes[path], "limit", c.limit)
			sum -= c.sizes[path]
			delete(c.sizes, path)
		case errors.Is(err, syscall.EWOULDBLOCK): // a run uses it
		default:
			c.logger.Warn("Cannot remove a cache", "cache", path, "error", err)
		}
	}
}

// diskUsage returns how many bytes lie on disk below path, as far as it can be read.
func diskUsage(path string) int64 {
	var sum int64
	_ = filepath.WalkDir(path, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // another run removes files while we look
		}
		if info, err := entry.Info(); err == nil {
			if inode, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += inode.Blocks * 512
			}
		}
		return nil
	})
	return sum
}
