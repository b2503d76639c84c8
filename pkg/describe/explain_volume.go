package describe

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// VolumeCase is what is known around a volume that is backed up or restored. What could not be read is nil and not missing.
// Of one that a plugin moves there are only the volume and its Events.
type VolumeCase struct {
	At       time.Time
	Volume   Volume
	Canceled bool // spec.cancel is set
	Deleting bool

	PodUID      types.UID // that of the spec
	Pod         *corev1.Pod
	PodMissing  bool
	Node        *corev1.Node
	NodeMissing bool

	Agents      []corev1.Pod // of the volume's node
	AgentsKnown bool

	Others   []Volume  // of the same node, which have not ended
	Deadline time.Time // when the server gives up on a Backup's volumes; zero: never, or not known
	Events   []Event   // of the object and of its pod
}

// Explain says why the volume is where it is.
func (c *VolumeCase) Explain() Explanation {
	v := &c.Volume
	e := Explanation{Kind: v.Kind, Namespace: v.Namespace, Name: v.Name, Subject: v.subject(), State: string(v.Progress.State), Reason: v.Progress.Reason, Events: c.Events}
	e.group = group{uploader: v1alpha1.UploaderName(v.Uploader), location: v.Location}
	switch {
	case v.OfPlugin():
		c.explainPlugin(&e)
		return e
	case v.Ended():
		c.explainEnd(&e)
		return e
	case v.claimed():
		c.explainWork(&e)
	default:
		c.explainWait(&e)
	}
	c.addWhatComes(&e)
	return e
}

// claimed reports whether an agent has begun.
func (v *Volume) claimed() bool { return v.Phase == phaseInProgress || v.Phase == "Canceling" }

const phaseInProgress = "InProgress"

func (c *VolumeCase) explainEnd(e *Explanation) {
	v := &c.Volume
	switch {
	case v.Progress.State == progress.StateFailed:
		e.explainFailure(v)
		if v.Progress.LastError != "" {
			e.fact("the last file that could not be moved: %s", text.ShortPaths(v.Progress.LastError))
		}
	case v.Progress.State == progress.StateCanceled:
		e.Why = "it was canceled: spec.cancel was set, as Velero servers do it when they are restarted"
	case v.Progress.Errors > 0:
		moved := " that could not be read"
		if v.Kind == KindPodVolumeRestore {
			moved = " that could not be written"
		}
		e.Why, e.general = "it has completed without "+text.Count(v.Progress.Errors, "file", "files")+moved, "it has completed without files"+moved
		e.See = seeLacks
	default:
		e.Why = "it has completed"
	}
	if v.Progress.State != progress.StateFailed && v.Message != "" {
		e.fact("%s", v.Message)
	}
}

// explainFailure says it in the words of the object. Our agent ends its messages with what to do.
func (e *Explanation) explainFailure(v *Volume) {
	remedy := v.Progress.Reason.Remedy()
	said := cmp.Or(v.Message, v.Progress.Message, "no reason was given")
	if remedy != "" {
		said = strings.TrimSuffix(said, "; "+remedy)
	}
	e.Why = "it has failed: " + text.ShortPaths(said)
	if v.Progress.Reason != "" && v.Progress.Message != "" {
		e.brief = "it has failed: " + text.ShortPaths(v.Progress.Message)
	}
	e.addRemedy(v.Progress.Reason, said)
}

// explainWait is about a volume that no agent has begun.
func (c *VolumeCase) explainWait(e *Explanation) {
	v, s := &c.Volume, &c.Volume.Progress
	present := !s.Heartbeat.IsZero() && !v.Silent(c.At) // an agent that has just spoken is there
	if v.Restores() && c.podHolds(e) || !present && c.nobodyServes(e) {
		return
	}
	switch age := c.At.Sub(v.Created); {
	case s.State == progress.StateWaiting:
		c.explainReason(e)
	case s.QueuePosition > 0:
		c.explainQueue(e)
	case v.Phase == "Accepted" || v.Phase == "Prepared":
		e.Why = "Velero's node agent has it in phase " + v.Phase + ": it waits for the pod that moves the data"
		e.do("look for pods in namespace " + v.Namespace + " with the volume's name: 'kubectl describe pod' says what they wait for")
	case c.working() > 0:
		e.Why = fmt.Sprintf("the node agent of node %s works on %s first", c.node(), text.Count(c.working(), "other volume", "other volumes"))
		c.listOthers(e)
		e.See = seeQueue
	case age < silence:
		e.Why, e.general = fmt.Sprintf("it was created %s ago; its node agent is there and takes it in a moment", Duration(age)), "it was just created; its node agent is there and takes it in a moment"
	default:
		e.Why, e.general = fmt.Sprintf("it was not picked up for %s, although a node agent runs", Duration(age)), "it was not picked up for some time, although a node agent runs"
		e.do("compare --namespace in the log of the node agent with namespace " + v.Namespace + ", and look for errors in it")
		e.See = seeBegin
	}
}

// nobodyServes finds out whether the volume's node has an agent that can work on it.
func (c *VolumeCase) nobodyServes(e *Explanation) bool {
	v, node := &c.Volume, c.node()
	switch {
	case c.NodeMissing:
		e.Why = fmt.Sprintf("its node %s does not exist any more, so no agent serves it", node)
		e.do("make the backup or restore again")
	case c.Node != nil && nodeTrouble(c.Node) != "":
		e.Why = fmt.Sprintf("its node %s is not ready: %s", node, nodeTrouble(c.Node))
		e.do("bring the node back; its node agent goes on where it was")
	case node == "" || !c.AgentsKnown:
		return false
	case len(c.Agents) == 0:
		e.Why = "no node agent runs on node " + node
		e.do("look at DaemonSet node-agent in namespace " + v.Namespace + ": a taint, a nodeSelector, or why its pods do not start")
		e.See = seeAgent
	case whyNotReady(&c.Agents[0]) != "" && !c.anyReady():
		e.Why = fmt.Sprintf("the node agent of node %s, pod %s, %s", node, c.Agents[0].Name, whyNotReady(&c.Agents[0]))
		e.do(fmt.Sprintf("look at it: kubectl -n %s describe pod %s", c.Agents[0].Namespace, c.Agents[0].Name))
		e.See = seeAgent
	case c.allLackRestic():
		a := OfAgent(&c.Agents[0])
		e.Why = fmt.Sprintf("the node agent of node %s is that of Velero %d.%d, which does not serve restic", node, a.Major, a.Minor)
		e.do("install the node agent of this project, which does, or back up with kopia")
		e.See = seeRestic
	default:
		return false
	}
	return true
}

func (c *VolumeCase) anyReady() bool {
	for i := range c.Agents {
		if whyNotReady(&c.Agents[i]) == "" {
			return true
		}
	}
	return false
}

func (c *VolumeCase) allLackRestic() bool {
	for i := range c.Agents {
		if !OfAgent(&c.Agents[i]).lacksRestic(&c.Volume) {
			return false
		}
	}
	return len(c.Agents) > 0
}

// node is where the volume is: a restore's is that of its pod.
func (c *VolumeCase) node() string {
	if c.Volume.Node == "" && c.Pod != nil {
		return c.Pod.Spec.NodeName
	}
	return c.Volume.Node
}

// The names that Velero gives the init container in which a restored pod waits for its volumes.
var waitingContainers = map[string]bool{v1alpha1.ContainerRestoreWait: true, "restic-wait": true}

// podHolds finds out whether a restore waits for its pod: it is begun when the pod runs its init container.
func (c *VolumeCase) podHolds(e *Explanation) bool {
	if c.Pod == nil && !c.PodMissing {
		return false // nobody could look
	}
	name := c.Volume.PodNamespace + "/" + c.Volume.Pod
	e.See = seeInit
	switch pod := c.Pod; {
	case c.PodMissing:
		e.Why = fmt.Sprintf("its pod %s does not exist; a node agent fails it five minutes after its creation", name)
		e.do("find out who deleted the pod, and restore again")
	case c.PodUID != "" && pod.UID != c.PodUID:
		e.Why = fmt.Sprintf("its pod %s was replaced by another one of that name, which does not wait for it", name)
		e.do("restore again, and keep controllers from replacing the pod meanwhile")
	case pod.DeletionTimestamp != nil:
		e.Why = fmt.Sprintf("its pod %s is being deleted", name)
		e.do("restore again when it is gone")
	case pod.Spec.NodeName == "":
		e.Why = fmt.Sprintf("its pod %s has no node yet: %s", name, cmp.Or(whyUnscheduled(pod), "the scheduler has not looked at it"))
		e.do("give the pod a node that can take it: resources, taints, node affinity, its PersistentVolumeClaims")
	default:
		return c.initContainerHolds(e, name)
	}
	return true
}

func (c *VolumeCase) initContainerHolds(e *Explanation, name string) bool {
	waiting := ""
	for i := range c.Pod.Spec.InitContainers {
		if n := c.Pod.Spec.InitContainers[i].Name; waitingContainers[n] {
			waiting = n
		}
	}
	if waiting == "" {
		e.Why = fmt.Sprintf("its pod %s has no init container restore-wait, so it does not wait for its volumes, and they are not written", name)
		e.do("restore the pod again, with a server that adds the init container")
		return true
	}
	for i := range c.Pod.Status.InitContainerStatuses {
		s := &c.Pod.Status.InitContainerStatuses[i]
		switch {
		case s.Name != waiting && s.State.Terminated == nil && s.State.Running != nil:
			e.Why = fmt.Sprintf("its pod %s still runs init container %s; %s comes after it", name, s.Name, waiting)
			return true
		case s.Name == waiting && s.State.Running != nil:
			e.See = ""
			return false
		case s.Name == waiting && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0:
			e.Why = fmt.Sprintf("init container %s of its pod %s has ended already: the pod does not wait for this volume", waiting, name)
			e.do("restore the pod again")
			return true
		}
	}
	e.Why = fmt.Sprintf("its pod %s does not run init container %s yet: it %s", name, waiting, cmp.Or(whyNotReady(c.Pod), "starts"))
	if warning := c.blockedBy(); warning != "" && containerTrouble(c.Pod) == "" {
		e.Why += "; its last Warning: " + warning
	}
	e.do(fmt.Sprintf("look at it: kubectl -n %s describe pod %s", c.Volume.PodNamespace, c.Volume.Pod))
	return true
}

// explainWork is about a volume that an agent has begun.
func (c *VolumeCase) explainWork(e *Explanation) {
	v, s := &c.Volume, &c.Volume.Progress
	abandoned := v.Silent(c.At) || v.Source == SourceStatus
	if abandoned && c.nobodyServes(e) {
		e.fact("it was begun, and goes on when an agent of its node comes back; Velero's own agent fails it instead")
		return
	}
	switch {
	case v.Silent(c.At):
		e.Why, e.general = "its agent has said nothing for "+Age(c.At, s.Heartbeat), "its agent has said nothing for some time"
		e.do("look at the log of the node agent of node " + c.node() + ": it may not reach the API server")
		e.See = seeStalled
	case s.QueuePosition > 0:
		c.explainQueue(e)
	case s.State == progress.StateWaiting:
		c.explainReason(e)
	case s.State == progress.StateStalled:
		c.explainStall(e)
	case s.State == progress.StateScanning:
		e.Why = "it is being scanned to determine its size"
		e.See = seeStates
	case s.State == progress.StateFinishing:
		e.Why = "all data is read, and the last of it is being stored, which takes minutes when the upload is slow"
		e.See = seeStates
	default:
		e.Why, e.general = "it moves: "+v.done(), "it moves"
		if v.Source != SourceStatus {
			e.Why += ", " + Rate(s.BytesPerSecond) + ", time left " + ETA(s.ETASeconds)
		}
	}
	if v.Source == SourceStatus {
		e.fact("only the object's status tells of it, as Velero's own node agent writes it: whether it is stuck cannot be told")
	}
	if s.Attempt > 1 {
		e.fact("this is attempt %d; %s", s.Attempt, cmp.Or(c.lastAttempt(), "why the one before ended is not known any more"))
	}
	if s.Errors > 0 {
		e.fact("%s could not be moved, the last: %s", text.Count(s.Errors, "file", "files"), text.ShortPaths(s.LastError))
	}
}

// explainStall says where it hangs, as far as the agent knows.
func (c *VolumeCase) explainStall(e *Explanation) {
	s := &c.Volume.Progress
	e.Why, e.general = "no byte has moved for "+StallAge(c.At, s), "no byte has moved for some time"
	if s.Reason == v1alpha1.ReasonFinishStalled {
		info, _ := s.Reason.Info()
		e.Why, e.general = e.Why+": "+info.Meaning, e.general+": "+info.Meaning
	}
	e.See = seeStalled
	e.addReason(s.Reason)
}

// explainReason is about what the agent says that it waits for.
func (c *VolumeCase) explainReason(e *Explanation) {
	s := &c.Volume.Progress
	what := "its agent does not say for what"
	if s.Reason != "" { // the agent's endpoint leaves out the message, which may name files
		what = string(s.Reason) + "; the agent writes the details to the object within ten seconds, so ask again"
	}
	e.Why = "it waits: " + cmp.Or(s.Message, what)
	e.See = seeStates
	e.addReason(s.Reason)
}

func (c *VolumeCase) explainQueue(e *Explanation) {
	s := &c.Volume.Progress
	rest := fmt.Sprintf("in the queue of node %s, which works on %s now", c.node(), text.Count(c.working(), "other volume", "other volumes"))
	e.Why, e.general = fmt.Sprintf("it is number %d %s", s.QueuePosition, rest), "it is "+rest
	c.listOthers(e)
	e.do("wait, or raise --concurrency of the node agent")
	e.See = seeQueue
}

func (v *Volume) works() bool {
	return v.claimed() && v.Progress.QueuePosition == 0 && v.Progress.State != progress.StateWaiting
}

// working is how many volumes of the node have a slot.
func (c *VolumeCase) working() int {
	n := 0
	for i := range c.Others {
		if c.Others[i].works() {
			n++
		}
	}
	return n
}

// listOthers tells of those that have a slot.
func (c *VolumeCase) listOthers(e *Explanation) {
	for i := range c.Others {
		if v := &c.Others[i]; v.works() {
			e.fact("%s (%s %s): %s, %s, time left %s", v.subject(), v.Kind, v.Name, v.Progress.State, v.done(), ETA(v.Progress.ETASeconds))
		}
	}
}

// addWhatComes tells of ends that somebody has asked for, or will bring.
func (c *VolumeCase) addWhatComes(e *Explanation) {
	if c.Canceled {
		e.fact("spec.cancel is set: its agent ends it")
	}
	if c.Deleting {
		e.fact("it is being deleted: it goes when its agent has ended it")
	}
	if !c.Deadline.IsZero() {
		left := c.Deadline.Sub(c.At)
		if left <= 0 {
			e.fact("the server has given up on all volumes of the Backup %s ago, unless its --fs-backup-timeout is longer than assumed", Duration(-left))
			return
		}
		e.fact("the server gives up on all volumes of the Backup in %s, and the agent fails this one shortly before; by the Backup's annotation, or --fs-backup-timeout of 4h", Duration(left))
	}
}
