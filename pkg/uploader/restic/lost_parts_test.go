package restic

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestLostPartsAreStoredAgain: what the repository has lost of the parent restic stores anew, and says so as if the volume's files could
// not be read. Before 0.17 it gives no reason: such a backup fails, as nobody can tell. Where no pack is listed, none may be lost: the backup
// fails, since it would store nothing of what the index has.
func TestLostPartsAreStoredAgain(t *testing.T) {
	parts.Slow(t)
	speaking := slices.DeleteFunc(parts.ResticVersions(t), func(version string) bool {
		v, err := ParseVersion("restic " + version)
		return err != nil || !v.atLeast(17)
	})
	withVersions(t, speaking, func(t *testing.T, version string) {
		for name, lose := range map[string]func(t *testing.T, repository uploader.Repository) error{
			"a pack of files": func(t *testing.T, r uploader.Repository) error { return os.Remove(largestPack(t, r)) },
			"directories":     func(t *testing.T, r uploader.Repository) error { return os.Remove(smallestPack(t, r)) },
			"everything": func(t *testing.T, r uploader.Repository) error {
				return errors.Join(os.Remove(largestPack(t, r)), os.Remove(smallestPack(t, r)))
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				u := newUploader(t, version, Options{})
				repository := initialized(t, u, 0)
				dir := t.TempDir()
				for name, content := range map[string]string{"a": "alpha", "sub/b": "beta"} {
					if err := errors.Join(os.MkdirAll(filepath.Join(dir, "sub"), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)); err != nil {
						t.Fatal(err)
					}
				}
				request := uploader.BackupRequest{Repository: repository, Volume: open(t, dir)}
				first, err := u.Backup(t.Context(), request, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := lose(t, repository); err != nil {
					t.Fatal(err)
				}
				request.Parent, request.Resume = first.SnapshotID, true // which repairs the index
				again, err := u.Backup(t.Context(), request, nil)
				if name == "everything" {
					if !errors.Is(err, uploader.ErrUnconfirmed) {
						t.Errorf("got %+v, %v, want ErrUnconfirmed", again, err)
					}
					return
				}
				if err != nil || again.Errors != 0 || again.UnreadableDirectories != 0 || again.TotalFiles != 2 {
					t.Fatalf("got %+v, %v, want both files and no error", again, err)
				}
				target := t.TempDir()
				if _, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, target), SnapshotID: again.SnapshotID}, nil); err != nil {
					t.Fatal(err)
				}
				for name, want := range map[string]string{"a": "alpha", "sub/b": "beta"} {
					if got, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(got) != want {
						t.Errorf("%s: restored %q, %v, want %q", name, got, err, want)
					}
				}
			})
		}
	})
}
