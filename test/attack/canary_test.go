package attack

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// canary is in the content of each file outside of the volume, and nowhere else.
var canary = "canary-" + rand.Text()

// plantCanaries fills the other volume with what an attacker would like to read or to change. Directories "data" and
// "swapped" have names that the attacks use.
func (s *scene) plantCanaries() {
	s.t.Helper()
	for name, mode := range map[string]os.FileMode{
		"secret": 0o600, "shadow": 0o640, "tool": 0o755 | os.ModeSetuid,
		"data/file": 0o600, "data/sub/file": 0o600, "data/one": 0o600, "data/two": 0o600,
	} {
		path := filepath.Join(s.outside, name)
		s.must(os.MkdirAll(filepath.Dir(path), 0o700))
		s.must(os.WriteFile(path, []byte("root:"+canary+":19000:0:99999:7:::\n"), 0o600))
		if os.Geteuid() == 0 {
			s.must(os.Chown(path, 1234, 1234))
		}
		s.must(os.Chmod(path, mode))
	}
	for i := range swaps {
		for _, name := range swappedFiles {
			path := filepath.Join(s.outside, fmt.Sprintf("swapped-%d", i), name)
			s.must(os.MkdirAll(filepath.Dir(path), 0o700))
			s.must(os.WriteFile(path, []byte(canary), 0o600))
		}
	}
	old := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	s.must(filepath.WalkDir(s.outside, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, old, old))
	}))
}

// facts are what must not change of a file. The kernel sets Changed with each change of anything else.
type facts struct {
	Mode     fs.FileMode
	UID, GID uint32
	Links    uint64
	Modified time.Time
	Changed  time.Time
	Content  string
}

// outsideFacts returns the facts of the other volume by path.
func (s *scene) outsideFacts() map[string]facts {
	s.t.Helper()
	seen := map[string]facts{}
	s.must(filepath.WalkDir(s.outside, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		inode := info.Sys().(*syscall.Stat_t)
		f := facts{
			Mode: info.Mode(), UID: inode.Uid, GID: inode.Gid, Links: inode.Nlink,
			Modified: info.ModTime(), Changed: time.Unix(inode.Ctim.Unix()),
		}
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f.Content = string(content)
		}
		seen[path] = f
		return nil
	}))
	return seen
}

// unchanged fails the test if the other volume does not look as before.
func (s *scene) unchanged(before map[string]facts) {
	s.t.Helper()
	if diff := cmp.Diff(before, s.outsideFacts()); diff != "" {
		s.t.Errorf("outside of the volume something has changed (-before +after):\n%s", diff)
	}
}

// unread fails the test if a restored tree holds a canary.
func unread(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(canary)) {
			t.Errorf("the snapshot holds what is outside of the volume, as %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// exchange swaps two entries of a directory in one step, as an attacker does.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}
