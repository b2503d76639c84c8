package restore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	veleroresults "github.com/vmware-tanzu/velero/pkg/util/results"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// results has each item that is planned or was restored, once, and what became of it. It is safe for concurrent use.
type results struct {
	log *slog.Logger

	mu       sync.Mutex
	entries  map[targetKey]*entry // nil for what is only planned
	backedUp int                  // items that the backup says it has, in one-phase mode
	needed   map[key]bool         // items that filters leave out and others need, in one-phase mode; true: counted as left out
	progress Progress
	outcome  *Outcome
	report   func(Progress)
}

// targetKey names an item in the cluster.
type targetKey struct {
	resource  schema.GroupResource
	namespace string
	name      string
}

func (k targetKey) path() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// target returns where an item of the backup goes.
func (s *scope) target(item key) targetKey {
	if item.resource == namespaces {
		return targetKey{resource: namespaces, name: s.targetNamespace(item.name)}
	}
	if item.resource == claimResource {
		claim := s.targetClaim(types.NamespacedName{Namespace: item.namespace, Name: item.name})
		return targetKey{claimResource, claim.Namespace, claim.Name}
	}
	return targetKey{item.resource, s.targetNamespace(item.namespace), item.name}
}

// entry is an item that is being restored or was restored.
type entry struct {
	from  key
	by    *dependencyChain // nil when it has ended
	done  chan struct{}    // closed then
	ended itemAction
}

// dependencyChain is a goroutine that restores an item, and before that an item which that one needs, and so on.
type dependencyChain struct{ waitsFor *entry }

// result is what became of an item.
type result struct {
	kind     string // such as "apps/v1/Deployment", empty for what could not be read
	name     string // in the cluster
	action   itemAction
	reason   string // why it was skipped
	warnings []string
	errors   []string
	volumes  []velerov1.PodVolumeRestore
	unfilled *volumeinfo.RestoredVolume // see actionOutput
}

func (r *result) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// addError adds an error that does not end the item.
func (r *result) addError(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *result) fail(format string, args ...any) {
	r.action = failed
	r.addError(format, args...)
}

// itemAction is what a restore did with an item.
type itemAction int

const (
	failed itemAction = iota
	created
	updated
	unchanged
	skipped
)

func (a itemAction) String() string {
	return [...]string{"failed", "created", "updated", "unchanged", "skipped"}[a]
}

// listed is the word in Velero's resource list, which has one less.
func (a itemAction) listed() string {
	if a == unchanged {
		a = skipped
	}
	return a.String()
}

func newResults(log *slog.Logger) *results {
	return &results{log: log, entries: map[targetKey]*entry{}, needed: map[key]bool{}, outcome: &Outcome{Resources: map[string][]string{}}}
}

// plan adds an item that will be restored.
func (rs *results) plan(k targetKey) { rs.entries[k] = nil }

// estimate sets the number of items that the backup says it has: one-phase mode, where nothing is planned.
func (rs *results) estimate(backedUp int) { rs.backedUp, rs.progress.Estimate = backedUp, true }

// total is the size of the union of what is planned and what was tried. In one-phase mode it is what the backup says, more
// if there turns out to be more, and 0 if it says nothing.
func (rs *results) total() int {
	switch {
	case !rs.progress.Estimate:
		return len(rs.entries)
	case rs.backedUp == 0:
		return 0
	default:
		return max(rs.backedUp, rs.progress.Done())
	}
}

// start makes report the receiver of all progress.
func (rs *results) start(report func(Progress)) { rs.report = report }

// countSkipped counts an item that filters leave out, and reports that, in one-phase mode, whose total has it, too. An item that
// another one needs is not counted: it is restored.
func (rs *results) countSkipped(item key) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, needed := rs.needed[item]; needed {
		return
	}
	rs.progress.Skipped++
	rs.progress.Total = rs.total()
	rs.report(rs.progress)
}

// countUnread counts an item that cannot be read as one that has failed, and reports that, in one-phase mode, whose total has it, too.
func (rs *results) countUnread() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.progress.Restored++
	rs.progress.Counts.Failed++
	rs.progress.Total = rs.total()
	rs.report(rs.progress)
}

// include marks an item that filters leave out and that is restored all the same, because another item needs it. If it was
// counted as left out already, it stays counted so until it is restored.
func (rs *results) include(item key, counted bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, known := rs.needed[item]; !known {
		rs.needed[item] = counted
	}
}

// claim makes a chain the one that restores an item, and then returns true. Otherwise it waits until the item has ended,
// unless that itself waits for the chain, and returns what became of it.
func (rs *results) claim(k targetKey, from key, by *dependencyChain) (e *entry, ended itemAction, mine bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if e = rs.entries[k]; e == nil {
		e = &entry{from: from, by: by, done: make(chan struct{})}
		rs.entries[k] = e
		return e, failed, true
	}
	if !e.waitsFor(by) {
		by.waitsFor = e
		rs.mu.Unlock()
		<-e.done
		rs.mu.Lock()
		by.waitsFor = nil
	}
	return e, e.ended, false
}

// waitsFor reports whether an entry cannot end before the chain goes on.
func (e *entry) waitsFor(c *dependencyChain) bool {
	for e != nil && e.by != nil {
		if e.by == c {
			return true
		}
		e = e.by.waitsFor
	}
	return false
}

// release ends a claim of an item that was not tried.
func (rs *results) release(k targetKey, e *entry) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.entries[k], e.by = nil, nil
	close(e.done)
}

// record ends a claim with what became of the item, and reports the progress.
func (rs *results) record(k targetKey, e *entry, r result) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	e.ended, e.by = r.action, nil
	close(e.done)
	if rs.needed[e.from] {
		rs.needed[e.from] = false
		rs.progress.Skipped--
	}
	rs.progress.Restored++
	count(&rs.progress.Counts, r.action)
	rs.progress.Total = rs.total()
	rs.progress.Current = k.resource.String() + " " + k.path()
	rs.addToOutcome(k, r)
	total := any("not known yet")
	if rs.progress.Total > 0 {
		total = rs.progress.Total
	}
	rs.log.Info("Item is done", "resource", k.resource.String(), "item", k.path(), "action", r.action.String(),
		"reason", r.reason, "restored", rs.progress.Restored, "total", total)
	rs.report(rs.progress)
}

// addToOutcome writes what became of an item into the outcome, and warnings and errors into the log.
func (rs *results) addToOutcome(k targetKey, r result) {
	if r.kind != "" {
		name := targetKey{namespace: k.namespace, name: r.name}
		rs.outcome.Resources[r.kind] = append(rs.outcome.Resources[r.kind], name.path()+"("+r.action.listed()+")")
	}
	rs.outcome.PodVolumes = append(rs.outcome.PodVolumes, r.volumes...)
	if r.unfilled != nil && r.action == created {
		rs.outcome.Unfilled = append(rs.outcome.Unfilled, *r.unfilled)
	}
	for _, text := range r.warnings {
		rs.log.Warn("Item has a warning", "resource", k.resource.String(), "item", k.path(), "warning", text)
		add(&rs.outcome.Results.Warnings, k.namespace, fmt.Sprintf("%s/%s: %s", k.resource, k.path(), text))
	}
	for _, text := range r.errors {
		rs.log.Error("Item has an error", "resource", k.resource.String(), "item", k.path(), "error", text)
		add(&rs.outcome.Results.Errors, k.namespace, fmt.Sprintf("error restoring %s/%s: %s", k.resource, k.path(), text))
	}
}

func add(to *veleroresults.Result, namespace, text string) { to.Add(namespace, errors.New(text)) }

// warn notes what is wrong with the backup as a whole.
func (rs *results) warn(texts []string) {
	for _, text := range texts {
		rs.log.Warn("Backup has a warning", "warning", text)
	}
	rs.outcome.Results.Warnings.Velero = append(rs.outcome.Results.Warnings.Velero, texts...)
}

// addCollision warns that two items of the backup go to the same place. If data is lost with the one that is not restored, it is an error.
func (rs *results) addCollision(k targetKey, item, first key, lost string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	cause := "spec.namespaceMapping"
	if item.name != first.name {
		cause = "spec.resourceModifier"
	}
	text := fmt.Sprintf("%s is not restored: %s has taken its place in namespace %s (%s)", item, first, k.namespace, cause)
	said := rs.outcome.Results.Warnings.Namespaces[k.namespace]
	if lost != "" {
		text, said = text+". "+lost, rs.outcome.Results.Errors.Namespaces[k.namespace]
	}
	if (lost != "" || item.resource == claimResource) && slices.Contains(said, text) {
		return // a claim is met again with each pod that uses it
	}
	if lost != "" {
		rs.log.Error("Item has an error", "resource", k.resource.String(), "item", k.path(), "error", text)
		add(&rs.outcome.Results.Errors, k.namespace, text)
		return
	}
	rs.log.Warn("Item has a warning", "resource", k.resource.String(), "item", k.path(), "warning", text)
	add(&rs.outcome.Results.Warnings, k.namespace, text)
}

// finish reports that every item was tried, whatever number the backup said.
func (rs *results) finish() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.progress.Total, rs.progress.Current = rs.progress.Done(), ""
	rs.report(rs.progress)
}

// outcomeWith returns the outcome with the problems of the backup, in an order that does not depend on which item was faster.
func (rs *results) outcomeWith(problems []problem) *Outcome {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, p := range problems {
		add(&rs.outcome.Results.Errors, p.namespace, p.text)
	}
	for _, r := range []*veleroresults.Result{&rs.outcome.Results.Warnings, &rs.outcome.Results.Errors} {
		slices.Sort(r.Cluster)
		for _, texts := range r.Namespaces {
			slices.Sort(texts)
		}
	}
	for _, names := range rs.outcome.Resources {
		slices.Sort(names)
	}
	slices.SortFunc(rs.outcome.PodVolumes, func(a, b velerov1.PodVolumeRestore) int {
		return cmp.Or(strings.Compare(a.Spec.Pod.Namespace, b.Spec.Pod.Namespace), strings.Compare(a.Spec.Pod.Name, b.Spec.Pod.Name),
			strings.Compare(a.Spec.Volume, b.Spec.Volume))
	})
	slices.SortFunc(rs.outcome.Unfilled, func(a, b volumeinfo.RestoredVolume) int {
		return cmp.Or(strings.Compare(a.PVCNamespace, b.PVCNamespace), strings.Compare(a.PVCName, b.PVCName))
	})
	rs.outcome.Progress = rs.progress
	return rs.outcome
}

func count(c *Counts, a itemAction) {
	switch a {
	case created:
		c.Created++
	case updated:
		c.Updated++
	case unchanged:
		c.Unchanged++
	case skipped:
		c.Skipped++
	default:
		c.Failed++
	}
}
