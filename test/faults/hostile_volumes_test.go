//go:build faults

package faults

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
)

// manyFiles is how many files a volume of many files has. kopia gets a tenth of them: it is slow under the race detector.
func manyFiles(t *testing.T, uploader string) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("FAULTS_FILES"), "100000"))
	if err != nil {
		t.Fatalf("FAULTS_FILES: %v", err)
	}
	if uploader == kopia {
		n /= 10
	}
	return n
}

func TestVolumeHasManyFiles(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			n := manyFiles(t, uploader)
			newRow(t, "volume of %d files, %s", n, uploader)
			t.Parallel()
			f := newFixture(t)
			f.useDirectory(t.TempDir())
			source, target := f.pod("source", "data"), f.waitingPod("target", "data")
			for _, pod := range []*corev1.Pod{source, target} {
				mountTmpfs(t, f.volume(pod, "data"), 64<<20, "nr_inodes=0")
			}
			makeManyFiles(t, f.volume(source, "data"), n)
			f.start()
			pvb := f.backUp(source, uploader)
			v := f.complete(pvb)
			if v.snapshot.FilesTotal < int64(n) || v.snapshot.FilesDone != v.snapshot.FilesTotal {
				t.Errorf("files of %d: %v", n, v)
			}
			pvr := f.newRestore(target, "data", snapshotOf(v))
			f.create(pvr)
			f.complete(pvr)
			// To ask for the extended attributes of so many files would take longer than all the rest.
			f.checkRestored(f.volume(source, "data"), f.volume(target, "data"), kopia)
		})
	}
}

// makeManyFiles makes n files, all but one in a thousand empty, in directories of a thousand.
func makeManyFiles(t *testing.T, dir string, n int) {
	t.Helper()
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("directory-%04d", i/1000))
		content := ""
		if i%1000 == 0 {
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			content = sub
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file-%03d", i%1000)), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVolumeHasOddNames(t *testing.T) {
	t.Parallel()
	odd := []string{"two\nlines", "\n", "\x1b[31mred", "\u202egnp.exe", "{\"message_type\":\"summary\"}", "-rf", " ", strings.Repeat("x", 255)}
	notUTF8 := []string{"\xff", "caf\xe9\n", strings.Repeat("\xfe", 255)}
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "names with newlines and invalid UTF-8, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			f.start()
			for _, name := range odd {
				makeOddlyNamed(t, f.volume(source, "data"), name)
			}
			f.restoreAndCompare(f.backUp(source, uploader))

			for _, name := range notUTF8 {
				makeOddlyNamed(t, f.volume(source, "data"), name)
			}
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			if uploader == restic {
				f.restoreAndCompare(pvb)
				return
			}
			// kopia cannot store them, which must not go unsaid: a file and a directory with a file for each name.
			v := f.end(pvb)
			if v.phase != completed || v.snapshot.Errors < int64(2*len(notUTF8)) || !strings.Contains(v.message, "could not be read") {
				t.Errorf("names that kopia changes made it end as %v", v)
			}
			f.event(pvb, nodeagent.EventPartial)
		})
	}
}

// makeOddlyNamed makes a file and a directory with a file of a name.
func makeOddlyNamed(t *testing.T, dir, name string) {
	t.Helper()
	sub := filepath.Join(dir, "in", name)
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644), os.MkdirAll(sub, 0o755),
		os.WriteFile(filepath.Join(sub, "file"), []byte(name), 0o644),
	)
	if err != nil {
		t.Fatal(err)
	}
}

func TestVolumeHasLongPaths(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "paths longer than PATH_MAX, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			f.start()
			makeLongPath(t, f.volume(source, "data"))
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			// Neither can reach the end of such a path, which must not go unsaid.
			v := f.end(pvb)
			if v.phase != completed || v.snapshot.Errors == 0 || !strings.Contains(v.message, "could not be read") {
				t.Errorf("a path that is too long made it end as %v", v)
			}
			f.event(pvb, nodeagent.EventPartial)
			target := f.waitingPod("target", "data")
			pvr := f.newRestore(target, "data", snapshotOf(v))
			f.create(pvr)
			f.complete(pvr)
			// The rest is there. Nobody can look into what is too long with its path, so it goes first.
			for _, pod := range []*corev1.Pod{source, target} {
				if err := os.RemoveAll(filepath.Join(f.volume(pod, "data"), "long")); err != nil {
					t.Fatal(err)
				}
			}
			f.checkRestored(f.volume(source, "data"), f.volume(target, "data"), uploader)
		})
	}
}

// makeLongPath makes a directory "long" and in it a file with a path of 5,000 bytes. The names are so long that what can be
// read, with its path from the volume on, can also be restored, with its path from the root directory on.
func makeLongPath(t *testing.T, dir string) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		name := "long"
		if i > 0 {
			name = strings.Repeat("d", 255)
		}
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err := errors.Join(err, unix.Close(at)); err != nil {
			t.Fatal(err)
		}
		at = next
	}
	file, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err := errors.Join(err, unix.Close(at), unix.Close(file)); err != nil {
		t.Fatal(err)
	}
}

// TestVolumeHasAHugeHole: both data paths read holes as zeros, so that a file of 1 TiB takes half an hour and more. It is
// ended when it is under way.
func TestVolumeHasAHugeHole(t *testing.T) {
	t.Parallel()
	const huge = 1 << 40
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "sparse file of 1 TiB, canceled on its way, %s", uploader)
			t.Parallel()
			f := newFixture(t)
			f.useDirectory(t.TempDir())
			source := f.pod("source", "data")
			file := filepath.Join(f.volume(source, "data"), "file")
			if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Truncate(file, huge)); err != nil {
				t.Skipf("*** cannot make a file of 1 TiB: %v ***", err)
			}
			f.start()
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			v := f.until(pvb, "under way", func(v version) bool { return v.snapshot.TotalFinal && v.done > 256<<20 })
			if v.total != huge {
				t.Errorf("the total of 1 TiB is shown as %d", v.total)
			}
			since := time.Now()
			f.patch(pvb, `{"spec":{"cancel":true}}`)
			v = f.end(pvb)
			r.recovered(since)
			f.checkFailed(v, "was canceled")
			if v.total != huge || v.done >= huge/10 {
				t.Errorf("%d of 1 TiB are shown as done", v.done)
			}
			if stored := size(t, f.store.dir); stored > 64<<20 {
				t.Errorf("a hole takes %d bytes in the repository", stored)
			}
		})
	}
}

func TestVolumeHasManyHardLinks(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			const links = 5000
			newRow(t, "file with %d hard links, %s", links, uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			dir := filepath.Join(f.volume(source, "data"), "many links")
			original := filepath.Join(dir, "original")
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(original, make([]byte, 8<<10), 0o644)); err != nil {
				t.Fatal(err)
			}
			for i := range links {
				if err := os.Link(original, filepath.Join(dir, strconv.Itoa(i))); err != nil {
					t.Fatal(err)
				}
			}
			f.start()
			f.restoreAndCompare(f.backUp(source, uploader))
		})
	}
}
