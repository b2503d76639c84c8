package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restorecontroller"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// asProgram makes the test binary behave as the restore controller.
const asProgram = "RESTORE_CONTROLLER_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(testenv.Main(m))
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		pod  string
		code int
		want string // in what it prints
	}{
		"help":            {[]string{"--help"}, "p", 0, "server"},
		"version":         {[]string{"version"}, "p", 0, "restore-controller dev"},
		"no image":        {[]string{"server"}, "", 2, "POD_NAME"},
		"unknown flag":    {[]string{"server", "--nope"}, "p", 2, "unknown flag: --nope"},
		"bad level":       {[]string{"server", "--log-level=loud"}, "p", 2, "log-level"},
		"bad format":      {[]string{"server", "--log-format=xml"}, "p", 2, "neither text nor json"},
		"bad URL":         {[]string{"server", "--download-url-base=localhost:8086"}, "p", 2, "--download-url-base=localhost:8086"},
		"bad duration":    {[]string{"server", "--backup-sync-period=0s"}, "p", 2, "--backup-sync-period=0s is not positive"},
		"bad number":      {[]string{"server", "--concurrency=0"}, "p", 2, "at least 1"},
		"records nowhere": {[]string{"records", "--kubeconfig", "/no/such/file"}, "", 1, "load the kubeconfig"},
		"unknown command": {[]string{"serve"}, "p", 2, `unknown command "serve"`},
		"argument":        {[]string{"server", "now"}, "p", 2, "takes no arguments"},
		"no API server":   {[]string{"server", "--kubeconfig", "/no/such/file"}, "p", 1, "load the kubeconfig"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], tc.args...)
			cmd.Env = []string{asProgram + "=1", "POD_NAME=" + tc.pod, "TMPDIR=" + t.TempDir()}
			output, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(string(output), tc.want) {
				t.Errorf("exit code %d, want %d, with %q: %s", code, tc.code, tc.want, output)
			}
			if tc.code == 2 && strings.Count(string(output), "\n") != 1 {
				t.Errorf("more than one line: %s", output)
			}
		})
	}
}

// site is an API server with a namespace and a location that is a directory, for real processes.
type site struct {
	*testenv.Env

	t     *testing.T
	store string
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOn(t, nil)
}

// newStandaloneSite has an API server of its own with the CRDs of deploy/standalone.
func newStandaloneSite(t *testing.T) *site {
	t.Helper()
	crds, err := controlplane.VeleroCRDs(controlplane.LatestVelero)
	if err != nil {
		t.Fatal(err)
	}
	crds = slices.DeleteFunc(crds, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Versions[0].Name != velerov1.SchemeGroupVersion.Version
	})
	return newSiteOn(t, controlplane.ForTest(t, controlplane.Options{CRDs: crds}))
}

// newSiteOn is on the API server that tests share if plane is nil.
func newSiteOn(t *testing.T, plane *controlplane.ControlPlane) *site {
	t.Helper()
	s := &site{Env: testenv.New(t, testenv.Options{Plane: plane}), t: t, store: t.TempDir()}
	s.Create(s.DirectoryLocation("default", s.store))
	return s
}

// backUp puts a backup of n ConfigMaps into the store.
func (s *site) backUp(name string, n int) {
	s.t.Helper()
	ended := metav1.Now()
	stored := velero.Stored{Version: velero.V1_18, Backup: &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended},
	}}
	for i := range n {
		stored.Items = append(stored.Items, velero.Item{Resource: "configmaps", Object: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": fmt.Sprintf("c%d", i), "namespace": "shop"},
		}}})
	}
	if err := stored.Write(s.store); err != nil {
		s.t.Fatal(err)
	}
}

// controller is a running process.
type controller struct {
	*exec.Cmd
	metrics, download string // addresses
}

// start starts a process, which the test ends.
func (s *site) start(args ...string) *controller {
	s.t.Helper()
	return s.startInPod("", args...)
}

// startInPod starts a process that knows the name of its pod.
func (s *site) startInPod(pod string, args ...string) *controller {
	s.t.Helper()
	c := &controller{metrics: loopback.ForTest(s.t), download: loopback.ForTest(s.t)}
	c.Cmd = exec.CommandContext(s.t.Context(), os.Args[0], append([]string{
		"server", "--namespace", s.Namespace, "--kubeconfig", s.Plane.Kubeconfig(), "--restore-helper-image=agent", "--backup-sync-period=1s",
		"--metrics-address", c.metrics, "--download-address", c.download, "--download-url-base", "http://" + c.download,
	}, args...)...)
	c.Env = []string{asProgram + "=1", "TMPDIR=" + s.t.TempDir(), "POD_NAME=" + pod}
	c.Stderr = s.t.Output()
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	return c
}

func (s *site) read(o client.Object) error {
	return s.Client.Get(s.Context(), client.ObjectKeyFromObject(o), o)
}

func (s *site) fetch(url string) (status int, content string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func (s *site) newBackup(name string) *velerov1.Backup {
	return &velerov1.Backup{ObjectMeta: s.Meta(name)}
}

func (s *site) newRestore(name, backup string) *velerov1.Restore {
	return &velerov1.Restore{ObjectMeta: s.Meta(name), Spec: velerov1.RestoreSpec{BackupName: backup}}
}

func hasEnded(r *velerov1.Restore) bool {
	switch r.Status.Phase {
	case velerov1.RestorePhaseCompleted, velerov1.RestorePhasePartiallyFailed, velerov1.RestorePhaseFailed, velerov1.RestorePhaseFailedValidation:
		return true
	default:
		return false
	}
}

// TestKilledWhileItRestores kills the process in the middle of a restore. The pod's next one has the lease still, ends that
// Restore as Failed, and does the next one, which finds some of the items there.
func TestKilledWhileItRestores(t *testing.T) {
	t.Parallel()
	s := newStandaloneSite(t)
	s.backUp("b1", 300)
	const pod = "restore-controller-a"
	first := s.startInPod(pod, "--client-qps=20", "--client-burst=1", "--item-concurrency=1")
	s.Eventually("synced", func() bool { return s.read(s.newBackup("b1")) == nil })
	r := s.newRestore("r1", "b1")
	s.Create(r)
	s.Eventually("under way", func() bool {
		return s.read(r) == nil && r.Status.Progress != nil && r.Status.Progress.ItemsRestored > 10
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	second := s.startInPod(pod, "--client-qps=-1")
	s.Eventually("ended", func() bool { return s.read(r) == nil && hasEnded(r) })
	if r.Status.Phase != velerov1.RestorePhaseFailed || !strings.Contains(r.Status.FailureReason, "ended while it restored items") || r.Status.Progress.ItemsRestored <= 10 {
		t.Fatalf("%+v, progress %+v", r.Status, r.Status.Progress)
	}
	if lease := s.lease(); lease.HolderIdentity != pod || lease.LeaderTransitions != 0 {
		t.Errorf("%+v", lease)
	}
	again := s.newRestore("r2", "b1")
	s.Create(again)
	s.Eventually("ended", func() bool { return s.read(again) == nil && hasEnded(again) })
	var p restorecontroller.Progress
	if err := json.Unmarshal([]byte(again.Annotations[v1alpha1.AnnotationProgress]), &p); err != nil {
		t.Fatal(err)
	}
	if again.Status.Phase != velerov1.RestorePhaseCompleted || p.Items.Counts.Created+p.Items.Counts.Updated+p.Items.Counts.Unchanged < 300 || p.Items.Counts.Failed > 0 {
		t.Errorf("%+v %+v", again.Status, p)
	}
	var items corev1.ConfigMapList
	if err := s.Client.List(t.Context(), &items, client.InNamespace("shop")); err != nil || len(items.Items) != 300 {
		t.Errorf("%d items: %v", len(items.Items), err)
	}
	s.checkHTTP(second)
}

// lease is the Lease that controllers take, as far as it is there.
func (s *site) lease() *resourcelock.LeaderElectionRecord {
	s.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: s.Meta("plimsoll-restore-controller")}
	if err := s.read(lease); client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
	return resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
}

// checkHTTP looks at what the process serves.
func (s *site) checkHTTP(c *controller) {
	s.t.Helper()
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, content := s.fetch("http://" + c.metrics + path); status != http.StatusOK {
			s.t.Errorf("%s: %d %s", path, status, content)
		}
	}
	_, metrics := s.fetch("http://" + c.metrics + "/metrics")
	for _, want := range []string{`plimsoll_restore_ended_total{phase="Completed"} 1`, `plimsoll_restore_location_available{location="default"} 1`, "plimsoll_restore_build_info"} {
		if !strings.Contains(metrics, want) {
			s.t.Errorf("metrics lack %s", want)
		}
	}
	request := &velerov1.DownloadRequest{ObjectMeta: s.Meta("log")}
	request.Spec.Target = velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindRestoreLog, Name: "r2"}
	s.Create(request)
	s.Eventually("offered", func() bool { return s.read(request) == nil && request.Status.DownloadURL != "" })
	status, packed := s.fetch(request.Status.DownloadURL)
	if status != http.StatusOK {
		s.t.Fatalf("%s: %d %s", request.Status.DownloadURL, status, packed)
	}
	unpacked, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		s.t.Fatal(err)
	}
	if log, err := io.ReadAll(unpacked); err != nil || !bytes.Contains(log, []byte("restore completed")) {
		s.t.Errorf("%v: log %s", err, log)
	}
}

// TestLeaseOutlastsOutages looks at how long a controller may be without the API server. A second one waits, and goes on soon
// after the first was told to stop.
func TestLeaseOutlastsOutages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.start()
	s.Eventually("the first leads", func() bool { return s.lease().HolderIdentity != "" })
	lease := s.lease()
	if lease.LeaseDurationSeconds != 137 {
		t.Errorf("%+v", lease)
	}
	second := s.start()
	s.Eventually("the second waits", func() bool {
		status, _ := s.fetch("http://" + second.metrics + "/readyz")
		return status == http.StatusOK
	})
	if now := s.lease(); now.HolderIdentity != lease.HolderIdentity {
		t.Errorf("%+v, then %+v", lease, now)
	}
	if err := first.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.Eventually("the second leads", func() bool {
		holder := s.lease().HolderIdentity
		return holder != "" && holder != lease.HolderIdentity
	})
}

func TestRefusesToStartBesideVelero(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Create(&corev1.Pod{
		ObjectMeta: s.Meta("velero-abc"),
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "velero", Image: "velero/velero:v1.18.1", Command: []string{"/velero"}, Args: []string{"server"}}}},
	})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "server", "--namespace", s.Namespace, "--kubeconfig", s.Plane.Kubeconfig(),
		"--restore-helper-image=agent", "--metrics-address=127.0.0.1:0", "--download-address=")
	cmd.Env = []string{asProgram + "=1", "TMPDIR=" + t.TempDir()}
	output, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(output), `pod "velero-abc": a Velero server runs in this namespace`) {
		t.Errorf("exit code %d: %s", code, output)
	}
}
