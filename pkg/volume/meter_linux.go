package volume

import (
	"context"
	"os"
)

// Meter says how many bytes a restore has written into a volume, by looking at the volume. It is safe for concurrent use.
//
// It counts a file if it changed since the Meter was made, which the inode's change time tells: restic before 0.17 cuts
// files off before it writes them anew, so a second try over the leftovers of the first would show no progress if all that
// was there before were subtracted. Where change times cannot be relied on, the growth of the whole volume is the lower
// limit.
//
// It is an estimate: a file that a restore overwrites in place, without cutting it off, counts as complete from its
// first byte on; runs of zeros that the restore leaves as holes do not count.
type Meter struct {
	dir  *os.File
	base usage
}

// NewMeter measures what is in a volume before a restore. Nothing may write into the volume until it returns. The directory
// must stay open as long as the Meter is used. step is that of Sizes.
func NewMeter(ctx context.Context, dir *os.File, step func()) (*Meter, error) {
	base, err := measure(ctx, dir, 0, step)
	if err != nil {
		return nil, err
	}
	return &Meter{dir: dir, base: base}, nil
}

// Written returns how many bytes the restore has written so far. It can fall. Errors are those of Sizes.
func (m *Meter) Written(ctx context.Context) (int64, error) {
	now, err := measure(ctx, m.dir, m.base.newest, nil)
	if err != nil {
		return 0, err
	}
	return max(now.changed, now.Bytes-m.base.Bytes), nil
}
