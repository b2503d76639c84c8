package main

import "time"

// serverLease is the Lease of restore controllers, in the namespace that they serve.
const serverLease = "plimsoll-restore-controller"

// The times of the restore controller's Lease. Who cannot renew it ends, and with it the Restore that it runs, so it is held as
// long as operators hold theirs to survive the restart of a single control plane (openshift/enhancements/CONVENTIONS.md on GitHub,
// "Handling kube-apiserver disruption"): 107 s, and 30 s more for clocks that do not agree. They try every 26 s.
// To try more often costs little with one Lease, and a controller that waits notices within seconds that the other has let go.
const (
	leaseDuration    = 137 * time.Second
	leaseRenewTime   = 107 * time.Second
	leaseRetryPeriod = 5 * time.Second
)
