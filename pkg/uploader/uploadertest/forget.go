package uploadertest

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// ForgetSubject is a data path whose Forget is tried.
type ForgetSubject struct {
	Data interface {
		uploader.Uploader
		uploader.UsageReader
		uploader.Verifier
		uploader.Forgetter
		uploader.SnapshotLister
	}
	Repository uploader.Repository // an empty one
	// Backup fills in how the node agent names and tags the snapshot of a volume.
	Backup func(*uploader.BackupRequest, uploader.SnapshotVolume)
}

// ShopVolume is the volume of most of the snapshots of RunForget.
func ShopVolume() uploader.SnapshotVolume {
	return uploader.SnapshotVolume{Namespace: "shop", Pod: "db-0", PodUID: "11111111-2222", Name: "data", Claim: "data-db-0"}
}

// RunForget removes two of four snapshots, and asks for one that is not there, one of another volume and one that is only looked for.
// The ids of those that are left are returned, and each of them can still be read.
func RunForget(t *testing.T, s ForgetSubject) (left []string) {
	t.Helper()
	shop := ShopVolume()
	other := shop
	other.Pod = "web-0"
	var ids []string
	for _, v := range []uploader.SnapshotVolume{shop, shop, shop, other} {
		ids = append(ids, s.Store(t, v))
	}
	var seen Recorder
	got, err := s.Data.Forget(t.Context(), uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{
		{ID: ids[0], Volume: shop}, {ID: "0123456789abcdef", Volume: shop}, {ID: ids[3], Volume: shop}, {ID: ids[2], Look: true}, {ID: ids[1], Volume: shop},
	}}, &seen)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uploader.ForgetState{uploader.ForgetRemoved, uploader.ForgetNotFound, uploader.ForgetRefused, uploader.ForgetPresent, uploader.ForgetRemoved} {
		if o := got.Snapshots[i]; o.State != want || (o.Why != "") != (want == uploader.ForgetRefused) {
			t.Errorf("snapshot %d: %+v, want %s", i, o, want)
		}
	}
	if len(got.Snapshots) != 5 || len(got.Lost) > 0 {
		t.Errorf("%+v", got)
	}
	left = []string{ids[2], ids[3]}
	s.Has(t, left...)
	for _, id := range left {
		if proof, err := s.Data.Verify(t.Context(), uploader.VerifyRequest{Repository: s.Repository, SnapshotID: id}, nil); err != nil || !proof.Proven() {
			t.Errorf("snapshot %s cannot be read any more: %+v, %v", id, proof, err)
		}
	}
	again, err := s.Data.Forget(t.Context(), uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{{ID: ids[0], Volume: shop}}}, nil)
	if err != nil || again.Snapshots[0].State != uploader.ForgetNotFound {
		t.Errorf("again: %+v, %v", again, err)
	}
	return left
}

// Store backs a volume up, and returns the snapshot's id.
func (s ForgetSubject) Store(t *testing.T, v uploader.SnapshotVolume) string {
	t.Helper()
	dir := t.TempDir()
	content := make([]byte, 100_000)
	_, _ = rand.Read(content)
	if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	volume, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer volume.Close()
	req := uploader.BackupRequest{Repository: s.Repository, Volume: volume}
	s.Backup(&req, v)
	stored, err := s.Data.Backup(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stored.SnapshotID
}

// Has fails the test unless the repository has these snapshots, and no others.
func (s ForgetSubject) Has(t *testing.T, ids ...string) {
	t.Helper()
	usage, err := s.Data.Usage(t.Context(), uploader.UsageRequest{Repository: s.Repository}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(usage.Snapshots) != len(ids) {
		t.Fatalf("the repository has %d snapshots, want %d", len(usage.Snapshots), len(ids))
	}
	for i, id := range ids {
		if full := usage.Snapshots[i].ID; full[:min(len(full), len(id))] != id {
			t.Errorf("snapshot %d is %s, want %s", i, full, id)
		}
	}
}

// Snapshots returns what the repository says of each snapshot, by its id.
func (s ForgetSubject) Snapshots(t *testing.T) map[string]uploader.RepositorySnapshot {
	t.Helper()
	listed, err := s.Data.Snapshots(t.Context(), s.Repository)
	if err != nil {
		t.Fatal(err)
	}
	snapshots := map[string]uploader.RepositorySnapshot{}
	for _, snapshot := range listed {
		if snapshot.Time.IsZero() {
			t.Errorf("without a time: %+v", snapshot)
		}
		snapshots[snapshot.ID] = snapshot
	}
	return snapshots
}

// RemoveOrphan removes a snapshot that may be of a Backup.
func (s ForgetSubject) RemoveOrphan(t *testing.T, id string) {
	t.Helper()
	got, err := s.Data.Forget(t.Context(), uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{{ID: id, Orphan: true}}}, nil)
	if err != nil || len(got.Snapshots) != 1 || got.Snapshots[0].State != uploader.ForgetRemoved || len(got.Lost) > 0 {
		t.Fatalf("%+v, %v", got, err)
	}
}
