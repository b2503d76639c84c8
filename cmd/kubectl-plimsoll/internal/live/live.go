// Package live follows volumes on a cluster: it watches their objects, and asks the agents that move them for current progress.
package live

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

const (
	defaultInterval = time.Second
	defaultRecent   = 10 * time.Minute
	defaultPatience = 2 * time.Second
)

// Selection selects the volumes of a Backup or Restore. The zero value selects all.
type Selection struct {
	Kind string // describe.KindBackup or describe.KindRestore
	Name string
}

// Options are those of Follow.
type Options struct {
	Config    *rest.Config
	Scheme    *runtime.Scheme // knows the kinds of corev1, velerov1 and plimsoll.io
	Namespace string          // of Velero
	Selection Selection
	Interval  time.Duration // between two Views; default a second
	Recent    time.Duration // of all volumes, those that have ended are left out after this time; default 10 minutes
	Patience  time.Duration // with an agent that does not answer, and with all of them before the first View; default 2 seconds
}

// Follow yields a View at once and then one each Interval, with the latest reports of watches and agents. It starts its
// goroutines with the first View, and ends them when the loop ends.
//
// The last pair has an error: the objects could not be read at the beginning, the selected operation does not exist or was
// deleted, or the cause of ctx's end. If the API server or an agent becomes unreachable later, the Views keep the last known
// state and have a note.
func Follow(ctx context.Context, o Options) iter.Seq2[describe.View, error] {
	return func(yield func(describe.View, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var background sync.WaitGroup
		defer background.Wait()
		defer cancel()
		f, err := newFollower(o)
		if err == nil {
			err = f.start(ctx, &background)
		}
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			yield(describe.View{}, err)
			return
		}
		ticks := time.NewTicker(f.interval)
		defer ticks.Stop()
		for {
			view, err := f.view(time.Now())
			if !yield(view, err) || err != nil {
				return
			}
			select {
			case <-ctx.Done():
				yield(describe.View{}, context.Cause(ctx))
				return
			case <-ticks.C:
			}
		}
	}
}

// Look returns the first View of Follow.
func Look(ctx context.Context, o Options) (describe.View, error) {
	for view, err := range Follow(ctx, o) {
		return view, err
	}
	return describe.View{}, context.Cause(ctx)
}

// follower collects the parts of a View.
type follower struct {
	selection  Selection
	namespace  string
	interval   time.Duration
	recent     time.Duration
	operations *mirror[describe.Operation] // of the selected one; nil: none is
	volumes    []*mirror[describe.Volume]
	pods       *mirror[agentPod]
	agents     *agents
	seen       bool // the selected operation existed
}

func newFollower(o Options) (*follower, error) {
	api, err := client.NewWithWatch(o.Config, client.Options{Scheme: o.Scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	agents, err := newAgents(o.Config, o.Namespace, cmp.Or(o.Patience, defaultPatience))
	if err != nil {
		return nil, err
	}
	f := &follower{
		selection: o.Selection, namespace: o.Namespace, agents: agents,
		interval: cmp.Or(o.Interval, defaultInterval), recent: cmp.Or(o.Recent, defaultRecent),
		pods: podsOf(api, o.Namespace),
	}
	if o.Selection.Name != "" {
		f.operations = operationOf(api, o.Namespace, o.Selection)
	}
	f.volumes = volumesOf(api, o.Namespace, o.Selection)
	return f, nil
}

// mirrored is a mirror of any kind.
type mirrored interface {
	kind() string
	firstLoad(ctx context.Context) error
	run(ctx context.Context)
	readError() (since time.Time, err error)
	watchError() error
}

// mirrors returns all mirrors, in the order in which they are read.
func (f *follower) mirrors() []mirrored {
	var all []mirrored
	if f.operations != nil {
		all = append(all, f.operations)
	}
	for _, v := range f.volumes {
		all = append(all, v)
	}
	return append(all, f.pods)
}

// start reads all objects once, and follows them in the background until ctx ends.
func (f *follower) start(ctx context.Context, background *sync.WaitGroup) error {
	mirrors := f.mirrors()
	for _, m := range mirrors {
		if err := m.firstLoad(ctx); err != nil {
			return err
		}
	}
	for _, m := range mirrors {
		background.Go(func() { m.run(ctx) })
	}
	asked := make(chan struct{})
	background.Go(func() {
		f.ask(ctx)
		close(asked)
		ticks := time.NewTicker(f.interval)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				f.ask(ctx)
			}
		}
	})
	select {
	case <-asked: // so that the first View has the agents' reports
	case <-time.After(f.agents.patience):
	case <-ctx.Done():
	}
	return nil
}

// ask asks the agents with running volumes, and those that were never asked.
func (f *follower) ask(ctx context.Context) {
	busy, anywhere := map[string]bool{}, false
	for _, v := range f.selected(time.Now(), f.operation()) {
		switch {
		case v.Ended(), v.OfPlugin(), v.Kind == describe.KindRepositoryTask: // no agent reports it
		case v.Node != "":
			busy[v.Node] = true
		case v.Phase == string(velerov1.PodVolumeRestorePhaseInProgress):
			anywhere = true // Velero before 1.16 has no field for the node of a restore
		}
	}
	f.agents.ask(ctx, f.pods.all(), func(p agentPod) bool { return anywhere || busy[p.node.Name] })
}
