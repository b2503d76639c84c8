package repositorytask

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// accident is what happens once to a repository: it fails after its snapshots were listed, and loses one.
type accident struct {
	*site
	breakIt, mend func()
	loses         *velerov1.PodVolumeBackup // nil: none
	happened      *atomic.Bool
}

func (s *site) accident(kind, namespace string, loses *velerov1.PodVolumeBackup) accident {
	breakIt, mend := s.breakable(kind, namespace)
	return accident{s, breakIt, mend, loses, &atomic.Bool{}}
}

// ends ends the accident, which err has come of.
func (a accident) ends(err error) {
	a.mend()
	if a.loses != nil {
		a.lose(a.loses)
	}
	a.happened.Store(true)
	if err == nil {
		a.t.Error("the repository did not fail")
	}
	a.t.Log(err)
}

// breakable returns what makes a repository, whose snapshots were listed, fail, and what mends it: restic cannot list it, and kopia not write to it.
func (s *site) breakable(kind, namespace string) (breakIt, mend func()) {
	s.t.Helper()
	if kind == "kopia" {
		storage := s.onFaultFS(kind)
		return func() {
			storage.Inject(faultfs.Fault{Op: faultfs.Create, Path: namespace + "/**", Errno: syscall.ESTALE})
		}, storage.Clear
	}
	file := filepath.Join(s.repository(kind, namespace).URL, "snapshots", strings.Repeat("f", 64))
	return func() {
			if err := os.WriteFile(file, []byte("no snapshot"), 0o600); err != nil {
				s.t.Error(err)
			}
		}, func() {
			if err := os.Remove(file); err != nil {
				s.t.Error(err)
			}
		}
}

// failsOnce is a data path with an accident in its first removal.
type failsOnce struct {
	uploader.Forgetter
	accident
}

func (f failsOnce) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	if req.Snapshots[0].Look || f.happened.Load() {
		return f.Forgetter.Forget(ctx, req, p)
	}
	broken := false
	result, err := f.Forgetter.Forget(ctx, req, progress.SinkFunc(func(r progress.Reading) {
		if r.Stage == progress.StageTransferring && !broken {
			broken = true
			f.breakIt()
		}
	}))
	f.ends(err) //nolint:contextcheck // the test's call, not the data path's
	return result, err
}

// TestLossAfterAnError: what was lost in a try that has ended with an error is what the task ends with, however well the next one goes.
func TestLossAfterAnError(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, kind := range []string{"restic", "kopia"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository(kind, "shop")
			for _, days := range []int{2, 1, 0} {
				s.own(kind, "shop", "db-0", days)
			}
			other := s.own(kind, "shop", "web-0", 0)
			cfg := s.forgetting()
			cfg.Forgetters[kind] = failsOnce{cfg.Forgetters[kind], s.accident(kind, "shop", other)}
			cfg.Tries = 3
			s.start(cfg)
			task := s.forgetTask("task", 1, "")
			task.Spec.Acknowledge = s.waveOf(task)
			status := s.ended(task).Status
			if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonUnconfirmed || !strings.Contains(status.Message, other.Status.SnapshotID) ||
				!strings.Contains(status.Message, "2 snapshots forgotten") {
				t.Errorf("%+v", status)
			}
			t.Log(status.Message)
		})
	}
}

// TestLossIsNotKnown: a repository that does not open any more after something was removed is not left for later: the run that goes on then would not know
// what there was.
func TestLossIsNotKnown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("kopia", "shop")
	for _, days := range []int{1, 0} {
		s.own("kopia", "shop", "db-0", days)
	}
	s.own("kopia", "shop", "web-0", 0)
	storage := s.onFaultFS("kopia")
	fail := func(op faultfs.Op) func() {
		return func() { storage.Inject(faultfs.Fault{Op: op, Path: "shop/**", Errno: syscall.ESTALE}) }
	}
	cfg := s.forgetting()
	cfg.Forgetters["kopia"] = failsOnce{s.kopia, accident{s, fail(faultfs.Create), fail(faultfs.Any), nil, &atomic.Bool{}}}
	cfg.Tries = 2
	s.start(cfg)
	task := s.forgetTask("task", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	status := s.ended(task).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonDataPath || !strings.HasSuffix(status.Repositories[0].Message, "it is not known whether other snapshots were lost: check the repository") {
		t.Errorf("%+v", status)
	}
}

// prunesOnce is a data path with an accident in its first prune.
type prunesOnce struct {
	uploader.Pruner
	accident
}

func (f prunesOnce) Prune(ctx context.Context, req uploader.PruneRequest, p progress.Sink) (uploader.PruneResult, error) {
	if f.happened.Load() {
		return f.Pruner.Prune(ctx, req, p)
	}
	measured := req.Measured
	req.Measured = func(size *uploader.StorageSize) error {
		f.breakIt()
		return measured(size)
	}
	result, err := f.Pruner.Prune(ctx, req, p)
	f.ends(err) //nolint:contextcheck // the test's call, not the data path's
	return result, err
}

// TestLossAfterAFailedPrune: the next try does not prune where a snapshot was lost, also one of which there is no record.
func TestLossAfterAFailedPrune(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, kind := range []string{"restic", "kopia"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository(kind, "shop")
			s.own(kind, "shop", "db-0", 0)
			other := s.own(kind, "shop", "web-0", 0)
			s.Delete(other)
			cfg := s.pruning()
			cfg.Pruners["kopia"] = s.kopia
			cfg.Pruners[kind] = prunesOnce{cfg.Pruners[kind], s.accident(kind, "shop", other)}
			cfg.Tries = 3
			s.start(cfg)
			task := s.pruneTask("task", true)
			if kind == "kopia" {
				task.Spec.MaxUnused, task.Spec.Full = "", true
			}
			status := s.ended(task).Status
			if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonUnconfirmed || !strings.Contains(status.Message, other.Status.SnapshotID) {
				t.Errorf("%+v", status)
			}
			t.Log(status.Message)
		})
	}
}

// losesOnce is a data path that says once that another snapshot was lost.
type losesOnce struct {
	uploader.Forgetter
	said *atomic.Bool
}

func (f losesOnce) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	result, err := f.Forgetter.Forget(ctx, req, p)
	if !req.Snapshots[0].Look && f.said.CompareAndSwap(false, true) {
		result.Lost = []string{"12345678"}
	}
	return result, err
}

// TestLossIsNotWritten: where the API server does not take at once that a snapshot was lost, the task ends with it all the same.
func TestLossIsNotWritten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	for _, days := range []int{2, 1, 0} {
		s.own("restic", "shop", "db-0", days)
	}
	var said, refused atomic.Bool
	cfg := s.forgetting()
	cfg.Forgetters["restic"] = losesOnce{s.restic, &said}
	refusing := interceptor.NewClient(s.Client, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if task, ok := o.(*v1alpha1.RepositoryTask); ok && len(task.Status.Repositories) > 0 && task.Status.Repositories[0].Reason == v1alpha1.ReasonUnconfirmed && refused.CompareAndSwap(false, true) {
				return apierrors.NewBadRequest("no")
			}
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	c := s.controller(cfg, refusing)
	c.repositories, c.events = NewRepositories(s.Client, s.Namespace), &events.FakeRecorder{}
	task := s.forgetTask("task", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	s.Create(task)
	if err := c.newRun(task).executeAndRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Get(task)
	if !refused.Load() || task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != v1alpha1.ReasonUnconfirmed || !strings.Contains(task.Status.Message, "snapshot 12345678") {
		t.Errorf("%+v", task.Status)
	}
}
