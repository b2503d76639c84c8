// Package progress turns what a data path says into what people are told.
//
// A data path reports a Reading whenever it likes. A Tracker keeps the latest one and makes a Snapshot of it on
// demand: bytes that never fall, a total that is never below them, a rate over a sliding window, an ETA only where one
// can be known, and a state that tells a stalled operation from a slow one. A Reporter publishes Snapshots on a timer,
// so that a silent data path is still reported.
//
// The package keeps a constant amount of memory for each operation, however long it runs. It knows nothing of
// Kubernetes, of restic or of kopia.
package progress
