package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/screen"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// veleroVersion is the Velero whose CRDs are installed.
const veleroVersion = "1.18.3"

// options say how the demo runs.
type options struct {
	bytes   int64  // of data, about
	dir     string // where the temporary directory is made
	agent   string // the program node-agent
	restic  string // the program restic
	console screen.Console
}

// demo is one run of the demo.
type demo struct {
	options
	work   string // everything on disk is in here
	client client.WithWatch
	node   *node
	server *server
	result result
}

// result counts volumes and differences.
type result struct{ backedUp, restored, differences int }

func (r result) String() string {
	return fmt.Sprintf("demo: %d volumes backed up, %d restored, %d differences", r.backedUp, r.restored, r.differences)
}

// run runs the demo. When it returns, with an error or without, it has ended its processes and removed its files.
func run(ctx context.Context, o options) (result, error) {
	limit := timeLimit(o.bytes)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s: this machine is too slow for so much data, or something hangs", limit))
	defer cancel()
	if err := checkSpace(o.dir, o.bytes); err != nil {
		return result{}, err
	}
	work, err := os.MkdirTemp(o.dir, "plimsoll-demo-")
	if err != nil {
		return result{}, err
	}
	d := &demo{options: o, work: work}
	err = d.withControlPlane(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // the error is only a consequence
	}
	return d.result, errors.Join(err, leftRunning(work), os.RemoveAll(work))
}

// withControlPlane runs everything that needs an API server.
func (d *demo) withControlPlane(ctx context.Context) (err error) {
	d.say("starting etcd and kube-apiserver with the CRDs of Velero %s", veleroVersion)
	crds, err := controlplane.VeleroCRDs(veleroVersion)
	if err != nil {
		return err
	}
	cp, err := controlplane.Start(controlplane.Options{CRDs: crds, Dir: d.work}) //nolint:contextcheck // it has none: Stop ends it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()

	scheme := k8sruntime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), velerov1.AddToScheme(scheme)); err != nil {
		return err
	}
	if d.client, err = client.NewWithWatch(cp.Config(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	d.node = &node{client: d.client, pods: filepath.Join(d.work, "pods")}
	d.server = &server{client: d.client, repositories: filepath.Join(d.work, "repositories")}
	if err := os.Mkdir(d.node.pods, 0o755); err != nil {
		return err
	}
	if err := errors.Join(d.node.createNamespace(ctx, veleroNamespace), d.node.createDriver(ctx), d.server.install(ctx)); err != nil {
		return err
	}
	return d.withAgent(ctx, cp.Kubeconfig())
}

// withAgent runs everything that needs a node agent. At the end it checks that the agent has not changed objects after they
// ended.
func (d *demo) withAgent(ctx context.Context, kubeconfig string) error {
	runtime.LockOSThread() // see ownGroup
	defer runtime.UnlockOSThread()
	a, err := startAgent(d.options, d.work, d.node.pods, kubeconfig)
	if err != nil {
		return err
	}
	d.say("started the node agent of %s with restic %s and kopia", nodeName, parts.DefaultRestic)
	watched, cancel := a.watch(ctx)
	defer cancel()
	journal := newJournal()
	err = d.backUpAndRestore(watched, journal)
	if cause := context.Cause(watched); err != nil && cause != nil {
		err = cause
	}
	begin := time.Now()
	if stopErr := a.stop(); stopErr != nil {
		err = errors.Join(err, stopErr)
	} else if err == nil {
		d.say("stopped the node agent in %.1f s", time.Since(begin).Seconds())
	}
	if err == nil {
		err = d.checkUnchanged(ctx, journal)
	}
	if err != nil && ctx.Err() == nil {
		d.say("the end of the node agent's log:\n%s", a.tail())
	}
	return err
}

func (d *demo) checkUnchanged(ctx context.Context, j *journal) error {
	for _, list := range []client.ObjectList{&velerov1.PodVolumeBackupList{}, &velerov1.PodVolumeRestoreList{}} {
		if err := j.noteAll(ctx, d.client, list); err != nil {
			return err
		}
	}
	return j.failures()
}

func (d *demo) backUpAndRestore(ctx context.Context, j *journal) error {
	sources, err := d.makeVolumes(ctx)
	if err != nil {
		return err
	}
	backups, err := d.backUp(ctx, sources, j)
	if err != nil {
		return err
	}
	targets, err := d.restore(ctx, sources, backups, j)
	if err != nil {
		return err
	}
	return d.compare(ctx, sources, targets)
}

// say writes a line with the time, as screen.Lines does.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.console.Out, "%s  %s\n", time.Now().Format(time.RFC3339), fmt.Sprintf(format, args...))
}
