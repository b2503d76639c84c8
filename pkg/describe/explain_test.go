package describe

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// agent is a node agent's pod that is ready.
func agent(image string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "node-agent-x", Labels: map[string]string{"name": "node-agent"}},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "node-agent", Image: image}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

func ourAgent() corev1.Pod {
	pod := agent("registry.example/plimsoll/node-agent:v1.0.0")
	pod.Labels["app.kubernetes.io/name"] = "plimsoll-node-agent"
	return pod
}

func crashing() corev1.Pod {
	pod := ourAgent()
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "node-agent", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"},
	}}}
	return pod
}

func node(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: ready, Reason: "KubeletNotReady", Message: "container runtime is down"},
	}}}
}

// waitingPod waits in its init container for its volumes, and change makes something of it.
func waitingPod(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "p1"},
		Spec:       corev1.PodSpec{NodeName: "node-a", InitContainers: []corev1.Container{{Name: "setup"}, {Name: "restore-wait"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{
			{Name: "setup", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
			{Name: "restore-wait", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

// backupCase is a case of a backup in a state on a node that is well.
func backupCase(state progress.State, change func(*VolumeCase)) VolumeCase {
	c := VolumeCase{
		At: now, Volume: OfPodVolumeBackup(podVolumeBackup(state)), Node: node(corev1.ConditionTrue), Agents: []corev1.Pod{ourAgent()}, AgentsKnown: true,
	}
	if change != nil {
		change(&c)
	}
	return c
}

// newBackupCase is a case of a backup that nobody has touched.
func newBackupCase(change func(*VolumeCase)) VolumeCase {
	return backupCase(progress.StateQueued, func(c *VolumeCase) {
		b := podVolumeBackup(progress.StateQueued)
		b.Annotations = nil
		c.Volume = OfPodVolumeBackup(b)
		if change != nil {
			change(c)
		}
	})
}

// restoreCase is a case of a restore that nobody has touched.
func restoreCase(pod *corev1.Pod, change func(*VolumeCase)) VolumeCase {
	r := podVolumeRestore()
	r.Annotations, r.Status = nil, velerov1.PodVolumeRestoreStatus{}
	c := VolumeCase{
		At: now, Volume: OfPodVolumeRestore(r), PodUID: "p1", Pod: pod, PodMissing: pod == nil, Node: node(corev1.ConditionTrue),
		Agents: []corev1.Pod{ourAgent()}, AgentsKnown: true,
	}
	if change != nil {
		change(&c)
	}
	return c
}

// pluginCase is a case of a backup by a plugin that moves.
func pluginCase(change func(*Volume)) VolumeCase {
	c := VolumeCase{At: now, Volume: pluginBackups()[0], AgentsKnown: true}
	if change != nil {
		change(&c.Volume)
	}
	return c
}

// withoutAnnotation makes a volume one of Velero's own agent.
func withoutAnnotation(c *VolumeCase) {
	b := podVolumeBackup(progress.StateTransferring)
	b.Annotations = nil
	b.Status.Progress.BytesDone, b.Status.Progress.TotalBytes = 3<<30, 8<<30
	c.Volume = OfPodVolumeBackup(b)
}

func TestExplainVolume(t *testing.T) {
	t.Parallel()
	busy := func(c *VolumeCase) {
		c.Others = []Volume{OfPodVolumeBackup(podVolumeBackup(progress.StateTransferring))}
	}
	old := func(c *VolumeCase) { c.Volume.Created = now.Add(-time.Hour) }
	for name, test := range map[string]struct {
		c    VolumeCase
		why  string
		more string // in facts, what to do, or the page to read
	}{
		// Not begun.
		"queued":                              {backupCase(progress.StateQueued, busy), "number 2 in the queue of node node-a, which works on 1 other volume now", "3.0 GiB of 8.0 GiB (37%), time left 7m7s"},
		"queued, its agent's pod is not seen": {backupCase(progress.StateQueued, func(c *VolumeCase) { busy(c); c.Agents = nil }), "number 2 in the queue", ""},
		"queued, and forgotten":               {backupCase(progress.StateQueued, func(c *VolumeCase) { busy(c); c.Agents, c.At = nil, now.Add(time.Hour) }), "no node agent runs", ""},
		"queued, what to do":                  {backupCase(progress.StateQueued, busy), "number 2", "raise --concurrency"},
		"Velero's agent is busy":              {newBackupCase(func(c *VolumeCase) { busy(c); c.Agents = []corev1.Pod{agent("velero/velero:v1.16.2")} }), "works on 1 other volume first", seeQueue},
		"young":                               {newBackupCase(func(c *VolumeCase) { c.Volume.Created = now.Add(-30 * time.Second) }), "created 30s ago", ""},
		"not taken":                           {newBackupCase(old), "it was not picked up for 60m", "--namespace"},
		"accepted":                            {newBackupCase(func(c *VolumeCase) { c.Volume.Phase = "Accepted" }), "phase Accepted", "describe pod"},
		"no agent":                            {newBackupCase(func(c *VolumeCase) { c.Agents = nil }), "no node agent runs on node node-a", seeAgent},
		"agents not readable":                 {newBackupCase(func(c *VolumeCase) { old(c); c.Agents, c.AgentsKnown, c.Node = nil, false, nil }), "it was not picked up", ""},
		"agent crashes":                       {newBackupCase(func(c *VolumeCase) { c.Agents = []corev1.Pod{crashing()} }), "has container node-agent in CrashLoopBackOff back-off 5m0s", "describe pod node-agent-x"},
		"one agent crashes":                   {newBackupCase(func(c *VolumeCase) { old(c); c.Agents = []corev1.Pod{crashing(), ourAgent()} }), "it was not picked up", ""},
		"agent unscheduled": {newBackupCase(func(c *VolumeCase) {
			c.Agents[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "too many pods"}}
		}), "has no node: too many pods", seeAgent},
		"node gone":              {newBackupCase(func(c *VolumeCase) { c.Node, c.NodeMissing = nil, true }), "node-a does not exist any more", "again"},
		"node not ready":         {newBackupCase(func(c *VolumeCase) { c.Node = node(corev1.ConditionUnknown) }), "node node-a is not ready: KubeletNotReady container runtime is down", "bring the node back"},
		"no restic in Velero":    {newBackupCase(func(c *VolumeCase) { c.Agents = []corev1.Pod{agent("reg:5000/velero/velero:v1.17.1@sha256:0")} }), "that of Velero 1.17, which does not serve restic", seeRestic},
		"restic in older Velero": {newBackupCase(func(c *VolumeCase) { old(c); c.Agents = []corev1.Pod{agent("velero/velero:v1.16.2")} }), "it was not picked up", ""},
		"kopia in Velero": {newBackupCase(func(c *VolumeCase) {
			old(c)
			c.Volume.Uploader, c.Agents = "kopia", []corev1.Pod{agent("velero/velero:v1.18.0")}
		}), "it was not picked up", ""},
		"our agent beside":  {newBackupCase(func(c *VolumeCase) { old(c); c.Agents = append(c.Agents, agent("velero/velero:v1.18.0")) }), "it was not picked up", ""},
		"Velero of unknown": {newBackupCase(func(c *VolumeCase) { old(c); c.Agents = []corev1.Pod{agent("velero/velero:main")} }), "it was not picked up", ""},
		"to be canceled":    {newBackupCase(func(c *VolumeCase) { c.Canceled, c.Deleting = true, true }), "", "spec.cancel is set"},

		// Restores wait for their pod.
		"pod missing":       {restoreCase(nil, nil), "pod shop/web-0 does not exist", "restore again"},
		"pod not readable":  {restoreCase(nil, func(c *VolumeCase) { c.PodMissing = false; c.Volume.Created = now }), "created 0s ago", ""},
		"pod replaced":      {restoreCase(waitingPod(func(p *corev1.Pod) { p.UID = "p2" }), nil), "was replaced", seeInit},
		"pod is deleted":    {restoreCase(waitingPod(func(p *corev1.Pod) { p.DeletionTimestamp = ago(0) }), nil), "is being deleted", ""},
		"pod has no node":   {restoreCase(waitingPod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), nil), "has no node yet: the scheduler has not looked", "node affinity"},
		"pod cannot be put": {restoreCase(waitingPod(func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Conditions = "", unscheduled }), nil), "0/3 nodes are available", ""},
		"pod does not wait": {restoreCase(waitingPod(func(p *corev1.Pod) { p.Spec.InitContainers = nil }), nil), "has no init container restore-wait", ""},
		"pod has ended": {restoreCase(waitingPod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[1].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		}), nil), "has ended already", ""},
		"pod does other work": {restoreCase(waitingPod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
			p.Status.InitContainerStatuses[1].State = corev1.ContainerState{}
		}), nil), "still runs init container setup", ""},
		"pod has no image": {restoreCase(waitingPod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[1].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
		}), nil), "does not run init container restore-wait yet: it has container restore-wait in ErrImagePull", "describe pod web-0"},
		"pod cannot mount": {restoreCase(waitingPod(func(p *corev1.Pod) { p.Status.InitContainerStatuses = nil }), func(c *VolumeCase) {
			c.Events = []Event{{Type: "Warning", Reason: "FailedMount", Note: "timed out", Object: "Pod/web-0"}, {Type: "Warning", Reason: "Stalled", Object: "PodVolumeRestore/x"}}
		}), "it is Pending; its last Warning: FailedMount: timed out", ""},
		"pod waits, no agent": {restoreCase(waitingPod(nil), func(c *VolumeCase) { c.Agents = nil }), "no node agent runs on node node-a", ""},
		"pod waits, old helper": {restoreCase(waitingPod(func(p *corev1.Pod) {
			p.Spec.InitContainers[1].Name, p.Status.InitContainerStatuses[1].Name = "restic-wait", "restic-wait"
		}), nil), "it was not picked up", ""},
		"restic of Velero 1.18":    {restoreCase(waitingPod(nil), func(c *VolumeCase) { old(c); c.Agents = []corev1.Pod{agent("velero/velero:v1.18.3")} }), "it was not picked up", ""},
		"no restic in Velero 1.19": {restoreCase(waitingPod(nil), func(c *VolumeCase) { c.Agents = []corev1.Pod{agent("velero/velero:v1.19.0")} }), "does not serve restic", seeRestic},

		// Begun.
		"locked, no message": {backupCase(progress.StateWaiting, func(c *VolumeCase) { c.Volume.Progress.Message = "" }), "it waits: RepositoryLocked; the agent writes the details", "restic unlock"},
		"locked":             {backupCase(progress.StateWaiting, nil), "it waits: the repository is locked by PID 7 on node-b", "restic unlock"},
		"scanning":           {backupCase(progress.StateScanning, nil), "determine its size", ""},
		"transferring":       {backupCase(progress.StateTransferring, nil), "it moves: 3.0 GiB of 8.0 GiB (37%), 12.0 MiB/s, time left 7m7s", "attempt 2"},
		"why again": {backupCase(progress.StateTransferring, func(c *VolumeCase) {
			c.Events = []Event{{Type: "Warning", Reason: "Retrying", Note: "connection reset", Object: "PodVolumeBackup/x"}}
		}), "it moves", "this is attempt 2; connection reset"},
		"why again, after a stall": {backupCase(progress.StateTransferring, func(c *VolumeCase) {
			c.Events = []Event{{Type: "Warning", Reason: "Retrying", Note: "no route", Object: "PodVolumeBackup/x"}, {Type: "Warning", Reason: "Stalled", Note: "reading hangs", Object: "PodVolumeBackup/x"}}
		}), "it moves", "this is attempt 2; no route"},
		"stalled": {backupCase(progress.StateStalled, nil), "no byte has moved for 7m", "does ls in the pod hang, too?"},
		"stalled after work without bytes": {
			backupCase(progress.StateStalled, func(c *VolumeCase) { c.Volume.Progress.LastWorkTime = now.Add(-3 * time.Minute) }),
			"no byte has moved for 7m, and no other work was done for 3m", seeStalled,
		},
		"stalled, files": {backupCase(progress.StateStalled, nil), "no byte", "open cache/a: permission denied"},
		"storing hangs":  {backupCase(progress.StateStalled, func(c *VolumeCase) { c.Volume.Progress.Reason = v1alpha1.ReasonFinishStalled }), "all data is read", "look at the storage and the network to it"},
		"scan hangs":     {backupCase(progress.StateStalled, func(c *VolumeCase) { c.Volume.Progress.Reason = v1alpha1.ReasonScanStalled }), "no byte", "NFS"},
		"stalled, for a reason of a later version": {backupCase(progress.StateStalled, func(c *VolumeCase) { c.Volume.Progress.Reason = "Later" }), "no byte has moved", seeStalled + "|alone"},
		"a state of a later version": {backupCase(progress.StateTransferring, func(c *VolumeCase) {
			b := podVolumeBackup(progress.StateTransferring)
			b.Annotations[v1alpha1.AnnotationProgress] = `{"state": "Verifying", "reason": "OfLater", "bytesDone": 1, "totalBytes": 2, "later": {}, "heartbeat": "` + now.Format(time.RFC3339) + `"}`
			c.Volume = OfPodVolumeBackup(b)
		}), "it moves: 1 B of 2 B (50%", ""},
		"finishing":        {backupCase(progress.StateFinishing, func(c *VolumeCase) { c.Volume.Progress.Heartbeat = now }), "all data is read", ""},
		"silent":           {backupCase(progress.StateFinishing, nil), "its agent has said nothing for 9m", seeStalled},
		"silent, no agent": {backupCase(progress.StateFinishing, func(c *VolumeCase) { c.Agents = nil }), "no node agent runs on node node-a", "goes on when an agent of its node comes back"},
		"by Velero":        {backupCase("", withoutAnnotation), "it moves: 3.0 GiB of 8.0 GiB (37%)", "whether it is stuck cannot be told"},
		"by Velero, gone":  {backupCase("", func(c *VolumeCase) { withoutAnnotation(c); c.Agents = nil }), "no node agent runs on node node-a", ""},
		"deadline":         {backupCase(progress.StateTransferring, func(c *VolumeCase) { c.Deadline = now.Add(90 * time.Minute) }), "it moves", "gives up on all volumes of the Backup in 90m"},
		"deadline passed":  {backupCase(progress.StateTransferring, func(c *VolumeCase) { c.Deadline = now.Add(-90 * time.Minute) }), "it moves", "has given up on all volumes of the Backup 90m ago"},

		// Ended.
		"failed":                   {backupCase(progress.StateFailed, nil), "it has failed: backup of volume \"failed\" of pod shop/web-0 failed: wrong repository password", "repository-password"},
		"failed, of nothing known": {backupCase(progress.StateFailed, func(c *VolumeCase) { c.Volume.Message, c.Volume.Progress.Reason = "odd", "" }), "it has failed: odd", seeFails},
		"failed, of a pod with a name": {
			backupCase(progress.StateFailed, func(c *VolumeCase) {
				c.Volume.Progress.Reason, c.Volume.Message = v1alpha1.ReasonDataPath, "backup of volume \"x509-certs\" of pod shop/credentials-api-0 failed: read /x509/a: input/output error"
			}),
			"it has failed: backup of volume", seeFails + "|alone",
		},
		"failed, of a certificate": {
			backupCase(progress.StateFailed, func(c *VolumeCase) {
				c.Volume.Progress.Reason, c.Volume.Message = v1alpha1.ReasonDataPath, "backup of volume \"data\" of pod shop/web-0 failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"
			}),
			"it has failed: backup of volume", "caCert",
		},
		"failed, with a file's name": {
			backupCase(progress.StateFailed, func(c *VolumeCase) {
				c.Volume.Progress.Reason, c.Volume.Message = "", "read /data/passwords.db, which is blocked: input/output error"
			}),
			"it has failed: read", seeFails + "|alone",
		},

		"failed, by Velero's agent": {
			backupCase(progress.StateFailed, func(c *VolumeCase) { // what restic 0.16 says, as Velero writes it: docs/contracts/restic-kopia.md 3
				withoutAnnotation(c)
				c.Volume.Phase, c.Volume.Progress.State, c.Volume.Message = "Failed", progress.StateFailed, "data path backup failed: error running restic backup command: Fatal: wrong password or no key found: exit status 1"
			}),
			"it has failed: data path backup failed", "repository-password",
		},
		"a pod not ready": {backupCase(progress.StateFailed, func(c *VolumeCase) { c.Volume.Progress.Reason = v1alpha1.ReasonPodNotReady }), "it has failed", seeInit},

		// Of plugins.
		"plugin moves":    {pluginCase(nil), "it moves: 1.0 GiB of 4.0 GiB (25%), 1.0 MiB/s, time left 51m", ""},
		"plugin waits":    {pluginCase(func(v *Volume) { v.Message = "the array is busy" }), "it moves", "the plugin says: the array is busy"},
		"plugin scans":    {pluginCase(func(v *Volume) { v.Progress.State = progress.StateScanning }), "not known yet", ""},
		"plugin finishes": {pluginCase(func(v *Volume) { v.Progress.State = progress.StateFinishing }), "all bytes are done", ""},
		"plugin stalls": {pluginCase(func(v *Volume) {
			v.Progress.State, v.Progress.LastProgressTime = progress.StateStalled, now.Add(-6*time.Minute)
		}), "no byte has moved for 6m", "look at the storage of plugin example.io/disks"},
		"plugin stalls, but has worked since": {pluginCase(func(v *Volume) {
			v.Progress.State, v.Progress.LastProgressTime, v.Progress.LastWorkTime = progress.StateStalled, now.Add(-6*time.Minute), now.Add(-3*time.Minute)
		}), "no byte has moved for 6m, and no other work was done for 3m", "look at the storage of plugin example.io/disks"},
		"plugin is gone":       {pluginCase(func(v *Volume) { v.Progress.Heartbeat = now.Add(-time.Hour) }), "plugin example.io/disks has said nothing for 60m", "the next process goes on"},
		"plugin has not begun": {pluginCase(func(v *Volume) { v.Progress = progress.Snapshot{State: progress.StateQueued} }), "has not started it in the 8m", seePlugins},
		"plugin has completed": {pluginCase(func(v *Volume) { v.Progress.State = progress.StateCompleted }), "it has completed", ""},
		"plugin has failed":    {VolumeCase{At: now, Volume: pluginRestores()[0]}, "it has failed: quota exceeded", "log of the Velero server"},

		"canceled":  {backupCase(progress.StateCanceled, nil), "it was canceled", ""},
		"completed": {backupCase(progress.StateCompleted, func(c *VolumeCase) { c.Volume.Message = "volume was empty" }), "it has completed", "volume was empty"},
		"partial":   {backupCase(progress.StateCompleted, func(c *VolumeCase) { c.Volume.Progress.Errors = 3 }), "without 3 files", seeLacks},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := test.c.Explain()
			if !strings.Contains(e.Why, test.why) {
				t.Errorf("why: %q, want %q", e.Why, test.why)
			}
			want, alone := strings.CutSuffix(test.more, "|alone")
			if more := strings.Join(append(append(e.Facts, e.Do...), e.See), "\n"); !strings.Contains(more, want) {
				t.Errorf("lacks %q: %s", want, more)
			}
			if alone && len(e.Do) > 0 {
				t.Errorf("advises %q, of which it knows nothing", e.Do)
			}
		})
	}
}

var unscheduled = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}

// operationCase is a case of a backup in a phase with a server that is well.
func operationCase(phase velerov1.BackupPhase, change func(*OperationCase)) OperationCase {
	c := OperationCase{At: now, Operation: OfBackup(backup(phase)), Servers: []corev1.Pod{agent("velero/velero:v1.16.2")}, ServersKnown: true}
	if change != nil {
		change(&c)
	}
	return c
}

// deletions makes a case one of a Backup that these ask to delete.
func deletions(requests ...velerov1.DeleteBackupRequest) func(*OperationCase) {
	return func(c *OperationCase) { c.Deletions, c.DeletionsKnown = requests, true }
}

func deletion(phase velerov1.DeleteBackupRequestPhase, errs ...string) velerov1.DeleteBackupRequest {
	return velerov1.DeleteBackupRequest{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *ago(5 * time.Minute)},
		Status:     velerov1.DeleteBackupRequestStatus{Phase: phase, Errors: errs},
	}
}

func TestExplainOperation(t *testing.T) {
	t.Parallel()
	other := OfBackup(backup(velerov1.BackupPhaseInProgress))
	other.Name = "weekly"
	stalled, locked := backupCase(progress.StateStalled, nil), backupCase(progress.StateWaiting, nil)
	withVolumes := func(c *OperationCase) {
		c.Totals, c.Volumes = Sum([]Volume{stalled.Volume, stalled.Volume}), []Explanation{stalled.Explain(), locked.Explain()}
	}
	ourRestore := func(step v1alpha1.RestoreStep) func(*OperationCase) {
		return func(c *OperationCase) {
			c.Operation = OfRestore(restore(velerov1.RestorePhaseInProgress))
			c.Operation.Items.Step, c.Operation.Items.Current, c.Operation.Items.Message = step, "v1/ConfigMap shop/settings", "slowly"
		}
	}
	for name, test := range map[string]struct {
		c         OperationCase
		why, more string
	}{
		"new":               {operationCase("", nil), "the server has not started it in the 12m since it was made", "log of the server"},
		"behind another":    {operationCase("", func(c *OperationCase) { c.Others = []Operation{other} }), "busy with another backup", "backup weekly runs, for 11m"},
		"in the queue":      {operationCase(velerov1.BackupPhaseQueued, func(c *OperationCase) { c.Operation.QueuePosition = 3 }), "number 3 in the queue", ""},
		"no server":         {operationCase("", func(c *OperationCase) { c.Servers = nil }), "no Velero server runs in namespace velero", "bring it back"},
		"server crashes":    {operationCase(velerov1.BackupPhaseInProgress, func(c *OperationCase) { c.Servers = []corev1.Pod{crashing()} }), "CrashLoopBackOff", ""},
		"server not known":  {operationCase(velerov1.BackupPhaseInProgress, func(c *OperationCase) { c.Servers, c.ServersKnown = nil, false }), "it works on its items", ""},
		"items":             {operationCase(velerov1.BackupPhaseInProgress, nil), "it works on its items: 45 of 120 (37%)", ""},
		"items, no total":   {operationCase(velerov1.BackupPhaseInProgress, func(c *OperationCase) { c.Operation.Items = Items{Done: 3} }), "3, total not known yet", ""},
		"items and volumes": {operationCase(velerov1.BackupPhaseInProgress, withVolumes), "it works on its items", "the first to look at: volume stalled of pod shop/web-0, Stalled: no byte has moved for 7m"},
		"volumes": {
			operationCase(velerov1.BackupPhaseInProgress, func(c *OperationCase) { withVolumes(c); c.Operation.Items.Done = 120 }),
			"all items are done; it waits for 2 volumes", "2: 2 Stalled",
		},
		"plugins":          {operationCase(velerov1.BackupPhaseWaitingForPluginOperations, func(c *OperationCase) { c.Operation.Operations = Operations{4, 1, 2} }), "1 of 4 operations completed, 2 failed", "--details"},
		"finalizing badly": {operationCase(velerov1.BackupPhaseFinalizingPartiallyFailed, func(c *OperationCase) { c.Operation.Errors = 2 }), "writes the last of it", "will end as PartiallyFailed: 2 errors"},
		"deleting":         {operationCase(velerov1.BackupPhaseDeleting, func(c *OperationCase) { c.Deleting = true }), "it is being deleted", "it goes when"},
		"deletion begun": {
			operationCase(velerov1.BackupPhaseDeleting, deletions(deletion(velerov1.DeleteBackupRequestPhaseProcessed, "an earlier one"), deletion(velerov1.DeleteBackupRequestPhaseInProgress))),
			"it is being deleted", "asked for 5m ago",
		},
		"deletion failed": {
			operationCase(velerov1.BackupPhaseDeleting, deletions(deletion(velerov1.DeleteBackupRequestPhaseProcessed, "no such bucket", "b"))),
			"its deletion has failed: no such bucket; b", "velero backup delete nightly",
		},
		"deletion forgotten":  {operationCase(velerov1.BackupPhaseDeleting, deletions()), "but it is still there", "velero backup delete nightly"},
		"deletion, no server": {operationCase(velerov1.BackupPhaseDeleting, func(c *OperationCase) { c.Servers = nil }), "no Velero server runs", ""},
		"of later Velero":     {operationCase("Pondering", nil), "it is in phase Pondering", ""},
		"completed":           {operationCase(velerov1.BackupPhaseCompleted, func(c *OperationCase) { c.Servers = nil }), "it has completed", ""},
		"partially failed":    {operationCase(velerov1.BackupPhasePartiallyFailed, func(c *OperationCase) { c.Operation.Errors = 2 }), "some items or volumes failed: 2 errors", "velero backup logs nightly"},
		"failed":              {operationCase(velerov1.BackupPhaseFailed, func(c *OperationCase) { c.Operation.FailureReason = "restarted" }), "it failed: restarted", ""},
		"failed silently":     {operationCase(velerov1.BackupPhaseFailed, nil), "without a reason", ""},
		"refused":             {operationCase(velerov1.BackupPhaseFailedValidation, func(c *OperationCase) { c.Operation.ValidationErrors = []string{"a", "b"} }), "it was refused: a; b", "make a new backup"},
		"collecting":          {operationCase("", ourRestore("Collecting")), "are being counted", "slowly"},
		"restoring":           {operationCase("", ourRestore("Restoring")), "it works on its items", "v1/ConfigMap shop/settings"},
		"finalizing":          {operationCase("", ourRestore("Finalizing")), "writes the last of it", ""},
		"volumes of a restore": {operationCase("", func(c *OperationCase) {
			ourRestore("Volumes")(c)
			c.Totals = Sum([]Volume{stalled.Volume})
		}), "it waits for 1 volume", ""},
		"restore failed": {operationCase("", func(c *OperationCase) { c.Operation = OfRestore(restore(velerov1.RestorePhasePartiallyFailed)) }), "some items or volumes failed", seeEnds},
		"no controller":  {operationCase("", func(c *OperationCase) { ourRestore("")(c); c.Servers = nil }), "no Velero server or restore controller runs", seeRestarts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := test.c.Explain()
			if !strings.Contains(e.Why, test.why) {
				t.Errorf("why: %q, want %q", e.Why, test.why)
			}
			want, alone := strings.CutSuffix(test.more, "|alone")
			if more := strings.Join(append(append(e.Facts, e.Do...), e.See), "\n"); !strings.Contains(more, want) {
				t.Errorf("lacks %q: %s", want, more)
			}
			if alone && len(e.Do) > 0 {
				t.Errorf("advises %q, of which it knows nothing", e.Do)
			}
		})
	}
}

func TestOfEvents(t *testing.T) {
	t.Parallel()
	object := corev1.ObjectReference{Kind: "Pod", Name: "web-0"}
	events := OfEvents([]corev1.Event{
		{InvolvedObject: object, Reason: "series", EventTime: metav1.NewMicroTime(now.Add(-time.Hour)), Series: &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(now)}},
		{InvolvedObject: object, Reason: "old API", FirstTimestamp: *ago(time.Hour), LastTimestamp: *ago(time.Minute)},
		{InvolvedObject: object, Reason: "new API", EventTime: metav1.NewMicroTime(now.Add(-2 * time.Minute)), Message: "note"},
		{InvolvedObject: object, Reason: "no time", ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *ago(3 * time.Minute)}},
	})
	var order []string
	for _, e := range events {
		order = append(order, e.Reason)
	}
	if got := strings.Join(order, ", "); got != "no time, new API, old API, series" || events[1].Note != "note" || events[1].Object != "Pod/web-0" {
		t.Errorf("got %s: %+v", got, events)
	}
}

// TestPrintExplanation holds what people read.
func TestPrintExplanation(t *testing.T) {
	t.Parallel()
	queued := backupCase(progress.StateQueued, func(c *VolumeCase) {
		c.Others = []Volume{OfPodVolumeBackup(podVolumeBackup(progress.StateTransferring))}
		c.Events = []Event{{Time: now.Add(-time.Minute), Type: "Normal", Reason: "Queued", Note: "waits\x1b[2J", Object: "PodVolumeBackup/nightly-queued"}}
		c.Deadline = now.Add(3 * time.Hour)
	})
	locked := backupCase(progress.StateWaiting, nil)
	c := operationCase(velerov1.BackupPhaseInProgress, func(c *OperationCase) {
		c.Operation.Items.Done = 120
		c.Totals, c.Volumes = Sum([]Volume{locked.Volume, queued.Volume}), []Explanation{locked.Explain(), queued.Explain()}
	})
	e := c.Explain()
	e.Notes = []string{"Events cannot be read: forbidden"}
	var text strings.Builder
	if err := e.Print(&text, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain/backup.txt", text.String())
}

// TestPagesExist holds that explanations lead to headings that are there.
func TestPagesExist(t *testing.T) {
	t.Parallel()
	for _, page := range []string{
		seeAgent, seeBegin, seeStalled, seeFails, seeLacks, seeInit, seeLocks, seeQueue, seeDeadline, seeStates, seeRestic, seeRestarts, seeEnds, seePlugins,
	} {
		file, anchor, _ := strings.Cut(strings.TrimPrefix(page, documentation), "#")
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
		if err != nil {
			t.Error(err)
			continue
		}
		heading := regexp.MustCompile(`(?im)^#+ ` + strings.ReplaceAll(anchor, "-", "[- ]") + `$`)
		if !heading.Match(text) {
			t.Errorf("%s has no heading for #%s", file, anchor)
		}
	}
}
