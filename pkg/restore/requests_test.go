package restore

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// requests are what an engine has sent, such as "GET /api/v1/namespaces/a".
type requests struct {
	mu      sync.Mutex
	counts  map[string]int
	changed chan struct{}
}

// watchRequests notes what engines send that are made after this.
func (a *attempt) watchRequests() *requests {
	r := &requests{counts: map[string]int{}, changed: make(chan struct{})}
	a.config.REST = rest.CopyConfig(a.config.REST)
	a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			r.add(request.Method + " " + request.URL.Path)
			return next.RoundTrip(request)
		})
	})
	return r
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (r *requests) add(request string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[request]++
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *requests) count(request string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[request]
}

// await waits until a request was sent so many times, and returns false if ctx ends before.
func (r *requests) await(ctx context.Context, request string, times int) bool {
	for {
		r.mu.Lock()
		enough, changed := r.counts[request] >= times, r.changed
		r.mu.Unlock()
		if enough {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// finalizeNamespace plays the controller that ends a namespace's deletion.
func (a *attempt) finalizeNamespace(ctx context.Context, name string) error {
	namespace, err := a.resource("namespaces").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	unstructured.RemoveNestedField(namespace.Object, "spec", "finalizers")
	_, err = a.resource("namespaces").Update(ctx, namespace, metav1.UpdateOptions{}, "finalize")
	return err
}

// TestRequestsAreBounded restores with as many requests in flight as it has workers, and at no rate of its own.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.config.Concurrency = 3
	var files []archived
	for i := range 60 {
		files = append(files, configMap(a.id, fmt.Sprintf("c%d", i), ""))
	}
	a.backup(files...)
	a.config.REST = rest.CopyConfig(a.config.REST)
	a.config.REST.QPS = 0
	var inFlight, most atomic.Int32
	a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			now := inFlight.Add(1)
			defer inFlight.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			return next.RoundTrip(r)
		})
	})
	e := a.engine()
	if _, err := a.collect(e).RestoreItems(t.Context(), a.report); err != nil {
		t.Fatal(err)
	}
	if most.Load() > 3 {
		t.Errorf("%d requests at the same time", most.Load())
	}
	if limit := e.config.REST.QPS; limit >= 0 {
		t.Errorf("limit of %v requests per second; client-go makes 5 of 0", limit)
	}
}
