// Package locationlimit bounds how many volumes of a cluster move to and from one BackupStorageLocation at the same time, so that many nodes do not
// overload one storage. Who holds a place of a location is on one Lease for each, as an annotation.
package locationlimit

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	// renewInterval is how often a holder says that it is there.
	renewInterval = 20 * time.Second
	// expiry is how long somebody has to see nothing new of a holder until its place is free. Each process counts with its own clock.
	expiry = 2 * time.Minute
	// callTimeout bounds a call that nobody waits for.
	callTimeout = 15 * time.Second
	// tries is how often a change is made anew that others have been faster with.
	tries = 50

	annotationLocation = "plimsoll.io/location"
	annotationHolders  = "plimsoll.io/holders"
)

// BusyError means that all places of a location are taken.
type BusyError struct {
	Location string
	Places   int
	Holders  []string // some of those that hold them
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("location %s has no room: %d volumes of the cluster move to or from it, which is its limit (%s)", e.Location, e.Places, strings.Join(e.Holders, ", "))
}

// Limiter hands out the places of locations. It is safe for concurrent use.
type Limiter struct {
	leases coordinationv1.LeaseInterface

	mu   sync.Mutex
	seen map[string]map[string]sighting // by Lease and holder
}

// sighting is since when this process has seen nothing new of a holder.
type sighting struct {
	said  string
	since time.Time
}

// New returns a Limiter with the Leases of a namespace, of which it gets, creates and updates those that begin with plimsoll-location-.
func New(leases coordinationv1.LeaseInterface) *Limiter {
	return &Limiter{leases: leases, seen: map[string]map[string]sighting{}}
}

// Place is a place of a location. It is held until Leave is called.
type Place struct {
	stop    context.CancelFunc
	stopped chan struct{}
}

// Take takes one of the places of a location. places is how many it has, and holder a name that nobody else uses. The error is a *BusyError if all are
// taken, otherwise that of the API server. ctx ends the call only: the place is kept until Leave. While the API server is away for more than two minutes,
// others believe that the holder is dead and may take its place. Then one more than places is held until one of them leaves.
func (l *Limiter) Take(ctx context.Context, location, holder string, places int) (*Place, error) {
	err := l.change(ctx, location, func(holders map[string]string) error {
		if _, mine := holders[holder]; !mine && len(holders) >= places {
			return busy(location, places, holders)
		}
		holders[holder] = now()
		return nil
	})
	if err != nil {
		return nil, err
	}
	holding, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &Place{stop: stop, stopped: make(chan struct{})}
	go func() {
		defer close(p.stopped)
		l.hold(holding, location, holder)
	}()
	return p, nil
}

// Free returns how many of the places of a location nobody holds. It is negative if more are held than there are, as when the limit was lowered. The error is
// that of the API server.
func (l *Limiter) Free(ctx context.Context, location string, places int) (int, error) {
	_, _, holders, err := l.read(ctx, location)
	return places - len(holders), err
}

// Leave gives the place back, and returns when that is done or could not be done: then it expires.
func (p *Place) Leave() {
	p.stop()
	<-p.stopped
}

// hold says again and again that the holder is there, until ctx has ended, and gives the place back.
func (l *Limiter) hold(ctx context.Context, location, holder string) {
	defer func() {
		l.try(ctx, location, func(holders map[string]string) error {
			delete(holders, holder)
			return nil
		})
	}()
	ticks := time.NewTicker(renewInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			l.try(ctx, location, func(holders map[string]string) error {
				holders[holder] = now()
				return nil
			})
		}
	}
}

// try makes a change that is made again later if it fails, or expires.
func (l *Limiter) try(ctx context.Context, location string, change func(map[string]string) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	_ = l.change(ctx, location, change)
}

// change changes the holders of a location, each time of what is there, until no other process is faster.
func (l *Limiter) change(ctx context.Context, location string, change func(holders map[string]string) error) error {
	for try := 1; ; try++ {
		lease, exists, holders, err := l.read(ctx, location)
		if err != nil {
			return err
		}
		if err := change(holders); err != nil {
			return err
		}
		if err = l.write(ctx, lease, exists, holders); err == nil {
			return nil
		}
		if try == tries || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("write Lease %s of location %s: %w", lease.Name, location, err)
		}
		select {
		case <-time.After(wait.Jitter(50*time.Millisecond, 3)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read returns the Lease of a location, which may have to be created, and those holders that are not dead.
func (l *Limiter) read(ctx context.Context, location string) (lease *coordination.Lease, exists bool, holders map[string]string, err error) {
	name := leaseName(location)
	lease, err = l.leases.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationLocation: location}}}, false, map[string]string{}, nil
	case err != nil:
		return nil, false, nil, fmt.Errorf("get Lease %s of location %s: %w", name, location, err)
	}
	holders = map[string]string{}
	if text := lease.Annotations[annotationHolders]; text != "" {
		if json.Unmarshal([]byte(text), &holders) != nil || holders == nil { // written by hand
			holders = map[string]string{}
		}
	}
	return lease, true, l.alive(name, holders), nil
}

// alive leaves out those of which this process has seen nothing new for so long that they are dead.
func (l *Limiter) alive(lease string, holders map[string]string) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, sightings := l.seen[lease], map[string]sighting{}
	for holder, said := range maps.Clone(holders) {
		s := sighting{said, time.Now()}
		if known, ok := before[holder]; ok && known.said == said {
			s = known
		}
		sightings[holder] = s
		if time.Since(s.since) > expiry {
			delete(holders, holder)
		}
	}
	l.seen[lease] = sightings
	return holders
}

func (l *Limiter) write(ctx context.Context, lease *coordination.Lease, exists bool, holders map[string]string) error {
	text, err := json.Marshal(holders)
	if err != nil {
		return err
	}
	changed := lease.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	changed.Annotations[annotationHolders] = string(text)
	if exists {
		_, err = l.leases.Update(ctx, changed, metav1.UpdateOptions{})
	} else {
		_, err = l.leases.Create(ctx, changed, metav1.CreateOptions{})
	}
	return err
}

// leaseName is that of the Lease of a location, whose own name may be too long.
func leaseName(location string) string {
	return fmt.Sprintf("plimsoll-location-%x", sha256.Sum256([]byte(location)))[:len("plimsoll-location-")+20]
}

// maxNamed bounds how many holders an error names.
const maxNamed = 3

func busy(location string, places int, holders map[string]string) *BusyError {
	names := slices.Sorted(maps.Keys(holders))
	if len(names) > maxNamed {
		names = append(names[:maxNamed], "…")
	}
	return &BusyError{Location: location, Places: places, Holders: names}
}

// now tells one sign of life from the one before; nobody compares it with a clock.
func now() string { return time.Now().UTC().Format(time.RFC3339Nano) }
