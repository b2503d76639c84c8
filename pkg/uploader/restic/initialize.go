package restic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Initialize creates the repository in restic's default format. Where one exists already it only makes sure that the
// password opens it.
func (u *Uploader) Initialize(ctx context.Context, repo uploader.Repository) error {
	if repo.ReadOnly {
		return fmt.Errorf("initialize a read-only repository: %w", uploader.ErrUnsupported)
	}
	if dir, local := repo.Local(); local {
		// A worker cannot make its own top directory: what does not exist cannot be opened up to it.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the repository's directory: %w", err)
		}
	}
	return u.inSession(repo, func(s *session) error {
		err := u.checkPassword(ctx, s)
		if !errors.Is(err, uploader.ErrRepositoryNotFound) {
			return err
		}
		if err := u.checkEmpty(repo); err != nil {
			return err
		}
		err = u.runInit(ctx, s)
		var exit *ExitError
		if !errors.As(err, &exit) || !isInitialized(exit.Message) && !errors.Is(err, uploader.ErrRepositoryIncomplete) {
			return err
		}
		// Another process may have made it meanwhile.
		if now := u.checkPassword(ctx, s); !errors.Is(now, uploader.ErrRepositoryNotFound) {
			return now
		}
		return err
	})
}

// initGrace is how long restic init may go on after its context has ended: less than the Lease lasts that keeps others from
// making the repository, and than the agent has to stop.
const initGrace = 20 * time.Second

// runInit runs restic init, and lets it end when the agent stops: restic stores the key before the configuration, and
// neither opens nor makes a repository that has keys alone.
func (u *Uploader) runInit(ctx context.Context, s *session) error {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(initGrace, func() { cancel(context.Cause(ctx)) })
		context.AfterFunc(lasting, func() { timer.Stop() })
	})()
	return u.run(lasting, s, invocation{command: "init"})
}

// checkEmpty returns ErrRepositoryIncomplete if data of an earlier repository is left in a directory. On other storages
// restic itself looks for keys and snapshots from 0.17 on (measured with a directory and versitygw); 0.14 and 0.16 write a
// new configuration beside the old data, so they may not make a repository there.
func (u *Uploader) checkEmpty(repo uploader.Repository) error {
	dir, local := repo.Local()
	if !local && u.version.looksBeforeInit() {
		return nil
	}
	if !local {
		return fmt.Errorf("restic %v does not look for data of an earlier repository before it makes one: %w; "+
			"use restic 0.17 or later, or run \"restic init\" where there is no data", u.version, uploader.ErrUnsupported)
	}
	for _, part := range []string{"keys", "snapshots", "index", "data"} {
		err := filepath.WalkDir(filepath.Join(dir, part), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			return fmt.Errorf("%w: it has %s, but no config", uploader.ErrRepositoryIncomplete, path)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for data of an earlier repository: %w", err)
		}
	}
	return nil
}

// checkPassword finds out whether there is a repository that the password opens.
func (u *Uploader) checkPassword(ctx context.Context, s *session) error {
	return u.run(ctx, s, invocation{command: "cat", args: []string{"config", "--no-lock"}})
}

// isInitialized says whether restic init found a repository, which another process made meanwhile.
func isInitialized(message string) bool {
	return strings.Contains(message, "config file already exists") ||
		strings.Contains(message, "repository master key and config already initialized")
}
