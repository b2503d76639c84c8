package volumeplugin

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// cluster is a control plane with one namespace, in which plugins have the rights of deploy/volume-plugin, and a location.
type cluster struct {
	*testenv.Env

	t          *testing.T
	admin      string // a kubeconfig
	kubeconfig string // of Velero's service account
}

func newCluster(t *testing.T, ns string, server *s3.Server, bucket string) *cluster {
	t.Helper()
	c := &cluster{Env: testenv.New(t, testenv.Options{Namespace: ns}), t: t}
	c.admin, c.kubeconfig = c.Plane.Kubeconfig(), testenv.Kubeconfig(t, c.As("velero"))
	c.GrantPluginRights()
	c.Create(c.BucketLocation("default", server, bucket))
	return c
}

// backup returns the one VolumePluginBackup, an empty one while there is none.
func (c *cluster) backup() v1alpha1.VolumePluginBackup {
	c.t.Helper()
	list := &v1alpha1.VolumePluginBackupList{}
	if err := c.Client.List(c.t.Context(), list, client.InNamespace(c.Namespace)); err != nil || len(list.Items) > 1 {
		c.t.Fatalf("%d backups: %v", len(list.Items), err)
	}
	return append(list.Items, v1alpha1.VolumePluginBackup{})[0]
}

// restore returns the one VolumePluginRestore, an empty one while there is none.
func (c *cluster) restore() v1alpha1.VolumePluginRestore {
	c.t.Helper()
	list := &v1alpha1.VolumePluginRestoreList{}
	if err := c.Client.List(c.t.Context(), list, client.InNamespace(c.Namespace)); err != nil || len(list.Items) > 1 {
		c.t.Fatalf("%d restores: %v", len(list.Items), err)
	}
	return append(list.Items, v1alpha1.VolumePluginRestore{})[0]
}

// process is a program of ours that runs.
type process struct {
	*exec.Cmd

	stdout bytes.Buffer
	log    bytes.Buffer
	wait   func() error
}

// start starts a program, which the test ends, in the cluster's namespace.
func (c *cluster) start(program string, args ...string) *process {
	c.t.Helper()
	p := &process{Cmd: exec.CommandContext(c.t.Context(), program, args...)}
	p.Env = []string{"VELERO_NAMESPACE=" + c.Namespace, "TMPDIR=" + c.t.TempDir()}
	p.Stdout, p.Stderr = &p.stdout, &p.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	p.wait = sync.OnceValue(p.Wait)
	c.t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.wait()
		if c.t.Failed() {
			c.t.Logf("%s %s said:\n%s%s", filepath.Base(program), strings.Join(args, " "), &p.stdout, &p.log)
		}
	})
	return p
}

// run runs a program to its end.
func (c *cluster) run(program string, args ...string) {
	c.t.Helper()
	if err := c.start(program, args...).wait(); err != nil {
		c.t.Fatalf("%s: %v", args, err)
	}
}
