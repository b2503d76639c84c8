package faultfs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// write makes a file of this many bytes.
func write(t *testing.T, name string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.Repeat([]byte("x"), size), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPassesOn(t *testing.T) {
	t.Parallel()
	_, dir, backing := ForTest(t)
	write(t, filepath.Join(backing, "sub/below"), 300_000)
	if content, err := os.ReadFile(filepath.Join(dir, "sub/below")); err != nil || len(content) != 300_000 {
		t.Errorf("read through the mount: %d bytes, %v", len(content), err)
	}
	write(t, filepath.Join(dir, "new/file"), 5)
	for _, err := range []error{
		os.Link(filepath.Join(dir, "new/file"), filepath.Join(dir, "hard")),
		os.Symlink("hard", filepath.Join(dir, "soft")),
		os.Chmod(filepath.Join(dir, "hard"), 0o600),
		os.Rename(filepath.Join(dir, "hard"), filepath.Join(dir, "sub/hard")),
		os.Remove(filepath.Join(dir, "new/file")),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(filepath.Join(backing, "sub/hard")); err != nil || info.Mode().Perm() != 0o600 || info.Size() != 5 {
		t.Errorf("backing file: %v, %v", info, err)
	}
}

// A lost write succeeds, and the file does not have it.
func TestLoses(t *testing.T) {
	t.Parallel()
	volume, dir, _ := ForTest(t)
	volume.Inject(Fault{Op: Write, Path: "new", After: 300_000, Lose: true})
	name := filepath.Join(dir, "new")
	write(t, name, 500_000)
	if err := os.Truncate(name, 500_000); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(name); err != nil || info.Size() != 300_000 {
		t.Errorf("got %v, %v, want 300000 bytes", info, err)
	}
}

func TestFails(t *testing.T) {
	t.Parallel()
	stat := func(dir string) error { _, err := os.Lstat(filepath.Join(dir, "sub/file")); return err }
	read := func(dir string) error { _, err := os.ReadFile(filepath.Join(dir, "sub/file")); return err }
	list := func(dir string) error { _, err := os.ReadDir(filepath.Join(dir, "sub")); return err }
	create := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "sub/new"), make([]byte, 500_000), 0o600)
	}
	access := func(dir string) error { return unix.Access(filepath.Join(dir, "sub"), unix.X_OK) } // chdir asks the same
	cases := map[string]struct {
		fault  Fault
		action func(dir string) error
		want   error
	}{
		"stat":          {Fault{Op: Stat, Path: "sub/*", Errno: syscall.ENOENT}, stat, syscall.ENOENT},
		"access":        {Fault{Op: Stat, Path: "sub", From: 2, Errno: syscall.EIO}, access, syscall.EIO}, // the first one looks it up
		"open":          {Fault{Op: Open, Path: "sub/file", Errno: syscall.EACCES}, read, syscall.EACCES},
		"read":          {Fault{Op: Read, Path: "**", Errno: syscall.EIO}, read, nil}, // ** alone is a pattern of path.Match: one name
		"read below":    {Fault{Op: Read, Path: "sub/**", Errno: syscall.EIO}, read, syscall.EIO},
		"read all":      {Fault{Op: Read, Errno: syscall.EREMOTEIO}, read, syscall.EREMOTEIO},
		"read the end":  {Fault{Op: Read, After: 99_999, Errno: syscall.ESTALE}, read, syscall.ESTALE},
		"other path":    {Fault{Op: Open, Path: "file", Errno: syscall.EIO}, read, nil},
		"listing":       {Fault{Op: List, Path: "sub", Errno: syscall.EIO}, list, syscall.EIO},
		"listing, late": {Fault{Op: List, Path: "sub", After: 100, Errno: syscall.EIO}, list, syscall.EIO},
		"create":        {Fault{Op: Create, Errno: syscall.ENAMETOOLONG}, create, syscall.ENAMETOOLONG},
		"write":         {Fault{Op: Write, After: 300_000, Errno: syscall.EIO}, create, syscall.EIO},
		"close":         {Fault{Op: Sync, Errno: syscall.EDQUOT}, create, syscall.EDQUOT},
		"everything":    {Fault{Errno: syscall.ENOTCONN}, list, syscall.ENOTCONN},
		"second call":   {Fault{Op: Open, From: 2, Errno: syscall.EIO}, read, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			volume, dir, backing := ForTest(t)
			write(t, filepath.Join(backing, "sub/file"), 100_000)
			for i := range 200 {
				write(t, filepath.Join(backing, "sub", strconv.Itoa(i)), 0)
			}
			volume.Inject(c.fault)
			if err := c.action(dir); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%s: got %v, want %v", c.fault, err, c.want)
			}
			if (volume.Failed() > 0) != (c.want != nil) {
				t.Errorf("%d calls failed", volume.Failed())
			}
			volume.Clear()
			if err := c.action(dir); err != nil {
				t.Errorf("after Clear: %v", err)
			}
		})
	}
}

func TestFailsFromACallOn(t *testing.T) {
	t.Parallel()
	volume, dir, backing := ForTest(t)
	write(t, filepath.Join(backing, "file"), 10)
	volume.Inject(Fault{Op: Open, From: 2, Times: 1, Errno: syscall.EIO})
	for i, want := range []error{nil, syscall.EIO, nil} {
		f, err := os.Open(filepath.Join(dir, "file"))
		if !errors.Is(err, want) {
			t.Errorf("call %d: got %v, want %v", i+1, err, want)
		}
		_ = f.Close()
	}
}

func TestReadsTheBeginning(t *testing.T) {
	t.Parallel()
	volume, dir, backing := ForTest(t)
	write(t, filepath.Join(backing, "file"), 1<<20)
	volume.Inject(Fault{Op: Read, After: 70_000, Errno: syscall.EIO})
	content, err := os.ReadFile(filepath.Join(dir, "file"))
	if len(content) != 70_000 || !errors.Is(err, syscall.EIO) {
		t.Errorf("got %d bytes, %v", len(content), err)
	}
}

func TestHangs(t *testing.T) {
	t.Parallel()
	volume, dir, backing := ForTest(t)
	write(t, filepath.Join(backing, "file"), 10)
	volume.Inject(Fault{Op: Read, Hang: true})
	done := make(chan error)
	go func() {
		_, err := os.ReadFile(filepath.Join(dir, "file"))
		done <- err
	}()
	for changed := volume.Changed(); volume.Hanging() == 0; changed = volume.Changed() {
		<-changed
	}
	volume.Clear()
	if err := <-done; err != nil {
		t.Errorf("a call that hung went on with %v", err)
	}
}

func TestAbort(t *testing.T) {
	t.Parallel()
	volume, dir, backing := ForTest(t)
	write(t, filepath.Join(backing, "file"), 10)
	open, err := os.Open(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	volume.Inject(Fault{Op: Read, Hang: true})
	done := make(chan error)
	go func() {
		_, err := open.Read(make([]byte, 10))
		done <- err
	}()
	for changed := volume.Changed(); volume.Hanging() == 0; changed = volume.Changed() {
		<-changed
	}
	if err := volume.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("a call that ran: %v", err)
	}
	for _, name := range []string{"", "file"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("%q: got %v, want that the transport endpoint is not connected", name, err)
		}
	}
	if err := volume.Unmount(); err != nil { // with the file still open
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("after Unmount: %v, %v", entries, err)
	}
}

func TestIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	volume, dir, backing := ForTest(t)
	for i := range 50 {
		write(t, filepath.Join(backing, strconv.Itoa(i)), 1000)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 50 {
				volume.Inject(Fault{Op: Read, Path: strconv.Itoa(i), Times: 1, Errno: syscall.EIO})
				_, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i)))
				if err != nil && !errors.Is(err, syscall.EIO) {
					t.Error(err)
				}
				_, _ = volume.Calls(Any), volume.Hanging()
			}
			volume.Clear()
			_ = filepath.WalkDir(dir, func(string, fs.DirEntry, error) error { return nil })
		})
	}
	wg.Wait()
}
