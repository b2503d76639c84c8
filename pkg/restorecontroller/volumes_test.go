package restorecontroller

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// withVolumes is an engine whose items are two pods with a volume each.
func withVolumes(c *cluster) *script {
	return &script{run: func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		done := restore.Progress{Total: 2, Restored: 2, Counts: restore.Counts{Created: 2}}
		outcome := &restore.Outcome{Progress: done, Resources: map[string][]string{"v1/Pod": {"shop/a(created)", "shop/b(created)"}}}
		outcome.Results.Warnings.Velero = []string{"told before"}
		outcome.Unfilled = []volumeinfo.RestoredVolume{{PVCNamespace: "shop", PVCName: "cache", Outcome: volumeinfo.OutcomeEmpty, Reason: "was skipped"}}
		var r velerov1.Restore
		if err := c.Client.Get(ctx, c.key("r1"), &r); err != nil {
			return nil, err
		}
		for _, pod := range []string{"a", "b"} {
			v := velerov1.PodVolumeRestore{
				ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "r1-" + pod, Labels: map[string]string{velerov1.RestoreUIDLabel: string(r.UID)}},
				Spec:       velerov1.PodVolumeRestoreSpec{Volume: "data", Pod: corev1.ObjectReference{Namespace: "shop", Name: pod}, SnapshotSize: 100},
			}
			if err := c.Client.Create(ctx, &v); err != nil {
				return nil, err
			}
			outcome.PodVolumes = append(outcome.PodVolumes, v)
		}
		report(done)
		return outcome, nil
	}}
}

func (c *cluster) volume(pod string) *velerov1.PodVolumeRestore {
	return &velerov1.PodVolumeRestore{ObjectMeta: c.Meta("r1-" + pod)}
}

func (c *cluster) waitForItems(r *velerov1.Restore) {
	c.t.Helper()
	testenv.EventuallyGet(c.Env, r, "waiting for its volumes", func(r *velerov1.Restore, err error) bool {
		p := progressOf(r)
		return err == nil && p.Step == v1alpha1.StepVolumes && p.Volumes != nil && p.Volumes.Phases["New"] == 2
	})
}

func TestVolumesAreWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	engine := withVolumes(c)
	items := engine.run
	var input restore.Input
	engine.collect = func(_ context.Context, in restore.Input) (*restore.Plan, error) {
		input = in
		return &restore.Plan{TotalItems: 2, Estimate: true}, nil // one-phase mode: it does not know the volumes
	}
	engine.run = func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		input.ReportVolumes(200)
		report(restore.Progress{Total: 2, Restored: 2, Counts: restore.Counts{Created: 2}}) // before the cache can have the PodVolumeRestores
		return items(ctx, plan, report)
	}
	restorable(c, engine, nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.waitForItems(r)
	if p := progressOf(r); p.Items.Restored != 2 || p.Volumes.TotalBytes != 200 || p.Percent != 0 {
		t.Errorf("%+v %+v", p, p.Volumes)
	}
	c.Patch(c.volume("a"), `{"status":{"phase":"Completed","progress":{"bytesDone":120,"totalBytes":120}}}`)
	c.Patch(c.volume("b"), `{"status":{"phase":"InProgress","progress":{"bytesDone":80,"totalBytes":80}}}`)
	testenv.EventuallyGet(c.Env, r, "all bytes there", func(r *velerov1.Restore, _ error) bool {
		v := progressOf(r).Volumes
		return v.BytesDone == 200 && v.TotalBytes == 200 && v.Phases["InProgress"] == 1
	})
	if p := progressOf(r); p.Percent != 99 || r.Status.Phase != velerov1.RestorePhaseInProgress {
		t.Errorf("%d %% in phase %s while a volume is not complete", p.Percent, r.Status.Phase)
	}
	c.Patch(c.volume("b"), `{"status":{"phase":"Completed","message":"snapshot x was restored without 2 files"}}`)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || progressOf(r).Percent != 100 || r.Status.Warnings != 2 {
		t.Errorf("%+v", r.Status)
	}
	if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "volume data of pod shop/b: snapshot x was restored without 2 files") {
		t.Errorf("the results are %s", results)
	}
	c.checkVolumeInfo(volumeinfo.ResultSucceeded, volumeinfo.ResultSucceeded)
}

// checkVolumeInfo looks for the two volumes of withVolumes with their results, and for the claim without data.
func (c *cluster) checkVolumeInfo(results ...string) {
	c.t.Helper()
	volumes, err := volumeinfo.DecodeRestore(strings.NewReader(c.stored("restores/r1/r1-volumeinfo.json.gz")))
	if err != nil {
		c.t.Fatal(err)
	}
	var got []string
	empty := 0
	for _, v := range volumes {
		if v.Typed.RestoreMethod == volumeinfo.MethodPodVolumeRestore {
			got = append(got, v.Typed.Result)
		}
		if v.Typed.PVCName == "cache" && v.Typed.Outcome == volumeinfo.OutcomeEmpty && v.Typed.Reason == "was skipped" {
			empty++
		}
	}
	if diff := cmp.Diff(results, got); diff != "" || empty != 1 {
		c.t.Errorf("%d claims without data, results (-want +got):\n%s", empty, diff)
	}
}

func TestVolumesThatDoNotCome(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restorable(c, withVolumes(c), nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.waitForItems(r)
	c.Patch(c.volume("a"), `{"status":{"phase":"Failed","message":"no space"}}`)
	c.Delete(c.volume("b"))
	if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 2 {
		t.Errorf("%+v", r.Status)
	}
	results := c.stored("restores/r1/restore-r1-results.gz")
	for _, want := range []string{"pod volume restore failed: volume data of pod shop/a: no space", "pod volume restore was deleted: volume data of pod shop/b"} {
		if !strings.Contains(results, want) {
			t.Errorf("%s: lacks %q", results, want)
		}
	}
}

func TestVolumesHaveATimeout(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restorable(c, withVolumes(c), nil)
	r := c.newRestore("r1", func(r *velerov1.Restore) {
		r.Annotations = map[string]string{velerov1.PodVolumeOperationTimeoutAnnotation: "1ms"}
	})
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 1 {
		t.Errorf("%+v", r.Status)
	}
	if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, errVolumesTimeout.Error()) {
		t.Error(results)
	}
}

// TestNextControllerGoesOnWithVolumes stops a controller that waits for volumes. The next one waits on, and ends the Restore
// with what the first one had recorded.
func TestNextControllerGoesOnWithVolumes(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t)
	_, stop := restorable(c, withVolumes(c), nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.waitForItems(r)
	stop()
	c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
	var finalized atomic.Int32
	c.start(func(cfg *Config) {
		cfg.Engine = &script{
			run: func(context.Context, *restore.Plan, func(restore.Progress)) (*restore.Outcome, error) {
				t.Error("items were restored again")
				return nil, context.Canceled
			},
			finalize: func(_ context.Context, _ *restore.Plan, o *restore.Outcome) error {
				if len(o.PodVolumes) == 2 && len(o.Resources["v1/Pod"]) == 2 {
					finalized.Add(1)
				}
				return nil
			},
		}
	})
	testenv.EventuallyGet(c.Env, r, "seen by the second one", func(r *velerov1.Restore, _ error) bool { return progressOf(r).Volumes.Phases["Completed"] == 1 })
	c.Patch(c.volume("b"), `{"status":{"phase":"Canceled"}}`)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 1 || r.Status.Warnings != 1 || r.Status.Progress.ItemsRestored != 2 {
		t.Errorf("%+v", r.Status)
	}
	if finalized.Load() != 1 {
		t.Error("was not finalized with what the first one had recorded")
	}
	c.checkVolumeInfo(volumeinfo.ResultSucceeded, volumeinfo.ResultFailed)
	log := c.stored("restores/r1/restore-r1-logs.gz")
	if !strings.Contains(log, "step="+string(v1alpha1.StepRestoring)) || !strings.Contains(log, "Another restore controller goes on") {
		t.Errorf("log is not that of both: %s", log)
	}
}

// TestNextControllerKnowsModifiers: the next controller finalizes with the resource modifiers, by which it knows claims that they have
// renamed, and without them if they are gone.
func TestNextControllerKnowsModifiers(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]bool{"there": false, "deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			_, stop := restorable(c, withVolumes(c), nil)
			modifiers := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "modifiers"}, Data: map[string]string{
				"rules.yaml": "version: v1\nresourceModifierRules: [{conditions: {groupResource: persistentvolumeclaims}, patches: [{operation: replace, path: /metadata/name, value: copy}]}]",
			}}
			c.Create(modifiers)
			r := c.newRestore("r1", func(r *velerov1.Restore) {
				r.Spec.ResourceModifier = &corev1.TypedLocalObjectReference{Kind: "ConfigMap", Name: "modifiers"}
			})
			c.Create(r)
			c.waitForItems(r)
			stop()
			if deleted {
				c.Delete(modifiers)
			}
			var known atomic.Pointer[bool]
			c.start(func(cfg *Config) {
				cfg.Engine = &script{collect: func(_ context.Context, in restore.Input) (*restore.Plan, error) {
					known.Store(new(in.Modifiers != nil))
					return &restore.Plan{}, nil
				}}
			})
			c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
			c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
			if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted {
				t.Errorf("%+v", r.Status)
			}
			if knows := known.Load(); knows == nil || *knows == deleted {
				t.Errorf("the engine was given resource modifiers: %v", knows)
			}
		})
	}
}

// withHooks is an engine that says before and after the finalizing what became of hooks.
func withHooks(e *script, before, after restore.Hooks) *script {
	var input atomic.Pointer[restore.Input]
	e.collect = func(_ context.Context, in restore.Input) (*restore.Plan, error) {
		input.Store(&in)
		return &restore.Plan{TotalItems: 2}, nil
	}
	run := func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		return (&scriptedRun{e, plan}).RestoreItems(ctx, report)
	}
	script := &script{collect: e.collect}
	script.run = func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		input.Load().ReportHooks(before)
		return run(ctx, plan, report)
	}
	script.finalize = func(context.Context, *restore.Plan, *restore.Outcome) error {
		input.Load().ReportHooks(after)
		return nil
	}
	return script
}

// TestHooksAreCounted has the Restore say what became of its hooks, as Velero's does.
func TestHooksAreCounted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restorable(c, withHooks(&script{}, restore.Hooks{Attempted: 3, Ended: 1}, restore.Hooks{Attempted: 3, Ended: 3, Failed: 1}), nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.ended(r)
	if diff := cmp.Diff(&velerov1.HookStatus{HooksAttempted: 3, HooksFailed: 1}, r.Status.HookStatus); diff != "" {
		t.Error(diff)
	}
	if hooks := progressOf(r).Hooks; hooks == nil || hooks.Ended != 3 {
		t.Errorf("hooks in the annotation: %+v", hooks)
	}
}

// TestNextControllerMissesHooks takes over a restore whose hooks ended with the first controller: nobody knows that they ran.
func TestNextControllerMissesHooks(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t)
	volumes := withVolumes(c)
	_, stop := restorable(c, withHooks(&script{run: volumes.run}, restore.Hooks{Attempted: 3, Ended: 1}, restore.Hooks{}), nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.waitForItems(r)
	stop()
	c.start(nil)
	c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
	c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.HookStatus == nil || r.Status.HookStatus.HooksFailed != 2 {
		t.Errorf("%+v %+v", r.Status, r.Status.HookStatus)
	}
	if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "2 of 3 restore hooks had") {
		t.Error(results)
	}
}

// TestWaitContainerIsConfigured reads Velero's ConfigMap, and refuses two of them.
func TestWaitContainerIsConfigured(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var got atomic.Pointer[map[string]string]
	restorable(c, &script{collect: func(_ context.Context, in restore.Input) (*restore.Plan, error) {
		got.Store(&in.WaitContainer)
		return &restore.Plan{}, nil
	}}, nil)
	config := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Labels: map[string]string{
				"velero.io/plugin-config": "", "velero.io/pod-volume-restore": "RestoreItemAction",
			}},
			Data: map[string]string{"image": "registry.test/helper:1"},
		}
	}
	c.Create(config("one"))
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.ended(r)
	if data := got.Load(); data == nil || (*data)["image"] != "registry.test/helper:1" {
		t.Errorf("the engine was given %v", data)
	}
	c.Create(config("two"))
	r = c.newRestore("r2", nil)
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(r.Status.FailureReason, "ConfigMaps one and two both configure") {
		t.Errorf("%+v", r.Status)
	}
}

// withErrors is withVolumes, with errors of the items and a claim that was created.
func withErrors(c *cluster) *script {
	engine := withVolumes(c)
	items := engine.run
	engine.run = func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		outcome, err := items(ctx, plan, report)
		if err == nil {
			outcome.Resources["v1/PersistentVolumeClaim"] = []string{"shop/data(created)"}
			outcome.Results.Errors.Cluster = []string{"a CRD was not established"}
			outcome.Results.Errors.Add("shop", errors.New("a PodVolumeRestore could not be made"))
		}
		return outcome, err
	}
	return engine
}

// TestNextControllerKnowsErrors ends a controller whose location does not take what it has to record, for one reason or
// another: the next one knows the errors and the claims that were created.
func TestNextControllerKnowsErrors(t *testing.T) {
	t.Parallel()
	for name, readOnly := range map[string]bool{"read-only": true, "away for a moment": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			engine, obstacle := withErrors(c), filepath.Join(c.dir, "restores")
			if readOnly {
				c.Patch(c.location, `{"spec":{"accessMode":"ReadOnly"}}`)
			} else {
				items := engine.run
				engine.run = func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
					outcome, err := items(ctx, plan, report)
					return outcome, errors.Join(err, os.WriteFile(obstacle, nil, 0o600)) // a file where a directory would be
				}
			}
			_, stop := restorable(c, engine, nil)
			r := c.created("r1")
			c.waitForItems(r)
			stop()
			if !readOnly {
				if err := os.Remove(obstacle); err != nil {
					t.Fatal(err)
				}
			}
			claims := make(chan []string, 1)
			c.start(func(cfg *Config) {
				cfg.Engine = &script{finalize: func(_ context.Context, _ *restore.Plan, o *restore.Outcome) error {
					claims <- o.Resources["v1/PersistentVolumeClaim"]
					return nil
				}}
			})
			c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
			c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
			if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 2 || r.Status.Warnings != 1 {
				t.Errorf("%+v", r.Status)
			}
			if diff := cmp.Diff([]string{"shop/data(created)"}, <-claims); diff != "" {
				t.Errorf("created claims (-want +got):\n%s", diff)
			}
			if readOnly {
				return
			}
			if log := c.stored("restores/r1/restore-r1-logs.gz"); strings.Count(log, "step="+string(v1alpha1.StepRestoring)) != 1 {
				t.Errorf("the first one's log is not there once: %s", log)
			}
			if kept := c.keptFiles(r); len(kept) > 0 {
				t.Errorf("what is stored is still kept: %v", slices.Collect(maps.Keys(kept)))
			}
		})
	}
}

// TestNextControllerMissesErrors has an API server that refuses ConfigMaps, and a location that refuses files: that something is lost
// is an error.
func TestNextControllerMissesErrors(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t)
	c.Patch(c.location, `{"spec":{"accessMode":"ReadOnly"}}`)
	c.Intercept.Create = func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if _, ok := o.(*corev1.ConfigMap); ok {
			return apierrors.NewForbidden(corev1.Resource("configmaps"), o.GetName(), errors.New("exceeded quota"))
		}
		return api.Create(ctx, o, opts...)
	}
	_, stop := restorable(c, withErrors(c), nil)
	r := c.created("r1")
	c.waitForItems(r)
	stop()
	c.Intercept = interceptor.Funcs{}
	c.start(nil)
	c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
	c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 2 {
		t.Errorf("%+v", r.Status)
	}
	results := c.keptFiles(r)[string(velerov1.DownloadTargetKindRestoreResults)]
	if len(results) != 1 {
		t.Fatalf("%d ConfigMaps with results", len(results))
	}
	text := unpack(t, results[0].BinaryData[clusterFileKey])
	for _, lost := range []string{"2 errors and 1 warning", "the list of created objects"} {
		if !strings.Contains(text, lost) {
			t.Errorf("the results do not say that %s are lost: %s", lost, text)
		}
	}
}

// TestNextControllerMissesAVolume deletes a PodVolumeRestore while no controller runs: its data is not there.
func TestNextControllerMissesAVolume(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, stop := restorable(c, withVolumes(c), nil)
	r := c.created("r1")
	c.waitForItems(r)
	stop()
	c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
	c.Delete(c.volume("b"))
	c.start(nil)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 1 {
		t.Errorf("%+v", r.Status)
	}
	if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "pod volume restore was deleted: volume data of pod shop/b") {
		t.Error(results)
	}
}

// TestNextControllerMissesAVolumeAndTheList has lost the list of the Restore's volumes, too: what is known of its progress tells that one is missing.
func TestNextControllerMissesAVolumeAndTheList(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, test := range map[string]struct {
		deleted bool
		want    velerov1.RestorePhase
	}{
		"a volume is gone":  {true, velerov1.RestorePhasePartiallyFailed},
		"both are restored": {false, velerov1.RestorePhaseCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			_, stop := restorable(c, withVolumes(c), nil)
			r := c.created("r1")
			c.waitForItems(r)
			stop()
			c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
			if test.deleted {
				c.Delete(c.volume("b"))
			} else {
				c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
			}
			if err := os.WriteFile(filepath.Join(c.dir, "restores/r1/r1-volumeinfo.json.gz"), []byte("damaged"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.start(nil)
			if c.ended(r); r.Status.Phase != test.want {
				t.Errorf("%+v", r.Status)
			}
			if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "the list of volumes") {
				t.Error(results)
			}
		})
	}
}

// TestNextControllerWaitsForTheStore cannot read for a while what the first controller has recorded.
func TestNextControllerWaitsForTheStore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, stop := restorable(c, withVolumes(c), nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.waitForItems(r)
	stop()
	c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
	c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)

	results := filepath.Join(c.dir, "restores/r1/restore-r1-results.gz")
	away := results + ".away"
	if err := errors.Join(os.Rename(results, away), os.Mkdir(results, 0o700)); err != nil { // a directory cannot be read
		t.Fatal(err)
	}
	trying := logCounter{want: "retrying before the restore is resumed"}
	c.start(func(cfg *Config) {
		cfg.Engine, cfg.Logger = &script{}, trying.logger()
		cfg.PodVolumeTimeout = time.Nanosecond // the time for volumes is over
	})
	testenv.EventuallyGet(c.Env, r, "saying what it waits for", func(r *velerov1.Restore, _ error) bool {
		return trying.count.Load() > 0 && strings.Contains(progressOf(r).Message, "waits for the backup storage location") || hasEnded(r)
	})
	if err := errors.Join(os.Remove(results), os.Rename(away, results)); err != nil {
		t.Fatal(err)
	}
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.Warnings != 1 {
		t.Errorf("%+v", r.Status)
	}
	if log := c.stored("restores/r1/restore-r1-logs.gz"); strings.Count(log, "step="+string(v1alpha1.StepRestoring)) != 1 {
		t.Errorf("the first one's log is not there once: %s", log)
	}
}

// TestNextControllerDoesNotTakeDamageForSuccess has results and a log that nobody can read, and does not try for ever.
func TestNextControllerDoesNotTakeDamageForSuccess(t *testing.T) {
	t.Parallel()
	var cut bytes.Buffer
	packer := gzip.NewWriter(&cut)
	if _, err := packer.Write([]byte(`{"errors": {}, "warn`)); err != nil {
		t.Fatal(err)
	}
	if err := packer.Flush(); err != nil { // and no end
		t.Fatal(err)
	}
	for name, damage := range map[string][]byte{"not packed": []byte("not packed at all"), "cut off": cut.Bytes(), "empty": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			_, stop := restorable(c, withVolumes(c), nil)
			r := c.newRestore("r1", nil)
			c.Create(r)
			c.waitForItems(r)
			stop()
			c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
			c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
			for _, file := range []string{"restore-r1-results.gz", "restore-r1-logs.gz"} {
				if err := os.WriteFile(filepath.Join(c.dir, "restores/r1", file), damage, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c.start(func(cfg *Config) { cfg.Engine = &script{} })
			if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.Warnings != 1 {
				t.Errorf("%+v", r.Status)
			}
			if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "what it had to say is lost") {
				t.Error(results)
			}
			if log := c.stored("restores/r1/restore-r1-logs.gz"); !strings.Contains(log, "Cannot read back what the one before has logged") {
				t.Error(log)
			}
		})
	}
}

// TestNextControllerDoesNotWaitForEver has Restores that wait for volumes, and whose backup is gone: one may wait on, without
// holding others up, the other one's time is over.
func TestNextControllerDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	waiting := func(name string, since time.Duration) *velerov1.Restore {
		return c.newRestore(name, func(r *velerov1.Restore) {
			r.Spec.BackupName = "gone"
			r.Annotations = map[string]string{v1alpha1.AnnotationProgress: encode(Progress{Step: v1alpha1.StepVolumes}), v1alpha1.AnnotationStorageLocation: "default"}
			started := metav1.NewTime(time.Now().Add(-since))
			r.Status = velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress, StartTimestamp: &started}
		})
	}
	young, old, other := waiting("young", time.Minute), waiting("old", 5*time.Hour), c.newRestore("other", nil)
	c.Create(young)
	c.Create(old)
	restorable(c, &script{}, nil)
	c.Create(other)
	if c.ended(old); old.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(old.Status.FailureReason, "gone") {
		t.Errorf("%+v", old.Status)
	}
	if c.ended(other); other.Status.Phase != velerov1.RestorePhaseCompleted {
		t.Errorf("%+v", other.Status)
	}
	testenv.EventuallyGet(c.Env, young, "still waiting", func(r *velerov1.Restore, _ error) bool { return r.Status.Phase == velerov1.RestorePhaseInProgress })
}

// TestInterruptedRestoreFails has what a process leaves that was killed while it restored items.
func TestInterruptedRestoreFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("b1", nil)
	started := metav1.Now()
	r := c.newRestore("r1", func(r *velerov1.Restore) {
		r.Spec.ScheduleName = "nightly"
		r.Annotations = map[string]string{
			v1alpha1.AnnotationStorageLocation: "default",
			v1alpha1.AnnotationProgress:        encode(Progress{Step: v1alpha1.StepRestoring, Percent: 30, Items: restore.Progress{Total: 10, Restored: 3, Counts: restore.Counts{Created: 3}}}),
		}
		r.Status = velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress, StartTimestamp: &started}
	})
	c.start(nil)
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
	c.Create(r)
	c.ended(r)
	if r.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(r.Status.FailureReason, errInterrupted.Error()) || r.Status.CompletionTimestamp == nil {
		t.Errorf("%+v", r.Status)
	}
	if p := progressOf(r); p.Items.Restored != 3 || p.Percent != 30 || r.Status.Progress.ItemsRestored != 3 {
		t.Errorf("what was done is not told: %+v", p)
	}
	if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "ended while it restored items") {
		t.Error(results)
	}
}

// TestStoppedWhileItRestores stops a controller in the middle of the items: it records what was done.
func TestStoppedWhileItRestores(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, stop := restorable(c, &script{run: func(ctx context.Context, _ *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		p := restore.Progress{Total: 2, Restored: 1, Counts: restore.Counts{Created: 1}}
		report(p)
		<-ctx.Done()
		return &restore.Outcome{Progress: p, Resources: map[string][]string{"v1/ConfigMap": {"shop/settings(created)"}}}, ctx.Err()
	}}, nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	testenv.EventuallyGet(c.Env, r, "under way", func(r *velerov1.Restore, _ error) bool { return progressOf(r).Items.Restored == 1 })
	stop()
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(r.Status.FailureReason, errStopped.Error()) {
		t.Errorf("%+v", r.Status)
	}
	if list := c.stored("restores/r1/restore-r1-resource-list.json.gz"); !strings.Contains(list, "shop/settings(created)") {
		t.Errorf("resource list %s", list)
	}
}

// TestStoppedRestoreListsItsVolumes stops a controller in the middle of the items: the list has the volumes that node agents were
// asked for, and the claims that got no data.
func TestStoppedRestoreListsItsVolumes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	engine := withVolumes(c)
	items := engine.run
	engine.run = func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		outcome, err := items(ctx, plan, report)
		<-ctx.Done()
		return outcome, errors.Join(err, ctx.Err())
	}
	_, stop := restorable(c, engine, nil)
	r := c.created("r1")
	testenv.EventuallyGet(c.Env, r, "under way", func(r *velerov1.Restore, _ error) bool { return progressOf(r).Items.Restored == 2 })
	stop()
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseFailed {
		t.Errorf("%+v", r.Status)
	}
	c.lists(r, `"podName":"a"`, `"podName":"b"`, string(volumeinfo.OutcomeEmpty))
}

// TestKilledRestoreListsItsVolumes has what a process leaves that was killed while it restored items: the next one lists the
// volumes that node agents were asked for, as they are.
func TestKilledRestoreListsItsVolumes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, stop := restorable(c, &script{}, nil)
	stop()
	r := c.newRestore("r1", func(r *velerov1.Restore) {
		r.Annotations = map[string]string{v1alpha1.AnnotationStorageLocation: "default", v1alpha1.AnnotationProgress: encode(Progress{Step: v1alpha1.StepRestoring})}
		r.Status = velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress, StartTimestamp: new(metav1.Now())}
	})
	c.Create(r)
	v := c.volume("a")
	v.Labels = map[string]string{velerov1.RestoreUIDLabel: string(r.UID)}
	v.Spec = velerov1.PodVolumeRestoreSpec{Volume: "data", Pod: corev1.ObjectReference{Namespace: "shop", Name: "a"}}
	v.Status.Phase = velerov1.PodVolumeRestorePhaseCompleted
	c.Create(v)
	c.start(nil)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseFailed {
		t.Errorf("%+v", r.Status)
	}
	c.lists(r, `"podName":"a"`, `"result":"succeeded"`)
}

// lists says what is not in the stored list of a restore's volumes.
func (c *cluster) lists(r *velerov1.Restore, want ...string) {
	c.t.Helper()
	list := c.stored("restores/" + r.Name + "/" + r.Name + "-volumeinfo.json.gz")
	for _, want := range want {
		if !strings.Contains(list, want) {
			c.t.Errorf("%s is not in the list of volumes: %s", want, list)
		}
	}
}

// TestForeignRestoreIsLeftAlone has a Restore that a Velero server has begun: it ends, and what the store has of it stays,
// even when it is deleted.
func TestForeignRestoreIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("b1", nil)
	const file = "restores/r1/restore-r1-results.gz"
	c.put(file, pack("Velero's"))
	started := metav1.Now()
	r := c.newRestore("r1", func(r *velerov1.Restore) {
		r.Finalizers = []string{finalizer}
		r.Status = velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress, StartTimestamp: &started}
	})
	c.start(nil)
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(r.Status.FailureReason, "begun by a Velero server") {
		t.Errorf("%+v", r.Status)
	}
	c.Delete(r)
	testenv.EventuallyGet(c.Env, r, "gone", func(_ *velerov1.Restore, err error) bool { return apierrors.IsNotFound(err) })
	if content := c.stored(file); content != "Velero's" {
		t.Errorf("the store has %q", content)
	}
}
