package repositorytask

import (
	"context"
	"slices"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestForgetKeptRecordIsLost: where the record that the plan keeps was deleted or changed after the plan was made, the older ones of its volume may be all
// that is left, and stay. That happens between two processes that work on the task, or between the look into the repository and the removal.
func TestForgetKeptRecordIsLost(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, kind := range []string{"restic", "kopia"} {
		for _, when := range []string{"between processes", "after the look"} {
			t.Run(kind+" "+when, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.newRepository(kind, "shop")
				kept := map[string]*velerov1.PodVolumeBackup{}
				for _, pod := range []string{"deleted", "replaced", "deleting", "marked", "same"} {
					s.own(kind, "shop", pod, 1)
					kept[pod] = s.own(kind, "shop", pod, 0)
				}
				kept["deleting"].Finalizers = []string{"example.com/hold"}
				s.update(kept["deleting"])
				change := func() {
					s.Delete(kept["deleted"])
					s.Delete(kept["replaced"])
					s.own(kind, "shop", "replaced", 0)
					s.Delete(kept["deleting"])
					kept["marked"].Annotations = map[string]string{v1alpha1.AnnotationForgetting: "of another task"}
					s.update(kept["marked"])
				}
				task := s.forgetMeanwhile(kind, when == "after the look", change)
				for _, pod := range []string{"deleted", "replaced", "deleting", "marked"} {
					if left := becomes(task, kind+"-"+pod+"-1"); left.Result != v1alpha1.RetentionKept || !slices.Equal(left.Rules, []string{retention.RuleLost}) {
						t.Errorf("%+v", left)
					}
					if lost := becomes(task, kind+"-"+pod+"-0"); lost.Result != v1alpha1.RetentionFailed || lost.Message != keptIsUnnamed {
						t.Errorf("%+v", lost)
					}
				}
				if gone := becomes(task, kind+"-same-1"); task.Status.Phase != v1alpha1.PhaseFailed || gone.Result != v1alpha1.RetentionForgotten {
					t.Errorf("%+v", task.Status)
				}
				if names, marked := s.records(); len(names) != 8 || !slices.Equal(marked, []string{kind + "-marked-0"}) || s.snapshots(kind, "shop") != 10 {
					t.Errorf("%v, %v", names, marked)
				}
			})
		}
	}
}

// forgetMeanwhile has a task keep the last backup of each volume. Something changes after the task has looked into the repository, or while no process
// works on it.
func (s *site) forgetMeanwhile(kind string, afterLook bool, change func()) *v1alpha1.RepositoryTask {
	s.t.Helper()
	task := s.forgetTask("task", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	cfg := s.forgetting()
	f := interrupting{Forgetter: cfg.Forgetters[kind]}
	looks := make(chan struct{})
	if afterLook {
		f.after = func(_ context.Context, look bool) {
			if look {
				change()
			}
		}
	} else {
		f.before = func(ctx context.Context, _ bool) {
			close(looks)
			<-ctx.Done()
		}
	}
	cfg.Forgetters = map[string]uploader.Forgetter{kind: f}
	stop := s.start(cfg)
	s.Create(task)
	if !afterLook {
		<-looks
		stop()
		change()
		s.start(s.forgetting())
	}
	if err := s.untilEnded(task); err != nil {
		s.t.Fatal(err)
	}
	return task
}
