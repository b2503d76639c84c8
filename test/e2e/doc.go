// Package e2e is the end-to-end suite: the image of the node agent, installed from deploy/ into a real cluster of two
// nodes or more, backs up and restores the volumes of real pods. `make e2e` runs it; docs/testing.md says on what.
//
// In TestEndToEnd all is real but the Velero server: velero_test.go makes the objects that it would make, also those of
// servers that still make backups with restic. TestBesideVelero has a real server, TestMigrate servers and node agents of two
// versions. Four images are needed: that of the node agent, one with each Velero server, and one with an S3 server and the
// program in workload/, which makes volumes, compares them, and does what has to be done on a node.
//
// A test has many steps, which build on each other: what the first one installs, the last one uninstalls.
//
// The tests have the build tag e2e: they need a cluster in which they may install into namespace velero.
package e2e
