package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
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

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// The phases of PodVolumeBackups and PodVolumeRestores have the same names.
const (
	InProgress = string(velerov1.PodVolumeBackupPhaseInProgress)
	Completed  = string(velerov1.PodVolumeBackupPhaseCompleted)
	Failed     = string(velerov1.PodVolumeBackupPhaseFailed)
	Canceled   = string(velerov1.PodVolumeBackupPhaseCanceled)
)

// IsTerminal reports whether a phase is the end of an operation.
func IsTerminal(phase string) bool { return phase == Completed || phase == Failed || phase == Canceled }

// Version is one version of a PodVolumeBackup or PodVolumeRestore, as a watch has brought it.
type Version struct {
	Object      client.Object
	Seen        time.Time
	Phase       string
	Message     string
	Done, Total int64
	Snapshot    progress.Snapshot // of the annotation
	Malformed   error             // why the annotation cannot be read
}

func newVersion(o client.Object) Version {
	v := Version{Object: o, Seen: time.Now()}
	switch o := o.(type) {
	case *velerov1.PodVolumeBackup:
		v.Phase, v.Message, v.Done, v.Total = string(o.Status.Phase), o.Status.Message, o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	case *velerov1.PodVolumeRestore:
		v.Phase, v.Message, v.Done, v.Total = string(o.Status.Phase), o.Status.Message, o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	}
	if text, ok := o.GetAnnotations()[v1alpha1.AnnotationProgress]; ok {
		v.Malformed = json.Unmarshal([]byte(text), &v.Snapshot)
	}
	return v
}

// Terminal reports whether this is the end of the operation.
func (v Version) Terminal() bool { return IsTerminal(v.Phase) }

// At reports whether percent of a total that stays are done.
func (v Version) At(percent int64) bool {
	return v.Snapshot.TotalFinal && v.Done*100 >= percent*v.Total && v.Phase == InProgress
}

// String returns the object as JSON.
func (v Version) String() string {
	b, err := json.Marshal(v.Object)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// History is what a Velero server sees: every version of every object.
type History struct {
	mu         sync.Mutex
	changed    chan struct{} // closed and replaced with each event
	versions   map[types.UID][]Version
	deleted    map[types.UID]bool
	made       map[types.UID]time.Time // when it was about to be created
	backupOver time.Time               // when the Backup was about to end; zero: it is InProgress
}

// Watch keeps a history of the namespace until the test ends.
func (f *Fixture) Watch() *History {
	f.T.Helper()
	h := &History{
		changed: make(chan struct{}), versions: map[types.UID][]Version{}, deleted: map[types.UID]bool{}, made: map[types.UID]time.Time{},
	}
	ctx, cancel := context.WithCancel(f.Context())
	var watching sync.WaitGroup
	f.T.Cleanup(func() { cancel(); watching.Wait() })
	for _, list := range []client.ObjectList{&velerov1.PodVolumeBackupList{}, &velerov1.PodVolumeRestoreList{}} {
		w, err := f.Client.Watch(ctx, list, client.InNamespace(f.Namespace))
		if err != nil {
			f.T.Fatal(err)
		}
		watching.Go(func() {
			if err := h.follow(ctx, f, list, w); ctx.Err() == nil {
				f.T.Errorf("the history of %T has a hole: %v", list, err)
			}
		})
	}
	return h
}

// follow keeps what watches bring, one after the other: the API server ends those of clients that are slow. It returns why it
// could not go on.
func (h *History) follow(ctx context.Context, f *Fixture, list client.ObjectList, w watch.Interface) (err error) {
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
		w, err = f.Client.Watch(ctx, list, client.InNamespace(f.Namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
		if err != nil {
			return err
		}
	}
}

func (h *History) add(event watch.EventType, object client.Object) {
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

// created records when an object was created: at is before the call, because this process may have to wait for a processor
// after it.
func (h *History) created(o client.Object, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made[o.GetUID()] = at
}

func (h *History) backupEnds() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.backupOver = time.Now()
}

// Of returns the versions of an object so far.
func (h *History) Of(o client.Object) []Version {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.versions[o.GetUID()]
}

// All returns the versions of every object so far.
func (h *History) All() [][]Version {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.versions))
}

// Until waits for a version of o that ok accepts, and returns the first one.
func (f *Fixture) Until(o client.Object, what string, ok func(Version) bool) Version {
	f.T.Helper()
	return f.UntilAfter(o, time.Time{}, what, ok)
}

// UntilAfter is until for versions that were seen after a point in time.
func (f *Fixture) UntilAfter(o client.Object, since time.Time, what string, ok func(Version) bool) Version {
	f.T.Helper()
	deadline := time.After(testenv.Patience)
	for {
		f.History.mu.Lock()
		versions, changed := f.History.versions[o.GetUID()], f.History.changed
		f.History.mu.Unlock()
		for _, v := range versions {
			if v.Seen.After(since) && ok(v) {
				return v
			}
		}
		select {
		case <-changed:
		case <-deadline:
			f.T.Fatalf("%s did not become %s; its last version is %v", o.GetName(), what, Last(versions))
		}
	}
}

// Last returns the newest version, the zero value if there is none.
func Last(versions []Version) Version {
	if len(versions) == 0 {
		return Version{}
	}
	return versions[len(versions)-1]
}

// End waits for the terminal version of o.
func (f *Fixture) End(o client.Object) Version {
	f.T.Helper()
	return f.Until(o, "terminal", Version.Terminal)
}

// Complete waits for the end of o, which must be Completed.
func (f *Fixture) Complete(o client.Object) Version {
	f.T.Helper()
	v := f.End(o)
	if v.Phase != Completed || v.Done != v.Total || v.Total == 0 {
		f.T.Fatalf("%s ended as %v", o.GetName(), v)
	}
	return v
}

// Event waits until o has an Event with the reason, and returns its note.
func (f *Fixture) Event(o client.Object, reason string) string {
	f.T.Helper()
	w, err := f.Client.Watch(f.T.Context(), &eventsv1.EventList{}, client.InNamespace(f.Namespace))
	if err != nil {
		f.T.Fatal(err)
	}
	defer w.Stop()
	deadline := time.After(testenv.Patience)
	for {
		select {
		case e := <-w.ResultChan():
			if event, ok := e.Object.(*eventsv1.Event); ok && event.Regarding.UID == o.GetUID() && event.Reason == reason {
				return event.Note
			}
		case <-deadline:
			f.T.Fatalf("no Event %s on %s", reason, o.GetName())
		}
	}
}

// Check holds what a Velero server and people rely on, for every object of the case, once no agent runs any more.
func (h *History) Check(f *Fixture) {
	f.T.Helper()
	h.settle(f)
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, versions := range h.versions {
		h.checkObject(f.T, uid, versions)
		if w := f.API.SentTo(versions[0].Object.GetName()); w.largest > maxPatch {
			f.T.Errorf("%s: a patch had %d bytes", versions[0].Object.GetName(), w.largest)
		}
	}
}

// settle waits until the watch has brought what the API server has.
func (h *History) settle(f *Fixture) {
	f.T.Helper()
	h.mu.Lock()
	objects := make([]client.Object, 0, len(h.versions))
	for _, versions := range h.versions {
		objects = append(objects, versions[0].Object.DeepCopyObject().(client.Object))
	}
	h.mu.Unlock()
	for _, o := range objects {
		err := f.Client.Get(f.Context(), client.ObjectKeyFromObject(o), o)
		if client.IgnoreNotFound(err) != nil {
			f.T.Error(err)
		}
		if err != nil {
			continue
		}
		f.Eventually("the watch has brought the last version of "+o.GetName(), func() bool {
			return Last(h.Of(o)).Object.GetResourceVersion() == o.GetResourceVersion()
		})
	}
}

func (h *History) checkObject(tb testing.TB, uid types.UID, versions []Version) {
	tb.Helper()
	var before Version
	for _, v := range versions {
		if problem := h.checkVersion(uid, before, v); problem != "" {
			tb.Errorf("%s: %s: %v", v.Object.GetName(), problem, v)
		}
		before = v
	}
}

// checkVersion says in words what must not be.
func (h *History) checkVersion(uid types.UID, before, v Version) string {
	_, isBackup := v.Object.(*velerov1.PodVolumeBackup)
	switch {
	case v.Malformed != nil:
		return fmt.Sprintf("the annotation is malformed: %v", v.Malformed)
	case v.Done < before.Done:
		return fmt.Sprintf("bytes done fell from %d", before.Done)
	case before.Terminal() && !isMark(before, v):
		return "it was written after its terminal write"
	case v.Done > v.Total && v.Total > 0:
		return "more than all bytes are done"
	case v.Done == v.Total && v.Total > 0 && v.Phase != Completed:
		return "all bytes are done although it is not completed"
	case isBackup && v.Terminal() && v.Seen.Sub(h.made[uid]) < 2*time.Second:
		return "it was terminal less than two seconds after its creation"
	case isBackup && v.Phase == Canceled && (h.backupOver.IsZero() || v.Seen.Before(h.backupOver)):
		return "it is Canceled under a Backup that is InProgress"
	}
	return ""
}

// isMark reports whether a task has set or removed a mark of a backup, that it is being forgotten or was verified, whose end stays as it is. No
// server waits for such a backup, since it belongs to none.
func isMark(before, v Version) bool {
	was, isBackup := before.Object.(*velerov1.PodVolumeBackup)
	if !isBackup || len(was.OwnerReferences) > 0 {
		return false
	}
	is := v.Object.(*velerov1.PodVolumeBackup)
	isOther := func(name string) bool { return was.Annotations[name] != is.Annotations[name] }
	return slices.ContainsFunc([]string{v1alpha1.AnnotationForgetting, v1alpha1.AnnotationVerified, v1alpha1.AnnotationDamaged}, isOther) && reflect.DeepEqual(was.Status, is.Status)
}

// Gone reports whether o does not exist any more.
func (h *History) Gone(o client.Object) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deleted[o.GetUID()]
}
