// Package rig is the test rig of a node agent: a namespace with the objects of a Velero server, a node without kubelet, the
// agent as a process of its own, and two proxies, before the API server and before the S3 server, that make the faults of a
// network. The fault suite (test/faults) breaks one thing at a time with it, the generator of trouble (test/chaos) many.
//
// Everything is real but the faults: an API server, restic, kopia, an S3 server. A Fixture checks at the end of the test what
// must hold whatever broke: what a Velero server sees of each object (History), and that nothing is left behind.
package rig
