package live

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// view puts together what is known.
func (f *follower) view(now time.Time) (describe.View, error) {
	view := describe.View{At: now}
	if f.operations != nil {
		if view.Operation = f.operation(); view.Operation == nil {
			return view, f.missing()
		}
		f.seen = true
	}
	view.Volumes = f.selected(now, view.Operation)
	told := f.agents.volumes(now)
	for i := range view.Volumes {
		v := &view.Volumes[i]
		if live, ok := told[v.UID]; ok {
			refresh(v, live)
		}
		v.DropStale(now)
	}
	describe.Sort(view.Volumes, now)
	var note string
	view.Nodes, note = f.agents.nodes(f.pods.all())
	view.Notes = f.notes()
	if note != "" {
		view.Notes = append(view.Notes, note)
	}
	return view, nil
}

func (f *follower) operation() *describe.Operation {
	if f.operations == nil {
		return nil
	}
	for _, o := range f.operations.all() {
		return &o
	}
	return nil
}

func (f *follower) missing() error {
	if f.seen {
		return fmt.Errorf("%s %s in namespace %s was deleted meanwhile", f.selection.Kind, f.selection.Name, f.namespace)
	}
	return fmt.Errorf("there is no %s %s in namespace %s", f.selection.Kind, f.selection.Name, f.namespace)
}

// selected returns the volumes that are to be seen: those of the operation, or all that have not ended long ago.
func (f *follower) selected(now time.Time, operation *describe.Operation) []describe.Volume {
	volumes := []describe.Volume{}
	for _, m := range f.volumes {
		for _, v := range m.all() {
			if operation != nil && operation.Owns(&v) || f.operations == nil && (!v.Ended() || now.Sub(v.Completed) < f.recent) {
				volumes = append(volumes, v)
			}
		}
	}
	return volumes
}

// refresh replaces what the object says by what its agent says, if that is newer. An end is told by objects alone. The
// agent leaves out what may name files; the object has that.
func refresh(v *describe.Volume, agent told) {
	object, live := &v.Progress, agent.Snapshot
	if v.Ended() || live.State == "" || live.State.Terminal() || live.Heartbeat.Before(object.Heartbeat) {
		return
	}
	if live.Message == "" && live.State == object.State {
		live.Message = object.Message
	}
	if live.LastError == "" && live.Errors > 0 {
		live.LastError = object.LastError
	}
	if live.CurrentItem == "" && live.State == object.State {
		live.CurrentItem = object.CurrentItem
	}
	v.Progress, v.Source = live, describe.SourceAnnotation // it is that old by now
	if agent.fresh {
		v.Source = describe.SourceAgent
	}
}

// notes say what cannot be read: each kind that is not shown, and once since when the API server is away.
func (f *follower) notes() []string {
	var notes []string
	var away error
	var first time.Time
	for _, m := range f.mirrors() {
		since, err := m.trouble()
		if reason := m.polled(); err == nil && reason != nil {
			notes = append(notes, fmt.Sprintf("%s are up to %v old, because they cannot be watched: %v", m.kind(), pollPause, reason))
		}
		switch {
		case err == nil, meta.IsNoMatchError(err):
		case denied(err):
			notes = append(notes, fmt.Sprintf("%s cannot be read: %v", m.kind(), err))
		case away == nil || since.Before(first):
			away, first = err, since
		}
	}
	switch {
	case apierrors.IsUnauthorized(away):
		notes = append(notes, fmt.Sprintf("the API server does not know you any more since %s: log in again; what it last said is shown", first.Format(time.TimeOnly)))
	case away != nil:
		notes = append(notes, fmt.Sprintf("the API server does not answer since %s, what it last said is shown: %v", first.Format(time.TimeOnly), away))
	}
	return notes
}
