package restorecontroller

import (
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// never is what due says of what is not to be done again.
const never = time.Duration(-1)

// rounds remembers when something was done for each location, and for which spec: a change of the spec is a reason to do it
// again at once. What the status says is not enough: it does not tell for which spec, and every write of it is an event. It
// is safe for concurrent use.
type rounds struct {
	mu   sync.Mutex
	last map[types.NamespacedName]round
}

type round struct {
	at   time.Time
	uid  types.UID
	spec velerov1.BackupStorageLocationSpec
}

func newRounds() *rounds { return &rounds{last: map[types.NamespacedName]round{}} }

// due returns how long until it is to be done again: 0 or less is now. With a period of 0 it is done once for each spec.
func (r *rounds) due(location *velerov1.BackupStorageLocation, period time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.last[nameOf(location)]
	switch {
	case !known, last.uid != location.UID, !equality.Semantic.DeepEqual(last.spec, location.Spec):
		return 0
	case period <= 0:
		return never
	default:
		return max(time.Until(last.at.Add(period)), 0)
	}
}

// done notes that it was done now.
func (r *rounds) done(location *velerov1.BackupStorageLocation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[nameOf(location)] = round{at: time.Now(), uid: location.UID, spec: *location.Spec.DeepCopy()}
}

func (r *rounds) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, name)
}

func nameOf(location *velerov1.BackupStorageLocation) types.NamespacedName {
	return types.NamespacedName{Namespace: location.Namespace, Name: location.Name}
}
