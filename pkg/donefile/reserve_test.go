package donefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/test/disk"
)

const otherID = "6a1d8b63-0000-4000-8000-000000000002"

// smallVolumes are file systems that are soon full, of blocks or of inodes.
var smallVolumes = map[string]func(t *testing.T) string{
	"blocks": func(t *testing.T) string { t.Helper(); return disk.New(t, t.TempDir(), 9<<20).Dir },
	"inodes": func(t *testing.T) string {
		t.Helper()
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=50"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		return dir
	},
}

// fill writes files and then directories until the file system is full: ext4 keeps some blocks for directories that files do not get.
func fill(t *testing.T, dir string) {
	t.Helper()
	entries := 0
	for _, create := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) },
		func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		var err error
		for err == nil {
			err = create(filepath.Join(dir, fmt.Sprintf("data-%d", entries)))
			entries++
		}
		if !IsFull(err) {
			t.Fatal(err)
		}
	}
}

// leftovers returns what is ours in a volume.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(entries(t, dir), func(name string) bool { return name != Dir && !strings.HasPrefix(name, ".plimsoll-") })
}

func TestMarkerOfAVolumeThatTheRestoreFills(t *testing.T) {
	t.Parallel()
	plants := map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"a link":  func(path string) error { return os.Symlink("elsewhere", path) },
		"a directory": func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "notes.txt"), nil, 0o600))
		},
	}
	for of, small := range smallVolumes {
		for restored, plant := range plants {
			t.Run(of+"/"+restored, func(t *testing.T) {
				t.Parallel()
				dir := small(t)
				volume := openDir(t, dir)
				if err := errors.Join(Reserve(volume, restoreID), plant(filepath.Join(dir, Dir))); err != nil {
					t.Fatal(err)
				}
				if _, pending, err := Pending(filepath.Dir(dir), restoreID); len(pending) == 0 || err != nil {
					t.Errorf("what is reserved was taken for a marker: %v", err)
				}
				fill(t, dir)
				if err := Write(volume, restoreID, ""); err != nil || !marked(t, dir, restoreID) {
					t.Errorf("no done file: %v", err)
				}
				if names := leftovers(t, dir); !slices.Equal(names, []string{Dir}) {
					t.Errorf("the volume holds %v", names)
				}
				if info, err := os.Stat(filepath.Join(dir, Dir, restoreID)); err != nil || info.Mode().Perm() != 0o644 {
					t.Errorf("the init container cannot read the done file: %v, %v", info, err)
				}
			})
		}
	}
}

// TestFailureInAFullVolume: what a failed restore has reserved makes room for the failed file, if only without its text.
func TestFailureInAFullVolume(t *testing.T) {
	t.Parallel()
	for of, small := range smallVolumes {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			dir := small(t)
			volume := openDir(t, dir)
			if err := Reserve(volume, restoreID); err != nil {
				t.Fatal(err)
			}
			fill(t, dir)
			if err := errors.Join(Unreserve(volume, restoreID), Write(volume, restoreID, "NoSpace: see PodVolumeRestore velero/data")); err != nil {
				t.Fatal(err)
			}
			if _, _, err := Pending(filepath.Dir(dir), restoreID); !errors.Is(err, ErrRestoreFailed) {
				t.Errorf("the init container is told %v", err)
			}
			if err := Remove(volume, restoreID); err != nil || len(leftovers(t, dir)) > 0 {
				t.Errorf("%v is left: %v", leftovers(t, dir), err)
			}
		})
	}
}

func TestReserveInAVolumeThatIsFull(t *testing.T) {
	t.Parallel()
	for of, small := range smallVolumes {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			dir := small(t)
			fill(t, dir)
			if err := Reserve(openDir(t, dir), restoreID); !IsFull(err) || len(leftovers(t, dir)) > 0 {
				t.Errorf("got %v, and %v is left", err, leftovers(t, dir))
			}
		})
	}
}

// TestLeftByACrash: the next attempt, the agent when the pod does not wait any more, and the failed file take away what a dead agent has reserved.
func TestLeftByACrash(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(volume *os.File) error{
		"remove": func(volume *os.File) error { return Remove(volume, restoreID) },
		"reserve": func(volume *os.File) error {
			return errors.Join(Reserve(volume, restoreID), Unreserve(volume, restoreID))
		},
		"failure": func(volume *os.File) error {
			return errors.Join(Write(volume, restoreID, "Idle"), Remove(volume, restoreID))
		},
		"within the write": func(volume *os.File) error {
			return errors.Join(useReserved(volume, restoreID), Remove(volume, restoreID))
		},
		"another Restore": func(volume *os.File) error {
			return errors.Join(Reserve(volume, otherID), Unreserve(volume, otherID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			volume := openDir(t, dir)
			if err := errors.Join(Reserve(volume, restoreID), next(volume)); err != nil || len(entries(t, dir)) > 0 {
				t.Errorf("%v is left: %v", entries(t, dir), err)
			}
		})
	}
}

// TestReservedIsTheRestoresOwn: neither the markers of another Restore nor the init container take away what a restore has reserved.
func TestReservedIsTheRestoresOwn(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "data")
	mkdir(t, dir)
	volume := openDir(t, dir)
	if err := errors.Join(Reserve(volume, restoreID), Write(volume, otherID, ""), Remove(volume, otherID)); err != nil {
		t.Fatal(err)
	}
	if names := entries(t, dir); !slices.Equal(names, []string{Reserved(restoreID)}) {
		t.Errorf("beside another Restore the volume holds %v", names)
	}
	if err := errors.Join(Write(volume, restoreID, ""), Reserve(volume, restoreID), Wait(t.Context(), root, restoreID, func(string) {})); err != nil {
		t.Fatal(err)
	}
	if names := entries(t, dir); !slices.Equal(names, []string{Reserved(restoreID)}) {
		t.Errorf("behind the init container the volume holds %v", names)
	}
}

// TestReservedBesideTheUsersOwn: only what the agent itself has made is used or removed, whatever else has such a name.
func TestReservedBesideTheUsersOwn(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(t *testing.T, path, draft string){
		"a file": func(t *testing.T, path, _ string) { t.Helper(); write(t, path, "theirs") },
		"a link": func(t *testing.T, path, _ string) { t.Helper(); link(t, t.TempDir(), path) },
		"another file in it": func(t *testing.T, path, _ string) {
			t.Helper()
			mkdir(t, path)
			write(t, filepath.Join(path, "notes.txt"), "")
		},
		"content in a draft":  func(t *testing.T, path, draft string) { t.Helper(); mkdir(t, path); write(t, draft, "theirs") },
		"a link for a draft":  func(t *testing.T, path, draft string) { t.Helper(); mkdir(t, path); link(t, "elsewhere", draft) },
		"a directory for one": func(t *testing.T, _, draft string) { t.Helper(); mkdir(t, draft) },
	} {
		for _, uid := range []types.UID{restoreID, otherID} {
			t.Run(fmt.Sprintf("%s/own %v", name, uid == restoreID), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				path := filepath.Join(dir, Reserved(uid))
				plant(t, path, filepath.Join(path, doneDraft(uid)))
				write(t, filepath.Join(dir, ".plimsoll-marker"), "theirs")
				want := tree(t, dir)
				volume := openDir(t, dir)
				if err := errors.Join(Reserve(volume, restoreID), Write(volume, restoreID, "")); err != nil || !marked(t, dir, restoreID) {
					t.Errorf("no done file: %v", err)
				}
				if err := errors.Join(Remove(volume, restoreID), Reserve(volume, restoreID), Unreserve(volume, restoreID)); err != nil {
					t.Error(err)
				}
				if got := tree(t, dir); !slices.Equal(got, want) {
					t.Errorf("the volume holds %v, want %v", got, want)
				}
			})
		}
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

// tree returns the paths below a directory with their types and sizes.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size := info.Size()
		if d.IsDir() {
			size = 0
		}
		found = append(found, fmt.Sprintf("%s %v %d", path, d.Type(), size))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
