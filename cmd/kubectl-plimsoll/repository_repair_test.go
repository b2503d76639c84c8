package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestRepositoryRepair writes the index of a repository that has lost it, and removes a lock that was left behind.
func TestRepositoryRepair(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	program := parts.Restic(t, parts.DefaultRestic)
	data, err := restic.New(t.Context(), program, restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.store, "restic", "shop")
	resticrepo.Create(t, dir)
	c.storeWithRestic(data, dir)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Checkers: map[string]uploader.Checker{"restic": data}, Repairers: map[string]uploader.Repairer{"restic": data},
			ProgressInterval: 200 * time.Millisecond, LockWait: time.Nanosecond, Logger: c.Logger(),
		})
	})
	indexes, err := filepath.Glob(filepath.Join(dir, "index", "*"))
	if err != nil || len(indexes) != 1 {
		t.Fatalf("%q, %v", indexes, err)
	}
	if err := os.Remove(indexes[0]); err != nil {
		t.Fatal(err)
	}
	if out, errOut, code := c.run("repository", "check", "--backup", "nightly"); code != exitFailed || !strings.Contains(out, "  to repair: kubectl plimsoll repository repair --index --latest, which runs 'restic repair index'\n") {
		t.Errorf("check: code %d: %s%s", code, out, errOut)
	}
	out, errOut, code := c.run("repository", "repair", "--index", "--backup", "nightly", "--volume", "shop")
	if code != 0 || !strings.Contains(out, "default/shop  Repaired  1          2            0           0        0                  0\n"+
		"default/shop: the index is written, with 2 packs that it lacked; the repository is whole: 1 snapshot checked\n") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	resticrepo.Lock{Time: time.Now().Add(-time.Hour), Exclusive: true, Hostname: "node-b", Username: "root", PID: 7}.Plant(t, program, dir)
	out, errOut, code = c.run("repository", "repair", "--unlock", "--latest")
	if code != 0 || !strings.Contains(out, "default/shop  Repaired  1              0\ndefault/shop: 1 lock removed: PID 7 on node-b as root since ") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	name := strings.TrimPrefix(strings.Fields(out)[0], "repositorytask.plimsoll.io/")
	out, errOut, code = c.run("explain", "repositorytask", name)
	if code != 0 || !strings.Contains(out, "no repository has a stale lock") || !strings.Contains(out, "1 lock removed: PID 7 on node-b") {
		t.Errorf("explain: code %d: %s%s", code, out, errOut)
	}
	pid := c.holdLock(dir)
	out, errOut, code = c.run("repository", "repair", "--unlock", "--backup", "nightly")
	if code != exitFailed || !strings.Contains(out, "default/shop  Failed  0              ?\n") || !strings.Contains(errOut, "not repaired (RepositoryLocked): ") {
		t.Errorf("beside the lock of process %d: code %d: %s%s", pid, code, out, errOut)
	}
	for _, args := range [][]string{{"--backup", "nightly"}, {"--index", "--unlock", "--latest"}, {"--index"}, {"--index", "--latest", "shop"}} {
		if _, errOut, code := c.run(append([]string{"repository", "repair"}, args...)...); code != 2 {
			t.Errorf("%q: code %d: %s", args, code, errOut)
		}
	}
}
