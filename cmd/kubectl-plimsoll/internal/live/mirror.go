package live

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	readTimeout = 15 * time.Second
	retryPause  = time.Second      // an API server that restarts is seen soon after it is back
	deniedPause = 30 * time.Second // rights and kinds do not change often
	pollPause   = 5 * time.Second  // of those who may list, but not watch
)

// mirror keeps the objects of one kind, converted to T. It does not use client-go's Reflector, which waits for up to half a
// minute after the API server is back, and does not report since when it was unreachable.
type mirror[T any] struct {
	api      client.WithWatch
	what     string // the plural of the kind, for messages
	list     func() client.ObjectList
	options  []client.ListOption
	of       func(client.Object) T
	optional bool // the cluster may not have the kind, or not allow to read it

	mu        sync.Mutex
	objects   map[string]T // by name: they are in one namespace
	version   string
	err       error // of the last read
	since     time.Time
	unwatched error // why the objects are polled instead of watched
}

// firstLoad reads the objects for the first time. Without the kind or the right it fails, unless the kind is optional.
func (m *mirror[T]) firstLoad(ctx context.Context) error {
	err := m.load(ctx)
	switch {
	case err == nil, m.optional && denied(err):
		return nil
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the cluster has no %s: are the CRDs of Velero installed?", m.what)
	default:
		return fmt.Errorf("read %s: %w", m.what, err)
	}
}

// run follows changes until ctx ends.
func (m *mirror[T]) run(ctx context.Context) {
	for ctx.Err() == nil {
		_, err := m.readError()
		if err == nil {
			wait(ctx, m.follow(ctx))
			err = m.load(ctx)
		}
		for err != nil && ctx.Err() == nil {
			pause := retryPause
			if denied(err) {
				pause = deniedPause
			}
			wait(ctx, pause)
			err = m.load(ctx)
		}
	}
}

// follow watches until the watch ends, and returns how long to wait before the next read, so that a watch that is refused or
// cut at once does not cause a flood of requests.
func (m *mirror[T]) follow(ctx context.Context) (pause time.Duration) {
	begun := time.Now()
	err := m.watch(ctx)
	m.mu.Lock()
	m.unwatched = err
	m.mu.Unlock()
	switch {
	case denied(err):
		return pollPause
	case err != nil, time.Since(begun) < retryPause:
		return retryPause
	default:
		return 0
	}
}

// wait returns early when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// load replaces all objects.
func (m *mirror[T]) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list := m.list()
	err := m.api.List(ctx, list, m.options...)
	objects := map[string]T{}
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			objects[o.GetName()] = m.of(o)
			return nil
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && m.err == nil {
		m.since = time.Now()
	}
	m.err = err
	if err == nil {
		m.objects, m.version = objects, list.GetResourceVersion()
	}
	return err
}

// watch applies changes until the watch ends, which API servers do regularly; if there is a cause, the next load returns it. The
// error is that of starting the watch.
func (m *mirror[T]) watch(ctx context.Context) error {
	options := append(slices.Clip(m.options), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: m.version}})
	w, err := m.api.Watch(ctx, m.list(), options...)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.unwatched = nil
	m.mu.Unlock()
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if !ok || !m.apply(event) {
				return nil
			}
		}
	}
}

// apply applies a change, and returns false if the watch has ended.
func (m *mirror[T]) apply(event watch.Event) bool {
	o, ok := event.Object.(client.Object)
	if !ok {
		return false // of type Error: a Status
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch event.Type {
	case watch.Added, watch.Modified:
		m.objects[o.GetName()] = m.of(o)
	case watch.Deleted:
		delete(m.objects, o.GetName())
	default:
		return false
	}
	return true
}

func (m *mirror[T]) kind() string { return m.what }

func (m *mirror[T]) all() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.objects))
}

// readError returns since when and why the objects cannot be read.
func (m *mirror[T]) readError() (since time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.since, m.err
}

// watchError returns why the objects are polled; nil if they are watched.
func (m *mirror[T]) watchError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !denied(m.unwatched) {
		return nil
	}
	return m.unwatched
}

// denied reports whether the API server has answered, but does not have the kind or does not allow to read it.
func denied(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
}
