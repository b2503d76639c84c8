//go:build e2e

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	restic = "restic"
	kopia  = "kopia"
)

func TestEndToEnd(t *testing.T) {
	c := connect(t)
	installed := step(t, "install", c.install)
	if installed {
		step(t, "agents are confined", c.testConfinement)
		t.Run("back up and restore", func(t *testing.T) {
			for _, uploader := range []string{restic, kopia} {
				step(t, uploader, func(t *testing.T) {
					t.Parallel()
					c.testBackupAndRestore(t, uploader)
				})
			}
		})
		t.Run("interrupt", func(t *testing.T) {
			step(t, "pod of the agent is deleted", func(t *testing.T) {
				t.Parallel()
				c.testInterruption(t, "deleted", c.nodes[0], c.deleteAgentPod)
			})
			step(t, "agent is killed", func(t *testing.T) {
				t.Parallel()
				c.testInterruption(t, "killed", c.nodes[1], c.killAgent)
			})
		})
		step(t, "kubectl plimsoll", c.testKubectl)
		step(t, "repository", c.testRepository)
		step(t, "no lock is left", c.checkLocks)
		step(t, "restores were guarded", c.checkGuarded)
		step(t, "restore items", c.testItems)
	}
	if t.Failed() {
		c.diagnose(t)
	}
	step(t, "uninstall", c.uninstall)
}

// testBackupAndRestore backs up pods on both nodes that have every kind of volume, and restores them into other pods.
func (c *cluster) testBackupAndRestore(t *testing.T, uploader string) {
	var apps []*app
	for i, node := range c.nodes {
		apps = append(apps, &app{
			namespace: "e2e-" + uploader, name: "app-" + node, node: node, uploader: uploader, volumes: []string{disk, memory, local},
			bytes: 6 << 20, seed: uint64(100 * i),
		})
	}
	c.startApps(t, apps)
	backup := c.beginBackup(t, uploader)
	for _, a := range apps {
		c.requestBackups(t, backup, a)
	}
	stored := c.followBackups(t, backup, len(apps)*len(apps[0].volumes), nil)
	for _, v := range stored {
		v.checkCompleted(t)
	}
	c.endBackup(t, backup)
	c.restoreAndVerify(t, apps, stored)
}

// testInterruption backs up a volume with restic and one with kopia at the same time on a node, and interrupts the agent
// when both are on their way.
func (c *cluster) testInterruption(t *testing.T, name, node string, interrupt func(t *testing.T, node string) (check func(t *testing.T))) {
	var apps []*app
	for _, uploader := range []string{restic, kopia} {
		apps = append(apps, &app{
			namespace: "e2e-" + name, name: uploader, node: node, uploader: uploader, volumes: []string{disk},
			bytes: 160 << 20, seed: 1000,
		})
	}
	c.startApps(t, apps)
	backup := c.beginBackup(t, name)
	for _, a := range apps {
		c.requestBackups(t, backup, a)
	}
	var checkInterrupted func(t *testing.T)
	stored := c.followBackups(t, backup, len(apps), func(volumes map[types.UID]*volumeHistory) {
		for _, v := range volumes {
			if checkInterrupted != nil || v.last().percent() < 10 || v.last().ended() {
				return
			}
		}
		if len(volumes) < len(apps) {
			return
		}
		for _, v := range volumes {
			c.checkColumns(t, v.last())
		}
		checkInterrupted = interrupt(t, node)
	})
	if checkInterrupted == nil {
		t.Fatal("the volumes were not on their way at the same time, so nothing was interrupted")
	}
	checkInterrupted(t)
	for _, v := range stored {
		v.checkCompleted(t)
		if moves := v.moves(); moves < 3 {
			t.Errorf("%s was seen at %d percentages on its way, want more", v.last().label, moves)
		}
		if p := v.last().progress; p.Attempt+p.Resumes != 2 { // a killed agent uses its attempt up, a stopped one does not
			t.Errorf("%s completed with attempt %d, resumed %d times: want it interrupted once", v.last().label, p.Attempt, p.Resumes)
		}
	}
	c.endBackup(t, backup)
	c.restoreAndVerify(t, apps, stored)
}

// restoreAndVerify restores what was stored into new pods in another namespace, each of which compares what it finds
// with what was made.
func (c *cluster) restoreAndVerify(t *testing.T, apps []*app, stored map[types.UID]*volumeHistory) {
	t.Helper()
	restore := c.beginRestore(t, apps)
	targets := c.startTargets(t, apps, restore)
	for i, a := range apps {
		for _, v := range stored {
			if v.backup.Spec.Pod.UID == a.pod.UID {
				c.requestRestore(t, restore, targets[i], v.backup)
			}
		}
	}
	restored := c.followRestores(t, restore, len(stored))
	for _, v := range restored {
		v.checkCompleted(t)
	}
	for _, a := range targets {
		c.awaitVerified(t, a)
	}
	for _, volumes := range []map[types.UID]*volumeHistory{stored, restored} {
		for _, v := range volumes {
			c.checkUntouched(t, v)
		}
	}
}

// deleteAgentPod deletes the agent's pod on a node, as somebody does who updates it.
func (c *cluster) deleteAgentPod(t *testing.T, node string) (check func(t *testing.T)) {
	before := c.agentPod(t, node)
	if err := c.client.Delete(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	t.Logf("deleted pod %s on %s", before.Name, node)
	return func(t *testing.T) {
		if after := c.agentPod(t, node); after.UID == before.UID {
			t.Error("the agent's pod is still the same")
		}
	}
}

// killAgent kills the agent's process on a node, as the kernel does when memory is short.
func (c *cluster) killAgent(t *testing.T, node string) (check func(t *testing.T)) {
	before := c.agentPod(t, node)
	c.onNode(t, node, "kill", node)
	t.Logf("killed the agent in pod %s on %s", before.Name, node)
	return func(t *testing.T) {
		after := c.agentPod(t, node)
		if after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount <= before.Status.ContainerStatuses[0].RestartCount {
			t.Errorf("the container of pod %s was not restarted", before.Name)
		}
	}
}

// agentPod returns the agent's pod on a node as a server looks for it: by its labels, running, and not about to end.
func (c *cluster) agentPod(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	labels := client.MatchingLabels{"name": "node-agent", "role": "node-agent"}
	if err := c.client.List(t.Context(), &pods, client.InNamespace(veleroNamespace), labels); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == node && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod
		}
	}
	t.Fatalf("no node agent runs on %s", node)
	return nil
}

// checkColumns asks kubectl for a PodVolumeBackup on its way, and looks whether its columns show that.
func (c *cluster) checkColumns(t *testing.T, r report) {
	t.Helper()
	header, line, ok := strings.Cut(string(c.kubectl(t, "get", "podvolumebackups", "--namespace", veleroNamespace, r.name)), "\n")
	if !ok {
		t.Fatalf("kubectl get pvb says %q", header)
	}
	column := func(title string) string {
		at := strings.Index(header, title)
		if at < 0 || at >= len(line) {
			t.Fatalf("no column %q in\n%s\n%s", title, header, line)
		}
		value, _, _ := strings.Cut(line[at:], "  ")
		return strings.TrimSpace(value)
	}
	t.Logf("kubectl get podvolumebackups:\n%s\n%s", header, line)
	if status := column("STATUS"); status != "InProgress" {
		t.Errorf("column STATUS of %s is %q", r.label, status)
	}
	for title, least := range map[string]int64{"BYTES DONE": r.progress.BytesDone, "TOTAL BYTES": r.progress.BytesDone + 1} {
		if value := number(t, column(title)); value < least {
			t.Errorf("column %s of %s is %d, want %d or more", title, r.label, value, least)
		}
	}
	if uploader := column("UPLOADER"); uploader != r.uploader {
		t.Errorf("column UPLOADER of %s is %q, want %s", r.label, uploader, r.uploader)
	}
}
