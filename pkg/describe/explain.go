package describe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Explanation says why an operation is where it is, and what can be done about it.
type Explanation struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Subject   string `json:"subject,omitempty"` // the volume, as people look for it

	State  string   `json:"state"`
	Why    string   `json:"why"`             // a sentence
	Facts  []string `json:"facts,omitempty"` // what else matters
	Do     []string `json:"do,omitempty"`
	See    string   `json:"see,omitempty"` // a page of the documentation
	Events []Event  `json:"events,omitempty"`

	Causes  []Cause       `json:"causes,omitempty"`  // of Volumes
	Volumes []Explanation `json:"volumes,omitempty"` // of a Backup or Restore: those that have not completed
	Notes   []string      `json:"notes,omitempty"`   // what could not be found out, and why

	cause string // Why in words that hold for every volume with this cause; empty: Why without names and ages
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
	seeRestic   = documentation + "docs/restic-repositories.md#which-server-does-what"
	seeRestarts = documentation + "docs/restore.md#restarts"
	seeEnds     = documentation + "docs/restore.md#how-a-restore-ends"
	seePlugins  = documentation + "docs/volume-plugins.md#what-the-fields-mean"
)

// remedy is what to do about a failure that says some words: those of our agent, and of restic and kopia in Velero's.
type remedy struct{ words, do, see string }

var remedies = []remedy{
	{"wrong repository password", "put the password that the repository was made with into Secret velero-repo-credentials, key repository-password", seeFails},
	{"repository is locked", "find out whether the named owner still runs; if not, remove its lock with 'restic unlock'", seeLocks},
	{"fs-backup-timeout", "raise --fs-backup-timeout of the Velero server and of the node agent alike", seeDeadline},
	{"no space left", "make room in the repository (backup) or use a larger volume (restore)", seeFails},
	{"out of memory", "raise the memory limit of the node agent, or lower its concurrency", seeFails},
	{"lack of memory", "raise the memory limit of the node agent, or lower its concurrency", seeFails},
	{"x509: ", "put the authority's certificate into spec.objectStorage.caCert of the BackupStorageLocation", seeFails},
	{"restore-wait", "look at the pod with 'kubectl describe pod'; then restore it again", seeInit},
	{"the pod was deleted", "make sure that the pod stays while its volumes are moved, and try again", seeFails},
	{"credentials", "check the BackupStorageLocation and its Secret", seeFails},
	{"repository does not exist", "check bucket and prefix of the BackupStorageLocation, and the namespace of the backed-up pod", seeFails},
	{"is there a repository at", "check bucket and prefix of the BackupStorageLocation, and the namespace of the backed-up pod", seeFails},
	{"no byte moved", "check the storage and the network of the node, or raise --idle-timeout of the node agent", seeStalled},
	{"found a podvolumebackup with status", "the Velero server or its agent was restarted: make the backup again", seeFails},
}

// addRemedy finds what to do about a failure. It also says where to read on if nothing is known. What a message says has
// failed does not count: a pod called credentials-0 lacks no credentials.
func (e *Explanation) addRemedy(message string) {
	if _, why, ok := strings.Cut(message, " failed: "); ok {
		message = why
	}
	lower := strings.ToLower(message)
	for _, r := range remedies {
		if strings.Contains(lower, r.words) {
			e.do(r.do)
			e.See = r.see
			return
		}
	}
	e.See = cmp.Or(e.See, seeFails)
}

// Agent says which node agent a pod is: ours, or Velero's with its version.
type Agent struct {
	Ours         bool
	Major, Minor int // of Velero, as the tag of its image says; 0: not known
}

// OfAgent looks at labels and image.
func OfAgent(pod *corev1.Pod) Agent {
	if pod.Labels["app.kubernetes.io/name"] == "plimsoll-node-agent" {
		return Agent{Ours: true}
	}
	var a Agent
	for i := range pod.Spec.Containers {
		_, tag, ok := strings.Cut(lastOf(pod.Spec.Containers[i].Image, "/"), ":")
		tag, _, _ = strings.Cut(tag, "@")
		numbers := strings.SplitN(strings.TrimPrefix(tag, "v"), ".", 3)
		if !ok || len(numbers) < 2 {
			continue
		}
		major, err := strconv.Atoi(numbers[0])
		minor, minorErr := strconv.Atoi(numbers[1])
		if err == nil && minorErr == nil {
			a.Major, a.Minor = major, minor
			return a
		}
	}
	return a
}

func lastOf(s, separator string) string { return s[strings.LastIndex(s, separator)+1:] }

// lacksRestic says whether Velero's agent does not serve a volume: from 1.17 on it makes no restic backups, from 1.19 on no
// restic restores (docs/contracts/velero-node-agent.md 9).
func (a Agent) lacksRestic(v *Volume) bool {
	if a.Ours || a.Major == 0 || cmp.Or(v.Uploader, uploaderRestic) != uploaderRestic {
		return false
	}
	last := 16
	if v.Restores() {
		last = 18
	}
	return a.Major > 1 || a.Minor > last
}

// whyNotReady says why a pod does not run as it should, empty if it does.
func whyNotReady(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "is being deleted"
	}
	if why := containerTrouble(pod); why != "" {
		return why
	}
	if why := whyUnscheduled(pod); why != "" {
		return "has no node: " + why
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
			return strings.TrimSpace("is not ready: " + c.Message)
		}
	}
	if pod.Status.Phase != corev1.PodRunning {
		return "is " + cmp.Or(string(pod.Status.Phase), "not known to its node yet")
	}
	return ""
}

// containerTrouble says what a container of a pod says that is wrong with it, empty if none does.
func containerTrouble(pod *corev1.Pod) string {
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for i := range statuses {
		s := &statuses[i]
		switch {
		case s.State.Waiting != nil && !slices.Contains(beginnings, s.State.Waiting.Reason):
			return strings.TrimSpace(fmt.Sprintf("has container %s in %s %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message))
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			return fmt.Sprintf("has container %s ended with exit code %d, %s", s.Name, s.State.Terminated.ExitCode, s.State.Terminated.Reason)
		}
	}
	return ""
}

// beginnings are the reasons of containers that wait for nothing wrong.
var beginnings = []string{"PodInitializing", "ContainerCreating", ""}

func whyUnscheduled(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	return ""
}

// nodeTrouble says why a node does not work, empty if it does.
func nodeTrouble(node *corev1.Node) string {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return strings.TrimSpace(c.Reason + " " + c.Message)
		}
	}
	return ""
}
