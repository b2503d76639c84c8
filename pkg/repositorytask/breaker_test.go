package repositorytask

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// away is a data path whose storage does not answer, until it is back.
type away struct {
	looks

	tries, opened atomic.Int64
	back          atomic.Bool
}

func (a *away) Verify(ctx context.Context, req uploader.VerifyRequest, sink progress.Sink) (uploader.VerifyResult, error) {
	if a.back.Load() {
		return a.looks.Verify(ctx, req, sink)
	}
	a.tries.Add(1)
	return uploader.VerifyResult{}, errors.New("connection refused")
}

func (a *away) Open(context.Context, uploader.Repository) error {
	a.opened.Add(1)
	if a.back.Load() {
		return nil
	}
	return errors.New("connection refused")
}

// awaitParked waits until a task waits for a repository.
func (s *site) awaitParked(task *v1alpha1.RepositoryTask) *v1alpha1.RepositoryTask {
	s.t.Helper()
	return testenv.EventuallyGet(s.Env, task, "a task that waits for its repository", func(t *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && isParked(&t.Status)
	})
}

func (s *site) awaitEnd(task *v1alpha1.RepositoryTask) *v1alpha1.RepositoryTaskStatus {
	s.t.Helper()
	return &testenv.EventuallyGet(s.Env, task, "the end of the task", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() }).Status
}

// TestParked: of a repository that does not open one volume is tried, the volumes of others are done, the task waits, also through a restart of the
// process, and ends well when the storage is back. Waiting is no attempt.
func TestParked(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	found := looks{}
	for _, pod := range []string{"a", "b", "c"} {
		s.record(b, "restic", "shop", pod, pod, velerov1.PodVolumeBackupPhaseCompleted)
		found[pod] = []uploader.VerifyResult{{Files: 1}}
	}
	s.record(b, "kopia", "shop", "d", "d", velerov1.PodVolumeBackupPhaseCompleted)
	cfg := s.config()
	a := &away{looks: found}
	cfg.Verifiers = map[string]uploader.Verifier{"restic": a, "kopia": looks{"d": {{Files: 1}}}}
	cfg.ParkDelay = time.Hour // the next process looks at once
	stop := s.start(cfg)
	task := s.task("verify", "nightly")
	s.Create(task)
	status := s.awaitParked(task).Status
	if v := status.Volumes; v[0].Result != v1alpha1.VolumePending || v[2].Result != v1alpha1.VolumePending || v[3].Result != v1alpha1.VolumeVerified {
		t.Errorf("%+v", v)
	}
	if status.Phase != v1alpha1.PhaseInProgress || !strings.Contains(status.Message, "the repository does not open: connection refused") || a.tries.Load() != 3 {
		t.Errorf("%d tries: %+v", a.tries.Load(), status)
	}
	stop()
	if p := proof.Of(s.tasks())[proof.Volume{Namespace: "shop", Pod: "b", Name: "data", StorageLocation: "default", Uploader: "restic"}]; !p.Verified.IsZero() || p.Damaged {
		t.Errorf("%+v", p)
	}
	a.back.Store(true)
	s.start(cfg)
	if ended := s.awaitEnd(task); ended.Phase != v1alpha1.PhaseCompleted || ended.Attempts != 1 || ended.Reason != "" {
		t.Errorf("%+v", ended)
	}
}

// TestParkedPastItsTime: a volume whose repository did not open has failed when the task's time is over, beside others and alone. It was tried, and is no
// volume that is left to later tasks.
func TestParkedPastItsTime(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, beside := range map[string]bool{"beside another": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			b := s.backup("nightly")
			s.record(b, "restic", "shop", "a", "a", velerov1.PodVolumeBackupPhaseCompleted)
			if beside {
				s.record(b, "kopia", "shop", "d", "d", velerov1.PodVolumeBackupPhaseCompleted)
			}
			cfg := s.config()
			cfg.Verifiers = map[string]uploader.Verifier{"restic": &away{}, "kopia": looks{"d": {{Files: 1}}}}
			cfg.ParkDelay = time.Millisecond
			s.start(cfg)
			task := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("verify"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Latest: true}}
			task.Spec.MaxDuration = &metav1.Duration{Duration: 5 * time.Second} // the other volume has its turn within it
			s.Create(task)
			status := s.awaitEnd(task)
			if v := status.Volumes[0]; status.Phase != v1alpha1.PhaseFailed || status.Postponed != 0 || v.Result != v1alpha1.VolumeFailed || v.Reason != v1alpha1.ReasonRepositoryUnavailable || v.CompletionTimestamp == nil {
				t.Errorf("%+v", status)
			}
		})
	}
}

// TestParkedTogether: a second task of the repository does not try what the first one has found, and a task that has waited long enough fails.
func TestParkedTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, name := range []string{"one", "two"} {
		s.record(s.backup(name), "restic", "shop", name, name, velerov1.PodVolumeBackupPhaseCompleted)
	}
	cfg := s.config()
	a := &away{}
	cfg.Verifiers = map[string]uploader.Verifier{"restic": a}
	cfg.ParkDelay = time.Hour
	stop := s.start(cfg)
	one, two := s.task("one", "one"), s.task("two", "two")
	s.Create(one)
	s.awaitParked(one)
	s.Create(two)
	s.awaitParked(two)
	if a.tries.Load() != 3 || a.opened.Load() != 1 {
		t.Errorf("%d tries, opened %d times", a.tries.Load(), a.opened.Load())
	}
	stop()
	cfg.ParkLimit = time.Nanosecond
	s.start(cfg)
	for _, task := range []*v1alpha1.RepositoryTask{one, two} {
		status := s.awaitEnd(task)
		if status.Phase != v1alpha1.PhaseFailed || status.Volumes[0].Reason != v1alpha1.ReasonRepositoryUnavailable || status.Attempts != 1 {
			t.Errorf("%+v", status)
		}
	}
}

// TestLocationAway: when two repositories of a location do not open, the others are not tried, also not by other tasks, and all are done when it is back.
func TestLocationAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nightly, late := s.backup("nightly"), s.backup("late")
	found := looks{}
	for _, namespace := range []string{"a", "b", "c", "d"} {
		s.record(nightly, "restic", namespace, namespace, namespace, velerov1.PodVolumeBackupPhaseCompleted)
		found[namespace] = []uploader.VerifyResult{{Files: 1}}
	}
	s.record(late, "restic", "e", "e", "e", velerov1.PodVolumeBackupPhaseCompleted)
	found["e"] = []uploader.VerifyResult{{Files: 1}}
	cfg := s.config()
	a := &away{looks: found}
	cfg.Verifiers = map[string]uploader.Verifier{"restic": a}
	cfg.ParkDelay = time.Hour
	stop := s.start(cfg)
	first, second := s.task("first", "nightly"), s.task("second", "late")
	s.Create(first)
	s.awaitParked(first)
	s.Create(second)
	status := s.awaitParked(second).Status
	if a.tries.Load() != 3 || a.opened.Load() != 2 || !strings.Contains(status.Message, "other repositories of BackupStorageLocation default do not open: connection refused") {
		t.Errorf("%d tries, opened %d times: %s", a.tries.Load(), a.opened.Load(), status.Message)
	}
	stop()
	a.back.Store(true)
	s.start(cfg)
	for _, task := range []*v1alpha1.RepositoryTask{first, second} {
		if status := s.awaitEnd(task); status.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("%+v", status)
		}
	}
}

// partlyBroken has repositories that do not open, whatever the location does.
type partlyBroken struct {
	looks
	broken []string // namespaces
}

func (p *partlyBroken) Open(_ context.Context, repository uploader.Repository) error {
	if slices.ContainsFunc(p.broken, func(namespace string) bool { return strings.HasSuffix(repository.URL, "/"+namespace) }) {
		return errors.New("an answer that nobody knows")
	}
	return nil
}

func (p *partlyBroken) Verify(ctx context.Context, req uploader.VerifyRequest, sink progress.Sink) (uploader.VerifyResult, error) {
	if err := p.Open(ctx, req.Repository); err != nil {
		return uploader.VerifyResult{}, err
	}
	return p.looks.Verify(ctx, req, sink)
}

// TestBrokenRepositoriesKeepNoOthersFromTheirTurn: those that come before them do not open for days, and the location answers.
func TestBrokenRepositoriesKeepNoOthersFromTheirTurn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nightly := s.backup("nightly")
	p := &partlyBroken{looks: looks{}, broken: []string{"a", "b"}}
	for _, namespace := range []string{"a", "b", "c", "d"} {
		s.record(nightly, "restic", namespace, namespace, namespace, velerov1.PodVolumeBackupPhaseCompleted)
		p.looks[namespace] = []uploader.VerifyResult{{Files: 1}}
	}
	cfg := s.config()
	cfg.Verifiers, cfg.ParkDelay = map[string]uploader.Verifier{"restic": p}, 500*time.Millisecond
	s.start(cfg)
	task := s.task("nightly", "nightly")
	s.Create(task)
	testenv.EventuallyGet(s.Env, task, "the volumes of the repositories that open", func(t *v1alpha1.RepositoryTask, err error) bool {
		verified := 0
		for _, v := range t.Status.Volumes {
			if v.Result == v1alpha1.VolumeVerified {
				verified++
			}
		}
		return err == nil && verified == 2
	})
}

// TestBesides: those of the location count that do not open now, unless another one has answered since.
func TestBesides(t *testing.T) {
	t.Parallel()
	key := func(location, namespace string) v1alpha1.RepositoryKey {
		return v1alpha1.RepositoryKey{BackupStorageLocation: location, VolumeNamespace: namespace, Uploader: "restic"}
	}
	later := time.Now().Add(time.Hour)
	known := breaker{
		key("near", "a"): {until: later}, key("near", "b"): {until: later}, key("near", "c"): {until: time.Now().Add(-time.Hour)}, key("near", "d"): {until: later, alone: true},
	}
	for asked, want := range map[v1alpha1.RepositoryKey]int{key("near", "z"): 2, key("near", "a"): 1, key("far", "a"): 0} {
		if got := len(known.besides(asked)); got != want {
			t.Errorf("besides %v %d do not open, want %d", asked, got, want)
		}
	}
}

// TestGivenUpIsNotDone: a task of many volumes that has waited long enough gives up all of them, and not one after another.
func TestGivenUpIsNotDone(t *testing.T) {
	t.Parallel()
	began, now := metav1.NewTime(time.Now().Add(-25*time.Hour)), metav1.Now()
	task := &v1alpha1.RepositoryTask{}
	task.Status.StartTimestamp = &began
	task.Status.Volumes = []v1alpha1.RepositoryTaskVolume{{Result: v1alpha1.VolumeFailed, Reason: v1alpha1.ReasonRepositoryUnavailable, CompletionTimestamp: &now}}
	r := &run{Controller: &Controller{cfg: Config{Now: time.Now, ParkLimit: 24 * time.Hour}}, task: task}
	closed := &closedError{outage: outage{err: errors.New("connection refused")}}
	if r.parks(closed) {
		t.Error("what was given up counts as done")
	}
	task.Status.Volumes[0].Result, task.Status.Volumes[0].Reason = v1alpha1.VolumeVerified, ""
	if !r.parks(closed) {
		t.Error("what was done does not count")
	}
}

// TestServerAwayForLong: every type of task waits for an S3 server, and is done when it is back.
func TestServerAwayForLong(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	server := s3.Start(t)
	bucket := server.Bucket(t)
	s := newSiteAt(t, server.Dir(bucket))
	s.Create(s.BucketLocation("default", server, bucket))
	s.bucket = "s3:https://" + server.Endpoint + "/" + bucket
	pvb := s.store(s.backup("nightly"), "kopia", "shop", "db-0")
	cfg := s.config()
	cfg.Checkers, cfg.UsageReaders = map[string]uploader.Checker{"kopia": s.kopia}, map[string]uploader.UsageReader{"kopia": s.kopia}
	cfg.Pruners = map[string]uploader.Pruner{"kopia": s.kopia}
	cfg.Tries, cfg.ParkDelay = 1, 100*time.Millisecond
	s.start(cfg)
	server.Stop()
	var tasks []*v1alpha1.RepositoryTask
	for _, kind := range []v1alpha1.RepositoryTaskType{v1alpha1.TaskVerify, v1alpha1.TaskCheck, v1alpha1.TaskUsage, v1alpha1.TaskPrune} {
		task := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(strings.ToLower(string(kind))), Spec: v1alpha1.RepositoryTaskSpec{Type: kind, PodVolumeBackup: pvb.Name}}
		s.Create(task)
		tasks = append(tasks, task)
	}
	for _, task := range tasks {
		s.awaitParked(task)
	}
	server.Run(t)
	for _, task := range tasks {
		if status := s.awaitEnd(task); status.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("%s: %+v", task.Name, status)
		}
	}
}
