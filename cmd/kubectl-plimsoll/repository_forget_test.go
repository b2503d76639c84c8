package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// storeNights backs a volume up without a Backup, as on each of the last n nights.
func (c *cluster) storeNights(data *restic.Uploader, dir string, n int) {
	c.t.Helper()
	tags := map[string]string{"ns": "shop", "pod": "db-0", "volume": "data"}
	for night := n - 1; night >= 0; night-- {
		path := c.t.TempDir()
		if err := os.WriteFile(filepath.Join(path, "file"), fmt.Append(nil, night), 0o600); err != nil {
			c.t.Fatal(err)
		}
		volume, err := os.Open(path)
		if err != nil {
			c.t.Fatal(err)
		}
		stored, err := data.Backup(c.t.Context(), uploader.BackupRequest{Repository: uploader.Repository{URL: dir, Password: resticrepo.Password}, Volume: volume, Tags: tags}, nil)
		_ = volume.Close()
		if err != nil {
			c.t.Fatal(err)
		}
		pvb := &velerov1.PodVolumeBackup{
			ObjectMeta: c.Meta(fmt.Sprintf("night-%d", night)),
			Spec: velerov1.PodVolumeBackupSpec{
				Pod: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: "restic", RepoIdentifier: dir, Tags: tags,
			},
			Status: velerov1.PodVolumeBackupStatus{
				Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: stored.SnapshotID, StartTimestamp: new(metav1.NewTime(time.Now().AddDate(0, 0, -night))),
			},
		}
		c.Create(pvb)
	}
}

// TestRepositoryForget shows a plan, is stopped, acknowledges what was shown, and forgets it.
func TestRepositoryForget(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	data, err := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.store, "restic", "shop")
	resticrepo.Create(t, dir)
	c.storeNights(data, dir, 4)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Forgetters: map[string]uploader.Forgetter{"restic": data}, ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})
	out, errOut, code := c.run("repository", "forget", "--keep-last", "2")
	t.Log(out, errOut)
	_, wave, found := strings.Cut(out, "--yes --acknowledge ")
	wave, _, _ = strings.Cut(wave, " ")
	if code != 0 || !found || !strings.Contains(out, "2 snapshots would be forgotten, 2 kept, of 1 volume; nothing was changed") || strings.Count(out, "would be forgotten  -") != 2 || strings.Count(out, "kept                Last") != 2 {
		t.Fatalf("code %d", code)
	}
	if out, errOut, code := c.run("repository", "forget", "--keep-last", "2", "--yes"); code != exitFailed || !strings.Contains(errOut, "not forgotten (NotAcknowledged): nothing was forgotten: 2 snapshots are") || !strings.Contains(out, "not forgotten  -") {
		t.Errorf("without an acknowledgement: code %d: %s%s", code, out, errOut)
	}
	out, errOut, code = c.run("repository", "forget", "--keep-last", "2", "--yes", "--acknowledge", wave)
	if code != 0 || !strings.Contains(out, "2 snapshots forgotten, 2 kept, of 1 volume") || strings.Count(out, "forgotten  -") != 2 {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	if out, _, code := c.run("volume", "list", "shop"); code != 0 || !strings.Contains(out, "night-1") || strings.Contains(out, "night-2") {
		t.Errorf("code %d: %s", code, out)
	}
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: c.Meta("night-1")}
	c.Change(pvb, func() { pvb.Annotations = map[string]string{v1alpha1.AnnotationForgetting: "x"} })
	if out, _, code := c.run("volume", "list", "shop"); code != 0 || !strings.Contains(out, "Completed, being forgotten") {
		t.Errorf("code %d: %s", code, out)
	}
	if _, errOut, code := c.run("volume", "restore", "--into-claim", "shop/data", "--from", "night-1"); code == 0 || !strings.Contains(errOut, "is being forgotten") {
		t.Errorf("code %d: %s", code, errOut)
	}
	for _, args := range [][]string{
		{},
		{"--keep-last", "-1"},
		{"--keep-within", "soon"},
		{"--keep-within", "0d"},
		{"--keep-within", "-3d"},
		{"--keep-last", "1", "--acknowledge", "x"},
		{"--keep-last", "1", "--orphans"},
		{"--keep-last", "1", "--sole-cluster"},
		{"--keep-last", "1", "--no-wait", "--timeout", "1s"},
		{"--keep-last", "1", "--ttl", "0s"},
		{"--keep-last", "1", "--volume", "/x"},
	} {
		if _, errOut, code := c.run(append([]string{"repository", "forget"}, args...)...); code != 2 {
			t.Errorf("%q: code %d: %s", args, code, errOut)
		}
	}
}

// TestPrintShortened: a plan says of which volume the history would be shortened, and how much.
func TestPrintShortened(t *testing.T) {
	t.Parallel()
	task := &v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Retention: &v1alpha1.RepositoryRetention{Volumes: []v1alpha1.RetentionVolume{
		{Namespace: "shop", Pod: "db-0", Volume: "data", Shortened: "rule Last has reached back 7d\x1b"}, {Namespace: "shop", Pod: "db-1", Volume: "data"},
	}}}}
	var out strings.Builder
	if err := printRetention(&out, task); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\nshop/db-0:data: rule Last has reached back 7d\\x1b\n") || strings.Contains(out.String(), "db-1:data:") {
		t.Errorf("%q", out.String())
	}
}

// TestForgetOrphansTask: what the flags ask for, and an orphan is shown with the Backup that it was made for.
func TestForgetOrphansTask(t *testing.T) {
	t.Parallel()
	for want, o := range map[v1alpha1.OrphanSelection]forgetTask{v1alpha1.OrphansOfBackups: {orphans: true}, v1alpha1.OrphansAll: {orphans: true, soleCluster: true}} {
		o.ttl, o.format = time.Hour, formatTable
		task, err := o.task("velero")
		if err != nil || task.Spec.Orphans != want || task.Spec.Keep != nil {
			t.Errorf("%s: %+v, %v", want, task, err)
		}
	}
	task := &v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Retention: &v1alpha1.RepositoryRetention{Volumes: []v1alpha1.RetentionVolume{{
		Namespace: "shop", Pod: "db-0", Volume: "data", Snapshots: []v1alpha1.RetentionSnapshot{
			{SnapshotID: "0123456789", Backup: "nightly-1", Result: v1alpha1.RetentionPending}, {SnapshotID: "2", Result: v1alpha1.RetentionKept, Rules: []string{"NoBackup"}},
		},
	}}}}}
	var out strings.Builder
	if err := printRetention(&out, task); err != nil || !strings.Contains(out.String(), "01234567  nightly-1  would be forgotten  -") || !strings.Contains(out.String(), "-          kept                NoBackup") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestParseAge: days are hours.
func TestParseAge(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"30d": 720 * time.Hour, "1d": 24 * time.Hour, "90m": 90 * time.Minute, "1.5d": 0, "d": 0, "999999999d": 0, "": 0} {
		if got, err := parseAge(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}
