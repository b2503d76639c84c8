package restic

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestDeviceOfHardLinks: only files with several names have a device in the snapshot. A restore makes hard links of files by that and their inode
// number, which another file may have had before during the backup.
func TestDeviceOfHardLinks(t *testing.T) {
	withVersions(t, parts.ResticVersions(t), func(t *testing.T, version string) {
		v, err := ParseVersion("restic " + version)
		if err != nil {
			t.Fatal(err)
		}
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		volume := volumeOf(t, 1)
		for _, name := range []string{"first", "second"} {
			if err := os.Link(filepath.Join(volume.Name(), "file"), filepath.Join(volume.Name(), name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(volume.Name(), "alone"), []byte("alone"), 0o600); err != nil {
			t.Fatal(err)
		}
		stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
		if err != nil {
			t.Fatal(err)
		}
		devices := devicesOf(t, repository, stored.SnapshotID)
		for _, name := range []string{"file", "first", "second"} {
			if devices[name] == 0 {
				t.Errorf("%s has no device, and would not be linked", name)
			}
		}
		if (devices["alone"] == 0) != v.marksHardLinks() {
			t.Errorf("a file with one name has device %d", devices["alone"])
		}
	})
}

// devicesOf reads the device numbers of the files at the top of a snapshot, with the newest restic.
func devicesOf(t *testing.T, repository uploader.Repository, snapshot string) map[string]uint64 {
	t.Helper()
	versions := parts.ResticVersions(t)
	cmd := exec.CommandContext(t.Context(), parts.Restic(t, versions[len(versions)-1]), "-r", repository.URL, "--no-cache", "--no-lock", "cat", "tree", snapshot+":/")
	cmd.Env = []string{"RESTIC_PASSWORD=" + resticrepo.Password, "HOME=" + t.TempDir()}
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var tree struct {
		Nodes []struct {
			Name     string `json:"name"`
			DeviceID uint64 `json:"device_id"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(output, &tree); err != nil {
		t.Fatal(err)
	}
	devices := map[string]uint64{}
	for _, node := range tree.Nodes {
		devices[node.Name] = node.DeviceID
	}
	return devices
}
