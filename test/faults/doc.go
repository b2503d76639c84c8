// Package faults is the fault suite: it breaks one thing at a time around a node agent that works, and looks whether each
// operation still reaches its true end. `make test-faults` runs it; docs/faults.md says what each row of its table means.
//
// Everything is real but the faults: an API server, restic, kopia, an S3 server, and the node agent as a process of its
// own, built with the race detector. The proxies of package rig make the faults of a network; signals,
// cgroups and file systems make the others. A program is faked only where the real one cannot be brought
// to misbehave.
//
// A case is a test that begins with newRow and newFixture. The fixture (package rig) checks at the end what must hold whatever broke:
// what a Velero server sees of each object (history), and that nothing is left behind (leftovers).
//
// The tests have the build tag faults: they take minutes.
package faults
