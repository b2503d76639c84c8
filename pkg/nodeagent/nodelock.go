package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Two agents of one namespace on a node would take the same objects. The kernel keeps them apart: an agent holds a lock on a
// byte of kubelet's pods directory, which both see whatever containers they are in, and nothing has to be written there.
// Other than a Lease, it is free at the moment at which its holder dies, and does not end an agent's work when the API server
// is away. Each namespace has a byte of its own: agents of several serve a node side by side.

// acquireNodeLock waits until no other agent of the namespace serves the pods directory. The lock is held until the file is
// closed; nil where the file system has no locks.
func (a *Agent) acquireNodeLock(ctx context.Context) (*os.File, error) {
	dir, err := os.Open(a.cfg.HostPods)
	if err != nil {
		a.cfg.Logger.Error("Cannot open kubelet's pods directory: volumes will not be found", "error", err)
		return nil, nil
	}
	for told := false; ; told = true {
		alone, err := lockNamespace(dir, a.cfg.Namespace)
		switch {
		case err != nil:
			a.cfg.Logger.Warn("Cannot lock kubelet's pods directory: see that no second agent runs on this node", "error", err)
			return nil, dir.Close()
		case alone:
			return dir, nil
		case !told:
			a.cfg.Logger.Warn("Another node agent of this namespace serves this node: waiting until it ends", "directory", a.cfg.HostPods)
		}
		select {
		case <-time.After(wait.Jitter(time.Second, 0.5)): // nothing tells when a lock is given up, and a blocking call cannot be ended
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another agent: %w", context.Cause(ctx)), dir.Close())
		}
	}
}

// lockNamespace takes the namespace's byte of a directory, unless another agent has it. A directory cannot be opened for
// writing, and so the lock is a shared one: it is given back if anybody else has one, too.
func lockNamespace(dir *os.File, namespace string) (alone bool, err error) {
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, namespace) // never fails
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: int64(hash.Sum64() >> 2), Len: 1}
	if err := unix.FcntlFlock(dir.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		return false, err
	}
	other := lock
	other.Type = unix.F_WRLCK
	if err := unix.FcntlFlock(dir.Fd(), unix.F_OFD_GETLK, &other); err != nil {
		return false, err
	}
	if other.Type == unix.F_UNLCK {
		return true, nil
	}
	lock.Type = unix.F_UNLCK
	return false, unix.FcntlFlock(dir.Fd(), unix.F_OFD_SETLK, &lock)
}

// requireNodeLock holds reconcilers back until no other agent of the namespace serves the node.
func (a *Agent) requireNodeLock(do reconcile.Func) reconcile.Func {
	return func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		select {
		case <-a.locked:
			return do(ctx, req)
		case <-ctx.Done():
			return reconcile.Result{}, context.Cause(ctx)
		}
	}
}
