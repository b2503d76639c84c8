package program

import (
	"fmt"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// NewManager returns a manager that serves metrics and probes on one port. With a lease, of several processes only its holder works;
// without one the process works at once.
func NewManager(cfg *rest.Config, options ctrl.Options, served HTTP, lease *Lease) (ctrl.Manager, error) {
	var err error
	if options.Metrics, err = served.Options(); err != nil {
		return nil, err
	}
	options.HealthProbeBindAddress = "0" // served with the metrics
	// A priority queue that is shut down while it hands out an item locks up its controller (kubernetes-sigs/controller-runtime#3538, in 0.24.1, not in
	// 0.25.0): the process would keep its lease until the time to stop is over.
	options.Controller.UsePriorityQueue = new(false)
	if lease != nil {
		options.LeaderElection = true
		options.LeaderElectionReleaseOnCancel = true // nothing works on after Start has returned
		if options.LeaderElectionResourceLockInterface, err = lease.lock(cfg); err != nil {
			return nil, err
		}
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return mgr, nil
}
