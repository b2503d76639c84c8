package repositorytask

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// forgetsMeanwhile is a data path in whose first prune somebody forgets a snapshot after the snapshots were listed.
type forgetsMeanwhile struct {
	uploader.Pruner
	forget func()
	done   *atomic.Bool
}

func (f forgetsMeanwhile) Prune(ctx context.Context, req uploader.PruneRequest, p progress.Sink) (uploader.PruneResult, error) {
	measured := req.Measured
	req.Measured = func(size *uploader.StorageSize) error {
		if f.done.CompareAndSwap(false, true) {
			f.forget()
		}
		return measured(size)
	}
	return f.Pruner.Prune(ctx, req, p)
}

// TestPruneForgottenMeanwhile: a prune is stopped because a snapshot is gone that was listed. The next try completes if its backup was deleted, and prunes
// nothing if it was not. Neither leaves a lock.
func TestPruneForgottenMeanwhile(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	nothing := func(*site, *velerov1.Backup, *velerov1.PodVolumeBackup) {}
	deleting := func(s *site, b *velerov1.Backup, _ *velerov1.PodVolumeBackup) {
		s.Patch(b, `{"status":{"phase":"Deleting"}}`)
	}
	for name, test := range map[string]struct {
		before, meanwhile func(*site, *velerov1.Backup, *velerov1.PodVolumeBackup)
		lost              bool
	}{
		"deleted":                   {nothing, func(s *site, b *velerov1.Backup, pvb *velerov1.PodVolumeBackup) { s.Delete(b); s.Delete(pvb) }, false},
		"Backup only":               {nothing, func(s *site, b *velerov1.Backup, _ *velerov1.PodVolumeBackup) { s.Delete(b) }, false}, // the server of a test collects no garbage
		"being deleted":             {nothing, deleting, false},
		"being deleted for a while": {deleting, nothing, false},
		"lost":                      {nothing, nothing, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository("restic", "shop")
			s.own("restic", "shop", "web-0", 1)
			gone, b := s.own("restic", "shop", "db-0", 1), s.backup("nightly")
			gone.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: b.Name, UID: b.UID}}
			s.update(gone)
			s.forgetAnother(s.repository("restic", "shop"), "shop")
			dir := s.repository("restic", "shop").URL
			_, had := filesIn(t, filepath.Join(dir, "data"), "")
			test.before(s, b, gone)
			cfg := s.pruning()
			cfg.Pruners["restic"] = forgetsMeanwhile{s.restic, func() { s.lose(gone); test.meanwhile(s, b, gone) }, &atomic.Bool{}}
			cfg.Tries = 2
			s.start(cfg)
			got := s.ended(s.pruneTask("task", true)).Status
			_, has := filesIn(t, filepath.Join(dir, "data"), "")
			if test.lost {
				if got.Phase != v1alpha1.PhaseFailed || got.Reason != v1alpha1.ReasonUnconfirmed || !strings.Contains(got.Message, gone.Status.SnapshotID) || has != had {
					t.Errorf("%+v, and %d bytes have become %d", got, had, has)
				}
			} else if r := got.Repositories[0]; got.Phase != v1alpha1.PhaseCompleted || r.Result != v1alpha1.RepositoryPruned || r.Snapshots != 1 || had-has < 3<<20 {
				t.Errorf("%+v, and %d bytes have become %d", got, had, has)
			}
			if locks, err := filepath.Glob(filepath.Join(dir, "locks", "*")); err != nil || len(locks) > 0 {
				t.Errorf("locks are left: %v, %v", locks, err)
			}
		})
	}
}
