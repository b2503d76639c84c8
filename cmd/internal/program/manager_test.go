package program_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
)

// TestBusyManagerStops: a manager ends when it is told to, whatever its controllers have in their queues.
func TestBusyManagerStops(t *testing.T) {
	t.Parallel()
	for range 50 {
		startAndStop(t)
	}
}

// startAndStop runs a manager whose controller always has something to do, and stops it in the midst of that.
func startAndStop(t *testing.T) {
	t.Helper()
	options := ctrl.Options{GracefulShutdownTimeout: new(20 * time.Second)}
	options.Controller.SkipNameValidation = new(true) // each round has one of the same name
	mgr, err := program.NewManager(&rest.Config{Host: "127.0.0.1:1"}, options, program.HTTP{Address: "0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	queue := make(chan workqueue.TypedRateLimitingInterface[reconcile.Request], 1)
	feed := func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue <- q
		return nil
	}
	var n atomic.Int64
	add := func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) int64 {
		next := n.Add(1)
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: strconv.FormatInt(next, 10)}})
		return next
	}
	busy := make(chan struct{})
	var q workqueue.TypedRateLimitingInterface[reconcile.Request]
	work := func(context.Context, reconcile.Request) (reconcile.Result, error) {
		<-busy
		if add(q) == 1000 {
			stop()
		}
		return reconcile.Result{}, nil
	}
	c, err := controller.New("busy", mgr, controller.Options{MaxConcurrentReconciles: 20, Reconciler: reconcile.Func(work)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Watch(source.Func(feed)); err != nil {
		t.Fatal(err)
	}
	go func() {
		q = <-queue
		for range 20 {
			add(q)
		}
		close(busy)
	}()
	if err := mgr.Start(ctx); err != nil {
		t.Fatal(err)
	}
}
