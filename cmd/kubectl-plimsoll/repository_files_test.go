package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// longBackup is a name that Velero cuts in labels.
var longBackup = "weekly-" + strings.Repeat("long-", 12) + "end"

// newFiles makes backups of a volume with both data paths, serves FileRequests, and gives user browser the rights of
// deploy/repository-tasks/files-role.yaml and no others.
func newFiles(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"big": strings.Repeat("0123456789abcdef", 1<<16), "dumps/monday.sql": "select 1", "dumps/deep/tuesday.sql": "select 2", "dumps/empty": "", "evil\x1b[31m": "x",
		"invalid\xff/inside": "bytes",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("monday.sql", filepath.Join(dir, "dumps", "in")), os.Symlink("/etc/passwd", filepath.Join(dir, "dumps", "deep", "out"))); err != nil {
		t.Fatal(err)
	}
	kopiaData, kopiaErr := kopia.New(kopia.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	resticData, resticErr := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err := errors.Join(kopiaErr, resticErr); err != nil {
		t.Fatal(err)
	}
	nightly, weekly := c.endedBackup("nightly"), c.endedBackup(longBackup)
	now := time.Now()
	kopiaID := c.storeDirectory(kopiaData, uploader.Repository{URL: filepath.Join(c.store, "kopia", "shop"), Password: resticrepo.Password}, dir)
	c.recordBackup(nightly, "kopia", "db-0", kopiaID, now, velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(weekly, "kopia", "db-0", kopiaID, now.Add(-time.Hour), velerov1.PodVolumeBackupPhaseCompleted)
	resticRepository := uploader.Repository{URL: filepath.Join(c.store, "restic", "shop"), Password: resticrepo.Password}
	c.recordBackup(nightly, "restic", "web-0", c.storeDirectory(resticData, resticRepository, dir), now, velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(nightly, "kopia", "zero-0", "", now, velerov1.PodVolumeBackupPhaseCompleted)

	pod := c.PodOfThisProcess("plimsoll-repository-tasks-x")
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return filerequest.SetUp(mgr, filerequest.Config{
			Namespace: c.Namespace, Pod: pod.Name, Browsers: map[string]uploader.Browser{"kopia": kopiaData, "restic": resticData},
			Repositories: repositorytask.NewRepositories(mgr.GetAPIReader(), c.Namespace), Metrics: filerequest.NewMetrics(), Logger: c.Logger(),
		})
	})
	text, err := os.ReadFile("../../deploy/repository-tasks/files-role.yaml")
	var role rbacv1.Role
	if err := errors.Join(err, yaml.UnmarshalStrict(text, &role)); err != nil {
		t.Fatal(err)
	}
	c.allow("browser", role.Rules, nil)
	return c
}

func (c *cluster) endedBackup(name string) *velerov1.Backup {
	c.t.Helper()
	b := &velerov1.Backup{ObjectMeta: c.Meta(name), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted}}
	c.Create(b)
	return b
}

// storeDirectory backs a directory up into a new repository, and returns the snapshot's id.
func (c *cluster) storeDirectory(data uploader.Uploader, repository uploader.Repository, dir string) string {
	c.t.Helper()
	volume, err := os.Open(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	defer volume.Close()
	if err := errors.Join(os.MkdirAll(filepath.Dir(repository.URL), 0o700), data.Initialize(c.t.Context(), repository)); err != nil {
		c.t.Fatal(err)
	}
	stored, err := data.Backup(c.t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return stored.SnapshotID
}

// recordBackup makes the PodVolumeBackup that Velero leaves.
func (c *cluster) recordBackup(b *velerov1.Backup, kind, pod, snapshot string, at time.Time, phase velerov1.PodVolumeBackupPhase) {
	c.t.Helper()
	pvb := &velerov1.PodVolumeBackup{
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod}, Volume: "data", BackupStorageLocation: "default", UploaderType: kind, Node: "n",
		},
		Status: velerov1.PodVolumeBackupStatus{Phase: phase, SnapshotID: snapshot, StartTimestamp: &metav1.Time{Time: at}},
	}
	pvb.Namespace, pvb.GenerateName = c.Namespace, b.Name[:7]+"-"
	if kind == "restic" {
		pvb.Spec.RepoIdentifier = filepath.Join(c.store, "restic", "shop")
	}
	pvb.Labels = map[string]string{velerov1.BackupNameLabel: v1alpha1.LabelValue(b.Name)}
	pvb.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: b.Name, UID: b.UID}}
	c.Create(pvb)
}

// repository runs a command as user browser.
func (c *cluster) repository(args ...string) (out, errOut string, code int) {
	c.t.Helper()
	return c.run(append([]string{"--as", "browser", "repository"}, args...)...)
}

// TestRepositoryFiles lists, finds and gets files with both data paths, through the API server's port-forward.
func TestRepositoryFiles(t *testing.T) {
	t.Parallel()
	c := newFiles(t)
	for _, volume := range []string{"shop/db-0:data", "shop/web-0:data"} {
		of := []string{"--backup", "nightly", "--volume", volume}
		out, errOut, code := c.repository(append([]string{"ls", "dumps", "-R"}, of...)...)
		if code != 0 || strings.Count(out, "\n") != 7 || !strings.Contains(out, "        8 B  ") || !strings.Contains(out, "dumps/deep/tuesday.sql\n") || strings.Contains(out, "  dumps\n") {
			t.Errorf("ls: code %d\n%s%s", code, out, errOut)
		}
		out, errOut, code = c.repository(append([]string{"ls", "-o", "json"}, of...)...)
		var files []shownFile
		if err := json.Unmarshal([]byte(out), &files); err != nil || code != 0 || len(files) != 4 || strings.ContainsRune(out, 0x1b) {
			t.Errorf("ls -o json: code %d, %v\n%s%s", code, err, out, errOut)
		}
		// What the list shows of a name that is no UTF-8 is not an empty directory, nor is the name itself.
		for _, name := range []string{"invalid\xff", "invalid\uFFFD"} {
			out, errOut, code = c.repository(append([]string{"ls", name}, of...)...)
			if code == 0 && !strings.Contains(out, "inside") || code != 0 && !strings.Contains(errOut, "no UTF-8") && !strings.Contains(errOut, "paths are relative") {
				t.Errorf("ls %q: code %d\n%s%s", name, code, out, errOut)
			}
		}
		dest := t.TempDir()
		out, errOut, code = c.repository(append([]string{"get", "big", "-o", dest}, of...)...)
		got, err := os.ReadFile(filepath.Join(dest, "big"))
		if code != 0 || err != nil || len(got) != 1<<20 || !strings.Contains(out, "1.0 MiB, checksum verified") {
			t.Errorf("get a file: code %d, %v\n%s%s", code, err, out, errOut)
		}
		_, errOut, code = c.repository(append([]string{"get", "big", "-o", dest}, of...)...)
		if code != 1 || !strings.Contains(errOut, "--overwrite replaces it") {
			t.Errorf("get it again: code %d\n%s", code, errOut)
		}
		out, errOut, code = c.repository(append([]string{"get", "dumps", "-o", filepath.Join(dest, "mine")}, of...)...)
		link, linkErr := os.Readlink(filepath.Join(dest, "mine", "in"))
		got, err = os.ReadFile(filepath.Join(dest, "mine", "deep", "tuesday.sql"))
		if code != exitFailed || errors.Join(err, linkErr) != nil || string(got) != "select 2" || link != "monday.sql" || !strings.Contains(errOut, "1 entry of the backup could not be written") {
			t.Errorf("get a directory: code %d, %v, %v, link to %q\n%s%s", code, err, linkErr, link, out, errOut)
		}
		if _, err := os.Lstat(filepath.Join(dest, "mine", "deep", "out")); err == nil {
			t.Error("a link that leads out was made")
		}
		out, errOut, code = c.repository(append([]string{"get", "-o", "-"}, of...)...)
		if n := tarEntries(t, out); code != 0 || n < 9 {
			t.Errorf("get -o -: code %d, %d entries\n%s", code, n, errOut)
		}
		if entries, err := os.ReadDir(dest); err != nil || len(entries) != 2 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	}
	t.Run("find", c.findFiles)
	t.Run("refused", c.filesRefused)
	var left v1alpha1.FileRequestList
	if err := c.Client.List(t.Context(), &left, client.InNamespace(c.Namespace)); err != nil || len(left.Items) > 0 {
		t.Errorf("left behind: %v, %v", left.Items, err)
	}
}

func tarEntries(t *testing.T, archive string) int {
	t.Helper()
	r := tar.NewReader(bytes.NewReader([]byte(archive)))
	for n := 0; ; n++ {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func (c *cluster) findFiles(t *testing.T) {
	out, errOut, code := c.repository("find", "--name", "tuesday.*", "-o", "json")
	var found []foundFile
	if err := json.Unmarshal([]byte(out), &found); err != nil || code != 0 || len(found) != 3 {
		t.Fatalf("code %d, %v\n%s%s", code, err, out, errOut)
	}
	for i, want := range []string{"nightly shop/db-0:data", longBackup + " shop/db-0:data", "nightly shop/web-0:data"} {
		if f := &found[i]; f.Backup+" "+f.Volume != want || f.Path != "dumps/deep/tuesday.sql" || f.Size != 8 {
			t.Errorf("%d: %+v", i, f)
		}
	}
	if !strings.Contains(errOut, "shop/zero-0:data of backup nightly") || !strings.Contains(errOut, "was empty when it was backed up") {
		t.Errorf("the empty volume is not named: %s", errOut)
	}
	out, _, code = c.repository("find", "--name", "tuesday.*", "--latest")
	if code != 0 || strings.Count(out, "nightly ") != 2 || strings.Contains(out, "weekly") {
		t.Errorf("--latest: code %d\n%s", code, out)
	}
	out, errOut, code = c.repository("find", "--name", "x", "--volume", "shop/db-7", "-o", "json")
	if code == 0 || !strings.Contains(errOut, "no volume shop/db-7:*") {
		t.Errorf("a volume that no backup has: code %d\n%s%s", code, out, errOut)
	}
	// One volume that cannot be searched does not hide the others.
	b := c.endedBackup("partial")
	c.recordBackup(b, "kopia", "db-0", strings.Repeat("a", 32), time.Now(), velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(b, "kopia", "db-1", "", time.Now(), velerov1.PodVolumeBackupPhaseFailed)
	out, errOut, code = c.repository("find", "--name", "tuesday.sql", "--latest", "-o", "yaml")
	if code != exitFailed || !strings.Contains(out, "volume: shop/web-0:data") || !strings.Contains(errOut, "its backup is Failed") || !strings.Contains(errOut, "2 backups of volumes were not searched") {
		t.Errorf("a damaged volume: code %d\n%s%s", code, out, errOut)
	}
}

func (c *cluster) filesRefused(t *testing.T) {
	dest := t.TempDir()
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no backup":         {[]string{"ls"}, 2, "--backup NAME is missing"},
		"both":              {[]string{"ls", "--from", "a", "--backup", "b"}, 2, "cannot be combined"},
		"out of the volume": {[]string{"ls", "--backup", "nightly", "../x"}, 2, "leads out of the volume"},
		"many volumes":      {[]string{"ls", "--backup", "nightly"}, 2, "choose one with --volume, such as shop/db-0:data"},
		"no such backup":    {[]string{"get", "--backup", "monthly", "-o", dest}, 1, `no Backup "monthly"`},
		"no such object":    {[]string{"ls", "--from", "none"}, 1, `no PodVolumeBackup "none"`},
		"empty volume":      {[]string{"ls", "--backup", "nightly", "--volume", "shop/zero-0"}, 1, "was empty when it was backed up"},
		"no such path":      {[]string{"get", "--backup", "nightly", "--volume", "shop/db-0", "none", "-o", dest}, 1, "paths are relative to the volume"},
		"a link":            {[]string{"get", "--backup", "nightly", "--volume", "shop/web-0", "dumps/in", "-o", dest}, 1, "neither a file nor a directory"},
		"a pattern":         {[]string{"find", "--name", "a/b"}, 2, "not the pattern of a name"},
	} {
		if out, errOut, code := c.repository(test.args...); code != test.code || !strings.Contains(errOut, test.want) {
			t.Errorf("%s: code %d: %s%s", name, code, out, errOut)
		}
	}
	if entries, err := os.ReadDir(dest); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
