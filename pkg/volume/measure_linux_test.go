package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const block = 4096

func TestMeasure(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		make func(t *testing.T, dir string)
		want Usage
	}{
		"empty": {make: func(*testing.T, string) {}},
		"files in directories": {
			make: func(t *testing.T, dir string) {
				t.Helper()
				write(t, filepath.Join(dir, "a"), 1)
				write(t, filepath.Join(dir, "b/b"), 10)
				write(t, filepath.Join(dir, "b/c/c"), 100)
				write(t, filepath.Join(dir, "b/d/empty"), 0)
			},
			want: Usage{Bytes: 111, Files: 4},
		},
		"complete big file with an odd size": {
			make: func(t *testing.T, dir string) { t.Helper(); write(t, filepath.Join(dir, "a"), 3<<20+1) },
			want: Usage{Bytes: 3<<20 + 1, Files: 1},
		},
		"hard links count once": {
			make: func(t *testing.T, dir string) {
				t.Helper()
				write(t, filepath.Join(dir, "a"), 1000)
				must(t, os.Mkdir(filepath.Join(dir, "b"), 0o700))
				must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b/a")))
				must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "c")))
			},
			want: Usage{Bytes: 1000, Files: 1},
		},
		"sparse file of 1 TiB": {
			make: func(t *testing.T, dir string) {
				t.Helper()
				f, err := os.Create(filepath.Join(dir, "sparse"))
				must(t, err)
				must(t, f.Truncate(1<<40))
				for _, offset := range []int64{0, 1 << 30, 1<<40 - block} {
					_, err := f.WriteAt(make([]byte, block), offset)
					must(t, err)
				}
				must(t, f.Close())
			},
			want: Usage{Bytes: 3 * block, Files: 1},
		},
		"symbolic links": {
			make: func(t *testing.T, dir string) {
				t.Helper()
				write(t, filepath.Join(dir, "a"), 5)
				for link, target := range map[string]string{
					"loop": "loop", "up": "..", "here": ".", "file": "a", "root": "/", "dangling": "nothing",
				} {
					must(t, os.Symlink(target, filepath.Join(dir, link)))
				}
			},
			want: Usage{Bytes: 5, Files: 1},
		},
		"pipe and socket": {
			make: func(t *testing.T, dir string) {
				t.Helper()
				must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
				must(t, unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o600, 0))
			},
		},
		"hostile names": {
			make: func(t *testing.T, dir string) {
				t.Helper()
				for _, name := range []string{
					"new\nline", "\xff\xfe invalid", "-rf", " ", "...", "..a", ".a", "\x1b[2J", "a\tb", strings.Repeat("x", 255),
				} {
					write(t, filepath.Join(dir, name, name), 1)
				}
			},
			want: Usage{Bytes: 10, Files: 10},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tt.make(t, dir)
			got, err := usageOf(t.Context(), open(t, dir))
			must(t, err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// restic allocates a file's space with its first blob: the size and the blocks are full at once, the data is not.
func TestMeasurePreallocatedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const size = 64 << 20
	f, err := os.Create(filepath.Join(dir, "file"))
	must(t, err)
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the file system of the temporary directory cannot preallocate")
	} else {
		must(t, err)
	}
	volume := open(t, dir)

	var written int64
	// Blobs arrive in any order.
	for _, offset := range []int64{0, 40 << 20, 3 << 20, 63 << 20} {
		blob := bytes.Repeat([]byte("data"), 1<<18-100)
		_, err := f.WriteAt(blob, offset)
		must(t, err)
		written += int64(len(blob))

		info, err := f.Stat()
		must(t, err)
		if info.Size() != size {
			t.Fatalf("size %d: the file is not preallocated", info.Size())
		}
		got, err := usageOf(t.Context(), volume)
		must(t, err)
		// Each piece may fill up the block that it ends in.
		if over := got.Bytes - written; over < 0 || over > 4*block {
			t.Errorf("measured %d bytes, written were %d", got.Bytes, written)
		}
	}
}

// A tree that makes all workers share: wide, deep and with one huge directory.
func TestMeasureAgreesWithPlainWalk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 6000 {
		write(t, filepath.Join(dir, fmt.Sprintf("flat/a-name-that-fills-the-buffer-of-getdents-%d", i)), i%5)
	}
	for i := range 40 {
		for j := range 20 {
			write(t, filepath.Join(dir, fmt.Sprintf("wide/%d/%d/%d", i, j, j)), j)
		}
	}
	var want Usage
	must(t, filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		must(t, err)
		want.Files++
		want.Bytes += info.Size()
		return nil
	}))
	for range 20 {
		fd, err := duplicate(open(t, dir))
		must(t, err)
		got, err := (&walk{}).run(fd, maxWorkers)
		must(t, err)
		if diff := cmp.Diff(want, got.Usage); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestMeasureLeavesTheDirectoryAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), 1)
	volume := open(t, dir)
	_, err := usageOf(t.Context(), volume)
	must(t, err)
	names, err := volume.Readdirnames(-1)
	must(t, err)
	if diff := cmp.Diff([]string{"a"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestMeasureDeepTree(t *testing.T) {
	t.Parallel()
	const depth = 3000
	dir := t.TempDir()
	// os.RemoveAll opens a descriptor for each level.
	t.Cleanup(func() { must(t, exec.Command("rm", "-rf", dir).Run()) })
	fd, err := duplicate(open(t, dir))
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(fd, "beside", 0o700))
		file, err := unix.Openat(fd, "beside/file", unix.O_CREAT|unix.O_WRONLY, 0o600)
		must(t, err)
		_, err = unix.Write(file, []byte("x"))
		must(t, errors.Join(err, unix.Close(file)))
		must(t, unix.Mkdirat(fd, "directory", 0o700))
		next, err := openat(fd, "directory", unix.O_RDONLY|unix.O_DIRECTORY)
		must(t, errors.Join(err, unix.Close(fd)))
		fd = next
	}
	must(t, unix.Close(fd))

	for _, workers := range []int{1, 3} {
		fd, err := duplicate(open(t, dir))
		must(t, err)
		got, err := (&walk{}).run(fd, workers)
		must(t, err)
		if diff := cmp.Diff(Usage{Bytes: depth, Files: depth}, got.Usage); diff != "" {
			t.Error(diff)
		}
	}
}

// With one worker, this walk closes what is further up than maxOpenLevels. It must not go back into another directory.
func TestMeasureDirectoryThatIsMovedMeanwhile(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "not/of/the/volume"), 1000)
	half := filepath.Join(dir, strings.Repeat("d/", maxOpenLevels))
	bottom := filepath.Join(half, strings.Repeat("d/", maxOpenLevels))
	write(t, filepath.Join(bottom, "file"), 7)

	w := &walk{onEntry: func(name string) {
		if name == "file" {
			must(t, os.Rename(half, filepath.Join(outside, "moved")))
		}
	}}
	fd, err := duplicate(open(t, dir))
	must(t, err)
	got, err := w.run(fd, 1)
	must(t, err)
	if diff := cmp.Diff(Usage{Bytes: 7, Files: 1, Skipped: 1}, got.Usage); diff != "" {
		t.Error(diff)
	}
}

func TestMeasureFilesThatVanish(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "stays"), 10)
	write(t, filepath.Join(dir, "vanishes"), 100)
	w := &walk{onEntry: func(name string) {
		if name == "vanishes" {
			must(t, os.Remove(filepath.Join(dir, name)))
		}
	}}
	fd, err := duplicate(open(t, dir))
	must(t, err)
	got, err := w.run(fd, 1)
	must(t, err)
	if diff := cmp.Diff(Usage{Bytes: 10, Files: 1}, got.Usage); diff != "" {
		t.Error(diff)
	}
}

// All but one directory vanish after they were seen and before they are opened, the last one becomes a link.
func TestMeasureDirectoriesThatVanish(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "file"), 1000)
	const dirs = 4
	for i := range dirs {
		write(t, filepath.Join(dir, fmt.Sprint("dir", i), "file"), 1)
	}
	var seen []string
	w := &walk{onEntry: func(name string) {
		if !strings.HasPrefix(name, "dir") {
			return
		}
		seen = append(seen, filepath.Join(dir, name))
		if len(seen) < dirs {
			return
		}
		for _, gone := range seen[:dirs-1] {
			must(t, os.RemoveAll(gone))
		}
		must(t, os.Symlink(outside, seen[0]))
	}}
	fd, err := duplicate(open(t, dir))
	must(t, err)
	got, err := w.run(fd, 1)
	must(t, err)
	if diff := cmp.Diff(Usage{Bytes: 1, Files: 1}, got.Usage); diff != "" {
		t.Error(diff)
	}
}

func TestDataBytesOfWhatIsNoFileAnyMore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	fd, err := duplicate(open(t, dir))
	must(t, err)
	defer unix.Close(fd)

	// What the walk saw before: a file of 10 MiB with 1 KiB on disk, its extents unknown.
	for name, want := range map[string]int64{"pipe\x00": 1024, "link\x00": 1024, "gone\x00": 0} {
		w := (&walk{}).newWorker()
		w.stat.Size, w.stat.Blocks = 10<<20, 2
		if got := w.dataBytes(fd, cstring(name)); got != want {
			t.Errorf("%q: %d bytes, want %d", name, got, want)
		}
		if w.usage.Skipped != 0 {
			t.Errorf("%q: counted as skipped", name)
		}
	}
}

func TestMeasureCountsWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	write(t, filepath.Join(dir, "readable"), 1)
	write(t, filepath.Join(dir, "locked/file"), 10)
	write(t, filepath.Join(dir, "big"), 1<<20)
	must(t, os.Chmod(filepath.Join(dir, "locked"), 0))
	must(t, os.Chmod(filepath.Join(dir, "big"), 0))
	t.Cleanup(func() { must(t, os.Chmod(filepath.Join(dir, "locked"), 0o700)) })
	fd, err := duplicate(open(t, dir))
	must(t, err)

	got, err := runAsNobody(t, func() (usage, error) { return (&walk{}).run(fd, 1) })
	must(t, err)
	if diff := cmp.Diff(Usage{Bytes: 1<<20 + 1, Files: 2, Skipped: 2}, got.Usage); diff != "" {
		t.Error(diff)
	}
}

// runAsNobody runs f, which must stay in its goroutine, as a user who may read only what everybody may.
func runAsNobody(t *testing.T, f func() (usage, error)) (usage, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := unix.SetfsuidRetUid(65534)
	must(t, err)
	defer func() {
		_, err := unix.SetfsuidRetUid(0)
		must(t, err)
	}()
	return f()
}

func TestMeasureStaysOnItsMount(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "file"), 1)
	write(t, filepath.Join(dir, "dir/file"), 1)
	write(t, filepath.Join(other, "file"), 1000)
	for _, name := range []string{"tmpfs", "bind"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	write(t, filepath.Join(dir, "bindfile"), 0)
	mount(t, "tmpfs", filepath.Join(dir, "tmpfs"), "tmpfs", 0)
	write(t, filepath.Join(dir, "tmpfs/file"), 1000)
	mount(t, other, filepath.Join(dir, "bind"), "", unix.MS_BIND)
	mount(t, filepath.Join(other, "file"), filepath.Join(dir, "bindfile"), "", unix.MS_BIND)

	got, err := usageOf(t.Context(), open(t, dir))
	must(t, err)
	if diff := cmp.Diff(Usage{Bytes: 2, Files: 2}, got); diff != "" {
		t.Error(diff)
	}

	// The volume itself is a mount.
	got, err = usageOf(t.Context(), open(t, filepath.Join(dir, "bind")))
	must(t, err)
	if diff := cmp.Diff(Usage{Bytes: 1000, Files: 1}, got); diff != "" {
		t.Error(diff)
	}
}

func mount(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	err := unix.Mount(source, target, fstype, flags, "")
	if errors.Is(err, unix.EPERM) {
		t.Skip("not allowed to mount")
	}
	must(t, err)
	t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
}

func TestIsMountpoint(t *testing.T) {
	t.Parallel()
	dir := inode{major: 8, minor: 1}
	tests := map[string]struct {
		stat unix.Statx_t
		want bool
	}{
		"mount of the same device": {
			stat: unix.Statx_t{Dev_major: 8, Dev_minor: 1, Attributes_mask: unix.STATX_ATTR_MOUNT_ROOT, Attributes: unix.STATX_ATTR_MOUNT_ROOT},
			want: true,
		},
		"subvolume":                {stat: unix.Statx_t{Dev_major: 0, Dev_minor: 42, Attributes_mask: unix.STATX_ATTR_MOUNT_ROOT}},
		"old kernel, same device":  {stat: unix.Statx_t{Dev_major: 8, Dev_minor: 1}},
		"old kernel, other device": {stat: unix.Statx_t{Dev_major: 8, Dev_minor: 2}, want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := isMountpoint(&tt.stat, dir); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestMeasureIsCanceled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 10 {
		write(t, filepath.Join(dir, strconv.Itoa(i), "file"), 1)
	}
	canceled, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the pod is gone")
	cancel(cause)
	if _, err := usageOf(canceled, open(t, dir)); !errors.Is(err, cause) {
		t.Errorf("error %v, want %v", err, cause)
	}
}

func TestWalkStopsInTheMiddle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const dirs = 50
	for i := range dirs {
		write(t, filepath.Join(dir, strconv.Itoa(i), "file"), 1)
	}
	done := make(chan struct{})
	looks := 0
	w := &walk{done: done, onEntry: func(name string) {
		if name == "file" && looks == 0 {
			close(done)
		}
		if name == "file" {
			looks++
		}
	}}
	fd, err := duplicate(open(t, dir))
	must(t, err)
	_, err = w.run(fd, 1)
	must(t, err)
	if looks != 1 {
		t.Errorf("looked at %d files after it was stopped", looks-1)
	}
}

func TestMeasureErrors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, 1)
	if _, err := usageOf(t.Context(), open(t, file)); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file: error %v, want %v", err, unix.ENOTDIR)
	}
	closed := open(t, t.TempDir())
	must(t, closed.Close())
	if _, err := usageOf(t.Context(), closed); err == nil {
		t.Error("a closed directory: no error")
	}
}

// usageOf measures everything, whenever it changed.
func usageOf(ctx context.Context, dir *os.File) (Usage, error) {
	sum, err := measure(ctx, dir, 0, nil)
	return sum.Usage, err
}

func write(tb testing.TB, path string, size int) {
	tb.Helper()
	must(tb, os.MkdirAll(filepath.Dir(path), 0o700))
	must(tb, os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600))
}

func open(tb testing.TB, path string) *os.File {
	tb.Helper()
	f, err := os.Open(path)
	must(tb, err)
	tb.Cleanup(func() { _ = f.Close() })
	return f
}
