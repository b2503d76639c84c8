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
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// cluster is a namespace of Velero behind an API server whose pods answer.
type cluster struct {
	*testenv.Env

	t      *testing.T
	proxy  *testenv.Proxy
	backup *velerov1.Backup
	pods   int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterOn(t, nil)
}

// newClusterOn is on a control plane of the test's own, unless that is nil.
func newClusterOn(t *testing.T, plane *controlplane.ControlPlane) *cluster {
	t.Helper()
	c := &cluster{Env: testenv.New(t, testenv.Options{Plane: plane}), t: t}
	c.proxy = c.NewProxy()
	c.backup = &velerov1.Backup{ObjectMeta: c.Meta("nightly"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress}}
	c.Create(c.backup)
	return c
}

// volume makes the PodVolumeBackup of a volume on a node, which is being moved.
func (c *cluster) volume(backup *velerov1.Backup, node, name string) *velerov1.PodVolumeBackup {
	c.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app", UID: "app"}, Spec: corev1.PodSpec{NodeName: node}}
	pvb := velero.PodVolumeBackup(backup, pod, name, "restic")
	pvb.Status.Phase = velerov1.PodVolumeBackupPhaseInProgress
	c.Create(pvb)
	return pvb
}

// annotate writes what an agent says of a volume.
func (c *cluster) annotate(pvb *velerov1.PodVolumeBackup, progress string) {
	c.t.Helper()
	c.Patch(pvb, fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, v1alpha1.AnnotationProgress, progress))
}

// agent makes the pod of a node agent, which runs and is ready.
func (c *cluster) agent(node string) *corev1.Pod {
	c.t.Helper()
	c.pods++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: fmt.Sprintf("node-agent-%d", c.pods), Labels: map[string]string{"name": "node-agent"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "node-agent", Image: "agent", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8085}},
		}}},
	}
	c.Create(pod)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if err := c.Client.Status().Update(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// as is the configuration of a user who has rules in the namespace, at the real API server.
func (c *cluster) as(user string, rules ...rbacv1.PolicyRule) *rest.Config {
	c.t.Helper()
	c.Create(&rbacv1.Role{ObjectMeta: c.Meta(user), Rules: rules})
	c.Create(&rbacv1.RoleBinding{
		ObjectMeta: c.Meta(user),
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
	})
	c.AwaitRules(user, rules...)
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	return config
}

func (c *cluster) options(config *rest.Config, s Selection) Options {
	c.t.Helper()
	return Options{
		Config: config, Scheme: c.Scheme, Namespace: c.Namespace, Selection: s, Interval: 20 * time.Millisecond,
		Patience: testenv.Patience, // a busy machine is no agent that does not answer
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
	for begin := time.Now(); time.Since(begin) < testenv.Patience; {
		var err error
		if view, err, _ = v.next(); err != nil {
			v.t.Fatalf("waiting for %s: %v", what, err)
		}
		if wanted(view) {
			return view
		}
	}
	v.t.Fatalf("no %s within %s; at last %+v", what, testenv.Patience, view)
	return view
}

// fails takes Views until an error comes.
func (v *viewer) fails() error {
	v.t.Helper()
	for begin := time.Now(); time.Since(begin) < testenv.Patience; {
		if _, err, _ := v.next(); err != nil {
			return err
		}
	}
	v.t.Fatalf("no error within %s", testenv.Patience)
	return nil
}
