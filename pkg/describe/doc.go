// Package describe shows people how far backups and restores are: as text, and as values for JSON. It takes objects as they
// are and asks nobody, so that the same lines come from a live cluster, from a test and from a support archive.
package describe
