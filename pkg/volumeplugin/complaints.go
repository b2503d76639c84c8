package volumeplugin

import (
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// complaints logs what is in the way of the records, once for each reason, however many volumes there are.
type complaints struct {
	log *slog.Logger

	mu   sync.Mutex
	made map[string]bool
}

const (
	noCRDs      = "the CRDs of plimsoll.io or the namespace are not there: see docs/volume-plugins.md"
	noRights    = "the service account lacks rights: see docs/volume-plugins.md"
	notKnown    = "the scheme of the client lacks volumeplugin.AddToScheme"
	refused     = "the API server refuses the object"
	unreachable = "the API server does not answer"
)

func reasonOf(err error) string {
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return noCRDs
	case apierrors.IsForbidden(err):
		return noRights
	case runtime.IsNotRegisteredError(err):
		return notKnown
	case apiretry.Final(err):
		return refused
	default:
		return unreachable
	}
}

// lasting reports whether only people can help.
func lasting(err error) bool { return err != nil && reasonOf(err) != unreachable }

// unwritten logs that an object could not be written.
func (c *complaints) unwritten(err error) {
	reason := reasonOf(err)
	if c.first(reason) {
		c.log.Warn("Progress of volumes is not recorded; snapshots are made all the same", "reason", reason, "error", err)
	}
}

// written ends an outage: the next one is logged again.
func (c *complaints) written() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[unreachable] {
		delete(c.made, unreachable)
		c.log.Info("Progress of volumes is recorded again")
	}
}

// noEvent logs that Events cannot be written.
func (c *complaints) noEvent(err error) {
	if c.first("event: " + reasonOf(err)) {
		c.log.Warn("Events of volumes cannot be written", "error", err)
	}
}

// unnamed logs, once for each reason, that the PersistentVolume of a restore is not recorded.
func (c *complaints) unnamed(err error) {
	if c.first("volume: " + reasonOf(err)) {
		c.log.Warn("The PersistentVolume of a restore is not recorded", "reason", reasonOf(err), "error", err)
	}
}

func (c *complaints) first(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[key] {
		return false
	}
	if c.made == nil {
		c.made = map[string]bool{}
	}
	c.made[key] = true
	return true
}
