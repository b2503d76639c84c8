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
	"github.com/vmware-tanzu/velero/pkg/util/results"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// ledger has each item that is planned or was restored once, whatever brought it, and what became of it. It is safe for
// concurrent use.
type ledger struct {
	log *slog.Logger

	mu       sync.Mutex
	entries  map[entryKey]*entry // nil for what is only planned
	backedUp int                 // items that the backup says it has, in one-phase mode
	needed   map[key]bool        // items that filters leave out and others need, in one-phase mode; true: counted as left out
	progress Progress
	outcome  *Outcome
	report   func(Progress)
}

// entryKey names an item in the cluster.
type entryKey struct {
	resource  schema.GroupResource
	namespace string
	name      string
}

func (k entryKey) path() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// entryKey returns where an item of the backup goes.
func (s *session) entryKey(item key) entryKey {
	if item.resource == namespaces {
		return entryKey{resource: namespaces, name: s.targetNamespace(item.name)}
	}
	return entryKey{item.resource, s.targetNamespace(item.namespace), item.name}
}

// entry is an item that somebody restores or has restored.
type entry struct {
	from  key
	by    *chain        // nil when it has ended
	done  chan struct{} // closed then
	ended fate
}

// chain is a goroutine that restores an item, and before that an item which that needs, and so on.
type chain struct{ waitsFor *entry }

// result is what became of an item.
type result struct {
	kind     string // such as "apps/v1/Deployment", empty for what could not be read
	name     string // in the cluster
	fate     fate
	reason   string // why it was skipped
	warnings []string
	errors   []string
	volumes  []velerov1.PodVolumeRestore
	unfilled *volumeinfo.RestoredVolume // see actionOutput
}

func (r *result) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// complain adds an error that does not end the item.
func (r *result) complain(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *result) fail(format string, args ...any) {
	r.fate = failed
	r.complain(format, args...)
}

// fate is one word for what became of an item.
type fate int

const (
	failed fate = iota
	created
	updated
	unchanged
	skipped
)

func (f fate) String() string {
	return [...]string{"failed", "created", "updated", "unchanged", "skipped"}[f]
}

// listed is the word in Velero's resource list, which has one less.
func (f fate) listed() string {
	if f == unchanged {
		f = skipped
	}
	return f.String()
}

func newLedger(log *slog.Logger) *ledger {
	return &ledger{log: log, entries: map[entryKey]*entry{}, needed: map[key]bool{}, outcome: &Outcome{Resources: map[string][]string{}}}
}

// plan notes an item that is going to be restored.
func (l *ledger) plan(k entryKey) { l.entries[k] = nil }

// estimate says that nothing is planned, and how many items the backup says it has: one-phase mode.
func (l *ledger) estimate(backedUp int) { l.backedUp, l.progress.Estimate = backedUp, true }

// total is the size of the union of what is planned and what was tried. In one-phase mode it is what the backup says, more
// if there turns out to be more, and 0 if it says nothing.
func (l *ledger) total() int {
	switch {
	case !l.progress.Estimate:
		return len(l.entries)
	case l.backedUp == 0:
		return 0
	default:
		return max(l.backedUp, l.progress.Done())
	}
}

// open begins to report.
func (l *ledger) open(report func(Progress)) { l.report = report }

// leaveOut counts an item that filters leave out, and reports that: one-phase mode, whose total has it, too. An item that
// another one needs is restored instead.
func (l *ledger) leaveOut(item key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, needed := l.needed[item]; needed {
		return
	}
	l.progress.Skipped++
	l.progress.Total = l.total()
	l.report(l.progress)
}

// bringBack marks an item that filters leave out and that is restored all the same, because another item needs it. If it was
// counted as left out already, it stays counted so until it is restored.
func (l *ledger) bringBack(item key, counted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.needed[item]; !known {
		l.needed[item] = counted
	}
}

// claim makes a chain the one that restores an item, and then returns true. Otherwise it waits until the item has ended,
// unless that itself waits for the chain, and returns what became of it.
func (l *ledger) claim(k entryKey, from key, by *chain) (e *entry, ended fate, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e = l.entries[k]; e == nil {
		e = &entry{from: from, by: by, done: make(chan struct{})}
		l.entries[k] = e
		return e, failed, true
	}
	if !e.waitsFor(by) {
		by.waitsFor = e
		l.mu.Unlock()
		<-e.done
		l.mu.Lock()
		by.waitsFor = nil
	}
	return e, e.ended, false
}

// waitsFor says whether an entry cannot end before the chain goes on.
func (e *entry) waitsFor(c *chain) bool {
	for e != nil && e.by != nil {
		if e.by == c {
			return true
		}
		e = e.by.waitsFor
	}
	return false
}

// release ends a claim of an item that was not tried.
func (l *ledger) release(k entryKey, e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[k], e.by = nil, nil
	close(e.done)
}

// settle ends a claim with what became of the item, and tells how far the restore is.
func (l *ledger) settle(k entryKey, e *entry, r result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.ended, e.by = r.fate, nil
	close(e.done)
	if l.needed[e.from] {
		l.needed[e.from] = false
		l.progress.Skipped--
	}
	l.progress.Restored++
	l.progress.Counts.add(r.fate)
	l.progress.Total = l.total()
	l.progress.Current = k.resource.String() + " " + k.path()
	l.note(k, r)
	total := any("not known yet")
	if l.progress.Total > 0 {
		total = l.progress.Total
	}
	l.log.Info("restored item", "resource", k.resource.String(), "item", k.path(), "action", r.fate.String(),
		"reason", r.reason, "restored", l.progress.Restored, "total", total)
	l.report(l.progress)
}

// note writes what became of an item into the outcome and, if it is not as it should be, into the log.
func (l *ledger) note(k entryKey, r result) {
	if r.kind != "" {
		name := entryKey{namespace: k.namespace, name: r.name}
		l.outcome.Resources[r.kind] = append(l.outcome.Resources[r.kind], name.path()+"("+r.fate.listed()+")")
	}
	l.outcome.PodVolumes = append(l.outcome.PodVolumes, r.volumes...)
	if r.unfilled != nil && r.fate == created {
		l.outcome.Unfilled = append(l.outcome.Unfilled, *r.unfilled)
	}
	for _, text := range r.warnings {
		l.log.Warn("restore item", "resource", k.resource.String(), "item", k.path(), "warning", text)
		add(&l.outcome.Results.Warnings, k.namespace, fmt.Sprintf("%s/%s: %s", k.resource, k.path(), text))
	}
	for _, text := range r.errors {
		l.log.Error("restore item", "resource", k.resource.String(), "item", k.path(), "error", text)
		add(&l.outcome.Results.Errors, k.namespace, fmt.Sprintf("error restoring %s/%s: %s", k.resource, k.path(), text))
	}
}

func add(to *results.Result, namespace, text string) { to.Add(namespace, errors.New(text)) }

// warn notes what is wrong with the backup as a whole.
func (l *ledger) warn(texts []string) {
	for _, text := range texts {
		l.log.Warn("read backup", "warning", text)
	}
	l.outcome.Results.Warnings.Velero = append(l.outcome.Results.Warnings.Velero, texts...)
}

// collide says that two items of the backup go to the same place.
func (l *ledger) collide(k entryKey, item, first key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := fmt.Sprintf("%s is not restored: %s has taken its place in namespace %s (spec.namespaceMapping)", item, first, k.namespace)
	l.log.Warn("restore item", "resource", k.resource.String(), "item", k.path(), "warning", text)
	add(&l.outcome.Results.Warnings, k.namespace, text)
}

// complete says that everything was tried, whatever the backup said.
func (l *ledger) complete() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.Total, l.progress.Current = l.progress.Done(), ""
	l.report(l.progress)
}

// close returns the outcome, in an order that does not depend on which item was faster.
func (l *ledger) close(problems []problem) *Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range problems {
		add(&l.outcome.Results.Errors, p.namespace, p.text)
	}
	for _, r := range []*results.Result{&l.outcome.Results.Warnings, &l.outcome.Results.Errors} {
		slices.Sort(r.Cluster)
		for _, texts := range r.Namespaces {
			slices.Sort(texts)
		}
	}
	for _, names := range l.outcome.Resources {
		slices.Sort(names)
	}
	slices.SortFunc(l.outcome.PodVolumes, func(a, b velerov1.PodVolumeRestore) int {
		return cmp.Or(strings.Compare(a.Spec.Pod.Namespace, b.Spec.Pod.Namespace), strings.Compare(a.Spec.Pod.Name, b.Spec.Pod.Name),
			strings.Compare(a.Spec.Volume, b.Spec.Volume))
	})
	slices.SortFunc(l.outcome.Unfilled, func(a, b volumeinfo.RestoredVolume) int {
		return cmp.Or(strings.Compare(a.PVCNamespace, b.PVCNamespace), strings.Compare(a.PVCName, b.PVCName))
	})
	l.outcome.Progress = l.progress
	return l.outcome
}

func (c *Counts) add(f fate) {
	switch f {
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
