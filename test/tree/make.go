// Package tree makes trees of files with everything in them that a volume may hold, and compares them.
package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Spec says what Make makes. The zero value is a small tree of about 1 MiB.
type Spec struct {
	// Bytes is about how many bytes of data the tree holds; 0 means 1 MiB. A tenth of it goes into small files of 8 KiB on
	// average, the rest into big ones.
	Bytes int64
	// Seed makes the contents differ between trees. Equal specs give equal trees.
	Seed uint64
	// Plain leaves out what not every data path can store: hard links, FIFOs, extended attributes and names that are not
	// UTF-8.
	Plain bool
}

// Make fills an existing, empty directory. As root it gives some files to other owners.
func Make(dir string, spec Spec) error {
	if spec.Bytes == 0 {
		spec.Bytes = 1 << 20
	}
	m := &maker{dir: dir, plain: spec.Plain, random: rand.New(rand.NewPCG(spec.Seed, 1))}
	m.big(spec.Bytes - spec.Bytes/10)
	m.small(spec.Bytes / 10)
	m.special()
	m.links()
	if !spec.Plain {
		m.rare()
	}
	m.oddNames()
	m.modes()
	m.do(func() error { return SetTimes(m.dir) })
	if m.err != nil {
		return fmt.Errorf("make a tree: %w", m.err)
	}
	return nil
}

// maker keeps the first error; after it, nothing is done any more.
type maker struct {
	dir    string
	plain  bool
	random *rand.Rand
	err    error
}

// path returns a path in the tree and makes its parent directories.
func (m *maker) path(name string) string {
	path := filepath.Join(m.dir, name)
	m.do(func() error { return os.MkdirAll(filepath.Dir(path), 0o755) })
	return path
}

func (m *maker) do(f func() error) {
	if m.err == nil {
		m.err = f()
	}
}

// file writes a file of random data.
func (m *maker) file(name string, size int64) {
	path := m.path(name)
	m.do(func() error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		var seed [32]byte
		for i := range seed {
			seed[i] = byte(m.random.Uint32())
		}
		_, err = io.CopyN(f, rand.NewChaCha8(seed), size)
		return errors.Join(err, f.Close())
	})
}

// bigFiles is how many files share most of the bytes; the first of them gets half.
const bigFiles = 5

func (m *maker) big(bytes int64) {
	m.file("big/half", bytes/2)
	for i := range bigFiles - 1 {
		m.file(fmt.Sprintf("big/part-%d", i), bytes/2/(bigFiles-1))
	}
}

const (
	maxSmall    = 16 << 10
	filesPerDir = 100
	// minSmallFiles is how many there are however little data there is: modes changes four of them.
	minSmallFiles = 4
)

func (m *maker) small(bytes int64) {
	for i := 0; (bytes > 0 || i < minSmallFiles) && m.err == nil; i++ {
		size := min(bytes, 1+m.random.Int64N(maxSmall))
		m.file(fmt.Sprintf("small/%02d/%02d/file-%d", i/filesPerDir%50, i/filesPerDir/50, i), size)
		bytes -= size
	}
}

// holes is the size of a sparse file in which next to nothing is data.
const holes = 24 << 20

// special makes empty files and directories, zeros, a deep path and files with holes.
func (m *maker) special() {
	for _, name := range []string{"empty/file-a", "empty/file-b", "empty/dir/.keep"} {
		m.file(name, 0)
	}
	m.do(func() error { return os.MkdirAll(filepath.Join(m.dir, "empty/nothing/in/here"), 0o755) })
	m.file(strings.Repeat("deep/", 40)+"bottom", 1)
	for _, name := range []string{"sparse/data-in-the-middle", "sparse/data-at-the-end", "sparse/no-data"} {
		m.file(name, 0)
	}
	m.write("sparse/data-in-the-middle", holes/2, "middle")
	m.write("sparse/data-at-the-end", holes, "end")
	m.do(func() error { return os.Truncate(filepath.Join(m.dir, "sparse/data-in-the-middle"), holes) })
	m.do(func() error { return os.Truncate(filepath.Join(m.dir, "sparse/no-data"), holes) })
	m.do(func() error { return os.WriteFile(m.path("zeros"), make([]byte, 1<<20), 0o644) })
}

func (m *maker) write(name string, offset int64, text string) {
	m.do(func() error {
		f, err := os.OpenFile(filepath.Join(m.dir, name), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte(text), offset)
		return errors.Join(err, f.Close())
	})
}

func (m *maker) links() {
	for name, target := range map[string]string{
		"links/relative": "../big/half", "links/to-a-directory": "../small", "links/dangling": "nowhere",
		"links/absolute": "/etc/passwd", "links/up": "../../../..", "links/odd": "a\nb \"",
	} {
		path := m.path(name)
		m.do(func() error { return os.Symlink(target, path) })
	}
}

// rare makes what kopia does not store.
func (m *maker) rare() {
	m.file("hard/original", 300_000)
	for _, name := range []string{"hard/second", "empty/dir/third"} {
		path := m.path(name)
		m.do(func() error { return os.Link(filepath.Join(m.dir, "hard/original"), path) })
	}
	m.do(func() error { return unix.Mkfifo(m.path("special/fifo"), 0o640) })
	m.file("special/attributes", 10)
	m.do(func() error {
		err := unix.Setxattr(filepath.Join(m.dir, "special/attributes"), "user.plimsoll", []byte("a\x00b"), 0)
		if errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		return err
	})
}

// OddNames are file names that programs stumble over. Each is valid on Linux.
func OddNames() []string {
	return []string{
		"new\nline", "carriage\rreturn", "tab\there", "invalid \xff\xfe utf-8", "-rf", "--help", " leading and trailing ",
		"quote\"and'back\\slash", "$(id)", "*?[a]", "…ünïcödé 名前", "~", "...", strings.Repeat("n", 255), "bell\x07escape\x1b[2K",
		`{"message_type":"summary","snapshot_id":"00000000"}`, "x: no space left on device", "Fatal: wrong password or no key found",
	}
}

func (m *maker) oddNames() {
	for i, name := range OddNames() {
		if m.plain && !utf8.ValidString(name) {
			continue
		}
		m.file("odd/"+name, int64(i))
		m.file("odd in "+name[:min(len(name), 200)]+"/"+name, int64(i))
		m.file(name, int64(i))
	}
}

func (m *maker) modes() {
	for name, mode := range map[string]os.FileMode{
		"small/00/00/file-0": 0o600, "small/00/00/file-1": 0o444, "small/00/00/file-2": 0o755 | os.ModeSetuid,
		"big": 0o700, "empty/nothing": 0o755 | os.ModeSticky, "sparse": 0o2750&0o777 | os.ModeSetgid,
	} {
		m.do(func() error { return os.Chmod(filepath.Join(m.dir, name), mode) })
	}
	if os.Geteuid() != 0 {
		return
	}
	for _, name := range []string{"small/00/00/file-3", "links/dangling", "empty"} {
		m.do(func() error { return os.Lchown(filepath.Join(m.dir, name), 12345, 54321) })
	}
}

// SetTimes gives every entry of a tree a modification time of its own, children before their directory. The same names get the
// same times. The first ones lie before 1970.
func SetTimes(dir string) error {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		return fmt.Errorf("set the times of a tree: %w", err)
	}
	at := time.Date(1969, 12, 31, 4, 5, 6, 123456789, time.UTC)
	for _, path := range slices.Backward(paths) {
		at = at.Add(61*time.Minute + 1)
		stamp := unix.NsecToTimespec(at.UnixNano())
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{stamp, stamp}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("set the times of %q: %w", path, err)
		}
	}
	return nil
}
