package repositorytask

import (
	"context"
	"slices"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// healthy is a data path whose repositories are whole.
type healthy struct{}

func (healthy) Check(_ context.Context, req uploader.CheckRequest, _ progress.Sink) (uploader.CheckResult, error) {
	return uploader.CheckResult{Looks: 1, Snapshots: int64(len(req.Snapshots)), Packs: 1}, nil
}

// TestDamageOutlivesTheBackup: the task knows in which repository it has found damage when the backup that has it is gone, until a backup as new of the
// volume is proven, or all data of the repository.
func TestDamageOutlivesTheBackup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	damaged, whole := uploader.VerifyResult{Mismatched: 1}, uploader.VerifyResult{Files: 1}
	cfg := s.config()
	cfg.Now = clock()
	cfg.Verifiers = map[string]uploader.Verifier{"restic": looks{"shop-1": {damaged, damaged}, "bank-1": {damaged, damaged}, "shop-2": {whole}}}
	cfg.Checkers = map[string]uploader.Checker{"restic": healthy{}}
	s.start(cfg)
	first := s.backup("first")
	shop, bank := s.record(first, "restic", "shop", "db-0", "shop-1", velerov1.PodVolumeBackupPhaseCompleted), s.record(first, "restic", "bank", "vault-0", "bank-1", velerov1.PodVolumeBackupPhaseCompleted)
	s.started(shop, 1)
	s.started(bank, 1)
	task := s.ended(s.task("found", "first"))
	is := func(when string, want ...string) {
		t.Helper()
		s.Eventually(when, func() bool {
			s.Get(task)
			var namespaces []string
			for _, d := range v1alpha1.DamagedRepositories(task) {
				if d.BackupStorageLocation == "default" && d.Uploader == "restic" {
					namespaces = append(namespaces, d.VolumeNamespace)
				}
			}
			return slices.Equal(namespaces, want) && (task.Labels[v1alpha1.LabelDamaged] == "true") == (len(want) > 0)
		})
	}
	is("both repositories are noted", "bank", "shop")
	s.Delete(shop)
	s.Delete(bank)
	second := s.backup("second")
	s.started(s.record(second, "restic", "shop", "db-0", "shop-2", velerov1.PodVolumeBackupPhaseCompleted), 2)
	if status := s.ended(s.task("proves", "second")).Status; status.Phase != v1alpha1.PhaseCompleted {
		t.Fatalf("%+v", status)
	}
	is("a newer backup of one volume is proven", "bank")
	third := s.backup("third")
	s.record(third, "restic", "bank", "vault-0", "bank-2", velerov1.PodVolumeBackupPhaseCompleted)
	if status := s.ended(s.checkTask("shallow", "third", false)).Status; status.Phase != v1alpha1.PhaseCompleted {
		t.Fatalf("%+v", status)
	}
	is("a check has read no data", "bank")
	if status := s.ended(s.checkTask("deep", "third", true)).Status; status.Phase != v1alpha1.PhaseCompleted {
		t.Fatalf("%+v", status)
	}
	is("all data is proven")
}
