package restic

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// prunable stores two snapshots in a repository, and forgets the first. What only that needs is half of a pack, and a whole one of
// directories. The second snapshot is returned.
func prunable(t *testing.T, u *Uploader, repository uploader.Repository) string {
	t.Helper()
	dir := t.TempDir()
	random := volumeOf(t, 3<<20).Name()
	other := volumeOf(t, 3<<20).Name()
	for name, from := range map[string]string{"goes": random, "stays": other} {
		if err := os.Rename(filepath.Join(from, "file"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	shop := uploadertest.ShopVolume()
	store := func() string {
		req := uploader.BackupRequest{Repository: repository, Volume: open(t, dir)}
		asAgent(&req, shop)
		stored, err := u.Backup(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		return stored.SnapshotID
	}
	first := store()
	if err := os.Remove(filepath.Join(dir, "goes")); err != nil {
		t.Fatal(err)
	}
	second := store()
	if _, err := u.Forget(t.Context(), uploader.ForgetRequest{Repository: repository, Snapshots: []uploader.ForgetSnapshot{{ID: first, Volume: shop}}}, nil); err != nil {
		t.Fatal(err)
	}
	return second
}

// intact fails unless a repository is whole, with all its data read, and a snapshot can be restored out of it.
func intact(t *testing.T, u *Uploader, repository uploader.Repository, snapshot string) {
	t.Helper()
	if found, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository, ReadData: true, Snapshots: []string{snapshot}}, nil); err != nil || found.Damaged > 0 {
		t.Errorf("the check: %+v, %v", found, err)
	}
	if proof, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: snapshot}, nil); err != nil || !proof.Proven() || proof.Files == 0 {
		t.Errorf("the snapshot: %+v, %v", proof, err)
	}
}

// objects are the names and sizes of a repository's files but its locks.
func objects(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(name, "locks/") {
			return err
		}
		info, err := d.Info()
		if err == nil {
			found[name] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func packBytes(objects map[string]int64) (n int64) {
	for name, size := range objects {
		if strings.HasPrefix(name, "data/") {
			n += size
		}
	}
	return n
}

// TestPrune plans, which changes nothing, and prunes: what restic says, what the storage lists, and what is there are the same.
func TestPrune(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		snapshot := prunable(t, u, repository)
		had := objects(t, repository.URL)
		var before *uploader.StorageSize
		req := uploader.PruneRequest{Repository: repository, MaxUnused: "0", Measured: func(s *uploader.StorageSize) error { before = s; return nil }}
		plan, err := u.Prune(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		if before == nil || before.PackBytes != packBytes(had) || plan.After != nil || plan.Snapshots != 1 || plan.NotKnown != "" {
			t.Errorf("%+v, %+v, of %d bytes", before, plan, packBytes(had))
		}
		if p := *plan.Plan; p.RemovableBytes < 3<<20 || p.RemovableBytes > 4<<20 || p.RepackedPacks != 1 || p.RemovedPacks < 1 || p.UnusedBytesLeft != 0 {
			t.Errorf("%+v", p)
		}
		if diff := cmp.Diff(had, objects(t, repository.URL)); diff != "" {
			t.Errorf("a plan changes the repository: %s", diff)
		}
		noLocks(t, repository)

		lazy := req
		lazy.MaxUnused = "unlimited"
		if kept, err := u.Prune(t.Context(), lazy, nil); err != nil || kept.Plan.RepackedPacks != 0 || kept.Plan.UnusedBytesLeft < 3<<20 {
			t.Errorf("without a limit on what is not used: %+v, %v", kept, err)
		}
		lazy.MaxUnused, lazy.MaxRepackSize = "0", "1K"
		if kept, err := u.Prune(t.Context(), lazy, nil); err != nil || kept.Plan.RepackedPacks != 0 || kept.Plan.UnusedBytesLeft < 3<<20 {
			t.Errorf("with a limit on what is repacked: %+v, %v", kept, err)
		}

		req.Apply = true
		var seen uploadertest.Recorder
		got, err := u.Prune(t.Context(), req, &seen)
		if err != nil {
			t.Fatal(err)
		}
		now := packBytes(objects(t, repository.URL))
		if got.After == nil || got.After.PackBytes != now || before.PackBytes-now < 3<<20 || *got.Plan != *plan.Plan || got.Snapshots != 1 || len(got.Lost) > 0 || got.Left != 0 {
			t.Errorf("%+v, and %d bytes are left of %d", got, now, before.PackBytes)
		}
		last := seen.Last()
		if total := got.Plan.RepackedPacks + got.Plan.RemovedPacks; last.BytesDone != total || last.TotalBytes != total {
			t.Errorf("the last reading is %+v, of %d steps", last, total)
		}
		noLocks(t, repository)
		intact(t, u, repository, snapshot)
		if again, err := u.Prune(t.Context(), req, nil); err != nil || again.Plan.RemovedPacks != 0 || again.After.PackBytes != now {
			t.Errorf("again: %+v, %v", again, err)
		}
	})
}

// TestPruneErrors: after each error everything is there.
func TestPruneErrors(t *testing.T) {
	parts.Slow(t)
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		snapshot := prunable(t, u, repository)
		had := objects(t, repository.URL)
		prune := func(change func(*uploader.PruneRequest)) error {
			req := uploader.PruneRequest{Repository: repository, Apply: true, MaxUnused: "0"}
			change(&req)
			_, err := u.Prune(t.Context(), req, nil)
			return err
		}
		refusal := errors.New("not now")
		for name, test := range map[string]struct {
			change func(*uploader.PruneRequest)
			want   error
		}{
			"wrong password": {func(r *uploader.PruneRequest) { r.Repository.Password = "another" }, uploader.ErrWrongPassword},
			"no repository":  {func(r *uploader.PruneRequest) { r.Repository.URL += "-gone" }, uploader.ErrRepositoryNotFound},
			"read-only":      {func(r *uploader.PruneRequest) { r.Repository.ReadOnly = true }, uploader.ErrUnsupported},
			"not recorded":   {func(r *uploader.PruneRequest) { r.Measured = func(*uploader.StorageSize) error { return refusal } }, refusal},
		} {
			if err := prune(test.change); !errors.Is(err, test.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := prune(func(r *uploader.PruneRequest) { r.MaxUnused = "many" }); err == nil || !strings.Contains(err.Error(), "many") {
			t.Errorf("got %v", err)
		}

		release := holdLock(t, parts.Restic(t, version), repository.URL, resticrepo.Password)
		for _, apply := range []bool{false, true} {
			err := prune(func(r *uploader.PruneRequest) { r.Apply = apply })
			var locked *uploader.LockedError
			if !errors.As(err, &locked) || !errors.Is(err, uploader.ErrRepositoryLocked) || !strings.Contains(locked.Owner, "exclusively by PID") {
				t.Errorf("beside a live lock: %v", err)
			}
		}
		release()
		if diff := cmp.Diff(had, objects(t, repository.URL)); diff != "" {
			t.Error(diff)
		}
		// The holder is dead now, and its lock goes.
		if err := prune(func(*uploader.PruneRequest) {}); err != nil {
			t.Error(err)
		}
		noLocks(t, repository)
		intact(t, u, repository, snapshot)
	})
}

// TestPruneDamaged: a repository without a pack that a snapshot needs is left as it is, and the pack is named.
func TestPruneDamaged(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		prunable(t, u, repository)
		had := objects(t, repository.URL)
		var lost string
		for name, size := range had {
			if strings.HasPrefix(name, "data/") && size > 2<<20 {
				lost = name
			}
		}
		if err := os.Remove(filepath.Join(repository.URL, lost)); err != nil {
			t.Fatal(err)
		}
		delete(had, lost)
		_, err := u.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: true, MaxUnused: "0"}, nil)
		if !errors.Is(err, uploader.ErrRepositoryDamaged) || !strings.Contains(err.Error(), filepath.Base(lost)) || !strings.Contains(err.Error(), "missing in repo") {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff(had, objects(t, repository.URL)); diff != "" {
			t.Error(diff)
		}
		noLocks(t, repository)
	})
}

// TestPruneBesideBackup: a backup that runs keeps prune away and loses nothing, and prune does its work afterwards.
func TestPruneBesideBackup(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 0)
	first := prunable(t, u, repository)
	slow := newUploader(t, parts.DefaultRestic, Options{UploadLimit: 800_000}) // 4 s, so that it can be stopped
	volume := volumeOf(t, 3<<20)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	var second string
	go func() {
		req := uploader.BackupRequest{Repository: repository, Volume: volume}
		asAgent(&req, uploadertest.ShopVolume())
		stored, err := slow.Backup(ctx, req, nil)
		second = stored.SnapshotID
		ended <- err
	}()
	waitFor(t, "the backup's lock", func() bool { return len(locks(t, repository.URL)) > 0 })
	resume := stopIn(t, volume.Name())
	req := uploader.PruneRequest{Repository: repository, Apply: true, MaxUnused: "0"}
	if _, err := u.Prune(ctx, req, nil); !errors.Is(err, uploader.ErrRepositoryLocked) {
		t.Errorf("beside a backup: %v", err)
	}
	resume()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	got, err := u.Prune(ctx, req, nil)
	if err != nil || got.Snapshots != 2 || got.Plan.RemovableBytes < 3<<20 {
		t.Errorf("%+v, %v", got, err)
	}
	intact(t, u, repository, first)
	intact(t, u, repository, second)
}

// TestPruneKilled: of a prune that was killed while it repacks, the next one takes the dead lock away, and completes.
func TestPruneKilled(t *testing.T) {
	parts.Slow(t)
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		snapshot := prunable(t, u, repository)
		had := packBytes(objects(t, repository.URL))
		c := exec.CommandContext(t.Context(), parts.Restic(t, version), "-r", repository.URL, "prune", "--max-unused", "0", "--limit-download", "400", "--no-cache")
		c.Env = []string{"RESTIC_PASSWORD=" + resticrepo.Password, "TMPDIR=" + t.TempDir(), "HOME=" + t.TempDir(), "RESTIC_PROGRESS_FPS=20"}
		repacking := make(chan struct{})
		said := &untilSaid{text: "repacking packs", seen: repacking}
		c.Stdout = said
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		<-repacking
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
		if len(locks(t, repository.URL)) == 0 || packBytes(objects(t, repository.URL)) < had {
			t.Fatal("the prune was over before it was killed")
		}
		got, err := u.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: true, MaxUnused: "0"}, nil)
		if err != nil || had-got.After.PackBytes < 3<<20 {
			t.Errorf("%+v, %v", got, err)
		}
		noLocks(t, repository)
		intact(t, u, repository, snapshot)
	})
}

// untilSaid closes seen when a program has said text.
type untilSaid struct {
	text string
	seen chan struct{}
	all  bytes.Buffer
	over bool
}

func (w *untilSaid) Write(p []byte) (int, error) {
	w.all.Write(p)
	if !w.over && strings.Contains(w.all.String(), w.text) {
		w.over = true
		close(w.seen)
	}
	return len(p), nil
}

// TestPruneCanceled ends in an orderly way while it repacks, and leaves no lock.
func TestPruneCanceled(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	u := newUploader(t, parts.DefaultRestic, Options{DownloadLimit: 400 << 10})
	repository := initialized(t, u, 0)
	snapshot := prunable(t, u, repository)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	sink := progress.SinkFunc(func(r progress.Reading) {
		if r.Stage == progress.StageTransferring {
			cancel(stop)
		}
	})
	if _, err := u.Prune(ctx, uploader.PruneRequest{Repository: repository, Apply: true, MaxUnused: "0"}, sink); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	noLocks(t, repository)
	intact(t, u, repository, snapshot)
}

// TestPruneHiddenSnapshots: a storage lists no snapshots for a moment, or not all of them. Nothing is removed, no lock is left, and with all of them the next
// prune completes.
func TestPruneHiddenSnapshots(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		first := prunable(t, u, repository)
		req := uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 3<<20)}
		asAgent(&req, uploadertest.ShopVolume())
		second, err := u.Backup(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		had := objects(t, repository.URL)
		snapshots, away := filepath.Join(repository.URL, "snapshots"), filepath.Join(t.TempDir(), "away")
		one, err := filepath.Glob(filepath.Join(snapshots, second.SnapshotID+"*")) // 0.14 names it by the beginning of its id
		if err != nil || len(one) != 1 {
			t.Fatal(one, err)
		}
		for _, from := range []string{snapshots, one[0]} {
			for _, apply := range []bool{false, true} {
				hide := func(*uploader.StorageSize) error { return os.Rename(from, away) }
				got, err := u.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: apply, MaxUnused: "0", Measured: hide}, nil)
				if !errors.Is(err, errHidden) || apply && len(got.Others) != 2 {
					t.Errorf("%+v, %v", got, err)
				}
				if err := os.Rename(away, from); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(had, objects(t, repository.URL)); diff != "" {
					t.Fatalf("without %s: %s", filepath.Base(from), diff)
				}
				noLocks(t, repository)
			}
		}
		got, err := u.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: true, MaxUnused: "0"}, nil)
		if err != nil || got.Snapshots != 2 || got.Plan.RemovableBytes < 3<<20 {
			t.Errorf("with all: %+v, %v", got, err)
		}
		noLocks(t, repository)
		intact(t, u, repository, first)
		intact(t, u, repository, second.SnapshotID)
	})
}

// TestPruneTellsOfLost: a snapshot that somebody else removes meanwhile is named.
func TestPruneTellsOfLost(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 0)
	snapshot := prunable(t, u, repository)
	remove := progress.SinkFunc(func(r progress.Reading) {
		if strings.Contains(r.Message, "collecting packs") {
			if err := os.Remove(filepath.Join(repository.URL, "snapshots", snapshot)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	got, err := u.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: true}, remove)
	if err != nil || len(got.Lost) != 1 || got.Lost[0] != snapshot {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestPruneOnS3 prunes in a bucket, whose size is what is measured, and ends with an error when the bucket goes away in the middle. When it
// is back the next prune completes.
func TestPruneOnS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	repository, dir := newRepositoryOnS3(t, s3.Start(t))
	measure := func(ctx context.Context, _ uploader.Repository, _ []string, _ string) (uploader.StorageSize, error) {
		return directorySize(ctx, dir)
	}
	u := newUploader(t, parts.DefaultRestic, Options{MeasureStorage: measure})
	snapshot := prunable(t, u, repository)
	had := packBytes(objects(t, dir))
	away := dir + "-away"
	gone := progress.SinkFunc(func(r progress.Reading) {
		if strings.Contains(r.Message, "searching used packs") {
			if err := os.Rename(filepath.Join(dir, "data"), away); err != nil {
				t.Error(err)
			}
		}
	})
	req := uploader.PruneRequest{Repository: repository, Apply: true, MaxUnused: "0"}
	if got, err := u.Prune(t.Context(), req, gone); err == nil {
		t.Errorf("without its packs: %+v", got)
	} else {
		t.Log(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "data")), os.Rename(away, filepath.Join(dir, "data"))); err != nil {
		t.Fatal(err)
	}
	got, err := u.Prune(t.Context(), req, nil)
	if err != nil || got.After == nil || got.After.PackBytes != packBytes(objects(t, dir)) || had-got.After.PackBytes < 3<<20 {
		t.Errorf("%+v, %v", got, err)
	}
	intact(t, u, repository, snapshot)
}

// TestPruneOutput reads what restic 0.14.0 has printed of a repository with an unreferenced pack, and a refusal to remove an object as restic
// 0.18.1 prints it.
func TestPruneOutput(t *testing.T) {
	t.Parallel()
	var seen uploadertest.Recorder
	run := &pruneRun{sink: &seen}
	for line := range strings.SplitSeq(`loading indexes...
finding data that is still in use for 2 snapshots
[0:00] 100.00%  2 / 2 snapshots

collecting packs for deletion and repacking
will remove pack aa000000 as it is unused and not indexed
[0:00] 100.00%  10 / 10 packs processed

to repack:           133 blobs / 16.021 MiB
this removes:         56 blobs / 2.673 MiB
to delete:             2 blobs / 16.329 MiB
total prune:          58 blobs / 19.001 MiB
remaining:           306 blobs / 92.726 MiB
unused size after prune: 1.500 KiB (0.00% of remaining size)

to keep:               8 packs
to repack:             1 packs
to delete:             1 packs
to delete:             1 unreferenced packs

deleting unreferenced packs
[0:00] 100.00%  1 / 1 files deleted
repacking packs
[0:00] 0.00%  0 / 1 packs repacked
[0:00] 100.00%  1 / 1 packs repacked
rebuilding index
[0:00] 100.00%  9 / 9 packs processed
deleting obsolete index files
[0:00] 100.00%  3 / 3 files deleted
removing 2 old packs
[0:00] 50.00%  1 / 2 files deleted
[0:00] 100.00%  2 / 2 files deleted
done`, "\n") {
		run.line([]byte(line))
	}
	run.said("unable to remove data/" + strings.Repeat("a", 64) + " from the repository")
	removable := 19.001 * (1 << 20)
	want := uploader.PrunePlan{RemovableBytes: int64(removable), UnusedBytesLeft: 1536, RepackedPacks: 1, RemovedPacks: 3}
	if run.plan != want || !run.planned || run.left != 1 || len(run.missing) > 0 {
		t.Errorf("%+v", run)
	}
	var steps []int64
	var said, counted []string
	for _, r := range seen.Readings() {
		if r.Stage == progress.StageTransferring {
			steps = append(steps, r.BytesDone)
			counted = append(counted, r.CurrentItem)
			continue
		}
		said = append(said, r.Message)
	}
	if diff := cmp.Diff([]int64{0, 1, 1, 1, 2, 2, 3, 4}, steps); diff != "" {
		t.Error(diff)
	}
	if counted[0] != "0 of 4 packs" || counted[len(counted)-1] != "4 of 4 packs" {
		t.Errorf("%q", counted)
	}
	if diff := cmp.Diff([]string{
		"for restic prune: loading indexes",
		"for restic prune: finding data that is still in use for 2 snapshots", "for restic prune: finding data that is still in use for 2 snapshots, 2 of 2 snapshots",
		"for restic prune: collecting packs for deletion and repacking", "for restic prune: collecting packs for deletion and repacking, 10 of 10 packs processed",
		"for restic prune: rebuilding index", "for restic prune: rebuilding index, 9 of 9 packs processed",
		"for restic prune: deleting obsolete index files", "for restic prune: deleting obsolete index files, 3 of 3 files deleted",
	}, said); diff != "" {
		t.Error(diff)
	}
}
