//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// resumeGet interrupts the gets of a directory and of a file by Ctrl-C, with each data path, and has the same commands go on with them.
func (c *cluster) resumeGet(t *testing.T) {
	t.Helper()
	namespace, pod, _ := strings.Cut(kubectlApp, "/")
	want := c.inApp(t, &app{namespace: namespace, name: pod}, "digest", "/volumes/"+disk+"/big")
	for _, uploader := range []string{restic, kopia} {
		backup, dir := c.listed(t, kubectlApp, disk, uploader)[0], t.TempDir()
		big, half := filepath.Join(dir, "big"), filepath.Join(dir, "half")
		// The first file is complete when there is another one.
		first := c.interruptGet(t, big+".*.unpacking/part-*", 0, "--from", backup, "big", "-o", big)
		kept := statOf(t, filepath.Join(filepath.Dir(first), "half"))
		c.plimsoll(t, "repository", "get", "--from", backup, "big", "-o", big)
		if got := digestOfDir(t, big); got != want {
			t.Errorf("%s: big has %s, want %s", uploader, got, want)
		}
		if !os.SameFile(kept, statOf(t, filepath.Join(big, "half"))) {
			t.Errorf("%s: the directory was got from its begin on", uploader)
		}
		c.interruptGet(t, half+".*.part", 1<<20, "--from", backup, "big/half", "-o", half)
		c.plimsoll(t, "repository", "get", "--from", backup, "big/half", "-o", half)
		if !bytes.Equal(contentOf(t, half), contentOf(t, filepath.Join(big, "half"))) {
			t.Errorf("%s: a file that was cut off differs", uploader)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "*.*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %q, %v", uploader, left, err)
		}
	}
}

func contentOf(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func statOf(t *testing.T, name string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// interruptGet presses Ctrl-C when a file that matches has more than so many bytes, and returns its name. The command must fail.
func (c *cluster) interruptGet(t *testing.T, pattern string, size int64, args ...string) (name string) {
	t.Helper()
	get := c.plimsollCommand(t, append([]string{"repository", "get"}, args...)...)
	var said strings.Builder
	get.Stdout, get.Stderr = &said, &said
	if err := get.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- get.Wait() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for name == "" {
		select {
		case err := <-ended:
			t.Fatalf("get ended before it was interrupted: %v\n%s", err, &said)
		case <-tick.C:
			name = largerThan(t, pattern, size)
		}
	}
	if err := get.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatalf("get was not interrupted: %s", &said)
	}
	return name
}

// largerThan returns a file that matches and is larger than so many bytes, if there is one.
func largerThan(t *testing.T, pattern string, size int64) string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.Size() > size {
			return name
		}
	}
	return ""
}
