package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// The check of a restored volume takes a minute at most, or a twentieth of the restore if that is more. Two million files take
// about that minute where their inodes are not in memory any more.
const (
	minCheckTime = time.Minute
	checkShare   = 20
)

// acceptRestore decides whether a restore that has come to its end is good enough to be handed over, and writes into out what people
// should know of it.
func (a *Agent) acceptRestore(ctx context.Context, op *Operation, dir *os.File, res uploader.RestoreResult, took time.Duration, out *attemptResult) error {
	if err := a.acceptUnwritten(ctx, op, res); err != nil {
		return err
	}
	out.totalBytes, out.errors = res.TotalBytes, res.Errors
	if res.Errors > 0 {
		out.message = fmt.Sprintf("snapshot %s was restored without %s", op.Object.(*velerov1.PodVolumeRestore).Spec.SnapshotID, describeFiles("that could not be written", res.Errors, res.FailedPaths))
	}
	found, err := checkSizes(ctx, dir, res.SizesOnDisk, max(minCheckTime, took/checkShare))
	switch {
	case err != nil:
		return err
	case found.doubt != "":
		op.log.Warn("Cannot tell whether all that was restored is in the volume", "reason", found.doubt)
		out.message = joinMessages(out.message, "it was not checked that all bytes are in the volume: "+found.doubt)
	case found.missingBytes > 0:
		text := fmt.Sprintf("the files in the volume have %s less than the snapshot's %s, although none of them failed to be written", size(found.missingBytes), size(res.SizesOnDisk))
		if err := a.acceptMissingBytes(ctx, op, found.missingBytes, text); err != nil {
			return err
		}
		out.errors = max(out.errors, 1)
		out.message = joinMessages(out.message, text)
	}
	return nil
}

func joinMessages(first, second string) string {
	if first == "" {
		return second
	}
	return first + "; " + second
}

// sizeCheck is what a look at a restored volume has found.
type sizeCheck struct {
	missingBytes int64  // bytes; 0 if doubt is set
	doubt        string // why it is not known whether all is there, empty if it is
}

// checkSizes compares the sizes of the files in a volume with what a restore has written, want, for at most limit. want is 0
// where that is not known.
//
// Sizes, not data extents: a file system may store zeros as holes (ZFS, NFS servers), and a snapshot may be all zeros. Files
// that were in the volume before can hide a loss, and cannot make one appear.
func checkSizes(ctx context.Context, dir *os.File, want int64, limit time.Duration) (sizeCheck, error) {
	if want <= 0 {
		return sizeCheck{}, nil
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	usage, err := volume.Sizes(limited, dir)
	switch {
	case stopCause(ctx) != nil:
		return sizeCheck{}, stopCause(ctx)
	case usage.Bytes >= want:
		return sizeCheck{}, nil
	case limited.Err() != nil:
		return sizeCheck{doubt: fmt.Sprintf("its files were not all counted within %s, those that were have %s of %s", limit.Round(time.Second), size(usage.Bytes), size(want))}, nil
	case uploader.IsVolumeIO(err):
		return sizeCheck{}, retryable(ReasonVolumeIO, err)
	case err != nil:
		return sizeCheck{}, fmt.Errorf("look at the restored files: %w", err)
	case usage.Skipped > 0:
		return sizeCheck{doubt: progress.Count(usage.Skipped, "file, directory or mount", "files, directories or mounts") + " in it could not be looked at"}, nil
	default:
		return sizeCheck{missingBytes: want - usage.Bytes}, nil
	}
}

// acceptMissingBytes fails a restore of which bytes are missing on the disk: first so that it is tried again, and where the same number is
// missing again for good, unless any loss is allowed.
func (a *Agent) acceptMissingBytes(ctx context.Context, op *Operation, bytes int64, text string) error {
	if bytes != op.lastMissingBytes && op.attempt < a.cfg.MaxAttempts {
		op.lastMissingBytes = bytes
		return retryable(ReasonMissingData, errors.New(text))
	}
	allowed, err := a.partial(ctx, op.PodVolume)
	if err != nil {
		return err
	}
	if allowed < 100 {
		return Permanent(ReasonMissingData, errors.New(text))
	}
	return nil
}
