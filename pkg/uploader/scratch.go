package uploader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ScratchError makes an error of writing files that only serve the run an ErrScratchFull, if that is why. The system's error
// is not wrapped then: it stands for a full volume or repository.
func ScratchError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %s", ErrScratchFull, err.Error())
	}
	return err
}

// Scratch is the private directory of one run, for its secrets and its temporary files. A lock (flock) on it lasts as long as the
// process that has made it, whatever ends that: by it the next one tells what was left behind from what is in use.
type Scratch struct {
	Path string
	lock *os.File
}

// NewScratch makes a directory in parent for a run of the program.
func NewScratch(parent, program string) (*Scratch, error) {
	// It gets its name with the lock on it: SweepScratch looks for names.
	unnamed, err := os.MkdirTemp(parent, "new-"+scratchPrefix(program))
	if err != nil {
		return nil, ScratchError(err)
	}
	lock, err := os.Open(unnamed)
	if err != nil {
		return nil, errors.Join(err, os.Remove(unnamed))
	}
	_ = tryLock(lock) // where a file system has no locks, nothing is swept
	path := filepath.Join(parent, strings.TrimPrefix(filepath.Base(unnamed), "new-"))
	if err := os.Rename(unnamed, path); err != nil {
		return nil, errors.Join(err, lock.Close(), os.Remove(unnamed))
	}
	return &Scratch{Path: path, lock: lock}, nil
}

// Remove removes the directory and all that is in it.
func (s *Scratch) Remove() error {
	return errors.Join(os.RemoveAll(s.Path), s.lock.Close())
}

// SweepScratch removes the directories from parent that processes have left which were killed, and says how many these were.
func SweepScratch(parent, program string) (removed int, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return 0, fmt.Errorf("look for what killed processes have left: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), scratchPrefix(program)) {
			continue
		}
		switch sweepErr := sweep(filepath.Join(parent, entry.Name())); {
		case sweepErr == nil:
			removed++
		case errors.Is(sweepErr, syscall.EWOULDBLOCK), errors.Is(sweepErr, os.ErrNotExist): // another process works, or has just ended
		default:
			err = errors.Join(err, fmt.Errorf("remove what a killed process has left: %w", sweepErr))
		}
	}
	return removed, err
}

func sweep(path string) error {
	lock, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := tryLock(lock); err != nil {
		return &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return os.RemoveAll(path)
}

func tryLock(dir *os.File) error {
	return syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

func scratchPrefix(program string) string { return "plimsoll-" + program + "-" }
