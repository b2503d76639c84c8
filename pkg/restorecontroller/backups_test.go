package restorecontroller

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestBackupsAreSynced(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(*testing.T) *cluster{"directory": newCluster, "S3": newClusterOnS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := place(t)
			c.backUp("b1", nil)
			c.start(nil)
			b := testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
			if diff := cmp.Diff(map[string]string{velerov1.ScheduleNameLabel: "nightly", velerov1.StorageLocationLabel: "default"}, b.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if b.Spec.StorageLocation != "default" || b.Status.Phase != velerov1.BackupPhaseCompleted || len(b.OwnerReferences)+len(b.Finalizers) > 0 {
				t.Errorf("location %q, phase %q, owners %v, finalizers %v", b.Spec.StorageLocation, b.Status.Phase, b.OwnerReferences, b.Finalizers)
			}
			v := testenv.EventuallyGet(c.Env, c.newVolumeBackup("b1-data"), "synced", func(_ *velerov1.PodVolumeBackup, err error) bool { return err == nil })
			if v.Status.SnapshotID != "abc123" || v.Spec.BackupStorageLocation != "default" || len(v.Finalizers) > 0 ||
				v.Labels[velerov1.BackupUIDLabel] != string(b.UID) || len(v.OwnerReferences) != 1 || v.OwnerReferences[0].UID != b.UID {
				t.Errorf("not this cluster's own: %+v", v)
			}
			c.backUp("b2", nil)
			testenv.EventuallyGet(c.Env, c.newBackup("b2"), "synced later", isSynced)
			testenv.EventuallyGet(c.Env, c.location, "synced", func(l *velerov1.BackupStorageLocation, _ error) bool { return l.Status.LastSyncedTime != nil })
		})
	}
}

// TestWhatIsMissingIsRepaired takes records away, and lets a sync break off between a Backup and its records.
func TestWhatIsMissingIsRepaired(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("b1", nil)
	var refused atomic.Int32
	c.Intercept.Create = func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if _, ok := o.(*velerov1.PodVolumeBackup); ok && refused.Add(1) <= 3 {
			return apierrors.NewServiceUnavailable("not now")
		}
		return api.Create(ctx, o, opts...)
	}
	c.start(nil)
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
	v := testenv.EventuallyGet(c.Env, c.newVolumeBackup("b1-data"), "made later", func(_ *velerov1.PodVolumeBackup, err error) bool { return err == nil })
	if refused.Load() <= 3 {
		t.Error("nothing was refused")
	}
	gone := v.UID
	c.Delete(v)
	testenv.EventuallyGet(c.Env, c.newVolumeBackup("b1-data"), "made again", func(v *velerov1.PodVolumeBackup, err error) bool { return err == nil && v.UID != gone })
	b := testenv.EventuallyGet(c.Env, c.newBackup("b1"), "there", isSynced)
	gone = b.UID
	c.Delete(b)
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "made again", func(b *velerov1.Backup, err error) bool { return isSynced(b, err) && b.UID != gone })
}

// TestUnfinishedAndForeignStaysAway has directories that are no backups of this cluster's: each beside one that is, so that
// a round is known to have looked at both.
func TestUnfinishedAndForeignStaysAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("a-running", func(b *velerov1.Backup) { b.Status.Phase = velerov1.BackupPhaseWaitingForPluginOperations })
	c.backUp("a-swapped", func(b *velerov1.Backup) { b.Name = "z-last" })
	c.put("backups/a-damaged/velero-backup.json", []byte("{"))
	c.put("backups/a-empty/a-empty-logs.gz", nil)
	c.backUp("z-last", nil)
	c.putJSON("backups/z-last/z-last-podvolumebackups.json.gz", []any{
		c.volumeRecord("z-last", "work-for-an-agent", velerov1.PodVolumeBackupPhaseNew),
		c.volumeRecord("z-last", "Not A Name", velerov1.PodVolumeBackupPhaseCompleted),
		c.volumeRecord("someone-elses", "z-last-data", velerov1.PodVolumeBackupPhaseFailed),
	})
	own := c.newBackup("z-from-elsewhere")
	own.Spec.StorageLocation = "elsewhere"
	c.Create(own)
	c.backUp("z-from-elsewhere", nil)
	c.start(nil)
	testenv.EventuallyGet(c.Env, c.newBackup("z-last"), "synced", isSynced)
	v := testenv.EventuallyGet(c.Env, c.newVolumeBackup("z-last-data"), "synced", func(_ *velerov1.PodVolumeBackup, err error) bool { return err == nil })
	if got := v.Labels[velerov1.BackupNameLabel]; got != "z-last" {
		t.Errorf("record of backup %q, want that whose directory it lies in", got)
	}
	var backups velerov1.BackupList
	var volumes velerov1.PodVolumeBackupList
	if err := errors.Join(c.Client.List(t.Context(), &backups, client.InNamespace(c.Namespace)), c.Client.List(t.Context(), &volumes, client.InNamespace(c.Namespace))); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range backups.Items {
		names = append(names, b.Name)
	}
	for _, v := range volumes.Items {
		names = append(names, v.Name)
	}
	if diff := cmp.Diff([]string{"z-from-elsewhere", "z-last", "z-last-data"}, names); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if after := testenv.EventuallyGet(c.Env, own, "there", func(_ *velerov1.Backup, err error) bool { return err == nil }); after.Annotations[v1alpha1.AnnotationSynced] != "" {
		t.Error("a backup of another location was taken for this one's")
	}
}

// TestFailingSyncIsShown: a metric says how the last round went, however seldom there is one.
func TestFailingSyncIsShown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m := NewMetrics()
	c.backUp("b1", nil)
	c.put("backups/b2/velero-backup.json", []byte("{"))
	c.start(func(cfg *Config) { cfg.Metrics = m })
	shows := func(what, want string) {
		c.t.Helper()
		if want != "" {
			want = "# HELP plimsoll_restore_backup_sync_failing 1 if the last sync of a location's backups has failed, for one of them or all, else 0.\n" +
				"# TYPE plimsoll_restore_backup_sync_failing gauge\nplimsoll_restore_backup_sync_failing{location=\"default\"} " + want + "\n"
		}
		c.Eventually(what, func() bool {
			return testutil.CollectAndCompare(m, strings.NewReader(want), "plimsoll_restore_backup_sync_failing") == nil
		})
	}
	shows("one backup fails", "1")
	if err := os.RemoveAll(filepath.Join(c.dir, "backups", "b2")); err != nil {
		t.Fatal(err)
	}
	shows("none fails", "0")
	c.Patch(c.location, `{"spec":{"backupSyncPeriod":"0s"}}`)
	shows("no sync any more", "")
}

func TestOrphansAreRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("b1", nil)
	c.backUp("b2", nil)
	own := c.newBackup("made-here") // by whoever makes backups here; not in the store yet
	own.Spec.StorageLocation, own.Status.Phase = "default", velerov1.BackupPhaseCompleted
	c.Create(own)
	c.start(nil)
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
	testenv.EventuallyGet(c.Env, c.newBackup("b2"), "synced", isSynced)
	if err := os.RemoveAll(filepath.Join(c.dir, "backups/b1")); err != nil {
		t.Fatal(err)
	}
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "removed", func(_ *velerov1.Backup, err error) bool { return apierrors.IsNotFound(err) })
	testenv.EventuallyGet(c.Env, c.newBackup("b2"), "still there", isSynced)
	testenv.EventuallyGet(c.Env, own, "still there", func(_ *velerov1.Backup, err error) bool { return err == nil })
}

// TestEmptyStoreIsNotBelieved empties the store, fills it with other backups, and takes it away. Rounds are counted by their complaints.
func TestEmptyStoreIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(dir string) error
		sign  string // what the controller says in each round
	}{
		"empty": {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "backups")) }, "none of the backups"},
		"others": {func(dir string) error {
			return os.Rename(filepath.Join(dir, "backups/b1"), filepath.Join(dir, "backups/b3"))
		}, "none of the backups"},
		"gone": {func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) }, "were not synced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.backUp("b1", nil)
			var rounds logCounter
			rounds.want = tc.sign
			c.start(func(cfg *Config) {
				cfg.Logger = rounds.logger()
				cfg.ValidationFrequency = 24 * time.Hour // the location stays Available
			})
			b := testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
			if err := tc.spoil(c.dir); err != nil {
				t.Fatal(err)
			}
			c.Eventually("three rounds", func() bool { return rounds.count.Load() >= 3 })
			testenv.EventuallyGet(c.Env, c.newBackup("b1"), "still there", func(now *velerov1.Backup, err error) bool { return err == nil && now.UID == b.UID })
		})
	}
}

func TestVolumePluginBackupsAreSynced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("b1", func(b *velerov1.Backup) { b.Status.CompletionTimestamp = new(metav1.Now()) })
	record := &v1alpha1.VolumePluginBackup{
		TypeMeta:   metav1.TypeMeta{APIVersion: "plimsoll.io/v1alpha1", Kind: "VolumePluginBackup"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "snap-1", UID: "old"},
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: "pv-1", Backup: "b1", Plugin: "example.io/disks"},
		Status: v1alpha1.VolumePluginBackupStatus{SnapshotID: "snap-1", VolumeOperationStatus: v1alpha1.VolumeOperationStatus{
			Phase: v1alpha1.PhaseInProgress, Progress: v1alpha1.VolumeOperationProgress{BytesDone: 5, TotalBytes: 10},
		}},
	}
	c.putJSON("backups/b1/b1-volumepluginbackups.json.gz", []any{record})
	c.start(nil)
	b := testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
	synced := &v1alpha1.VolumePluginBackup{ObjectMeta: c.Meta("snap-1")}
	testenv.EventuallyGet(c.Env, synced, "synced with its status", func(v *v1alpha1.VolumePluginBackup, err error) bool {
		return err == nil && v.Status.Progress.BytesDone == 5 && v.Labels[v1alpha1.LabelSynced] == "default" && v.OwnerReferences[0].UID == b.UID
	})
	record.Status.Phase, record.Status.Progress.BytesDone = v1alpha1.PhaseCompleted, 10
	c.putJSON("backups/b1/b1-volumepluginbackups.json.gz", []any{record})
	testenv.EventuallyGet(c.Env, synced, "as it ended", func(v *v1alpha1.VolumePluginBackup, err error) bool {
		return err == nil && v.Status.Phase == v1alpha1.PhaseCompleted && v.Status.Progress.BytesDone == 10
	})
	c.Delete(synced)
	testenv.EventuallyGet(c.Env, synced, "made again", func(v *v1alpha1.VolumePluginBackup, err error) bool {
		return err == nil && v.Status.Phase == v1alpha1.PhaseCompleted
	})
}

// TestUnfinishedVolumePluginBackupsAreAwaited has a backup that ended yesterday, and an upload that goes on.
func TestUnfinishedVolumePluginBackupsAreAwaited(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("b1", func(b *velerov1.Backup) {
		b.Status.CompletionTimestamp = new(metav1.NewTime(time.Now().Add(-24 * time.Hour)))
	})
	record := &v1alpha1.VolumePluginBackup{
		TypeMeta:   metav1.TypeMeta{APIVersion: "plimsoll.io/v1alpha1", Kind: "VolumePluginBackup"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "snap-1"},
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: "pv-1", Backup: "b1", Plugin: "example.io/disks"},
		Status:     v1alpha1.VolumePluginBackupStatus{VolumeOperationStatus: v1alpha1.VolumeOperationStatus{Phase: v1alpha1.PhaseInProgress}},
	}
	c.putJSON("backups/b1/b1-volumepluginbackups.json.gz", []any{record})
	c.start(nil)
	synced := &v1alpha1.VolumePluginBackup{ObjectMeta: c.Meta("snap-1")}
	testenv.EventuallyGet(c.Env, synced, "synced", func(v *v1alpha1.VolumePluginBackup, err error) bool {
		return err == nil && v.Status.Phase == v1alpha1.PhaseInProgress
	})
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "noted", isSynced)
	record.Status.Phase = v1alpha1.PhaseCompleted
	c.putJSON("backups/b1/b1-volumepluginbackups.json.gz", []any{record})
	testenv.EventuallyGet(c.Env, synced, "as it ended", func(v *v1alpha1.VolumePluginBackup, err error) bool {
		return err == nil && v.Status.Phase == v1alpha1.PhaseCompleted
	})
}

// TestOutageOfTheAPIServerIsSurvived refuses the first 10 writes.
func TestOutageOfTheAPIServerIsSurvived(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t)
	c.backUp("b1", nil)
	var refused atomic.Int32
	away := func() error {
		if refused.Add(1) > 10 {
			return nil
		}
		return apierrors.NewInternalError(errors.New("etcd is away"))
	}
	c.Intercept.Create = func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if err := away(); err != nil {
			return err
		}
		return api.Create(ctx, o, opts...)
	}
	c.Intercept.Patch = func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if err := away(); err != nil {
			return err
		}
		return api.Patch(ctx, o, patch, opts...)
	}
	c.start(nil)
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
	testenv.EventuallyGet(c.Env, c.newVolumeBackup("b1-data"), "synced", func(_ *velerov1.PodVolumeBackup, err error) bool { return err == nil })
}
