package locationlimit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func isBusy(err error) bool {
	_, ok := errors.AsType[*BusyError](err)
	return ok
}

// TestPlaces has many processes want the places of a location at a real API server: never more than the limit have one, and each gets its turn.
func TestPlaces(t *testing.T) {
	t.Parallel()
	env := testenv.New(t, testenv.Options{})
	client, err := coordinationv1.NewForConfig(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	const processes, places = 12, 3
	var have, most atomic.Int64
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() {
			l := New(client.Leases(env.Namespace))
			for {
				place, err := l.Take(t.Context(), "default", fmt.Sprintf("node-%d/uid", i), places)
				if isBusy(err) {
					<-time.After(10 * time.Millisecond)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := have.Add(1); n > places {
					t.Errorf("%d hold a place", n)
				} else if n > most.Load() {
					most.Store(n)
				}
				<-time.After(20 * time.Millisecond)
				have.Add(-1)
				place.Leave()
				return
			}
		})
	}
	all.Wait()
	if most.Load() < 2 {
		t.Errorf("at most %d had a place at the same time", most.Load())
	}
	l := New(client.Leases(env.Namespace))
	if free, err := l.Free(t.Context(), "default", 1); err != nil || free != 1 {
		t.Errorf("after all have left: %d, %v", free, err)
	}
}

// leases is an API server that has one Lease at most: a real one has no time of its own.
type leases struct {
	coordinationv1.LeaseInterface
	mu    sync.Mutex
	lease *coordination.Lease
}

func (l *leases) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordination.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease == nil {
		return nil, apierrors.NewNotFound(coordination.Resource("leases"), name)
	}
	return l.lease.DeepCopy(), nil
}

func (l *leases) Create(ctx context.Context, lease *coordination.Lease, _ metav1.CreateOptions) (*coordination.Lease, error) {
	return l.Update(ctx, lease, metav1.UpdateOptions{})
}

func (l *leases) Update(_ context.Context, lease *coordination.Lease, _ metav1.UpdateOptions) (*coordination.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease.DeepCopy()
	return lease, nil
}

// TestDeadHolder: the place of a process that was killed is free after two minutes, that of one that lives is not.
func TestDeadHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &leases{}
		lives, err := New(server).Take(t.Context(), "default", "lives", 2)
		if err != nil {
			t.Fatal(err)
		}
		defer lives.Leave()
		// One that was killed: nobody renews it.
		killed := New(server)
		if err := killed.change(t.Context(), "default", func(holders map[string]string) error { holders["killed"] = now(); return nil }); err != nil {
			t.Fatal(err)
		}
		l := New(server)
		waited := time.Now()
		for {
			place, err := l.Take(t.Context(), "default", "waits", 2)
			if err == nil {
				defer place.Leave()
				break
			}
			if !isBusy(err) || time.Since(waited) > time.Hour {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second)
		}
		if took := time.Since(waited); took < expiry || took > expiry+30*time.Second {
			t.Errorf("the place of a dead process was free after %s", took)
		}
		if free, err := l.Free(t.Context(), "default", 2); err != nil || free != 0 {
			t.Errorf("beside one that lives and the new one: %d, %v", free, err)
		}
	})
}

// TestStrangeLease: what somebody has written into the Lease by hand does not hold data back.
func TestStrangeLease(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"?", "null", `["a"]`} {
		server := &leases{lease: &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName("default"), Annotations: map[string]string{annotationHolders: text}}}}
		if free, err := New(server).Free(t.Context(), "default", 1); err != nil || free != 1 {
			t.Errorf("%s: %d, %v", text, free, err)
		}
	}
	l := New(&leases{lease: &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName("default"), Annotations: map[string]string{annotationHolders: "null"}}}})
	place, err := l.Take(t.Context(), "default", "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if _, err := l.Take(t.Context(), "default", "b", 1); !errors.As(err, &busy) || busy.Places != 1 || busy.Holders[0] != "a" {
		t.Errorf("%v", err)
	}
	if again, err := l.Take(context.WithoutCancel(t.Context()), "default", "a", 1); err != nil { // an agent that was restarted at once
		t.Errorf("the holder itself: %v", err)
	} else {
		again.Leave()
	}
	place.Leave()
}
