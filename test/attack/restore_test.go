package attack

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// ambushes lie in the volume before a restore, where the snapshot has a directory "data" with files.
var ambushes = map[string]func(s *scene){
	"directory is a symlink":          func(s *scene) { s.link("data", filepath.Join(s.outside, "data")) },
	"directory is a relative symlink": func(s *scene) { s.link("data", "../../../../victim/volumes/kubernetes.io~empty-dir/data/data") },
	"directory is a chain of symlinks": func(s *scene) {
		s.link("data", "chain/first")
		s.link("chain/first", "second")
		s.link("chain/second", filepath.Join(s.outside, "data"))
	},
	"subdirectory is a symlink":    func(s *scene) { s.link("data/sub", filepath.Join(s.outside, "data", "sub")) },
	"file is a symlink":            func(s *scene) { s.link("data/file", filepath.Join(s.outside, "secret")) },
	"file is a dangling symlink":   func(s *scene) { s.link("data/file", filepath.Join(s.outside, "made")) },
	"hard link is a symlink":       func(s *scene) { s.link("data/two", filepath.Join(s.outside, "secret")) },
	"symlink leads elsewhere":      func(s *scene) { s.link("data/link", filepath.Join(s.outside, "data")) },
	"FIFO is a symlink":            func(s *scene) { s.link("data/fifo", filepath.Join(s.outside, "secret")) },
	"file is a FIFO":               func(s *scene) { s.must(unix.Mkfifo(s.in("data/file"), 0o666)) },
	"file is a directory":          func(s *scene) { s.write("data/file/in/the/way", "") },
	"directory is a file":          func(s *scene) { s.write("data", "") },
	"hand-over directory":          func(s *scene) { s.link(".velero", s.outside) },
	"directory that does not open": func(s *scene) { s.must(os.Mkdir(s.in("data"), 0)) },
}

// TestRestore restores into volumes in which somebody has left something. The restore may fail; it must not hang, and
// must not do anything outside.
func TestRestore(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	eachDataPath(t, func(t *testing.T, p dataPath) {
		snapshot := snapshotOfData(t, p)
		for name, plant := range ambushes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				plant(s)
				before := s.outsideFacts()
				if err := p.load(t, s.open(), snapshot); err != nil {
					t.Log("the restore fails:", err)
				}
				s.unchanged(before)
			})
		}
	})
}

// snapshotOfData stores a directory "data" whose files would be noticed where they do not belong.
func snapshotOfData(t *testing.T, p dataPath) string {
	t.Helper()
	s := newScene(t)
	for _, name := range []string{"data/file", "data/sub/file", "data/one", ".velero/made"} {
		s.write(name, "written by the restore")
		s.must(os.Chmod(s.in(name), 0o777|os.ModeSetuid))
	}
	s.must(os.Link(s.in("data/one"), s.in("data/two")))
	s.must(unix.Mkfifo(s.in("data/fifo"), 0o777))
	s.link("data/link", "file")
	for _, name := range []string{"data", "data/sub", ".velero"} {
		s.must(os.Chmod(s.in(name), 0o777))
	}
	return p.store(t, s.open()).SnapshotID
}
