package repositorytask

import (
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestSyncedOfAClockBehind: in a cluster into which a server has synced the backups, the one of a node whose clock was behind is newer than one whose Backup
// is older. It is the newest one, a proof of the older one does not clear its damage, and the metrics go by the same times.
func TestSyncedOfAClockBehind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	for name, times := range map[string][2]time.Time{"old": {day(1), day(1).Add(time.Minute)}, "new": {day(2), day(1).Add(-3 * time.Hour)}} {
		b := s.backup(name)
		s.Change(b, func() { b.Status.StartTimestamp = new(metav1.NewTime(times[0])) })
		s.startedAt(s.record(b, "restic", "shop", "db-0", name, velerov1.PodVolumeBackupPhaseCompleted), times[1])
	}
	whole, damaged := uploader.VerifyResult{Files: 3, Bytes: 3 << 20}, uploader.VerifyResult{Files: 2, Mismatched: 1, FailedPaths: []string{"file"}}
	cfg := s.config()
	cfg.Now = clock()
	cfg.Verifiers = map[string]uploader.Verifier{"restic": looks{"old": {whole}, "new": {damaged, damaged}}}
	s.start(cfg)
	latest := s.ended(s.latest("latest", ""))
	if v := latest.Status.Volumes[0]; len(latest.Status.Volumes) != 1 || v.SnapshotID != "new" || v.Result != v1alpha1.VolumeMismatched || !v.BackupTimestamp.Time.Equal(day(2)) {
		t.Errorf("%+v", latest.Status.Volumes)
	}
	older := s.ended(s.task("older", "old"))
	if older.Status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", older.Status)
	}
	volume := proof.Volume{Namespace: "shop", Pod: "db-0", Name: "data", StorageLocation: "default", Uploader: "restic"}
	if p := proof.Of([]v1alpha1.RepositoryTask{*latest, *older})[volume]; !p.Damaged || p.AsOf(day(2)).After(day(2)) {
		t.Errorf("%+v", p)
	}
	m := NewMetrics(s.Client, s.Client, s.Namespace, func(err error) { t.Error(err) })
	if err := m.readBackups(t.Context()); err != nil || !m.newest[volume.WithAny()].Equal(day(2)) {
		t.Errorf("%v: %v", m.newest, err)
	}
}
