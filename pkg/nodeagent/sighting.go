package nodeagent

import (
	"hash/crc32"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// observation is what an agent remembers of an object that another node's agent may work on. All its times are read from this
// agent's monotonic clock: a time that somebody else wrote comes from another clock, which may be hours off.
type observation struct {
	uid            types.UID
	version        string    // resourceVersion that the cache showed last
	firstSeen      time.Time // when the agent first saw the object
	lastChange     time.Time // when it last saw a change that it has not made itself
	deletionSeen   time.Time // when it first saw that the object is being deleted; zero if it is not
	noteTime       time.Time // when it last wrote a note on the object
	noteVersion    string    // resourceVersion of that note; empty after another writer has changed the object
	lastCheck      time.Time // when it last looked after the object
	answeredChecks int       // how many looks in a row the API server has answered since somebody else changed the object
}

// observe records how this agent sees the object now.
func (a *Agent) observe(s PodVolume) observation {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, version := time.Now(), s.Object.GetResourceVersion()
	seen, ok := a.observed[s.Key()]
	if !ok || seen.uid != s.Object.GetUID() {
		seen = &observation{uid: s.Object.GetUID(), version: version, firstSeen: now, lastChange: now}
		a.observed[s.Key()] = seen
	}
	if version != seen.version {
		seen.version = version
		if version != seen.noteVersion {
			seen.lastChange, seen.noteVersion, seen.answeredChecks = now, "", 0
		}
	}
	if seen.deletionSeen.IsZero() && s.Object.GetDeletionTimestamp() != nil {
		seen.deletionSeen = now
	}
	return *seen
}

// countCheck counts a look after the object, which the API server has answered or not.
func (a *Agent) countCheck(k Key, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen, ok := a.observed[k]
	if !ok {
		return
	}
	seen.lastCheck = time.Now()
	seen.answeredChecks++
	if !answered {
		seen.answeredChecks = 0
	}
}

// rememberNote remembers that this agent has written a note on the object.
func (a *Agent) rememberNote(k Key, version string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if seen, ok := a.observed[k]; ok {
		seen.noteTime, seen.noteVersion = time.Now(), version
	}
}

// Stagger spreads agents over a time that all of them wait for something: between 0 and limit, another one for each agent
// and thing.
func (a *Agent) Stagger(of types.UID, limit time.Duration) time.Duration {
	sum := crc32.ChecksumIEEE([]byte(string(of) + "/" + a.cfg.NodeName))
	return time.Duration(float64(sum) / (1 << 32) * float64(limit))
}

// QueueHeartbeat is how often a writer repeats what it says of an object that is in the queue or waits.
func (c *Config) QueueHeartbeat() time.Duration { return 2 * c.AbandonedAfter }

// checkInterval is the time between two looks of the one agent that looks after an abandoned object.
func (c *Config) checkInterval() time.Duration { return c.AbandonedAfter / 5 }

// ownerGrace is for how long an object may stay as it is before its agent is doubted: its writer repeats itself each minute
// while bytes move, and each queueHeartbeat while the object is in the queue or waits. Two of those may get lost.
func (c *Config) ownerGrace(s PodVolume) time.Duration {
	switch s.LastSnapshot().State {
	case progress.StateQueued, progress.StateWaiting:
		if s.StopRequest() == nil { // which its own agent obeys at once
			return 2*c.QueueHeartbeat() + c.AbandonedAfter
		}
		return c.AbandonedAfter
	default:
		return c.AbandonedAfter
	}
}

// untilOwnTurn returns for how long this agent leaves an object to others. The agents of all nodes see each object, and so
// they take turns: the first one leaves a note on the object, by which the others see that they need not look.
func (a *Agent) untilOwnTurn(s PodVolume, seen observation) time.Duration {
	switch {
	case s.Kind == Restore && (s.Node == a.cfg.NodeName || a.knows(a.orphaned, s.Key())):
		return 0
	case seen.noteVersion != "": // this agent's turn
		return a.cfg.checkInterval() - time.Since(seen.lastCheck)
	default:
		return a.cfg.ownerGrace(s) + a.Stagger(seen.uid, a.cfg.AbandonedAfter) - time.Since(seen.lastChange)
	}
}
