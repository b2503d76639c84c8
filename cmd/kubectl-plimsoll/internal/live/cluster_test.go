package live

import (
	"fmt"
	"iter"
	"os"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/podproxy"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// plane is the control plane of this package's tests.
var plane = controlplane.Shared{CRDs: controlplane.LatestVeleroCRDs}

func TestMain(m *testing.M) {
	os.Exit(plane.Main(m))
}

func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	cfg := plane.Get(t).Config()
	cfg.QPS, cfg.Burst = -1, -1
	return cfg
}

// cluster is a namespace of Velero behind an API server whose pods answer.
type cluster struct {
	t      *testing.T
	server *podproxy.Server
	direct *rest.Config
	api    client.Client
	ns     string
	backup *velerov1.Backup
	pods   int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, direct: apiServer(t)}
	c.server = podproxy.Start(t, c.direct)
	var err error
	if c.api, err = client.New(c.direct, client.Options{Scheme: scheme(t)}); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "velero-"}}
	c.create(namespace)
	c.ns = namespace.Name
	c.backup = &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "nightly"}, Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress}}
	c.create(c.backup)
	return c
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, velerov1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	if err := c.api.Create(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) patch(o client.Object, patch string) {
	c.t.Helper()
	if err := c.api.Patch(c.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		c.t.Fatal(err)
	}
}

// volume makes the PodVolumeBackup of a volume on a node, which is being moved.
func (c *cluster) volume(backup *velerov1.Backup, node, name string) *velerov1.PodVolumeBackup {
	c.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app", UID: "app"}, Spec: corev1.PodSpec{NodeName: node}}
	pvb := velero.PodVolumeBackup(backup, pod, name, "restic")
	pvb.Status.Phase = velerov1.PodVolumeBackupPhaseInProgress
	c.create(pvb)
	return pvb
}

// annotate writes what an agent says of a volume.
func (c *cluster) annotate(pvb *velerov1.PodVolumeBackup, progress string) {
	c.t.Helper()
	c.patch(pvb, fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, v1alpha1.AnnotationProgress, progress))
}

// agent makes the pod of a node agent, which runs and is ready.
func (c *cluster) agent(node string) *corev1.Pod {
	c.t.Helper()
	c.pods++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: fmt.Sprintf("node-agent-%d", c.pods), Labels: map[string]string{"name": "node-agent"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "node-agent", Image: "agent", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8085}},
		}}},
	}
	c.create(pod)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if err := c.api.Status().Update(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// as is the configuration of a user who has rules in the namespace, at the real API server.
func (c *cluster) as(user string, rules ...rbacv1.PolicyRule) *rest.Config {
	c.t.Helper()
	c.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: user}, Rules: rules})
	c.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: user},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
	})
	config := rest.CopyConfig(c.direct)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	return config
}

func (c *cluster) options(config *rest.Config, s Selection) Options {
	c.t.Helper()
	return Options{
		Config: config, Scheme: scheme(c.t), Namespace: c.ns, Selection: s, Interval: 20 * time.Millisecond,
		Patience: patience, // a busy machine is no agent that does not answer
	}
}

// nightly selects c.backup.
var nightly = Selection{Kind: describe.KindBackup, Name: "nightly"}

// viewer takes Views one after the other.
type viewer struct {
	t    *testing.T
	next func() (describe.View, error, bool)
}

func (c *cluster) follow(o Options) *viewer {
	c.t.Helper()
	next, stop := iter.Pull2(Follow(c.t.Context(), o))
	c.t.Cleanup(stop)
	return &viewer{c.t, next}
}

// until takes Views until one is as wanted, and returns that.
func (v *viewer) until(what string, wanted func(describe.View) bool) describe.View {
	v.t.Helper()
	var view describe.View
	for begin := time.Now(); time.Since(begin) < patience; {
		var err error
		if view, err, _ = v.next(); err != nil {
			v.t.Fatalf("waiting for %s: %v", what, err)
		}
		if wanted(view) {
			return view
		}
	}
	v.t.Fatalf("no %s within %s; at last %+v", what, patience, view)
	return view
}

// fails takes Views until an error comes.
func (v *viewer) fails() error {
	v.t.Helper()
	for begin := time.Now(); time.Since(begin) < patience; {
		if _, err, _ := v.next(); err != nil {
			return err
		}
	}
	v.t.Fatalf("no error within %s", patience)
	return nil
}
