package volume

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDescent bounds how deep a descent goes: each level keeps a directory open.
const maxDescent = 2000

// descent keeps the directories open that lead to the last entry, each of which was opened in the one above, and not through a link.
type descent struct {
	levels []descended // the first is the volume itself
}

// descended is a directory on the way to an entry.
type descended struct {
	name  string
	dir   *os.File        // nil: it is missing, or no directory
	names map[string]bool // what the archive has in it, and whether it was found; nil: nobody asks
}

func (d *descent) last() *descended { return &d.levels[len(d.levels)-1] }

// to goes to a directory, and calls left for those that it leaves.
func (d *descent) to(dir string, left func(at string, level *descended) error) (*descended, error) {
	var names []string
	if dir != "." {
		names = strings.Split(dir, "/")
	}
	if len(names) > maxDescent {
		return nil, fmt.Errorf("it lies too deep: %w", errors.ErrUnsupported)
	}
	same := 0
	for same < len(names) && same+1 < len(d.levels) && d.levels[same+1].name == names[same] {
		same++
	}
	if err := d.leave(same+1, left); err != nil {
		return nil, err
	}
	for _, name := range names[same:] {
		if err := d.enter(name); err != nil {
			return nil, err
		}
	}
	return d.last(), nil
}

// enter goes into a directory of the last one.
func (d *descent) enter(name string) error {
	if err := checkElement("name", name); err != nil {
		return err
	}
	parent := d.last()
	next := descended{name: name}
	if parent.names != nil {
		next.names = map[string]bool{}
	}
	if parent.dir != nil {
		dir, err := openIn(parent.dir, name, unix.O_DIRECTORY)
		switch {
		case err == nil:
			next.dir = dir
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
			return err
		}
	}
	d.levels = append(d.levels, next)
	return nil
}

// leave leaves all directories but the first so many, the deepest first. The volume itself stays open.
func (d *descent) leave(keep int, left func(at string, level *descended) error) error {
	for len(d.levels) > keep {
		level := d.last()
		if err := left(d.path(), level); err != nil {
			return err
		}
		if len(d.levels) == 1 {
			return nil
		}
		d.pop()
	}
	return nil
}

func (d *descent) pop() {
	if level := d.last(); level.dir != nil {
		_ = level.dir.Close() // it was only read
	}
	d.levels = d.levels[:len(d.levels)-1]
}

func (d *descent) close() {
	for len(d.levels) > 1 {
		d.pop()
	}
}

// path returns where the last directory is.
func (d *descent) path() string {
	at := "."
	for i := range d.levels[1:] {
		at = path.Join(at, d.levels[i+1].name)
	}
	return at
}
