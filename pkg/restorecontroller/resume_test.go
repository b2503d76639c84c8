package restorecontroller

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// dropProgress loses every write of progress that has no other purpose, as an API server that has too much to do.
func (c *cluster) dropProgress() {
	c.Intercept.Patch = func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		data, err := patch.Data(o)
		if err != nil {
			return err
		}
		if strings.Contains(string(data), v1alpha1.AnnotationProgress) && !strings.Contains(string(data), "resourceVersion") {
			return apierrors.NewTooManyRequests("not now", 1)
		}
		return api.Patch(ctx, o, patch, opts...)
	}
}

// TestNextControllerKnowsTheStep ends a controller as soon as the Restore says that it waits for volumes, or is finalized:
// another one can go on from there, however few writes of progress got through.
func TestNextControllerKnowsTheStep(t *testing.T) {
	t.Parallel()
	for step, phase := range map[v1alpha1.RestoreStep]velerov1.RestorePhase{v1alpha1.StepVolumes: velerov1.RestorePhaseInProgress, v1alpha1.StepFinalizing: velerov1.RestorePhaseFinalizing} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.dropProgress()
			engine := withVolumes(c)
			if step == v1alpha1.StepFinalizing {
				engine = &script{}
			}
			engine.finalize = func(ctx context.Context, _ *restore.Plan, _ *restore.Outcome) error {
				<-ctx.Done() // the process ends here
				return ctx.Err()
			}
			_, stop := restorable(c, engine, nil)
			r := c.newRestore("r1", nil)
			c.Create(r)
			testenv.EventuallyGet(c.Env, r, "under way", func(r *velerov1.Restore, _ error) bool {
				if r.Status.Phase == phase && phase != velerov1.RestorePhaseInProgress && progressOf(r).Step != step {
					t.Fatalf("phase %s with step %q", phase, progressOf(r).Step)
				}
				return r.Status.Phase == phase && progressOf(r).Step == step
			})
			stop()
			c.start(func(cfg *Config) {
				cfg.Engine = &script{run: func(context.Context, *restore.Plan, func(restore.Progress)) (*restore.Outcome, error) {
					t.Error("items were restored again")
					return nil, context.Canceled
				}}
			})
			if step == v1alpha1.StepVolumes {
				c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
				c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
			}
			if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted {
				t.Errorf("%+v", r.Status)
			}
		})
	}
}

// TestLateTakeoverWaitsForTheLocation: that a restore's time for volumes is over when it is taken over is no reason to give up at once
// because its location cannot be used at that moment. A controller and the storage often come back together.
func TestLateTakeoverWaitsForTheLocation(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t)
	_, stop := restorable(c, withVolumes(c), nil)
	r := c.created("r1")
	c.waitForItems(r)
	stop()
	for _, pod := range []string{"a", "b"} {
		c.Patch(c.volume(pod), `{"status":{"phase":"Completed"}}`)
	}
	c.Patch(r, `{"status":{"startTimestamp":"2026-01-01T00:00:00Z"}}`)
	c.put("photos/cat.jpg", nil) // a directory that is no backup store's
	c.Patch(c.location, `{"status":{"phase":"Unavailable"}}`)
	waits := &logCounter{want: "is unavailable, cannot retrieve the backup"}
	c.start(func(cfg *Config) { cfg.Logger = waits.logger() })
	c.Eventually("the restore has met its location unavailable", func() bool { return waits.count.Load() > 0 })
	if err := os.RemoveAll(filepath.Join(c.dir, "photos")); err != nil {
		t.Fatal(err)
	}
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted {
		t.Errorf("%+v", r.Status)
	}
}

// TestEndsWhileTheBackupIsRead ends a controller while it reads the backup: the Restore says that nothing was restored, whether
// the controller has time to say it or the next one does. That it reads is written with the claim.
func TestEndsWhileTheBackupIsRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.dropProgress()
	reading := make(chan struct{})
	_, stop := restorable(c, &script{collect: func(ctx context.Context, _ restore.Input) (*restore.Plan, error) {
		close(reading)
		<-ctx.Done() // the process ends here
		return nil, ctx.Err()
	}}, nil)
	r := c.created("r1")
	<-reading
	testenv.EventuallyGet(c.Env, r, "begun", func(r *velerov1.Restore, _ error) bool { return r.Status.Phase == velerov1.RestorePhaseInProgress })
	killed := c.newRestore("r2", func(killed *velerov1.Restore) {
		killed.Annotations, killed.Spec, killed.Status = maps.Clone(r.Annotations), r.Spec, r.Status
	})
	stop()
	c.Create(killed)
	c.start(func(cfg *Config) {
		cfg.Engine = &script{run: func(context.Context, *restore.Plan, func(restore.Progress)) (*restore.Outcome, error) {
			t.Error("items were restored")
			return nil, context.Canceled
		}}
	})
	for _, r := range []*velerov1.Restore{r, killed} {
		if c.ended(r); r.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(r.Status.FailureReason, errNothingRestored.Error()) {
			t.Errorf("%s: %+v", r.Name, r.Status)
		}
		if results := c.stored("restores/" + r.Name + "/restore-" + r.Name + "-results.gz"); !strings.Contains(results, "Nothing was restored") {
			t.Errorf("%s: %s", r.Name, results)
		}
	}
}

// TestStepIsWrittenBeforeTheFirstItem: from then on a Restore must not say that nothing was restored.
func TestStepIsWrittenBeforeTheFirstItem(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.dropProgress()
	engine := &script{run: func(ctx context.Context, _ *restore.Plan, _ func(restore.Progress)) (*restore.Outcome, error) {
		r := c.newRestore("r1", nil)
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(r), r); err != nil || progressOf(r).Step != v1alpha1.StepRestoring {
			t.Errorf("items are restored in step %q, error %v", progressOf(r).Step, err)
		}
		return &restore.Outcome{}, nil
	}}
	restorable(c, engine, nil)
	r := c.created("r1")
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted {
		t.Errorf("%+v", r.Status)
	}
}

// TestStopWhileTheStepIsWritten tells a controller to stop while it writes that it waits for volumes: it lets that land, and
// leaves the rest to the next one.
func TestStopWhileTheStepIsWritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	engine, writing, stopping := withVolumes(c), make(chan struct{}), make(chan (<-chan struct{}), 1)
	items := engine.run
	engine.run = func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		stopping <- ctx.Done()
		return items(ctx, plan, report)
	}
	var once sync.Once
	c.Intercept.Patch = func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		data, err := patch.Data(o)
		if err != nil {
			return err
		}
		if strings.Contains(string(data), string(v1alpha1.StepVolumes)) && strings.Contains(string(data), "resourceVersion") {
			once.Do(func() { close(writing); <-<-stopping })
		} else if strings.Contains(string(data), string(v1alpha1.StepVolumes)) {
			return apierrors.NewTooManyRequests("not now", 1)
		}
		return api.Patch(ctx, o, patch, opts...)
	}
	_, stop := restorable(c, engine, nil)
	r := c.created("r1")
	<-writing
	stop()
	c.Intercept = interceptor.Funcs{}
	c.start(nil)
	c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
	c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted {
		t.Errorf("%+v", r.Status)
	}
}
