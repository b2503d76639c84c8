package volume

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/spf13/afero"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
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

// Without kubelet's tmpfs the directory of an emptyDir in memory is there, and empty.
func TestOpenWaitsForTheMountOfMemory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	wanted, err := DirOf(&corev1.Volume{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}, nil, nil)
	must(t, err)
	dir := filepath.Join(root, string(podUID), "volumes/kubernetes.io~empty-dir/cache")
	must(t, os.MkdirAll(dir, 0o755))
	pods := NewPods(afero.NewOsFs(), root)
	if f, err := pods.Open(podUID, wanted); err == nil {
		must(t, f.Close())
		t.Fatal("opened a directory of the node's own disk")
	} else {
		checkError(t, err, ErrNotMounted, dir)
	}

	mount(t, "tmpfs", dir, "tmpfs", 0)
	write(t, filepath.Join(dir, "file"), 1)
	f, err := pods.Open(podUID, wanted)
	must(t, err)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	must(t, err)
	if len(names) != 1 || names[0] != "file" {
		t.Errorf("entries %q, want those of the tmpfs", names)
	}
}

// oldStatx are the answers of kernels and seccomp profiles that do not say whether something is mounted on a directory.
func oldStatx() map[string]statxFunc {
	fails := func(errno syscall.Errno) statxFunc {
		return func(int, string, int, int, *unix.Statx_t) error { return errno }
	}
	return map[string]statxFunc{
		"Linux 5.7": func(dir int, path string, flags, mask int, stat *unix.Statx_t) error {
			err := unix.Statx(dir, path, flags, mask, stat)
			stat.Attributes_mask &^= unix.STATX_ATTR_MOUNT_ROOT
			stat.Attributes &^= unix.STATX_ATTR_MOUNT_ROOT
			return err
		},
		"Linux 4.10":                 fails(unix.ENOSYS),
		"statx refused by a profile": fails(unix.EPERM),
	}
}

// Linux before 5.8 does not say by statx whether a directory is the root of a mount.
func TestCheckMountedOnOldKernels(t *testing.T) {
	t.Parallel()
	for name, statx := range oldStatx() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			target := filepath.Join(root, "plugin", "pvc-1")
			must(t, os.MkdirAll(target, 0o755))
			check := func() error {
				dir, parent, err := openBeneath(root, "plugin/pvc-1")
				must(t, err)
				defer dir.Close()
				defer unix.Close(parent)
				return checkMounted(dir, parent, statx)
			}
			checkError(t, check(), ErrNotMounted, target)

			t.Run("mount of another file system", func(t *testing.T) {
				mount(t, "tmpfs", target, "tmpfs", 0)
				must(t, check())
			})
			checkError(t, check(), ErrNotMounted, target)
			t.Run("bind mount of the same file system", func(t *testing.T) {
				mount(t, t.TempDir(), target, "", unix.MS_BIND)
				must(t, check())
			})
			t.Run("mount of which the kernel tells nothing", func(t *testing.T) {
				mount(t, "tmpfs", target, "tmpfs", 0)
				dir, parent, err := openBeneath(root, "plugin/pvc-1")
				must(t, err)
				defer dir.Close()
				must(t, unix.Close(parent))
				if err := checkMounted(dir, -1, statx); err == nil || errors.Is(err, ErrNotMounted) {
					t.Errorf("error %v, want one that says neither that the volume is mounted nor that it is not", err)
				}
			})
		})
	}
}

// An error of the file system itself, as of a FUSE file system whose server is gone, tells nothing about its mount.
func TestCheckMountedReportsErrors(t *testing.T) {
	t.Parallel()
	dir, parent, err := openBeneath(t.TempDir(), ".")
	must(t, err)
	defer dir.Close()
	defer unix.Close(parent)
	err = checkMounted(dir, parent, func(int, string, int, int, *unix.Statx_t) error { return unix.ENOTCONN })
	checkError(t, err, unix.ENOTCONN, dir.Name())
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
			_, _, err := openBeneath(attackedPods(t, link), filepath.Join(string(podUID), csi, "pvc-1/mount"))
			checkError(t, err, ErrUnsafe, "not a directory any more")
		})
	}
}

func TestOpenBeneathOfVanishedVolume(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if _, _, err := openBeneath(root, "pod/volumes"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
	if _, _, err := openBeneath(filepath.Join(root, "none"), "pod"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}
