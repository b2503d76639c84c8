package main

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// refusingLocation has an address where nothing listens.
func (c *clinic) refusingLocation(t *testing.T) (heal func()) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: c.Meta("offsite"), StringData: map[string]string{"cloud": "[default]\naws_access_key_id = id\naws_secret_access_key = hush-hush\n"}}
	location := &velerov1.BackupStorageLocation{
		ObjectMeta: c.Meta("offsite"), Spec: velerov1.BackupStorageLocationSpec{
			Provider: "aws", Config: map[string]string{"s3Url": "https://" + address, "region": "us-east-1", "s3ForcePathStyle": "true"},
			Credential:  &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "offsite"}, Key: "cloud"},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		},
		Status: velerov1.BackupStorageLocationStatus{Phase: velerov1.BackupStorageLocationPhaseAvailable}, // the server reaches it
	}
	healSecret, healLocation := c.created(secret), c.created(location)
	return func() { healLocation(); healSecret() }
}

// unpropagated mounts kubelet's pods directory as a container without mount propagation has it.
func (c *clinic) unpropagated(t *testing.T) (heal func()) {
	dir := c.node.Pods
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
}

// skewed runs the node agent with an API server whose clock is behind.
func (c *clinic) skewed() (heal func()) {
	proxy := c.NewProxy()
	proxy.On(func(r *http.Request) bool { return r.URL.Path == "/version" }, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Date", time.Now().Add(-3*time.Minute).UTC().Format(http.TimeFormat))
	})
	env := *c.Env
	env.Config = proxy.Config()
	old := c.Env
	c.Env = &env
	c.restart(nil)
	c.Env = old
	return func() { c.restart(nil) }
}

// withoutAgent has a pod with a volume on a node of its own.
func (c *clinic) withoutAgent() (heal func()) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-lonely"}}
	pod := &corev1.Pod{ObjectMeta: c.Meta("lonely"), Spec: corev1.PodSpec{
		NodeName: node.Name, Containers: []corev1.Container{{Name: "main", Image: "main", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}}
	pod.Annotations = map[string]string{velerov1.VolumesToBackupAnnotation: "data"}
	healNode, healPod := c.created(node), c.created(pod)
	c.runs(pod)
	return func() { healPod(); healNode() }
}

// unpullable has a restored pod whose init container has no image.
func (c *clinic) unpullable() (heal func()) {
	pod := c.node.RestorablePod("restored", "data")
	c.SetInitContainer(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
	return func() {
		if err := c.Client.Delete(c.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// velerosAgent runs Velero's node agent beside ours.
func (c *clinic) velerosAgent() (heal func()) {
	pod := &corev1.Pod{ObjectMeta: c.Meta("node-agent-v"), Spec: corev1.PodSpec{NodeName: c.node.Name, Containers: []corev1.Container{{Name: "node-agent", Image: "velero/velero:v1.18.3"}}}}
	pod.Labels = map[string]string{"name": "node-agent", "role": "node-agent"}
	heal = c.created(pod)
	c.runs(pod)
	return heal
}

// testNotInstalled removes the Deployment of records: that and the rights of plugins are not looked for any more.
func (c *clinic) testNotInstalled(t *testing.T) {
	t.Helper()
	before := c.records.DeepCopy()
	if err := errors.Join(c.Client.Delete(c.Context(), c.records), c.Client.Delete(c.Context(), c.pluginRole)); err != nil {
		t.Fatal(err)
	}
	if out, errOut, code := c.run("doctor"); code != 0 || strings.Contains(out, "records") {
		t.Errorf("without records: code %d, %s%s", code, out, errOut)
	}
	c.records, c.pluginRole.ResourceVersion = before, ""
	c.records.ResourceVersion = ""
	c.Create(c.pluginRole, c.records)
	c.Change(c.records, func() { c.records.Status.Replicas, c.records.Status.ReadyReplicas = 1, 1 })
}

// testClosed has an agent with --metrics-auth: no check that needs its answer is called healthy, and other faults are still found.
func (c *clinic) testClosed(t *testing.T) {
	t.Helper()
	c.closed.Store(true)
	defer c.closed.Store(false)
	out, errOut, code := c.run("doctor")
	if code != 0 || !strings.Contains(out, "info     agents") || !strings.Contains(out, "0 checks could not be made, 1 note\n") {
		t.Errorf("code %d, %s%s", code, out, errOut)
	}
	for _, check := range []string{"agents", "versions", "locations", "sandbox", "volumes", "clock", "monitoring"} {
		if strings.Contains(out, "ok       "+check+" ") {
			t.Errorf("%s counts as healthy, and no agent has answered:\n%s", check, out)
		}
	}
	defer changed(c, c.server, func() { c.server.Status.ReadyReplicas = 0 })()
	if out, errOut, code := c.run("doctor"); code != 1 || !strings.Contains(out, "error    server") {
		t.Errorf("server not ready: code %d, %s%s", code, out, errOut)
	}
}

// testNotChecked takes from the doctor what it needs: that is no health.
func (c *clinic) testNotChecked(t *testing.T) {
	t.Helper()
	has := func(found []v1alpha1.Finding, check, message string) bool {
		return slices.ContainsFunc(found, func(f v1alpha1.Finding) bool {
			return f.Check == check && f.Severity == v1alpha1.SeverityUnknown && strings.Contains(f.Message, message) && f.Remedy != ""
		})
	}
	gone := c.proxy.On(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/proxy/self-check") }, testenv.Never)
	if found, code := c.diagnose(t, "--timeout=5s"); code != 1 || !has(found, "agents", "the node agent does not answer") || !has(found, "locations", "no node agent has checked") {
		t.Errorf("an agent that does not answer: code %d, %+v", code, found)
	}
	c.proxy.Heal(gone)
	hidden := c.proxy.On(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/configmaps") }, testenv.Refuse(http.StatusForbidden, metav1.StatusReasonForbidden, 0))
	if found, code := c.diagnose(t); code != 1 || !has(found, "reading", "ConfigMaps cannot be read") {
		t.Errorf("what may not be read: code %d, %+v", code, found)
	}
	c.proxy.Heal(hidden)
	silent := c.proxy.On(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") }, testenv.Refuse(http.StatusForbidden, metav1.StatusReasonForbidden, 0))
	if found, code := c.diagnose(t); code != 1 || !has(found, "rights", "the API server does not say") {
		t.Errorf("rights that nobody tells: code %d, %+v", code, found)
	}
	c.proxy.Heal(silent)
	c.proxy.Down()
	if out, errOut, code := c.run("doctor", "--timeout=10s"); code != 1 || out != "" || errOut == "" {
		t.Errorf("no connection: code %d, %s%s", code, out, errOut)
	}
}
