package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/afero"
	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, string(podUID), csi, "pvc-1/mount")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	link := filepath.Join(t.TempDir(), "host_pods")
	must(t, os.Symlink(root, link))

	f, err := NewPods(afero.NewOsFs(), link).Open(podUID, Dir{Name: "pvc-1", CSI: true})
	must(t, err)
	defer f.Close()
	if want := filepath.Join(link, string(podUID), csi, "pvc-1/mount"); f.Name() != want {
		t.Errorf("name %s, want %s", f.Name(), want)
	}
	names, err := f.Readdirnames(-1)
	must(t, err)
	if len(names) != 1 || names[0] != "file" {
		t.Errorf("entries %q, want the file", names)
	}
}

// When a node has started, the directories of CSI volumes are there, and empty until the driver has mounted them.
func TestOpenWaitsForTheMount(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, string(podUID), csi, "pvc-1/mount")
	must(t, os.MkdirAll(dir, 0o755))
	pods, wanted := NewPods(afero.NewOsFs(), root), Dir{Name: "pvc-1", CSI: true, Mounted: true}
	if f, err := pods.Open(podUID, wanted); err == nil {
		must(t, f.Close())
		t.Fatal("opened a directory of the node's own disk")
	} else {
		checkError(t, err, ErrNotMounted, dir)
	}

	content := t.TempDir() // on the same file system, as the volumes of type local are
	write(t, filepath.Join(content, "file"), 1)
	mount(t, content, dir, "", unix.MS_BIND)
	f, err := pods.Open(podUID, wanted)
	must(t, err)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	must(t, err)
	if len(names) != 1 || names[0] != "file" {
		t.Errorf("entries %q, want those of the mount", names)
	}
}

func TestOpenNeedsRealFiles(t *testing.T) {
	t.Parallel()
	_, err := NewPods(afero.NewMemMapFs(), "/host_pods").Open(podUID, Dir{Name: "data"})
	checkError(t, err, errors.ErrUnsupported, "MemMapFS")
}

func TestOpenReportsWhatFindReports(t *testing.T) {
	t.Parallel()
	_, err := NewPods(afero.NewOsFs(), t.TempDir()).Open(podUID, Dir{Name: "data"})
	checkError(t, err, ErrPodNotFound, "")
}

// A pod can put a link in place of a directory after Find has looked at it.
func TestOpenBeneathRefusesLinks(t *testing.T) {
	t.Parallel()
	for name, link := range linkAttacks() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := openBeneath(attackedPods(t, link), filepath.Join(string(podUID), csi, "pvc-1/mount"))
			checkError(t, err, ErrUnsafe, "not a directory any more")
		})
	}
}

func TestOpenBeneathOfVanishedVolume(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if _, err := openBeneath(root, "pod/volumes"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
	if _, err := openBeneath(filepath.Join(root, "none"), "pod"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}
