package volumeplugin_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

const (
	namespace = "velero"
	patience  = 5 * time.Minute // ends a wait for what does not come
)

// cluster is an API server with RBAC, a namespace velero with the service account of a Velero server, our CRDs and the
// documented rights.
type cluster struct {
	*controlplane.ControlPlane
	client.Client // of an administrator
}

func newCluster(t *testing.T, crds ...*apiextensionsv1.CustomResourceDefinition) *cluster {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), volumeplugin.AddToScheme(s), apiextensionsv1.AddToScheme(s), velerov1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	cp := controlplane.ForTest(t, controlplane.Options{CRDs: crds, Dir: t.TempDir()})
	admin, err := client.New(cp.Config(), client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{cp, admin}
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	return c
}

func (c *cluster) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// grant gives the plugin's service account the rights in deploy/volume-plugin.
func (c *cluster) grant(t *testing.T) {
	t.Helper()
	role, binding := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	read(t, "volume-plugin/rbac.yaml", role)
	read(t, "volume-plugin/rolebinding.yaml", binding)
	c.create(t, role, binding)
}

// plugin returns the configuration of a client that has the rights of Velero's service account.
func (c *cluster) plugin() *rest.Config {
	config := c.Config()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":velero",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return config
}

func crds(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	backups, restores := &apiextensionsv1.CustomResourceDefinition{}, &apiextensionsv1.CustomResourceDefinition{}
	read(t, "crds/plimsoll.io_volumepluginbackups.yaml", backups)
	read(t, "crds/plimsoll.io_volumepluginrestores.yaml", restores)
	return []*apiextensionsv1.CustomResourceDefinition{backups, restores}
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatal(name, err)
	}
}

// recorder is a Recorder of a process of the test's own plugin.
type recorder struct {
	*volumeplugin.Recorder

	log   *syncBuffer
	fault *fault
}

func newRecorder(t *testing.T, config *rest.Config) *recorder {
	t.Helper()
	r := &recorder{log: &syncBuffer{}, fault: &fault{}}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { r.fault.next = next; return r.fault })
	c, err := volumeplugin.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	r.Recorder = volumeplugin.New(t.Context(), volumeplugin.Options{
		Plugin: "example.io/" + path.Base(t.Name()), Client: c, Namespace: namespace, Interval: 50 * time.Millisecond, FlushTimeout: patience,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	t.Cleanup(func() {
		r.end(t)
		if t.Failed() {
			t.Logf("log of the recorder:\n%s", r.log)
		}
	})
	return r
}

// end ends the process.
func (r *recorder) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	r.Close(ctx)
}

// fault drops connections while it is broken.
type fault struct {
	next    http.RoundTripper
	broken  atomic.Bool
	dropped atomic.Int64
}

func (f *fault) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.broken.Load() {
		f.dropped.Add(1)
		return nil, errors.New("connection reset by the test")
	}
	return f.next.RoundTrip(r)
}

type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func (b *syncBuffer) count(text string) int { return strings.Count(b.String(), text) }

// until waits for a condition that nothing tells of.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it does not happen: %s", what)
		}
	}
}

// backup returns the VolumePluginBackup of a volume, and false while there is none.
func (c *cluster) backup(t *testing.T, volume string) (v1alpha1.VolumePluginBackup, bool) {
	t.Helper()
	list := &v1alpha1.VolumePluginBackupList{}
	if err := c.List(t.Context(), list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelVolume: volume}); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) > 1 {
		t.Fatalf("volume %s has %d objects", volume, len(list.Items))
	}
	if len(list.Items) == 0 {
		return v1alpha1.VolumePluginBackup{}, false
	}
	return list.Items[0], true
}

func (c *cluster) untilBackup(t *testing.T, volume, what string, condition func(s v1alpha1.VolumePluginBackupStatus) bool) v1alpha1.VolumePluginBackup {
	t.Helper()
	var got v1alpha1.VolumePluginBackup
	until(t, "volume "+volume+" "+what, func() bool {
		b, ok := c.backup(t, volume)
		got = b
		return ok && condition(b.Status)
	})
	return got
}

func (c *cluster) reasons(t *testing.T, object string) map[string]int {
	t.Helper()
	list := &eventsv1.EventList{}
	if err := c.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, e := range list.Items {
		if e.Regarding.Name == object {
			got[e.Reason]++
		}
	}
	return got
}
