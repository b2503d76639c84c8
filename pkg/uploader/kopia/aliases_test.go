package kopia_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
)

// restoreOntoCase: on a volume that ignores case one of two names is an error, in each attempt, and the other one is there. On a machine that
// cannot mount such a volume both are there; with CI set that is a failure, since .ci/run installs what it takes.
func restoreOntoCase(t *testing.T, repository uploader.Repository) {
	t.Helper()
	source := t.TempDir()
	for name, content := range map[string]string{"README": "large", "readme": "small", "Dir/a": "a", "dir/b": "b", "new/X": "X", "new/x": "x", "alone": "alone"} {
		path := filepath.Join(source, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	u := newUploader(t, kopia.Options{})
	snapshot := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: open(t, source)}, nil)
	dir := volumeWithoutCase(t)
	if err := os.WriteFile(filepath.Join(dir, "ALONE"), []byte("of another program"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := os.Lstat(filepath.Join(dir, "alone"))
	lost := int64(4) // README or readme, Dir or dir and what is in it, new/X or new/x
	if errors.Is(err, os.ErrNotExist) {
		if os.Getenv("CI") != "" {
			t.Fatal("no file system without case could be mounted")
		}
		t.Log("no file system without case could be mounted here")
		lost = 0
	}
	for attempt := range 2 {
		result, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, dir), SnapshotID: snapshot.SnapshotID}, nil)
		if err != nil || result.Errors != lost || lost > 0 && !strings.Contains(result.LastError, "another entry of the backup") {
			t.Errorf("attempt %d: %+v, %v, want %d errors", attempt, result, err, lost)
		}
		kept := 0
		for name, content := range map[string]string{"README": "large", "readme": "small", "Dir/a": "a", "dir/b": "b", "new/X": "X", "new/x": "x", "alone": "alone"} {
			if found, err := os.ReadFile(filepath.Join(dir, name)); err == nil && string(found) == content {
				kept++
			}
		}
		if want := 7 - int(lost)/4*3; kept != want {
			t.Errorf("attempt %d: %d files have their content, want %d", attempt, kept, want)
		}
	}
}

// volumeWithoutCase mounts FAT, or exFAT by way of FUSE, or else returns an ordinary directory.
func volumeWithoutCase(t *testing.T) string {
	t.Helper()
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 32<<20)); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		`mkfs.vfat "$1" && mount -t vfat -o loop,utf8 "$1" "$2"`,
		`mkfs.exfat "$1" && loop=$(losetup --find --show "$1") && { mount.exfat-fuse "$loop" "$2" && mounted=0 || mounted=1; losetup --detach "$loop"; exit "$mounted"; }`,
	} {
		output, err := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", image, dir).CombinedOutput()
		if err != nil {
			t.Logf("%v: %s", err, output)
			continue
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		break
	}
	return dir
}
