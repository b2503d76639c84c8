package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// asProgram makes the test binary behave as the plugin.
const asProgram = "KUBECTL_PLIMSOLL_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	worker.Main()
	parts.UseWorkerExec()
	os.Exit(testenv.Main(m))
}

// cluster is a namespace of Velero's on a control plane, and a node without kubelet, whose part the test plays.
type cluster struct {
	*testenv.Env

	t          *testing.T
	kubeconfig string
	node       *testenv.Node
	store      string // the directory of the BackupStorageLocation
	agent      *nodeagent.Agent
	tune       func(*nodeagent.Config) // changes what startAgent starts
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterOn(t, nil)
}

// newClusterOn is on a control plane of the test's own, unless that is nil.
func newClusterOn(t *testing.T, plane *controlplane.ControlPlane) *cluster {
	t.Helper()
	c := &cluster{Env: testenv.New(t, testenv.Options{Plane: plane}), t: t, store: t.TempDir()}
	c.kubeconfig, c.node = c.Plane.Kubeconfig(), c.NewNode("node-"+c.Namespace, t.TempDir())
	c.Create(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: c.node.Name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
	c.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": resticrepo.Password})
	c.Create(c.DirectoryLocation("default", c.store))
	resticrepo.Create(t, filepath.Join(c.store, "restic", c.Namespace))
	return c
}

// startAgent runs a node agent with a real restic and kopia until the test or the returned function ends it. It sends at most
// uploadLimit bytes per second; 0: no limit.
func (c *cluster) startAgent(uploadLimit int64) (stop func()) {
	c.t.Helper()
	data, err := restic.New(c.t.Context(), parts.Restic(c.t, parts.DefaultRestic), restic.Options{
		CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: uploadLimit,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	kopiaData, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(c.t), CacheDir: c.t.TempDir(), TempDir: c.t.TempDir(), UploadLimit: uploadLimit})
	if err != nil {
		c.t.Fatal(err)
	}
	agentConfig := nodeagent.Config{Config: podvolume.Config{
		NodeName: c.node.Name, Namespace: c.Namespace, HostPods: c.node.Pods, InitRepositories: true,
		AllowUnmounted:   true, // the test plays kubelet, and may have no right to mount
		Uploaders:        map[string]uploader.Uploader{"restic": data, "kopia": kopiaData},
		ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		MinBackupAge: time.Second, // so that the times of two backups, in whole seconds, differ
	}}
	if c.tune != nil {
		c.tune(&agentConfig)
	}
	options := ctrl.Options{Cache: nodeagent.CacheOptions(c.Namespace, c.node.Name)}
	return c.StartManager(options, func(ctx context.Context, mgr ctrl.Manager) (err error) {
		c.agent, err = nodeagent.SetUp(ctx, mgr, agentConfig)
		return err
	})
}

// run calls the plugin as a user does, in the cluster's namespace, and returns what it prints and its exit code.
func (c *cluster) run(args ...string) (out, errOut string, code int) {
	c.t.Helper()
	return c.runBare(append([]string{"--kubeconfig", c.kubeconfig, "--namespace", c.Namespace}, args...)...)
}

// runBare is run with no arguments but those.
func (c *cluster) runBare(args ...string) (out, errOut string, code int) {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(c.t.Context(), strings.NewReader(""), &stdout, &stderr, args)
	return stdout.String(), stderr.String(), code
}
