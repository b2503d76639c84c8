// Package rbac holds the test that the node agent has the rights that it needs and no other.
package rbac

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

const (
	// limit in bytes per second, which each of four slots gets a quarter of, and slowBytes that take half a minute then: it is
	// ended long before.
	limit     = 8 << 20
	slowBytes = 64 << 20
)

// TestRights runs the node agent as the service account that deploy/ makes, through all that makes it ask the API server
// for something. Nothing may be forbidden, and each right must have been needed.
func TestRights(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	runtime.LockOSThread() // the kernel ends a child when the thread ends that made it
	defer runtime.UnlockOSThread()
	program, restic := parts.NodeAgent(t), parts.Restic(t, parts.DefaultRestic)
	audit := filepath.Join(t.TempDir(), "audit.log")
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	roles := readObjects(t, filepath.Join(root, "deploy", "node-agent", "rbac.yaml"))
	objects := append(readObjects(t, filepath.Join(root, "deploy", "node-agent", "serviceaccount.yaml")), roles...)
	account := accountIn(t, objects)

	c := newCluster(t, audit)
	c.install()
	c.apply(objects)
	kubeconfig := testenv.Kubeconfig(c.t, c.WithToken(account))
	args := []string{
		"server", "--kubeconfig=" + kubeconfig, "--namespace=" + namespace, "--host-pods-path=" + c.pods, "--restic-path=" + restic,
		"--cache-dir=" + t.TempDir(), "--metrics-address=127.0.0.1:0", "--node-agent-configmap=" + configMap, "--progress-interval=1s",
		"--upload-limit=" + strconv.Itoa(limit), "--allow-unmounted", // the test plays kubelet, and may have no right to mount
	}
	stop := startAgent(t, program, args, "")
	slow := c.useRights()
	stop()
	// A second agent finds what the first has left. It fills its caches as one does whose API server is older than
	// Kubernetes 1.34, with a list before the watch.
	stop = startAgent(t, program, args, "KUBE_FEATURE_WatchListClient=false")
	c.Patch(slow, `{"spec": {"cancel": true}}`)
	c.backedUp(slow, velerov1.PodVolumeBackupPhaseFailed) // Canceled while the Backup is InProgress would mislead its server
	stop()

	judge(t, granted(t, objects), readRequests(t, audit, "system:serviceaccount:"+account.Namespace+":"+account.Name))
}

// startAgent runs the node agent or another of our programs with one more variable in its environment. stop ends it as kubelet does.
func startAgent(t *testing.T, program string, args []string, variable string) (stop func()) {
	t.Helper()
	var log bytes.Buffer
	agent := exec.CommandContext(t.Context(), program, args...)
	agent.Env = []string{"NODE_NAME=" + nodeName, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), variable}
	agent.Stdout, agent.Stderr = &log, &log
	agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = agent.Wait()
	}()
	t.Cleanup(func() {
		_ = agent.Process.Kill() // stop has ended it unless the test failed
		<-ended
		if t.Failed() {
			t.Logf("the end of the agent's log:\n%s", log.Bytes()[max(0, log.Len()-8<<10):])
		}
	})
	return func() {
		t.Helper()
		if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		select {
		case <-ended:
			if err != nil {
				t.Errorf("the agent ends with %v", err)
			}
		case <-time.After(testenv.Patience):
			t.Fatal("the agent does not end")
		}
	}
}

// useRights lets the agent do all it can do, and returns a backup that is still under way.
func (c *cluster) useRights() (unfinished *velerov1.PodVolumeBackup) {
	c.t.Helper()
	source := c.pod("web")
	for _, volume := range []string{"scratch", "csi", "old"} {
		if err := tree.Make(c.dir(source, volume), tree.Spec{Plain: volume == "csi"}); err != nil {
			c.t.Fatal(err)
		}
	}
	backups := map[string]*velerov1.PodVolumeBackup{
		"scratch": c.newBackup(source, "scratch", "restic"), "csi": c.newBackup(source, "csi", "kopia"), "old": c.newBackup(source, "old", "restic"),
	}
	absent := c.newBackup(source, "absent", "restic")
	for _, pvb := range backups {
		c.backedUp(pvb, velerov1.PodVolumeBackupPhaseCompleted)
	}
	c.backedUp(absent, velerov1.PodVolumeBackupPhaseFailed)

	c.restoreAll(source, backups)
	c.restoreForPodThatGoes(backups["scratch"].Status.SnapshotID)

	slow := c.pod("slow")
	for _, volume := range []string{"scratch", "old"} {
		c.fill(filepath.Join(c.dir(slow, volume), "random"), slowBytes)
	}
	canceled := c.newBackup(slow, "scratch", "restic")
	c.inProgress(canceled)
	c.Patch(canceled, `{"spec": {"cancel": true}}`)
	c.backedUp(canceled, velerov1.PodVolumeBackupPhaseFailed)
	unfinished = c.newBackup(slow, "old", "restic")
	c.inProgress(unfinished)
	return unfinished
}

// restoreAll restores into a new pod, one volume of which somebody has prepared to lead the agent astray.
func (c *cluster) restoreAll(source *corev1.Pod, backups map[string]*velerov1.PodVolumeBackup) {
	c.t.Helper()
	outside := c.t.TempDir()
	target := c.pod("web-restored")
	if err := os.Symlink(outside, filepath.Join(c.dir(target, "scratch"), ".velero")); err != nil {
		c.t.Fatal(err)
	}
	bad := c.newRestore(target, "old", "restic", strings.Repeat("0", 64))
	for volume, uploader := range map[string]string{"scratch": "restic", "csi": "kopia"} {
		pvr := c.newRestore(target, volume, uploader, backups[volume].Status.SnapshotID)
		c.restored(pvr, velerov1.PodVolumeRestorePhaseCompleted)
		if _, err := os.Lstat(filepath.Join(c.dir(target, volume), ".velero", string(c.restore.UID))); err != nil {
			c.t.Error("the volume was not handed over:", err)
		}
	}
	c.restored(bad, velerov1.PodVolumeRestorePhaseFailed)
	c.SetInitContainer(target, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	for _, volume := range []string{"scratch", "csi", "old"} {
		c.untilGone(filepath.Join(c.dir(target, volume), ".velero"))
	}
	for _, volume := range []string{"scratch", "csi"} {
		differences, err := tree.Compare(c.dir(source, volume), c.dir(target, volume), tree.Options{Plain: volume == "csi"})
		if err != nil || len(differences) > 0 {
			c.t.Errorf("volume %s: %v %q", volume, err, differences)
		}
	}
	if made, err := os.ReadDir(outside); err != nil || len(made) > 0 {
		c.t.Errorf("outside of the volume was made: %v, %v", made, err)
	}
}

// restoreForPodThatGoes deletes a pod before its restore can begin. The agent has taken the restore by then: of one that it first sees
// without its pod it does not know that it is its own, and leaves it to others for minutes.
func (c *cluster) restoreForPodThatGoes(snapshot string) {
	c.t.Helper()
	pod := c.pod("short-lived")
	c.SetInitContainer(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}})
	pvr := c.newRestore(pod, "scratch", "restic", snapshot)
	testenv.EventuallyGet(c.Env, pvr, "taken", func(_ *velerov1.PodVolumeRestore, err error) bool {
		return err == nil && pvr.Labels[v1alpha1.LabelNode] != ""
	})
	if err := c.Client.Delete(c.t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		c.t.Fatal(err)
	}
	c.restored(pvr, velerov1.PodVolumeRestorePhaseFailed)
}

// inProgress waits until bytes of a backup move.
func (c *cluster) inProgress(pvb *velerov1.PodVolumeBackup) {
	c.t.Helper()
	testenv.EventuallyGet(c.Env, pvb, "in progress", func(_ *velerov1.PodVolumeBackup, err error) bool {
		if pvb.Status.CompletionTimestamp != nil {
			c.t.Fatalf("%s has ended before it could be stopped", pvb.Name)
		}
		return pvb.Status.Phase == velerov1.PodVolumeBackupPhaseInProgress
	})
}

func (c *cluster) fill(path string, size int64) {
	c.t.Helper()
	f, err := os.Create(path)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = io.CopyN(f, rand.Reader, size)
	if closeErr := f.Close(); err != nil || closeErr != nil {
		c.t.Fatal(err, closeErr)
	}
}
