package repositorytask

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// healthy is a data path whose repositories are whole.
type healthy struct{}

func (healthy) Check(_ context.Context, req uploader.CheckRequest, _ progress.Sink) (uploader.CheckResult, error) {
	return uploader.CheckResult{Looks: 1, Snapshots: int64(len(req.Snapshots)), Packs: 1}, nil
}

// missing is a data path that finds a pack missing.
type missing struct{}

func (missing) Check(_ context.Context, _ uploader.CheckRequest, _ progress.Sink) (uploader.CheckResult, error) {
	return uploader.CheckResult{Looks: 2, Damaged: 1, DamagedPacks: []string{"aa"}}, nil
}

// TestDamageOutlivesTheBackup: the task knows in which repository it has found damage when the backup that has it is gone, until the same snapshot is
// proven, or all data of the repository.
func TestDamageOutlivesTheBackup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	damaged, whole := uploader.VerifyResult{Mismatched: 1}, uploader.VerifyResult{Files: 1}
	cfg := s.config()
	cfg.Now = clock()
	cfg.Verifiers = map[string]uploader.Verifier{"restic": looks{"shop-1": {damaged, damaged, whole}, "bank-1": {damaged, damaged}, "bank-2": {whole}}}
	cfg.Checkers = map[string]uploader.Checker{"restic": healthy{}, "kopia": missing{}}
	s.start(cfg)
	first := s.backup("first")
	shop, bank := s.record(first, "restic", "shop", "db-0", "shop-1", velerov1.PodVolumeBackupPhaseCompleted), s.record(first, "restic", "bank", "vault-0", "bank-1", velerov1.PodVolumeBackupPhaseCompleted)
	s.started(shop, 1)
	s.started(bank, 1)
	s.started(s.record(first, "restic", "mail", "gone-0", "no such snapshot", velerov1.PodVolumeBackupPhaseCompleted), 1)
	found := s.ended(s.task("found", "first"))
	other := s.backup("other")
	s.record(other, "kopia", "shop", "db-0", "kopia-1", velerov1.PodVolumeBackupPhaseCompleted)
	checked := s.ended(s.checkTask("checked", "other", false))
	is := func(when string, task *v1alpha1.RepositoryTask, want ...string) {
		t.Helper()
		if err := s.controller(cfg, s.Client).reviewDamage(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Get(task)
		var namespaces []string
		for _, d := range v1alpha1.DamagedRepositories(task) {
			if d.BackupStorageLocation == "default" {
				namespaces = append(namespaces, d.Uploader+"/"+d.VolumeNamespace)
			}
		}
		if !slices.Equal(namespaces, want) || (task.Labels[v1alpha1.LabelDamaged] == "true") != (len(want) > 0) {
			t.Errorf("%s: task %s has %v, %v", when, task.Name, task.Annotations, task.Labels)
		}
	}
	is("damage was found", found, "restic/bank", "restic/shop")
	is("a pack is missing", checked, "kopia/shop")
	completed := func(task *v1alpha1.RepositoryTask) {
		t.Helper()
		if status := s.ended(task).Status; status.Phase != v1alpha1.PhaseCompleted {
			t.Fatalf("%s: %+v", task.Name, status)
		}
	}
	again := s.task("again", "")
	again.Spec.PodVolumeBackup = shop.Name
	completed(again)
	is("the same snapshot is proven", found, "restic/bank")
	s.Delete(bank)
	second := s.backup("second")
	s.started(s.record(second, "restic", "bank", "vault-0", "bank-2", velerov1.PodVolumeBackupPhaseCompleted), 2)
	completed(s.task("newer", "second"))
	is("a newer backup is proven", found, "restic/bank")
	completed(s.checkTask("shallow", "second", false))
	is("a check has read no data", found, "restic/bank")
	completed(s.checkTask("deep", "second", true))
	is("all data is proven", found)
	is("the other repository is not", checked, "kopia/shop")
}

// noted returns a task that has ended, with a note of damage in the restic repository of namespace shop.
func (s *site) noted(name string, status v1alpha1.RepositoryTaskStatus) *v1alpha1.RepositoryTask {
	s.T.Helper()
	task := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Latest: true}}
	task.Labels = map[string]string{v1alpha1.LabelDamaged: yes}
	task.Annotations = map[string]string{v1alpha1.AnnotationDamagedRepositories: `[{"backupStorageLocation":"default","volumeNamespace":"shop","uploader":"restic"}]`}
	s.Create(task)
	s.Change(task, func() { task.Status = status })
	return task
}

// whole returns a check that has read all data of the restic repository of namespace shop.
func (s *site) whole(at time.Time) {
	s.T.Helper()
	task := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("whole"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskCheck, Latest: true, ReadData: true}}
	s.Create(task)
	s.Change(task, func() {
		task.Status = v1alpha1.RepositoryTaskStatus{VolumeOperationStatus: v1alpha1.VolumeOperationStatus{Phase: v1alpha1.PhaseCompleted, CompletionTimestamp: &metav1.Time{Time: at}}, Repositories: []v1alpha1.RepositoryTaskRepository{
			{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic", Result: v1alpha1.RepositoryWhole, CompletionTimestamp: &metav1.Time{Time: at}},
		}}
	})
}

// TestNoteWithoutResult: a process has ended between the note and the result, and the next one could not look again. Nobody but a check of all data
// knows that the damage is gone.
func TestNoteWithoutResult(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	began := time.Now().Add(-time.Hour)
	task := s.noted("found", v1alpha1.RepositoryTaskStatus{
		VolumeOperationStatus: v1alpha1.VolumeOperationStatus{Phase: v1alpha1.PhaseFailed, StartTimestamp: &metav1.Time{Time: began}, CompletionTimestamp: &metav1.Time{Time: began.Add(time.Minute)}},
		Volumes:               []v1alpha1.RepositoryTaskVolume{{Namespace: "shop", Pod: "db-0", Volume: "data", PodVolumeBackup: "b", BackupStorageLocation: "default", Result: v1alpha1.VolumeFailed}},
	})
	review := func(when string, stands bool) {
		t.Helper()
		if err := s.controller(s.config(), s.Client).reviewDamage(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Get(task); (task.Labels[v1alpha1.LabelDamaged] != "") != stands {
			t.Errorf("%s: the task has %v, %v", when, task.Labels, task.Annotations)
		}
	}
	review("without a result", true)
	s.whole(time.Now())
	review("after all data was read", false)
}

// TestSameNames: what kopia has stored with the name of another entry is whole, but a restore does not write it.
func TestSameNames(t *testing.T) {
	t.Parallel()
	for _, sampled := range []bool{false, true} {
		v := withResult(v1alpha1.RepositoryTaskVolume{}, &uploader.VerifyResult{Files: 8, SameNames: 1, Sampled: sampled}, false)
		if v.Result != v1alpha1.VolumeFailed || v.Reason != v1alpha1.ReasonUnsupported || proof.Damage(&v) || !strings.Contains(v.Message, "1 entry has the name of another entry") {
			t.Errorf("sampled %t: %+v", sampled, v)
		}
	}
}
