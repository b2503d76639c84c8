package restic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

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
		err = u.run(ctx, s, invocation{command: "init"})
		var exit *ExitError
		if errors.As(err, &exit) && isInitialized(exit.Message) {
			return u.checkPassword(ctx, s)
		}
		return err
	})
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
