package nodeagent

import (
	"hash/crc32"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// sighting is what an agent remembers of an object that another node's agent may work on. All its times are read from this
// agent's monotonic clock: a time that somebody else wrote comes from another clock, which may be hours off.
type sighting struct {
	uid      types.UID
	version  string    // resourceVersion that the cache showed last
	first    time.Time // when the agent first saw the object
	changed  time.Time // when it last saw a change that it has not made itself
	deleting time.Time // when it first saw that the object is being deleted; zero if it is not
	noted    time.Time // when it last wrote a note on the object
	note     string    // resourceVersion of that note; empty after another writer has changed the object
	looked   time.Time // when it last looked after the object
	looks    int       // how many looks in a row the API server has answered since somebody else changed the object
}

// sight records how this agent sees the object now.
func (a *Agent) sight(s subject) sighting {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, version := time.Now(), s.object.GetResourceVersion()
	seen, ok := a.seen[s.key()]
	if !ok || seen.uid != s.object.GetUID() {
		seen = &sighting{uid: s.object.GetUID(), version: version, first: now, changed: now}
		a.seen[s.key()] = seen
	}
	if version != seen.version {
		seen.version = version
		if version != seen.note {
			seen.changed, seen.note, seen.looks = now, "", 0
		}
	}
	if seen.deleting.IsZero() && s.object.GetDeletionTimestamp() != nil {
		seen.deleting = now
	}
	return *seen
}

// looked counts a look after the object, which the API server has answered or not.
func (a *Agent) looked(k key, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen, ok := a.seen[k]
	if !ok {
		return
	}
	seen.looked = time.Now()
	seen.looks++
	if !answered {
		seen.looks = 0
	}
}

// noted remembers that this agent has written a note on the object.
func (a *Agent) noted(k key, version string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if seen, ok := a.seen[k]; ok {
		seen.noted, seen.note = time.Now(), version
	}
}

// share spreads agents over a time that all of them wait for something: between 0 and limit, another one for each agent
// and thing.
func (a *Agent) share(of types.UID, limit time.Duration) time.Duration {
	sum := crc32.ChecksumIEEE([]byte(string(of) + "/" + a.cfg.NodeName))
	return time.Duration(float64(sum) / (1 << 32) * float64(limit))
}

// queueHeartbeat is how often a writer repeats what it says of an object that is in the queue or waits.
func (c *Config) queueHeartbeat() time.Duration { return 2 * c.AbandonedAfter }

// lookPause is the time between two looks of the one agent that looks after an abandoned object.
func (c *Config) lookPause() time.Duration { return c.AbandonedAfter / 5 }

// silence is for how long an object may stay as it is before its agent is doubted: its writer repeats itself each minute
// while bytes move, and each queueHeartbeat while the object is in the queue or waits. Two of those may get lost.
func (c *Config) silence(s subject) time.Duration {
	switch s.previous().State {
	case progress.StateQueued, progress.StateWaiting:
		if s.stopRequest() == nil { // which its own agent obeys at once
			return 2*c.queueHeartbeat() + c.AbandonedAfter
		}
		return c.AbandonedAfter
	default:
		return c.AbandonedAfter
	}
}

// untilLook returns for how long this agent leaves an object to others. The agents of all nodes see each object, and so
// they take turns: the first one leaves a note on the object, by which the others see that they need not look.
func (a *Agent) untilLook(s subject, seen sighting) time.Duration {
	switch {
	case s.kind == Restore && (s.node == a.cfg.NodeName || a.knows(a.orphaned, s.key())):
		return 0
	case seen.note != "": // this agent's turn
		return a.cfg.lookPause() - time.Since(seen.looked)
	default:
		return a.cfg.silence(s) + a.share(seen.uid, a.cfg.AbandonedAfter) - time.Since(seen.changed)
	}
}
