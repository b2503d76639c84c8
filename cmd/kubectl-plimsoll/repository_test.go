package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
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
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestRepositoryVerify proves a backup, loses a pack of the repository, and sees that the command does not prove it any more.
func TestRepositoryVerify(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	data, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	c.storeWithKopia(data)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Verifiers: map[string]uploader.Verifier{"kopia": data}, ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})

	out, errOut, code := c.run("repository", "verify", "--backup", "nightly")
	t.Log(out, errOut)
	if code != 0 || !strings.Contains(out, "created\n") || !strings.Contains(out, "shop/db-0:data  Verified  1      1.0 MiB  0           0\n1 pod volume verified: 1 file, 1.0 MiB compared\n") {
		t.Errorf("code %d", code)
	}
	out, errOut, code = c.run("repository", "verify", "--from", "nightly-1")
	t.Log(out, errOut)
	if code != 0 || !strings.Contains(out, "shop/db-0:data  Verified") {
		t.Errorf("--from: code %d", code)
	}
	c.losePacks("shop")
	out, errOut, code = c.run("repository", "verify", "--backup", "nightly", "--volume", "shop/db-0:data", "-o", "json")
	t.Log(errOut)
	var task v1alpha1.RepositoryTask
	if err := json.Unmarshal([]byte(out), &task); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if code != exitFailed || task.Status.Reason != v1alpha1.ReasonMismatched || task.Status.Volumes[0].Mismatched != 1 || !strings.Contains(errOut, "not proven (Mismatched)") {
		t.Errorf("code %d: %s", code, out)
	}
	out, errOut, code = c.run("repository", "watch", task.Name)
	t.Log(out, errOut)
	if code != exitFailed || !strings.Contains(out, "Mismatched") || !strings.Contains(out, "  file\n") {
		t.Errorf("code %d", code)
	}
	out, _, code = c.run("explain", "repositorytask", task.Name)
	t.Log(out)
	if code != 0 || !strings.Contains(out, "shop/db-0:data is Mismatched: 1 file is not") || !strings.Contains(out, "another BackupStorageLocation") {
		t.Errorf("explain: code %d", code)
	}
	c.Create(&velerov1.PodVolumeBackup{
		ObjectMeta: c.Meta("alone"), Spec: velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}, Volume: "data", UploaderType: "kopia"},
		Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseFailed},
	})
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no backup":       {[]string{"verify"}, 2, "--backup NAME, --from PODVOLUMEBACKUP or --latest is missing"},
		"two subjects":    {[]string{"verify", "--backup", "nightly", "--from", "nightly-1"}, 2, "--from cannot be combined"},
		"no such backup":  {[]string{"verify", "--backup", "weekly"}, exitFailed, `not proven (BackupNotFound): namespace ` + c.Namespace + ` has no Backup "weekly"`},
		"not backed up":   {[]string{"verify", "--from", "alone"}, exitFailed, "or 'kubectl plimsoll explain podvolumebackup NAME' if you have named a PodVolumeBackup"},
		"strange volume":  {[]string{"verify", "--backup", "nightly", "--volume", "a:b"}, 2, "is not NAMESPACE/POD:VOLUME"},
		"no task":         {[]string{"watch", "none"}, 1, `"none" not found`},
		"nothing to wait": {[]string{"verify", "--backup", "nightly", "--no-wait", "--timeout", "1s"}, 2, "--no-wait cannot"},
	} {
		if _, errOut, code := c.run(append([]string{"repository"}, test.args...)...); code != test.code || !strings.Contains(errOut, test.want) {
			t.Errorf("%s: code %d: %s", name, code, errOut)
		}
	}
}

// TestRepositoryNotInstalled: where the CRDs or the namespace are missing, each command says so in one sentence.
func TestRepositoryNotInstalled(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	crds, err := controlplane.VeleroCRDs(controlplane.LatestVelero)
	if err != nil {
		t.Fatal(err)
	}
	c := newClusterOn(t, controlplane.ForTest(t, controlplane.Options{CRDs: crds}))
	for _, args := range [][]string{
		{"verify", "--backup", "nightly"},
		{"check", "--backup", "nightly"},
		{"usage"},
		{"migrate", "--all"},
		{"forget", "--keep-daily", "7"},
		{"prune"},
		{"watch", "verify-1"},
		{"proofs"},
		{"ls", "--backup", "nightly"},
		{"find", "--name", "x"},
	} {
		kind := "RepositoryTasks"
		if args[0] == "ls" || args[0] == "find" {
			kind = "FileRequests"
		}
		want := "kubectl plimsoll: this cluster does not have the CRD of " + kind + ": install deploy/crds, and deploy/repository-tasks in namespace " + c.Namespace + " (docs/repositories.md)\n"
		if out, errOut, code := c.run(append([]string{"repository"}, args...)...); code != 1 || out != "" || errOut != want {
			t.Errorf("%s: code %d: %s%s", args, code, out, errOut)
		}
	}
	there := newCluster(t)
	_, errOut, code := there.runBare("--kubeconfig", there.kubeconfig, "--namespace", "nowhere", "repository", "verify", "--backup", "nightly")
	if want := "kubectl plimsoll: this cluster has no namespace nowhere: set --namespace to that of the Backups\n"; code != 1 || errOut != want {
		t.Errorf("without the namespace: code %d: %s", code, errOut)
	}
}

// losePacks removes what holds the content of a kopia repository.
func (c *cluster) losePacks(namespace string) {
	c.t.Helper()
	packs, err := filepath.Glob(filepath.Join(c.store, "kopia", namespace, "p*"))
	if err != nil || len(packs) == 0 {
		c.t.Fatalf("no packs: %v", err)
	}
	for _, pack := range packs {
		if err := os.RemoveAll(pack); err != nil {
			c.t.Fatal(err)
		}
	}
}

// storeWithKopia makes a Backup of a volume with one file, as Velero leaves it.
func (c *cluster) storeWithKopia(data *kopia.Uploader) {
	c.t.Helper()
	dir := c.t.TempDir()
	repository := uploader.Repository{URL: filepath.Join(c.store, "kopia", "shop"), Password: resticrepo.Password}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(strings.Repeat("content\n", 1<<17)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	volume, err := os.Open(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	defer volume.Close()
	if err := data.Initialize(c.t.Context(), repository); err != nil {
		c.t.Fatal(err)
	}
	stored, err := data.Backup(c.t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: c.Meta("nightly-1"),
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia", Node: "n",
		},
		Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: stored.SnapshotID},
	}
	pvb.Labels = map[string]string{velerov1.BackupNameLabel: "nightly"}
	c.Create(pvb)
	c.storeServersFiles(c.endedBackup("nightly"), *pvb)
}
