package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// follow watches the objects of list's kind, notes and shows what they say, and returns when n of them have ended.
func follow(ctx context.Context, c client.WithWatch, list client.ObjectList, n int, j *journal, v view) error {
	for j.ended() < n {
		// Without a resource version the watch begins with what is there. API servers end watches now and then.
		w, err := c.Watch(ctx, list, client.InNamespace(veleroNamespace))
		if err != nil {
			return fmt.Errorf("watch %T: %w", list, err)
		}
		err = followWatch(ctx, w, n, j, v)
		w.Stop()
		if err != nil {
			return fmt.Errorf("watch %T: %w", list, err)
		}
	}
	return nil
}

// followWatch returns when n objects have ended, or the watch has.
func followWatch(ctx context.Context, w watch.Interface, n int, j *journal, v view) error {
	for j.ended() < n {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if err := noteEvent(event, j, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func noteEvent(event watch.Event, j *journal, v view) error {
	object, ok := event.Object.(client.Object)
	switch {
	case event.Type == watch.Error:
		return apierrors.FromObject(event.Object)
	case !ok || event.Type != watch.Added && event.Type != watch.Modified:
		return fmt.Errorf("unexpected event %s of %T", event.Type, event.Object)
	}
	r, err := reportOf(object)
	if err != nil {
		return err
	}
	j.note(time.Now(), r)
	v.show(r)
	return nil
}

// look notes once more what the objects say now, when nobody should write to them any more.
func look(ctx context.Context, c client.Client, list client.ObjectList, j *journal) error {
	if err := c.List(ctx, list, client.InNamespace(veleroNamespace)); err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	return meta.EachListItem(list, func(item runtime.Object) error {
		r, err := reportOf(item.(client.Object))
		if err == nil {
			j.note(time.Now(), r)
		}
		return err
	})
}
