package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// patience is how long a test waits for what must come. Nothing waits for it to pass.
const patience = 3 * time.Minute

// plane is the control plane of this package's tests.
var plane = controlplane.Shared{CRDs: controlplane.AllCRDs}

func TestMain(m *testing.M) {
	worker.Main()
	kopia.Main()
	ctrl.SetLogger(logr.Discard())
	os.Exit(plane.Main(m))
}

// cluster is a namespace of Velero's on the control plane, and a node without kubelet, whose part the test plays.
type cluster struct {
	t          *testing.T
	kubeconfig string
	rest       *rest.Config
	api        client.Client
	ns, node   string
	hostPods   string // kubelet's pods directory of the node
	store      string // the directory of the BackupStorageLocation
	agent      *nodeagent.Agent
	tune       func(*nodeagent.Config) // changes what startAgent starts
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterOn(t, plane.Get(t))
}

func newClusterOn(t *testing.T, running *controlplane.ControlPlane) *cluster {
	t.Helper()
	c := &cluster{t: t, kubeconfig: running.Kubeconfig(), rest: running.Config(), hostPods: t.TempDir(), store: t.TempDir()}
	c.rest.QPS = -1
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	if c.api, err = client.New(c.rest, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "velero-"}}
	c.create(namespace)
	c.ns, c.node = namespace.Name, "node-"+namespace.Name
	c.create(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: c.node},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
	c.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "velero-repo-credentials"}, StringData: map[string]string{"repository-password": "correct horse"},
	})
	c.create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "default"},
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: "velero.io/fs", Config: map[string]string{"fspath": c.store, "resticRepoPrefix": filepath.Join(c.store, "restic")},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		},
	})
	return c
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	if err := c.api.Create(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

// change reads an object, changes it and writes it, with its status where that is a subresource.
func (c *cluster) change(o client.Object, change func()) {
	c.t.Helper()
	before := client.MergeFrom(o.DeepCopyObject().(client.Object))
	change()
	status := o.DeepCopyObject().(client.Object)
	if err := c.api.Patch(c.t.Context(), o, before); err != nil {
		c.t.Fatal(err)
	}
	if err := client.IgnoreNotFound(c.api.Status().Patch(c.t.Context(), status, before)); err != nil {
		c.t.Fatal(err)
	}
}

// until waits until an object is as it should be.
func until[T client.Object](c *cluster, o T, what string, is func(T) bool) T {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := c.api.Get(c.t.Context(), client.ObjectKeyFromObject(o), o)
		if err == nil && is(o) {
			return o
		}
		if time.Now().After(deadline) {
			text, _ := json.Marshal(o)
			c.t.Fatalf("%s: waited in vain; last: %v %s", what, err, text)
		}
		pause(c.t)
	}
}

// pause lets others work between two looks.
func pause(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(50 * time.Millisecond):
	case <-t.Context().Done():
	}
}

// startAgent runs a node agent with a real restic and kopia until the test or the returned function ends it. It sends at most
// uploadLimit bytes per second; 0: no limit.
func (c *cluster) startAgent(uploadLimit int64) (stop func()) {
	c.t.Helper()
	scheme, err := newScheme()
	if err != nil {
		c.t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(c.rest, ctrl.Options{
		Scheme: scheme, Cache: nodeagent.CacheOptions(c.ns, c.node), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // one process, many agents
	})
	if err != nil {
		c.t.Fatal(err)
	}
	data, err := restic.New(c.t.Context(), parts.Restic(c.t, parts.DefaultRestic), restic.Options{
		CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: uploadLimit,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	kopiaData, err := kopia.New(kopia.Options{CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: uploadLimit})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	agentConfig := nodeagent.Config{
		NodeName: c.node, Namespace: c.ns, HostPods: c.hostPods, InitRepositories: true,
		AllowUnmounted:   true, // the test plays kubelet, and may have no right to mount
		Uploaders:        map[string]uploader.Uploader{"restic": data, "kopia": kopiaData},
		ProgressInterval: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(c.t.Output(), nil)),
	}
	if c.tune != nil {
		c.tune(&agentConfig)
	}
	if c.agent, err = nodeagent.SetUp(ctx, mgr, agentConfig); err != nil {
		cancel()
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := mgr.Start(ctx); err != nil {
			c.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	c.t.Cleanup(stop)
	return stop
}

// pod makes a running pod with emptyDir volumes and their directories on the node.
func (c *cluster) pod(name string, volumes ...string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: name},
		Spec:       corev1.PodSpec{NodeName: c.node, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
	for _, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	c.create(pod)
	for _, v := range volumes {
		if err := os.MkdirAll(c.dir(pod, v), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	return pod
}

// dir is where kubelet has an emptyDir volume.
func (c *cluster) dir(pod *corev1.Pod, volume string) string {
	return filepath.Join(c.hostPods, string(pod.UID), "volumes", "kubernetes.io~empty-dir", volume)
}

// run calls the plugin as a user does, in the cluster's namespace, and returns what it prints and its exit code.
func (c *cluster) run(args ...string) (out, errOut string, code int) {
	c.t.Helper()
	return c.runBare(append([]string{"--kubeconfig", c.kubeconfig, "--namespace", c.ns}, args...)...)
}

// runBare is run with no arguments but those.
func (c *cluster) runBare(args ...string) (out, errOut string, code int) {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(c.t.Context(), strings.NewReader(""), &stdout, &stderr, args)
	return stdout.String(), stderr.String(), code
}
