package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

const agentImage = "registry.example.com/plimsoll/node-agent:v0.1.0"

// clinic is an installation that is healthy until a test plants something. The node agent is real, with real data paths, but
// for what its kernel has, which the test says in its place.
type clinic struct {
	*cluster

	proxy     *testenv.Proxy
	agents    *appsv1.DaemonSet
	pod       *corev1.Pod // of the node agent
	server    *appsv1.Deployment
	tasks     *appsv1.Deployment
	records   *appsv1.Deployment
	helper    *corev1.ConfigMap
	role      *rbacv1.Role // of the node agent
	tasksRole *rbacv1.Role // of the Deployment tasks
	// recordsRole is that of the Deployment records, pluginRole that of the server's plugins.
	recordsRole, pluginRole *rbacv1.Role
	closed                  atomic.Bool // the agent asks for a token
	scraped                 atomic.Pointer[time.Time]
	doctored                atomic.Pointer[func(*v1alpha1.SelfCheck)] // changes the agent's answer
	// lastReached are the locations of the agent's last answer. With reached it checks none, which takes a second and a kopia each
	// time, and answers with these.
	lastReached, reached atomic.Pointer[[]v1alpha1.LocationCheck]
	stop                 func()
}

func newClinic(t *testing.T) *clinic {
	t.Helper()
	// The doctor looks at pods of all namespaces.
	ours, err := controlplane.OurCRDs()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := controlplane.VeleroCRDs(controlplane.LatestVelero)
	if err != nil {
		t.Fatal(err)
	}
	c := &clinic{cluster: newClusterOn(t, controlplane.ForTest(t, controlplane.Options{CRDs: append(theirs, ours...)}))}
	c.proxy = c.NewProxy()
	c.kubeconfig = testenv.Kubeconfig(t, c.proxy.Config())
	c.scraped.Store(new(time.Now()))
	c.install()
	c.restart(nil)
	c.proxy.ServePod(c.pod.Name+":8085", http.HandlerFunc(c.answer))

	location := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
	c.Get(location)
	c.Change(location, func() { location.Status.Phase = velerov1.BackupStorageLocationPhaseAvailable })
	source, _ := c.source(true)
	c.Change(source, func() { source.Annotations = map[string]string{velerov1.VolumesToBackupAnnotation: "data"} })
	if out, errOut, code := c.run("volume", "backup", c.Namespace+"/db-0", "data", "--to=default", "--uploader=kopia"); code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	c.Create(&velerov1.BackupRepository{
		ObjectMeta: c.Meta("shop-default-kopia"), Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: c.Namespace, BackupStorageLocation: "default", RepositoryType: "kopia", ResticIdentifier: "",
			MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
		},
		Status: velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseReady},
	})
	return c
}

// install makes what deploy/node-agent and velero install make, and plays kubelet and the controllers.
func (c *clinic) install() {
	c.t.Helper()
	c.agentPod()
	c.agents = &appsv1.DaemonSet{ObjectMeta: c.Meta("node-agent")}
	c.Get(c.agents)
	c.Change(c.agents, func() {
		spec := &c.agents.Spec.Template.Spec
		spec.ImagePullSecrets, spec.ServiceAccountName = nil, "plimsoll-node-agent"
		spec.Containers[0].Image = agentImage
		spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host-pods", MountPath: "/host_pods", MountPropagation: new(corev1.MountPropagationHostToContainer)}}
		spec.Volumes = []corev1.Volume{{Name: "host-pods", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/pods"}}}}
		c.agents.Status.DesiredNumberScheduled, c.agents.Status.CurrentNumberScheduled, c.agents.Status.NumberReady = 1, 1, 1
	})
	c.pod = &corev1.Pod{ObjectMeta: c.Meta("node-agent-x")}
	c.Get(c.pod)
	if err := os.MkdirAll(filepath.Join(c.node.Pods, string(c.pod.UID)), 0o755); err != nil {
		c.t.Fatal(err)
	}
	labels := map[string]string{"deploy": "velero"}
	c.server = &appsv1.Deployment{ObjectMeta: c.Meta("velero"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			ServiceAccountName: "velero", Containers: []corev1.Container{{Name: "velero", Image: "velero/velero:v1.18.3", Args: []string{"server"}}},
		}},
	}}
	c.Create(c.server)
	c.Change(c.server, func() { c.server.Status.Replicas, c.server.Status.ReadyReplicas = 1, 1 })
	c.tasks, c.records = c.tasksDeployment(agentImage), c.tasksDeployment(agentImage)
	c.records.Name = "plimsoll-records"
	for _, deployment := range []*appsv1.Deployment{c.tasks, c.records} {
		deployment.Spec.Template.Labels["app.kubernetes.io/name"] = deployment.Name
		deployment.Spec.Template.Spec.ServiceAccountName = deployment.Name
		c.Create(deployment)
		c.Change(deployment, func() { deployment.Status.Replicas, deployment.Status.ReadyReplicas = 1, 1 })
	}
	c.helper = c.newHelper("plimsoll-restore-wait")
	c.Create(c.helper)
	c.grantAll()
}

func (c *clinic) newHelper(name string) *corev1.ConfigMap {
	meta := c.Meta(name)
	meta.Labels = map[string]string{"velero.io/plugin-config": "", "velero.io/pod-volume-restore": "RestoreItemAction"}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"image": agentImage}}
}

// roles reads rbac.yaml of a directory of deploy/.
func roles(t *testing.T, directory string) (everywhere *rbacv1.ClusterRole, here *rbacv1.Role) {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(root, "deploy", directory, "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	everywhere, here = &rbacv1.ClusterRole{}, &rbacv1.Role{}
	for documents := yaml.NewYAMLReader(bufio.NewReader(f)); ; {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return everywhere, here
		}
		into := any(here)
		if strings.Contains(string(text), "kind: ClusterRole\n") {
			into = everywhere
		}
		if err := errors.Join(err, yaml.Unmarshal(text, into)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDoctorRights compares what the doctor asks for with what deploy/ gives.
func TestDoctorRights(t *testing.T) {
	t.Parallel()
	for directory, asked := range map[string][]authorizationv1.ResourceAttributes{
		"node-agent": describe.AgentRights("velero"), "repository-tasks": describe.RepositoryTaskRights("velero"),
		"records": describe.RecordRights("velero"), "volume-plugin": describe.VolumePluginRights("velero"),
	} {
		var want, got []string
		everywhere, here := roles(t, directory)
		for namespace, rules := range map[string][]rbacv1.PolicyRule{"": everywhere.Rules, "velero": here.Rules} {
			for _, rule := range rules {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						want = append(want, strings.Join([]string{namespace, rule.APIGroups[0], resource, verb}, " "))
					}
				}
			}
		}
		for _, r := range asked {
			got = append(got, strings.Join([]string{r.Namespace, r.Group, strings.TrimSuffix(r.Resource+"/"+r.Subresource, "/"), r.Verb}, " "))
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rights of %s (-deploy +doctor):\n%s", directory, diff)
		}
	}
}

// grantAll gives the service accounts the rights of deploy/.
func (c *clinic) grantAll() {
	c.t.Helper()
	everywhere, here := roles(c.t, "node-agent")
	here.Namespace, c.role = c.Namespace, here
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "plimsoll-node-agent", Namespace: c.Namespace}}
	c.tasksRole, c.recordsRole = c.bind("repository-tasks", c.tasks.Name), c.bind("records", c.records.Name)
	c.pluginRole = c.bind("volume-plugin", "velero")
	c.Create(everywhere, here,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: everywhere.Name}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everywhere.Name}},
		&rbacv1.RoleBinding{ObjectMeta: c.Meta(here.Name), Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: here.Name}})
}

// bind gives a service account the role of a directory of deploy/.
func (c *clinic) bind(directory, account string) *rbacv1.Role {
	c.t.Helper()
	_, role := roles(c.t, directory)
	role.Namespace = c.Namespace
	c.Create(role, &rbacv1.RoleBinding{
		ObjectMeta: c.Meta(role.Name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: c.Namespace}},
	})
	return role
}

// restart runs the node agent anew.
func (c *clinic) restart(tune func(*nodeagent.Config)) {
	c.t.Helper()
	if c.stop != nil {
		c.stop()
	}
	c.tune = func(cfg *nodeagent.Config) {
		cfg.Versions.Agent = version
		cfg.LastScrape = func() time.Time { return *c.scraped.Load() }
		if tune != nil {
			tune(cfg)
		}
	}
	c.stop = c.startAgent(0)
}

// answer is the agent's /self-check, with a kernel that has all it should.
func (c *clinic) answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/self-check" {
		http.NotFound(w, r)
		return
	}
	if c.closed.Load() { // as --metrics-auth says to a request without a token
		http.Error(w, "Authentication failed", http.StatusUnauthorized)
		return
	}
	reached := c.reached.Load()
	if reached != nil {
		r = r.Clone(r.Context())
		query := r.URL.Query()
		query.Del("location")
		r.URL.RawQuery = query.Encode()
	}
	recorded := httptest.NewRecorder()
	c.agent.ServeSelfCheck(recorded, r)
	var s v1alpha1.SelfCheck
	if err := json.Unmarshal(recorded.Body.Bytes(), &s); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if reached != nil {
		s.Locations = *reached
	}
	c.lastReached.Store(&s.Locations)
	s.Landlock, s.MetadataGuard = 7, true
	if change := c.doctored.Load(); change != nil {
		(*change)(&s)
	}
	_ = json.NewEncoder(w).Encode(s)
}

// diagnose runs the doctor, and returns what it finds besides what is healthy.
func (c *clinic) diagnose(t *testing.T, args ...string) (found []v1alpha1.Finding, code int) {
	t.Helper()
	out, errOut, code := c.run(append([]string{"doctor", "-o", "json"}, args...)...)
	var d v1alpha1.Diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("code %d, %v: %s%s", code, err, out, errOut)
	}
	if strings.Contains(out, resticrepo.Password) || strings.Contains(out, "hush-hush") {
		t.Errorf("the doctor tells secrets: %s", out)
	}
	return slices.DeleteFunc(d.Findings, func(f v1alpha1.Finding) bool { return f.Severity == v1alpha1.SeverityOK }), code
}

// published changes the answers of the node agent, where its node cannot be changed.
func (c *clinic) published(change func(*v1alpha1.SelfCheck)) (heal func()) {
	c.doctored.Store(&change)
	return func() { c.doctored.Store(nil) }
}

// changed changes an object until it is healed.
func changed[O client.Object](c *clinic, object O, change func()) (heal func()) {
	c.Get(object)
	before := object.DeepCopyObject().(O)
	c.Change(object, change)
	return func() {
		restored := before.DeepCopyObject().(O)
		restored.SetResourceVersion("")
		if err := c.Client.Update(c.Context(), restored); err != nil {
			c.t.Fatal(err)
		}
		restored.SetResourceVersion("")
		status := before.DeepCopyObject().(O)
		status.SetResourceVersion("")
		if err := client.IgnoreNotFound(c.Client.Status().Update(c.Context(), status)); err != nil {
			c.t.Fatal(err)
		}
		c.Get(object)
	}
}

func (c *clinic) created(object client.Object) (heal func()) {
	c.Create(object)
	return func() {
		if err := c.Client.Delete(c.Context(), object, client.GracePeriodSeconds(0)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestDoctor plants one misconfiguration after the other into a healthy installation. Each is named, with what to do, and nothing
// else is.
func TestDoctor(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newClinic(t)
	var found []v1alpha1.Finding
	var code int
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last found, with code %d: %+v", code, found)
		}
	})
	healthy := func(t *testing.T, when string) {
		t.Helper()
		c.Eventually(when+" nothing is found", func() bool {
			found, code = c.diagnose(t)
			return len(found) == 0 && code == 0
		})
	}
	healthy(t, "at first")
	reached := c.lastReached.Load()
	tests := []struct {
		name, check, reason string
		severity            v1alpha1.Severity
		plant               func(t *testing.T) (heal func())
	}{
		{"node without agent", "agents", "NodeWithoutAgent", "error", func(*testing.T) func() { return c.withoutAgent() }},
		{"backup on a node without agent", "agents", "NodeWithoutAgent", "error", func(*testing.T) func() {
			return c.created(&velerov1.PodVolumeBackup{ObjectMeta: c.Meta("stuck"), Spec: velerov1.PodVolumeBackupSpec{
				Node: "node-lonely", Pod: corev1.ObjectReference{Namespace: c.Namespace, Name: "lonely"}, Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia",
			}})
		}},
		{"agent not ready", "agents", "AgentNotReady", "error", func(*testing.T) func() {
			return changed(c, c.pod, func() { c.pod.Status.Conditions[0].Status = corev1.ConditionFalse })
		}},
		{"agent not scheduled", "agents", "AgentNotScheduled", "error", func(*testing.T) func() {
			return changed(c, c.agents, func() { c.agents.Status.DesiredNumberScheduled = 3 })
		}},
		{"Velero's agent beside ours", "agents", "TwoAgents", "error", func(*testing.T) func() { return c.velerosAgent() }},
		{"agent of another version", "versions", "VersionSkew", "warning", func(*testing.T) func() {
			c.restart(func(cfg *nodeagent.Config) { cfg.Versions.Agent = "v0.0.1" })
			return func() { c.restart(nil) }
		}},
		{"server's uploader", "server", "ServerUploader", "error", func(*testing.T) func() {
			return changed(c, c.server, func() { c.server.Spec.Template.Spec.Containers[0].Args = []string{"server", "--uploader-type=restic"} })
		}},
		{"server not ready", "server", "ServerNotReady", "error", func(*testing.T) func() {
			return changed(c, c.server, func() { c.server.Status.ReadyReplicas = 0 })
		}},
		{"server too new", "server", "ServerVersion", "warning", func(*testing.T) func() {
			return changed(c, c.server, func() { c.server.Spec.Template.Spec.Containers[0].Image = "velero/velero:v2.0.0" })
		}},
		{"repository tasks not ready", "tasks", "TasksNotReady", "error", func(*testing.T) func() {
			return changed(c, c.tasks, func() { c.tasks.Status.ReadyReplicas = 0 })
		}},
		{"repository tasks without a right", "rights", "MissingRight", "error", func(*testing.T) func() {
			return changed(c, c.tasksRole, func() { c.tasksRole.Rules[0].Resources = []string{"configmaps"} })
		}},
		{"repository tasks of another version", "versions", "VersionSkew", "warning", func(*testing.T) func() {
			return changed(c, c.tasks, func() { c.tasks.Spec.Template.Spec.Containers[0].Image += "-old" })
		}},
		{"records not ready", "records", "RecordsNotReady", "error", func(*testing.T) func() {
			return changed(c, c.records, func() { c.records.Status.ReadyReplicas = 0 })
		}},
		{"records without a right", "rights", "MissingRight", "error", func(*testing.T) func() {
			return changed(c, c.recordsRole, func() { c.recordsRole.Rules[0].Resources = []string{"configmaps"} })
		}},
		{"records of another version", "versions", "VersionSkew", "warning", func(*testing.T) func() {
			return changed(c, c.records, func() { c.records.Spec.Template.Spec.Containers[0].Image += "-old" })
		}},
		{"plugins without a right", "rights", "MissingRight", "error", func(*testing.T) func() {
			return changed(c, c.pluginRole, func() { c.pluginRole.Rules[0].Verbs = []string{"get"} })
		}},
		{"agent asks for a token", "agents", "AgentAsksForToken", "info", func(*testing.T) func() {
			c.closed.Store(true)
			return func() { c.closed.Store(false) }
		}},
		{"helper image of another", "restore-helper", "HelperImage", "error", func(*testing.T) func() {
			return changed(c, c.helper, func() { c.helper.Data["image"] = "docker.io/velero/velero:v1.18.3" })
		}},
		{"helper image without tag", "restore-helper", "HelperImage", "error", func(*testing.T) func() {
			return changed(c, c.helper, func() { c.helper.Data["image"] = "registry.example.com/plimsoll/node-agent" })
		}},
		{"helper image of another version", "restore-helper", "HelperImage", "warning", func(*testing.T) func() {
			return changed(c, c.helper, func() { c.helper.Data["image"] = "registry.example.com/plimsoll/node-agent:v0.0.9" })
		}},
		{"no helper", "restore-helper", "HelperMissing", "warning", func(*testing.T) func() {
			return changed(c, c.helper, func() { c.helper.Labels = nil })
		}},
		{"two helpers", "restore-helper", "HelperTwice", "error", func(*testing.T) func() { return c.created(c.newHelper("mine")) }},
		{"helper not pulled", "restore-helper", "HelperNotPulled", "error", func(*testing.T) func() { return c.unpullable() }},
		{"missing right", "rights", "MissingRight", "error", func(*testing.T) func() {
			return changed(c, c.role, func() { c.role.Rules[0].Resources = []string{"configmaps"} })
		}},
		{"location out of reach", "locations", "LocationUnreachable", "error", c.refusingLocation},
		{"another password", "locations", "WrongPassword", "error", func(*testing.T) func() {
			secret := &corev1.Secret{ObjectMeta: c.Meta("velero-repo-credentials")}
			c.Get(secret)
			return changed(c, secret, func() { secret.Data["repository-password"] = []byte("hush-hush") })
		}},
		{"a limit that is not kept", "locations", "LimitNotKept", "warning", func(*testing.T) func() {
			location := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
			c.Get(location)
			c.Change(location, func() { location.Annotations = map[string]string{v1alpha1.AnnotationMaxBytesPerSecond: "200Mi"} })
			return func() { c.Change(location, func() { location.Annotations = nil }) }
		}},
		{"no mount propagation", "volumes", "MountNotPropagated", "error", c.unpropagated},
		{"no mount propagation in the DaemonSet", "volumes", "MountNotPropagated", "error", func(*testing.T) func() {
			return changed(c, c.agents, func() { c.agents.Spec.Template.Spec.Containers[0].VolumeMounts[0].MountPropagation = nil })
		}},
		{"kubelet elsewhere", "volumes", "PodsDirectoryWrong", "error", func(t *testing.T) func() {
			c.restart(func(cfg *nodeagent.Config) { cfg.HostPods = t.TempDir() })
			return func() { c.restart(nil) }
		}},
		{"no Landlock", "sandbox", "LandlockMissing", "warning", func(*testing.T) func() {
			return c.published(func(s *v1alpha1.SelfCheck) { s.Landlock = 0 })
		}},
		{"no metadata guard", "sandbox", "GuardMissing", "warning", func(*testing.T) func() {
			return c.published(func(s *v1alpha1.SelfCheck) { s.MetadataGuard = false })
		}},
		{"clock skew", "clock", "ClockSkew", "warning", func(*testing.T) func() { return c.skewed() }},
		{"not scraped yet", "monitoring", "NotScraped", "warning", func(*testing.T) func() {
			return c.published(func(s *v1alpha1.SelfCheck) { s.StartTime, s.LastScrape = time.Now(), nil })
		}},
		{"nobody scrapes", "monitoring", "NotScraped", "warning", func(*testing.T) func() {
			c.scraped.Store(new(time.Now().Add(-time.Hour)))
			return func() { c.scraped.Store(new(time.Now())) }
		}},
	}
	for _, test := range tests {
		c.reached.Store(reached)
		if test.check == "locations" {
			c.reached.Store(nil)
		}
		heal := test.plant(t)
		c.Eventually(test.name+" is found, and nothing else", func() bool {
			found, code = c.diagnose(t)
			wantCode := map[v1alpha1.Severity]int{"error": 1, "warning": 0, "info": 0}[test.severity]
			return code == wantCode && len(found) == 1 && found[0].Check == test.check && found[0].Reason == test.reason && found[0].Severity == test.severity
		})
		if found[0].Remedy == "" {
			t.Errorf("%s: no remedy: %+v", test.name, found[0])
		}
		heal()
	}
	c.reached.Store(nil)
	healthy(t, "at the end")
	out, errOut, code := c.run("doctor")
	if code != 0 || !strings.Contains(out, "ok       agents          1 node agent is ready") || !strings.Contains(out, "0 errors, 0 warnings, 0 checks could not be made") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
	t.Logf("\n%s", out)
	c.testNotInstalled(t)
	c.testClosed(t)
	c.testNotChecked(t)
}
