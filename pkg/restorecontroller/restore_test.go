package restorecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/util/results"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func (c *cluster) newRestore(name string, change func(*velerov1.Restore)) *velerov1.Restore {
	r := &velerov1.Restore{
		ObjectMeta: c.Meta(name),
		Spec:       velerov1.RestoreSpec{BackupName: "b1", IncludedNamespaces: []string{"*"}},
	}
	if change != nil {
		change(r)
	}
	return r
}

// restorable has a synced backup in an available location, and a controller with the engine.
func restorable(c *cluster, e engine, tune func(*Config)) (*Controller, func()) {
	c.t.Helper()
	c.backUp("b1", nil)
	controller, stop := c.start(func(cfg *Config) {
		cfg.Engine = e
		if tune != nil {
			tune(cfg)
		}
	})
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
	return controller, stop
}

// ended waits for the end of a Restore.
func (c *cluster) ended(r *velerov1.Restore) *velerov1.Restore {
	c.t.Helper()
	return testenv.EventuallyGet(c.Env, r, "ended", func(r *velerov1.Restore, err error) bool {
		return err == nil && hasEnded(r)
	})
}

// TestRestore restores with the real engine, and deletes the Restore.
func TestRestore(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(*testing.T) *cluster{"directory": newCluster, "S3": newClusterOnS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := place(t)
			engine, err := restore.New(restore.Config{REST: c.Config, HelperImage: "agent"})
			if err != nil {
				t.Fatal(err)
			}
			restorable(c, engine, nil)
			target := c.Namespace + "-shop"
			r := c.newRestore("r1", func(r *velerov1.Restore) { r.Spec.NamespaceMapping = map[string]string{"shop": target} })
			c.Create(r)
			c.ended(r)
			if r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.StartTimestamp == nil || r.Status.CompletionTimestamp == nil {
				t.Fatalf("%+v", r.Status)
			}
			settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: "settings"}}
			testenv.EventuallyGet(c.Env, settings, "restored", func(o *corev1.ConfigMap, err error) bool { return err == nil && o.Data["a"] == "b" })
			if p := r.Status.Progress; p == nil || p.TotalItems == 0 || p.TotalItems != p.ItemsRestored {
				t.Errorf("status.progress %+v", p)
			}
			if p := progressOf(r); p.Step != v1alpha1.StepDone || p.Percent != 100 || p.Items.Counts.Created == 0 {
				t.Errorf("progress %+v", p)
			}
			if got := c.stored("restores/r1/restore-r1-itemoperations.json.gz"); got != "[]\n" {
				t.Errorf("item operations %q", got)
			}
			if got := c.stored("restores/r1/restore-r1-results.gz"); got != `{"warnings":{},"errors":{}}`+"\n" {
				t.Errorf("results %q", got)
			}
			var list map[string][]string
			if err := json.Unmarshal([]byte(c.stored("restores/r1/restore-r1-resource-list.json.gz")), &list); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{target + "/settings(created)"}, list["v1/ConfigMap"]); diff != "" {
				t.Errorf("resource list (-want +got):\n%s", diff)
			}
			log := c.stored("restores/r1/restore-r1-logs.gz")
			for line := range strings.Lines(log) {
				if !regexp.MustCompile(`^time="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ" level=(debug|info|warning|error) msg=.*restore=`).MatchString(line) {
					t.Errorf("log line %q", line)
				}
			}
			if !strings.Contains(log, "settings") {
				t.Errorf("log has no item: %s", log)
			}
			c.Delete(r)
			testenv.EventuallyGet(c.Env, r, "gone", func(_ *velerov1.Restore, err error) bool { return apierrors.IsNotFound(err) })
			if c.has("restores/r1/restore-r1-logs.gz") {
				t.Error("its files are still there")
			}
		})
	}
}

func TestHowRestoresEnd(t *testing.T) {
	t.Parallel()
	said := backupstore.Results{Errors: results.Result{Velero: []string{"v"}, Cluster: []string{"c"}, Namespaces: map[string][]string{"shop": {"n"}}}}
	warned := backupstore.Results{Warnings: results.Result{Namespaces: map[string][]string{"shop": {"w1", "w2"}}}}
	tests := map[string]struct {
		results  backupstore.Results
		run      error
		finalize error
		want     velerov1.RestoreStatus
		phases   string
	}{
		"well":     {want: velerov1.RestoreStatus{Phase: "Completed"}, phases: "InProgress Finalizing Completed"},
		"warnings": {results: warned, want: velerov1.RestoreStatus{Phase: "Completed", Warnings: 2}, phases: "InProgress Finalizing Completed"},
		"errors":   {results: said, want: velerov1.RestoreStatus{Phase: "PartiallyFailed", Errors: 3}, phases: "InProgress FinalizingPartiallyFailed PartiallyFailed"},
		"not at all": {
			run: errors.New("no API server"), phases: "InProgress Failed",
			want: velerov1.RestoreStatus{Phase: "Failed", Errors: 1, FailureReason: "restore execution failed: restore items: no API server"},
		},
		"not in the end": {
			finalize: errors.New("lost"), phases: "InProgress Finalizing Failed",
			want: velerov1.RestoreStatus{Phase: "Failed", Errors: 1, FailureReason: "restore execution failed: finalize: lost"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			items := restore.Progress{Total: 3, Restored: 2, Counts: restore.Counts{Created: 1, Failed: 1}}
			restorable(c, &script{
				run: func(_ context.Context, _ *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
					report(items)
					return &restore.Outcome{Progress: items, Results: tc.results}, tc.run
				},
				finalize: func(context.Context, *restore.Plan, *restore.Outcome) error { return tc.finalize },
			}, nil)
			phases := c.phases()
			r := c.newRestore("r1", nil)
			c.Create(r)
			c.ended(r)
			got := velerov1.RestoreStatus{Phase: r.Status.Phase, Errors: r.Status.Errors, Warnings: r.Status.Warnings, FailureReason: r.Status.FailureReason}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(&velerov1.RestoreProgress{TotalItems: 3, ItemsRestored: 2}, r.Status.Progress); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
			if p := progressOf(r); (p.Percent == 100) != (tc.want.Phase == velerov1.RestorePhaseCompleted) {
				t.Errorf("%d %%", p.Percent)
			}
			if got := phases(); got != tc.phases {
				t.Errorf("phases %q, want %q", got, tc.phases)
			}
			var recorded backupstore.Results
			if err := json.Unmarshal([]byte(c.stored("restores/r1/restore-r1-results.gz")), &recorded); err != nil {
				t.Fatal(err)
			}
			if countOf(recorded.Errors) != tc.want.Errors || countOf(recorded.Warnings) != tc.want.Warnings {
				t.Errorf("recorded %+v", recorded)
			}
		})
	}
}

// phases watches Restores. What it returns gives the phases that were seen, each once, when the last one is there.
func (c *cluster) phases() func() string {
	c.t.Helper()
	w, err := c.Client.Watch(c.t.Context(), &velerov1.RestoreList{}, client.InNamespace(c.Namespace))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(w.Stop)
	return func() string {
		var seen []string
		for e := range w.ResultChan() {
			r, ok := e.Object.(*velerov1.Restore)
			if !ok {
				c.t.Fatal(e)
			}
			if phase := string(r.Status.Phase); phase != "" && (len(seen) == 0 || seen[len(seen)-1] != phase) {
				seen = append(seen, phase)
			}
			if r.Status.CompletionTimestamp != nil || r.Status.Phase == velerov1.RestorePhaseFailedValidation {
				break
			}
		}
		return strings.Join(seen, " ")
	}
}

func TestWhatIsNotValidIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("failed", func(b *velerov1.Backup) { b.Status.Phase = velerov1.BackupPhaseFailed })
	restorable(c, &script{}, nil)
	testenv.EventuallyGet(c.Env, c.newBackup("failed"), "synced", isSynced)
	lost := c.newBackup("lost")
	lost.Spec.StorageLocation, lost.Status.Phase = "nowhere", velerov1.BackupPhaseCompleted
	c.Create(lost)
	c.Create(&corev1.ConfigMap{ObjectMeta: c.Meta("two"), Data: map[string]string{"a": "", "b": ""}})
	c.put("restores/taken/restore-taken-logs.gz", pack("another cluster's"))
	tests := map[string]struct {
		change func(*velerov1.Restore)
		want   []string // parts, one for each message
	}{
		"no-backup":   {func(r *velerov1.Restore) { r.Spec.BackupName = "" }, []string{"Either a backup or schedule must be specified as a source for the restore, but not both"}},
		"both":        {func(r *velerov1.Restore) { r.Spec.ScheduleName = "nightly" }, []string{"Either a backup or schedule must be specified"}},
		"unknown":     {func(r *velerov1.Restore) { r.Spec.BackupName = "nope" }, []string{"Error retrieving backup: can't find backup " + c.Namespace + "/nope"}},
		"incomplete":  {func(r *velerov1.Restore) { r.Spec.BackupName = "failed" }, []string{"phase Failed"}},
		"no-location": {func(r *velerov1.Restore) { r.Spec.BackupName = "lost" }, []string{`"nowhere"`}},
		"no-schedule": {func(r *velerov1.Restore) { r.Spec.BackupName, r.Spec.ScheduleName = "", "weekly" }, []string{"No backups found for schedule"}},
		"nodes":       {func(r *velerov1.Restore) { r.Spec.IncludedResources = []string{"nodes"} }, []string{"nodes are non-restorable resources"}},
		"star": {func(r *velerov1.Restore) {
			r.Spec.IncludedResources, r.Spec.ExcludedNamespaces, r.Spec.IncludedNamespaces = []string{"*", "pods"}, []string{"*", "shop"}, []string{"shop"}
		}, []string{
			"Invalid included/excluded resource lists: includes list must either contain '*' only, or a non-empty list of items",
			"Invalid included/excluded namespace lists: excludes list cannot contain '*'",
			"Invalid included/excluded namespace lists: excludes list cannot contain an item in the includes list: shop",
		}},
		"own-namespace": {func(r *velerov1.Restore) {
			r.Spec.IncludedNamespaces = []string{"shop", r.Namespace}
			r.Spec.NamespaceMapping = map[string]string{"shop": r.Namespace, "b": "c"}
		}, []string{
			"Invalid included namespace " + c.Namespace + ": nothing is restored into the restore controller's own namespace",
			"Invalid namespace mapping shop:" + c.Namespace + ": nothing is restored into the restore controller's own namespace",
		}},
		"selectors": {func(r *velerov1.Restore) {
			r.Spec.LabelSelector, r.Spec.OrLabelSelectors = &metav1.LabelSelector{}, []*metav1.LabelSelector{{}}
		}, []string{"encountered labelSelector as well as orLabelSelectors in restore spec, only one can be specified"}},
		"policy": {func(r *velerov1.Restore) { r.Spec.ExistingResourcePolicy = "recreate" }, []string{"Invalid ExistingResourcePolicy: recreate"}},
		"resource-policy": {func(r *velerov1.Restore) {
			r.Spec.ResourcePolicy = &corev1.TypedLocalObjectReference{Kind: "ConfigMap", Name: "p"}
		}, []string{"spec.resourcePolicy is not supported"}},
		"no-modifiers": {func(r *velerov1.Restore) {
			r.Spec.ResourceModifier = &corev1.TypedLocalObjectReference{Kind: "ConfigMap", Name: "nope"}
		}, []string{"failed to get resource modifiers configmap " + c.Namespace + "/nope"}},
		"modifiers": {func(r *velerov1.Restore) {
			r.Spec.ResourceModifier = &corev1.TypedLocalObjectReference{Kind: "configmap", Name: "two"}
		}, []string{"Error in parsing resource modifiers provided in configmap " + c.Namespace + "/two"}},
		"timeout": {func(r *velerov1.Restore) {
			r.Annotations = map[string]string{velerov1.PodVolumeOperationTimeoutAnnotation: "soon"}
		}, []string{"velero.io/pod-volume-timeout"}},
		"taken": {func(*velerov1.Restore) {}, []string{"files of another restore of this name"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := c.newRestore(name, tc.change)
			c.Create(r)
			c.ended(r)
			if r.Status.Phase != velerov1.RestorePhaseFailedValidation || len(r.Status.ValidationErrors) != len(tc.want) {
				t.Fatalf("%+v", r.Status)
			}
			for i, want := range tc.want {
				if !strings.Contains(r.Status.ValidationErrors[i], want) {
					t.Errorf("got %q, want %q", r.Status.ValidationErrors[i], want)
				}
			}
			c.Delete(r)
			testenv.EventuallyGet(c.Env, r, "gone", func(_ *velerov1.Restore, err error) bool { return apierrors.IsNotFound(err) })
		})
	}
	if !c.has("restores/taken/restore-taken-logs.gz") {
		t.Error("the files of another cluster's restore were deleted")
	}
}

func TestScheduleStandsForItsNewestBackup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	at := func(hours int) *metav1.Time {
		return new(metav1.NewTime(time.Now().Add(time.Duration(hours) * time.Hour)))
	}
	c.backUp("newest-but-partial", func(b *velerov1.Backup) {
		b.Status.Phase, b.Status.StartTimestamp = velerov1.BackupPhasePartiallyFailed, at(-1)
	})
	c.backUp("newer", func(b *velerov1.Backup) { b.Status.StartTimestamp = at(-2) })
	restorable(c, &script{}, nil)
	testenv.EventuallyGet(c.Env, c.newBackup("newer"), "synced", isSynced)
	r := c.newRestore("r1", func(r *velerov1.Restore) { r.Spec.BackupName, r.Spec.ScheduleName = "", "nightly" })
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || r.Spec.BackupName != "newer" {
		t.Errorf("phase %s, backup %s", r.Status.Phase, r.Spec.BackupName)
	}
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	engine, err := restore.New(restore.Config{REST: c.Config})
	if err != nil {
		t.Fatal(err)
	}
	restorable(c, engine, nil)
	r := c.newRestore("r1", func(r *velerov1.Restore) {
		r.Annotations = map[string]string{v1alpha1.AnnotationDryRun: "true", v1alpha1.AnnotationProgressMode: v1alpha1.ProgressModeOnePhase}
		r.Spec.NamespaceMapping = map[string]string{"shop": c.Namespace + "-dry"}
	})
	c.Create(r)
	c.ended(r)
	if r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.Progress != nil {
		t.Errorf("%+v", r.Status)
	}
	if p := progressOf(r); !p.DryRun || !strings.Contains(p.Message, "nothing was restored; 2 items would be") {
		t.Errorf("%+v", p)
	}
	if log := c.stored("restores/r1/restore-r1-logs.gz"); !strings.Contains(log, "settings") {
		t.Errorf("the plan is not in the log: %s", log)
	}
	if c.has("restores/r1/restore-r1-resource-list.json.gz") {
		t.Error("a list of restored resources was stored")
	}
	err = c.Client.Get(t.Context(), client.ObjectKey{Name: c.Namespace + "-dry"}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("something was restored: %v", err)
	}
}

// TestDryRunOfADamagedBackup: what cannot be read is an error, and nothing that filters have left out.
func TestDryRunOfADamagedBackup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	engine, err := restore.New(restore.Config{REST: c.Config})
	if err != nil {
		t.Fatal(err)
	}
	restorable(c, engine, nil)
	c.put("backups/b1/b1.tar.gz", archive(map[string]string{
		"metadata/version": "1.1.0\n",
		"resources/configmaps/namespaces/shop/settings.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","namespace":"shop"}}`,
		"resources/configmaps/namespaces/shop/damaged.json":  `{"apiVersion":"v1","kin`,
	}))
	r := c.newRestore("r1", func(r *velerov1.Restore) {
		r.Annotations = map[string]string{v1alpha1.AnnotationDryRun: "true"}
		r.Spec.NamespaceMapping = map[string]string{"shop": c.Namespace + "-dry"}
	})
	c.Create(r)
	c.ended(r)
	if r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 1 {
		t.Errorf("%+v", r.Status)
	}
	if p := progressOf(r); p.Errors != 1 || !strings.Contains(p.Message, "2 items would be, 0 would be left out. The log lists them. 1 item of the backup cannot be read.") {
		t.Errorf("%+v", p)
	}
	if stored := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(stored, "damaged.json") {
		t.Errorf("the results do not name it: %s", stored)
	}
}

// TestEmptyListOfVolumes: a truncated list of pod volumes does not say that the backup has none. The cluster does not have its records either.
func TestEmptyListOfVolumes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restorable(c, &script{}, nil)
	c.put("backups/b1/b1-podvolumebackups.json.gz", nil)
	c.Delete(c.newVolumeBackup("b1-data"))
	if r := c.ended(c.created("r1")); r.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(r.Status.FailureReason, "b1-podvolumebackups.json.gz: damaged") {
		t.Errorf("%+v", r.Status)
	}
}

// TestDeleteWhileRunning deletes a Restore whose engine goes on until it is told to stop.
func TestDeleteWhileRunning(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stopped := make(chan error, 1)
	restorable(c, &script{run: func(ctx context.Context, _ *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		report(restore.Progress{Total: 2, Restored: 1})
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return nil, ctx.Err()
	}}, nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	testenv.EventuallyGet(c.Env, r, "under way", func(r *velerov1.Restore, _ error) bool { return progressOf(r).Items.Restored == 1 })
	c.Delete(r)
	testenv.EventuallyGet(c.Env, r, "gone", func(_ *velerov1.Restore, err error) bool { return apierrors.IsNotFound(err) })
	if err := <-stopped; !errors.Is(err, errDeleted) {
		t.Errorf("stopped for %v", err)
	}
	if c.has("restores/r1") {
		t.Error("files are left")
	}
	again := c.newRestore("r1", nil)
	c.Create(again)
	testenv.EventuallyGet(c.Env, again, "under way", func(r *velerov1.Restore, _ error) bool { return progressOf(r).Items.Restored == 1 })
}

// TestOneAfterTheOther has a second Restore wait for the first one's end.
func TestOneAfterTheOther(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var atOnce, most atomic.Int32
	restorable(c, &script{run: func(context.Context, *restore.Plan, func(restore.Progress)) (*restore.Outcome, error) {
		most.Store(max(most.Load(), atOnce.Add(1)))
		defer atOnce.Add(-1)
		<-time.After(20 * time.Millisecond) // long enough for another one to begin
		return &restore.Outcome{}, nil
	}}, nil)
	for i := range 5 {
		c.Create(c.newRestore(fmt.Sprintf("r%d", i), nil))
	}
	for i := range 5 {
		if r := c.ended(c.newRestore(fmt.Sprintf("r%d", i), nil)); r.Status.Phase != velerov1.RestorePhaseCompleted {
			t.Errorf("%s: %s", r.Name, r.Status.Phase)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d at the same time", most.Load())
	}
}

// TestRestoreSurvivesOutage refuses each kind of write twice.
func TestRestoreSurvivesOutage(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	kinds := []string{`"finalizers"`, `"InProgress"`, `"Finalizing"`, `"Completed"`, v1alpha1.AnnotationProgress}
	refused := make([]atomic.Int32, len(kinds))
	c.Intercept.Patch = func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if _, ok := o.(*velerov1.Restore); ok {
			data, err := patch.Data(o)
			if err != nil {
				return err
			}
			kind := slices.IndexFunc(kinds, func(kind string) bool { return strings.Contains(string(data), kind) })
			if kind >= 0 && refused[kind].Add(1) <= 2 {
				return apierrors.NewServiceUnavailable("not now")
			}
		}
		return api.Patch(ctx, o, patch, opts...)
	}
	restorable(c, &script{}, nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.Progress == nil || r.Status.StartTimestamp == nil {
		t.Errorf("%+v", r.Status)
	}
	for i, kind := range kinds[:4] {
		if refused[i].Load() < 3 {
			t.Errorf("%s was written %d times", kind, refused[i].Load())
		}
	}
}

// TestLogThatCannotBeStored has a file where the restore's directory would be: the cluster keeps the restore's files.
func TestLogThatCannotBeStored(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restorable(c, &script{run: func(context.Context, *restore.Plan, func(restore.Progress)) (*restore.Outcome, error) {
		return &restore.Outcome{}, errors.Join(os.MkdirAll(c.dir+"/restores", 0o700), os.WriteFile(c.dir+"/restores/r1", nil, 0o600))
	}}, nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.Warnings != 1 {
		t.Errorf("%+v", r.Status)
	}
	if kept := c.keptFiles(r); len(kept) != 4 {
		t.Errorf("the cluster keeps %d files, want log, results, resource list and volumes", len(kept))
	}
}

// TestRestoreEndsOnce has another controller end a Restore first: its end stays.
func TestRestoreEndsOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const theirs = `{"status":{"phase":"Failed","failureReason":"by another controller","completionTimestamp":"2024-01-01T00:00:00Z"}}`
	r := c.newRestore("r1", nil)
	controller, _ := restorable(c, &script{finalize: func(ctx context.Context, _ *restore.Plan, _ *restore.Outcome) error {
		return c.Client.Patch(ctx, c.newRestore("r1", nil), client.RawPatch(types.MergePatchType, []byte(theirs)))
	}}, nil)
	c.Create(r)
	c.ended(r)
	c.Eventually("the operation has ended", func() bool { return len(controller.progress()) == 0 })
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseFailed || r.Status.FailureReason != "by another controller" {
		t.Errorf("%+v", r.Status)
	}
}

// TestLostAnswerToTheEnd loses the answer to the write of a Restore's end, which has landed: it is not written again.
func TestLostAnswerToTheEnd(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	writes := &atomic.Int32{}
	c.Intercept.Patch = func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		err := api.Patch(ctx, o, patch, opts...)
		if r, ok := o.(*velerov1.Restore); err == nil && ok && hasEnded(r) && writes.Add(1) == 1 {
			return apierrors.NewServiceUnavailable("the answer is lost")
		}
		return err
	}
	controller, _ := restorable(c, &script{}, nil)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.ended(r)
	c.Eventually("the operation has ended", func() bool { return len(controller.progress()) == 0 })
	if writes.Load() != 1 {
		t.Errorf("its end was written %d times", writes.Load())
	}
}
