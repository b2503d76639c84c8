package restic

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	return u.inWorkspace(repo, func(w *workspace) error {
		err := u.checkPassword(ctx, w)
		if !errors.Is(err, uploader.ErrRepositoryNotFound) {
			return err
		}
		if err = u.clearRemains(ctx, repo); err == nil {
			err = u.runInit(ctx, w)
		}
		exit, ok := errors.AsType[*ExitError](err)
		if !errors.Is(err, uploader.ErrRepositoryIncomplete) && (!ok || !isInitialized(exit.Message)) {
			return err
		}
		// Another process may have made it meanwhile.
		if now := u.checkPassword(ctx, w); !errors.Is(now, uploader.ErrRepositoryNotFound) {
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
func (u *Uploader) runInit(ctx context.Context, w *workspace) error {
	lasting, end := outlast(ctx, initGrace)
	defer end()
	return u.run(lasting, w, invocation{command: "init"})
}

// outlast returns a context that ends a while after ctx, or with end.
func outlast(ctx context.Context, grace time.Duration) (lasting context.Context, end func()) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
		context.AfterFunc(lasting, func() { timer.Stop() })
	})
	return lasting, func() {
		stop()
		cancel(nil)
	}
}

// checkPassword finds out whether there is a repository that the password opens.
func (u *Uploader) checkPassword(ctx context.Context, w *workspace) error {
	return u.run(ctx, w, invocation{command: commandCat, args: []string{"config", "--no-lock"}})
}

// isInitialized reports whether restic init found a repository, which another process made meanwhile.
func isInitialized(message string) bool {
	return strings.Contains(message, "config file already exists") ||
		strings.Contains(message, "repository master key and config already initialized")
}
