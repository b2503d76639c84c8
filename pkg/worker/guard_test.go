package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// changes are the ways to change a file by its path.
var changes = map[string]func(path string) error{
	"fchmodat":            func(path string) error { return unix.Fchmodat(cwd, path, 0o640, 0) },
	"fchmodat2":           func(path string) error { return callWithPath(unix.SYS_FCHMODAT2, cwd, path, 0o640, 0) },
	"fchownat":            func(path string) error { return unix.Fchownat(cwd, path, os.Getuid(), os.Getgid(), 0) },
	"fchownat, not link":  func(path string) error { return unix.Fchownat(cwd, path, os.Getuid(), os.Getgid(), noFollow) },
	"utimensat":           func(path string) error { return unix.UtimesNanoAt(cwd, path, make([]unix.Timespec, 2), 0) },
	"utimensat to now":    func(path string) error { return callWithPath(unix.SYS_UTIMENSAT, cwd, path, 0, 0) },
	"utimensat, not link": func(path string) error { return unix.UtimesNanoAt(cwd, path, make([]unix.Timespec, 2), noFollow) },
	"setxattr":            func(path string) error { return unix.Setxattr(path, "user.test", []byte("1"), 0) },
	"removexattr":         func(path string) error { return unix.Removexattr(path, "user.test") },
	"lsetxattr":           func(path string) error { return unix.Lsetxattr(path, "user.test", []byte("1"), 0) },
	"lremovexattr":        func(path string) error { return unix.Lremovexattr(path, "user.test") },
	"truncate":            func(path string) error { return unix.Truncate(path, 3) },
}

const (
	cwd      = unix.AT_FDCWD
	noFollow = unix.AT_SYMLINK_NOFOLLOW
)

// inOrder are the names of changes: an attribute is set before it is removed, and the time comes last.
func inOrder() []string {
	order := func(name string) int {
		return slices.IndexFunc([]string{"setxattr", "removexattr", "lsetxattr", "lremovexattr", "", "utimensat"}, func(last string) bool { return last == name })
	}
	names := slices.Sorted(maps.Keys(changes))
	slices.SortStableFunc(names, func(a, b string) int { return order(a) - order(b) })
	return names
}

// callWithPath makes a call that golang.org/x/sys/unix makes differently.
func callWithPath(nr uintptr, dir int, path string, a, b uintptr) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall6(nr, uintptr(dir), uintptr(unsafe.Pointer(p)), a, b, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// changeMetadata makes each change of each path that it is given and writes what does not succeed.
func changeMetadata(paths []string) int {
	for _, path := range paths {
		for _, name := range inOrder() {
			fmt.Printf("%s %s: %v\n", filepath.Base(path), name, changes[name](path))
		}
	}
	return 0
}

// guardScene is a volume with links that lead out, beside files of somebody else.
type guardScene struct{ root, volume, outside string }

func newGuardScene(t *testing.T) guardScene {
	t.Helper()
	if !GuardsMetadata() {
		t.Skip("this kernel cannot guard metadata")
	}
	s := guardScene{root: t.TempDir()}
	s.volume, s.outside = filepath.Join(s.root, "volume"), filepath.Join(s.root, "outside")
	for _, dir := range []string{filepath.Join(s.volume, "sub"), filepath.Join(s.outside, "sub")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{filepath.Join(dir, "nested"), filepath.Join(dir, "..", "file")} {
			if err := os.WriteFile(file, []byte("content"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for link, target := range map[string]string{
		"escape": filepath.Join(s.outside, "file"), "up": "..", "away": filepath.Join(s.outside, "sub"), "dangling": filepath.Join(s.outside, "none"),
	} {
		if err := os.Symlink(target, filepath.Join(s.volume, link)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// run runs a script in the volume as a restore.
func (s guardScene) run(t *testing.T, script string, args ...string) []string {
	t.Helper()
	c, r := command(t, self, append([]string{script}, args...)...)
	c.Dir = openDir(t, s.volume)
	c.Access.Volume = Write
	return runOK(t, c, r)
}

// outsideStats returns what there is outside. The kernel changes the second time with anything else.
func (s guardScene) outsideStats(t *testing.T) map[string]string {
	t.Helper()
	seen := map[string]string{}
	err := filepath.WalkDir(s.outside, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		err = unix.Lstat(path, &stat)
		seen[path] = fmt.Sprintf("%o %d %d %d %v %v", stat.Mode, stat.Uid, stat.Gid, stat.Size, stat.Mtim, stat.Ctim)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func TestGuardInside(t *testing.T) {
	t.Parallel()
	s := newGuardScene(t)
	paths := []string{"file", "./sub/../file", "sub//nested", filepath.Join(s.volume, "file"), filepath.Join(s.volume, "sub", "nested"), "volume-dir/"}
	if err := os.Mkdir(filepath.Join(s.volume, "volume-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, line := range s.run(t, "script-metadata", paths...) {
		if !strings.HasSuffix(line, ": <nil>") && line != "volume-dir truncate: is a directory" {
			t.Error(line)
		}
	}
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(s.volume, "file"), &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Mode&0o777 != 0o640 || stat.Mtim.Nano() != 0 || stat.Size != 3 {
		t.Errorf("file has mode %o, time %v, %d bytes", stat.Mode, stat.Mtim, stat.Size)
	}
}

func TestGuardOutside(t *testing.T) {
	t.Parallel()
	s := newGuardScene(t)
	before := s.outsideStats(t)
	paths := []string{
		filepath.Join(s.outside, "file"), "../outside/file", "sub/../../outside/file", "up/outside/file", "away/nested",
		filepath.Join(s.volume, "..", "outside", "file"), filepath.Join(s.volume, "away", "nested"), s.volume + "side/file",
		"/proc/self/root" + s.outside + "/file", "/proc/self/cwd/../outside/file",
	}
	for _, line := range s.run(t, "script-metadata", paths...) {
		if !strings.HasSuffix(line, ": permission denied") && !strings.HasSuffix(line, ": too many levels of symbolic links") {
			t.Error(line)
		}
	}
	for _, line := range s.run(t, "script-metadata", "escape", "dangling") {
		_, what, _ := strings.Cut(line, " ")
		follows := !strings.Contains(what, "not link") && !strings.HasPrefix(what, "l")
		denied := strings.HasSuffix(line, ": too many levels of symbolic links")
		if follows != denied && !strings.HasPrefix(what, "l") { // links have no such attributes
			t.Error(line)
		}
	}
	if diff := cmp.Diff(before, s.outsideStats(t)); diff != "" {
		t.Errorf("outside something has changed (-before +after):\n%s", diff)
	}
}

// useDirectories changes files through directories and files that it has opened: the first argument lies outside.
func useDirectories(args []string) int {
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			fmt.Println(path, err)
		}
		return fd
	}
	outside, sub, canary, file, link := open(args[0]), open("sub"), open(args[0]+"/file"), open("file"), open("escape")
	own := os.Getuid()
	report := func(what string, err error) { fmt.Printf("%s: %v\n", what, err) }
	report("outside", unix.Fchownat(outside, "file", own, own, 0))
	report("outside from inside", unix.Fchownat(sub, "../../outside/file", own, own, 0))
	report("open file outside", unix.Fchownat(canary, "", own, own, unix.AT_EMPTY_PATH))
	report("mode of open file outside", callWithPath(unix.SYS_FCHMODAT2, canary, "", 0o777, unix.AT_EMPTY_PATH))
	report("inside", unix.Fchownat(sub, "nested", own, own, 0))
	report("parent inside", unix.Fchownat(sub, "../file", own, own, 0))
	report("open file", unix.Fchownat(file, "", own, own, unix.AT_EMPTY_PATH))
	report("open link", unix.Fchownat(link, "", own, own, unix.AT_EMPTY_PATH))
	report("working directory", unix.Fchownat(unix.AT_FDCWD, "", own, own, unix.AT_EMPTY_PATH))
	report("no path", unix.Fchownat(file, "", own, own, 0))
	report("closed", unix.Fchownat(999, "file", own, own, 0))
	report("bad flag", unix.Fchownat(unix.AT_FDCWD, "file", own, own, 0x4000))
	f, err := os.OpenFile("file", os.O_RDWR, 0)
	report("open", err)
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, f.Fd(), 0, 0, 0, 0, 0)
	report("futimens", errno)
	_, _, errno = unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(canary), 0, 0, 0, 0, 0)
	report("futimens outside", errno)
	_, _, errno = unix.Syscall6(unix.SYS_UTIMENSAT, f.Fd(), 0, 0, unix.AT_SYMLINK_NOFOLLOW, 0, 0)
	report("futimens with a flag", errno)
	_, _, errno = unix.Syscall6(unix.SYS_UTIMENSAT, ^uintptr(99), 0, 0, 0, 0, 0) // AT_FDCWD
	report("futimens without a file", errno)
	report("fchmod", f.Chmod(0o600))
	report("chdir", os.Chdir("sub"))
	report("after chdir", os.Chmod("nested", 0o600))
	report("outside after chdir", os.Chmod("../../outside/file", 0o600))
	return 0
}

func TestGuardOpenDirectories(t *testing.T) {
	t.Parallel()
	s := newGuardScene(t)
	before := s.outsideStats(t)
	want := []string{
		"outside: permission denied", "outside from inside: permission denied", "open file outside: permission denied",
		"mode of open file outside: permission denied", "inside: <nil>", "parent inside: <nil>", "open file: <nil>", "open link: <nil>",
		"working directory: <nil>", "no path: no such file or directory", "closed: bad file descriptor", "bad flag: invalid argument",
		"open: <nil>", "futimens: errno 0", "futimens outside: bad file descriptor", "futimens with a flag: bad address",
		"futimens without a file: bad address", "fchmod: <nil>", "chdir: <nil>", "after chdir: <nil>", "outside after chdir: chmod ../../outside/file: permission denied",
	}
	if diff := cmp.Diff(want, s.run(t, "script-directories", s.outside)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, s.outsideStats(t)); diff != "" {
		t.Errorf("outside something has changed (-before +after):\n%s", diff)
	}
}

// passNonsense makes calls with arguments that are none.
func passNonsense([]string) int {
	const chown = unix.SYS_FCHOWNAT
	here := ^uintptr(99) // AT_FDCWD
	call := func(what string, nr uintptr, args ...uintptr) {
		args = append(args, make([]uintptr, 6)...)
		_, _, errno := unix.Syscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5])
		fmt.Printf("%s: %v\n", what, errno)
	}
	text := func(s string) uintptr {
		p, _ := unix.BytePtrFromString(s)
		pinned = append(pinned, p)
		return uintptr(unsafe.Pointer(p))
	}
	own := uintptr(os.Getuid())
	file := text("file")
	for what, pointer := range map[string]uintptr{"null": 0, "low": 1, "high": ^uintptr(0), "kernel": 1 << 63} {
		call("path "+what, chown, here, pointer, own, own)
		call("times "+what, unix.SYS_UTIMENSAT, here, file, pointer)
		call("attribute "+what, unix.SYS_SETXATTR, file, pointer, file, 1)
		call("value "+what, unix.SYS_SETXATTR, file, text("user.x"), pointer, 1)
	}
	call("long path", chown, here, text(strings.Repeat("a", 5000)), own, own)
	call("deep path", chown, here, text(strings.Repeat("./", 2040)+"file"), own, own)
	call("long name", chown, here, text(strings.Repeat("a", 256)), own, own)
	call("long attribute", unix.SYS_SETXATTR, file, text("user."+strings.Repeat("a", 300)), file, 1)
	call("no attribute", unix.SYS_SETXATTR, file, text(""), file, 1)
	call("large value", unix.SYS_SETXATTR, file, text("user.x"), file, 1<<40)
	call("empty value", unix.SYS_SETXATTR, file, text("user.x"), 0, 0)

	page := os.Getpagesize()
	pages, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		fmt.Println("no pages:", err)
		return 1
	}
	_, _, _ = unix.Syscall(unix.SYS_MUNMAP, uintptr(unsafe.Pointer(&pages[page])), uintptr(page), 0)
	copy(pages[page-5:page], "file\x00")
	call("path at the end of a page", chown, here, uintptr(unsafe.Pointer(&pages[page-5])), own, own)
	copy(pages[page-4:page], "file")
	call("path without an end", chown, here, uintptr(unsafe.Pointer(&pages[page-4])), own, own)
	for i, refused := range refused {
		call(fmt.Sprint("refused ", i), uintptr(refused))
	}
	return 0
}

// pinned keeps what the kernel reads from being collected.
var pinned []*byte

func TestGuardNonsense(t *testing.T) {
	t.Parallel()
	s := newGuardScene(t)
	want := []string{
		"path at the end of a page: errno 0", "path without an end: bad address", "deep path: errno 0", "long path: file name too long", "long name: file name too long",
		"long attribute: numerical result out of range", "no attribute: numerical result out of range", "large value: argument list too long",
		"empty value: errno 0", "times null: errno 0",
	}
	for _, what := range []string{"path", "attribute", "value", "times"} {
		for _, pointer := range []string{"null", "low", "high", "kernel"} {
			if what != "times" || pointer != "null" {
				want = append(want, what+" "+pointer+": bad address")
			}
		}
	}
	for i := range refused {
		want = append(want, fmt.Sprintf("refused %d: function not implemented", i))
	}
	got := s.run(t, "script-nonsense")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// changeForever changes a file from several threads, and ends never.
func changeForever(args []string) int {
	changed := sync.OnceFunc(func() { fmt.Println("changed") })
	for range 8 {
		go func() {
			for {
				if os.Chmod(args[0], 0o777) == nil {
					changed()
				}
			}
		}()
	}
	select {}
}

// A directory is swapped for a link to one outside while files in it are changed.
func TestGuardRace(t *testing.T) {
	t.Parallel()
	s := newGuardScene(t)
	before := s.outsideStats(t)
	c, r := command(t, self, "script-forever", filepath.Join(s.volume, "sub", "nested"))
	c.Dir = openDir(t, s.volume)
	c.Access.Volume = Write
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{})
	r.events = map[string]func(){"changed": func() { close(changed) }}
	var swapping sync.WaitGroup
	swapping.Go(func() {
		defer cancel()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		for range 2000 {
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(s.volume, "sub"), unix.AT_FDCWD, filepath.Join(s.volume, "away"), unix.RENAME_EXCHANGE)
			runtime.Gosched()
		}
	})
	var exit *ExitError
	if err := Run(ctx, c); !errors.As(err, &exit) || exit.Signal == nil {
		t.Error(err)
	}
	cancel()
	swapping.Wait()
	if diff := cmp.Diff(before, s.outsideStats(t)); diff != "" {
		t.Errorf("outside something has changed (-before +after):\n%s", diff)
	}
}

// Not parallel: no other test may open files meanwhile. That no goroutine stays TestMain finds out.
func TestGuardClosesFiles(t *testing.T) { //nolint:paralleltest // see above
	s := newGuardScene(t)
	count := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	dir := openDir(t, s.volume)
	run := func(script string, args ...string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c, r := command(t, self, append([]string{script}, args...)...)
		c.Dir.Close()
		c.Dir, c.Access = dir, Access{Volume: Write, ReadWrite: []string{s.volume}}
		r.events = map[string]func(){"changed": cancel}
		if err := Run(ctx, c); (err == nil) != (script == "script-metadata") {
			t.Errorf("%s: %v", script, err)
		}
	}
	run("script-metadata", "file")
	before := count()
	for range 3 {
		run("script-metadata", "file")
		run("script-forever", "file") // killed while it waits for answers
	}
	c, _ := command(t, filepath.Join(s.volume, "none"))
	c.Dir.Close()
	c.Dir, c.Access.Volume = dir, Write
	if err := Run(t.Context(), c); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	// Run does not wait for the guard for longer than strayDelay, which a busy machine may not give it.
	deadline := time.Now().Add(patience)
	for count() != before && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if after := count(); after != before {
		t.Errorf("%d files are open, before there were %d", after, before)
	}
}

// Where a container runtime listens itself there cannot be a second listener. A restore goes on and says so.
func TestGuardImpossible(t *testing.T) {
	t.Parallel()
	newGuardScene(t)
	agent := agentCommand(t, "listened", self, "script-restore")
	out, err := agent.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "\nerror: <nil>\n") || !strings.Contains(string(out), "device or resource busy") {
		t.Errorf("%v\n%s", err, out)
	}
}
