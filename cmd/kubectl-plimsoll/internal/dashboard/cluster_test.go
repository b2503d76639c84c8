package dashboard

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const veleroNamespace = "velero"

func TestMain(m *testing.M) {
	worker.Main()
	parts.UseWorkerExec()
	os.Exit(testenv.Main(m))
}

// cluster is a control plane with a Velero server's objects and nodes without kubelet, of which the test plays the parts.
type cluster struct {
	*testenv.Env

	t        *testing.T
	hostPods string // holds each node's pods directory
	backup   *velerov1.Backup
}

func newCluster(t *testing.T, backup string) *cluster {
	t.Helper()
	c := &cluster{Env: testenv.New(t, testenv.Options{Namespace: veleroNamespace}), t: t, hostPods: t.TempDir()}
	c.CreateNamespaces("shop", "wiki")
	c.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": "correct horse"})
	c.Create(c.DirectoryLocation(velero.Location, t.TempDir()))
	c.backup = &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: backup, Labels: map[string]string{velerov1.ScheduleNameLabel: "nightly"}},
		Spec:       velerov1.BackupSpec{StorageLocation: velero.Location},
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now()),
			Progress: &velerov1.BackupProgress{ItemsBackedUp: 212, TotalItems: 380},
		},
	}
	c.Create(c.backup)
	return c
}

// startAgent runs a node's agent until the test ends, with the pod that kubelet would have. It sends so many bytes per
// second for each volume.
func (c *cluster) startAgent(node string, bytesPerSecond int64, tune func(*nodeagent.Config)) {
	c.t.Helper()
	resticData, err := restic.New(c.t.Context(), parts.Restic(c.t, parts.DefaultRestic), restic.Options{
		CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: bytesPerSecond,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	kopiaData, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(c.t), CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: bytesPerSecond})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.hostPods, node), 0o755); err != nil {
		c.t.Fatal(err)
	}
	cfg := nodeagent.Config{Config: podvolume.Config{
		NodeName: node, Namespace: veleroNamespace, HostPods: filepath.Join(c.hostPods, node), InitRepositories: true,
		Uploaders:        map[string]uploader.Uploader{"restic": resticData, "kopia": kopiaData},
		ProgressInterval: 500 * time.Millisecond, Logger: c.Logger(),
	}}
	tune(&cfg)
	var agent *nodeagent.Agent
	options := ctrl.Options{Cache: nodeagent.CacheOptions(veleroNamespace, node)}
	c.StartManager(options, func(ctx context.Context, mgr ctrl.Manager) (err error) {
		agent, err = nodeagent.SetUp(ctx, mgr, cfg)
		return err
	})
	c.agentPod(node, agent)
}

// agentPod serves what the agent tells where the API server can ask for it. It carries no requests to loopback addresses: on
// a machine that has no other the numbers come from the objects.
func (c *cluster) agentPod(node string, progress http.Handler) {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: "node-agent-" + node, Labels: map[string]string{"name": "node-agent"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "node-agent", Image: "agent"}}},
	}
	status := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if ip := outsideIP(); ip != "" {
		listener, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			c.t.Fatal(err)
		}
		server := &http.Server{Handler: progress}
		go server.Serve(listener)
		c.t.Cleanup(func() { server.Close() })
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		pod.Annotations = map[string]string{"prometheus.io/port": port}
		status.PodIP, status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	}
	c.Create(pod)
	c.Change(pod, func() { pod.Status = status })
}

// outsideIP is an IPv4 address of this machine that is not loopback, or nothing.
func outsideIP() string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// backUp makes a running pod with a volume of random bytes, and asks for its backup. A volume of size 0 is not there.
func (c *cluster) backUp(node, namespace, name, volume, data string, size int) *velerov1.PodVolumeBackup {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
	if size > 0 {
		pod.Spec.Volumes = []corev1.Volume{{Name: volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	c.Create(pod)
	if size > 0 {
		c.fill(filepath.Join(c.hostPods, node, string(pod.UID), "volumes", "kubernetes.io~empty-dir", volume), size)
	}
	pvb := velero.PodVolumeBackup(c.backup, pod, volume, data)
	c.Create(pvb)
	return pvb
}

func (c *cluster) fill(dir string, size int) {
	c.t.Helper()
	const files = 8
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte([]byte(dir)[len(dir)-32:]))
	content := make([]byte, size/files)
	for i := range files {
		_, _ = random.Read(content) // never fails
		if err := os.WriteFile(filepath.Join(dir, "segment-"+string(rune('a'+i))), content, 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
}
