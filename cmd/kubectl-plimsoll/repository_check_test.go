package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

var lockLine = regexp.MustCompile(`(?m)^default/shop: locked exclusively by PID \d+ on \S+ as \S+, renewed \w+ before it was read at 20\S+Z$`)

// TestRepositoryCheck checks a repository, beside a lock, and again when a pack of it is gone.
func TestRepositoryCheck(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	data, err := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.store, "restic", "shop")
	resticrepo.Create(t, dir)
	c.storeWithRestic(data, dir)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Checkers: map[string]uploader.Checker{"restic": data}, ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})
	holder := c.holdLock(dir)
	out, errOut, code := c.run("repository", "check", "--backup", "nightly", "--read-data")
	t.Log(out, errOut, holder)
	if code != 0 || !strings.Contains(out, "default/shop  Whole   1          2           0        0                  1\n") ||
		!lockLine.MatchString(out) || !strings.Contains(out, "1 repository is whole: 1 snapshot checked, 2 packs read\n") {
		t.Errorf("code %d", code)
	}
	c.Create(c.tasksDeployment("registry.example.com/plimsoll:v1"))
	out, errOut, code = c.run("repository", "check", "--latest", "--read-data", "--schedule", "0 6 * * 6")
	if code != 0 {
		t.Fatalf("code %d: %s", code, errOut)
	}
	p := readPrinted(t, out)
	var jobOut, jobErr bytes.Buffer
	args := append([]string{"--kubeconfig", c.grant(&p, "check", -1)}, p.cronJob.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args...)
	if code := run(t.Context(), strings.NewReader(""), &jobOut, &jobErr, args); code != 0 || p.cronJob.Name != "plimsoll-check-latest-read-data" || !strings.Contains(jobOut.String(), "1 repository is whole: 1 snapshot checked, 2 packs read\n") {
		t.Errorf("CronJob %s: code %d, %s%s", p.cronJob.Name, code, &jobOut, &jobErr)
	}
	packs, err := filepath.Glob(filepath.Join(dir, "data", "*", "*"))
	if err != nil || len(packs) != 2 {
		t.Fatalf("packs %q: %v", packs, err)
	}
	for _, pack := range packs {
		content, err := os.ReadFile(pack)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) > 1<<20 { // the other one has the directories
			if err := os.Remove(pack); err != nil {
				t.Fatal(err)
			}
		}
	}
	out, errOut, code = c.run("repository", "check", "--from", "nightly-1", "-o", "json")
	t.Log(errOut)
	var task v1alpha1.RepositoryTask
	if err := json.Unmarshal([]byte(out), &task); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := task.Status.Repositories[0]
	if code != exitFailed || task.Status.Reason != v1alpha1.ReasonDamaged || r.Damaged != 1 || r.TouchedSnapshots != 1 || len(r.TouchedBackups) != 1 || r.TouchedBackups[0].PodVolumeBackup != "nightly-1" || !strings.Contains(errOut, "not whole (Damaged)") {
		t.Errorf("code %d: %s", code, out)
	}
	out, errOut, code = c.run("repository", "watch", task.Name)
	t.Log(out, errOut)
	for _, want := range []string{"Damaged", "  touched file: file\n", "  touched backup: nightly-1 of Backup nightly, shop/db-0:data, ", ", snapshot " + r.SnapshotIDs[0] + "\n", "  damaged pack: ", "  to repair: bring the damaged packs back from the bucket's versions, and check again; only where that is not possible:\n  to repair: kubectl plimsoll repository repair --index --latest, which runs 'restic repair index'\n  to repair: restic repair snapshots --forget, after which no Backup finds these snapshots: they have other ids\n", "; 1 snapshot needs it\n"} {
		if code != exitFailed || !strings.Contains(out, want) {
			t.Errorf("code %d, %q is missing", code, want)
		}
	}
	out, _, code = c.run("explain", "repositorytask", task.Name)
	t.Log(out)
	if code != 0 || !strings.Contains(out, "repository default/shop is Damaged: 1 object is damaged or missing") || !strings.Contains(out, "touches nightly-1 of Backup nightly, shop/db-0:data") || !strings.Contains(out, "to repair repository default/shop: kubectl plimsoll repository repair --index --latest") {
		t.Errorf("explain: code %d", code)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, errOut, code = c.run("repository", "check", "--backup", "nightly")
	if code != exitFailed || !strings.Contains(errOut, "not checked (RepositoryNotFound)") {
		t.Errorf("without a repository: code %d: %s", code, errOut)
	}
	if _, errOut, code := c.run("repository", "check", "--volume", "shop"); code != 2 || !strings.Contains(errOut, "--backup NAME, --from PODVOLUMEBACKUP or --latest is missing") {
		t.Errorf("code %d: %s", code, errOut)
	}
}

// storeWithRestic makes a Backup of a volume with one file, as Velero leaves it.
func (c *cluster) storeWithRestic(data *restic.Uploader, dir string) {
	c.t.Helper()
	from := c.t.TempDir()
	content := make([]byte, 1<<20)
	_, _ = rand.Read(content)
	if err := os.WriteFile(filepath.Join(from, "file"), content, 0o600); err != nil {
		c.t.Fatal(err)
	}
	volume, err := os.Open(from)
	if err != nil {
		c.t.Fatal(err)
	}
	defer volume.Close()
	stored, err := data.Backup(c.t.Context(), uploader.BackupRequest{Repository: uploader.Repository{URL: dir, Password: resticrepo.Password}, Volume: volume}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: c.Meta("nightly-1"),
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "default",
			UploaderType: "restic", RepoIdentifier: dir, Node: "n",
		},
		Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: stored.SnapshotID},
	}
	pvb.Labels = map[string]string{velerov1.BackupNameLabel: "nightly"}
	c.Create(pvb)
	c.storeServersFiles(c.endedBackup("nightly"), *pvb)
}
