package testenv

import (
	"context"
	"sync"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// StartManager runs a manager, to which setUp adds controllers, until the test or stop ends it. It serves no metrics, and
// its client does what Intercept says. The context of setUp is the manager's.
func (e *Env) StartManager(o ctrl.Options, setUp func(ctx context.Context, mgr ctrl.Manager) error) (stop func()) {
	e.T.Helper()
	o.Scheme, o.NewClient = e.Scheme, e.newClient
	o.Metrics.BindAddress = "0"
	o.Controller.SkipNameValidation = new(true) // one process has many of the same name
	o.Controller.UsePriorityQueue = new(false)  // as in our programs (program.NewManager)
	mgr, err := ctrl.NewManager(e.Config, o)
	if err != nil {
		e.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(e.Context())
	if err := setUp(ctx, mgr); err != nil {
		cancel()
		e.T.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := mgr.Start(ctx)
		switch {
		case e.ManagerEnded != nil:
			e.ManagerEnded(err)
		case err != nil:
			e.T.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	e.T.Cleanup(stop)
	return stop
}

// newClient returns the client of a manager, whose calls the test may change.
func (e *Env) newClient(config *rest.Config, options client.Options) (client.Client, error) {
	direct, err := client.NewWithWatch(config, options)
	if err != nil {
		return nil, err
	}
	return interceptor.NewClient(direct, e.Intercept), nil
}
