// Package testenv is the world of a test that needs Kubernetes: a real control plane, a namespace in it, and clients.
//
// Tests of one process share a control plane for each version of Velero, each test in a namespace of its own, and the processes of
// `make test` share that of the newest one, which test/controlplane/lend lends; nothing is removed from it, since it ends with the
// last of them. A test whose doings others would notice has a control plane of its own, and a package of such tests calls MainAlone.
// There are no controllers and no kubelets (see test/controlplane): the test plays them, with a Node for instance.
// A Proxy before the API server makes the faults of a network, and lets pods answer.
package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// Patience is how long a test waits for what must come. No test waits for it to pass.
const Patience = 5 * time.Minute

// shared are the control planes that the tests of this process share, by the version of Velero. Main stops them.
var shared struct {
	sync.Mutex
	planes map[string]*controlplane.ControlPlane // nil unless Main runs
	alone  bool                                  // none of them is borrowed
}

// Main runs the tests, stops the control planes that they shared, and returns the exit code: for TestMain. Tests of other packages may
// use the same control plane.
func Main(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())
	shared.planes = map[string]*controlplane.ControlPlane{}
	code := m.Run()
	for _, plane := range shared.planes {
		if err := plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// MainAlone is Main for tests that change what belongs to the whole cluster, such as CRDs: no other package uses their control planes.
func MainAlone(m *testing.M) int {
	shared.alone = true
	return Main(m)
}

// Options choose a world. The zero value is a new namespace on the shared control plane.
type Options struct {
	Velero    string // the version whose CRDs are installed, beside our own; default: the newest
	Namespace string // default: a name that no other test has; with a name the control plane is the test's own
	AuditLog  string // as in controlplane.Options; with one the control plane is the test's own
	// Plane is a control plane that the test has started itself, such as one with other CRDs.
	Plane *controlplane.ControlPlane
}

// Env is a namespace on a control plane. Its methods end the test if they fail.
type Env struct {
	T         testing.TB
	Plane     *controlplane.ControlPlane
	Config    *rest.Config // of an administrator, without limits
	Scheme    *runtime.Scheme
	Client    client.WithWatch // of an administrator
	Namespace string
	// Intercept changes calls of managers that are started after it was set.
	Intercept interceptor.Funcs
	// ManagerEnded gets the result of each manager that ends; nil: an error fails the test.
	ManagerEnded func(error)
}

// New returns the world of a test. It skips or fails the test where parts.ControlPlane does.
func New(tb testing.TB, o Options) *Env {
	tb.Helper()
	parts.ControlPlane(tb)
	o.Velero = cmp.Or(o.Velero, controlplane.LatestVelero)
	plane := o.Plane
	switch {
	case plane != nil:
	case o.Namespace != "" || o.AuditLog != "":
		crds, err := controlplane.CRDs(o.Velero)
		if err != nil {
			tb.Fatal(err)
		}
		plane = controlplane.ForTest(tb, controlplane.Options{CRDs: crds, AuditLog: o.AuditLog})
	default:
		plane = sharedPlane(tb, o.Velero)
	}
	e := &Env{T: tb, Plane: plane, Config: plane.Config(), Scheme: NewScheme(tb)}
	e.Config.QPS, e.Config.Burst = -1, -1
	var err error
	if e.Client, err = client.NewWithWatch(e.Config, client.Options{Scheme: e.Scheme}); err != nil {
		tb.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Namespace}}
	if o.Namespace == "" {
		namespace.GenerateName = "velero-"
	}
	e.Create(namespace)
	e.Namespace = namespace.Name
	return e
}

// sharedPlane returns the control plane of a version of Velero, which it starts or borrows for the first test that asks.
func sharedPlane(tb testing.TB, velero string) *controlplane.ControlPlane {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.planes == nil {
		tb.Fatal("nobody would stop the control plane: TestMain has to call testenv.Main")
	}
	if shared.planes[velero] == nil {
		plane, err := start(velero)
		if err != nil {
			tb.Fatal(err)
		}
		shared.planes[velero] = plane
	}
	return shared.planes[velero]
}

// start borrows the control plane of a version of Velero, or starts one.
func start(velero string) (*controlplane.ControlPlane, error) {
	if velero == controlplane.LatestVelero && !shared.alone {
		if plane, err := controlplane.Borrow(); !errors.Is(err, controlplane.ErrNoLender) {
			return plane, err
		}
	}
	crds, err := controlplane.CRDs(velero)
	if err != nil {
		return nil, err
	}
	return controlplane.Start(controlplane.Options{CRDs: crds})
}

// NewScheme returns a scheme of the types of Kubernetes and Velero, and ours.
func NewScheme(tb testing.TB) *runtime.Scheme {
	tb.Helper()
	s := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(s), apiextensionsv1.AddToScheme(s), velerov1.AddToScheme(s), velerov2alpha1.AddToScheme(s),
		v1alpha1.AddToScheme(s))
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// For returns the same world for a subtest, which its methods end then.
func (e *Env) For(tb testing.TB) *Env {
	of := *e
	of.T = tb
	return &of
}

// In returns the same world with another namespace, which is there.
func (e *Env) In(namespace string) *Env {
	in := *e
	in.Namespace = namespace
	return &in
}

// Context is the test's, and lasts until its cleanups have run.
func (e *Env) Context() context.Context { return context.WithoutCancel(e.T.Context()) }

// Logger returns a logger to the test's output.
func (e *Env) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(e.T.Output(), nil)) }
