package parts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestResticRunsInTheVersionAsked(t *testing.T) {
	t.Parallel()
	versions := ResticVersions(t)
	if !slices.Contains(versions, DefaultRestic) {
		t.Errorf("default %s is none of %v", DefaultRestic, versions)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), Restic(t, version), "version").Output()
			if err != nil {
				t.Fatal(err)
			}
			if want := "restic " + version + " "; !strings.HasPrefix(string(out), want) {
				t.Errorf("version says %q, want %q", out, want)
			}
		})
	}
}

func TestControlPlaneFromEnvironment(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	writeFile(t, filepath.Join(dir, "etcd"), 0o755)
	if _, err := FindControlPlane(); !errors.Is(err, ErrMissing) {
		t.Errorf("without kube-apiserver: got %v, want ErrMissing", err)
	}
	writeFile(t, filepath.Join(dir, "kube-apiserver"), 0o644)
	if _, err := FindControlPlane(); err == nil || errors.Is(err, ErrMissing) {
		t.Errorf("kube-apiserver is no program: got %v, want an error that is not ErrMissing", err)
	}
	if err := os.Chmod(filepath.Join(dir, "kube-apiserver"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := FindControlPlane(); err != nil || got != dir {
		t.Errorf("got %q, %v; want %q", got, err, dir)
	}
}

func TestMissingPart(t *testing.T) {
	tests := map[string]struct {
		ci            string
		skips, failed bool
	}{
		"skips on a developer's machine": {ci: "", skips: true},
		"fails in CI":                    {ci: "true", failed: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CI", tt.ci)
			rec := &recorder{TB: t}
			_, err := FindRestic("0.0.0")
			rec.run(func() { need(rec, err) })
			if rec.skipped != tt.skips || rec.failed != tt.failed {
				t.Errorf("skipped %v, failed %v; want %v, %v", rec.skipped, rec.failed, tt.skips, tt.failed)
			}
			if want := "run: make bin/restic-0.0.0"; !strings.Contains(rec.message, want) {
				t.Errorf("message %q does not say %q", rec.message, want)
			}
		})
	}
}

func TestOutsideOfTheRepository(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := FindRestic(DefaultRestic); err == nil || !strings.Contains(err.Error(), "no go.mod") {
		t.Errorf("got %v, want an error that says there is no go.mod", err)
	}
}

func TestSlow(t *testing.T) {
	t.Parallel()
	rec := &recorder{TB: t}
	rec.run(func() { Slow(rec) })
	if rec.skipped != testing.Short() || rec.failed {
		t.Errorf("skipped %v, failed %v; want %v, false", rec.skipped, rec.failed, testing.Short())
	}
}

// recorder notes how a test would have ended.
type recorder struct {
	testing.TB
	skipped, failed bool
	message         string
}

func (r *recorder) Skip(args ...any)  { r.skipped = true; r.end(args) }
func (r *recorder) Fatal(args ...any) { r.failed = true; r.end(args) }

func (r *recorder) end(args []any) {
	for _, a := range args {
		if err, ok := a.(error); ok {
			r.message += err.Error()
		}
	}
	panic(r)
}

func (r *recorder) run(f func()) {
	defer func() {
		if p := recover(); p != nil && p != r {
			panic(p)
		}
	}()
	f()
}

func writeFile(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, nil, mode); err != nil {
		t.Fatal(err)
	}
}
