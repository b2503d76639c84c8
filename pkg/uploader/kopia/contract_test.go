package kopia_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/kopiaworker"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

func TestMain(m *testing.M) {
	worker.Main()
	kopiaworker.Main()
	parts.UseWorkerExec()
	uploadertest.Main()
	os.Exit(m.Run())
}

func TestContract(t *testing.T) {
	t.Parallel()
	uploadertest.Run(t, uploadertest.Subject{New: newLimited, Repository: newAddress, Plain: true, Sparse: true})
}

// newLimited makes an uploader whose worker is this test binary, with the race detector: starting one takes more than a second of a processor, so
// that the contract has it and other tests do not.
func newLimited(tb testing.TB, bytesPerSecond int64) uploader.Uploader {
	tb.Helper()
	program, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return newUploader(tb, kopia.Options{Worker: program, UploadLimit: bytesPerSecond, DownloadLimit: bytesPerSecond})
}

// newUploader makes an uploader that reports often, and whose worker has time to end by itself on a busy machine. Its worker is the program that make
// has built, unless the options name one.
func newUploader(tb testing.TB, options kopia.Options) *kopia.Uploader {
	tb.Helper()
	if options.Worker == "" {
		options.Worker = parts.KopiaWorker(tb)
	}
	options.TempDir = tb.TempDir()
	if options.CacheDir == "" {
		options.CacheDir = tb.TempDir()
	}
	options.ProgressInterval, options.Grace.Interrupt = time.Second/20, 5*time.Minute
	u, err := kopia.New(options)
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
	return uploader.Repository{URL: filepath.Join(tb.TempDir(), "repository"), Password: "static-passw0rd\n"}
}
