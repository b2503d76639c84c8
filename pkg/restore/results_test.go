package restore

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// needs makes one run's config maps need others: "b" of "a" is that b is restored before a.
func (r *run) needs(dependencies map[string][]string) {
	r.actions = map[string][]action{configMaps.String(): {{name: "needs", apply: func(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
		var out actionOutput
		for _, name := range dependencies[in.original.GetName()] {
			out.additional = append(out.additional, key{configMaps, in.original.GetNamespace(), name})
		}
		return out, nil
	}}}}
}

// TestRestoreWhatItemsNeed restores items that need each other, also in circles, and several at a time.
func TestRestoreWhatItemsNeed(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	var files []archived
	dependencies := map[string][]string{}
	const items = 60
	name := func(i int) string { return fmt.Sprintf("c%02d", i%items) }
	for i := range items {
		files = append(files, configMap(a.id, name(i), ""))
		dependencies[name(i)] = []string{name(i + 1), name(i + items/2), name(i)}
	}
	dependencies[name(0)] = append(dependencies[name(0)], "missing")
	a.input.Restore.Spec.LabelSelector = selectNames(name(0), name(10), name(20), name(30), name(40), name(50))
	a.backup(files...)
	r := a.collect(a.engine())
	if r.plan.TotalItems != 7 {
		t.Errorf("planned %d, want the namespace and 6 items", r.plan.TotalItems)
	}
	r.needs(dependencies)
	outcome, err := r.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	want := Progress{Total: items + 1, Restored: items + 1, Counts: Counts{Created: items + 1}}
	if diff := cmp.Diff(want, outcome.Progress); diff != "" {
		t.Error(diff)
	}
	if got := resultsText(outcome); got != "warning "+a.id+": configmaps/"+a.id+"/c00: it needs configmaps "+a.id+"/missing, which is not in the backup" {
		t.Error(got)
	}
}

// TestOnePhaseCountsOnce brings back what filters leave out, before its turn comes and after: it counts as restored, and not
// as left out besides.
func TestOnePhaseCountsOnce(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.input.Restore.Annotations = map[string]string{v1alpha1.AnnotationProgressMode: v1alpha1.ProgressModeOnePhase}
	a.input.Restore.Spec.LabelSelector = selectNames("a", "b", "z")
	a.input.Backup.Status.Progress = &velerov1.BackupProgress{TotalItems: 7}
	secret := func(name string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: %s, labels: {app: %[2]s}}}`, a.id, name)
	}
	a.backup(
		of("namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: `+a.id+`}}`),
		of("secrets", secret("late")), of("secrets", secret("never")), of("secrets", secret("z")),
		configMap(a.id, "a", ""), configMap(a.id, "b", ""), configMap(a.id, "early", ""),
	)
	r := a.collect(a.engine())
	needs := func(resource schema.GroupResource, name string) action {
		return action{name: "needs", apply: func(context.Context, *scope, *actionInput) (actionOutput, error) {
			return actionOutput{additional: []key{{resource, a.id, name}}}, nil
		}}
	}
	// Secrets come first: of what they need the turn is still to come, that of what config maps need is over.
	r.actions = map[string][]action{secretResource.String(): {needs(configMaps, "early")}, configMaps.String(): {needs(secretResource, "late")}}
	outcome, err := r.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	want := Progress{Total: 7, Restored: 6, Skipped: 1, Estimate: true, Counts: Counts{Created: 6}}
	if diff := cmp.Diff(want, outcome.Progress); diff != "" {
		t.Error(diff)
	}
	for _, p := range a.reports {
		if p.Total != 7 {
			t.Errorf("the backup has 7 items, but %+v", p)
		}
	}
}

// TestRestorePanic has an action panic: that costs the item only.
func TestRestorePanic(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backup(configMap(a.id, "a", ""), configMap(a.id, "b", ""))
	r := a.collect(a.engine())
	r.actions = map[string][]action{configMaps.String(): {{name: "panics", apply: func(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
		if in.original.GetName() == "a" {
			panic("not as expected")
		}
		return actionOutput{}, nil
	}}}}
	outcome, err := r.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	if got := resultsText(outcome); outcome.Progress.Counts != (Counts{Created: 2, Failed: 1}) || !strings.Contains(got, "configmaps/"+a.id+"/a: internal error") || !strings.Contains(got, "not as expected") {
		t.Errorf("%+v\n%s", outcome.Progress, got)
	}
}

// TestRestoreNeededBefore has what an item needs restored before it, whoever restores that.
func TestRestoreNeededBefore(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backup(configMap(a.id, "a", ""), configMap(a.id, "b", ""), configMap(a.id, "z", ""))
	r := a.collect(a.engine())
	r.needs(map[string][]string{"a": {"z"}, "b": {"z"}})
	var order []string
	_, err := r.RestoreItems(t.Context(), func(p Progress) {
		a.report(p)
		if p.Current != "" {
			order = append(order, strings.TrimPrefix(p.Current, "configmaps "+a.id+"/"))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(order) != 4 || order[1] != "z" && order[1] != "a" && order[1] != "b" || indexOf(order, "z") > indexOf(order, "a") || indexOf(order, "z") > indexOf(order, "b") {
		t.Errorf("restored in the order %v", order)
	}
}

func indexOf(list []string, wanted string) int {
	for i, s := range list {
		if s == wanted {
			return i
		}
	}
	return -1
}

// TestResultsClaims has many chains claim the same entries in orders that would lock each other up.
func TestResultsClaims(t *testing.T) {
	t.Parallel()
	l := newResults(slog.New(slog.DiscardHandler))
	l.start(func(Progress) {})
	const chains, entries = 8, 100
	keyFor := func(i int) targetKey {
		return targetKey{resource: schema.GroupResource{Resource: "things"}, name: strconv.Itoa(i % entries)}
	}
	var claimed sync.Map
	var group sync.WaitGroup
	var restore func(by *dependencyChain, i, depth int)
	restore = func(by *dependencyChain, i, depth int) {
		e, _, mine := l.claim(keyFor(i), key{}, by)
		if !mine {
			return
		}
		if _, again := claimed.LoadOrStore(keyFor(i), true); again {
			t.Errorf("%v is claimed twice", keyFor(i))
		}
		if depth > 0 {
			restore(by, i*7+1, depth-1)
			restore(by, i*3+2, depth-1)
		}
		l.record(keyFor(i), e, result{action: created})
	}
	for c := range chains {
		group.Go(func() {
			by := &dependencyChain{}
			for i := range entries {
				restore(by, i+c*entries/chains, 5)
			}
		})
	}
	group.Wait()
	if p := l.outcomeWith(nil).Progress; p.Restored != entries || p.Total != entries || p.Counts.Created != entries {
		t.Errorf("%+v", p)
	}
}

func TestResultsReleases(t *testing.T) {
	t.Parallel()
	l := newResults(slog.New(slog.DiscardHandler))
	k := targetKey{name: "a"}
	l.plan(k)
	e, _, mine := l.claim(k, key{}, &dependencyChain{})
	if !mine {
		t.Fatal("a planned item is taken")
	}
	l.release(k, e)
	if _, _, again := l.claim(k, key{}, &dependencyChain{}); !again {
		t.Error("an item that was not tried cannot be tried again")
	}
	if total := l.total(); total != 1 {
		t.Errorf("total %d, want 1", total)
	}
}
