package repositorytask

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// copying is a restic repository and a kopia repository, and what copies from one to the other.
type copying struct {
	t        *testing.T
	restic   *restic.Uploader
	kopia    *kopia.Uploader
	from, to uploader.Repository
}

func newCopying(t *testing.T, version string) *copying {
	t.Helper()
	return newCopyingWith(t, version, restic.Options{})
}

func newCopyingWith(t *testing.T, version string, options restic.Options) *copying {
	t.Helper()
	options.TempDir = t.TempDir()
	c := &copying{t: t, from: uploader.Repository{URL: filepath.Join(t.TempDir(), "restic"), Password: resticrepo.Password}, to: uploader.Repository{URL: filepath.Join(t.TempDir(), "kopia"), Password: resticrepo.Password}}
	resticrepo.Create(t, c.from.URL)
	var err error
	if c.restic, err = restic.New(t.Context(), parts.Restic(t, version), options); err != nil {
		t.Fatal(err)
	}
	if c.kopia, err = kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	if err := c.kopia.Initialize(t.Context(), c.to); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *copying) backUp(volume string) string {
	c.t.Helper()
	dir, err := os.Open(volume)
	if err != nil {
		c.t.Fatal(err)
	}
	defer dir.Close()
	stored, err := c.restic.Backup(c.t.Context(), uploader.BackupRequest{Repository: c.from, Volume: dir}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return stored.SnapshotID
}

func (c *copying) copy(snapshot string) (uploader.ImportResult, error) {
	c.t.Helper()
	return c.copySince(snapshot, uploader.ImportedSnapshot{}, new(int64))
}

// copySince copies a snapshot with an earlier one, and adds the bytes of content that restic wrote to read.
func (c *copying) copySince(snapshot string, earlier uploader.ImportedSnapshot, read *int64) (uploader.ImportResult, error) {
	c.t.Helper()
	return c.kopia.Import(c.t.Context(), c.request(snapshot, earlier), func(ctx context.Context, each func(uploader.Exported) error) (uploader.ExportResult, error) {
		return c.restic.Export(ctx, uploader.ExportRequest{Repository: c.from, SnapshotID: snapshot, Previous: earlier.Origin}, func(e uploader.Exported) error {
			if e.Content != nil {
				*read += e.Size
			}
			return each(e)
		})
	}, nil)
}

func (c *copying) request(origin string, earlier uploader.ImportedSnapshot) uploader.ImportRequest {
	return uploader.ImportRequest{
		Repository: c.to, Source: "snapshot-pod-volume/kopia/shop/db-0/data", Origin: origin, Previous: earlier,
		Tags: map[string]string{"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": "kopia"},
	}
}

func (c *copying) mustCopy(snapshot string) uploader.ImportResult {
	c.t.Helper()
	result, err := c.copy(snapshot)
	if err != nil || result.Mismatched > 0 || result.SnapshotID == "" {
		c.t.Fatalf("%+v, %v", result, err)
	}
	return result
}

// restored is a directory into which kopia restores a snapshot.
func (c *copying) restored(snapshot string) string {
	c.t.Helper()
	path := c.t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer dir.Close()
	result, err := c.kopia.Restore(c.t.Context(), uploader.RestoreRequest{Repository: c.to, Volume: dir, SnapshotID: snapshot}, nil)
	if err != nil || result.Errors > 0 {
		c.t.Fatalf("%+v, %v", result, err)
	}
	return path
}

// rareVolume is a volume with all that files can have, but for names that are no UTF-8.
func rareVolume(t *testing.T) string {
	t.Helper()
	volume := t.TempDir()
	if err := tree.Make(volume, tree.Spec{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".", "odd"} {
		entries, err := os.ReadDir(filepath.Join(volume, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if utf8.ValidString(entry.Name()) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(volume, dir, entry.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(unix.Mkfifo(filepath.Join(volume, "fifo at the top"), 0o600), tree.SetTimes(volume)); err != nil {
		t.Fatal(err)
	}
	return volume
}

// TestCopyKeepsAll: a volume with links, modes, times and special files comes back from the copy as it was, but for what kopia does not
// store, and that is counted. In the restic repository nothing is changed, and nothing added.
func TestCopyKeepsAll(t *testing.T) {
	t.Parallel()
	for _, version := range parts.ResticVersions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := newCopying(t, version)
			volume := rareVolume(t)
			id := c.backUp(volume)
			before := contents(t, c.from.URL)
			result := c.mustCopy(id)
			if result.Special != 2 || result.Attributes != 1 {
				t.Errorf("%+v; the volume has two FIFOs and a file with extended attributes", result)
			}
			if !maps.Equal(before, contents(t, c.from.URL)) {
				t.Error("the restic repository has changed")
			}
			differences, err := tree.Compare(volume, c.restored(result.SnapshotID), tree.Options{Plain: true})
			if err != nil || len(differences) > 0 {
				t.Errorf("%v\n%s", err, strings.Join(differences, "\n"))
			}
			imported, err := c.kopia.Imported(t.Context(), c.to)
			if err != nil || !maps.Equal(imported, map[string]string{id: result.SnapshotID}) {
				t.Errorf("%v, %v", imported, err)
			}
		})
	}
}

// TestCopyRefusesLostNames: kopia would store names that are no UTF-8 as other ones.
func TestCopyRefusesLostNames(t *testing.T) {
	t.Parallel()
	c := newCopying(t, parts.DefaultRestic)
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "caf\xe9"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := c.copy(c.backUp(volume))
	if !errors.Is(err, uploader.ErrUnsupported) || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("%+v, %v", result, err)
	}
	if imported, err := c.kopia.Imported(t.Context(), c.to); err != nil || len(imported) > 0 {
		t.Errorf("%v, %v", imported, err)
	}
}

// contents are the files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		files[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// emptiedImporter deletes something after the repository was first asked what it has.
type emptiedImporter struct {
	Importer
	deletion func()
	once     sync.Once
}

func (d *emptiedImporter) Imported(ctx context.Context, repo uploader.Repository) (map[string]string, error) {
	found, err := d.Importer.Imported(ctx, repo)
	d.once.Do(d.deletion)
	return found, err
}

// TestMigratedSnapshotIsDeletedMeanwhile: no copy of a Backup leads to a snapshot that was there when the task began, hours before, and is gone.
func TestMigratedSnapshotIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	resticrepo.Create(t, s.repository("restic", "shop").URL)
	night := s.nightlyBackup("night", rareVolume(t), 1)
	stop := s.start(s.migrating())
	first := s.ended(s.migration("first")).Status
	if first.Phase != v1alpha1.PhaseCompleted {
		t.Fatalf("%+v", first)
	}
	stop()
	copied := filepath.Join(s.dir, "backups", night.Name+"-kopia")
	cfg := s.migrating()
	cfg.Importer = &emptiedImporter{Importer: s.kopia, deletion: func() { // as a Velero server does with an expired Backup
		gone, err := s.kopia.Forget(t.Context(), uploader.ForgetRequest{Repository: s.repository("kopia", "shop"), Snapshots: []uploader.ForgetSnapshot{{
			ID: first.Volumes[0].MigratedSnapshotID, Volume: uploader.SnapshotVolume{Namespace: "shop", Pod: "db-0", Name: "data", Claim: "orders"},
		}}}, nil)
		if err := errors.Join(err, os.RemoveAll(copied)); err != nil || gone.Snapshots[0].State != uploader.ForgetRemoved {
			t.Errorf("%+v, %v", gone, err)
		}
	}}
	s.start(cfg)
	status := s.ended(s.migration("second")).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonNotMigrated || status.Backups[0].Result != v1alpha1.VolumeFailed {
		t.Errorf("%+v", status)
	}
	if _, err := os.Stat(copied); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the Backup was copied: %v", err)
	}
}
