package repositorytask

import (
	"os"
	"path/filepath"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// TestUsageOnS3 measures a repository of each data path in a bucket, and again when the bucket is gone.
func TestUsageOnS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	s := newSite(t)
	server := s3.Start(t)
	bucket := server.Bucket(t)
	location := s.BucketLocation("bucket", server, bucket)
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	s.Create(location)
	var err error
	s.restic, err = restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), MeasureStorage: s.kopia.MeasureStorage, Logger: s.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	b := s.backup("nightly")
	dirs := map[string]string{}
	for _, kind := range []string{"restic", "kopia"} {
		dirs[kind] = filepath.Join(server.Dir(bucket), kind, "shop")
		pvb := s.record(b, kind, "shop", kind+"-0", "", velerov1.PodVolumeBackupPhaseCompleted)
		pvb.Spec.BackupStorageLocation, pvb.Spec.RepoIdentifier = "bucket", ""
		if kind == "restic" {
			resticrepo.Create(t, dirs[kind])
			pvb.Spec.RepoIdentifier = "s3:https://" + server.Endpoint + "/" + bucket + "/restic/shop"
		}
		repository, err := NewRepositories(s.Client, s.Namespace).Of(t.Context(), pvb)
		if err != nil {
			t.Fatal(err)
		}
		repository.ReadOnly = false
		if kind == "kopia" {
			if err := s.kopia.Initialize(t.Context(), repository); err != nil {
				t.Fatal(err)
			}
		}
		pvb.Status.SnapshotID = s.backUp(kind, repository, nil)
		s.update(pvb)
	}
	s.start(s.measuring())
	got := s.ended(s.usageTask("task")).Status
	if got.Phase != v1alpha1.PhaseCompleted || len(got.Repositories) != 2 {
		t.Fatalf("%+v", got)
	}
	for _, r := range got.Repositories {
		objects, bytes := filesIn(t, dirs[r.Uploader], "")
		if u := r.Usage; u.StoredBytes == nil || *u.StoredObjects != objects || *u.StoredBytes != bytes || *u.LogicalBytes != 3<<20 || len(u.NotKnown) > 0 || u.UnknownSnapshots+u.MissingSnapshots != 0 {
			t.Errorf("%s: %+v; the bucket has %d objects with %d bytes", r.Uploader, u, objects, bytes)
		}
	}
	if err := os.RemoveAll(server.Dir(bucket)); err != nil {
		t.Fatal(err)
	}
	got = s.ended(s.usageTask("gone")).Status
	for _, r := range got.Repositories {
		if r.Usage != nil || r.Result != v1alpha1.RepositoryFailed || r.Message == "" {
			t.Errorf("without the bucket: %+v", r)
		}
		t.Log(r.Reason, r.Message)
	}
}
