package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// operation is the demo's Backup or Restore.
type operation struct {
	list    client.ObjectList // of the kind of its volumes' objects
	volumes int
	read    func() describe.Operation
	end     func(context.Context) error // ends it as a Velero server does, once its volumes have ended
}

// follow shows the operation's volumes as `kubectl plimsoll watch` does until all have ended, ends the operation, and returns
// an error unless all volumes are completed and their reports are consistent.
func (d *demo) follow(ctx context.Context, op operation, j *journal) error {
	views := func(ctx context.Context) iter.Seq2[describe.View, error] { return d.views(ctx, op, j) }
	ended := func(v *describe.View) bool { return v.Operation.Verdict() != describe.VerdictRunning }
	_, err := d.console.Watch(ctx, views, ended)
	return errors.Join(err, j.failures())
}

// views returns a View after each change of the operation's volumes, and notes the change in the journal. The last View has
// the end of the operation.
func (d *demo) views(ctx context.Context, op operation, j *journal) iter.Seq2[describe.View, error] {
	return func(yield func(describe.View, error) bool) {
		volumes := map[types.UID]describe.Volume{}
		for object, err := range d.changes(ctx, op.list) {
			if err == nil {
				err = j.noteObject(object)
			}
			if err != nil {
				yield(describe.View{}, err)
				return
			}
			volumes[object.GetUID()] = describe.VolumeOf(object)
			view := newView(op, volumes)
			if !yield(view, nil) {
				return
			}
			if totals := describe.Sum(view.Volumes); totals.Ended() == op.volumes {
				err := op.end(ctx)
				yield(newView(op, volumes), err)
				return
			}
		}
	}
}

func newView(op operation, volumes map[types.UID]describe.Volume) describe.View {
	view := describe.View{At: time.Now(), Operation: new(op.read()), Volumes: slices.Collect(maps.Values(volumes))}
	describe.Sort(view.Volumes, view.At)
	return view
}

// changes returns the objects of list's kind as they are created and changed, until ctx ends.
func (d *demo) changes(ctx context.Context, list client.ObjectList) iter.Seq2[client.Object, error] {
	return func(yield func(client.Object, error) bool) {
		for again := true; again; {
			// Without a resource version, a watch begins with the objects that exist. API servers end watches now and then.
			w, err := d.client.Watch(ctx, list, client.InNamespace(d.server.namespace))
			if err != nil {
				yield(nil, fmt.Errorf("watch %T: %w", list, err))
				return
			}
			again = yieldObjects(ctx, w, yield)
			w.Stop()
		}
	}
}

// yieldObjects yields the objects of a watch, and reports whether only the watch has ended.
func yieldObjects(ctx context.Context, w watch.Interface, yield func(client.Object, error) bool) (again bool) {
	for {
		select {
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
			return false
		case event, ok := <-w.ResultChan():
			if !ok {
				return true
			}
			object, err := objectOf(event)
			if !yield(object, err) || err != nil {
				return false
			}
		}
	}
}

func objectOf(event watch.Event) (client.Object, error) {
	object, ok := event.Object.(client.Object)
	switch {
	case event.Type == watch.Error:
		return nil, apierrors.FromObject(event.Object)
	case !ok || event.Type != watch.Added && event.Type != watch.Modified:
		return nil, fmt.Errorf("unexpected event %s of %T", event.Type, event.Object)
	}
	return object, nil
}

// noteAll notes the objects as they are now.
func (j *journal) noteAll(ctx context.Context, c client.Client, namespace string, list client.ObjectList) error {
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	return meta.EachListItem(list, func(item runtime.Object) error { return j.noteObject(item.(client.Object)) })
}

func (j *journal) noteObject(object client.Object) error {
	r, err := reportOf(object)
	if err == nil {
		j.note(time.Now(), r)
	}
	return err
}
