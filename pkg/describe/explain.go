package describe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Explanation says why an operation is where it is, and what can be done about it.
type Explanation struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Subject   string `json:"subject,omitempty"` // the volume, as people look for it

	State  string          `json:"state"`
	Reason v1alpha1.Reason `json:"reason,omitempty"` // as the node agent says it
	Why    string          `json:"why"`              // a sentence
	Facts  []string        `json:"facts,omitempty"`  // what else matters
	Do     []string        `json:"do,omitempty"`
	See    string          `json:"see,omitempty"` // a page of the documentation
	Events []Event         `json:"events,omitempty"`

	Causes  []Cause       `json:"causes,omitempty"`  // of Volumes
	Volumes []Explanation `json:"volumes,omitempty"` // of a Backup or Restore: those that have not completed
	Notes   []string      `json:"notes,omitempty"`   // what could not be found out, and why

	general string // Why in words that hold for every volume with this cause; empty: Why without names
	brief   string // Why without names; empty: they have to be taken out
	group   group
}

// Event is a Kubernetes Event.
type Event struct {
	Time   time.Time `json:"time"` // when it was last seen
	Type   string    `json:"type"` // Normal or Warning
	Reason string    `json:"reason"`
	Note   string    `json:"note"`
	Object string    `json:"object"` // kind/name
}

// OfEvents takes what both APIs of Events show, the oldest first.
func OfEvents(list []corev1.Event) []Event {
	events := make([]Event, 0, len(list))
	for i := range list {
		e := &list[i]
		seen := e.LastTimestamp.Time
		switch {
		case e.Series != nil:
			seen = e.Series.LastObservedTime.Time
		case seen.IsZero():
			seen = e.EventTime.Time
		}
		events = append(events, Event{
			Time: cmp.Or(seen, e.FirstTimestamp.Time, e.CreationTimestamp.Time), Type: e.Type, Reason: e.Reason, Note: e.Message,
			Object: e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name,
		})
	}
	slices.SortStableFunc(events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return events
}

// Print writes an explanation for people. Nothing in it can steer a terminal.
func (e *Explanation) Print(w io.Writer, at time.Time) error {
	p := newPage(w)
	e.print(p, at)
	if len(e.Causes) > 0 {
		p.blank()
		p.section("Volumes that have not completed:", func() { e.printCauses(p, at) })
	}
	p.notes(e.Notes)
	return p.out.Flush()
}

// printCauses writes a cause that several volumes have once, and all that is known of a volume that is the only one.
func (e *Explanation) printCauses(p *page, at time.Time) {
	for i := range e.Causes {
		c := &e.Causes[i]
		if len(c.Volumes) > 1 {
			c.print(p)
			continue
		}
		for j := range e.Volumes {
			if v := &e.Volumes[j]; v.Kind == c.Volumes[0].Kind && v.Name == c.Volumes[0].Name {
				v.print(p, at)
			}
		}
	}
}

// shownEvents is how many Events people are shown: the newest.
const shownEvents = 8

func (e *Explanation) print(p *page, at time.Time) {
	title := e.Kind + " " + e.Namespace + "/" + e.Name
	if e.Subject != "" {
		title += ", " + e.Subject
	}
	p.section(title, func() {
		p.line("State", e.State)
		p.line("Why", e.Why)
		for _, fact := range e.Facts {
			p.text("- " + fact)
		}
		for _, do := range e.Do {
			p.line("Do", do)
		}
		p.line("See", e.See)
		shown := e.Events[max(len(e.Events)-shownEvents, 0):]
		if len(shown) == 0 {
			return
		}
		p.section("Events:", func() {
			for _, event := range shown {
				p.text(fmt.Sprintf("%s ago  %s %s  %s: %s", Age(at, event.Time), event.Type, event.Reason, event.Object, event.Note))
			}
		})
	})
}

func (e *Explanation) fact(format string, args ...any) {
	e.Facts = append(e.Facts, fmt.Sprintf(format, args...))
}

func (e *Explanation) do(what string) { e.Do = append(e.Do, what) }

// The pages of the documentation that explanations lead to.
const (
	documentation = "https://github.com/plimsoll-io/plimsoll/blob/main/"

	seeAgent    = documentation + "docs/troubleshooting.md#the-agent-does-not-start"
	seeBegin    = documentation + "docs/troubleshooting.md#a-backup-does-not-begin"
	seeStalled  = documentation + "docs/troubleshooting.md#a-backup-does-not-move"
	seeFails    = documentation + "docs/troubleshooting.md#a-backup-fails"
	seeLacks    = documentation + "docs/troubleshooting.md#a-backup-lacks-files-or-volumes"
	seeInit     = documentation + "docs/troubleshooting.md#a-restored-pod-stays-in-init"
	seeLocks    = documentation + "docs/node-agent.md#locks"
	seeQueue    = documentation + "docs/node-agent.md#queue"
	seeDeadline = documentation + "docs/node-agent.md#deadlines"
	seeStates   = documentation + "docs/node-agent.md#states"
	seeRestic   = documentation + "docs/restic-repositories.md#what-each-server-version-supports"
	seeRestarts = documentation + "docs/restore.md#restarts"
	seeEnds     = documentation + "docs/restore.md#how-a-restore-ends"
	seePlugins  = documentation + "docs/volume-plugins.md#what-the-fields-mean"
)

// addRemedy says what to do about a failure for a reason, and where to read on. Messages of other programs, which have no
// reason, are looked up by their phrases.
func (e *Explanation) addRemedy(reason v1alpha1.Reason, message string) {
	e.See = seeFails
	if reason == "" || reason == v1alpha1.ReasonDataPath {
		for _, known := range phrases() {
			if strings.Contains(message, known.phrase) {
				e.do(known.do)
				return
			}
		}
	}
	e.addReason(reason)
}

// addReason says what the documentation knows of a reason.
func (e *Explanation) addReason(reason v1alpha1.Reason) {
	info, known := reason.Info()
	if !known {
		return
	}
	if info.Remedy != "" {
		e.do(info.Remedy)
	}
	e.See = documentation + "docs/" + info.Page
}

// phrase is a part of a message that another program writes in exactly these words.
type phrase struct{ phrase, do string }

// phrases are those of Velero's node agents, which write no reasons, and of restic and Go's TLS where our own agent has no
// closer reason than DataPath. What our own agent says is told by its reason alone.
func phrases() []phrase {
	return []phrase{
		{"wrong password or no key found", v1alpha1.ReasonWrongPassword.Remedy()},                                      // docs/contracts/restic-kopia.md 3
		{"repository is already locked", v1alpha1.ReasonRepositoryLocked.Remedy()},                                     // docs/contracts/restic-kopia.md 3
		{"Is there a repository at the following location?", v1alpha1.ReasonRepositoryNotFound.Remedy()},               // docs/contracts/restic-kopia.md 3
		{"found a podvolumebackup with status", "the Velero server or its agent was restarted: make the backup again"}, // docs/contracts/velero-node-agent.md 5
		{"x509: ", "put the authority's certificate into spec.objectStorage.caCert of the BackupStorageLocation"},      // crypto/x509
	}
}
