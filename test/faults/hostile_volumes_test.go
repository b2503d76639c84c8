//go:build faults

package faults

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/rig"
)

// manyFiles is how many files a volume of many files has. kopia gets a tenth of them: it is slow under the race detector.
func manyFiles(t *testing.T, uploader string) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("FAULTS_FILES"), "100000"))
	if err != nil {
		t.Fatalf("FAULTS_FILES: %v", err)
	}
	if uploader == rig.Kopia {
		n /= 10
	}
	return n
}

func TestVolumeHasManyFiles(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			n := manyFiles(t, uploader)
			newRow(t, "volume of %d files, %s", n, uploader)
			t.Parallel()
			f := newFixture(t)
			f.UseDirectory(t.TempDir())
			source, target := f.Pod("source", "data"), f.WaitingPod("target", "data")
			for _, pod := range []*corev1.Pod{source, target} {
				mountTmpfs(t, f.Volume(pod, "data"), 64<<20, "nr_inodes=0")
			}
			makeManyFiles(t, f.Volume(source, "data"), n)
			f.Start()
			pvb := f.backUp(source, uploader)
			v := f.Complete(pvb)
			if v.Snapshot.FilesTotal < int64(n) || v.Snapshot.FilesDone != v.Snapshot.FilesTotal {
				t.Errorf("files of %d: %v", n, v)
			}
			pvr := f.NewRestore(target, "data", rig.SnapshotOf(v))
			f.Create(pvr)
			f.Complete(pvr)
			// To ask for the extended attributes of so many files would take longer than all the rest.
			f.CheckRestored(f.Volume(source, "data"), f.Volume(target, "data"), rig.Kopia)
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

// lacksDirectory backs a volume up with a directory that cannot be read. Nobody knows what lies in it: the backup fails, and where people accept
// that, as lacksDirectory returns it, it says so, and does not hold back the rest of the volume.
func (f *fixture) lacksDirectory(source *corev1.Pod, uploader string) rig.Version {
	f.T.Helper()
	pvb := f.NewBackup(source, "data", uploader)
	f.Create(pvb)
	if v := f.End(pvb); v.Phase != rig.Failed || v.Snapshot.Reason != v1alpha1.ReasonUnreadableFiles || !strings.Contains(v.Message, "directory could not be read") {
		f.T.Fatalf("a directory that cannot be read made it end as %v", v)
	}
	accepting := f.NewBackup(source, "data", uploader)
	metav1.SetMetaDataAnnotation(&accepting.ObjectMeta, v1alpha1.AnnotationPartial, "complete")
	f.Create(accepting)
	v := f.End(accepting)
	if v.Phase != rig.Completed || v.Snapshot.Errors == 0 || !strings.Contains(v.Message, "could not be read") {
		f.T.Fatalf("a directory that people accept to lack made it end as %v", v)
	}
	f.Event(accepting, v1alpha1.EventPartial)
	return v
}

// TestVolumeIsTooDeep has paths that are longer than the kernel takes (PATH_MAX, 4096 bytes).
func TestVolumeIsTooDeep(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "paths longer than the kernel takes, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			makeDeep(t, f.Volume(source, "data"))
			f.Start()
			v := f.lacksDirectory(source, uploader)
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", rig.SnapshotOf(v))
			metav1.SetMetaDataAnnotation(&pvr.ObjectMeta, v1alpha1.AnnotationPartial, "1%")
			f.Create(pvr)
			if r := f.Complete(pvr); r.Snapshot.Attempt > 2 {
				t.Errorf("errors that repeat were tried again: %v", r)
			}
			// The init container still runs here, so its marker is there.
			want, got := names(t, f.Volume(source, "data")), names(t, f.Volume(target, "data"))
			if !slices.Equal(slices.DeleteFunc(got, func(name string) bool { return name == ".velero" }), want) {
				t.Errorf("restored %q, want %q", got, want)
			}
		})
	}
}

// makeDeep makes a file whose path has more than 5000 bytes.
func makeDeep(t *testing.T, dir string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	name := strings.Repeat("d", 250)
	for range 20 {
		if err == nil {
			err = root.Mkdir(name, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		parent := root
		root, err = parent.OpenRoot(name)
		err = errors.Join(err, parent.Close())
	}
	if err := errors.Join(err, root.WriteFile("file", []byte("deep"), 0o644), root.Close()); err != nil {
		t.Fatal(err)
	}
}

// names returns the names in a directory, sorted.
func names(tb testing.TB, dir string) []string {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestVolumeHasOddNames(t *testing.T) {
	t.Parallel()
	odd := []string{"two\nlines", "\n", "\x1b[31mred", "\u202egnp.exe", "{\"message_type\":\"summary\"}", "-rf", " ", strings.Repeat("x", 255)}
	notUTF8 := []string{"\xff", "caf\xe9\n", strings.Repeat("\xfe", 255)}
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "names with newlines and invalid UTF-8, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			f.Start()
			for _, name := range odd {
				makeOddlyNamed(t, f.Volume(source, "data"), name)
			}
			f.restoreAndCompare(f.backUp(source, uploader))

			for _, name := range notUTF8 {
				makeOddlyNamed(t, f.Volume(source, "data"), name)
			}
			pvb := f.NewBackup(source, "data", uploader)
			metav1.SetMetaDataAnnotation(&pvb.ObjectMeta, v1alpha1.AnnotationPartial, "complete") // they are a tenth of its files
			f.Create(pvb)
			if uploader == rig.Restic {
				f.restoreAndCompare(pvb)
				return
			}
			// kopia cannot store them, which must not go unsaid: a file and a directory with a file for each name.
			v := f.End(pvb)
			if v.Phase != rig.Completed || v.Snapshot.Errors < int64(2*len(notUTF8)) || !strings.Contains(v.Message, "could not be read") {
				t.Errorf("names that kopia changes made it end as %v", v)
			}
			f.Event(pvb, v1alpha1.EventPartial)
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
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "paths longer than PATH_MAX, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			f.Start()
			makeLongPath(t, f.Volume(source, "data"))
			v := f.lacksDirectory(source, uploader) // neither can reach the end of such a path
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", rig.SnapshotOf(v))
			f.Create(pvr)
			f.Complete(pvr)
			// The rest is there. Nobody can look into what is too long with its path, so it goes first.
			for _, pod := range []*corev1.Pod{source, target} {
				if err := os.RemoveAll(filepath.Join(f.Volume(pod, "data"), "long")); err != nil {
					t.Fatal(err)
				}
			}
			f.CheckRestored(f.Volume(source, "data"), f.Volume(target, "data"), uploader)
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
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "sparse file of 1 TiB, canceled on its way, %s", uploader)
			t.Parallel()
			f := newFixture(t)
			f.UseDirectory(t.TempDir())
			source := f.Pod("source", "data")
			file := filepath.Join(f.Volume(source, "data"), "file")
			if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Truncate(file, huge)); err != nil {
				t.Skipf("*** cannot make a file of 1 TiB: %v ***", err)
			}
			f.Start()
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			v := f.Until(pvb, "under way", func(v rig.Version) bool { return v.Snapshot.TotalFinal && v.Done > 256<<20 })
			if v.Total != huge {
				t.Errorf("the total of 1 TiB is shown as %d", v.Total)
			}
			since := time.Now()
			f.Patch(pvb, `{"spec":{"cancel":true}}`)
			v = f.End(pvb)
			r.recovered(since)
			f.checkFailed(v, "was canceled")
			if v.Total != huge || v.Done >= huge/10 {
				t.Errorf("%d of 1 TiB are shown as done", v.Done)
			}
			if stored := rig.Size(t, f.Store.Dir); stored > 64<<20 {
				t.Errorf("a hole takes %d bytes in the repository", stored)
			}
		})
	}
}

func TestVolumeHasManyHardLinks(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			const links = 5000
			newRow(t, "file with %d hard links, %s", links, uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			dir := filepath.Join(f.Volume(source, "data"), "many links")
			original := filepath.Join(dir, "original")
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(original, make([]byte, 8<<10), 0o644)); err != nil {
				t.Fatal(err)
			}
			for i := range links {
				if err := os.Link(original, filepath.Join(dir, strconv.Itoa(i))); err != nil {
					t.Fatal(err)
				}
			}
			f.Start()
			f.restoreAndCompare(f.backUp(source, uploader))
		})
	}
}
