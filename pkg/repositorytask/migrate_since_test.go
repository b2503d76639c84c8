package repositorytask

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

func randomBytes(n int) []byte {
	content := make([]byte, n)
	_, _ = rand.Read(content)
	return content
}

// changingVolume is rareVolume with a directory for each thing that can become of an entry, and what makes all of that happen.
func changingVolume(t *testing.T) (volume string, change func()) {
	t.Helper()
	volume = rareVolume(t)
	in := func(names ...string) string { return filepath.Join(append([]string{volume}, names...)...) }
	do := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Date(2026, 4, 1, 2, 3, 4, 567891234, time.UTC)
	do(os.MkdirAll(in("changes", "becomes a file"), 0o755), os.MkdirAll(in("moves", "a"), 0o755), os.MkdirAll(in("turn"), 0o755), os.MkdirAll(in("goes", "with"), 0o755))
	for name, size := range map[string]int{
		"changes/content": 50_000, "changes/same size and time": 60_000, "changes/grows": 1000, "changes/shrinks": 2000, "changes/becomes empty": 500, "changes/mode": 70_000, "changes/owner": 80_000,
		"changes/time": 90_000, "changes/attributes": 100_000, "changes/becomes a link": 700, "changes/becomes a FIFO": 800, "changes/becomes a directory": 900, "changes/becomes a file/inside": 600,
		"moves/a/file": 110_000, "turn/first": 10_000, "turn/second": 10_000, "goes/with/it": 3000, "stays": 1 << 20,
	} {
		do(os.WriteFile(in(name), randomBytes(size), 0o640))
	}
	do(os.Symlink("stays", in("turn", "link")), os.Symlink("stays", in("moves", "link that stays")), os.Chtimes(in("changes", "same size and time"), at, at))
	return volume, func() {
		t.Helper()
		do(os.WriteFile(in("changes", "content"), randomBytes(50_001), 0o640), os.WriteFile(in("changes", "same size and time"), randomBytes(60_000), 0o640),
			os.Chtimes(in("changes", "same size and time"), at, at), os.WriteFile(in("changes", "shrinks"), randomBytes(3), 0o640), os.Truncate(in("changes", "becomes empty"), 0),
			os.Truncate(in("changes", "grows"), 40_000), os.Chmod(in("changes", "mode"), 0o600|os.ModeSticky), os.Chtimes(in("changes", "time"), at, at),
			unix.Setxattr(in("changes", "attributes"), "user.new", []byte("x"), 0))
		if os.Geteuid() == 0 {
			do(os.Lchown(in("changes", "owner"), 4321, 1234), os.Lchown(in("moves", "link that stays"), 4321, 1234))
		}
		for _, name := range []string{"becomes a link", "becomes a FIFO", "becomes a directory", "becomes a file"} {
			do(os.RemoveAll(in("changes", name)))
		}
		do(os.Symlink("../stays", in("changes", "becomes a link")), unix.Mkfifo(in("changes", "becomes a FIFO"), 0o600), os.MkdirAll(in("changes", "becomes a directory", "with"), 0o700),
			os.WriteFile(in("changes", "becomes a directory", "with", "a file"), randomBytes(4000), 0o644), os.WriteFile(in("changes", "becomes a file"), randomBytes(5000), 0o644))
		do(os.Rename(in("moves", "a"), in("moves", "b")), os.RemoveAll(in("goes")), os.WriteFile(in("arrives"), randomBytes(6000), 0o600), os.WriteFile(in("arrives empty"), nil, 0o600),
			os.Rename(in("turn", "first"), in("turn", "third")), os.Rename(in("turn", "second"), in("turn", "first")), os.Rename(in("turn", "third"), in("turn", "second")),
			os.Remove(in("turn", "link")), os.Symlink("first", in("turn", "link")))
	}
}

// TestCopySince: with an earlier snapshot restic writes only what has changed, whatever it is, and the copy is the same as one without, object
// by object, and restored what the volume was.
func TestCopySince(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, version := range parts.ResticVersions(t) {
		for name, start := range map[string]int64{"single files": 1, "as usual": 0} {
			t.Run(version+", "+name, func(t *testing.T) {
				t.Parallel()
				c := newCopyingWith(t, version, restic.Options{StartBytes: start})
				volume, change := changingVolume(t)
				first := c.backUp(volume)
				copied := c.mustCopy(first)
				change()
				second := c.backUp(volume)
				before := contents(t, c.from.URL)
				var read int64
				since, err := c.copySince(second, uploader.ImportedSnapshot{SnapshotID: copied.SnapshotID, Origin: first}, &read)
				if err != nil || since.Mismatched > 0 || since.SnapshotID == "" {
					t.Fatalf("%+v, %v", since, err)
				}
				c.checkSame(volume, since, c.mustCopy(second))
				if start == 1 && (read > 1<<20 || since.Reused == 0 || since.Reused >= since.Files || since.ReusedBytes != since.Bytes-read) {
					t.Errorf("restic wrote %d bytes: %+v", read, since)
				}
				if !maps.Equal(before, contents(t, c.from.URL)) {
					t.Error("the restic repository has changed")
				}

				// Nothing has changed, and all has.
				third := c.backUp(volume)
				read = 0
				nothing, err := c.copySince(third, uploader.ImportedSnapshot{SnapshotID: since.SnapshotID, Origin: second}, &read)
				if err != nil || read > 0 || nothing.ReusedBytes != nothing.Bytes || nothing.Special != since.Special {
					t.Errorf("restic wrote %d bytes: %+v, %v", read, nothing, err)
				}
				c.checkSame(volume, nothing, c.mustCopy(third))
				empty := t.TempDir()
				if err := os.WriteFile(filepath.Join(empty, "other"), []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
				fourth := c.backUp(empty)
				all, err := c.copySince(fourth, uploader.ImportedSnapshot{SnapshotID: nothing.SnapshotID, Origin: third}, &read)
				if err != nil || all.Files != 1 || all.Reused != 0 {
					t.Errorf("%+v, %v", all, err)
				}
			})
		}
	}
}

// checkSame compares two copies of one snapshot with each other, by their objects, and one of them with the volume.
func (c *copying) checkSame(volume string, since, whole uploader.ImportResult) {
	c.t.Helper()
	if since.Files != whole.Files || since.Bytes != whole.Bytes || since.Special != whole.Special || since.Attributes > whole.Attributes {
		c.t.Errorf("%+v, and without an earlier snapshot %+v", since, whole)
	}
	err := c.kopia.Diff(c.t.Context(), uploader.DiffRequest{Repository: c.to, From: since.SnapshotID, To: whole.SnapshotID}, func(change uploader.Change) error {
		c.t.Errorf("%+v differs from %+v", change.From, change.To)
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
	differences, err := tree.Compare(volume, c.restored(since.SnapshotID), tree.Options{Plain: true})
	if err != nil || len(differences) > 0 {
		c.t.Errorf("%v\n%s", err, strings.Join(differences, "\n"))
	}
}

// TestCopySinceUnknown: where restic cannot compare two snapshots all is read, and what the earlier copy does not have is not taken from it.
func TestCopySinceUnknown(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCopyingWith(t, parts.DefaultRestic, restic.Options{StartBytes: 1})
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "file"), randomBytes(10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	first := c.backUp(volume)
	copied := c.mustCopy(first)
	second := c.backUp(volume)
	none := uploader.ImportedSnapshot{SnapshotID: copied.SnapshotID, Origin: strings.Repeat("0", 64)}
	var read int64
	if _, err := c.copySince(second, none, &read); err == nil || !strings.Contains(err.Error(), "no complete copy") || len(c.imported()) != 1 {
		t.Errorf("from the copy of another snapshot: %v", err)
	}
	result, err := c.kopia.Import(t.Context(), c.request(second, uploader.ImportedSnapshot{SnapshotID: copied.SnapshotID, Origin: first}), func(ctx context.Context, each func(uploader.Exported) error) (uploader.ExportResult, error) {
		return c.restic.Export(ctx, uploader.ExportRequest{Repository: c.from, SnapshotID: second, Previous: none.Origin}, each)
	}, nil)
	if err != nil || result.Reused != 0 || result.Files != 1 {
		t.Errorf("with a snapshot that is not in restic's repository: %+v, %v", result, err)
	}
	at := time.Date(2026, 5, 1, 2, 3, 4, 5, time.UTC)
	for want, e := range map[string]uploader.Exported{
		"0 entries of the name other": {Entry: uploader.Entry{Path: "other", ModTime: at}, Unchanged: true},
		"said to be unchanged":        {Entry: uploader.Entry{Path: "file", Size: 9_999, ModTime: at}, Unchanged: true},
		"of type d":                   {Entry: uploader.Entry{Path: "file", Mode: os.ModeDir, ModTime: at}, Unchanged: true},
		"0 entries of the name dir":   {Entry: uploader.Entry{Path: "dir/file", ModTime: at}, Unchanged: true},
	} {
		got, err := c.kopia.Import(t.Context(), c.request("12345678", uploader.ImportedSnapshot{SnapshotID: copied.SnapshotID, Origin: first}), func(_ context.Context, each func(uploader.Exported) error) (uploader.ExportResult, error) {
			if dir := filepath.Dir(e.Path); dir != "." {
				if err := each(uploader.Exported{Entry: uploader.Entry{Path: dir, Mode: os.ModeDir, ModTime: at}}); err != nil {
					return uploader.ExportResult{}, err
				}
			}
			return uploader.ExportResult{}, each(e)
		}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v; want %q", got, err, want)
		}
	}
	if imported := c.imported(); len(imported) != 2 {
		t.Errorf("%v", imported)
	}
}

func (c *copying) imported() map[string]string {
	c.t.Helper()
	imported, err := c.kopia.Imported(c.t.Context(), c.to)
	if err != nil {
		c.t.Fatal(err)
	}
	return imported
}

// counting is an Exporter that counts the bytes of content that it hands on, by snapshot, and notes what each was compared with.
type counting struct {
	uploader.Exporter

	read   map[string]int64
	since  []string
	failed atomic.Bool // the first export with a comparison
}

func (c *counting) Export(ctx context.Context, req uploader.ExportRequest, each func(uploader.Exported) error) (uploader.ExportResult, error) {
	c.since = append(c.since, req.Previous)
	return c.Exporter.Export(ctx, req, func(e uploader.Exported) error {
		if req.Previous != "" && !c.failed.Swap(true) {
			return errors.New("the first comparison fails")
		}
		if e.Content != nil {
			c.read[req.SnapshotID] += e.Size
		}
		return each(e)
	})
}

// TestMigrateReadsChanges: of a large volume each snapshot but the first is compared with the one before. One whose comparison fails is read
// completely, without a try less.
func TestMigrateReadsChanges(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	nights := s.history()
	from, err := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), StartBytes: 1, Logger: s.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.migrating()
	exporter := &counting{Exporter: from, read: map[string]int64{}}
	cfg.Exporter, cfg.ReadAllBelow, cfg.Tries = exporter, 1, 1
	s.start(cfg)
	status := s.ended(s.migration("task")).Status
	if status.Phase != v1alpha1.PhaseCompleted || len(status.Volumes) != 3 {
		t.Fatalf("%+v", status)
	}
	ids := []string{nights[0].pvb.Status.SnapshotID, nights[1].pvb.Status.SnapshotID, nights[2].pvb.Status.SnapshotID}
	if want := []string{"", ids[0], "", ids[1]}; !slices.Equal(exporter.since, want) {
		t.Errorf("compared with %v, want %v", exporter.since, want)
	}
	for i, v := range status.Volumes {
		whole := i < 2
		if v.Result != v1alpha1.VolumeMigrated || whole == strings.Contains(v.Message, "not read again") || whole != (exporter.read[ids[i]] == v.Bytes) {
			t.Errorf("restic wrote %d bytes: %+v", exporter.read[ids[i]], v)
		}
		s.checkCopy(nights[i])
	}
	s.wantSnapshots(3)
}
