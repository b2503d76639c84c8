package kopia_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// asAgent117 names a snapshot as the node agent does beside Velero 1.17 and later.
func asAgent117(req *uploader.BackupRequest, v uploader.SnapshotVolume) {
	req.Source = "snapshot-pod-volume/kopia/" + v.Namespace + "/" + v.Pod + "/" + v.Claim
	req.Tags = map[string]string{"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": "kopia"}
}

// asAgent116 names it as beside earlier versions.
func asAgent116(req *uploader.BackupRequest, v uploader.SnapshotVolume) {
	req.Source = "/host_pods/" + v.PodUID + "/volumes/kubernetes.io~csi/pvc-1/mount"
	req.Tags = map[string]string{
		"ns": v.Namespace, "pod": v.Pod, "pod-uid": v.PodUID, "volume": v.Name, "snapshot-requester": "pod-volume-backup-restore", "snapshot-uploader": "kopia",
	}
}

func forgetSubject(tb testing.TB, repository uploader.Repository) uploadertest.ForgetSubject {
	tb.Helper()
	return uploadertest.ForgetSubject{Data: newUploader(tb, kopia.Options{}), Repository: repository, Backup: asAgent117}
}

func TestForget(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, named := range map[string]func(*uploader.BackupRequest, uploader.SnapshotVolume){"1.17": asAgent117, "1.16": asAgent116} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := forgetSubject(t, initialized(t))
			s.Backup = named
			uploadertest.RunForget(t, s)
		})
	}
}

func TestForgetS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	repository := bucketAddress(t, s3.Start(t))
	s, data := forgetSubject(t, repository), newUploader(t, kopia.Options{})
	s.Data = data
	if err := data.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	uploadertest.RunForget(t, s)
}

// TestForgetOnlyOurs: a snapshot of a Backup, of an unfinished backup or of another source stays.
func TestForgetOnlyOurs(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := forgetSubject(t, initialized(t))
	shop := uploadertest.ShopVolume()
	s.Backup = func(req *uploader.BackupRequest, v uploader.SnapshotVolume) {
		asAgent116(req, v)
		req.Tags["backup"] = "nightly"
	}
	ofBackup := s.Store(t, shop)
	s.Backup = func(req *uploader.BackupRequest, v uploader.SnapshotVolume) {
		asAgent117(req, v)
		req.Source = "/home/somebody"
	}
	elsewhere := s.Store(t, shop)
	got, err := s.Data.Forget(t.Context(), uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{
		{ID: ofBackup, Volume: shop}, {ID: elsewhere, Volume: shop}, {ID: "latest", Volume: shop},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"backup=nightly", "its source is default@default:/home/somebody"} {
		if o := got.Snapshots[i]; o.State != uploader.ForgetRefused || !strings.Contains(o.Why, want) {
			t.Errorf("%+v, want %s", o, want)
		}
	}
	if got.Snapshots[2].State != uploader.ForgetNotFound {
		t.Errorf("%+v", got.Snapshots[2])
	}
	s.Has(t, ofBackup, elsewhere)

	listed := s.Snapshots(t)
	if of := listed[ofBackup]; of.Backup != "nightly" || of.Protected != "" || of.Volume.Namespace != shop.Namespace || of.Volume.Name != shop.Name {
		t.Errorf("%+v", of)
	}
	if of := listed[elsewhere]; of.Protected != "it is of no pod's volume: its source is default@default:/home/somebody" {
		t.Errorf("%+v", of)
	}
	s.RemoveOrphan(t, ofBackup)
	s.Has(t, elsewhere)
}

// TestForgetPinned: a snapshot that a person has pinned with kopia's program stays.
func TestForgetPinned(t *testing.T) {
	parts.Slow(t) // it needs kopia's program
	t.Parallel()
	s := forgetSubject(t, initialized(t))
	shop := uploadertest.ShopVolume()
	p := connect(t, s.Repository)
	p.run(t, "snapshot", "pin", "--add=legal", s.Store(t, shop))
	var pinned []struct {
		ID string `json:"id"`
	}
	p.decode(t, &pinned, "snapshot", "list", "--all") // it has another id now
	if len(pinned) != 1 {
		t.Fatalf("%+v", pinned)
	}
	for _, orphan := range []bool{false, true} {
		got, err := s.Data.Forget(t.Context(), uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{{ID: pinned[0].ID, Volume: shop, Orphan: orphan}}}, nil)
		if err != nil || got.Snapshots[0].State != uploader.ForgetRefused || !strings.Contains(got.Snapshots[0].Why, `the pin "legal"`) {
			t.Errorf("orphan %t: %+v, %v", orphan, got, err)
		}
	}
	if of := s.Snapshots(t)[pinned[0].ID]; of.Protected != `it has the pin "legal"` || of.Volume.Pod != shop.Pod || of.Backup != "" {
		t.Errorf("%+v", of)
	}
	s.Has(t, pinned[0].ID)
}

// TestForgetErrors: after each error all snapshots are there.
func TestForgetErrors(t *testing.T) {
	t.Parallel()
	s := forgetSubject(t, initialized(t))
	shop := uploadertest.ShopVolume()
	id := s.Store(t, shop)
	for name, test := range map[string]struct {
		change func(*uploader.Repository)
		want   error
	}{
		"wrong password": {func(r *uploader.Repository) { r.Password = "another" }, uploader.ErrWrongPassword},
		"no repository":  {func(r *uploader.Repository) { r.URL += "-gone" }, uploader.ErrRepositoryNotFound},
		"read-only":      {func(r *uploader.Repository) { r.ReadOnly = true }, uploader.ErrUnsupported},
	} {
		repository := s.Repository
		test.change(&repository)
		if _, err := s.Data.Forget(t.Context(), uploader.ForgetRequest{Repository: repository, Snapshots: []uploader.ForgetSnapshot{{ID: id, Volume: shop}}}, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Has(t, id)
}
