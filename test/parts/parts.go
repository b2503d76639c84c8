// Package parts finds the real programs that tests and the demo run: restic, kopia, an S3 server, Velero's CLI,
// etcd with kube-apiserver, the node agent.
//
// They are built by make into bin/ of the repository. A test whose part is missing is skipped with the command that
// makes it, and fails where the variable CI is true. No other package skips tests for a missing part. With -short only one version of
// restic runs, and tests are skipped whose part takes long to build and is not what other tests stand on: see Slow.
package parts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// DefaultRestic is the version of restic that is used where the version does not matter. The Makefile reads this line.
const DefaultRestic = "0.18.1"

// ErrMissing is wrapped by the errors of this package for a part that has not been built.
var ErrMissing = errors.New("not built yet")

// Restic returns the absolute path of restic in the version. A test with another one than DefaultRestic is Slow.
func Restic(tb testing.TB, version string) string {
	tb.Helper()
	if version != DefaultRestic {
		Slow(tb)
	}
	path, err := FindRestic(version)
	need(tb, err)
	return path
}

// Slow skips a test that only `make test-all` runs, and CI with it: what `make test` leaves out with -short is what calls this.
// It is for tests that take long or need a part that nothing else needs, and never for the only test that a backup or restore
// which lost data does not look like success.
func Slow(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("make test-all runs it")
	}
}

// ResticVersions returns the versions of restic that the tests run: with -short the default one, otherwise one for each folder
// in tools/restic.
func ResticVersions(tb testing.TB) []string {
	tb.Helper()
	if testing.Short() {
		return []string{DefaultRestic}
	}
	versions, err := FindResticVersions()
	need(tb, err)
	return versions
}

// Kopia returns the absolute path of the kopia program, in the version of the library that we are built with.
func Kopia(tb testing.TB) string {
	tb.Helper()
	Slow(tb)
	path, err := FindKopia()
	need(tb, err)
	return path
}

// KopiaWorker returns the absolute path of the program that works with kopia, as make has built it last. The tests of pkg/uploader/kopia are
// such a worker themselves, with the race detector.
func KopiaWorker(tb testing.TB) string {
	tb.Helper()
	path, err := FindKopiaWorker()
	need(tb, err)
	return path
}

// S3Server returns the absolute path of versitygw. Package test/s3 starts it.
func S3Server(tb testing.TB) string {
	tb.Helper()
	path, err := find("versitygw", "make bin/versitygw")
	need(tb, err)
	return path
}

// Velero returns the absolute path of Velero's program: its commands, and its server.
func Velero(tb testing.TB) string {
	tb.Helper()
	Slow(tb)
	path, err := find("velero", "make bin/velero")
	need(tb, err)
	return path
}

// Velero116 returns the absolute path of the program of Velero 1.16, the last one that makes backups with restic.
func Velero116(tb testing.TB) string {
	tb.Helper()
	Slow(tb)
	path, err := find("velero-1.16", "make bin/velero-1.16")
	need(tb, err)
	return path
}

// VeleroPluginForAWS returns the absolute path of Velero's object store plugin for S3.
func VeleroPluginForAWS(tb testing.TB) string {
	tb.Helper()
	Slow(tb)
	path, err := find("velero-plugin-for-aws", "make bin/velero-plugin-for-aws")
	need(tb, err)
	return path
}

// ControlPlane returns the absolute path of the folder that holds etcd and kube-apiserver.
func ControlPlane(tb testing.TB) string {
	tb.Helper()
	dir, err := FindControlPlane()
	need(tb, err)
	return dir
}

// NodeAgent builds our node agent and its kopia worker, which takes seconds where nothing has changed, and returns the agent's
// absolute path.
func NodeAgent(tb testing.TB) string {
	tb.Helper()
	return build(tb, "./cmd/node-agent", "./cmd/kopia-worker", "./cmd/worker-exec")
}

// RestoreController builds our restore controller and its kopia worker as NodeAgent does.
func RestoreController(tb testing.TB) string {
	tb.Helper()
	return build(tb, "./cmd/restore-controller", "./cmd/kopia-worker", "./cmd/worker-exec")
}

// VolumePlugin builds the worked example of a volume snapshotter plugin as NodeAgent does.
func VolumePlugin(tb testing.TB) string {
	tb.Helper()
	return build(tb, "./examples/volume-plugin")
}

// build builds programs of the repository in one directory, and returns the path of the first one.
func build(tb testing.TB, programs ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := Build(tb.Context(), dir, false, programs...); err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(dir, filepath.Base(programs[0]))
}

// Build builds programs of the repository, such as ./cmd/node-agent, in dir, where race wants it with the race detector. The
// flags are those of the Makefile, because Go's cache has other packages for other flags: with them nothing is compiled twice.
func Build(ctx context.Context, dir string, race bool, programs ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	flags, cgo := []string{"build", "-buildvcs=false", "-tags", "disable_grpc_modules", "-ldflags", "-s -w", "-o", dir + "/"}, "0"
	if race {
		cgo = "1"
		flags = append(flags, "-race")
		for _, module := range []string{"golang.org/x/crypto", "github.com/chmduquesne/rollinghash", "github.com/klauspost/compress"} {
			flags = append(flags, "-gcflags="+module+"/...=-race=false")
		}
	} else {
		flags = append(flags, "-trimpath")
	}
	build := exec.CommandContext(ctx, "go", append(flags, programs...)...)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED="+cgo, "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(programs, ", "), err, out)
	}
	return nil
}

// FindRestic is Restic for programs that are no test. The error wraps ErrMissing if it is not built.
func FindRestic(version string) (string, error) {
	return find("restic-"+version, "make bin/restic-"+version)
}

// FindDemoRestic returns the absolute path of the demo's restic, in whatever version make has found.
func FindDemoRestic() (string, error) { return find("restic", "make bin/restic") }

// UseWorkerExec has workers start with worker-exec if make has built it, as a node agent does: a test binary takes half a second of a processor for
// that. For TestMain.
func UseWorkerExec() {
	if path, err := find("worker-exec", "make bin/worker-exec"); err == nil {
		worker.UseShim(path)
	}
}

// FindKopiaWorker is KopiaWorker for programs that are no test.
func FindKopiaWorker() (string, error) { return find("kopia-worker", "make bin/kopia-worker") }

// FindKopia is Kopia for programs that are no test.
func FindKopia() (string, error) { return find("kopia", "make bin/kopia") }

// FindResticVersions is ResticVersions for programs that are no test.
func FindResticVersions() ([]string, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	modules, err := filepath.Glob(filepath.Join(root, "tools", "restic", "*", "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("list restic versions: %w", err)
	}
	versions := make([]string, 0, len(modules))
	for _, m := range modules {
		versions = append(versions, filepath.Base(filepath.Dir(m)))
	}
	return versions, nil
}

// FindControlPlane is ControlPlane for programs that are no test: the folder that KUBEBUILDER_ASSETS names, or what
// make built. The error wraps ErrMissing if etcd or kube-apiserver is not there.
func FindControlPlane() (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("folder in KUBEBUILDER_ASSETS: %w", err)
		}
		return controlPlane(dir, "KUBEBUILDER_ASSETS must name a folder with etcd and kube-apiserver")
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return controlPlane(filepath.Join(root, "bin", "controlplane"), "run: make controlplane")
}

func controlPlane(dir, hint string) (string, error) {
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if err := executable(filepath.Join(dir, program), hint); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// FindNodeAgent returns the absolute path of our node agent. It is for the demo: a test would run whatever was built
// last, and calls NodeAgent. The error wraps ErrMissing if it is not built.
func FindNodeAgent() (string, error) {
	return find("node-agent", "make build")
}

// Root returns the top folder of the repository: the first one with a go.mod from the working directory upwards.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the repository: no go.mod in %s or above", start)
		}
	}
}

// find returns the path of a program in bin/.
func find(name, command string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if err := executable(path, "run: "+command); err != nil {
		return "", err
	}
	return path, nil
}

// executable returns an error with the hint unless path is a program.
func executable(path, hint string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: %w (%s)", path, ErrMissing, hint)
	case err != nil:
		return fmt.Errorf("%w (%s)", err, hint)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is no program (%s)", path, hint)
	}
	return nil
}

// need ends the test unless err is nil: it skips for a part that is missing, but not in CI, where all must run.
func need(tb testing.TB, err error) {
	tb.Helper()
	if err == nil {
		return
	}
	if errors.Is(err, ErrMissing) && !strings.EqualFold(os.Getenv("CI"), "true") {
		tb.Skip(err)
	}
	tb.Fatal(err)
}
