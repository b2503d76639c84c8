package program

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec" //nolint:depguard // looks programs up, starts nothing
	"path/filepath"
)

// The programs beside this one in the image.
const (
	kopiaWorkerName = "kopia-worker"
	workerExecName  = "worker-exec"
)

// FindWorkerExec returns the path of the program for worker.UseShim: beside this one as in the image. The error wraps fs.ErrNotExist if it is not there.
func FindWorkerExec() (string, error) { return findBeside(workerExecName) }

// findBeside returns the path of a program in the directory of this one. The error wraps fs.ErrNotExist if there is none.
func findBeside(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return path, nil
}

// FindKopiaWorker returns the path of the program that works with kopia: beside this one as in the image, or in PATH.
func FindKopiaWorker() (string, error) {
	if beside, err := findBeside(kopiaWorkerName); !errors.Is(err, fs.ErrNotExist) {
		return beside, err
	}
	path, err := exec.LookPath(kopiaWorkerName)
	if err != nil {
		return "", fmt.Errorf("find %s, which is beside this program in the image: %w", kopiaWorkerName, err)
	}
	return filepath.Abs(path)
}

// FindRestic returns the absolute path of restic, which is named by its path or its name in PATH.
func FindRestic(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find restic: %w; set --restic-path", err)
	}
	return filepath.Abs(path)
}

// WarnUnconfined logs which workers this kernel's version of Landlock does not confine.
func WarnUnconfined(log *slog.Logger, abi int) {
	switch abi {
	case 0:
		log.Warn("This kernel has no Landlock: workers run unconfined")
	case 1:
		log.Warn("This kernel has Landlock 1 (Linux 5.13 to 5.18): restores run unconfined, backups are confined")
	}
}
