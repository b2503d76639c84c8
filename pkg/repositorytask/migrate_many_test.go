package repositorytask

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

var (
	manySnapshots = flag.Int("snapshots", 0, "TestManySnapshots: measure with this many snapshots; 0: not at all")
	megabytes     = flag.Int("megabytes", 300, "TestManySnapshots: the size of the volume, in files of 1 MiB")
)

// TestManySnapshots measures a migration beside what can be done with restic and kopia alone (docs/performance.md). Of the volume one file
// in a hundred changes from one snapshot to the next.
func TestManySnapshots(t *testing.T) {
	if *manySnapshots == 0 {
		return
	}
	c := newCopying(t, parts.DefaultRestic)
	c.from.URL = filepath.Join(t.TempDir(), "restic") // whose key is as dear to derive as that of every other one
	if err := c.restic.Initialize(t.Context(), c.from); err != nil {
		t.Fatal(err)
	}
	volume := t.TempDir()
	var snapshots []string
	for night := range *manySnapshots {
		for i := range *megabytes {
			name := filepath.Join(volume, fmt.Sprintf("directory-%02d", i/100), fmt.Sprintf("file-%05d", i))
			if night > 0 && i%100 != night%100 {
				continue
			}
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, randomBytes(1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		snapshots = append(snapshots, c.backUp(volume))
	}
	tenth := max(len(snapshots)/10, 1)
	var bareTook, bareTenth time.Duration
	for _, side := range []string{"bare", "changes", "everything"} {
		c.to.URL = filepath.Join(t.TempDir(), "kopia")
		if err := c.kopia.Initialize(t.Context(), c.to); err != nil {
			t.Fatal(err)
		}
		copyOne := c.sides(side)
		var read int64
		unix.Sync()
		began := time.Now()
		for i, id := range snapshots {
			read += copyOne(id)
			if i+1 == tenth {
				took := time.Since(began)
				if side == "bare" {
					bareTenth = took
				}
				t.Logf("%s: the first %d snapshots of %d MiB in %.1f s, %d MiB of content out of restic, %.2f times bare", side, tenth, *megabytes, took.Seconds(), read>>20, took.Seconds()/bareTenth.Seconds())
				if side == "everything" {
					return
				}
			}
		}
		took := time.Since(began)
		if side == "bare" {
			bareTook = took
		}
		t.Logf("%s: %d snapshots of %d MiB in %.1f s, %d MiB of content out of restic, %.2f times bare", side, len(snapshots), *megabytes, took.Seconds(), read>>20, took.Seconds()/bareTook.Seconds())
	}
}

// sides returns what copies one snapshot after the other: with what has changed, with everything, or without us. It returns how many bytes of
// content came out of restic, as far as that is known.
func (c *copying) sides(side string) func(id string) int64 {
	c.t.Helper()
	if side == "bare" {
		return newBareCopying(c).copy
	}
	var last uploader.ImportedSnapshot
	return func(id string) (read int64) {
		result, err := c.copySince(id, last, &read)
		if err != nil || result.Mismatched > 0 {
			c.t.Fatalf("%+v, %v", result, err)
		}
		if side == "changes" {
			last = uploader.ImportedSnapshot{SnapshotID: result.SnapshotID, Origin: id}
		}
		return read
	}
}

// bareCopying is what can be done without us: restic restores each snapshot over the one before, and kopia stores the directory.
type bareCopying struct {
	*copying

	kopia, restic, dir string
}

func newBareCopying(c *copying) *bareCopying {
	c.t.Helper()
	b := &bareCopying{c, parts.Kopia(c.t), parts.Restic(c.t, parts.DefaultRestic), c.t.TempDir()}
	b.run(b.kopia, "repository", "create", "filesystem", "--path", filepath.Join(b.dir, "repository"))
	return b
}

func (b *bareCopying) copy(snapshot string) int64 {
	b.t.Helper()
	target := filepath.Join(b.dir, "volume")
	b.run(b.restic, "restore", snapshot, "--no-lock", "--target", target, "--delete")
	b.run(b.kopia, "snapshot", "create", target)
	return 0
}

func (b *bareCopying) run(program string, args ...string) {
	b.t.Helper()
	if program == b.kopia {
		args = slices.Concat(args, []string{"--config-file", filepath.Join(b.dir, "repository.config"), "--log-dir", filepath.Join(b.dir, "log")})
	}
	c := exec.CommandContext(b.t.Context(), program, args...)
	c.Env = []string{
		"HOME=" + b.dir, "PATH=/usr/bin:/bin", "RESTIC_REPOSITORY=" + b.from.URL, "RESTIC_PASSWORD=" + resticrepo.Password, "RESTIC_CACHE_DIR=" + filepath.Join(b.dir, "restic-cache"),
		"KOPIA_PASSWORD=" + resticrepo.Password, "KOPIA_CHECK_FOR_UPDATES=false", "KOPIA_CACHE_DIRECTORY=" + filepath.Join(b.dir, "cache"),
	}
	if out, err := c.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %v\n%s", c.Args, err, out)
	}
}
