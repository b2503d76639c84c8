// Package chaos is a generator of trouble. From a seed it makes a volume, a data path, a place for the repository and a schedule
// of faults, runs a backup and a restore with them, and judges what came of it. `make chaos` runs it; docs/faults.md says what
// it covers.
//
// The judgment (oracle_test.go) is short: an operation is Completed if and only if the restored tree equals the source, or each
// difference is named in the object; bytes done never fall; every object ends; nothing is left in the volume.
//
// Everything is real but kubelet, as in the fault suite, whose rig it uses. What is random comes from the seed alone; faults
// strike at events (a write to the API server, a request to the store, a call of the file system), not at times, so that a
// seed plays the same again as far as the machine allows.
//
// The tests have the build tag chaos: they take minutes, or a night.
package chaos
