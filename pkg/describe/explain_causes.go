package describe

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// Cause is why some volumes of a Backup or Restore are where they are: one reason and one remedy for all of them.
type Cause struct {
	State  string          `json:"state"`
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	Why    string          `json:"why"`             // without the names, places and ages of the single volumes, if there are several
	Facts  []string        `json:"facts,omitempty"` // that hold for all of them
	Do     []string        `json:"do,omitempty"`
	See    string          `json:"see,omitempty"`

	Volumes []AffectedVolume `json:"volumes"`
}

// AffectedVolume is a volume that has a Cause.
type AffectedVolume struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Subject   string `json:"subject"`
	Detail    string `json:"detail,omitempty"` // what Why leaves out: how long, which place in the queue, how far
}

// group is what volumes with the same cause have in common. The text is that of explanations without a reason.
type group struct {
	state              string
	reason             v1alpha1.Reason
	uploader, location string
	text               string
}

func (e *Explanation) groupOf() group {
	g := e.group
	g.state, g.reason = e.State, e.Reason
	if e.Reason == "" {
		g.uploader, g.location, g.text = "", "", e.generalWhy()
	}
	return g
}

// Causes groups explanations of volumes that have the same cause, in the order in which the causes come first: by reason, data
// path and location where the node agent says a reason, by what they say otherwise.
func Causes(volumes []Explanation) []Cause {
	var groups []group
	members := map[group][]*Explanation{}
	for i := range volumes {
		g := volumes[i].groupOf()
		if members[g] == nil {
			groups = append(groups, g)
		}
		members[g] = append(members[g], &volumes[i])
	}
	causes := make([]Cause, len(groups))
	for i, g := range groups {
		causes[i] = newCause(members[g])
	}
	return causes
}

func newCause(volumes []*Explanation) Cause {
	first := volumes[0]
	c := Cause{State: first.State, Reason: first.Reason, Why: sharedWhy(volumes), Facts: slices.Clone(first.Facts), Do: first.Do, See: first.See}
	for _, v := range volumes {
		c.Facts = slices.DeleteFunc(c.Facts, func(fact string) bool { return !slices.Contains(v.Facts, fact) })
		affected := AffectedVolume{Kind: v.Kind, Namespace: v.Namespace, Name: v.Name, Subject: v.Subject}
		if detail := v.nameless(); len(volumes) > 1 && detail != c.Why {
			affected.Detail = strings.TrimPrefix(detail, c.Why+": ")
		}
		c.Volumes = append(c.Volumes, affected)
	}
	return c
}

// sharedWhy returns what all of the volumes say, or else what their reason means.
func sharedWhy(volumes []*Explanation) string {
	first := volumes[0]
	if len(volumes) == 1 {
		return first.Why
	}
	why := first.generalWhy()
	if !slices.ContainsFunc(volumes, func(v *Explanation) bool { return v.generalWhy() != why }) {
		return why
	}
	info, _ := first.Reason.Info()
	return cmp.Or(strings.ReplaceAll(info.Meaning, "`", ""), string(first.Reason))
}

// generalWhy returns Why as it is for every volume that has this cause.
func (e *Explanation) generalWhy() string {
	return cmp.Or(e.general, backOff.ReplaceAllString(e.nameless(), "back-off "))
}

// nameless returns Why without the names of the volume and its pod.
func (e *Explanation) nameless() string {
	if e.brief != "" {
		return e.brief
	}
	why := e.Why
	if _, pod, ok := strings.Cut(e.Subject, " of pod "); ok {
		namespace, name, _ := strings.Cut(pod, "/")
		why = strings.ReplaceAll(why, name+"_"+namespace+"(", "(")                                            // as kubelet names a pod, before its UID
		why = regexp.MustCompile(`(\bpod) `+regexp.QuoteMeta(pod)+`($|[ :,;])`).ReplaceAllString(why, "$1$2") // its pod shop/web-0
	}
	return serviceAccountVolume.ReplaceAllString(uid.ReplaceAllString(why, "..."), "kube-api-access-...")
}

// What kubelet's messages have of each pod. They have no reason that would be the same for all.
var (
	uid                  = regexp.MustCompile(`\(?\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b\)?`) // or a part of the name of a PersistentVolume
	serviceAccountVolume = regexp.MustCompile(`\bkube-api-access-[a-z0-9]{5}\b`)
	backOff              = regexp.MustCompile(`\bback-off (\d+[hms])+ `)
)

// shownVolumes is how many volumes of one cause people are shown.
const shownVolumes = 10

func (c *Cause) print(p *page) {
	p.section(text.Count(len(c.Volumes), "volume", "volumes")+", "+c.State, func() {
		p.line("Why", c.Why)
		for _, fact := range c.Facts {
			p.text("- " + fact)
		}
		for _, do := range c.Do {
			p.line("Do", do)
		}
		p.line("See", c.See)
		p.section("Volumes:", func() {
			for i := range c.Volumes[:min(len(c.Volumes), shownVolumes)] {
				v := &c.Volumes[i]
				line := v.Subject + " (" + v.Kind + " " + v.Name + ")"
				if v.Detail != "" {
					line += ": " + v.Detail
				}
				p.text(line)
			}
			if more := len(c.Volumes) - shownVolumes; more > 0 {
				p.text(text.Count(more, "more volume", "more volumes") + "; -o json lists all")
			}
		})
	})
}

// blocking are the reasons of Warnings about a pod that keep its init containers from running: its volumes, its sandbox, images and
// containers (k8s.io/kubernetes 1.36, pkg/kubelet/events/event.go, and admission of kubelet). All others, such as
// MissingClusterDNS, are no cause, and FailedScheduling is over when the pod has a node.
var blocking = map[string]bool{
	"FailedAttachVolume": true, "FailedMount": true, "FailedMapVolume": true, "FailedMountOnFilesystemMismatch": true,
	"FileSystemResizeFailed": true, "VolumeResizeFailed": true, "VolumePermissionChangeInProgress": true, "FailedPrepareDynamicResources": true,
	"FailedCreatePodSandBox": true, "FailedCreatePodContainer": true, "NetworkNotReady": true, "NodeNotReady": true,
	"Failed": true, "InspectFailed": true, "ErrImageNeverPull": true, "BackOff": true,
	"Evicted": true, "UnexpectedAdmissionError": true, "OutOfcpu": true, "OutOfmemory": true, "OutOfpods": true,
}

// beyond are the reasons of Events that say that a pod is past the Warnings before them: kubelet pulls and starts when
// volumes and sandbox are there.
var beyond = map[string]bool{"Pulling": true, "Pulled": true, "Created": true, "Started": true}

// AddPodEvents adds the Events of the volume's pod, in the order of time. A backup is of a pod that runs: of its Events only such
// Warnings matter, and not how it was started.
func (c *VolumeCase) AddPodEvents(events []Event) {
	for i := range events {
		e := &events[i]
		if c.Volume.Restores() || e.Type == corev1.EventTypeWarning && blocking[e.Reason] {
			c.Events = append(c.Events, *e)
		}
	}
	slices.SortStableFunc(c.Events, func(a, b Event) int { return a.Time.Compare(b.Time) })
}

// blockedBy returns the newest Warning that keeps the pod from running, empty if there is none.
func (c *VolumeCase) blockedBy() string {
	for i := len(c.Events) - 1; i >= 0; i-- {
		e := &c.Events[i]
		switch {
		case !strings.HasPrefix(e.Object, "Pod/"):
		case e.Type == corev1.EventTypeWarning && blocking[e.Reason]:
			return e.Reason + ": " + e.Note
		case beyond[e.Reason]:
			return ""
		}
	}
	return ""
}

// lastAttempt returns why the attempt before this one has ended, as its agent told it in an Event; empty if that is gone.
func (c *VolumeCase) lastAttempt() string {
	for i := len(c.Events) - 1; i >= 0; i-- {
		if e := &c.Events[i]; e.Reason == v1alpha1.EventRetrying && strings.HasPrefix(e.Object, c.Volume.Kind+"/") {
			return e.Note
		}
	}
	return ""
}
