package restic

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

func TestMain(m *testing.M) {
	worker.Main()
	parts.UseWorkerExec()
	if filepath.Base(os.Args[0]) == fakeProgram {
		os.Exit(fakeRestic(os.Args[1:]))
	}
	uploadertest.Main()
	os.Exit(m.Run())
}

// eachVersion runs a test with every version of restic.
func eachVersion(t *testing.T, test func(t *testing.T, version string)) {
	t.Helper()
	withVersions(t, parts.ResticVersions(t), test)
}

// eachBehavior runs a test with the versions of restic before 0.17, and with the default one for all later ones: this package treats
// those alike (see Version), and TestContract runs the newest one.
func eachBehavior(t *testing.T, test func(t *testing.T, version string)) {
	t.Helper()
	withVersions(t, slices.DeleteFunc(parts.ResticVersions(t), func(version string) bool {
		v, err := ParseVersion("restic " + version)
		if err != nil {
			t.Fatal(err)
		}
		return v.atLeast(17) && version != parts.DefaultRestic
	}), test)
}

func withVersions(t *testing.T, versions []string, test func(t *testing.T, version string)) {
	t.Helper()
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			parts.Restic(t, version)
			test(t, version)
		})
	}
}

func TestContract(t *testing.T) {
	all := parts.ResticVersions(t)
	// The oldest, the default and the newest one: what the others do else is in the recordings of each version, and in eachBehavior.
	versions := slices.Compact([]string{all[0], parts.DefaultRestic, all[len(all)-1]})
	withVersions(t, versions, func(t *testing.T, version string) {
		uploadertest.Run(t, uploadertest.Subject{
			New: func(tb testing.TB, bytesPerSecond int64) uploader.Uploader {
				return newUploader(tb, version, Options{UploadLimit: bytesPerSecond, DownloadLimit: bytesPerSecond})
			},
			Repository: newAddress,
			Existing:   newRepository,
			Sparse:     version != "0.14.0",
			LossyNames: true,
		})
	})
}

// newUploader makes an uploader that reports often, and whose restic has time to end by itself on a busy machine.
func newUploader(tb testing.TB, version string, options Options) *Uploader {
	tb.Helper()
	options.TempDir = tb.TempDir()
	if options.CacheDir == "" {
		options.CacheDir = tb.TempDir()
	}
	options.ProgressInterval, options.Grace.Interrupt = time.Second/20, patience
	u, err := New(tb.Context(), parts.Restic(tb, version), options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { checkEmpty(tb, options.TempDir) })
	return u
}

// checkEmpty fails if passwords or other files are left behind.
func checkEmpty(tb testing.TB, dir string) {
	tb.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		tb.Errorf("left behind: %v, %v", left, err)
	}
}

// newAddress returns the address of a local repository that is not there yet.
func newAddress(tb testing.TB) uploader.Repository {
	tb.Helper()
	return uploader.Repository{URL: filepath.Join(tb.TempDir(), "repository"), Password: resticrepo.Password}
}

// newRepository makes an empty local repository.
func newRepository(tb testing.TB) uploader.Repository {
	tb.Helper()
	repository := newAddress(tb)
	resticrepo.Create(tb, repository.URL)
	return repository
}
