package monitoring

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	namespace   = "velero"
	nodeName    = "node-1"
	shop        = "shop" // where the pods are
	restoreWait = "restore-wait"
	restic      = "restic"
	kopia       = "kopia"
)

// node is a node agent's node: an API server with a Velero server's objects, kubelet's directories, and the agent. The
// test plays Velero and kubelet.
type node struct {
	*testenv.Env

	t       *testing.T
	dir     string
	backup  *velerov1.Backup
	restore *velerov1.Restore
	program string
	address string // of the agent's metrics
	agent   *exec.Cmd
	ended   <-chan struct{}
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Env: testenv.New(t, testenv.Options{Namespace: namespace}), t: t, dir: t.TempDir(), address: loopback.ForTest(t)}
	for _, dir := range []string{"pods", "repositories"} {
		if err := os.Mkdir(n.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.program = parts.NodeAgent(t)
	n.install()
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// refuseWrites has the API server refuse all that the agent writes into PodVolumeBackups and PodVolumeRestores.
func (n *node) refuseWrites() {
	n.t.Helper()
	refuse := metav1.ObjectMeta{Name: "refuse"}
	n.Create(&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: refuse, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: new(admissionv1.Fail),
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule: admissionv1.Rule{
					APIGroups: []string{"velero.io"}, APIVersions: []string{"*"}, Resources: []string{"podvolumebackups", "podvolumerestores"},
				},
			},
		}}},
		Validations: []admissionv1.Validation{{Expression: "false", Reason: new(metav1.StatusReasonForbidden)}},
	}})
	n.Create(&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: refuse, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: refuse.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
}

// install makes what a Velero server makes.
func (n *node) install() {
	n.t.Helper()
	n.CreateNamespaces(shop)
	n.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": resticrepo.Password})
	n.Create(n.DirectoryLocation("default", n.path("repositories")))
	resticrepo.Create(n.t, filepath.Join(n.path("repositories"), "restic", shop))
	n.backup = &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "b1",
			Annotations: map[string]string{"velero.io/pod-volume-timeout": "15m"}, // so little that the queue misses it
		},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	n.restore = &velerov1.Restore{ObjectMeta: n.Meta("r1"), Spec: velerov1.RestoreSpec{BackupName: "b1"}}
	n.Create(n.backup)
	n.Create(n.restore)
}

// startAgent starts the agent, without root's right to read every file, so that some cannot be read.
func (n *node) startAgent(flags ...string) {
	n.t.Helper()
	temp, err := os.MkdirTemp(n.dir, "temp-")
	if err != nil {
		n.t.Fatal(err)
	}
	args := append([]string{
		n.program, "server", "--kubeconfig=" + n.Plane.Kubeconfig(), "--host-pods-path=" + n.path("pods"),
		"--restic-path=" + parts.Restic(n.t, parts.DefaultRestic), "--cache-dir=" + n.path("cache"), "--metrics-address=" + n.address,
	}, flags...)
	if os.Geteuid() == 0 {
		args = append([]string{"setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"}, args...)
	}
	n.agent = exec.Command(args[0], args[1:]...)
	n.agent.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + n.dir, "TMPDIR=" + temp, "NODE_NAME=" + nodeName, "VELERO_NAMESPACE=" + namespace,
	}
	n.ended = run(n.t, n.agent, temp+".log", unix.SIGKILL)
}

// killAgent ends the agent as the kernel does.
func (n *node) killAgent() {
	n.t.Helper()
	if err := n.agent.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	<-n.ended
}

// pod makes a running pod with an emptyDir volume "data", and with a volume "host" that cannot be backed up.
func (n *node) pod(name string) *corev1.Pod {
	n.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name},
		Spec: corev1.PodSpec{
			NodeName:       nodeName,
			InitContainers: []corev1.Container{{Name: restoreWait, Image: "agent"}},
			Containers:     []corev1.Container{{Name: "main", Image: "main"}},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}},
			},
		},
	}
	n.Create(pod)
	if err := os.MkdirAll(n.volume(pod), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return pod
}

// volume is where kubelet has the pod's volume.
func (n *node) volume(pod *corev1.Pod) string {
	return filepath.Join(n.path("pods"), string(pod.UID), "volumes", "kubernetes.io~empty-dir", "data")
}

// file writes a file that cannot be compressed into the pod's volume.
func (n *node) file(pod *corev1.Pod, name string, size int, mode os.FileMode) {
	n.t.Helper()
	content := make([]byte, size)
	rand.Read(content)
	if err := os.WriteFile(filepath.Join(n.volume(pod), name), content, mode); err != nil {
		n.t.Fatal(err)
	}
}

// backUp makes the PodVolumeBackup of a volume of the pod.
func (n *node) backUp(pod *corev1.Pod, volume, uploader string) *velerov1.PodVolumeBackup {
	n.t.Helper()
	pvb := velero.PodVolumeBackup(n.backup, pod, volume, uploader)
	n.Create(pvb)
	return pvb
}

// restoreInto makes the PodVolumeRestore of a snapshot into a new pod, whose init container waits for it.
func (n *node) restoreInto(pod *corev1.Pod, uploader, snapshot string) *velerov1.PodVolumeRestore {
	n.t.Helper()
	n.SetInitContainer(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	pvr := velero.PodVolumeRestore(n.restore, pod, "data", uploader, snapshot, shop)
	n.Create(pvr)
	return pvr
}

// awaitBackup waits until a PodVolumeBackup has ended in a phase.
func (n *node) awaitBackup(pvb *velerov1.PodVolumeBackup, phase velerov1.PodVolumeBackupPhase) {
	n.t.Helper()
	testenv.EventuallyGet(n.Env, pvb, string(phase), func(_ *velerov1.PodVolumeBackup, err error) bool {
		return err == nil && pvb.Status.Phase == phase
	})
}

// awaitRestore waits until a PodVolumeRestore has ended in a phase.
func (n *node) awaitRestore(pvr *velerov1.PodVolumeRestore, phase velerov1.PodVolumeRestorePhase) {
	n.t.Helper()
	testenv.EventuallyGet(n.Env, pvr, string(phase), func(_ *velerov1.PodVolumeRestore, err error) bool {
		return err == nil && pvr.Status.Phase == phase
	})
}

// freeze stops the processes that work in the pod's volume, so that no byte moves any more. It waits until there is one.
func (n *node) freeze(pod *corev1.Pod) {
	n.t.Helper()
	testenv.Eventually(n.t, "a worker is in the volume of pod "+pod.Name, func() bool {
		links, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			n.t.Fatal(err)
		}
		found := false
		for _, link := range links {
			if dir, err := os.Readlink(link); err != nil || dir != n.volume(pod) {
				continue // it has ended, or is somewhere else
			}
			found = true
			n.signal(filepath.Base(filepath.Dir(link)), unix.SIGSTOP)
		}
		return found
	})
}

func (n *node) signal(pid string, s unix.Signal) {
	n.t.Helper()
	if out, err := exec.Command("kill", "-"+strings.TrimPrefix(unix.SignalName(s), "SIG"), pid).CombinedOutput(); err != nil {
		n.t.Fatalf("kill %s: %v %s", pid, err, out)
	}
}
