//go:build faults

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// The phases of PodVolumeBackups and PodVolumeRestores have the same names.
const (
	inProgress = string(velerov1.PodVolumeBackupPhaseInProgress)
	completed  = string(velerov1.PodVolumeBackupPhaseCompleted)
	failed     = string(velerov1.PodVolumeBackupPhaseFailed)
	canceled   = string(velerov1.PodVolumeBackupPhaseCanceled)
)

func isTerminal(phase string) bool { return phase == completed || phase == failed || phase == canceled }

// version is one version of a PodVolumeBackup or PodVolumeRestore, as a watch has brought it.
type version struct {
	object      client.Object
	seen        time.Time
	phase       string
	message     string
	done, total int64
	snapshot    progress.Snapshot // of the annotation
	malformed   error             // why the annotation cannot be read
}

func newVersion(o client.Object) version {
	v := version{object: o, seen: time.Now()}
	switch o := o.(type) {
	case *velerov1.PodVolumeBackup:
		v.phase, v.message, v.done, v.total = string(o.Status.Phase), o.Status.Message, o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	case *velerov1.PodVolumeRestore:
		v.phase, v.message, v.done, v.total = string(o.Status.Phase), o.Status.Message, o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	}
	if text, ok := o.GetAnnotations()[nodeagent.ProgressAnnotation]; ok {
		v.malformed = json.Unmarshal([]byte(text), &v.snapshot)
	}
	return v
}

func (v version) terminal() bool { return isTerminal(v.phase) }

// at says whether percent of a total that stays are done.
func (v version) at(percent int64) bool {
	return v.snapshot.TotalFinal && v.done*100 >= percent*v.total && v.phase == inProgress
}

func (v version) String() string {
	b, err := json.Marshal(v.object)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// history is what a Velero server sees: every version of every object.
type history struct {
	mu         sync.Mutex
	changed    chan struct{} // closed and replaced with each event
	versions   map[types.UID][]version
	deleted    map[types.UID]bool
	made       map[types.UID]time.Time // when it was about to be created
	backupOver time.Time               // when the Backup was about to end; zero: it is InProgress
}

// watch keeps a history of the namespace until the test ends.
func (f *fixture) watch() *history {
	f.t.Helper()
	h := &history{
		changed: make(chan struct{}), versions: map[types.UID][]version{}, deleted: map[types.UID]bool{}, made: map[types.UID]time.Time{},
	}
	ctx, cancel := context.WithCancel(f.context())
	var watching sync.WaitGroup
	f.t.Cleanup(func() { cancel(); watching.Wait() })
	for _, list := range []client.ObjectList{&velerov1.PodVolumeBackupList{}, &velerov1.PodVolumeRestoreList{}} {
		w, err := f.client.Watch(ctx, list, client.InNamespace(f.ns))
		if err != nil {
			f.t.Fatal(err)
		}
		watching.Go(func() {
			if err := h.follow(ctx, f, list, w); err != nil && ctx.Err() == nil {
				f.t.Errorf("the history of %T has a hole: %v", list, err)
			}
		})
	}
	return h
}

// follow keeps what watches bring, one after the other: the API server ends those of clients that are slow.
func (h *history) follow(ctx context.Context, f *fixture, list client.ObjectList, w watch.Interface) (err error) {
	version := ""
	for {
		for e := range w.ResultChan() {
			object, ok := e.Object.(client.Object)
			if !ok {
				w.Stop()
				return apierrors.FromObject(e.Object)
			}
			version = object.GetResourceVersion()
			h.add(e.Type, object)
		}
		w.Stop()
		w, err = f.client.Watch(ctx, list, client.InNamespace(f.ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
		if err != nil {
			return err
		}
	}
}

func (h *history) add(event watch.EventType, object client.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if event == watch.Deleted {
		h.deleted[object.GetUID()] = true
	} else {
		h.versions[object.GetUID()] = append(h.versions[object.GetUID()], newVersion(object))
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// created says when an object was created: at is before the call, because this process may have to wait for a processor
// after it.
func (h *history) created(o client.Object, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made[o.GetUID()] = at
}

func (h *history) backupEnds() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.backupOver = time.Now()
}

// of returns the versions of an object so far.
func (h *history) of(o client.Object) []version {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.versions[o.GetUID()]
}

// until waits for a version of o that ok accepts, and returns the first one.
func (f *fixture) until(o client.Object, what string, ok func(version) bool) version {
	f.t.Helper()
	return f.untilAfter(o, time.Time{}, what, ok)
}

// untilAfter is until for versions that were seen after a point in time.
func (f *fixture) untilAfter(o client.Object, since time.Time, what string, ok func(version) bool) version {
	f.t.Helper()
	deadline := time.After(patience)
	for {
		f.history.mu.Lock()
		versions, changed := f.history.versions[o.GetUID()], f.history.changed
		f.history.mu.Unlock()
		for _, v := range versions {
			if v.seen.After(since) && ok(v) {
				return v
			}
		}
		select {
		case <-changed:
		case <-deadline:
			f.t.Fatalf("%s did not become %s; its last version is %v", o.GetName(), what, last(versions))
		}
	}
}

func last(versions []version) version {
	if len(versions) == 0 {
		return version{}
	}
	return versions[len(versions)-1]
}

// end waits for the terminal version of o.
func (f *fixture) end(o client.Object) version {
	f.t.Helper()
	return f.until(o, "terminal", version.terminal)
}

// complete waits for the end of o, which must be Completed.
func (f *fixture) complete(o client.Object) version {
	f.t.Helper()
	v := f.end(o)
	if v.phase != completed || v.done != v.total || v.total == 0 {
		f.t.Fatalf("%s ended as %v", o.GetName(), v)
	}
	return v
}

// event waits until o has an Event with the reason, and returns its note.
func (f *fixture) event(o client.Object, reason string) string {
	f.t.Helper()
	w, err := f.client.Watch(f.t.Context(), &eventsv1.EventList{}, client.InNamespace(f.ns))
	if err != nil {
		f.t.Fatal(err)
	}
	defer w.Stop()
	deadline := time.After(patience)
	for {
		select {
		case e := <-w.ResultChan():
			if event, ok := e.Object.(*eventsv1.Event); ok && event.Regarding.UID == o.GetUID() && event.Reason == reason {
				return event.Note
			}
		case <-deadline:
			f.t.Fatalf("no Event %s on %s", reason, o.GetName())
		}
	}
}

// check holds what a Velero server and people rely on, for every object of the case, once no agent runs any more.
func (h *history) check(f *fixture) {
	f.t.Helper()
	h.settle(f)
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, versions := range h.versions {
		h.checkObject(f.t, uid, versions)
		if w := f.api.sentTo(versions[0].object.GetName()); w.largest > maxPatch {
			f.t.Errorf("%s: a patch had %d bytes", versions[0].object.GetName(), w.largest)
		}
	}
}

// settle waits until the watch has brought what the API server has.
func (h *history) settle(f *fixture) {
	f.t.Helper()
	h.mu.Lock()
	objects := make([]client.Object, 0, len(h.versions))
	for _, versions := range h.versions {
		objects = append(objects, versions[0].object.DeepCopyObject().(client.Object))
	}
	h.mu.Unlock()
	for _, o := range objects {
		err := f.client.Get(f.context(), client.ObjectKeyFromObject(o), o)
		if client.IgnoreNotFound(err) != nil {
			f.t.Error(err)
		}
		if err != nil {
			continue
		}
		await(f.t, "the watch has brought the last version of "+o.GetName(), func() bool {
			return last(h.of(o)).object.GetResourceVersion() == o.GetResourceVersion()
		})
	}
}

func (h *history) checkObject(t *testing.T, uid types.UID, versions []version) {
	t.Helper()
	var before version
	for _, v := range versions {
		if problem := h.checkVersion(uid, before, v); problem != "" {
			t.Errorf("%s: %s: %v", v.object.GetName(), problem, v)
		}
		before = v
	}
}

// checkVersion says in words what must not be.
func (h *history) checkVersion(uid types.UID, before, v version) string {
	_, isBackup := v.object.(*velerov1.PodVolumeBackup)
	switch {
	case v.malformed != nil:
		return fmt.Sprintf("the annotation is malformed: %v", v.malformed)
	case before.terminal():
		return "it was written after its terminal write"
	case v.done < before.done:
		return fmt.Sprintf("bytes done fell from %d", before.done)
	case v.done > v.total && v.total > 0:
		return "more than all bytes are done"
	case v.done == v.total && v.total > 0 && v.phase != completed:
		return "all bytes are done although it is not completed"
	case isBackup && v.terminal() && v.seen.Sub(h.made[uid]) < 2*time.Second:
		return "it was terminal less than two seconds after its creation"
	case isBackup && v.phase == canceled && (h.backupOver.IsZero() || v.seen.Before(h.backupOver)):
		return "it is Canceled under a Backup that is InProgress"
	}
	return ""
}
