package restic

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// asAgent tags a snapshot as the node agent does.
func asAgent(req *uploader.BackupRequest, v uploader.SnapshotVolume) {
	req.Tags = map[string]string{"ns": v.Namespace, "pod": v.Pod, "pod-uid": v.PodUID, "volume": v.Name}
}

func forgetSubject(u *Uploader, repository uploader.Repository) uploadertest.ForgetSubject {
	return uploadertest.ForgetSubject{Data: u, Repository: repository, Backup: asAgent}
}

func TestForget(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		uploadertest.RunForget(t, forgetSubject(u, repository))
		noLocks(t, repository)
	})
}

func TestForgetS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	repository, _ := newRepositoryOnS3(t, s3.Start(t))
	uploadertest.RunForget(t, forgetSubject(newUploader(t, parts.DefaultRestic, Options{}), repository))
}

// TestForgetOnlyOurs: a snapshot that has a tag of a Backup, or not the tags of the volume, or an ambiguous id, stays.
func TestForgetOnlyOurs(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	s := forgetSubject(u, initialized(t, u, 0))
	shop := uploadertest.ShopVolume()
	s.Backup = func(req *uploader.BackupRequest, v uploader.SnapshotVolume) {
		asAgent(req, v)
		req.Tags["backup"] = "nightly"
	}
	ofBackup := s.Store(t, shop)
	s.Backup = func(*uploader.BackupRequest, uploader.SnapshotVolume) {}
	untagged := s.Store(t, shop)
	got, err := u.Forget(t.Context(), uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{
		{ID: ofBackup, Volume: shop}, {ID: untagged, Volume: shop}, {ID: "latest", Volume: shop}, {ID: "--keep-last=1", Volume: shop},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"backup=nightly", "ns=shop", "no snapshot id", "no snapshot id"} {
		if o := got.Snapshots[i]; o.State != uploader.ForgetRefused || !strings.Contains(o.Why, want) {
			t.Errorf("%+v, want %s", o, want)
		}
	}
	s.Has(t, ofBackup, untagged)
	full := ""
	for id, of := range s.Snapshots(t) {
		switch {
		case of.Backup == "nightly":
			if full = id; !strings.HasPrefix(id, ofBackup) || of.Volume != (uploader.SnapshotVolume{Namespace: shop.Namespace, Pod: shop.Pod, PodUID: shop.PodUID, Name: shop.Name}) || of.Protected != "" {
				t.Errorf("%+v", of)
			}
		case of.Protected != "it has not the tags of a pod's volume":
			t.Errorf("%+v", of)
		}
	}
	begin := uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{{ID: full[:12], Orphan: true}}}
	if got, err := u.Forget(t.Context(), begin, nil); err != nil || got.Snapshots[0].State != uploader.ForgetRefused {
		t.Errorf("by the begin of its id: %+v, %v", got, err)
	}
	s.RemoveOrphan(t, full)
	s.Has(t, untagged)
	twins := []listedSnapshot{{ID: "abcdef0123" + strings.Repeat("0", 54)}, {ID: "abcdef0124" + strings.Repeat("0", 54)}}
	if id, o := find(twins, &uploader.ForgetSnapshot{ID: "abcdef012"}); id != "" || o.State != uploader.ForgetRefused {
		t.Errorf("%q, %+v", id, o)
	}
}

// TestForgetErrors: after each error all snapshots are there.
func TestForgetErrors(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		s := forgetSubject(u, initialized(t, u, 0))
		shop := uploadertest.ShopVolume()
		id, other := s.Store(t, shop), s.Store(t, shop)
		forget := func(ctx context.Context, change func(*uploader.Repository)) error {
			repository := s.Repository
			change(&repository)
			got, err := u.Forget(ctx, uploader.ForgetRequest{Repository: repository, Snapshots: []uploader.ForgetSnapshot{{ID: id, Volume: shop}}}, nil)
			if len(got.Others) > 0 {
				t.Errorf("nothing was removed, and others are %v, after %v", got.Others, err)
			}
			return err
		}
		for name, test := range map[string]struct {
			change func(*uploader.Repository)
			want   error
		}{
			"wrong password": {func(r *uploader.Repository) { r.Password = "another" }, uploader.ErrWrongPassword},
			"no repository":  {func(r *uploader.Repository) { r.URL += "-gone" }, uploader.ErrRepositoryNotFound},
			"read-only":      {func(r *uploader.Repository) { r.ReadOnly = true }, uploader.ErrUnsupported},
		} {
			if err := forget(t.Context(), test.change); !errors.Is(err, test.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		s.Has(t, id, other)

		release := holdLock(t, parts.Restic(t, version), s.Repository.URL, resticrepo.Password)
		err := forget(t.Context(), func(*uploader.Repository) {})
		release()
		var locked *uploader.LockedError
		if !errors.As(err, &locked) || !errors.Is(err, uploader.ErrRepositoryLocked) || !strings.Contains(locked.Owner, "exclusively by PID") {
			t.Errorf("beside a live lock: %v", err)
		}
		s.Has(t, id, other)
		// The holder is dead now, and its lock goes.
		if err := forget(t.Context(), func(*uploader.Repository) {}); err != nil {
			t.Error(err)
		}
		s.Has(t, other)
		noLocks(t, s.Repository)
	})
}

// TestForgetBesideBackup: a backup that runs keeps forget away, loses nothing, and forget does its work afterwards.
func TestForgetBesideBackup(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	u := newUploader(t, parts.DefaultRestic, Options{})
	s := forgetSubject(u, initialized(t, u, 0))
	shop := uploadertest.ShopVolume()
	first := s.Store(t, shop)
	slow := newUploader(t, parts.DefaultRestic, Options{UploadLimit: 800_000}) // 4 s, so that it can be stopped
	volume := volumeOf(t, 3<<20)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	var second string
	go func() {
		req := uploader.BackupRequest{Repository: s.Repository, Volume: volume}
		asAgent(&req, shop)
		stored, err := slow.Backup(ctx, req, nil)
		second = stored.SnapshotID
		ended <- err
	}()
	waitFor(t, "the backup's lock", func() bool { return len(locks(t, s.Repository.URL)) > 0 })
	resume := stopIn(t, volume.Name())
	request := uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{{ID: first, Volume: shop}}}
	if _, err := u.Forget(ctx, request, nil); !errors.Is(err, uploader.ErrRepositoryLocked) {
		t.Errorf("beside a backup: %v", err)
	}
	resume()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := u.Forget(ctx, request, nil); err != nil {
		t.Error(err)
	}
	s.Has(t, second)
	if proof, err := u.Verify(ctx, uploader.VerifyRequest{Repository: s.Repository, SnapshotID: second}, nil); err != nil || !proof.Proven() {
		t.Errorf("%+v, %v", proof, err)
	}
}

// TestForgetTellsOfLost: a snapshot that somebody else removes meanwhile is named.
func TestForgetTellsOfLost(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	s := forgetSubject(u, initialized(t, u, 0))
	shop := uploadertest.ShopVolume()
	first, second := s.Store(t, shop), s.Store(t, shop)
	once := progress.SinkFunc(func(r progress.Reading) {
		if r.Stage != progress.StageTransferring || r.BytesDone > 0 {
			return
		}
		found, err := filepath.Glob(filepath.Join(s.Repository.URL, "snapshots", second+"*"))
		if err != nil || len(found) != 1 {
			t.Errorf("%v, %v", found, err)
			return
		}
		if err := os.Remove(found[0]); err != nil {
			t.Error(err)
		}
	})
	got, err := u.Forget(t.Context(), uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{{ID: first, Volume: shop}}}, once)
	if err != nil || len(got.Lost) != 1 || !strings.HasPrefix(got.Lost[0], second) || got.Snapshots[0].State != uploader.ForgetRemoved {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestForgetCanceled leaves no lock.
func TestForgetCanceled(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	s := forgetSubject(u, initialized(t, u, 0))
	shop := uploadertest.ShopVolume()
	id := s.Store(t, shop)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	sink := progress.SinkFunc(func(r progress.Reading) {
		if r.Stage == progress.StageTransferring {
			cancel(stop)
		}
	})
	if _, err := u.Forget(ctx, uploader.ForgetRequest{Repository: s.Repository, Snapshots: []uploader.ForgetSnapshot{{ID: id, Volume: shop}}}, sink); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	noLocks(t, s.Repository)
}
