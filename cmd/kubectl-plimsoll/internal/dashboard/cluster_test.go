package dashboard

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const veleroNamespace = "velero"

func TestMain(m *testing.M) {
	worker.Main()
	kopia.Main()
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// cluster is a control plane with a Velero server's objects and nodes without kubelet, of which the test plays the parts.
type cluster struct {
	t        *testing.T
	rest     *rest.Config
	scheme   *runtime.Scheme
	client   client.Client
	hostPods string // holds each node's pods directory
	backup   *velerov1.Backup
}

func newCluster(t *testing.T, backup string) *cluster {
	t.Helper()
	crds, err := controlplane.VeleroCRDs("1.18.3")
	if err != nil {
		t.Fatal(err)
	}
	plane := controlplane.ForTest(t, controlplane.Options{CRDs: crds})
	c := &cluster{t: t, rest: plane.Config(), scheme: runtime.NewScheme(), hostPods: t.TempDir()}
	c.rest.QPS = -1
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, velerov1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(c.scheme); err != nil {
			t.Fatal(err)
		}
	}
	if c.client, err = client.New(c.rest, client.Options{Scheme: c.scheme}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{veleroNamespace, "shop", "wiki"} {
		c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	c.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: "velero-repo-credentials"},
		StringData: map[string]string{"repository-password": "correct horse"},
	})
	store := t.TempDir()
	c.create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: velero.Location},
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: "velero.io/fs", Config: map[string]string{"fspath": store, "resticRepoPrefix": filepath.Join(store, "restic")},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		},
	})
	c.backup = &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: backup, Labels: map[string]string{velerov1.ScheduleNameLabel: "nightly"}},
		Spec:       velerov1.BackupSpec{StorageLocation: velero.Location},
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now()),
			Progress: &velerov1.BackupProgress{ItemsBackedUp: 212, TotalItems: 380},
		},
	}
	c.create(c.backup)
	return c
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	if err := c.client.Create(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) patch(o client.Object, change func()) {
	c.t.Helper()
	before := client.MergeFrom(o.DeepCopyObject().(client.Object))
	change()
	if err := c.client.Patch(c.t.Context(), o, before); err != nil {
		c.t.Fatal(err)
	}
}

// startAgent runs a node's agent until the test ends, with the pod that kubelet would have. It sends so many bytes per
// second for each volume.
func (c *cluster) startAgent(node string, bytesPerSecond int64, tune func(*nodeagent.Config)) {
	c.t.Helper()
	mgr, err := ctrl.NewManager(c.rest, ctrl.Options{
		Scheme: c.scheme, Cache: nodeagent.CacheOptions(veleroNamespace, node), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // one process, two agents
	})
	if err != nil {
		c.t.Fatal(err)
	}
	resticData, err := restic.New(c.t.Context(), parts.Restic(c.t, parts.DefaultRestic), restic.Options{
		CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: bytesPerSecond,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	kopiaData, err := kopia.New(kopia.Options{CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: bytesPerSecond})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.hostPods, node), 0o755); err != nil {
		c.t.Fatal(err)
	}
	cfg := nodeagent.Config{
		NodeName: node, Namespace: veleroNamespace, HostPods: filepath.Join(c.hostPods, node), InitRepositories: true,
		Uploaders:        map[string]uploader.Uploader{"restic": resticData, "kopia": kopiaData},
		ProgressInterval: 500 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(c.t.Output(), nil)),
	}
	tune(&cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	agent, err := nodeagent.SetUp(ctx, mgr, cfg)
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(func() { cancel(); running.Wait() })
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
	c.create(pod)
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status = status
	if err := c.client.Status().Patch(c.t.Context(), pod, before); err != nil {
		c.t.Fatal(err)
	}
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
	c.create(pod)
	if size > 0 {
		c.fill(filepath.Join(c.hostPods, node, string(pod.UID), "volumes", "kubernetes.io~empty-dir", volume), size)
	}
	pvb := velero.PodVolumeBackup(c.backup, pod, volume, data)
	c.create(pvb)
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
