// Package describe shows people how far backups and restores are, and why: as text, and as values for JSON. It takes objects as
// they are and makes no requests, so that the same lines come from a live cluster, from a test and from a support archive.
//
// The model is in describe.go, operation.go, volume.go, record.go and view.go; print.go and text.go print it. Diagnosis says why something
// does not move, in explain*.go, what a backup would have, in preflight*.go, and whether the installation works, in doctor*.go.
package describe
