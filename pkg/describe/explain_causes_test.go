package describe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// restoreOf is a case of a restore of one of many pods, which change makes different.
func restoreOf(i int, change func(*velerov1.PodVolumeRestore, *VolumeCase)) VolumeCase {
	r := podVolumeRestore()
	uid := types.UID(fmt.Sprintf("6c3f7a52-0d1e-4b7a-9a55-%012d", i))
	r.Name, r.Spec.Pod.Name, r.Spec.Pod.UID = fmt.Sprintf("shop-%05d", i), fmt.Sprintf("shard-%d", i), uid
	r.Annotations, r.Status = nil, velerov1.PodVolumeRestoreStatus{}
	pod := waitingPod(func(p *corev1.Pod) { p.Name, p.UID, p.Status.InitContainerStatuses = r.Spec.Pod.Name, uid, nil })
	c := VolumeCase{At: now, PodUID: uid, Pod: pod, Node: node(corev1.ConditionTrue), Agents: []corev1.Pod{ourAgent()}, AgentsKnown: true}
	change(r, &c)
	c.Volume = OfPodVolumeRestore(r)
	return c
}

// manyRestores are 20 of which most wait for the same image.
func manyRestores() []VolumeCase {
	missingDNS := Event{Type: "Warning", Reason: "MissingClusterDNS", Note: "kubelet does not have ClusterDNS IP configured", Time: now}
	var all []VolumeCase
	for i := range 20 {
		all = append(all, restoreOf(i, func(r *velerov1.PodVolumeRestore, c *VolumeCase) {
			told := progress.Snapshot{State: progress.StateWaiting, Heartbeat: now.Add(-9 * time.Minute)}
			c.Events = []Event{missingDNS}
			c.Events[0].Object = "Pod/" + c.Pod.Name
			switch {
			case i < 2:
				r.Status.Phase, told.State = velerov1.PodVolumeRestorePhaseFailed, progress.StateFailed
				told.Reason, told.Message = v1alpha1.ReasonWrongPassword, "open repository: wrong repository password"
				r.Status.Message = fmt.Sprintf("restore of volume \"data\" of pod shop/%s failed: %s; %s", r.Spec.Pod.Name, told.Message, told.Reason.Remedy())
			case i < 5:
				r.Status.Phase, told = velerov1.PodVolumeRestorePhaseInProgress, snapshots[progress.StateTransferring]
				told.Attempt, told.BytesDone = 1, int64(i)<<30
			case i == 5:
				c.Events = append(c.Events, Event{Type: "Warning", Reason: "FailedMount", Note: "MountVolume.SetUp failed: rpc error", Time: now, Object: "Pod/" + c.Pod.Name}, c.Events[0])
			default:
				c.Pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "restore-wait", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
					Reason: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image \"registry.example/node-agent:v2\" for pod %s_shop(%s)", c.Pod.Name, c.Pod.UID),
				}}}}
			}
			r.Annotations = map[string]string{v1alpha1.AnnotationProgress: encode(told)}
		}))
	}
	return all
}

// TestCauses holds what people read of 20 volumes: four causes, and each once.
func TestCauses(t *testing.T) {
	t.Parallel()
	c := OperationCase{At: now, Operation: OfRestore(restore(velerov1.RestorePhaseInProgress)), ServersKnown: true, Servers: []corev1.Pod{agent("velero/velero:v1.18.3")}}
	c.Operation.Items.Done = c.Operation.Items.Total
	var volumes []Volume
	for _, v := range manyRestores() {
		volumes, c.Volumes = append(volumes, v.Volume), append(c.Volumes, v.Explain())
	}
	c.Totals = Sum(volumes)
	e := c.Explain()
	var text strings.Builder
	if err := e.Print(&text, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain/many.txt", text.String())
	values, err := json.MarshalIndent(e.Causes, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "explain/many.json", string(values)+"\n")
	if lines := strings.Count(text.String(), "\n"); lines > 60 {
		t.Errorf("%d lines for 20 volumes", lines)
	}
	if strings.Contains(string(values), "MissingClusterDNS") {
		t.Error("MissingClusterDNS is a cause")
	}
	affected := 0
	for _, cause := range e.Causes {
		affected += len(cause.Volumes)
	}
	if affected != len(volumes) {
		t.Errorf("%d volumes have causes, want %d", affected, len(volumes))
	}
}

// TestCauseOf groups volumes that differ in names, ages and places only.
func TestCauseOf(t *testing.T) {
	t.Parallel()
	named := func(c VolumeCase, pod string) VolumeCase {
		c.Volume.Pod, c.Volume.Name = pod, "nightly-"+pod
		return c
	}
	pair := func(state progress.State, changes ...func(*VolumeCase)) [2]Explanation {
		var both [2]Explanation
		for i, pod := range []string{"a", "b"} {
			c := named(backupCase(state, nil), pod)
			if i < len(changes) {
				changes[i](&c)
			}
			both[i] = c.Explain()
		}
		return both
	}
	failed := func(reason v1alpha1.Reason, message string) func(*VolumeCase) {
		return func(c *VolumeCase) {
			v := &c.Volume
			v.Progress.Reason, v.Progress.Message = reason, message
			v.Message = "backup of volume \"failed\" of pod shop/" + v.Pod + " failed: " + message
		}
	}
	for name, test := range map[string]struct {
		of   [2]Explanation
		want string // empty: two causes
	}{
		"the same":                  {pair(progress.StateScanning), "it is being scanned to determine its size"},
		"ages":                      {pair(progress.StateStalled, func(c *VolumeCase) { c.Volume.Progress.LastProgressTime = now.Add(-3 * time.Hour) }), "no byte has moved for some time"},
		"other places in the queue": {pair(progress.StateQueued, func(c *VolumeCase) { c.Volume.Progress.QueuePosition = 12 }), "it is in the queue of node node-a, which works on 0 other volumes now"},
		"other nodes":               {pair(progress.StateQueued, func(c *VolumeCase) { c.Volume.Node = "node-b" }), ""},
		"the same failure":          {pair(progress.StateFailed, failed(v1alpha1.ReasonNoSpace, "no space left"), failed(v1alpha1.ReasonNoSpace, "no space left")), "it has failed: no space left"},
		"a reason with other words": {
			pair(progress.StateFailed, failed(v1alpha1.ReasonNoSpace, "write a: no space left"), failed(v1alpha1.ReasonNoSpace, "write b: no space left")),
			"the volume (restore) or the repository (backup) is full",
		},
		"another reason":    {pair(progress.StateFailed, failed(v1alpha1.ReasonNoSpace, "no space left"), failed(v1alpha1.ReasonVolumeIO, "no space left")), ""},
		"another location":  {pair(progress.StateFailed, func(c *VolumeCase) { c.Volume.Location = "other" }), ""},
		"another data path": {pair(progress.StateFailed, func(c *VolumeCase) { c.Volume.Uploader = "kopia" }), ""},
		"a later reason":    {pair(progress.StateFailed, failed("Later", "x"), failed("Later", "y")), "Later"},
		"unreadable files": {
			pair(progress.StateCompleted, func(c *VolumeCase) { c.Volume.Progress.Errors = 1 }, func(c *VolumeCase) { c.Volume.Progress.Errors = 3 }),
			"it has completed without files that could not be read",
		},
	} {
		causes := Causes(test.of[:])
		switch {
		case test.want == "" && len(causes) != 2:
			t.Errorf("%s: one cause: %+v", name, causes)
		case test.want == "":
			if causes[0].Why != test.of[0].Why || causes[0].Volumes[0].Detail != "" {
				t.Errorf("%s: a cause of one volume is %+v", name, causes[0])
			}
		case len(causes) != 1 || causes[0].Why != test.want || len(causes[0].Volumes) != 2:
			t.Errorf("%s: got %+v, want %q", name, causes, test.want)
		}
	}
}

// TestBlockedBy has Events of a pod, the oldest first, of which only some keep it from running.
func TestBlockedBy(t *testing.T) {
	t.Parallel()
	warning := func(reason string) Event { return Event{Type: "Warning", Reason: reason, Note: "n", Object: "Pod/p"} }
	normal := func(reason string) Event { return Event{Type: "Normal", Reason: reason, Note: "n", Object: "Pod/p"} }
	for name, test := range map[string]struct {
		events []Event
		want   string
	}{
		"none":                           {nil, ""},
		"a volume":                       {[]Event{normal("Scheduled"), warning("FailedMount")}, "FailedMount: n"},
		"a volume, and what matters not": {[]Event{warning("FailedAttachVolume"), warning("MissingClusterDNS"), warning("DNSConfigForming")}, "FailedAttachVolume: n"},
		"what matters not":               {[]Event{warning("MissingClusterDNS"), warning("Unhealthy")}, ""},
		"an image":                       {[]Event{normal("Pulling"), warning("Failed"), normal("BackOff")}, "Failed: n"},
		"a volume that has come":         {[]Event{warning("FailedMount"), normal("Pulling")}, ""},
		"of another object":              {[]Event{{Type: "Warning", Reason: "FailedMount", Object: "PodVolumeRestore/x"}}, ""},
		"a node that was found":          {[]Event{warning("FailedScheduling"), normal("Scheduled")}, ""},
	} {
		c := VolumeCase{Events: test.events}
		if got := c.blockedBy(); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestAddPodEvents holds that the Events of a running pod do not push those of its backup out of sight.
func TestAddPodEvents(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }
	own := []Event{
		{Time: at(1), Type: corev1.EventTypeNormal, Reason: "Started", Object: "PodVolumeBackup/a"},
		{Time: at(5), Type: corev1.EventTypeWarning, Reason: "Stalled", Object: "PodVolumeBackup/a"},
	}
	pods := []Event{
		{Time: at(2), Type: corev1.EventTypeNormal, Reason: "Pulled", Object: "Pod/web-0"},
		{Time: at(3), Type: corev1.EventTypeWarning, Reason: "FailedMount", Object: "Pod/web-0"},
		{Time: at(9), Type: corev1.EventTypeWarning, Reason: "MissingClusterDNS", Object: "Pod/web-0"},
	}
	for kind, want := range map[string]string{
		KindPodVolumeBackup:  "Started FailedMount Stalled",
		KindPodVolumeRestore: "Started Pulled FailedMount Stalled MissingClusterDNS",
	} {
		c := VolumeCase{Volume: Volume{Kind: kind}, Events: slices.Clone(own)}
		c.AddPodEvents(pods)
		var got []string
		for _, e := range c.Events {
			got = append(got, e.Reason)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", kind, got, want)
		}
	}
}
