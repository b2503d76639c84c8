package restic

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// measure watches the volume for a restic that says nothing of its restore, and feeds out. Call it before restic starts,
// and the returned function after it has ended.
func (u *Uploader) measure(ctx context.Context, dir *os.File, out *stream) (stop func(), err error) {
	if u.version.reportsRestore() {
		return func() {}, nil
	}
	meter, err := volume.NewMeter(ctx, dir, out.step)
	if err != nil {
		return nil, fmt.Errorf("measure the volume before the restore: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		// Without progress the restore is still worth having.
		if err := volume.Watch(ctx, meter.Written, out.measured); err != nil && ctx.Err() == nil {
			u.options.Logger.Error("Cannot measure the restore's progress", "volume", dir.Name(), "error", err)
		}
	})
	return func() { cancel(); wg.Wait() }, nil
}
