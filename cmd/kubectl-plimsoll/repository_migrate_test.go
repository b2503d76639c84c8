package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// storeServersFiles writes what a Velero server stores of a Backup.
func (c *cluster) storeServersFiles(b *velerov1.Backup, pvbs ...velerov1.PodVolumeBackup) {
	c.t.Helper()
	stored := velero.Stored{Version: velero.V1_14, Backup: b, PodVolumeBackups: pvbs, VolumeInfos: []string{}, VolumeSnapshots: []string{}}
	if err := stored.Write(c.store); err != nil {
		c.t.Fatal(err)
	}
}

// TestRepositoryMigrate shows what would be migrated, migrates it, finds that nothing is left to do, and says which Backup has no copy.
func TestRepositoryMigrate(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	resticData, resticErr := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	kopiaData, kopiaErr := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), Logger: c.Logger()})
	dir := t.TempDir()
	if err := errors.Join(resticErr, kopiaErr, os.WriteFile(filepath.Join(dir, "orders.db"), []byte("three orders"), 0o600)); err != nil {
		t.Fatal(err)
	}
	repository := uploader.Repository{URL: filepath.Join(c.store, "restic", "shop"), Password: resticrepo.Password}
	resticrepo.Create(t, repository.URL)
	nightly := c.endedBackup("nightly")
	c.recordBackup(nightly, "restic", "db-0", c.storeDirectory(resticData, repository, dir), time.Now(), velerov1.PodVolumeBackupPhaseCompleted)
	var pvbs velerov1.PodVolumeBackupList
	if err := c.Client.List(t.Context(), &pvbs, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	c.storeServersFiles(nightly, pvbs.Items...)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Exporter: resticData, Importer: kopiaData, ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})
	out, errOut, code := c.run("repository", "migrate", "--all", "--dry-run")
	if code != 0 || !strings.Contains(out, "1 snapshot would be migrated") || !strings.Contains(out, "shop/db-0:data") {
		t.Errorf("dry run: code %d: %s%s", code, out, errOut)
	}
	if _, err := os.Stat(filepath.Join(c.store, "kopia", "shop")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dry run has made a repository: %v", err)
	}
	for _, args := range [][]string{{"--backup", "nightly"}, {"--volume", "shop/db-0:data"}} {
		out, errOut, code = c.run(append([]string{"repository", "migrate"}, args...)...)
		if code != 0 || !strings.Contains(out, "nightly  nightly-kopia  Migrated") || strings.Count(out, "shop/db-0:data  Migrated") != 1 {
			t.Errorf("%q: code %d: %s%s", args, code, out, errOut)
		}
	}
	lost := c.endedBackup("lost") // the bucket has no files of it
	c.recordBackup(lost, "restic", "db-0", c.storeDirectory(resticData, repository, dir), time.Now(), velerov1.PodVolumeBackupPhaseCompleted)
	out, errOut, code = c.run("repository", "migrate", "--backup", "lost")
	if code != exitFailed || !strings.Contains(out, "shop/db-0:data  Migrated") || strings.Contains(out, "lost-kopia  Migrated") {
		t.Errorf("a Backup without files: code %d: %s%s", code, out, errOut)
	}
	for _, args := range [][]string{
		{},
		{"--all", "--backup", "nightly"},
		{"--all", "--no-wait", "--timeout", "1s"},
		{"--all", "--ttl", "0s"},
		{"--volume", "/x"},
	} {
		if _, errOut, code := c.run(append([]string{"repository", "migrate"}, args...)...); code != 2 {
			t.Errorf("%q: code %d: %s", args, code, errOut)
		}
	}
}
