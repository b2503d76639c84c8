package retention

import (
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestOrphans: whatever is known to need a snapshot, or may, keeps it.
func TestOrphans(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef"
	key := v1alpha1.RepositoryKey{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "kopia"}
	naming := velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: "pvb"}, Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseFailed, SnapshotID: id[:8]}}
	damage := v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{{
		Namespace: "shop", Pod: "other-0", Volume: "other", BackupStorageLocation: "default", Result: v1alpha1.VolumeMismatched, CompletionTimestamp: new(metav1.NewTime(now())),
	}}}}
	for name, test := range map[string]struct {
		change func(*Records, *Needs, *uploader.RepositorySnapshot)
		want   string
	}{
		"nothing needs it": {func(*Records, *Needs, *uploader.RepositorySnapshot) {}, ""},
		"a record of any phase": {func(r *Records, _ *Needs, _ *uploader.RepositorySnapshot) {
			r.Backups = []velerov1.PodVolumeBackup{naming}
		}, RuleNeeded},
		"a list in the bucket": {func(_ *Records, n *Needs, _ *uploader.RepositorySnapshot) {
			n.Stored = map[string]string{id[:8]: "nightly"}
		}, RuleNeeded},
		"its Backup is there": {func(_ *Records, n *Needs, _ *uploader.RepositorySnapshot) { n.Backups = map[string]bool{"gone": true} }, RuleNeeded},
		"its Backup is not known": {func(_ *Records, n *Needs, s *uploader.RepositorySnapshot) {
			s.Backup, n.Backups = "", map[string]bool{"another": true}
		}, RuleNoBackup},
		"and no other cluster has any": {func(_ *Records, n *Needs, s *uploader.RepositorySnapshot) { s.Backup, n.All = "", true }, ""},
		"protected, and young":         {func(_ *Records, _ *Needs, s *uploader.RepositorySnapshot) { s.Protected, s.Time = "pin", now() }, RuleAnother},
		"of another namespace":         {func(_ *Records, _ *Needs, s *uploader.RepositorySnapshot) { s.Volume.Namespace = "bank" }, RuleAnother},
		"young": {func(_ *Records, _ *Needs, s *uploader.RepositorySnapshot) {
			s.Time = now().Add(time.Second - OrphanAge)
		}, RuleYoung},
		"in the future": {func(_ *Records, _ *Needs, s *uploader.RepositorySnapshot) { s.Time = now().AddDate(1, 0, 0) }, RuleYoung},
		"its pod is backed up": {func(_ *Records, n *Needs, _ *uploader.RepositorySnapshot) {
			n.Running = []velerov1.PodVolumeBackup{{Spec: velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}}}}
		}, RuleInUse},
		"it is restored": {func(r *Records, _ *Needs, _ *uploader.RepositorySnapshot) {
			r.Restores = []velerov1.PodVolumeRestore{{ObjectMeta: metav1.ObjectMeta{Name: "restore"}, Spec: velerov1.PodVolumeRestoreSpec{SnapshotID: id}}}
		}, RuleInUse},
		"damage in the namespace": {func(r *Records, _ *Needs, _ *uploader.RepositorySnapshot) {
			r.Tasks = []v1alpha1.RepositoryTask{damage}
		}, RuleDamaged},
		"a damaged repository": {func(r *Records, _ *Needs, _ *uploader.RepositorySnapshot) {
			r.DamagedRepository = func(*velerov1.PodVolumeBackup) bool { return true }
		}, RuleDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			records, needs := &Records{}, &Needs{Now: now()}
			s := uploader.RepositorySnapshot{ID: id, Time: now().Add(-OrphanAge), Backup: "gone", Volume: uploader.SnapshotVolume{Namespace: "shop", Pod: "db-0", Name: "data"}}
			test.change(records, needs, &s)
			needs.Protection = NewProtection(records)
			if rule, why := needs.Of(key, &s); rule != test.want {
				t.Errorf("%q: %s; want %q", rule, why, test.want)
			}
		})
	}
}

// TestPlanOrphans: a plan lists what no Backup needs, each orphan needs an acknowledgement, and the wave is that of exactly these.
func TestPlanOrphans(t *testing.T) {
	t.Parallel()
	key := v1alpha1.RepositoryKey{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic"}
	needs := &Needs{Protection: NewProtection(&Records{}), Backups: map[string]bool{"here": true}, Now: now()}
	snapshot := func(id, pod, backup string, days int) uploader.RepositorySnapshot {
		return uploader.RepositorySnapshot{ID: id, Time: now().AddDate(0, 0, -days), Backup: backup, Volume: uploader.SnapshotVolume{Namespace: "shop", Pod: pod, Name: "data"}}
	}
	all := []uploader.RepositorySnapshot{snapshot("1", "db-0", "gone", 9), snapshot("2", "db-0", "gone", 8), snapshot("3", "db-0", "here", 9), snapshot("4", "web-0", "gone", 9), snapshot("5", "web-0", "", 9)}
	plan := PlanOrphans([]OrphanRepository{{key, all, needs}}, nil)
	if len(plan.Volumes) != 2 || len(plan.Volumes[0].Snapshots) != 2 || plan.Volumes[0].Snapshots[0].SnapshotID != "2" || len(plan.Volumes[1].Snapshots) != 2 || plan.Unexplained != 3 || plan.Wave == "" {
		t.Errorf("%+v", plan)
	}
	one := PlanOrphans([]OrphanRepository{{key, all, needs}}, &v1alpha1.PodVolumeSelector{Namespace: "shop", Pod: "web-0"})
	if len(one.Volumes) != 1 || one.Unexplained != 1 || one.Wave == plan.Wave {
		t.Errorf("%+v", one)
	}
	if none := PlanOrphans([]OrphanRepository{{key, all[2:3], needs}}, nil); len(none.Volumes) != 0 || none.Wave != "" || none.Unexplained != 0 {
		t.Errorf("%+v", none)
	}
}
