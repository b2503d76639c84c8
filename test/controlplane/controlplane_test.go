package controlplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// phaseCanceled is a phase that only Velero 1.17 and later know.
const phaseCanceled = "Canceled"

// TestControlPlane starts one, looks at all that it is for, and at what is left of it.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	parts.ControlPlane(t)
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "audit.log")
	cp, err := Start(Options{Dir: dir, CRDs: crds(t, LatestVelero), AuditLog: log})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(running(t, dir)); n != 2 {
		t.Errorf("%d programs run, want etcd and kube-apiserver", n)
	}
	t.Run("a pod is run by hand", func(t *testing.T) { podIsRunByHand(t, cp) })
	t.Run("the latest Velero's phases", func(t *testing.T) { takesCanceled(t, cp, true) })
	t.Run("the kubeconfig leads to the same server", func(t *testing.T) { kubeconfigLeadsToTheSameServer(t, cp) })
	t.Run("audit log", func(t *testing.T) { auditLog(t, cp, log) })
	if err := cp.Stop(); err != nil {
		t.Error(err)
	}
	checkNothingIsLeft(t, dir)
}

func podIsRunByHand(t *testing.T, cp *ControlPlane) {
	t.Helper()
	c := newClient(t, cp)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName:       "node-1",
			InitContainers: []corev1.Container{{Name: "restore-wait", Image: "restore-wait"}},
			Containers:     []corev1.Container{{Name: "web", Image: "web"}},
			Volumes:        []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	if err := c.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: "restore-wait", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	if err := c.Status().Patch(t.Context(), pod, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	got := &corev1.Pod{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), got); err != nil {
		t.Fatal(err)
	}
	if s := got.Status; got.Spec.NodeName != "node-1" || s.Phase != corev1.PodRunning || len(s.InitContainerStatuses) != 1 ||
		s.InitContainerStatuses[0].State.Running == nil {
		t.Errorf("on node %q with status %+v; want node-1, Running, restore-wait running", got.Spec.NodeName, s)
	}
}

func TestPhaseCanceledDependsOnVelero(t *testing.T) {
	t.Parallel()
	parts.Slow(t) // TestControlPlane has the latest version, and package podvolume 1.16.2
	for version, accepted := range map[string]bool{"1.10.3": false, "1.14.1": false, "1.16.2": false, "1.17.2": true} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			takesCanceled(t, ForTest(t, Options{CRDs: crds(t, version), Dir: t.TempDir()}), accepted)
		})
	}
}

func takesCanceled(t *testing.T, cp *ControlPlane, accepted bool) {
	t.Helper()
	c := newClient(t, cp)
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: "web-data", Namespace: "default"}}
	if err := c.Create(t.Context(), pvb); err != nil {
		t.Fatal(err)
	}
	before := pvb.DeepCopy()
	pvb.Status.Phase = phaseCanceled
	err := c.Patch(t.Context(), pvb, client.MergeFrom(before))
	if accepted && err != nil {
		t.Errorf("got %v, want no error", err)
	}
	if !accepted && !apierrors.IsInvalid(err) {
		t.Errorf("got %v, want Invalid", err)
	}
}

func TestVeleroCRDs(t *testing.T) {
	t.Parallel()
	for _, version := range VeleroVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			names := map[string]bool{}
			for _, crd := range crds(t, version) {
				names[crd.Spec.Names.Plural] = true
			}
			for _, want := range []string{
				"backups", "restores", "backupstoragelocations", "backuprepositories", "podvolumebackups", "podvolumerestores",
			} {
				if !names[want] {
					t.Errorf("no %s among %v", want, names)
				}
			}
		})
	}
}

func TestVeleroCRDsOfUnknownVersion(t *testing.T) {
	t.Parallel()
	if _, err := VeleroCRDs("0.0.1"); err == nil || !strings.Contains(err.Error(), "Velero 0.0.1") {
		t.Errorf("got %v, want an error that names Velero 0.0.1", err)
	}
}

func kubeconfigLeadsToTheSameServer(t *testing.T, cp *ControlPlane) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want, got := &corev1.Namespace{}, &corev1.Namespace{}
	key := client.ObjectKey{Name: "kube-system"}
	if err := errors.Join(newClient(t, cp).Get(t.Context(), key, want), c.Get(t.Context(), key, got)); err != nil {
		t.Fatal(err)
	}
	if got.UID != want.UID {
		t.Errorf("kubeconfig leads to a cluster whose %s has UID %s, want %s", key.Name, got.UID, want.UID)
	}
}

func auditLog(t *testing.T, cp *ControlPlane, log string) {
	t.Helper()
	if err := newClient(t, cp).Get(t.Context(), client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), `"requestURI":"/api/v1/namespaces/kube-system","verb":"get"`) {
		t.Errorf("the request is not in the audit log: %v\n%.2000s", err, text)
	}
}

func TestNothingIsLeftOfAFailedStart(t *testing.T) {
	t.Parallel()
	parts.ControlPlane(t)
	dir := t.TempDir()
	invalid := []*apiextensionsv1.CustomResourceDefinition{{ObjectMeta: metav1.ObjectMeta{Name: "invalid"}}}
	if _, err := Start(Options{Dir: dir, CRDs: invalid}); err == nil || !strings.Contains(err.Error(), "install CRDs") {
		t.Errorf("start: got %v, want an error about CRDs", err)
	}
	checkNothingIsLeft(t, dir)
}

// checkNothingIsLeft looks for programs and files of a control plane in dir.
func checkNothingIsLeft(t *testing.T, dir string) {
	t.Helper()
	if left := running(t, dir); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
}

// TestNothingRunsAfterKill kills a process that lends a control plane, after this one has borrowed it.
func TestNothingRunsAfterKill(t *testing.T) {
	parts.ControlPlane(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Log("without setpriv there is no safety net: nothing to test")
		return
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), doomed+"=1", "TMPDIR="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Errorf("start: %q, %v", line, err)
	}
	borrowFrom(t, strings.TrimSpace(line))
	programs := running(t, dir)
	if len(programs) != 2 {
		t.Errorf("before the kill run %v, want etcd and kube-apiserver", programs)
	}
	ended := map[int]func() bool{}
	for pid := range programs {
		ended[pid] = watchEnd(t, pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // says that it was killed
	for pid, program := range programs {
		if !ended[pid]() {
			t.Errorf("%s still runs", program)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// borrowFrom borrows the control plane of the Lender with this Environment, twice.
func borrowFrom(t *testing.T, environment string) {
	t.Helper()
	name, socket, _ := strings.Cut(environment, "=")
	t.Setenv(name, socket)
	first, err := Borrow()
	if err != nil {
		t.Error(err)
		return
	}
	takesCanceled(t, first, true)
	second, err := Borrow()
	if err != nil || second.Kubeconfig() != first.Kubeconfig() {
		t.Errorf("borrowed another control plane: %v", err)
	}
	if err := first.RestartAPIServer(); err == nil {
		t.Error("a borrower has restarted the API server")
	}
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	kubeconfigLeadsToTheSameServer(t, second) // which still runs
}

// doomed is the variable that makes this test binary lend a control plane and wait to be killed.
const doomed = "PLIMSOLL_TEST_DOOMED"

func TestMain(m *testing.M) {
	if os.Getenv(doomed) != "" {
		lender, err := Lend()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(lender.Environment())
		select {}
	}
	os.Exit(m.Run())
}

// running returns the programs whose command line names the folder, by process id.
func running(t *testing.T, dir string) map[int]string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, path := range lines {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(dir)) {
			continue // it ended meanwhile, or is none of ours
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		program, _, _ := bytes.Cut(text, []byte{0})
		found[pid] = string(program)
	}
	return found
}

// watchEnd returns a function that waits for the end of the process, with patience.
func watchEnd(t *testing.T, pid int) func() bool {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() bool {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
			if !errors.Is(err, unix.EINTR) {
				return n == 1
			}
		}
	}
}

func newClient(t *testing.T, cp *ControlPlane) client.Client {
	t.Helper()
	s := k8sruntime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), velerov1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cp.Config(), client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func crds(t *testing.T, version string) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	list, err := VeleroCRDs(version)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
