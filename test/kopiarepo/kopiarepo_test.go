package kopiarepo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

func TestMain(m *testing.M) {
	worker.Main()
	parts.UseWorkerExec()
	os.Exit(m.Run())
}

// TestCreate: kopia stores something in each repository, finds it there and not in the others.
func TestCreate(t *testing.T) {
	t.Parallel()
	u, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	volume, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer volume.Close()
	var stored []string
	var repositories []uploader.Repository
	for range 2 {
		repository := uploader.Repository{URL: filepath.Join(t.TempDir(), "repository"), Password: Password}
		Create(t, repository.URL)
		result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
		if err != nil {
			t.Fatal(err)
		}
		stored, repositories = append(stored, result.SnapshotID), append(repositories, repository)
	}
	for i, repository := range repositories {
		for j, id := range stored {
			proof, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: id}, nil)
			if found := err == nil && proof.Proven(); found != (i == j) {
				t.Errorf("snapshot %d in repository %d: %+v, %v", j, i, proof, err)
			}
		}
	}
}
