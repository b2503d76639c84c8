package main

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestRepositoryPrune shows what would be removed, removes it, and shows that nothing is left.
func TestRepositoryPrune(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	data, err := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.store, "restic", "shop")
	resticrepo.Create(t, dir)
	c.storeWithRestic(data, dir)
	c.storeForgotten(data, dir)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	stop := c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Pruners: map[string]uploader.Pruner{"restic": data}, ProgressInterval: 200 * time.Millisecond, LockWait: time.Nanosecond, Logger: c.Logger(),
		})
	})
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"--max-unused", "0"}, `repositorytask.plimsoll.io/prune-latest-NAME created
REPOSITORY    RESULT   SNAPSHOTS  PACKS    WOULD REMOVE  WOULD REPACK  UNUSED LEFT
default/shop  Planned  1          4.0 MiB  3.0 MiB       0             0 B
3.0 MiB that no snapshot needs would be removed from 1 repository; nothing was changed
The same command with --yes prunes.
`},
		{[]string{"--max-unused", "0", "--backup", "nightly", "--volume", "shop", "--yes"}, `repositorytask.plimsoll.io/prune-nightly-NAME created
REPOSITORY    RESULT  SNAPSHOTS  PACKS BEFORE  PACKS AFTER  FREED    REPACKED  REMOVED  RESTIC COUNTS
default/shop  Pruned  1          4.0 MiB       1.0 MiB      3.0 MiB  0         2        3.0 MiB
1 repository pruned: 3.0 MiB freed, packs of 1.0 MiB left, 1 snapshot
`},
		{[]string{"--yes"}, `repositorytask.plimsoll.io/prune-latest-NAME created
REPOSITORY    RESULT  SNAPSHOTS  PACKS BEFORE  PACKS AFTER  FREED  REPACKED  REMOVED  RESTIC COUNTS
default/shop  Pruned  1          1.0 MiB       1.0 MiB      0 B    0         0        0 B
1 repository pruned: 0 B freed, packs of 1.0 MiB left, 1 snapshot
`},
	} {
		out, errOut, code := c.run(append([]string{"repository", "prune"}, step.args...)...)
		if diff := cmp.Diff(step.want, regexp.MustCompile(`-[a-z0-9]{5} created`).ReplaceAllString(out, "-NAME created")); diff != "" || code != 0 {
			t.Errorf("%q: code %d: %s%s", step.args, code, diff, errOut)
		}
	}
	c.holdLock(dir)
	if out, errOut, code := c.run("repository", "prune", "--yes"); code != exitFailed || !strings.Contains(errOut, "not pruned (RepositoryLocked): ") || !strings.Contains(errOut, "locked exclusively by PID ") || !strings.Contains(out, "default/shop  Failed  ") {
		t.Errorf("beside a lock: code %d: %s%s", code, out, errOut)
	}
	stop()
	for _, args := range [][]string{
		{"--schedule", "@weekly"},
		{"--schedule", "@weekly", "--yes", "--backup", "nightly"},
		{"--schedule", "@weekly", "--yes", "-o", "json"},
		{"--image", "x", "--yes"},
		{"--max-unused", "much"},
		{"--max-unused", "100%"},
		{"--max-repack-size", "5%"},
		{"--backup", "a", "--from", "b"},
		{"--no-wait", "--timeout", "1s"},
		{"shop"},
	} {
		if _, errOut, code := c.run(append([]string{"repository", "prune"}, args...)...); code != 2 {
			t.Errorf("%q: code %d: %s", args, code, errOut)
		}
	}
}

// storeForgotten stores a snapshot of 3 MiB, and removes it.
func (c *cluster) storeForgotten(data *restic.Uploader, dir string) {
	c.t.Helper()
	from := c.t.TempDir()
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	if err := os.WriteFile(filepath.Join(from, "file"), content, 0o600); err != nil {
		c.t.Fatal(err)
	}
	volume, err := os.Open(from)
	if err != nil {
		c.t.Fatal(err)
	}
	defer volume.Close()
	repository := uploader.Repository{URL: dir, Password: resticrepo.Password}
	stored, err := data.Backup(c.t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume, Tags: map[string]string{"ns": "shop", "pod": "old-0", "volume": "data"}}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = data.Forget(c.t.Context(), uploader.ForgetRequest{Repository: repository, Snapshots: []uploader.ForgetSnapshot{
		{ID: stored.SnapshotID, Volume: uploader.SnapshotVolume{Namespace: "shop", Pod: "old-0", Name: "data"}},
	}}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestPruneSchedule prints a CronJob whose command prunes with the flags that were given.
func TestPruneSchedule(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.Create(c.tasksDeployment("plimsoll:v1"))
	for name, flags := range map[string][]string{
		"plimsoll-prune":      {"--yes"},
		"plimsoll-prune-full": {"--yes", "--full", "--max-unused=10%", "--max-repack-size=50G"},
	} {
		out, errOut, code := c.run(append([]string{"repository", "prune", "--schedule", "0 6 * * 0"}, flags...)...)
		if code != 0 || !strings.Contains(errOut, "Nothing is created") {
			t.Fatalf("code %d: %s", code, errOut)
		}
		job := readPrinted(t, out).cronJob
		got := job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args
		want := append([]string{"repository", "prune", "--namespace=" + c.Namespace, "--ttl=2160h0m0s"}, flags...)
		if diff := cmp.Diff(want, got); diff != "" || job.Name != name {
			t.Errorf("%s: %s", job.Name, diff)
		}
	}
}
