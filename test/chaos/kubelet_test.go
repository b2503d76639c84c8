//go:build chaos

package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/rig"
)

// kubelet runs the init container restore-wait of a pod, for real, and tells the API server how it goes.
type kubelet struct {
	r      *run
	pod    *corev1.Pod
	dir    string // where the volume is mounted
	uid    string // of the Restore
	root   string // what the init container sees as /restores
	passed bool   // the pod runs

	mu      sync.Mutex
	cmd     *exec.Cmd
	stopped bool
	ended   chan struct{} // closed when the init container has ended
	code    int
}

func (r *run) startKubelet(pod *corev1.Pod, dir string) *kubelet {
	k := &kubelet{r: r, pod: pod, dir: dir, root: filepath.Join(r.f.Dir, "restores-"+pod.Name)}
	if err := os.MkdirAll(filepath.Join(k.root, volumeName), 0o755); err != nil {
		r.t.Fatal(err)
	}
	r.kubelets = append(r.kubelets, k)
	return k
}

// begin starts the init container.
func (k *kubelet) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := unix.Mount(k.dir, filepath.Join(k.root, volumeName), "", unix.MS_BIND, ""); err != nil {
		k.r.t.Fatalf("mount the volume for the init container: %v", err)
	}
	k.cmd = exec.Command(rig.AgentProgram(), "restore-wait", k.uid, "--restores-path", k.root)
	k.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := k.cmd.Start(); err != nil {
		k.r.t.Fatal(err)
	}
	k.stopped = false
	k.ended = make(chan struct{})
	cmd, ended := k.cmd, k.ended
	k.tell(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.PodPending)
	go func() {
		defer close(ended)
		_ = cmd.Wait()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.code = cmd.ProcessState.ExitCode()
		if k.stopped {
			return
		}
		phase := corev1.PodPending
		if k.code == 0 {
			phase, k.passed = corev1.PodRunning, true
		}
		k.tell(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(k.code), Reason: "Completed"}}, phase)
	}()
}

// tell writes the pod's status.
func (k *kubelet) tell(state corev1.ContainerState, phase corev1.PodPhase) {
	before := client.MergeFrom(k.pod.DeepCopy())
	k.pod.Status.Phase = phase
	k.pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "restore-wait", State: state, Image: "agent", ImageID: "agent", Ready: state.Terminated != nil}}
	if phase == corev1.PodRunning {
		k.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		k.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", Image: "main", ImageID: "main", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	}
	if err := k.r.f.Client.Status().Patch(k.r.f.Context(), k.pod, before); err != nil {
		k.r.t.Errorf("write the status of the pod: %v", err)
	}
}

// end ends the init container, if it runs, and takes its mount away.
func (k *kubelet) end() {
	k.mu.Lock()
	if k.cmd == nil || k.stopped {
		k.mu.Unlock()
		return
	}
	k.stopped = true
	_ = k.cmd.Process.Kill()
	ended := k.ended
	k.mu.Unlock()
	<-ended
	if err := unix.Unmount(filepath.Join(k.root, volumeName), unix.MNT_DETACH); err != nil {
		k.r.t.Errorf("unmount the init container's volume: %v", err)
	}
}

// await waits until the init container has ended, and reports whether that was in time.
func (k *kubelet) await(within time.Duration) bool {
	k.mu.Lock()
	ended := k.ended
	k.mu.Unlock()
	select {
	case <-ended:
		return true
	case <-time.After(within):
		return false
	}
}

// restartKubelets starts the init containers again, as after a start of the node.
func (r *run) restartKubelets() {
	for _, k := range r.kubelets {
		k.end()
		k.begin()
	}
}
