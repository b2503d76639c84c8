// Package controlplane runs a real etcd and kube-apiserver for tests and for the demo.
//
// There is nothing else of Kubernetes: no kubelet runs pods, no scheduler binds them, no garbage collector deletes
// dependents, and a namespace that is deleted stays Terminating. Whoever tests writes the status that those would write.
// ServiceAccount admission is off, since nobody makes default service accounts; authorization is RBAC, and the
// administrator of Config may do everything.
//
// Several control planes may run at once: each has free ports of 127.0.0.1 and a temporary folder of its own. Nothing is
// left running, not even when the process that started it is killed; its folder is, then.
package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// startTimeout is how long etcd and kube-apiserver each have. They need 1 and 5 seconds on two idle cores; tests share
// those cores with a race-enabled build.
const startTimeout = 2 * time.Minute

// Options are what a control plane starts with. The zero value is a bare Kubernetes.
type Options struct {
	CRDs []*apiextensionsv1.CustomResourceDefinition // installed and served when Start returns
	Dir  string                                      // holds the data, removed by Stop; empty: a new folder for temporary files
}

// ControlPlane is a running etcd and kube-apiserver. Its methods may be called concurrently, Stop once.
type ControlPlane struct {
	env        *envtest.Environment
	dir        string
	kubeconfig string
	stop       chan chan error
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
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.env.Config) }

// Kubeconfig returns the path of a kubeconfig of the administrator for other processes. It lasts until Stop.
func (c *ControlPlane) Kubeconfig() string { return c.kubeconfig }

// Stop ends both programs, waits for that and removes their data.
func (c *ControlPlane) Stop() error {
	done := make(chan error)
	c.stop <- done
	return <-done
}

// prepare makes the folder and the environment of a control plane, but starts nothing.
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
	c := &ControlPlane{dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"), stop: make(chan chan error)}
	c.env = &envtest.Environment{
		CRDs:                     o.CRDs,
		ControlPlaneStartTimeout: startTimeout,
		// Without this the variable USE_EXISTING_CLUSTER would let tests loose on somebody's cluster.
		UseExistingCluster: new(false),
	}
	etcd, apiserver := &envtest.Etcd{DataDir: filepath.Join(dir, "data")}, c.env.ControlPlane.GetAPIServer()
	apiserver.CertDir = filepath.Join(dir, "certificates")
	c.env.ControlPlane.Etcd = etcd
	for _, d := range []string{etcd.DataDir, apiserver.CertDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if etcd.Path, err = leash(dir, bin, "etcd"); err != nil {
		return nil, err
	}
	apiserver.Path, err = leash(dir, bin, "kube-apiserver")
	return c, err
}

// run starts the programs, reports that, and ends them when Stop is called. It stays on one thread all the while: the
// kernel's parent death signal (see leash) follows the thread that started a program, not the process.
func (c *ControlPlane) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := c.env.Start()
	if err == nil {
		err = os.WriteFile(c.kubeconfig, c.env.KubeConfig, 0o600)
	}
	if err != nil {
		// envtest leaves the programs running when it fails after their start, as with a CRD that is refused.
		started <- errors.Join(err, c.end())
		return
	}
	started <- nil
	done := <-c.stop
	done <- c.end()
}

func (c *ControlPlane) end() error {
	if err := errors.Join(c.env.Stop(), os.RemoveAll(c.dir)); err != nil {
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
