//go:build chaos

package chaos

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// volumePlan says what a volume holds.
type volumePlan struct {
	seed     uint64
	files    int   // of a few KiB
	bytes    int64 // in big files
	many     int   // empty files in one directory
	deep     int   // levels of directories
	odd      bool  // names that programs stumble over
	invalid  bool  // names that are not UTF-8: kopia cannot store them, and says so
	sparse   bool
	links    bool // hard and symbolic
	rare     bool // extended attributes, FIFOs
	owners   bool // owners and modes
	changing bool // files below "hot" change while the volume is read
}

// hot is the directory of the files that change. Nothing in it is compared: any moment of theirs may be in a snapshot.
const hot = "hot"

func newVolumePlan(r *rand.Rand, p plan) volumePlan {
	v := volumePlan{
		seed: r.Uint64(), files: pick(r, 1, 20, 80, 200), bytes: pick[int64](r, 0, 1<<20, 4<<20, 4<<20, 12<<20),
		odd: chance(r, 2), sparse: chance(r, 3), links: chance(r, 2), rare: chance(r, 3), owners: chance(r, 2), changing: chance(r, 6),
	}
	if chance(r, 4) {
		v.many = pick(r, 300, 1000)
	}
	if chance(r, 4) {
		v.deep = pick(r, 20, 100)
	}
	v.invalid = v.odd && (p.uploader == rig.Restic || chance(r, 4))
	if p.source == onFUSE || p.target == onFUSE { // each call is a round trip
		v.many, v.files = min(v.many, 300), min(v.files, 80)
	}
	return v
}

// String lists what the volume has.
func (v volumePlan) String() string {
	has := []string{fmt.Sprintf("%d files, %d MiB", v.files, v.bytes>>20)}
	for _, f := range []struct {
		has  bool
		name string
	}{
		{v.many > 0, fmt.Sprintf("%d empty files", v.many)},
		{v.deep > 0, fmt.Sprintf("%d levels", v.deep)},
		{v.odd, "odd names"},
		{v.invalid, "names that are not UTF-8"},
		{v.sparse, "holes"},
		{v.links, "links"},
		{v.rare, "attributes and FIFOs"},
		{v.owners, "owners and modes"},
		{v.changing, "changes while it is read"},
	} {
		if f.has {
			has = append(has, f.name)
		}
	}
	return strings.Join(has, ", ")
}

// fill makes the volume's files in an empty directory. Equal plans make equal trees.
func (v volumePlan) fill(dir string) error {
	m := &maker{dir: dir, r: rand.New(rand.NewPCG(v.seed, 1))}
	m.file("a file", 100)
	for i := range v.files {
		m.file(fmt.Sprintf("files/%d/%d", i%7, i), m.r.Int64N(16<<10))
	}
	for i := range int64(4) {
		if v.bytes > 0 {
			m.file(fmt.Sprintf("big/%d", i), v.bytes/4)
		}
	}
	for i := range v.many {
		m.file(fmt.Sprintf("many/%d", i), 0)
	}
	if v.deep > 0 {
		m.file(strings.Repeat("d/", v.deep)+"bottom", 10)
	}
	v.odd1(m)
	if v.sparse {
		m.holes("sparse/middle", 4<<20, 2<<20)
		m.holes("sparse/end", 4<<20, 4<<20-10)
	}
	if v.links {
		m.links()
	}
	if v.rare {
		m.rare()
	}
	if v.owners {
		m.owners()
	}
	if v.changing {
		m.file(hot+"/0", 64<<10)
	}
	m.times()
	return m.err
}

func (v volumePlan) odd1(m *maker) {
	if !v.odd {
		return
	}
	for i, name := range tree.OddNames() {
		if strings.ToValidUTF8(name, "") == name {
			m.file("odd/"+name, int64(i))
		}
	}
	if v.invalid {
		m.file("odd/\xff\xfe", 7)
		m.file("odd \xe9/file", 8)
	}
}

// maker keeps the first error.
type maker struct {
	dir string
	r   *rand.Rand
	err error
}

func (m *maker) do(err error) { m.err = errors.Join(m.err, err) }

func (m *maker) path(name string) string {
	path := filepath.Join(m.dir, name)
	m.do(os.MkdirAll(filepath.Dir(path), 0o755))
	return path
}

func (m *maker) file(name string, size int64) {
	f, err := os.Create(m.path(name))
	if err != nil {
		m.do(err)
		return
	}
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(m.r.Uint32())
	}
	_, err = io.CopyN(f, rand.NewChaCha8(seed), size)
	m.do(errors.Join(err, f.Close()))
}

func (m *maker) holes(name string, size, data int64) {
	path := m.path(name)
	f, err := os.Create(path)
	if err != nil {
		m.do(err)
		return
	}
	_, err = f.WriteAt([]byte("data"), data)
	m.do(errors.Join(err, f.Truncate(size), f.Close()))
}

func (m *maker) links() {
	for i, target := range []string{"../a file", "nowhere", "/etc/passwd", "../../..", "a\nb"} {
		m.do(os.Symlink(target, m.path(fmt.Sprintf("links/%d", i))))
	}
	m.file("links/original", 5000)
	for i := range 5 {
		m.do(os.Link(m.path("links/original"), m.path(fmt.Sprintf("links/hard/%d", i))))
	}
}

func (m *maker) rare() {
	m.do(unix.Mkfifo(m.path("rare/fifo"), 0o640))
	m.file("rare/attributes", 10)
	m.do(unix.Setxattr(m.path("rare/attributes"), "user.chaos", []byte("a\x00b"), 0))
	m.do(os.MkdirAll(m.path("rare/directory/empty"), 0o755))
	m.do(unix.Setxattr(m.path("rare/directory"), "user.chaos", []byte("d"), 0))
}

func (m *maker) owners() {
	for i, mode := range []os.FileMode{0o400, 0o777, 0o755 | os.ModeSetuid, 0, 0o640} {
		path := m.path(fmt.Sprintf("owners/%d", i))
		m.file(fmt.Sprintf("owners/%d", i), 100)
		m.do(errors.Join(os.Chown(path, 1000+i, 2000+i), os.Chmod(path, mode)))
	}
	m.do(os.Mkdir(m.path("owners/sticky"), 0o755))
	m.do(os.Chmod(m.path("owners/sticky"), 0o777|os.ModeSticky))
}

// times gives every entry a time of its own, children before their directory.
func (m *maker) times() {
	var paths []string
	m.do(filepath.WalkDir(m.dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	at := time.Date(2001, 2, 3, 4, 5, 6, 123456789, time.UTC)
	for _, path := range slices.Backward(paths) {
		at = at.Add(61*time.Minute + 1)
		stamp := unix.NsecToTimespec(at.UnixNano())
		m.do(unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{stamp, stamp}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// change changes the files below hot until stop is closed. Errors are what a volume that fails gives to a program.
func change(dir string, seed uint64, stop <-chan struct{}) {
	r := rand.New(rand.NewPCG(seed, 2))
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		name := filepath.Join(dir, hot, strconv.Itoa(r.IntN(20)))
		switch r.IntN(5) {
		case 0:
			_ = os.Remove(name)
		case 1:
			_ = os.Rename(name, name+"x")
		case 2:
			_ = os.Truncate(name, r.Int64N(1<<16))
		default:
			_ = os.WriteFile(name, make([]byte, r.IntN(1<<16)), 0o600)
		}
	}
}
