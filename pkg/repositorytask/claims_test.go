package repositorytask

import (
	"context"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// held is a data path that says when it begins with a volume, and ends with those of one namespace when it is told to.
type held struct {
	namespace string
	begun     chan struct{}
	release   chan struct{}
}

func newHeld(namespace string) held {
	return held{namespace, make(chan struct{}), make(chan struct{})}
}

func (h held) Verify(ctx context.Context, req uploader.VerifyRequest, _ progress.Sink) (uploader.VerifyResult, error) {
	if strings.HasSuffix(req.Repository.URL, "/"+h.namespace) {
		for _, step := range []chan struct{}{h.begun, h.release} {
			select {
			case step <- struct{}{}:
			case <-ctx.Done():
				return uploader.VerifyResult{}, context.Cause(ctx)
			}
		}
	}
	return uploader.VerifyResult{Files: 1, Bytes: 1}, nil
}

// together is a configuration in which a verification of a restic volume in namespace shop lasts as long as the test wants.
func (s *site) together() (Config, held) {
	cfg, h := s.measuring(), newHeld("shop")
	cfg.Verifiers = map[string]uploader.Verifier{"restic": h}
	cfg.Checkers = map[string]uploader.Checker{"restic": s.restic}
	cfg.Forgetters = map[string]uploader.Forgetter{"restic": s.restic}
	cfg.BusyDelay = 10 * time.Millisecond
	return cfg, h
}

// of makes a task about the latest backups in one namespace.
func (s *site) of(kind v1alpha1.RepositoryTaskType, namespace, name string) *v1alpha1.RepositoryTask {
	task := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: kind, Latest: true, Volume: &v1alpha1.PodVolumeSelector{Namespace: namespace}}}
	if kind == v1alpha1.TaskCheck {
		task.Spec.Latest, task.Spec.Backup = false, "nightly"
	}
	return task
}

// awaitQueued creates a task and waits until it says that another one is in the way.
func (s *site) awaitQueued(task *v1alpha1.RepositoryTask) *v1alpha1.RepositoryTaskStatus {
	s.t.Helper()
	s.Create(task)
	return s.untilQueued(task)
}

func (s *site) untilQueued(task *v1alpha1.RepositoryTask) *v1alpha1.RepositoryTaskStatus {
	s.t.Helper()
	return &testenv.EventuallyGet(s.Env, task, "a task that waits for another one", func(t *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && t.Status.Reason == v1alpha1.ReasonRepositoryBusy
	}).Status
}

func (s *site) completed(task *v1alpha1.RepositoryTask) {
	s.t.Helper()
	if status := s.ended(task).Status; status.Phase != v1alpha1.PhaseCompleted {
		s.t.Errorf("task %s: %+v", task.Name, status)
	}
}

// TestTasksTogether: while a volume is verified, tasks of other repositories run, and a measurement of the same one. A check of it waits, says for which
// task, takes no place meanwhile, and begins after that one.
func TestTasksTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "restic", "shop", "web-0")
	s.store(b, "restic", "bank", "db-0")
	cfg, shop := s.together()
	s.start(cfg)
	first := s.of(v1alpha1.TaskVerify, "shop", "first")
	s.Create(first)
	<-shop.begun
	s.completed(s.of(v1alpha1.TaskCheck, "bank", "elsewhere"))
	s.completed(s.of(v1alpha1.TaskUsage, "shop", "beside"))
	second := s.of(v1alpha1.TaskCheck, "shop", "second")
	status := s.awaitQueued(second)
	if status.Phase != "" || status.State != string(v1alpha1.StateQueued) || status.Attempts != 0 || status.StartTimestamp != nil ||
		status.Message != "it waits for its turn: task first works on the restic repository of namespace shop in BackupStorageLocation default" {
		t.Errorf("%+v", status)
	}
	s.Eventually("the Event", func() bool { return strings.Contains(s.events("second"), "task first works on the restic repository") })
	s.completed(s.of(v1alpha1.TaskUsage, "shop", "again"))
	if s.Get(second); second.Status.Phase != "" {
		t.Errorf("it has begun beside the first: %+v", second.Status)
	}
	<-shop.release
	if err := s.untilEnded(second); err != nil {
		t.Fatal(err)
	}
	s.Get(first)
	if status := &second.Status; status.Phase != v1alpha1.PhaseCompleted || status.Attempts != 1 || status.Reason != "" || status.StartTimestamp.Before(first.Status.CompletionTimestamp) {
		t.Errorf("%+v, and the first has ended at %s", status, first.Status.CompletionTimestamp)
	}
}

// TestReleasedWhenDone: a repository in which a task has nothing left to do is free for others.
func TestReleasedWhenDone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "restic", "bank", "db-0")
	s.store(b, "restic", "shop", "web-0")
	cfg, shop := s.together()
	s.start(cfg)
	both := s.task("both", "nightly")
	s.Create(both)
	<-shop.begun
	s.completed(s.of(v1alpha1.TaskCheck, "bank", "check"))
	if s.Get(both); both.Status.Phase != v1alpha1.PhaseInProgress {
		t.Errorf("%+v", both.Status)
	}
	<-shop.release
	if status := s.awaitEnd(both); status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", status)
	}
}

// TestOneRepositoryInTwoLocations: they lead to the same directory.
func TestOneRepositoryInTwoLocations(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	pvb := s.store(b, "restic", "shop", "web-0")
	s.Create(s.DirectoryLocation("other", s.dir))
	there := s.record(&velerov1.Backup{ObjectMeta: s.Meta("none")}, "restic", "shop", "web-1", pvb.Status.SnapshotID, velerov1.PodVolumeBackupPhaseCompleted)
	there.Spec.BackupStorageLocation = "other"
	s.update(there)
	cfg, shop := s.together()
	s.start(cfg)
	s.Create(s.task("first", "nightly"))
	<-shop.begun
	second := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("second"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: there.Name}}
	if status := s.awaitQueued(second); !strings.Contains(status.Message, "task first works on the restic repository of namespace shop in BackupStorageLocation other") {
		t.Errorf("%+v", status)
	}
	<-shop.release
	<-shop.begun
	<-shop.release
	if status := s.awaitEnd(second); status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("%+v", status)
	}
}

// TestOneAddressInTwoLocations: the BackupRepository of another location leads into the repository of the first, or both BackupRepositories lead to a third
// place.
func TestOneAddressInTwoLocations(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ first, other string }{
		"one is recorded":   {"", "/of-first/restic/shop"},
		"both are recorded": {"s3:https://host/bucket/restic/shop", "s3:https://host/bucket/restic/shop/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c := s.controller(s.config(), s.Client)
			for location, address := range map[string]string{"first": test.first, "other": test.other} {
				s.Create(s.DirectoryLocation(location, "/of-"+location))
				if address != "" {
					s.recordRepositoryAt(location, address)
				}
			}
			in := func(location, namespace string) []v1alpha1.RepositoryKey {
				return []v1alpha1.RepositoryKey{{BackupStorageLocation: location, VolumeNamespace: namespace, Uploader: "restic"}}
			}
			prune, check := c.newRun(&v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Name: "prune", UID: "1"}}), c.newRun(&v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Name: "check", UID: "2"}})
			prune.use, check.use = useChange, useJudge
			if err := prune.claim(t.Context(), in("first", "shop")); err != nil {
				t.Fatal(err)
			}
			if err := check.claim(t.Context(), in("other", "bank")); err != nil {
				t.Errorf("the repository of another namespace: %v", err)
			}
			if busy := asBusy(check.claim(t.Context(), in("other", "shop"))); busy == nil || busy.by.name != "prune" || busy.repository != in("other", "shop")[0] {
				t.Errorf("%+v", busy)
			}
			prune.releaseAll()
			if err := check.claim(t.Context(), in("other", "shop")); err != nil || len(check.claimed) != 2 {
				t.Errorf("%v, %v", check.claimed, err)
			}
		})
	}
}

// TestForgetPlansWhenItIsItsTurn: what is to go is decided when nobody else finds or removes something in the repository. A plan that changes nothing
// waits for nobody.
func TestForgetPlansWhenItIsItsTurn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	older := s.own("restic", "shop", "web-0", 2)
	s.own("restic", "shop", "web-0", 1)
	cfg, shop := s.together()
	s.start(cfg)
	s.Create(s.latest("first", ""))
	<-shop.begun
	plan := s.forgetTask("plan", 1, "")
	plan.Spec.Apply = false
	s.completed(plan)
	forget := s.forgetTask("forget", 1, plan.Status.Retention.Wave)
	if status := s.awaitQueued(forget); status.Retention != nil || len(status.Repositories) > 0 || !strings.Contains(status.Message, "task first works on") {
		t.Errorf("%+v", status)
	}
	s.Patch(older, `{"metadata": {"annotations": {"`+v1alpha1.AnnotationKeep+`": "true"}}}`)
	<-shop.release
	if status := s.awaitEnd(forget); status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonNotAcknowledged || s.snapshots("restic", "shop") != 2 {
		t.Errorf("%+v", status)
	}
}

// TestForgetPlansWithItsClaim: what somebody asks for before the task has the repository is in the plan.
func TestForgetPlansWithItsClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	older := s.own("restic", "shop", "web-0", 2)
	s.own("restic", "shop", "web-0", 1)
	task := s.forgetTask("forget", 1, "")
	s.Create(task)
	c := s.controller(s.forgetting(), s.Client)
	c.api = interceptor.NewClient(s.Client, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, claims := o.(*velerov1.BackupStorageLocation); claims {
				s.Patch(older, `{"metadata": {"annotations": {"`+v1alpha1.AnnotationKeep+`": "true"}}}`) //nolint:contextcheck // somebody else does it meanwhile
			}
			return w.Get(ctx, key, o, options...)
		},
	})
	r := c.newRun(task)
	r.kind, _ = kindOf(&task.Spec)
	plan, err := r.claimedPlan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if kept := plan.Volumes[0].Snapshots[1]; kept.PodVolumeBackup != older.Name || kept.Result != v1alpha1.RetentionKept || plan.Wave != "" || len(r.claimed) != 1 {
		t.Errorf("%+v", plan)
	}
}

// TestAttemptsOfTheQueued: a task whose process has ended has had an attempt, also if another task has its repository when the next process begins. One
// that has only waited has not.
func TestAttemptsOfTheQueued(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	pvb := s.store(s.backup("nightly"), "restic", "shop", "web-0")
	c := s.controller(s.config(), s.Client)
	c.repositories, c.events = NewRepositories(s.Client, s.Namespace), &events.FakeRecorder{}
	in := []v1alpha1.RepositoryKey{proof.RepositoryOf(pvb)}
	for name, test := range map[string]struct {
		before v1alpha1.RepositoryTaskStatus
		state  v1alpha1.State
		want   int32
	}{
		"new":    {v1alpha1.RepositoryTaskStatus{}, v1alpha1.StateQueued, 1},
		"killed": {inProgress(v1alpha1.StateTransferring, ""), v1alpha1.StateQueued, 2},
		"parked": {inProgress(v1alpha1.StateWaiting, v1alpha1.ReasonRepositoryUnavailable), v1alpha1.StateWaiting, 1},
	} {
		other := c.newRun(&v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "other"}})
		other.use = useJudge
		if err := other.claim(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		task := s.task(name, "nightly")
		s.Create(task)
		s.Change(task, func() { task.Status = test.before })
		for range 3 { // each time it is looked at again
			if result, err := c.reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(task)}); err != nil || result.RequeueAfter != c.cfg.BusyDelay {
				t.Fatalf("%s: %+v, %v", name, result, err)
			}
			if s.Get(task); task.Status.Reason != v1alpha1.ReasonRepositoryBusy || task.Status.State != string(test.state) || task.Status.Attempts != test.before.Attempts {
				t.Errorf("%s: %+v", name, task.Status)
			}
			delete(c.paused, task.UID)
		}
		other.releaseAll()
		if _, err := c.reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(task)}); err != nil {
			t.Fatal(err)
		}
		if s.Get(task); task.Status.Phase != v1alpha1.PhaseCompleted || task.Status.Attempts != test.want || len(c.claims.by) > 0 {
			t.Errorf("%s: %+v; left are %v", name, task.Status, c.claims.by)
		}
	}
}

func inProgress(state v1alpha1.State, reason v1alpha1.Reason) v1alpha1.RepositoryTaskStatus {
	status := v1alpha1.RepositoryTaskStatus{Attempts: 1, Reason: reason}
	status.Phase, status.State = v1alpha1.PhaseInProgress, string(state)
	return status
}

// TestOneMigrationAtATime: the copy of a Backup is about the repositories of many namespaces. A dry run only looks.
func TestOneMigrationAtATime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	c := s.controller(s.config(), s.Client)
	newRun := func(name, namespace string, dry bool) *run {
		task := s.migration(name)
		task.UID, task.Spec.DryRun = types.UID(name), dry
		r := c.newRun(task)
		r.kind, _ = kindOf(&task.Spec)
		r.backups = []velerov1.PodVolumeBackup{*s.record(b, "restic", namespace, name, name, velerov1.PodVolumeBackupPhaseCompleted)}
		return r
	}
	first, second, third := newRun("first", "shop", false), newRun("second", "bank", false), newRun("third", "shop", true)
	if err := first.claim(t.Context(), first.needs(first)); err != nil {
		t.Fatal(err)
	}
	if busy := asBusy(second.claim(t.Context(), second.needs(second))); busy == nil || !strings.Contains(busy.Error(), "task first migrates") {
		t.Errorf("%v", busy)
	}
	if busy := asBusy(third.claim(t.Context(), third.needs(third))); busy == nil || busy.repository.VolumeNamespace != "shop" {
		t.Errorf("%v", busy)
	}
	first.releaseAll()
	for _, r := range []*run{second, third} {
		if err := r.claim(t.Context(), r.needs(r)); err != nil {
			t.Error(err)
		}
	}
}

// TestClaims: of two tasks in one repository one at most judges or changes it, who gets not all gets nothing, and what is given back is free.
func TestClaims(t *testing.T) {
	t.Parallel()
	of := func(namespaces ...string) (all []wanted) {
		for _, namespace := range namespaces {
			key := v1alpha1.RepositoryKey{BackupStorageLocation: "default", VolumeNamespace: namespace, Uploader: "kopia"}
			all = append(all, wanted{key, []v1alpha1.RepositoryKey{key}})
		}
		return all
	}
	for _, test := range []struct {
		a, b   use
		beside bool
	}{
		{useLook, useLook, false},
		{useLook, useJudge, true},
		{useLook, useChange, false},
		{useJudge, useJudge, false},
		{useJudge, useChange, false},
		{useChange, useChange, false},
	} {
		for _, pair := range [][2]use{{test.a, test.b}, {test.b, test.a}} {
			var c claims
			err := c.take(claim{"1", "one", pair[0]}, of("shop"))
			if err != nil {
				t.Fatal(err)
			}
			if err = c.take(claim{"2", "two", pair[1]}, of("shop")); (err == nil) != test.beside {
				t.Errorf("%d beside %d: %v", pair[1], pair[0], err)
			}
		}
	}

	var c claims
	one, two := claim{"1", "one", useChange}, claim{"2", "two", useChange}
	if err := c.take(one, of("shop", "bank")); err != nil {
		t.Fatal(err)
	}
	busy := asBusy(c.take(two, of("mail", "shop")))
	if busy == nil || busy.by != one || !c.stands(busy) {
		t.Fatalf("%+v", busy)
	}
	c.keep("1", of("bank"))
	if c.stands(busy) || len(c.by) != 1 {
		t.Errorf("%v", c.by)
	}
	if err := c.take(two, of("mail", "shop")); err != nil {
		t.Error(err)
	}
	c.keep("2", nil)
	c.keep("1", nil)
	if len(c.by) != 0 {
		t.Errorf("%v", c.by)
	}
}

func TestNamesOf(t *testing.T) {
	t.Parallel()
	at := func(bucket, prefix string, config map[string]string) *velerov1.BackupStorageLocation {
		location := &velerov1.BackupStorageLocation{}
		location.Spec.Config, location.Spec.ObjectStorage = config, &velerov1.ObjectStorageLocation{Bucket: bucket, Prefix: prefix}
		return location
	}
	kopia, restic := v1alpha1.RepositoryKey{BackupStorageLocation: "a", VolumeNamespace: "shop", Uploader: "kopia"}, v1alpha1.RepositoryKey{BackupStorageLocation: "b", VolumeNamespace: "shop", Uploader: "restic"}
	other := kopia
	other.BackupStorageLocation = "b"
	elsewhere := map[string]string{"resticRepoPrefix": "rest:https://example.com/"}
	for name, test := range map[string]struct {
		a, b      v1alpha1.RepositoryKey
		atA, atB  *velerov1.BackupStorageLocation
		isTheSame bool
	}{
		"the same bucket":               {a: kopia, b: other, atA: at("backups", "/east/", nil), atB: at("backups", "east", map[string]string{"s3Url": "https://proxy"}), isTheSame: true},
		"another prefix":                {a: kopia, b: other, atA: at("backups", "east", nil), atB: at("backups", "west", nil)},
		"another data path":             {a: kopia, b: restic, atA: at("backups", "", nil), atB: at("backups", "", nil)},
		"another directory":             {a: kopia, b: other, atA: at("bucket", "", map[string]string{"fspath": "/a"}), atB: at("bucket", "", map[string]string{"fspath": "/b"})},
		"restic is not in the bucket":   {a: restic, b: v1alpha1.RepositoryKey{BackupStorageLocation: "a", VolumeNamespace: "shop", Uploader: "restic"}, atA: at("one", "", elsewhere), atB: at("two", "", elsewhere), isTheSame: true},
		"kopia is in the bucket always": {a: kopia, b: other, atA: at("one", "", elsewhere), atB: at("two", "", elsewhere)},
	} {
		a, b := namesOf(t.Context(), test.a, test.atA, ""), namesOf(t.Context(), test.b, test.atB, "")
		if a[0] != test.a || b[0] != test.b || (a[1] == b[1]) != test.isTheSame {
			t.Errorf("%s: %v and %v", name, a, b)
		}
	}
	if names := namesOf(t.Context(), kopia, nil, ""); len(names) != 1 {
		t.Errorf("of a location that does not exist: %v", names)
	}
}

// TestDecidedOneByOne: two tasks whose time has come at the same moment are not both deleted because each finds the other one's proof.
func TestDecidedOneByOne(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var c *Controller
	deleted := 0
	c = s.controller(s.config(), interceptor.NewClient(s.Client, interceptor.Funcs{
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if deleted++; c.reviewing.TryLock() {
				c.reviewing.Unlock()
				t.Error("another task may be deleted at the same time")
			}
			return w.Delete(ctx, o, options...)
		},
	}))
	task := s.task("old", "nightly")
	task.Spec.TTL = &metav1.Duration{Duration: time.Millisecond}
	s.Create(task)
	s.Change(task, func() {
		task.Status.Phase, task.Status.CompletionTimestamp = v1alpha1.PhaseCompleted, new(metav1.NewTime(time.Now().AddDate(0, -1, 0)))
	})
	s.Get(task)
	if _, err := c.expire(t.Context(), task); err != nil || deleted != 1 {
		t.Errorf("%d deleted: %v", deleted, err)
	}
}
