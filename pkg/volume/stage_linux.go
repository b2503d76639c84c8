package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// stagePrefix is how the names of stages begin.
const stagePrefix = ".plimsoll-restore-"

// stageFiles is the directory in a stage that holds the files. The stage itself stays closed to other users, whatever mode the files' own top
// directory gets.
const stageFiles = "files"

// Contents counts what lies in a tree. A file with several names counts once for each of them.
type Contents struct {
	Directories, Links, Files int64
	Bytes                     int64 // sizes of the files
}

// Add counts one entry of a size. FIFOs, sockets and devices are not counted.
func (c *Contents) Add(mode fs.FileMode, size int64) {
	switch {
	case mode.IsDir():
		c.Directories++
	case mode&fs.ModeSymlink != 0:
		c.Links++
	case mode.IsRegular():
		c.Files++
		c.Bytes += size
	}
}

// Stage is a directory of a volume in which files are restored that are then moved to their places: so a file appears whole or not at all,
// and nothing is written through what a running pod has put in its way.
type Stage struct {
	// Step, if not nil, is called for each entry that Count and Move look at.
	Step func()

	volume *os.File
	name   string
	files  *os.File
	root   *os.Root // of files

	linkOnly bool // the file system cannot rename without replacing
}

// StageName returns the name of the directory of the stage with an id.
func StageName(id string) string { return stagePrefix + id }

// OpenStage makes a stage in the top directory of a volume, or opens the one that an earlier process has left. Callers close it.
func OpenStage(volume *os.File, id string) (*Stage, error) {
	s := &Stage{volume: volume, name: StageName(id)}
	dir, err := makeDir(int(volume.Fd()), s.name, path.Join(volume.Name(), s.name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if s.files, err = makeDir(int(dir.Fd()), stageFiles, path.Join(dir.Name(), stageFiles)); err != nil {
		return nil, err
	}
	if s.root, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", s.files.Fd())); err != nil {
		return nil, errors.Join(err, s.files.Close())
	}
	return s, nil
}

// makeDir makes a directory that only its owner may enter, and opens it. It follows no link.
func makeDir(parent int, name, shown string) (*os.File, error) {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mkdir", Path: shown, Err: err}
	}
	fd, err := openDir(parent, name, unix.O_RDONLY, shown)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), shown)
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return nil, errors.Join(&os.PathError{Op: "chmod", Path: shown, Err: err}, dir.Close())
	}
	return dir, nil
}

// Files returns the directory to restore into. It is closed with the stage.
func (s *Stage) Files() *os.File { return s.files }

// Close closes the stage, which stays in the volume.
func (s *Stage) Close() error { return errors.Join(s.root.Close(), s.files.Close()) }

// Remove removes the stage from its volume, with what is in it.
func (s *Stage) Remove() error { return RemoveStage(s.volume, strings.TrimPrefix(s.name, stagePrefix)) }

// RemoveStage removes a stage from a volume, if there is one.
func RemoveStage(volume *os.File, id string) error {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", volume.Fd()))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.RemoveAll(StageName(id)); err != nil {
		return fmt.Errorf("remove %s from the volume: %w", StageName(id), err)
	}
	return nil
}

// Count counts what lies in the stage.
func (s *Stage) Count() (Contents, error) {
	var c Contents
	err := fs.WalkDir(s.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		s.step()
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err == nil {
			c.Add(info.Mode(), info.Size())
		}
		return err
	})
	if err != nil {
		return Contents{}, fmt.Errorf("count the restored files: %w", err)
	}
	return c, nil
}

func (s *Stage) step() {
	if s.Step != nil {
		s.Step()
	}
}

// Has reports whether the stage has an entry at a path.
func (s *Stage) Has(name string) (bool, error) {
	_, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
