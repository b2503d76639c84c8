package parts

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// Kubectl returns the absolute path of kubectl, in the version of the control plane's API server.
func Kubectl(tb testing.TB) string {
	tb.Helper()
	path, err := find(filepath.Join("controlplane", "kubectl"), "make bin/controlplane/kubectl")
	need(tb, err)
	return path
}

// VeleroStore returns the absolute path of velero-store, Velero's own code for backup stores.
func VeleroStore(tb testing.TB) string {
	tb.Helper()
	Slow(tb)
	path, err := find("velero-store", "make bin/velero-store")
	need(tb, err)
	return path
}

// Helm returns the absolute path of helm.
func Helm(tb testing.TB) string {
	tb.Helper()
	path, err := find("helm", "make bin/helm")
	need(tb, err)
	return path
}

// Prometheus returns the path of a program of Debian's package prometheus: that itself, or promtool.
func Prometheus(tb testing.TB, program string) string {
	tb.Helper()
	Slow(tb)
	path, err := exec.LookPath(program)
	if err != nil {
		err = fmt.Errorf("%s: %w (apt-get install prometheus)", program, ErrMissing)
	}
	need(tb, err)
	return path
}

// Chromium returns the absolute path of Debian's Chromium, a browser.
func Chromium(tb testing.TB) string {
	tb.Helper()
	Slow(tb)
	path, err := exec.LookPath("chromium")
	if err != nil {
		err = fmt.Errorf("chromium: %w (apt-get install chromium)", ErrMissing)
	}
	need(tb, err)
	return path
}
