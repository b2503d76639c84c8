package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/screen"
)

// veleroVersion is the Velero whose CRDs are installed.
const veleroVersion = "1.18.3"

// demo is one run of the demo.
type demo struct {
	bytes   int64 // of data, about
	console screen.Console
	client  client.WithWatch
	server  *server
	place   place
	result  result
}

// place is where the pods of the demo run: this machine or a cluster.
type place interface {
	// startSources starts the apps' pods and fills their volumes.
	startSources(ctx context.Context, apps []app) ([]*instance, content, error)
	// namespaceMapping returns the Restore's; nil if it restores into the same namespace.
	namespaceMapping(sources []*instance) map[string]string
	// startTarget starts the restored copy of a pod. If there are stored volumes, its init container waits for them.
	startTarget(ctx context.Context, restore *velerov1.Restore, source *instance, stored []volume) (*target, error)
	// finishTarget waits for the end of the pod's init container, after which its containers run.
	finishTarget(ctx context.Context, t *target) error
	// compare returns the differences between the volumes of a pod and of its restored copy.
	compare(ctx context.Context, source *instance, restored *target) (verdict, error)
}

// content counts what volumes have: files of any kind but directories, and their bytes.
type content struct {
	Files, Bytes int64
}

// verdict is what the comparison of a pod's volumes has found.
type verdict struct {
	Differences int
	Listed      []string // the first ones
}

// add adds the differences of a volume.
func (v *verdict) add(a app, volume volume, found []string) {
	v.Differences += len(found)
	for _, difference := range found[:min(len(found), maxDifferences-len(v.Listed))] {
		text := label(a.name, volume.name) + ": " + difference
		v.Listed = append(v.Listed, text[:min(len(text), maxDifference)])
	}
}

// result counts volumes and differences.
type result struct{ backedUp, restored, differences int }

func (r result) String() string {
	return fmt.Sprintf("demo: %d volumes backed up, %d restored, %d differences", r.backedUp, r.restored, r.differences)
}

// newScheme returns a scheme with the kinds that each of add registers.
func newScheme(add ...func(*k8sruntime.Scheme) error) (*k8sruntime.Scheme, error) {
	scheme := k8sruntime.NewScheme()
	for _, f := range add {
		if err := f(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

func (d *demo) checkUnchanged(ctx context.Context, j *journal) error {
	for _, list := range []client.ObjectList{&velerov1.PodVolumeBackupList{}, &velerov1.PodVolumeRestoreList{}} {
		if err := j.noteAll(ctx, d.client, d.server.namespace, list); err != nil {
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

// orCause returns why ctx ended, if it did, in the place of err, which is only a consequence.
func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// withTimeLimit returns a context for a demo with so much data.
func withTimeLimit(ctx context.Context, bytes int64) (context.Context, context.CancelFunc) {
	limit := timeLimit(bytes)
	return context.WithTimeoutCause(ctx, limit, errors.New("not done after "+limit.String()+": it is too slow for so much data, or something hangs"))
}
