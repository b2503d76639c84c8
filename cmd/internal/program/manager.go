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
