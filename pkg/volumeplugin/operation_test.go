package volumeplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	volumesnapshotter "github.com/vmware-tanzu/velero/pkg/plugin/velero/volumesnapshotter/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

const (
	plugin    = "example.io/disks"
	namespace = "velero"
)

// store is a client that keeps objects in memory, where real time would take minutes or the API server's part does not
// matter. It records the patches of statuses, and fails when it is told to.
type store struct {
	client.WithWatch

	mu      sync.Mutex
	err     error
	tries   int
	patches []patch
}

type patch struct {
	at     time.Time
	status v1alpha1.VolumePluginBackupStatus // only what the patch sets
	size   int
}

func newStore(t *testing.T) *store {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &store{}
	inner := fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.VolumePluginBackup{}, &v1alpha1.VolumePluginRestore{}).Build()
	s.WithWatch = interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := s.try(); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if err := s.try(); err != nil {
				return err
			}
			return c.List(ctx, l, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := s.try(); err != nil {
				return err
			}
			s.record(t, o, p)
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	return s
}

func (s *store) try() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	return s.err
}

func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *store) tried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

func (s *store) sent() []patch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.patches)
}

func (s *store) record(t *testing.T, o client.Object, p client.Patch) {
	data, err := p.Data(o)
	if err != nil {
		t.Error(err)
	}
	var content struct {
		Metadata struct{ ResourceVersion string }
		Status   v1alpha1.VolumePluginBackupStatus
	}
	if err := json.Unmarshal(data, &content); err != nil {
		t.Error(err)
	}
	if content.Metadata.ResourceVersion != "" {
		t.Errorf("a patch insists on a version: %s", data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches = append(s.patches, patch{time.Now(), content.Status, len(data)})
}

func (s *store) backups(t *testing.T) []v1alpha1.VolumePluginBackup {
	t.Helper()
	list := &v1alpha1.VolumePluginBackupList{}
	if err := s.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (s *store) backup(t *testing.T) v1alpha1.VolumePluginBackup {
	t.Helper()
	all := s.backups(t)
	if len(all) != 1 {
		t.Fatalf("there are %d backups, want 1", len(all))
	}
	return all[0]
}

// inBubble runs a test with a clock of its own: nobody waits for its sleeps.
func inBubble(t *testing.T, f func(t *testing.T, s *store, r *Recorder, log *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, log := newStore(t), &bytes.Buffer{}
		r := New(t.Context(), Options{Plugin: plugin, Client: s, Namespace: namespace, Log: slog.New(slog.NewTextHandler(log, nil))})
		defer r.Close(t.Context())
		f(t, s, r, log)
	})
}

// pass lets time pass in a bubble, and everything that is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var request = BackupRequest{Backup: "nightly", Volume: "pv-1", PluginSpecific: map[string]string{"zone": "a"}}

func TestUpdatesAreCoalesced(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		op := r.BeginBackup(request)
		synctest.Wait()
		for i := range int64(3000) { // five minutes of ten readings a second
			op.Update(i, 3000)
			pass(100 * time.Millisecond)
		}
		op.Complete()
		// The begin, the total, 30 intervals, the end.
		if n := len(s.sent()); n < 30 || n > 33 {
			t.Errorf("%d writes for 3000 readings in 5 minutes", n)
		}
		for i, p := range s.sent() {
			if p.size > 700 {
				t.Errorf("patch %d has %d bytes", i, p.size)
			}
			if i > 2 && i < len(s.sent())-1 && p.at.Sub(s.sent()[i-1].at) < r.Interval {
				t.Errorf("patch %d comes %s after the one before", i, p.at.Sub(s.sent()[i-1].at))
			}
		}
	})
}

func TestBeginTotalAndEndAreWrittenAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		began := time.Now()
		op := r.BeginBackup(request)
		synctest.Wait()
		op.Update(0, 1000)
		synctest.Wait()
		op.SetID("snap-1")
		synctest.Wait()
		op.Update(400, 1000)
		op.Complete()
		op.Update(500, 2000)
		op.Fail("too late")
		if took := time.Since(began); took != 0 {
			t.Errorf("took %s", took)
		}
		if len(s.sent()) != 4 {
			t.Fatalf("%d writes, want begin, total, id, end", len(s.sent()))
		}
		if first := s.sent()[0].status; first.Phase != v1alpha1.PhaseInProgress || first.StartTimestamp == nil {
			t.Errorf("the first write says %+v", first)
		}
		got := s.backup(t)
		st := got.Status
		if st.Phase != v1alpha1.PhaseCompleted || st.Progress != (v1alpha1.VolumeOperationProgress{TotalBytes: 1000, BytesDone: 1000}) ||
			*st.Percent != 100 || st.SnapshotID != "snap-1" || st.CompletionTimestamp == nil || st.Message != "" {
			t.Errorf("ended as %+v", st)
		}
		if got.Labels[v1alpha1.LabelSnapshotID] != "snap-1" || got.Labels[v1alpha1.LabelBackup] != "nightly" ||
			got.Labels[v1alpha1.LabelVolume] != "pv-1" || got.Labels[v1alpha1.LabelPlugin] != "example.io_disks" {
			t.Errorf("labels %v", got.Labels)
		}
		if got.Spec.PluginSpecific["zone"] != "a" {
			t.Errorf("spec %+v", got.Spec)
		}
	})
}

func TestFailureKeepsTheNumbers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		op := r.BeginBackup(request)
		op.Update(1000, 1000)
		op.Fail(strings.Repeat("ä", 1000) + "\xff")
		st := s.backup(t).Status
		if st.Phase != v1alpha1.PhaseFailed || st.Progress.BytesDone >= st.Progress.TotalBytes || *st.Percent != 99 {
			t.Errorf("failed with %+v", st)
		}
		if len(st.Message) > maxMessage || !strings.HasSuffix(st.Message, "ä…") {
			t.Errorf("message of %d bytes: %q", len(st.Message), st.Message[len(st.Message)-10:])
		}
	})
}

func TestNumbersNeverFall(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		op := r.BeginBackup(request)
		for _, u := range [][2]int64{{500, 1000}, {100, 1000}, {700, 600}, {-5, 0}, {50, 40}} {
			op.Update(u[0], u[1])
			pass(r.Interval)
		}
		op.Fail("enough")
		var last v1alpha1.VolumeOperationProgress
		for _, p := range s.sent() {
			now := p.status.Progress
			if now.BytesDone != 0 && now.BytesDone < last.BytesDone {
				t.Errorf("%d bytes after %d", now.BytesDone, last.BytesDone)
			}
			last.BytesDone = max(last.BytesDone, now.BytesDone)
		}
		if p := s.backup(t).Status.Progress; p.BytesDone < 500 || p.BytesDone > p.TotalBytes {
			t.Errorf("in the end %+v", p)
		}
	})
}

func TestSilentOperationIsStalledAndItsHeartGoesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		op := r.BeginBackup(request)
		op.Update(10, 100)
		pass(10 * time.Minute)
		st := s.backup(t).Status
		if st.State != "Stalled" || time.Since(st.HeartbeatTimestamp.Time) > time.Minute+r.Interval || time.Since(st.LastProgressTimestamp.Time) < 9*time.Minute {
			t.Errorf("after 10 silent minutes %+v", st)
		}
		if n := len(s.sent()); n > 15 {
			t.Errorf("%d writes although nothing moved", n)
		}
		op.Update(20, 100)
		pass(r.Interval)
		if st := s.backup(t).Status; st.State != "Transferring" {
			t.Errorf("after a byte has moved it is %s", st.State)
		}
		op.Complete()
		list := &eventsv1.EventList{}
		if err := s.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, e := range list.Items {
			got[e.Reason]++
		}
		for _, reason := range []string{v1alpha1.EventStarted, v1alpha1.EventStalled, v1alpha1.EventResumed, v1alpha1.EventCompleted} {
			if got[reason] != 1 {
				t.Errorf("Events %v, want one %s", got, reason)
			}
		}
	})
}

// TestWorkWithoutBytes has a plugin that finds more and more to do, and then nothing: the stall counts from the last of that, and the writes do not grow.
func TestWorkWithoutBytes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		op := r.BeginBackup(request)
		op.Update(10, 100)
		begun := time.Now()
		for total := range int64(60) {
			pass(10 * time.Second)
			op.Update(10, 101+total)
		}
		worked := time.Now()
		pass(5 * time.Minute)
		st := s.backup(t).Status
		if st.State != "Stalled" || st.LastProgressTimestamp.After(begun) || !st.LastWorkTimestamp.Equal(stamp(worked)) {
			t.Errorf("it is %+v, want a stall since %s", st, worked)
		}
		op.Complete()
		list := &eventsv1.EventList{}
		if err := s.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		want := "no other work was seen since " + worked.UTC().Format(time.RFC3339)
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == v1alpha1.EventStalled && strings.HasSuffix(e.Note, want)
		}) {
			t.Errorf("no Event says %q: %+v", want, list.Items)
		}
	})
}

func TestOutageIsSatOut(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, log *bytes.Buffer) {
		s.fail(errors.New("connection refused"))
		op, other := r.BeginBackup(request), r.BeginBackup(BackupRequest{Backup: "nightly", Volume: "pv-2"})
		op.Update(500, 1000)
		began := time.Now()
		op.Complete()
		if took := time.Since(began); took != DefaultFlushTimeout {
			t.Errorf("Complete took %s", took)
		}
		pass(time.Hour)
		if tries := s.tried(); tries > 200 {
			t.Errorf("%d tries in an hour", tries)
		}
		s.fail(nil)
		pass(longPause)
		for _, b := range s.backups(t) {
			want := v1alpha1.PhaseInProgress
			if b.Spec.Volume == "pv-1" {
				want = v1alpha1.PhaseCompleted
			}
			if b.Status.Phase != want {
				t.Errorf("%s is %s after the outage, want %s", b.Spec.Volume, b.Status.Phase, want)
			}
		}
		other.Complete()
		if got := strings.Count(log.String(), "not recorded"); got != 1 {
			t.Errorf("logged %d times:\n%s", got, log)
		}
	})
}

func TestAnotherBeginGoesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		op := r.BeginBackup(request)
		if again := r.BeginBackup(request); again != op {
			t.Error("the same process began the same backup twice")
		}
		op.SetID("Snap/1")
		op.Update(600, 1000)
		synctest.Wait()
		r.Close(t.Context()) // the process ends

		next := New(t.Context(), Options{Plugin: plugin, Client: s, Namespace: namespace})
		defer next.Close(t.Context())
		for name, req := range map[string]BackupRequest{
			"without the id": request,
			"with the id":    {Backup: request.Backup, Volume: request.Volume, SnapshotID: "Snap/1"},
		} {
			op := next.BeginBackup(req)
			op.Update(100, 1000)
			synctest.Wait()
			if st := s.backup(t).Status; st.Progress.BytesDone != 600 || st.Phase != v1alpha1.PhaseInProgress {
				t.Errorf("%s it is %+v after the restart", name, st)
			}
		}
		next.BeginBackup(request).Complete()
		next.BeginBackup(BackupRequest{Backup: request.Backup, Volume: request.Volume, SnapshotID: "Snap/1"}).Fail("no: it has ended")
		if st := s.backup(t).Status; st.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("ended as %+v", st)
		}
	})
}

func TestEndedBackupIsNotBegunAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		r.BeginBackup(request).Fail("first try")
		r.BeginBackup(request).Complete()
		all := s.backups(t)
		if len(all) != 2 || all[0].Status.Phase == all[1].Status.Phase {
			t.Errorf("want a failed and a completed backup, there are %+v", all)
		}
	})
}

func TestSyncedBackupIsLeftAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		r.BeginBackup(request)
		synctest.Wait()
		r.Close(t.Context())
		old := s.backup(t)
		old.Labels[v1alpha1.LabelSynced] = "default"
		if err := s.Update(t.Context(), &old); err != nil {
			t.Fatal(err)
		}
		next := New(t.Context(), Options{Plugin: plugin, Client: s, Namespace: namespace})
		next.BeginBackup(request).Complete()
		next.Close(t.Context())
		for _, b := range s.backups(t) {
			if b.Name == old.Name && b.Status.Phase != v1alpha1.PhaseInProgress {
				t.Errorf("the synced object became %s", b.Status.Phase)
			}
		}
		if n := len(s.backups(t)); n != 2 {
			t.Errorf("%d objects, want a new one beside the synced one", n)
		}
	})
}

func TestRestoreKnowsItsBackup(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		b := r.BeginBackup(request)
		b.SetID("snap-1")
		b.Update(5, 1000)
		b.Complete()
		op := r.BeginRestore(RestoreRequest{SnapshotID: "snap-1"})
		op.Update(250, 0)
		op.SetID("vol-9")
		pass(r.Interval)
		list := &v1alpha1.VolumePluginRestoreList{}
		if err := s.List(t.Context(), list); err != nil || len(list.Items) != 1 {
			t.Fatal(err, list.Items)
		}
		got := list.Items[0]
		if got.Spec.Volume != request.Volume || got.Labels[v1alpha1.LabelVolume] != request.Volume {
			t.Errorf("restore of volume %q, labels %v", got.Spec.Volume, got.Labels)
		}
		if got.Spec.Backup != "nightly" || got.Status.Progress.TotalBytes != 1000 || got.Status.Progress.BytesDone != 250 ||
			*got.Status.Percent != 25 || got.Status.VolumeID != "vol-9" || got.Labels[v1alpha1.LabelBackup] != "nightly" {
			t.Errorf("restore %+v", got)
		}
		op.Complete()
	})
}

func TestMessageIsThereWhileTheOperationWaits(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		op := r.BeginBackup(request)
		op.SetMessage("waits for a slot of the array")
		pass(r.Interval)
		if got := s.backups(t)[0].Status; got.Message != "waits for a slot of the array" || got.Phase != v1alpha1.PhaseInProgress {
			t.Errorf("while it waits: %+v", got)
		}
		op.SetMessage("")
		pass(r.Interval)
		if got := s.backups(t)[0].Status; got.Message != "" {
			t.Errorf("when it waits for nothing: %+v", got)
		}
		op.SetMessage("waits again")
		pass(r.Interval)
		op.Complete()
		if got := s.backups(t)[0].Status; got.Message != "" || got.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("in the end: %+v", got)
		}
	})
}

// TestPollerSaysWhatItWaitsFor has a Poller that waits, cannot be asked, waits for nothing any more, and completes.
func TestPollerSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		answers := []struct {
			done    int64
			err     error
			message string
		}{
			{10, fmt.Errorf("snapshot: %w", Waiting("waits for a slot of the array")), "waits for a slot of the array"},
			{0, errors.New("the storage is away"), "waits for a slot of the array"},
			{100, Waiting("waits for a checksum"), "waits for a checksum"}, // and so is not complete
			{20, nil, ""},
		}
		asked := make(chan struct{})
		op := r.BeginBackup(request)
		done := r.follow(op, func(ctx context.Context) (int64, int64, error) {
			select {
			case <-asked:
			case <-ctx.Done():
			}
			if len(answers) == 0 {
				return 0, 0, ErrCompleted
			}
			return answers[0].done, 100, answers[0].err
		}, nil)
		for len(answers) > 0 {
			asked <- struct{}{}
			pass(r.Interval)
			if got := s.backups(t)[0].Status; got.Message != answers[0].message || got.Phase != v1alpha1.PhaseInProgress {
				t.Errorf("%v: %+v", answers[0].err, got)
			}
			answers = answers[1:]
		}
		close(asked)
		<-done
		if got := s.backups(t)[0].Status; got.Message != "" || got.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("in the end: %+v", got)
		}
	})
}

// quickStorage makes volumes at once.
type quickStorage struct {
	volumesnapshotter.VolumeSnapshotter
}

func (quickStorage) CreateVolumeFromSnapshot(string, string, string, *int64) (string, error) {
	return "vol-9", nil
}

// TestDeafPollerHoldsNothingUp has a Poller that does not look at its ctx while the storage does not answer: the volume is there.
func TestDeafPollerHoldsNothingUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, _ *store, r *Recorder, _ *bytes.Buffer) {
		answer := make(chan struct{})
		defer close(answer)
		s := Wrap(quickStorage{}, r, WrapOptions{Restores: func(context.Context, string) (int64, int64, error) {
			<-answer
			return 0, 0, ErrCompleted
		}})
		begun := time.Now()
		id, err := s.CreateVolumeFromSnapshot("snap-1", "", "", nil)
		if took := time.Since(begun); id != "vol-9" || err != nil || took > 2*DefaultFlushTimeout {
			t.Errorf("%q, %v after %s", id, err, took)
		}
	})
}

// slowStorage makes a volume when it is told to.
type slowStorage struct {
	volumesnapshotter.VolumeSnapshotter
	goOn chan struct{}
}

func (s slowStorage) CreateVolumeFromSnapshot(string, string, string, *int64) (string, error) {
	<-s.goOn
	return "vol-9", nil
}

// TestAnEarlierRestoreOfTheSnapshotIsNotShown has a storage that goes on to tell of an earlier restore of the snapshot until the new one has begun.
func TestAnEarlierRestoreOfTheSnapshotIsNotShown(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		storage := slowStorage{goOn: make(chan struct{})}
		wrapped := Wrap(storage, r, WrapOptions{Restores: func(context.Context, string) (int64, int64, error) { return 100, 100, nil }})
		created := make(chan error)
		go func() {
			_, err := wrapped.CreateVolumeFromSnapshot("snap-1", "", "", nil)
			created <- err
		}()
		pass(3 * r.Interval)
		list := &v1alpha1.VolumePluginRestoreList{}
		if err := s.List(t.Context(), list); err != nil || len(list.Items) != 1 || list.Items[0].Status.Progress.BytesDone != 0 || list.Items[0].Status.Phase == v1alpha1.PhaseCompleted {
			t.Errorf("%v, %+v", err, list.Items)
		}
		close(storage.goOn)
		if err := <-created; err != nil {
			t.Error(err)
		}
	})
}

// TestTheNewVolumeOfARestoreIsAskedFor has a storage that tells of all volumes of a snapshot: an earlier one is complete, or has failed. The plugin's
// process ends before the new one is complete.
func TestTheNewVolumeOfARestoreIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, earlier := range map[string]error{"complete": ErrCompleted, "failed": ErrFailed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
				var done atomic.Int64
				options := WrapOptions{RestoresTo: func(_ context.Context, snapshotID, volumeID string) (int64, int64, error) {
					if snapshotID != "snap-1" || volumeID != "vol-9" {
						return 0, 0, earlier
					}
					return done.Load(), 100, nil
				}}
				status := func() v1alpha1.VolumePluginRestoreStatus {
					list := &v1alpha1.VolumePluginRestoreList{}
					if err := s.List(t.Context(), list); err != nil || len(list.Items) != 1 {
						t.Fatalf("%v, %d restores", err, len(list.Items))
					}
					return list.Items[0].Status
				}
				done.Store(40)
				if _, err := Wrap(quickStorage{}, r, options).CreateVolumeFromSnapshot("snap-1", "", "", nil); err != nil {
					t.Fatal(err)
				}
				pass(3 * r.Interval)
				if got := status(); got.Phase != v1alpha1.PhaseInProgress || got.Progress.BytesDone != 40 {
					t.Errorf("it is %+v", got)
				}
				r.Close(t.Context())
				next := New(t.Context(), Options{Plugin: plugin, Client: s, Namespace: namespace})
				defer next.Close(t.Context())
				next.ResumeWith(options)
				done.Store(70)
				pass(3 * r.Interval)
				if got := status(); got.Phase != v1alpha1.PhaseInProgress || got.Progress.BytesDone != 70 {
					t.Errorf("in the next process it is %+v", got)
				}
				done.Store(100)
				pass(3 * r.Interval)
				if got := status(); got.Phase != v1alpha1.PhaseCompleted {
					t.Errorf("in the end it is %+v", got)
				}
			})
		})
	}
}

func TestRestoreOfAKnownVolumeGoesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *store, r *Recorder, _ *bytes.Buffer) {
		req := RestoreRequest{SnapshotID: "snap-1", VolumeID: "vol-9", Backup: "nightly"}
		r.BeginRestore(req).Update(300, 1000)
		synctest.Wait()
		r.Close(t.Context())
		next := New(t.Context(), Options{Plugin: plugin, Client: s, Namespace: namespace})
		next.BeginRestore(req).Complete()
		next.Close(t.Context())
		list := &v1alpha1.VolumePluginRestoreList{}
		if err := s.List(t.Context(), list); err != nil || len(list.Items) != 1 || list.Items[0].Status.Progress.BytesDone != 1000 {
			t.Errorf("%v %+v", err, list.Items)
		}
	})
}

func TestNothingHappensWithoutAnAPIServer(t *testing.T) {
	log := &bytes.Buffer{}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	r := New(t.Context(), Options{Plugin: plugin, Log: slog.New(slog.NewTextHandler(log, nil))})
	for _, volume := range []string{"pv-1", "pv-2"} {
		op := r.BeginBackup(BackupRequest{Backup: "nightly", Volume: volume})
		op.Update(1, 2)
		op.Complete()
	}
	r.Resume(nil, nil)
	r.Close(t.Context())
	if got := strings.Count(log.String(), "not recorded"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, log)
	}
}
