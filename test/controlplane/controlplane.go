// Package controlplane runs a real etcd and kube-apiserver for tests and for the demo.
//
// There is nothing else of Kubernetes: no kubelet runs pods, no scheduler binds them, no garbage collector deletes
// dependents, and a namespace that is deleted stays Terminating. Whoever tests writes the status that those would write.
// ServiceAccount admission is off, since nobody makes default service accounts; authorization is RBAC, and the
// administrator of Config may do everything.
//
// Several control planes may run at once: each has loopback addresses and a temporary folder of its own. Nothing is
// left running, not even when the process that started it is killed; its folder is, then. A Lender shares one between processes.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// patience is how long etcd and kube-apiserver each have to start and to end, and CRDs to be served. They need 1 and 5
// seconds to start on two idle cores, which is what tests never have.
const patience = 10 * time.Minute

// The limits of an administrator's client.
const (
	clientQPS   = 1000
	clientBurst = 2000
)

// Options are what a control plane starts with. The zero value is a bare Kubernetes.
type Options struct {
	CRDs []*apiextensionsv1.CustomResourceDefinition // installed and served when Start returns
	Dir  string                                      // holds the data, removed by Stop; empty: a new folder for temporary files
	// AuditLog is a file that gets a line for each request, an audit.k8s.io/v1 Event of level Metadata as JSON, before its
	// response is sent. Empty: none.
	AuditLog string
}

// ControlPlane is a running etcd and kube-apiserver. Its methods may be called concurrently, Stop once.
type ControlPlane struct {
	programs   envtest.ControlPlane
	crds       []*apiextensionsv1.CustomResourceDefinition
	config     *rest.Config
	dir        string
	kubeconfig string
	restart    chan chan error
	stop       chan chan error
	borrowed   bool // another process runs it, and nothing but config and kubeconfig is set
}

// ForTest starts a control plane that ends with the test. It skips or fails the test where parts.ControlPlane does.
func ForTest(tb testing.TB, o Options) *ControlPlane {
	tb.Helper()
	parts.ControlPlane(tb)
	c, err := Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Stop(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// Start starts a control plane and returns when it answers. After an error nothing runs and nothing is left on disk. The
// error wraps parts.ErrMissing if the programs are not there.
func Start(o Options) (*ControlPlane, error) {
	c, err := prepare(o)
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	started := make(chan error)
	go c.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	return c, nil
}

// Config returns the configuration of an administrator's client. It is a copy that the caller may change.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the path of a kubeconfig of the administrator for other processes. It lasts until Stop.
func (c *ControlPlane) Kubeconfig() string { return c.kubeconfig }

// RestartAPIServer ends kube-apiserver, starts it again at the same address and returns when it answers. etcd runs on. It fails for a
// borrowed control plane.
func (c *ControlPlane) RestartAPIServer() error {
	if c.borrowed {
		return errors.New("restart kube-apiserver: other processes use it")
	}
	done := make(chan error)
	c.restart <- done
	return <-done
}

// Stop ends both programs, waits for that and removes their data. It leaves a borrowed control plane running.
func (c *ControlPlane) Stop() error {
	if c.borrowed {
		return nil
	}
	done := make(chan error)
	c.stop <- done
	return <-done
}

// prepare makes the folder and the configuration of a control plane, but starts nothing.
func prepare(o Options) (_ *ControlPlane, err error) {
	bin, err := parts.FindControlPlane()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "plimsoll-controlplane-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	c := &ControlPlane{
		crds: o.CRDs, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"), restart: make(chan chan error), stop: make(chan chan error),
	}
	etcd := &envtest.Etcd{DataDir: filepath.Join(dir, "data"), StartTimeout: patience, StopTimeout: patience}
	apiserver := &envtest.APIServer{CertDir: filepath.Join(dir, "certificates"), StartTimeout: patience, StopTimeout: patience}
	c.programs.Etcd, c.programs.APIServer = etcd, apiserver
	if err := address(etcd, apiserver); err != nil {
		return nil, err
	}
	for _, d := range []string{etcd.DataDir, apiserver.CertDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if etcd.Path, err = leash(dir, bin, "etcd"); err != nil {
		return nil, err
	}
	if apiserver.Path, err = leash(dir, bin, "kube-apiserver"); err != nil {
		return nil, err
	}
	return c, audit(apiserver, dir, o.AuditLog)
}

// address says where the programs listen. The ports that envtest looks for itself may be somebody else's when it is their
// turn, and when the API server is restarted.
func address(etcd *envtest.Etcd, apiserver *envtest.APIServer) error {
	var at [3]netip.AddrPort
	for i := range at {
		var err error
		if at[i], err = loopback.Address(); err != nil {
			return err
		}
	}
	etcd.URL = &url.URL{Scheme: "http", Host: at[0].String()}
	etcd.Configure().Set("listen-peer-urls", "http://"+at[1].String())
	apiserver.Address, apiserver.Port = at[2].Addr().String(), strconv.Itoa(int(at[2].Port()))
	return nil
}

// auditPolicy leaves out the stage before the request is answered, of which nothing can be learnt.
const auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`

// audit makes the API server write an audit log, unless it has no name.
func audit(apiserver *envtest.APIServer, dir, log string) error {
	if log == "" {
		return nil
	}
	policy := filepath.Join(dir, "audit-policy.json")
	apiserver.Configure().Set("audit-policy-file", policy).Set("audit-log-path", log).Set("audit-log-mode", "blocking")
	return os.WriteFile(policy, []byte(auditPolicy), 0o600)
}

// run starts the programs, reports that, restarts and ends them when it is told to. It stays on one thread all the while: the
// kernel's parent death signal (see leash) follows the thread that started a program, not the process.
func (c *ControlPlane) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.begin(); err != nil {
		started <- errors.Join(err, c.end())
		return
	}
	started <- nil
	for {
		select {
		case done := <-c.restart:
			done <- c.restartAPIServer()
		case done := <-c.stop:
			done <- c.end()
			return
		}
	}
}

// begin starts the programs, and makes of them what tests expect. (envtest.Environment would wait 5 seconds for the default
// namespace, and no longer.)
func (c *ControlPlane) begin() error {
	if err := c.programs.Start(); err != nil {
		return err
	}
	admin, err := c.programs.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, &rest.Config{QPS: clientQPS, Burst: clientBurst})
	if err != nil {
		return fmt.Errorf("add the administrator: %w", err)
	}
	c.config = admin.Config()
	kubeconfig, err := admin.KubeConfig()
	if err != nil {
		return fmt.Errorf("make the kubeconfig: %w", err)
	}
	if err := os.WriteFile(c.kubeconfig, kubeconfig, 0o600); err != nil {
		return err
	}
	if err := c.awaitDefaultNamespace(); err != nil {
		return fmt.Errorf("wait for namespace default: %w", err)
	}
	if _, err := envtest.InstallCRDs(c.config, envtest.CRDInstallOptions{CRDs: c.crds, MaxTime: patience}); err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	return nil
}

// awaitDefaultNamespace waits for what the API server makes some time after it says that it is ready.
func (c *ControlPlane) awaitDefaultNamespace() error {
	api, err := client.New(c.config, client.Options{})
	if err != nil {
		return err
	}
	//nolint:forbidigo // Start has no ctx; a control plane ends by Stop
	return wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return api.Get(ctx, client.ObjectKey{Name: metav1.NamespaceDefault}, &corev1.Namespace{}) == nil, nil
	})
}

func (c *ControlPlane) restartAPIServer() error {
	apiserver := c.programs.APIServer
	if err := errors.Join(apiserver.Stop(), apiserver.Start()); err != nil {
		return fmt.Errorf("restart kube-apiserver: %w", err)
	}
	return nil
}

func (c *ControlPlane) end() error {
	if err := errors.Join(c.programs.Stop(), os.RemoveAll(c.dir)); err != nil {
		return fmt.Errorf("stop control plane: %w", err)
	}
	return nil
}

// leash writes a script that becomes the program and is killed when its parent dies: a panic, a test's time limit or a
// SIGKILL leaves the programs of envtest running, which neither sets a parent death signal nor can be told to.
// Where there is no setpriv (of util-linux), the program runs without.
func leash(dir, bin, program string) (string, error) {
	target := filepath.Join(bin, program)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return target, nil //nolint:nilerr // the safety net is all that is lost
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --pdeathsig KILL '%s' \"$@\"\n", setpriv, target)
	path := filepath.Join(dir, program)
	return path, os.WriteFile(path, []byte(script), 0o700)
}
