package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

const (
	// lostAgentsLease is held by the one agent that looks for objects whose agents are lost.
	lostAgentsLease = "plimsoll-lost-agents"
	// leaseCallTimeout bounds each call for the Lease, so that giving it back does not hold up an agent that stops.
	leaseCallTimeout = 10 * time.Second
	// takenPage is how many objects one answer has, whose memory does not grow with the cluster.
	takenPage = 100
)

// followLostAgents looks for objects that lost agents have taken, whenever this agent holds the Lease, until ctx ends: no other
// agent watches these objects.
func (a *Agent) followLostAgents(ctx context.Context, cfg *rest.Config) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = leaseCallTimeout
	leases, err := coordinationv1.NewForConfig(cfg)
	if err != nil {
		a.cfg.Logger.Error("Cannot look for objects of lost agents", "error", err)
		return
	}
	for ctx.Err() == nil {
		if err := a.holdLostAgentsLease(ctx, leases); err != nil {
			a.cfg.Logger.Error("Cannot look for objects of lost agents", "error", err)
			return
		}
	}
}

// holdLostAgentsLease waits for the Lease, and looks for objects of lost agents until this agent has lost it, or ctx ends. A Lease whose
// holder is gone is taken over when it has not changed for its duration, by this agent's clock.
func (a *Agent) holdLostAgentsLease(ctx context.Context, leases coordinationv1.LeasesGetter) error {
	duration := max(a.cfg.AbandonedAfter, time.Second)
	var began atomic.Bool
	ended := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: lostAgentsLease,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: a.cfg.Namespace, Name: lostAgentsLease},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: a.cfg.NodeName}, // the node lock keeps it unique
		},
		LeaseDuration:   duration,
		RenewDeadline:   duration * 2 / 3,
		RetryPeriod:     duration / 4, // all other agents read the Lease this often, or half as often
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				began.Store(true)
				defer close(ended)
				a.visitTakenObjects(ctx)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare Lease %s: %w", lostAgentsLease, err)
	}
	elector.Run(ctx)
	if began.Load() { // else it finds its context ended
		<-ended
	}
	return nil
}

// visitTakenObjects lists the objects that other agents have taken, again and again until ctx ends, and acts on those whose agents are lost.
func (a *Agent) visitTakenObjects(ctx context.Context) {
	a.cfg.Logger.Info("This agent looks for objects of lost agents, for all nodes")
	known := map[podvolume.Key]struct{}{}
	defer func() { a.forgetObserved(known, nil) }()
	for {
		visited := map[podvolume.Key]struct{}{}
		next, err := a.visitTaken(ctx, visited)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			a.cfg.Logger.Warn("Cannot list the objects of other agents; trying again", "error", err)
			maps.Copy(known, visited)
			next = a.checkInterval()
		default:
			a.forgetObserved(known, visited)
			known = visited
		}
		if apiretry.Sleep(ctx, next) != nil {
			return
		}
	}
}

// visitTaken visits each object once that another agent has taken, adds it to visited, and returns when to do so again: at the first time
// at which one of them may need it, within bounds.
func (a *Agent) visitTaken(ctx context.Context, visited map[podvolume.Key]struct{}) (time.Duration, error) {
	next := a.cfg.AbandonedAfter / 2
	for _, list := range []client.ObjectList{&velerov1.PodVolumeBackupList{}, &velerov1.PodVolumeRestoreList{}} {
		err := a.listTaken(ctx, list, func(pv podvolume.PodVolume) {
			visited[pv.Key()] = struct{}{}
			result, err := a.visit(ctx, pv)
			switch {
			case err != nil:
				a.cfg.Logger.Warn("Cannot look after an object of another agent; trying again", "name", pv.Object.GetName(), "error", err)
				next = min(next, a.checkInterval())
			case result.RequeueAfter > 0:
				next = min(next, result.RequeueAfter)
			}
		})
		if err != nil {
			return 0, err
		}
	}
	return max(next, a.checkInterval()/4), nil
}

// listTaken calls do with each object that another agent has taken.
func (a *Agent) listTaken(ctx context.Context, list client.ObjectList, do func(podvolume.PodVolume)) error {
	ofOthers := selectorOf(
		requirement(v1alpha1.LabelNode, selection.Exists),
		requirement(v1alpha1.LabelNode, selection.NotEquals, v1alpha1.LabelValue(a.cfg.NodeName)))
	for {
		err := a.api.List(ctx, list, client.InNamespace(a.cfg.Namespace), client.MatchingLabelsSelector{Selector: ofOthers},
			client.Limit(takenPage), client.Continue(list.GetContinue()))
		if err != nil {
			return fmt.Errorf("list objects of other agents: %w", err)
		}
		err = meta.EachListItem(list, func(o runtime.Object) error {
			do(podvolume.FromObject(o.(client.Object)))
			return ctx.Err()
		})
		if err != nil || list.GetContinue() == "" {
			return err
		}
	}
}

// visit looks after one object that another agent has taken.
func (a *Agent) visit(ctx context.Context, pv podvolume.PodVolume) (reconcile.Result, error) {
	switch {
	case pv.Terminal(): // by an agent that does not know the labels, or while it was being deleted
		return a.release(ctx, pv)
	case a.admitted(pv.Key()): // the label is not the agent's own
		return reconcile.Result{}, exceptChanged(a.env.Take(ctx, pv))
	case pv.Misplaced():
		return reconcile.Result{}, a.giveUp(ctx, pv)
	case pv.Kind == podvolume.Backup:
		return a.reconcileBackupElsewhere(ctx, pv)
	default:
		return a.reconcileRestoreElsewhere(ctx, pv)
	}
}

// forgetObserved removes what is remembered of the objects of before that are not among those of now.
func (a *Agent) forgetObserved(before, now map[podvolume.Key]struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range before {
		if _, ok := now[k]; !ok {
			delete(a.observed, k)
		}
	}
}
