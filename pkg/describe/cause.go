package describe

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Cause is why some volumes of a Backup or Restore are where they are: one reason and one remedy for all of them.
type Cause struct {
	State string   `json:"state"`
	Why   string   `json:"why"`             // without the names, places and ages of the single volumes, if there are several
	Facts []string `json:"facts,omitempty"` // that hold for all of them
	Do    []string `json:"do,omitempty"`
	See   string   `json:"see,omitempty"`

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

// Causes groups explanations of volumes that say the same, in the order in which the causes come first.
func Causes(volumes []Explanation) []Cause {
	var causes []Cause
	for i := range volumes {
		v := &volumes[i]
		at := slices.IndexFunc(causes, func(c Cause) bool { return c.State == v.State && c.Why == v.general() })
		if at < 0 {
			at = len(causes)
			causes = append(causes, Cause{State: v.State, Why: v.general(), Facts: slices.Clone(v.Facts), Do: v.Do, See: v.See})
		}
		c := &causes[at]
		c.Facts = slices.DeleteFunc(c.Facts, func(fact string) bool { return !slices.Contains(v.Facts, fact) })
		affected := AffectedVolume{Kind: v.Kind, Namespace: v.Namespace, Name: v.Name, Subject: v.Subject}
		if detail := v.nameless(); detail != c.Why {
			affected.Detail = strings.TrimPrefix(detail, c.Why+": ")
		}
		c.Volumes = append(c.Volumes, affected)
	}
	for i := range causes {
		if c := &causes[i]; len(c.Volumes) == 1 {
			only := slices.IndexFunc(volumes, func(v Explanation) bool { return v.Kind == c.Volumes[0].Kind && v.Name == c.Volumes[0].Name })
			c.Why, c.Volumes[0].Detail = volumes[only].Why, ""
		}
	}
	return causes
}

// general returns Why as it is for every volume that has this cause.
func (e *Explanation) general() string { return cmp.Or(e.cause, replaceAll(e.nameless(), figures)) }

// nameless returns Why without the names of the volume and its pod.
func (e *Explanation) nameless() string {
	why := e.Why
	if _, pod, ok := strings.Cut(e.Subject, " of pod "); ok {
		namespace, name, _ := strings.Cut(pod, "/")
		why = strings.ReplaceAll(why, name+"_"+namespace+"(", "(") // as kubelet names a pod, before its UID
		why = failedVolume.ReplaceAllString(why, "$1")
		why = regexp.MustCompile(`(\bpod) `+regexp.QuoteMeta(pod)+`($|[ :,;])`).ReplaceAllString(why, "$1$2") // its pod shop/web-0
	}
	return replaceAll(why, names)
}

// failedVolume is how our agent begins messages: restore of volume "data" of pod shop/web-0 failed: ...
var failedVolume = regexp.MustCompile(`^(it has failed: )(?:backup|restore) of volume "[^"]*" of pod \S+ failed: `)

// generality is how something that differs from volume to volume is written for all.
type generality struct {
	pattern *regexp.Regexp
	general string
}

// names are those that somebody generated.
var names = []generality{
	{regexp.MustCompile(`\(?\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b\)?`), "..."}, // a UID, or a part of the name of a PersistentVolume
	{regexp.MustCompile(`\bkube-api-access-[a-z0-9]{5}\b`), "kube-api-access-..."},
}

// figures are places and ages.
var figures = []generality{
	{regexp.MustCompile(`\bnumber \d+ in the queue`), "in the queue"},
	{regexp.MustCompile(`\bback-off (\d+[hms])+ `), "back-off "}, // kubelet's
	{regexp.MustCompile(`\b(for|in the|created) (\d+[ydhms])+\b`), "$1 some time"},
	{regexp.MustCompile(`\bwithout \d+ files? that`), "without files that"},
}

func replaceAll(text string, all []generality) string {
	for _, g := range all {
		text = g.pattern.ReplaceAllString(text, g.general)
	}
	return text
}

// shownVolumes is how many volumes of one cause people are shown.
const shownVolumes = 10

func (c *Cause) print(p *page) {
	p.section(progress.Count(len(c.Volumes), "volume", "volumes")+", "+c.State, func() {
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
				p.text(progress.Count(more, "more volume", "more volumes") + "; -o json lists all")
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
		if e := &c.Events[i]; e.Reason == "Retrying" && strings.HasPrefix(e.Object, c.Volume.Kind+"/") {
			return e.Note
		}
	}
	return ""
}
