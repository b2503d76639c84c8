package monitoring

import (
	"context"
	"crypto/rand"
	"errors"
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
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
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
	t       *testing.T
	dir     string
	client  client.Client
	plane   *controlplane.ControlPlane
	backup  *velerov1.Backup
	restore *velerov1.Restore
	program string
	address string // of the agent's metrics
	agent   *exec.Cmd
	ended   <-chan struct{}
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), address: loopback.ForTest(t)}
	for _, dir := range []string{"pods", "repositories"} {
		if err := os.Mkdir(n.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	crds, err := controlplane.VeleroCRDs("1.18.3")
	if err != nil {
		t.Fatal(err)
	}
	n.plane = controlplane.ForTest(t, controlplane.Options{CRDs: crds})
	n.build()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), velerov1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	if n.client, err = client.New(n.plane.Config(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	n.install()
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// build builds the agent as it is: whatever lies in bin/ may be older.
func (n *node) build() {
	n.t.Helper()
	n.program = n.path("node-agent")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", n.program, "./cmd/node-agent")
	build.Dir = inRepository(n.t, ".")
	if out, err := build.CombinedOutput(); err != nil {
		n.t.Fatalf("build the node agent: %v\n%s", err, out)
	}
}

// refuseWrites has the API server refuse all that the agent writes into PodVolumeBackups and PodVolumeRestores.
func (n *node) refuseWrites() {
	n.t.Helper()
	refuse := metav1.ObjectMeta{Name: "refuse"}
	n.create(&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: refuse, Spec: admissionv1.ValidatingAdmissionPolicySpec{
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
	n.create(&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: refuse, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: refuse.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
}

// install makes what a Velero server makes.
func (n *node) install() {
	n.t.Helper()
	for _, name := range []string{namespace, shop} {
		n.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	n.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "velero-repo-credentials"},
		StringData: map[string]string{"repository-password": "correct horse"},
	})
	repositories := n.path("repositories")
	n.create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"},
		Spec: velerov1.BackupStorageLocationSpec{
			Provider:    "velero.io/fs",
			Config:      map[string]string{"fspath": repositories, "resticRepoPrefix": filepath.Join(repositories, "restic")},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		},
	})
	n.backup = &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "b1",
			Annotations: map[string]string{"velero.io/pod-volume-timeout": "15m"}, // so little that the queue misses it
		},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	n.restore = &velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "r1"}, Spec: velerov1.RestoreSpec{BackupName: "b1"}}
	n.create(n.backup)
	n.create(n.restore)
}

func (n *node) context() context.Context { return context.WithoutCancel(n.t.Context()) }

func (n *node) create(o client.Object) {
	n.t.Helper()
	if err := n.client.Create(n.context(), o); err != nil {
		n.t.Fatal(err)
	}
}

// startAgent starts the agent, without root's right to read every file, so that some cannot be read.
func (n *node) startAgent(flags ...string) {
	n.t.Helper()
	temp, err := os.MkdirTemp(n.dir, "temp-")
	if err != nil {
		n.t.Fatal(err)
	}
	args := append([]string{
		n.program, "server", "--kubeconfig=" + n.plane.Kubeconfig(), "--host-pods-path=" + n.path("pods"),
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
	n.create(pod)
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
	n.create(pvb)
	return pvb
}

// restoreInto makes the PodVolumeRestore of a snapshot into a new pod, whose init container waits for it.
func (n *node) restoreInto(pod *corev1.Pod, uploader, snapshot string) *velerov1.PodVolumeRestore {
	n.t.Helper()
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodPending
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: restoreWait, Image: "agent", ImageID: "agent", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	if err := n.client.Status().Patch(n.context(), pod, before); err != nil {
		n.t.Fatal(err)
	}
	pvr := velero.PodVolumeRestore(n.restore, pod, "data", uploader, snapshot, shop)
	n.create(pvr)
	return pvr
}

// awaitBackup waits until a PodVolumeBackup has ended in a phase.
func (n *node) awaitBackup(pvb *velerov1.PodVolumeBackup, phase velerov1.PodVolumeBackupPhase) {
	n.t.Helper()
	await(n.t, "backup is "+string(phase), func() bool {
		n.get(pvb)
		return pvb.Status.Phase == phase
	})
}

// awaitRestore waits until a PodVolumeRestore has ended in a phase.
func (n *node) awaitRestore(pvr *velerov1.PodVolumeRestore, phase velerov1.PodVolumeRestorePhase) {
	n.t.Helper()
	await(n.t, "restore is "+string(phase), func() bool {
		n.get(pvr)
		return pvr.Status.Phase == phase
	})
}

func (n *node) get(o client.Object) {
	n.t.Helper()
	if err := n.client.Get(n.context(), client.ObjectKeyFromObject(o), o); err != nil {
		n.t.Fatal(err)
	}
}

// freeze stops the processes that work in the pod's volume, so that no byte moves any more. It waits until there is one.
func (n *node) freeze(pod *corev1.Pod) {
	n.t.Helper()
	await(n.t, "a worker is in the volume of pod "+pod.Name, func() bool {
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
