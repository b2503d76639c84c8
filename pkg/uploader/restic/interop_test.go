package restic

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// TestInterop: restic run by hand restores what we have stored, and we restore what it has stored.
func TestInterop(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		volume := t.TempDir()
		if err := tree.Make(volume, tree.Spec{}); err != nil {
			t.Fatal(err)
		}
		repository := newAddress(t)
		byHand := func(dir string, args ...string) []byte {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), parts.Restic(t, version), args...)
			cmd.Env = []string{"RESTIC_REPOSITORY=" + repository.URL, "RESTIC_PASSWORD=" + repository.Password.Reveal(), "RESTIC_CACHE_DIR=" + t.TempDir()}
			cmd.Dir, cmd.Stderr = dir, &bytes.Buffer{}
			output, err := cmd.Output()
			if err != nil {
				t.Fatalf("restic %v: %v\n%s\n%s", args, err, output, cmd.Stderr)
			}
			return output
		}
		byHand("/", "init")
		byHand(volume, "backup", ".", "--host", "velero")
		var snapshots []struct{ ID string }
		if err := json.Unmarshal(byHand("/", "snapshots", "--json"), &snapshots); err != nil || len(snapshots) != 1 {
			t.Fatalf("%v, %v, want one snapshot", snapshots, err)
		}

		u := newUploader(t, version, Options{})
		target := t.TempDir()
		if _, err := u.Restore(t.Context(), uploader.RestoreRequest{
			Repository: repository, Volume: open(t, target), SnapshotID: snapshots[0].ID,
		}, nil); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, volume, target)

		ours, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: open(t, volume)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		target = t.TempDir()
		byHand("/", "restore", ours.SnapshotID, "--target", target)
		wantEqual(t, volume, target)
	})
}

func wantEqual(t *testing.T, want, got string) {
	t.Helper()
	differences, err := tree.Compare(want, got, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
}
