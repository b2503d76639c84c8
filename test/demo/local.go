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
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/screen"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// options say how the demo runs on this machine.
type options struct {
	bytes   int64  // of data, about
	dir     string // where the temporary directory is made
	agent   string // the program node-agent
	restic  string // the program restic
	console screen.Console
}

// local is a demo on this machine, with a control plane of its own.
type local struct {
	*demo
	options options
	work    string // everything on disk is in here
	node    *node
}

var _ place = (*local)(nil)

// run runs the demo. When it returns, with an error or without, it has ended its processes and removed its files.
func run(ctx context.Context, o options) (result, error) {
	ctx, cancel := withTimeLimit(ctx, o.bytes)
	defer cancel()
	if err := checkSpace(o.dir, o.bytes); err != nil {
		return result{}, err
	}
	work, err := os.MkdirTemp(o.dir, "plimsoll-demo-")
	if err != nil {
		return result{}, err
	}
	l := &local{demo: &demo{bytes: o.bytes, console: o.console}, options: o, work: work}
	l.place = l
	err = orCause(ctx, l.withControlPlane(ctx))
	return l.result, errors.Join(err, leftRunning(work), os.RemoveAll(work))
}

// withControlPlane runs everything that needs an API server.
func (l *local) withControlPlane(ctx context.Context) (err error) {
	l.say("starting etcd and kube-apiserver with the CRDs of Velero %s", veleroVersion)
	crds, err := controlplane.VeleroCRDs(veleroVersion)
	if err != nil {
		return err
	}
	cp, err := controlplane.Start(controlplane.Options{CRDs: crds, Dir: l.work}) //nolint:contextcheck // it has none: Stop ends it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()

	scheme, err := newScheme(clientgoscheme.AddToScheme, velerov1.AddToScheme)
	if err != nil {
		return err
	}
	if l.client, err = client.NewWithWatch(cp.Config(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	l.node = &node{client: l.client, pods: filepath.Join(l.work, "pods")}
	l.server = &server{client: l.client, namespace: veleroNamespace, repositories: filepath.Join(l.work, "repositories")}
	if err := os.Mkdir(l.node.pods, 0o755); err != nil {
		return err
	}
	if err := errors.Join(l.node.createNamespace(ctx, veleroNamespace), l.node.createDriver(ctx), l.server.install(ctx, l.server.directory())); err != nil {
		return err
	}
	return l.withAgent(ctx, cp.Kubeconfig())
}

// withAgent runs everything that needs a node agent. At the end it checks that the agent has not changed objects after they
// ended.
func (l *local) withAgent(ctx context.Context, kubeconfig string) error {
	version, err := resticVersion(ctx, l.options.restic)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // see ownGroup
	defer runtime.UnlockOSThread()
	a, err := startAgent(l.options, l.work, l.node.pods, kubeconfig)
	if err != nil {
		return err
	}
	l.say("started the node agent of %s with restic %s and kopia", nodeName, version)
	watched, cancel := a.watch(ctx)
	defer cancel()
	journal := newJournal()
	err = orCause(watched, l.backUpAndRestore(watched, journal))
	begin := time.Now()
	if stopErr := a.stop(); stopErr != nil {
		err = errors.Join(err, stopErr)
	} else if err == nil {
		l.say("stopped the node agent in %.1f s", time.Since(begin).Seconds())
	}
	if err == nil {
		err = l.checkUnchanged(ctx, journal)
	}
	if err != nil && ctx.Err() == nil {
		l.say("the end of the node agent's log:\n%s", a.tail())
	}
	return err
}

func (l *local) startSources(ctx context.Context, apps []app) ([]*instance, content, error) {
	var sources []*instance
	var all content
	for _, a := range apps {
		in, err := l.node.startPod(ctx, a, a.namespace)
		if err != nil {
			return nil, all, err
		}
		sources = append(sources, in)
		for _, v := range a.volumes {
			made, err := v.make(a, in.dirs[v.name], l.bytes)
			if err != nil {
				return nil, all, err
			}
			if ctx.Err() != nil {
				return nil, all, context.Cause(ctx)
			}
			all.Files, all.Bytes = all.Files+made.Files, all.Bytes+made.Bytes
		}
	}
	return sources, all, nil
}

func (l *local) namespaceMapping(sources []*instance) map[string]string {
	namespaces := map[string]string{}
	for _, in := range sources {
		namespaces[in.namespace] = in.namespace + restoredSuffix
	}
	return namespaces
}

func (l *local) startTarget(ctx context.Context, restore *velerov1.Restore, source *instance, stored []volume) (*target, error) {
	t := &target{stored: stored}
	var initArgs []string
	if len(stored) > 0 {
		initArgs = []string{string(restore.UID)}
	}
	var err error
	t.instance, err = l.node.startPod(ctx, source.app, restore.Spec.NamespaceMapping[source.pod.Namespace], initArgs...)
	if err == nil && len(stored) > 0 {
		t.init, err = startInitContainer(ctx, l.options.agent, string(restore.UID), l.node.volumesDir(t.instance, stored[0]), func() error {
			return l.node.setRunning(ctx, t.pod, false)
		})
	}
	return t, err
}

func (l *local) finishTarget(ctx context.Context, t *target) error {
	if t.init == nil {
		return nil
	}
	if err := t.init.wait(ctx); err != nil {
		return fmt.Errorf("init container %s of pod %s: %w", restoreWait, t.name, err)
	}
	return nil
}

func (l *local) compare(ctx context.Context, source *instance, restored *target) (verdict, error) {
	var all verdict
	for _, v := range source.volumes {
		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}
		found, err := tree.Compare(source.dirs[v.name], restored.dirs[v.name], tree.Options{Sparse: true})
		if err != nil {
			return all, err
		}
		all.add(source.app, v, found)
	}
	return all, nil
}
