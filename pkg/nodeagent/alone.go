package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Two agents on one node would take the same objects. The kernel keeps them apart: an agent holds a lock (flock) on
// kubelet's pods directory, which both see whatever containers they are in. Other than a Lease, it is free at the moment at
// which its holder dies, and does not end an agent's work when the API server is away.

// becomeAlone waits until no other agent serves the pods directory. The lock is held until the file is closed; nil where
// the file system has no locks.
func (a *Agent) becomeAlone(ctx context.Context) (*os.File, error) {
	dir, err := os.Open(a.cfg.HostPods)
	if err != nil {
		a.cfg.Logger.Error("Cannot open kubelet's pods directory: volumes will not be found", "error", err)
		return nil, nil
	}
	tick := time.NewTicker(time.Second) // nothing tells when a lock is given up, and a blocking call cannot be ended
	defer tick.Stop()
	for told := false; ; told = true {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return dir, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			a.cfg.Logger.Warn("Cannot lock kubelet's pods directory: see that no second agent runs on this node", "error", err)
			return nil, dir.Close()
		case !told:
			a.cfg.Logger.Warn("Another node agent serves this node: waiting until it ends", "directory", a.cfg.HostPods)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another agent: %w", context.Cause(ctx)), dir.Close())
		}
	}
}

// whenAlone holds reconcilers back until no other agent serves the node.
func (a *Agent) whenAlone(do reconcile.Func) reconcile.Func {
	return func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		select {
		case <-a.alone:
			return do(ctx, req)
		case <-ctx.Done():
			return reconcile.Result{}, context.Cause(ctx)
		}
	}
}
