package repositorytask

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// looks is a data path that finds something else each time it looks at a snapshot.
type looks map[string][]uploader.VerifyResult

var looking sync.Mutex // tasks look at the same time

func (l looks) Verify(_ context.Context, req uploader.VerifyRequest, _ progress.Sink) (uploader.VerifyResult, error) {
	looking.Lock()
	defer looking.Unlock()
	seen := l[req.SnapshotID]
	if len(seen) == 0 {
		return uploader.VerifyResult{}, uploader.ErrSnapshotNotFound
	}
	l[req.SnapshotID] = seen[1:]
	return seen[0], nil
}

// TestJudgement: damage counts when it is seen twice, it is kept in mind until a backup as new is proven, and what a task has not
// looked at is said.
func TestJudgement(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	whole, damaged := uploader.VerifyResult{Files: 3, Bytes: 3 << 20}, uploader.VerifyResult{Files: 2, Mismatched: 1, FailedPaths: []string{"file"}}
	absent := whole
	absent.Absent = 2
	cfg := s.config()
	cfg.Verifiers = map[string]uploader.Verifier{"restic": looks{
		"once": {damaged, whole, absent}, "twice": {damaged, damaged, whole}, "older": {whole}, "newer": {whole},
	}}
	b := s.backup("nightly")
	s.Patch(b, `{"status": {"phase": "PartiallyFailed"}}`)
	s.started(s.record(b, "restic", "shop", "once", "once", velerov1.PodVolumeBackupPhaseCompleted), 1)
	s.started(s.record(s.backup("bad"), "restic", "shop", "twice", "twice", velerov1.PodVolumeBackupPhaseCompleted), 2)
	s.start(cfg)

	message := func(task *v1alpha1.RepositoryTask) string {
		return meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionVerified).Message
	}
	once := s.ended(s.task("once", "nightly"))
	if once.Status.Phase != v1alpha1.PhaseCompleted || !strings.Contains(message(once), "Backup nightly is PartiallyFailed: volumes that it lacks were not looked at") {
		t.Errorf("%+v", once.Status)
	}
	if again := s.ended(s.task("again", "nightly")); !strings.Contains(message(again), "2 files are not in their backups") {
		t.Errorf("%+v", again.Status)
	}
	bad := s.task("bad", "bad")
	bad.Spec.TTL = &metav1.Duration{Duration: time.Millisecond}
	if status := s.ended(bad).Status; status.Phase != v1alpha1.PhaseFailed || status.Volumes[0].Result != v1alpha1.VolumeMismatched {
		t.Fatalf("%+v", status)
	}
	evidence := func(task *v1alpha1.RepositoryTask) bool {
		t.Helper()
		needed, err := s.controller(cfg, s.Client).isEvidence(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		return needed
	}
	s.started(s.record(s.backup("old"), "restic", "shop", "twice", "older", velerov1.PodVolumeBackupPhaseCompleted), 1)
	s.started(s.record(s.backup("new"), "restic", "shop", "twice", "newer", velerov1.PodVolumeBackupPhaseCompleted), 3)
	var earlier *v1alpha1.RepositoryTask
	for _, backup := range []string{"old", "new"} {
		task := s.ended(s.task(backup, backup))
		if task.Status.Phase != v1alpha1.PhaseCompleted {
			t.Fatalf("%+v", task.Status)
		}
		s.Get(bad) // whose TTL passed before the other tasks were begun
		if proven := backup == "new"; evidence(bad) == proven || !evidence(task) || earlier != nil && evidence(earlier) {
			t.Errorf("after the proof of the %s backup, the task that found the damage is needed: %v, and the one of the last proof: %v", backup, evidence(bad), evidence(task))
		}
		earlier = task
	}
}
