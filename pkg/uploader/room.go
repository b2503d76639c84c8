package uploader

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// RequireRoom returns ErrNoSpace if a file system has no room for so many bytes in a directory, less what lies there already: a restore into a
// volume in use must not fill it first. Where the file system does not tell its size there is room. step is that
// of volume.Sizes.
func RequireRoom(ctx context.Context, dir *os.File, bytes int64, step func()) error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &stat); err != nil {
		return fmt.Errorf("look how much room the volume has: %w", err)
	}
	there, err := volume.Sizes(ctx, dir, step)
	if err != nil {
		return fmt.Errorf("measure what an earlier attempt has restored: %w", err)
	}
	free := int64(stat.Bavail) * stat.Bsize
	if missing := bytes - there.Bytes; stat.Blocks > 0 && missing > free {
		return fmt.Errorf("restoring takes %s, and the volume has %s left: %w", text.Bytes(missing), text.Bytes(free), ErrNoSpace)
	}
	return nil
}
