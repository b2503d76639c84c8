package podvolume

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

const (
	// failedConnects is how often in a row a repository fails to open before its volumes wait. Fewer may be a hiccup of the network.
	failedConnects = 3
	// maxProbePause bounds the pause between two tries to open a repository for which volumes wait.
	maxProbePause = 5 * time.Minute
	// outageMemory is how long a failure counts for a repository for which no volume waits.
	outageMemory = time.Hour
)

// breakers know the repositories of a node that do not open, such as those in a bucket that is away. The volumes of such a repository
// wait without a slot, and one of them tries to open it from time to time: else each would take a slot from the volumes of
// other repositories, for as long as restic or kopia is patient. The zero value works, and is safe for concurrent use.
type breakers struct {
	mu     sync.Mutex
	by     map[repositoryKey]*outage
	probes map[string]chan struct{} // by location
}

// repositoryKey is a repository with what opens it: with another password it is another one.
type repositoryKey struct {
	url         string
	credentials [sha256.Size]byte
}

func keyOf(repo uploader.Repository) repositoryKey {
	sum := sha256.New()
	for _, secrets := range []map[string]uploader.Secret{{"": repo.Password}, repo.Env, repo.Files} {
		for _, name := range slices.Sorted(maps.Keys(secrets)) {
			fmt.Fprintf(sum, "%q=%q\n", name, secrets[name].Reveal())
		}
		fmt.Fprintln(sum)
	}
	fmt.Fprintf(sum, "%q %t", repo.CACert, repo.InsecureSkipTLSVerify)
	return repositoryKey{url: repo.URL, credentials: [sha256.Size]byte(sum.Sum(nil))}
}

// outage is what is known of a repository that has not opened since.
type outage struct {
	failures int // in a row
	since    time.Time
	last     error
	next     time.Time     // when a volume that waits tries to open it
	pause    time.Duration // before next
	waiting  int           // volumes
	changed  chan struct{} // closed with the next change
}

// forgotten reports whether the outage is too long ago to say anything of the repository.
func (o *outage) forgotten(now time.Time) bool {
	return o.waiting == 0 && now.Sub(o.next) > outageMemory
}

// open reports whether the volumes of the repository wait.
func (o outage) open() bool { return o.failures >= failedConnects }

// outage returns what is known of a repository that does not open; false for one that does, or may.
func (b *breakers) outage(key repositoryKey) (outage, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o, ok := b.by[key]; ok && !o.forgotten(time.Now()) {
		return *o, true
	}
	return outage{}, false
}

// enter is outage for a volume that waits for the repository until it calls leave.
func (b *breakers) enter(key repositoryKey) (known outage, leave func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.by[key]
	if !ok || o.forgotten(time.Now()) {
		return outage{}, nil, false
	}
	o.waiting++
	return *o, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		o.waiting--
	}, true
}

// failed counts that a repository did not open, and reports whether its volumes wait from now on. After a probe the next one comes
// after twice the pause, which is first at the beginning.
func (b *breakers) failed(key repositoryKey, err error, first time.Duration, probe bool) (opens bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(b.by, func(_ repositoryKey, o *outage) bool { return o.forgotten(now) })
	o, known := b.by[key]
	switch {
	case !known:
		o = &outage{since: now, pause: first, next: now.Add(first), changed: make(chan struct{})}
		if b.by == nil {
			b.by = map[repositoryKey]*outage{}
		}
		b.by[key] = o
	case probe:
		o.pause = min(2*o.pause, maxProbePause)
		o.next = now.Add(o.pause)
	}
	o.failures++
	o.last = err
	close(o.changed)
	o.changed = make(chan struct{})
	return o.failures == failedConnects
}

// opened lets all volumes of a repository go on, whatever they wanted to open it with, and reports whether any had to wait.
func (b *breakers) opened(key repositoryKey) (closes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for other, o := range b.by {
		if other.url == key.url {
			closes = closes || o.open()
			close(o.changed)
			delete(b.by, other)
		}
	}
	return closes
}

// forget lets the volumes of one key try again.
func (b *breakers) forget(key repositoryKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o, ok := b.by[key]; ok {
		close(o.changed)
		delete(b.by, key)
	}
}

// waitedFor returns for how many repositories volumes wait.
func (b *breakers) waitedFor() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, o := range b.by {
		if o.open() && o.waiting > 0 {
			n++
		}
	}
	return n
}

// probe returns what holds one value while a repository of a location is probed: a node has one process for that, however many
// repositories the location has.
func (b *breakers) probe(location string) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probes == nil {
		b.probes = map[string]chan struct{}{}
	}
	if b.probes[location] == nil {
		b.probes[location] = make(chan struct{}, 1)
	}
	return b.probes[location]
}
