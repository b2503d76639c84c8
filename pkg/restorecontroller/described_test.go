package restorecontroller

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

var update = flag.Bool("update", false, "write what pkg/describe shows of Restores, into its testdata")

// TestDescribedProgress keeps what pkg/describe is tested with equal to what this controller writes.
func TestDescribedProgress(t *testing.T) {
	t.Parallel()
	some := restore.Counts{Created: 40, Updated: 1, Unchanged: 2, Skipped: 1, Failed: 1}
	for name, steps := range map[string][]func(*Progress){
		"restoring": {
			func(p *Progress) { p.Step = v1alpha1.StepCollecting },
			func(p *Progress) {
				p.Step, p.Items = v1alpha1.StepRestoring, restore.Progress{Total: 120, Restored: 45, Skipped: 7, Estimate: true, Counts: some, Current: "v1/ConfigMap shop/settings"}
			},
		},
		"dry-run": {
			func(p *Progress) { p.Step = v1alpha1.StepCollecting },
			func(p *Progress) { p.DryRun, p.Items.Total = true, 120 },
			func(p *Progress) {
				p.Message = "dry run: nothing was restored; 120 items would be, 7 would be left out. The log lists them."
			},
			func(p *Progress) { p.Step, p.Percent = v1alpha1.StepDone, 100 },
		},
	} {
		r := newReporter(time.Second, nil)
		for _, step := range steps {
			r.update(step)
		}
		checkDescribed(t, name, newProgressPatch("", r.now()))
	}
}

// checkDescribed compares what the controller writes into a Restore with a file that pkg/describe is tested with.
func checkDescribed(t *testing.T, name string, patch progressPatch) {
	t.Helper()
	got := encode(patch) + "\n"
	file := filepath.Join("..", "describe", "testdata", "restores", name+".json")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; go test -update writes it anew:\n%s", file, diff)
	}
}

// backUpMany puts a backup into the storage that says it has 3,200 items, and has 2,900 Secrets and 99 ConfigMaps in a namespace.
func (c *cluster) backUpMany(name string) {
	c.t.Helper()
	c.backUp(name, func(b *velerov1.Backup) {
		b.Status.Progress = &velerov1.BackupProgress{TotalItems: 3200, ItemsBackedUp: 3200}
	})
	files := map[string]string{
		"metadata/version":                       "1.1.0\n",
		"resources/namespaces/cluster/many.json": `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"many"}}`,
	}
	add := func(resource, kind string, items int) {
		for i := range items {
			files[fmt.Sprintf("resources/%s/namespaces/many/i%d.json", resource, i)] = fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"name":"i%d","namespace":"many"}}`, kind, i)
		}
	}
	add("secrets", "Secret", 2900)
	add("configmaps", "ConfigMap", 99)
	c.put("backups/"+name+"/"+name+".tar.gz", archive(files))
}

// TestOnePhaseAgrees restores a thirtieth of a backup in one-phase mode with the real engine, and looks at each state of the Restore
// that the API server has: its status, the controller's percent and what pkg/describe shows are the same, and 100 % at the end.
func TestOnePhaseAgrees(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	engine, err := restore.New(restore.Config{REST: c.Config, HelperImage: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	c.backUpMany("b1")
	c.start(func(cfg *Config) { cfg.Engine, cfg.ProgressInterval = engine, time.Nanosecond })
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "synced", isSynced)
	watch, err := c.Client.Watch(t.Context(), &velerov1.RestoreList{}, client.InNamespace(c.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	c.Create(c.newRestore("r1", func(r *velerov1.Restore) {
		r.Annotations = map[string]string{v1alpha1.AnnotationProgressMode: v1alpha1.ProgressModeOnePhase}
		r.Spec.ExcludedResources = []string{"secrets"}
		r.Spec.NamespaceMapping = map[string]string{"many": c.Namespace + "-many"}
	}))
	moments := 0
	for event := range watch.ResultChan() {
		r, ok := event.Object.(*velerov1.Restore)
		if !ok {
			t.Fatalf("%v", event)
		}
		if r.Status.Progress != nil {
			moments++
			checkAgreement(t, r)
		}
		if !hasEnded(r) {
			continue
		}
		if p := r.Status.Progress; r.Status.Phase != velerov1.RestorePhaseCompleted || p == nil || p.ItemsRestored != 3000 || p.TotalItems != 3000 {
			t.Errorf("%s, %+v", r.Status.Phase, p)
		}
		var patch progressPatch
		patch.Metadata.Annotations = map[string]string{v1alpha1.AnnotationProgress: r.Annotations[v1alpha1.AnnotationProgress]}
		patch.Status.Progress = r.Status.Progress
		checkDescribed(t, "one-phase-done", patch)
		break
	}
	if moments < 5 {
		t.Errorf("%d states with a status.progress were seen", moments)
	}
}

// checkAgreement fails if two who say how far a Restore is do not say the same.
func checkAgreement(t *testing.T, r *velerov1.Restore) {
	t.Helper()
	status, items, told := r.Status.Progress, describe.OfRestore(r).Items, progressOf(r)
	share, known := items.Share()
	if status.TotalItems != items.Total || status.ItemsRestored != items.Done || !known || share != 100*status.ItemsRestored/status.TotalItems {
		t.Errorf("status.progress is %+v, and described are %d of %d, %d %%", *status, items.Done, items.Total, share)
	}
	if want := min(share, 99); told.Percent != want && !hasEnded(r) || hasEnded(r) && (told.Percent != 100 || share != 100) {
		t.Errorf("%s: percent is %d, %d of %d", told.Step, told.Percent, status.ItemsRestored, status.TotalItems)
	}
}
