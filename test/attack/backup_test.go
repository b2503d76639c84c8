package attack

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// trap is something in a volume that leads out of it, blocks, or is taken for something else.
type trap struct {
	plant func(s *scene)
	// restored is what becomes of the paths in a restore of their backup: their types. By kopia some are left out.
	restored map[string]fs.FileMode
	rare     bool // kopia does not store it
	root     bool // only root can make it
}

var traps = map[string]trap{
	"absolute symlink": {
		plant:    func(s *scene) { s.link("absolute", filepath.Join(s.outside, "secret")) },
		restored: map[string]fs.FileMode{"absolute": fs.ModeSymlink},
	},
	"symlink to the system": {
		plant:    func(s *scene) { s.link("shadow", "/etc/shadow") },
		restored: map[string]fs.FileMode{"shadow": fs.ModeSymlink},
	},
	"relative symlink": {
		plant:    func(s *scene) { s.link("relative", "../../../../victim/volumes/kubernetes.io~empty-dir/data/secret") },
		restored: map[string]fs.FileMode{"relative": fs.ModeSymlink},
	},
	"chain of symlinks": {
		plant: func(s *scene) {
			s.link("chain/first", "second")
			s.link("chain/second", "../chain/third")
			s.link("chain/third", s.outside)
		},
		restored: map[string]fs.FileMode{"chain/first": fs.ModeSymlink, "chain/second": fs.ModeSymlink, "chain/third": fs.ModeSymlink},
	},
	"symlinked directory": {
		plant:    func(s *scene) { s.link("directory", s.outside) },
		restored: map[string]fs.FileMode{"directory": fs.ModeSymlink},
	},
	"symlink into proc": {
		plant: func(s *scene) {
			s.link("proc-root", "/proc/1/root"+s.outside)
			s.link("cwd", "/proc/self/cwd/../../../../victim")
		},
		restored: map[string]fs.FileMode{"proc-root": fs.ModeSymlink, "cwd": fs.ModeSymlink},
	},
	"hard links": {
		plant: func(s *scene) {
			s.write("hard/one", "linked")
			s.must(os.Link(s.in("hard/one"), s.in("hard/two")))
		},
		restored: map[string]fs.FileMode{"hard/one": 0, "hard/two": 0},
	},
	"names of mounts": {
		plant: func(s *scene) {
			for _, name := range []string{"proc/1/environ", "sys/kernel", "dev/null", "mnt (deleted)", `octal\040space`, "overlay /etc rw 0 0"} {
				s.write("mounts/"+name, name)
			}
		},
		restored: map[string]fs.FileMode{"mounts/proc/1/environ": 0, "mounts/mnt (deleted)": 0, `mounts/octal\040space`: 0, "mounts/overlay /etc rw 0 0": 0},
	},
	"names that begin with dots": {
		plant: func(s *scene) {
			for _, name := range []string{"..data", "...", "..\\..\\victim", ".. /secret"} {
				s.write(name, name)
			}
		},
		restored: map[string]fs.FileMode{"..data": 0, "...": 0, "..\\..\\victim": 0, ".. /secret": 0},
	},
	"names of options": {
		plant: func(s *scene) {
			for _, name := range []string{"-rf", "--files-from=secret", "--exclude=*", "--password-command=id", "@list", "@..", "--", "-", "*", "$(id)"} {
				s.write(name, name)
			}
		},
		restored: map[string]fs.FileMode{"-rf": 0, "--files-from=secret": 0, "--exclude=*": 0, "@list": 0, "--": 0, "-": 0, "*": 0, "$(id)": 0},
	},
	"names with control characters": {
		plant: func(s *scene) {
			s.write("new\nline", "")
			s.write("\x1b[2K\rfake", "")
			s.write(`{"message_type":"summary"}`, "")
		},
		restored: map[string]fs.FileMode{"new\nline": 0, "\x1b[2K\rfake": 0, `{"message_type":"summary"}`: 0},
	},
	"names that are not UTF-8": {
		plant:    func(s *scene) { s.write("invalid\xff\xfe", "") },
		restored: map[string]fs.FileMode{"invalid\xff\xfe": 0}, rare: true,
	},
	"FIFO": {
		plant:    func(s *scene) { s.must(unix.Mkfifo(s.in("fifo"), 0o666)) },
		restored: map[string]fs.FileMode{"fifo": fs.ModeNamedPipe}, rare: true,
	},
	"Unix socket": {
		plant: func(s *scene) {
			// Its path would be too long to listen on.
			fd, err := unix.Open(s.volume, unix.O_PATH, 0)
			s.must(err)
			defer unix.Close(fd)
			l, err := net.Listen("unix", "/proc/self/fd/"+strconv.Itoa(fd)+"/socket")
			s.must(err)
			s.t.Cleanup(func() { l.Close() })
		},
	},
	"devices": {
		plant: func(s *scene) {
			s.must(unix.Mknod(s.in("devices/endless"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))) // /dev/zero
			s.must(unix.Mknod(s.in("devices/disk"), unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))))    // the first loop device
		},
		restored: map[string]fs.FileMode{"devices/endless": fs.ModeDevice | fs.ModeCharDevice, "devices/disk": fs.ModeDevice}, rare: true, root: true,
	},
}

// TestBackup backs up a volume with all traps in it. What lies behind them must not be in the snapshot, and they
// themselves must be in it as what they are.
func TestBackup(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	eachDataPath(t, func(t *testing.T, p dataPath) {
		s := newScene(t)
		for name, trap := range traps {
			if trap.root && os.Geteuid() != 0 {
				t.Logf("NOT TESTED: %s: only root can make them", name)
				continue
			}
			trap.plant(s)
		}
		before := s.outsideFacts()
		snapshot := p.store(t, s.open()).SnapshotID
		s.unchanged(before)

		target := newScene(t)
		if err := p.load(t, target.open(), snapshot); err != nil {
			t.Fatal(err)
		}
		unread(t, target.volume)
		for name, trap := range traps {
			if !trap.rare || !p.plain { // the data path does not store it otherwise
				t.Run(name, func(t *testing.T) { trap.check(t, p, target.volume) })
			}
		}
	})
}

// check looks for the trap itself in a restored volume.
func (trap trap) check(t *testing.T, p dataPath, dir string) {
	t.Helper()
	if trap.root && os.Geteuid() != 0 {
		t.Skip("NOT TESTED: only root can make it")
	}
	for name, want := range trap.restored {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode().Type() != want {
			t.Errorf("%q is a %v, want %v", name, info.Mode().Type(), want)
		}
	}
}
