package nodeagent

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// observation is what an agent remembers of an object that another node's agent may work on. All its times are from this agent's
// monotonic clock: a time that another process wrote comes from another clock, which may be hours off.
type observation struct {
	uid            types.UID
	version        string    // resourceVersion that the cache showed last
	firstSeen      time.Time // when the agent first saw the object
	lastChange     time.Time // when it last saw a change that it has not made itself
	deletionSeen   time.Time // when it first saw that the object is being deleted; zero if it is not
	noteTime       time.Time // when it last wrote a note on the object
	noteVersion    string    // resourceVersion of that note; empty after another writer has changed the object
	lastCheck      time.Time // when it last asked the API server what the object's agent needs
	answeredChecks int       // how many of these checks the API server has answered in a row since the last change
}

// observe records and returns what this agent sees of the object now.
func (a *Agent) observe(pv podvolume.PodVolume) observation {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, version := time.Now(), pv.Object.GetResourceVersion()
	seen, ok := a.observed[pv.Key()]
	if !ok || seen.uid != pv.Object.GetUID() {
		seen = &observation{uid: pv.Object.GetUID(), version: version, firstSeen: now, lastChange: now}
		a.observed[pv.Key()] = seen
	}
	if version != seen.version {
		seen.version = version
		if version != seen.noteVersion {
			seen.lastChange, seen.noteVersion, seen.answeredChecks = now, "", 0
		}
	}
	if seen.deletionSeen.IsZero() && pv.Object.GetDeletionTimestamp() != nil {
		seen.deletionSeen = now
	}
	return *seen
}

// countCheck remembers a check, which the API server has answered or not.
func (a *Agent) countCheck(k podvolume.Key, answered bool) {
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
func (a *Agent) rememberNote(k podvolume.Key, version string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if seen, ok := a.observed[k]; ok {
		seen.noteTime, seen.noteVersion = time.Now(), version
	}
}

// checkInterval is the time between two checks by the one agent that has taken over the watch of an abandoned object.
func (a *Agent) checkInterval() time.Duration { return a.cfg.AbandonedAfter / 5 }

// ownerGrace returns how long an object may stay unchanged before other agents doubt its own: that repeats itself each minute
// while bytes move, and each QueueHeartbeat while the object is in the queue or waits. Two of those may get lost.
func (a *Agent) ownerGrace(pv podvolume.PodVolume) time.Duration {
	switch pv.LastSnapshot().State {
	case progress.StateQueued, progress.StateWaiting:
		if pv.StopRequest() == nil { // which its own agent obeys at once
			return 2*a.cfg.QueueHeartbeat() + a.cfg.AbandonedAfter
		}
		return a.cfg.AbandonedAfter
	default:
		return a.cfg.AbandonedAfter
	}
}

// untilOwnTurn returns how long this agent leaves an object to others. The agents of all nodes see each object that no agent has taken,
// and so they take turns: the first one leaves a note on the object, and the others see that they need not check it.
func (a *Agent) untilOwnTurn(pv podvolume.PodVolume, seen observation) time.Duration {
	switch {
	case pv.Kind == podvolume.Restore && (pv.Node == a.cfg.NodeName || pv.TakenFor(a.cfg.NodeName) || a.sawGone(pv.Pod.UID)):
		return 0
	case seen.noteVersion != "": // this agent has the turn
		return a.checkInterval() - time.Since(seen.lastCheck)
	default:
		return a.ownerGrace(pv) + a.stagger(pv, seen.uid, a.cfg.AbandonedAfter) - time.Since(seen.lastChange)
	}
}

// stagger returns this agent's own delay for an object that no agent has taken. Of the others' only one agent sees those that an agent
// has taken.
func (a *Agent) stagger(pv podvolume.PodVolume, uid types.UID, limit time.Duration) time.Duration {
	if pv.Taken() {
		return 0
	}
	return a.cfg.Stagger(uid, limit)
}
