package podvolume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
)

// bench is a node whose repositories open or not as a test says. Time is that of synctest.
type bench struct {
	*uploadertest.Fake
	env *Environment

	mu       sync.Mutex
	password string
	away     error         // of all that open a repository; nil: they open
	takes    time.Duration // to open one
	opens    []time.Time
	now, max int // how many open one at the same time
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{Fake: uploadertest.NewFake(t.TempDir()), password: "secret"}
	b.env = &Environment{Config: Config{
		Namespace: "velero", ProgressInterval: 100_000 * time.Hour, BackupTimeout: 4 * time.Hour,
		Uploaders: map[string]uploader.Uploader{"kopia": b},
	}, events: events.NewFakeRecorder(1000), patientAPI: patientReader{b, defaultReadDelay}}
	b.env.SetDefaults()
	b.env.resolver = &repository.Resolver{Secrets: repository.SecretReaderFunc(b.env.secret)}
	return b
}

// Get reads a BackupStorageLocation or the Secret with the password.
func (b *bench) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch o := object.(type) {
	case *velerov1.BackupStorageLocation:
		o.Name, o.Namespace = key.Name, key.Namespace
		o.Spec = velerov1.BackupStorageLocationSpec{
			Provider: "velero.io/fs", Config: map[string]string{"fspath": "/" + key.Name},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		}
	case *corev1.Secret:
		o.Data = map[string][]byte{"repository-password": []byte(b.password)}
	}
	return nil
}

// List finds nothing.
func (b *bench) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// Open is that of the data path.
func (b *bench) Open(ctx context.Context, _ uploader.Repository) error {
	b.mu.Lock()
	b.opens = append(b.opens, time.Now())
	b.now++
	b.max = max(b.max, b.now)
	takes := b.takes
	b.mu.Unlock()
	var err error
	if takes > 0 {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now--
	if err == nil {
		err = b.away
	}
	return err
}

func (b *bench) set(away error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = away
}

// operation returns one whose attempt has come to its repository.
func (b *bench) operation(ctx context.Context, t *testing.T, location, namespace string) *Operation {
	t.Helper()
	op := NewOperation(b.env, FromBackup(&velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{
		BackupStorageLocation: location, UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: namespace},
	}}), func(error) {})
	op.claimed = true
	op.tracker.Begin(op.attempt)
	repo, err := op.repository(ctx)
	if err != nil {
		t.Fatal(err)
	}
	op.repositoryKey = keyOf(repo)
	return op
}

// lose lets the breaker of the operation's repository open.
func (b *bench) lose(ctx context.Context, op *Operation, err error) {
	b.set(err)
	for range failedConnects {
		op.learnFrom(ctx, err)
	}
}

var errAway = errors.New("dial tcp 192.0.2.1:443: connect: connection refused")

// However many volumes wait for the repositories of a location, one tries to open one, ever more seldom, and all go on when one can.
func TestVolumesWaitForTheirRepository(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var ended sync.WaitGroup
		for _, namespace := range []string{"shop", "wiki"} {
			b.lose(t.Context(), b.operation(t.Context(), t, "default", namespace), errAway)
			for range 50 {
				op := b.operation(t.Context(), t, "default", namespace)
				if o, _ := b.env.breakers.outage(op.repositoryKey); !o.open() {
					t.Fatal("the volumes do not wait")
				}
				ended.Go(func() {
					if err := op.waitForRepository(t.Context()); err != nil || op.attempt != 1 || !op.sameAttempt {
						t.Errorf("attempt %d, %v", op.attempt, err)
					}
				})
			}
		}
		b.mu.Lock()
		b.opens, b.max, b.takes = nil, 0, time.Second
		b.mu.Unlock()
		begin := time.Now()
		synctest.Wait()
		if n := b.env.UnavailableRepositories(); n != 2 {
			t.Errorf("%d repositories are waited for", n)
		}
		<-time.After(time.Hour)
		if n := len(b.opens); n < 2*12 || n > 2*18 || b.max != 1 {
			t.Errorf("the two were opened %d times in an hour, %d at the same time", n, b.max)
		}
		if first := b.opens[0].Sub(begin); first != 10*time.Second {
			t.Errorf("opened after %s first", first)
		}
		b.set(nil)
		back := time.Now()
		ended.Wait()
		if took := time.Since(back); took > maxProbePause+2*time.Second {
			t.Errorf("they went on %s after the storage was back", took)
		}
		if n := b.env.UnavailableRepositories(); n != 0 {
			t.Errorf("%d repositories are waited for", n)
		}
	})
}

// The wait ends when the server's does, and what somebody has to correct earlier.
func TestWaitForARepositoryEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err     error
		timeout time.Duration
		want    time.Duration
		reason  v1alpha1.Reason
	}{
		"away":           {errAway, 4 * time.Hour, 4 * time.Hour, v1alpha1.ReasonRepositoryUnavailable},
		"wrong password": {fmt.Errorf("kopia open: %w", uploader.ErrWrongPassword), 4 * time.Hour, 30 * time.Minute, v1alpha1.ReasonWrongPassword},
		"no timeout":     {errAway, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.env.BackupTimeout = tc.timeout
				op := b.operation(t.Context(), t, "default", "shop")
				b.lose(t.Context(), op, tc.err)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 1000*time.Hour, ErrCanceled)
				defer cancel()
				begin := time.Now()
				err := op.waitForRepository(ctx)
				took := time.Since(begin)
				if tc.want == 0 {
					if !errors.Is(err, ErrCanceled) || took != 1000*time.Hour {
						t.Errorf("ended after %s: %v", took, err)
					}
					return
				}
				if took < tc.want || took > tc.want+maxProbePause || !errors.Is(err, tc.err) {
					t.Errorf("ended after %s: %v", took, err)
				}
				if failed := classify(err); failed.reason != tc.reason || !failed.final {
					t.Errorf("reason %s, final %v", failed.reason, failed.final)
				}
			})
		})
	}
}

// Whoever waits shows where, since when, why and for how long; whoever tries to open the repository ends at once, too.
func TestCanceledWhileItsRepositoryIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		op := b.operation(t.Context(), t, "offsite", "shop")
		b.lose(t.Context(), op, errAway)
		b.takes = time.Minute
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- op.waitForRepository(ctx) }()
		<-time.After(5 * time.Second)
		s := op.tracker.Snapshot()
		want := fmt.Sprintf("the kopia repository of namespace shop in location offsite has not opened since %s, next try %s: connection refused",
			began.UTC().Format(time.RFC3339), began.Add(10*time.Second).UTC().Format(time.RFC3339))
		if s.State != progress.StateWaiting || s.Reason != v1alpha1.ReasonRepositoryUnavailable || s.Message != want || !s.Uncounted {
			t.Errorf("it shows %+v", s)
		}
		if note := <-b.env.events.(*events.FakeRecorder).Events; !strings.Contains(note, v1alpha1.EventWaiting) || !strings.Contains(note, errAway.Error()) {
			t.Errorf("Event %q", note)
		}
		<-time.After(20 * time.Second) // it opens the repository now
		cancel(ErrCanceled)
		canceled := time.Now()
		if err := <-ended; !errors.Is(err, ErrCanceled) || time.Since(canceled) != 0 || b.now != 0 {
			t.Errorf("ended %s after it was canceled: %v", time.Since(canceled), err)
		}
		if o, _ := b.env.breakers.outage(op.repositoryKey); o.failures != failedConnects {
			t.Errorf("%d failures: a canceled try says nothing", o.failures)
		}
	})
}

// Another password is another chance, for the volumes that wait already, too.
func TestCorrectedPassword(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		op, second := b.operation(t.Context(), t, "default", "shop"), b.operation(t.Context(), t, "default", "shop")
		b.lose(t.Context(), op, uploader.ErrWrongPassword)
		ended := make(chan error, 2)
		for _, waiting := range []*Operation{op, second} {
			go func() { ended <- waiting.waitForRepository(t.Context()) }()
		}
		<-time.After(time.Second)
		b.mu.Lock()
		b.password, b.away = "corrected", nil
		b.mu.Unlock()
		third := b.operation(t.Context(), t, "default", "shop")
		repo, err := third.repository(t.Context())
		if err == nil {
			err = third.reach(t.Context(), repo)
		}
		if err != nil {
			t.Errorf("a volume that begins now waits: %v", err)
		}
		began := time.Now()
		third.learnFrom(t.Context(), nil) // its attempt has succeeded
		for range 2 {
			if err := <-ended; err != nil || time.Since(began) != 0 {
				t.Errorf("went on after %s, %v", time.Since(began), err)
			}
		}
	})
}

// Only a repository that does not open lets its volumes wait.
func TestWhatFailsAVolumeOnly(t *testing.T) {
	t.Parallel()
	broken := errors.New("pack 1234abcd: does not have the wanted blob")
	for name, tc := range map[string]struct {
		err  error // of the attempts
		away error // of opening the repository
		open bool
	}{
		"data of one volume":    {broken, nil, false},
		"storage away":          {broken, errAway, true},
		"idle, storage away":    {retryable(v1alpha1.ReasonIdle, errIdle), errAway, true},
		"wrong password":        {uploader.ErrWrongPassword, uploader.ErrWrongPassword, true},
		"no repository":         {uploader.ErrRepositoryNotFound, uploader.ErrRepositoryNotFound, false},
		"not to be created":     {broken, uploader.ErrRepositoryNotFound, false},
		"no bucket":             {broken, fmt.Errorf("%w: NoSuchBucket", uploader.ErrRepositoryNotFound), true},
		"locked":                {&uploader.LockedError{Err: uploader.ErrRepositoryLocked}, errAway, false},
		"volume's file system":  {uploader.ErrVolumeIO, errAway, false},
		"full":                  {uploader.ErrNoSpace, errAway, false},
		"API server":            {unansweredError{broken}, errAway, false},
		"has not come to it":    {parkedError{broken}, errAway, false},
		"completed in between":  {nil, nil, false},
		"snapshot not found":    {uploader.ErrSnapshotNotFound, errAway, false},
		"killed for its memory": {retryable(v1alpha1.ReasonOutOfMemory, broken), errAway, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.set(tc.away)
			op := b.operation(t.Context(), t, "default", "shop")
			for range 2 * failedConnects {
				op.learnFrom(t.Context(), tc.err)
			}
			if o, _ := b.env.breakers.outage(op.repositoryKey); o.open() != tc.open {
				t.Errorf("after %d failures the volumes wait: %v", o.failures, o.open())
			}
			op.learnFrom(t.Context(), broken)
			b.set(nil)
			op.learnFrom(t.Context(), broken)
			if _, away := b.env.breakers.outage(op.repositoryKey); away {
				t.Error("the repository opens, and its failures still count")
			}
		})
	}
}

// What does not answer at all holds the slot of an attempt for a minute, and a try without a slot for as long as --resource-timeout.
func TestRepositoryThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.takes = 5 * time.Minute
		op := b.operation(t.Context(), t, "default", "shop")
		for range failedConnects {
			began := time.Now()
			op.learnFrom(t.Context(), errors.New("retried for too long"))
			if held := time.Since(began); held > confirmTimeout {
				t.Errorf("held the slot for %s", held)
			}
		}
		began := time.Now()
		if err := op.waitForRepository(t.Context()); err != nil || time.Since(began) > 6*time.Minute {
			t.Errorf("a repository that opens slowly opened after %s: %v", time.Since(began), err)
		}
	})
}

// A name that nobody knows says nothing: restic and kopia use another one for AWS.
func TestUnknownNameIsNoOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	op := b.operation(t.Context(), t, "default", "shop")
	repo := uploader.Repository{URL: "s3:https://s3-nowhere.invalid/bucket/restic/shop"}
	if err := op.reach(t.Context(), repo); err != nil {
		t.Errorf("it opens, and is not reached: %v", err)
	}
	b.set(fmt.Errorf("restic cat: %w", uploader.ErrRepositoryNotFound))
	if err := op.reach(t.Context(), repo); err != nil {
		t.Errorf("it is not there yet, and is not reached: %v", err)
	}
	b.set(fmt.Errorf("restic cat: %w", uploader.ErrWrongPassword))
	if err := op.reach(t.Context(), repo); err != nil {
		t.Errorf("its password is wrong, and it is said to be away: %v", err)
	}
	b.set(errors.New("no such host"))
	if err := op.reach(t.Context(), repo); !isParked(err) {
		t.Errorf("it does not open: %v", err)
	}
}

// The address of a repository has names that somebody has chosen, and is no cause.
func TestMissingRepositoryWithAStrangeName(t *testing.T) {
	t.Parallel()
	repo := uploader.Repository{URL: "s3:https://s3.example.com/backups-140312345678/restic/certificates"}
	for says, want := range map[string]bool{
		"Fatal: repository does not exist: unable to open config file: Stat: The specified key does not exist. Is there a repository at the following location?; " + repo.URL: true,
		"Fatal: unable to open config file: Stat: Access Denied. Is there a repository at the following location?; " + repo.URL:                                               false,
		"Fatal: unable to open config file: Stat: The specified bucket does not exist. Is there a repository at the following location?; " + repo.URL:                         false,
	} {
		if got := isMissing(fmt.Errorf("restic cat: %w: %s", uploader.ErrRepositoryNotFound, says), repo); got != want {
			t.Errorf("%s: %v", says, got)
		}
	}
}

// A probe that finds no location or Secret just now ends nobody's wait; and what was long ago says nothing.
func TestProbeWithoutALocation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		op := b.operation(t.Context(), t, "default", "shop")
		b.lose(t.Context(), op, errAway)
		b.mu.Lock()
		b.password = "" // Velero's Secret is being replaced
		b.mu.Unlock()
		ended := make(chan error, 1)
		go func() { ended <- op.waitForRepository(t.Context()) }()
		<-time.After(30 * time.Minute)
		select {
		case err := <-ended:
			t.Fatalf("the wait has ended: %v", err)
		default:
		}
		b.mu.Lock()
		b.password, b.away = "secret", nil
		b.mu.Unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}

		b.lose(t.Context(), op, errAway)
		<-time.After(outageMemory + time.Minute)
		if o, ok := b.env.breakers.outage(op.repositoryKey); ok {
			t.Errorf("after an hour: %+v", o)
		}
		if err := op.waitForRepository(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
