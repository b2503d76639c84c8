package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
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
	"github.com/plimsoll-io/plimsoll/test/kopiarepo"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// longBackup is a name that Velero cuts in labels.
var longBackup = "weekly-" + strings.Repeat("long-", 12) + "end"

// newFiles makes backups of a volume with both data paths, and serves FileRequests.
func newFiles(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	dir := t.TempDir()
	kopiaData, kopiaErr := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), Logger: c.Logger()})
	resticData, resticErr := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err := errors.Join(kopiaErr, resticErr); err != nil {
		t.Fatal(err)
	}
	kopiaRepository := uploader.Repository{URL: filepath.Join(c.store, "kopia", "shop"), Password: resticrepo.Password}
	resticRepository := uploader.Repository{URL: filepath.Join(c.store, "restic", "shop"), Password: resticrepo.Password}
	now := time.Now()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "dumps"), 0o755), os.WriteFile(filepath.Join(dir, "dumps", "monday.sql"), []byte("select 0"), 0o600),
		os.WriteFile(filepath.Join(dir, "gone\u202e"), []byte("gone"), 0o600)); err != nil {
		t.Fatal(err)
	}
	earlier := c.endedBackup("earlier")
	c.recordBackup(earlier, "kopia", "db-0", c.storeDirectory(kopiaData, kopiaRepository, dir), now.Add(-2*time.Hour), velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(earlier, "restic", "web-0", c.storeDirectory(resticData, resticRepository, dir), now.Add(-2*time.Hour), velerov1.PodVolumeBackupPhaseCompleted)
	if err := os.Remove(filepath.Join(dir, "gone\u202e")); err != nil {
		t.Fatal(err)
	}
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
	nightly, weekly := c.endedBackup("nightly"), c.endedBackup(longBackup)
	kopiaID := c.storeDirectory(kopiaData, kopiaRepository, dir)
	c.recordBackup(nightly, "kopia", "db-0", kopiaID, now, velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(weekly, "kopia", "db-0", kopiaID, now.Add(-time.Hour), velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(nightly, "restic", "web-0", c.storeDirectory(resticData, resticRepository, dir), now, velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(nightly, "kopia", "zero-0", "", now, velerov1.PodVolumeBackupPhaseCompleted)

	c.serveFiles(map[string]uploader.Browser{"kopia": kopiaData, "restic": resticData})
	return c
}

// serveFiles serves FileRequests, and gives user browser the rights of deploy/repository-tasks/files-role.yaml and no others.
func (c *cluster) serveFiles(browsers map[string]uploader.Browser) {
	c.t.Helper()
	pod := c.PodOfThisProcess("plimsoll-repository-tasks-x")
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return filerequest.SetUp(mgr, filerequest.Config{
			Namespace: c.Namespace, Pod: pod.Name, Browsers: browsers,
			Repositories: repositorytask.NewRepositories(mgr.GetAPIReader(), c.Namespace), Metrics: filerequest.NewMetrics(), Logger: c.Logger(),
		})
	})
	text, err := os.ReadFile("../../deploy/repository-tasks/files-role.yaml")
	var role rbacv1.Role
	if err := errors.Join(err, yaml.UnmarshalStrict(text, &role)); err != nil {
		c.t.Fatal(err)
	}
	c.allow("browser", role.Rules, nil)
}

func (c *cluster) endedBackup(name string) *velerov1.Backup {
	c.t.Helper()
	b := &velerov1.Backup{
		ObjectMeta: c.Meta(name), Spec: velerov1.BackupSpec{StorageLocation: "default"},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted},
	}
	c.Create(b)
	return b
}

// storeDirectory backs a directory up into a repository, which it makes if it must, and returns the snapshot's id.
func (c *cluster) storeDirectory(data uploader.Uploader, repository uploader.Repository, dir string) string {
	c.t.Helper()
	volume, err := os.Open(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	defer volume.Close()
	if _, err := os.Stat(repository.URL); errors.Is(err, fs.ErrNotExist) {
		if _, isKopia := data.(*kopia.Uploader); isKopia {
			kopiarepo.Create(c.t, repository.URL)
		} else {
			resticrepo.Create(c.t, repository.URL)
		}
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
	pvb.Namespace, pvb.GenerateName = c.Namespace, b.Name+"-"
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
	parts.Slow(t)
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
	t.Run("no local port", c.noLocalPort)
	t.Run("diff", c.diffFiles)
	t.Run("find", c.findFiles)
	t.Run("refused", c.filesRefused)
	t.Run("dashboard", c.dashboardFiles)
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

// noLocalPort: no other user of this machine can reach a session, or take its place.
func (c *cluster) noLocalPort(t *testing.T) {
	connected := &connection{namespace: c.Namespace}
	connected.rules.ExplicitPath = c.kubeconfig
	err := withFiles(t.Context(), connected, &v1alpha1.FileRequestSpec{Backup: "nightly"}, io.Discard, func(s *fileSession) error {
		if volumes, err := s.volumes(t.Context()); err != nil || len(volumes) != 3 {
			return fmt.Errorf("%d volumes, %w", len(volumes), err)
		}
		at, err := url.Parse(s.address)
		if err != nil {
			return err
		}
		if ip := net.ParseIP(at.Hostname()); ip != nil {
			t.Errorf("the session is at %s, for every user of this machine", at.Host)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func (c *cluster) diffFiles(t *testing.T) {
	for _, volume := range []string{"shop/db-0:data", "shop/web-0:data"} {
		of := []string{"diff", "--backup", "earlier", "--to-backup", "nightly", "--volume", volume}
		out, errOut, code := c.repository(of...)
		for _, want := range []string{
			"CHANGE                 BEFORE      AFTER  PATH\n", "added                       -          -  dumps/deep/\n", "added                       -        8 B  dumps/deep/tuesday.sql\n",
			"        8 B        8 B  dumps/monday.sql\n", "removed                   4 B          -  gone\\u202e\n", " 1 removed (4 B), ", "1 in content (8 B before, 8 B after), 1 in their time only\n",
		} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("code %d, no %q\n%s%s", code, want, out, errOut)
			}
		}
		for _, format := range map[string][]string{"shop/db-0:data": {"json", "yaml"}}[volume] {
			out, errOut, code = c.repository(append(of, "-o", format)...)
			var got printedDiff
			if err := yaml.UnmarshalStrict([]byte(out), &got); err != nil || code != 0 || got.From.Backup != "earlier" || got.To.Backup != "nightly" || len(got.Changes) < 8 || strings.ContainsRune(out, 0x202e) {
				t.Fatalf("-o %s: code %d, %v\n%s%s", format, code, err, out, errOut)
			}
			if format == "json" && !json.Valid([]byte(out)) {
				t.Errorf("it is no JSON: %s", out)
			}
			var totals diffTotals
			for i := range got.Changes {
				totals.add(&got.Changes[i])
			}
			if got.Totals == nil || totals != *got.Totals || totals.Removed != (entryCount{1, 4}) || totals.Content.Entries != 1 {
				t.Errorf("totals %+v, want %+v", got.Totals, totals)
			}
		}
	}
	out, errOut, code := c.repository("diff", "--backup", longBackup, "--to-backup", "nightly", "--volume", "shop/db-0")
	if code != 0 || !strings.HasSuffix(out, "PATH\nno differences\n") {
		t.Errorf("two backups that are alike: code %d\n%s%s", code, out, errOut)
	}
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no backup":        {[]string{"--to-backup", "nightly"}, 2, "either --backup or --from"},
		"one backup":       {[]string{"--backup", "nightly"}, 2, "either --to-backup or --to"},
		"both":             {[]string{"--backup", "nightly", "--to-backup", "earlier", "--to", "x"}, 2, "either --to-backup or --to"},
		"many volumes":     {[]string{"--backup", "nightly", "--to-backup", "earlier"}, 2, "backup nightly has 3 such volumes"},
		"no such backup":   {[]string{"--backup", "nightly", "--to-backup", "monthly"}, exitFailed, `no Backup "monthly"`},
		"no such object":   {[]string{"--backup", "nightly", "--volume", "shop/db-0", "--to", "none"}, exitFailed, `no PodVolumeBackup "none"`},
		"an argument":      {[]string{"a"}, 2, "argument"},
		"two repositories": {c.namesOf("nightly", "db-0", "web-0"), 1, "is one by uploader kopia, and"},
	} {
		if out, errOut, code := c.repository(append([]string{"diff"}, test.args...)...); code != test.code || !strings.Contains(errOut, test.want) {
			t.Errorf("%s: code %d: %s%s", name, code, out, errOut)
		}
	}
}

// namesOf returns arguments that name the PodVolumeBackups of two pods.
func (c *cluster) namesOf(backup, from, to string) []string {
	c.t.Helper()
	var list velerov1.PodVolumeBackupList
	if err := c.Client.List(c.t.Context(), &list, client.InNamespace(c.Namespace), client.MatchingLabels{velerov1.BackupNameLabel: backup}); err != nil {
		c.t.Fatal(err)
	}
	names := map[string]string{}
	for i := range list.Items {
		names[list.Items[i].Spec.Pod.Name] = list.Items[i].Name
	}
	return []string{"--from", names[from], "--to", names[to]}
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
	if code != exitFailed || !strings.Contains(errOut, "has no PodVolumeBackup of volume shop/db-7:*. 'kubectl -n velero get podvolumebackups -L velero.io/backup-name' lists") {
		t.Errorf("a volume that no backup has: code %d\n%s%s", code, out, errOut)
	}
	// What the cluster knows of a Backup without a list in its location is searched, and nobody knows whether that is all.
	of := []string{"find", "--name", "tuesday.*", "--backup", "nightly"}
	out, errOut, code = c.repository(of...)
	if code != exitFailed || strings.Count(out, "nightly ") != 2 || !strings.Contains(errOut, "of Backup nightly: its location has no such list") || !strings.Contains(errOut, "may lack files") {
		t.Errorf("without a list: code %d\n%s%s", code, out, errOut)
	}
	for _, args := range [][]string{
		{"ls", "--backup", "nightly", "--volume", "shop/db-0"},
		{"get", "dumps/monday.sql", "-o", c.t.TempDir(), "--backup", "nightly", "--volume", "shop/db-0"},
		{"diff", "--backup", "nightly", "--to-backup", "nightly", "--volume", "shop/db-0"},
	} {
		if out, errOut, code = c.repository(args...); code != 0 || !strings.Contains(errOut, "of Backup nightly: its location has no such list") {
			t.Errorf("%s without a list: code %d\n%s%s", args[0], code, out, errOut)
		}
	}
	stored := velero.Stored{Version: velero.V1_14, Backup: &velerov1.Backup{ObjectMeta: c.Meta("nightly")}}
	if err := stored.Write(c.store); err != nil {
		t.Fatal(err)
	}
	if out, errOut, code = c.repository(of...); code != 0 || strings.Count(out, "nightly ") != 2 {
		t.Errorf("with an empty list: code %d\n%s%s", code, out, errOut)
	}
	// One volume that cannot be searched does not hide the others.
	b := c.endedBackup("partial")
	c.recordBackup(b, "kopia", "db-0", strings.Repeat("a", 32), time.Now(), velerov1.PodVolumeBackupPhaseCompleted)
	c.recordBackup(b, "kopia", "db-1", "", time.Now(), velerov1.PodVolumeBackupPhaseFailed)
	out, errOut, code = c.repository("find", "--name", "tuesday.sql", "--latest", "-o", "yaml")
	if code != exitFailed || !strings.Contains(out, "volume: shop/web-0:data") || !strings.Contains(errOut, "its backup is Failed") || !strings.Contains(errOut, "2 backups of volumes were not searched") {
		t.Errorf("a damaged volume: code %d\n%s%s", code, out, errOut)
	}
	out, errOut, code = c.repository("find", "--name", "tuesday.sql", "--backup", "partial")
	if code != exitFailed || !strings.Contains(errOut, "2 backups of volumes were not searched to the end, of 2") || !strings.Contains(errOut, "volumes that the cluster does not know") {
		t.Errorf("damaged volumes without a list: code %d\n%s%s", code, out, errOut)
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
		"no such backup":    {[]string{"get", "--backup", "monthly", "-o", dest}, exitFailed, `no Backup "monthly"`},
		"no such object":    {[]string{"ls", "--from", "none"}, exitFailed, `no PodVolumeBackup "none"`},
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
