package volume

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// recorded makes the records of a directory, as a repository has them.
func recorded(t *testing.T, dir string) (entries []Recorded, archive []byte) {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		at, inode := strings.TrimPrefix(path, dir+"/"), info.Sys().(*syscall.Stat_t)
		shown := strings.Map(func(r rune) rune { return r }, at) // with U+FFFD for each byte that is no UTF-8, as restic ls
		entries = append(entries, Recorded{shown, info.Mode(), info.ModTime(), inode.Uid, inode.Gid})
		target, _ := os.Readlink(path)
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		header.Name = at
		if info.Mode()&fs.ModeNamedPipe != 0 { // as restic does at the top
			header.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return entries, out.Bytes()
}

// compared holds a directory against records.
func compared(t *testing.T, dir string, entries []Recorded, archive []byte) (Compared, error) {
	t.Helper()
	c := NewComparison(openForTest(t, dir), func(int64, int64, string) {})
	defer c.Close()
	for _, e := range entries {
		if err := c.Entry(e); err != nil {
			return Compared{}, err
		}
	}
	err := c.Archive(t.Context(), bytes.NewReader(archive))
	return c.Compared(), err
}

// TestCompare changes one thing in a volume, and the comparison finds it, and nothing else.
func TestCompare(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	for name, test := range map[string]struct {
		change func(dir string) error
		want   map[string]int64
		paths  []string
	}{
		"nothing":            {func(string) error { return nil }, map[string]int64{}, nil},
		"lost+found of mkfs": {func(dir string) error { return os.Mkdir(dir+"/lost+found", 0o700) }, map[string]int64{}, nil},
		"lost+found with a file": {func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/lost+found", 0o700), os.WriteFile(dir+"/lost+found/#1", nil, 0o600))
		}, map[string]int64{"unexpected": 1}, []string{"lost+found"}},
		"content": {func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/a/b/file", []byte("CONTENT"), 0o600), os.Chtimes(dir+"/a/b/file", at, at))
		}, map[string]int64{"content": 1}, []string{"a/b/file"}},
		"size and time": {func(dir string) error { return os.WriteFile(dir+"/a/b/file", []byte("longer content"), 0o600) }, map[string]int64{"content": 1, "time": 1}, []string{"a/b/file"}},
		"nanoseconds":   {func(dir string) error { return os.Chtimes(dir+"/top", at, at.Add(1)) }, map[string]int64{"time": 1}, []string{"top"}},
		"mode":          {func(dir string) error { return os.Chmod(dir+"/a", 0o700) }, map[string]int64{"mode": 1}, []string{"a"}},
		"setuid":        {func(dir string) error { return unix.Chmod(dir+"/top", 0o4600) }, map[string]int64{"mode": 1}, []string{"top"}},
		"owner":         {func(dir string) error { return os.Lchown(dir+"/link", 1, 2) }, map[string]int64{"owner": 1}, []string{"link"}},
		"target": {func(dir string) error {
			return errors.Join(os.Remove(dir+"/link"), os.Symlink("b/file", dir+"/link"), lutimes(dir+"/link", at))
		}, map[string]int64{"target": 1}, []string{"link"}},
		"file missing":      {func(dir string) error { return errors.Join(os.Remove(dir + "/top")) }, map[string]int64{"missing": 1}, []string{"top"}},
		"directory missing": {func(dir string) error { return errors.Join(os.RemoveAll(dir+"/a"), os.Remove(dir+"/link")) }, map[string]int64{"missing": 5}, []string{"a", "a/b", "a/b/file", "a/empty", "link"}},
		"FIFO missing":      {func(dir string) error { return os.Remove(dir + "/pipe") }, map[string]int64{"missing": 1}, []string{"pipe"}},
		"FIFO is a file": {func(dir string) error {
			return errors.Join(os.Remove(dir+"/pipe"), os.WriteFile(dir+"/pipe", nil, 0o600))
		}, map[string]int64{"type": 1}, []string{"pipe"}},
		"file too many": {func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/a/empty/more", nil, 0o600), os.Chtimes(dir+"/a/empty", at, at))
		}, map[string]int64{"unexpected": 1}, []string{"a/empty/more"}},
		"directory too many": {func(dir string) error { return os.MkdirAll(dir+"/more/and/more", 0o700) }, map[string]int64{"unexpected": 1}, []string{"more"}},
		"file is a link": {func(dir string) error {
			return errors.Join(os.Remove(dir+"/top"), os.Symlink("/etc/passwd", dir+"/top"))
		}, map[string]int64{"type": 1}, []string{"top"}},
		"directory is a link": {func(dir string) error {
			return errors.Join(os.Rename(dir+"/a", dir+"/elsewhere"), os.Symlink("elsewhere", dir+"/a"))
		}, map[string]int64{"type": 1, "missing": 3, "unexpected": 1}, []string{"a", "a/b", "a/b/file", "a/empty", "elsewhere"}},
		"file whose name is shown like a FIFO's": {func(dir string) error { return os.Remove(dir + "/x\ufffd") }, map[string]int64{"missing": 1}, []string{"x\ufffd"}},
		"name that is no UTF-8":                  {func(dir string) error { return os.Chmod(dir+"/\xff", 0o644) }, map[string]int64{"mode": 1}, []string{"\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeAll(t, dir, map[string]string{"top": "top", "a/b/file": "content", "link": "->a/b", "\xff": "odd", "x\ufffd": "even"})
			err := errors.Join(os.Mkdir(dir+"/a/empty", 0o750), unix.Mkfifo(dir+"/pipe", 0o640), unix.Mkfifo(dir+"/x\xff", 0o640), lutimes(dir+"/link", at))
			for _, d := range []string{"a/b", "a/empty", "a"} {
				err = errors.Join(err, os.Chtimes(filepath.Join(dir, d), at, at))
			}
			entries, archive := recorded(t, dir)
			if err := errors.Join(err, test.change(dir)); err != nil {
				t.Fatal(err)
			}
			got, err := compared(t, dir, entries, archive)
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got.Paths)
			if !maps.Equal(got.Differences, test.want) || got.Mismatched != int64(len(test.paths)) || !slices.Equal(got.Paths, test.paths) {
				t.Errorf("%+v, want %v at %q", got, test.want, test.paths)
			}
			if name == "nothing" && (got.Files != 4 || got.Bytes != int64(len("top"+"content"+"odd"+"even"))) {
				t.Errorf("%d files with %d bytes are the same", got.Files, got.Bytes)
			}
		})
	}
}

func lutimes(path string, at time.Time) error {
	times := []unix.Timespec{unix.NsecToTimespec(at.UnixNano()), unix.NsecToTimespec(at.UnixNano())}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
}

// TestCompareNameOfAnother: a file system that does not tell A from a has one file for two, and finds it by both names.
func TestCompareNameOfAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeAll(t, dir, map[string]string{"a": "content"})
	c := NewComparison(openForTest(t, dir), func(int64, int64, string) {})
	defer c.Close()
	level := &c.tree.levels[0]
	level.names = map[string]bool{"A": true, "a": true, "b": false}
	if err := c.unexpected(".", level); err != nil {
		t.Fatal(err)
	}
	if got := c.Compared(); got.Mismatched != 1 || !slices.Equal(got.Paths, []string{"A"}) || got.Differences[differsMissing] != 1 {
		t.Errorf("%+v", got)
	}
}

// TestCompareExcept leaves out one entry of the top directory, and not those of its name elsewhere.
func TestCompareExcept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeAll(t, dir, map[string]string{"d/file": "content"})
	entries, archive := recorded(t, dir)
	writeAll(t, dir, map[string]string{"ours/draft": "", "d/ours": ""})
	c := NewComparison(openForTest(t, dir), func(int64, int64, string) {})
	defer c.Close()
	c.Except("ours")
	for _, e := range entries {
		if err := c.Entry(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Archive(t.Context(), bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if got := c.Compared(); got.Differences[differsUnexpected] != 1 || slices.Contains(got.Paths, "ours") || !slices.Contains(got.Paths, "d/ours") {
		t.Errorf("%+v", got)
	}
}

// TestCompareHostileRecords: an archive that is cut off, or leads out of the volume, is an error and no result.
func TestCompareHostileRecords(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	dir := filepath.Join(outside, "volume")
	writeAll(t, outside, map[string]string{"secret": "secret", "volume/file": strings.Repeat("x", 4096)})
	entries, archive := recorded(t, dir)
	for name, content := range map[string][]byte{
		"cut off": archive[:1500], "..": archiveOf(t, "../secret", "secret"), "within": archiveOf(t, "file/../../secret", "secret"), "dots at the end": archiveOf(t, "file/..", ""),
	} {
		if got, err := compared(t, dir, entries, content); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got, err := compared(t, dir, []Recorded{{Path: "../secret"}}, archive); err == nil {
		t.Errorf("an entry that leads out: %+v", got)
	}
}

func archiveOf(t *testing.T, name, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o600, Format: tar.FormatGNU})
	_, writeErr := w.Write([]byte(content))
	if err := errors.Join(err, writeErr, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
