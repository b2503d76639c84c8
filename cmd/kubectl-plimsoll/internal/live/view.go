package live

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// view returns the View of what is known now.
func (f *follower) view(now time.Time) (describe.View, error) {
	view := describe.View{At: now}
	if f.operations != nil {
		if view.Operation = f.operation(); view.Operation == nil {
			return view, f.notFound()
		}
		f.seen = true
	}
	view.Volumes = f.selected(now, view.Operation)
	reported := f.agents.volumes(now)
	for i := range view.Volumes {
		v := &view.Volumes[i]
		if live, ok := reported[v.UID]; ok {
			mergeReport(v, live)
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

func (f *follower) notFound() error {
	if f.seen {
		return fmt.Errorf("%s %s in namespace %s was deleted", f.selection.Kind, f.selection.Name, f.namespace)
	}
	return fmt.Errorf("there is no %s %s in namespace %s", f.selection.Kind, f.selection.Name, f.namespace)
}

// selected returns the volumes of the operation, or all that run or have ended recently.
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

// mergeReport replaces the object's progress with the agent's if that is newer. Only objects report the end. The agent leaves
// out texts that may name files; they are taken from the object.
func mergeReport(v *describe.Volume, agent agentReport) {
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

// notes returns a note for each kind that cannot be read, and one if the API server is unreachable.
func (f *follower) notes() []string {
	var notes []string
	var away error
	var first time.Time
	for _, m := range f.mirrors() {
		since, err := m.readError()
		if reason := m.watchError(); err == nil && reason != nil {
			notes = append(notes, fmt.Sprintf("%s may be %v old, because they cannot be watched: %v", m.kind(), pollPause, reason))
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
		notes = append(notes, fmt.Sprintf("unauthorized since %s; log in again (showing the last known state)", first.Format(time.TimeOnly)))
	case away != nil:
		notes = append(notes, fmt.Sprintf("API server unreachable since %s (showing the last known state): %v", first.Format(time.TimeOnly), away))
	}
	return notes
}
