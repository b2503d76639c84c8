package describe

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

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

// lacksRestic reports whether Velero's agent does not serve a volume: from 1.17 on it makes no restic backups, from 1.19 on no
// restic restores (docs/contracts/velero-node-agent.md 9).
func (a Agent) lacksRestic(v *Volume) bool {
	if a.Ours || a.Major == 0 || v1alpha1.UploaderName(v.Uploader) != uploaderRestic {
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
