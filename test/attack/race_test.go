package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// swaps is how many directories are swapped for symlinks, and swappedFiles what is in each of them: so much that a
// directory is swapped many times while it is read.
const swaps = 4

var swappedFiles = func() (names []string) {
	for i := range 60 {
		names = append(names, fmt.Sprintf("file-%d", i))
	}
	return names
}()

// plantSwaps makes pairs of a directory and a symlink to one outside with files of the same names, and of a file and a
// symlink to one outside. The returned function swaps them, over and over, until the test ends it.
func (s *scene) plantSwaps() (swap func() (stop func())) {
	s.t.Helper()
	var pairs [][3]string // what is there, what takes its place, where that leads
	for i := range swaps {
		dir, link := fmt.Sprintf("swapped-%d", i), fmt.Sprintf("hidden-%d", i)
		for _, name := range swappedFiles {
			s.write(filepath.Join(dir, name), "from the volume")
		}
		s.link(link, filepath.Join(s.outside, dir))
		file, fileLink := fmt.Sprintf("file-%d", i), fmt.Sprintf("hidden-file-%d", i)
		s.write(file, "from the volume")
		s.link(fileLink, filepath.Join(s.outside, dir, swappedFiles[0]))
		to := filepath.Join(s.outside, dir)
		pairs = append(pairs, [3]string{s.in(dir), s.in(link), to}, [3]string{s.in(file), s.in(fileLink), filepath.Join(to, swappedFiles[0])})
	}
	return func() func() {
		end := make(chan struct{})
		var swapping sync.WaitGroup
		swapping.Go(func() {
			for {
				for _, pair := range pairs {
					if exchange(pair[0], pair[1]) != nil { // the restore has removed one of them
						_ = os.Symlink(pair[2], pair[0])
						_ = os.Symlink(pair[2], pair[1])
					}
				}
				select {
				case <-end:
					return
				default:
					runtime.Gosched()
				}
			}
		})
		return sync.OnceFunc(func() { close(end); swapping.Wait() })
	}
}

// TestBackupRace swaps directories and files for symlinks while a backup reads them.
func TestBackupRace(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	needLandlock(t)
	eachDataPath(t, func(t *testing.T, p dataPath) {
		s := newScene(t)
		swap := s.plantSwaps()
		before := s.outsideFacts()
		stop := swap()
		defer stop()
		snapshot := p.store(t, s.open()).SnapshotID
		stop()
		s.unchanged(before)
		target := newScene(t)
		if err := p.load(t, target.open(), snapshot); err != nil {
			t.Log("the restore of what was read fails:", err)
		}
		unread(t, target.volume)
	})
}

// TestRestoreRace swaps directories and files for symlinks while a restore writes them, by each restic that is here. Not even the time of
// the last change of a file outside may change, which the kernel sets with owner, mode, times and attributes.
func TestRestoreRace(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	needLandlock(t)
	if !worker.GuardsMetadata() {
		t.Skip("NOT TESTED: this kernel cannot keep a restore from setting owners, modes and times outside of the volume")
	}
	paths := []string{kopiaPath}
	for _, version := range parts.ResticVersions(t) {
		paths = append(paths, "restic-"+version)
	}
	eachOf(t, paths, func(t *testing.T, p dataPath) {
		source := newScene(t)
		for i := range swaps {
			for _, name := range swappedFiles {
				source.write(fmt.Sprintf("swapped-%d/%s", i, name), "written by the restore")
			}
			source.write(fmt.Sprintf("file-%d", i), "written by the restore")
			source.must(os.Chmod(source.in(fmt.Sprintf("swapped-%d", i)), 0o777))
		}
		snapshot := p.store(t, source.open()).SnapshotID

		s := newScene(t)
		swap := s.plantSwaps()
		before := s.outsideFacts()
		stop := swap()
		defer stop()
		if err := p.load(t, s.open(), snapshot); err != nil {
			t.Log("the restore fails:", err)
		}
		stop()
		s.unchanged(before)
	})
}
