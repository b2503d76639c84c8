package podvolume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// The check of a restored volume takes at most a minute, or a twentieth of the restore if that is more. Two million files take
// about a minute if their inodes are no longer in memory.
const (
	minCheckTime = time.Minute
	checkShare   = 20
)

// checkRestored decides whether a restore that the uploader has finished is good enough, and returns its result.
func (op *Operation) checkRestored(ctx context.Context, dir *os.File, restored uploader.RestoreResult, took time.Duration) (attemptResult, error) {
	if err := op.acceptUnwritten(ctx, restored); err != nil {
		return attemptResult{}, err
	}
	result := attemptResult{totalBytes: restored.TotalBytes, errors: restored.Errors}
	if restored.Errors > 0 {
		result.message = fmt.Sprintf("snapshot %s was restored without %s", op.Object.(*velerov1.PodVolumeRestore).Spec.SnapshotID, describeFiles("that could not be written", restored.Errors, restored.FailedPaths))
	}
	result.addRefused(restored.Refused)
	check, err := checkSizes(ctx, dir, restored.SizesOnDisk, max(minCheckTime, took/checkShare), op.tracker.Step)
	switch {
	case err != nil:
		return attemptResult{}, err
	case check.doubt != "":
		op.log.Warn("Cannot verify that the volume has all restored bytes", "reason", check.doubt)
		result.unchecked, result.message = true, joinMessages(result.message, "it was not checked that all bytes are in the volume: "+check.doubt)
	case check.missingBytes > 0:
		lack := fmt.Sprintf("the files in the volume have %s less than the snapshot's %s, although none of them failed to be written", text.Bytes(check.missingBytes), text.Bytes(restored.SizesOnDisk))
		if err := op.acceptMissingBytes(ctx, check.missingBytes, lack); err != nil {
			return attemptResult{}, err
		}
		result.errors = max(result.errors, 1)
		result.message = joinMessages(result.message, lack)
	}
	return result, nil
}

// addRefused says what the volume did not take.
func (r *attemptResult) addRefused(refused uploader.Refused) {
	if refused != (uploader.Refused{}) {
		r.refused, r.message = true, joinMessages(r.message, describeRefused(refused))
	}
}

// describeRefused returns which attributes a volume did not take, and the name of one entry.
func describeRefused(r uploader.Refused) string {
	var lacks []string
	for _, attribute := range []struct {
		name  string
		count int64
	}{{"owner", r.Owners}, {"mode", r.Modes}, {"time", r.Times}, {"extended attributes", r.Attributes}} {
		if attribute.count > 0 {
			lacks = append(lacks, "the "+attribute.name+" of "+text.Count(attribute.count, "entry", "entries"))
		}
	}
	return "the volume did not take " + strings.Join(lacks, ", ") + ", such as " + text.ShortPath(r.Example)
}

func joinMessages(first, second string) string {
	switch {
	case first == "":
		return second
	case second == "":
		return first
	default:
		return first + "; " + second
	}
}

// sizeCheck is the result of checkSizes.
type sizeCheck struct {
	missingBytes int64  // 0 if doubt is set
	doubt        string // why the check could not decide, empty if it could
}

// checkSizes compares the sizes of the files in a volume with the bytes that a restore has written, want (0: not known), for at
// most limit. step is that of volume.Sizes.
//
// It compares sizes, not data extents: a file system may store zeros as holes (ZFS, NFS servers), and a snapshot may be all
// zeros. Files that were in the volume before can hide a loss, but cannot feign one.
func checkSizes(ctx context.Context, dir *os.File, want int64, limit time.Duration, step func()) (sizeCheck, error) {
	if want <= 0 {
		return sizeCheck{}, nil
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	usage, err := volume.Sizes(limited, dir, step)
	switch {
	case stopCause(ctx) != nil:
		return sizeCheck{}, stopCause(ctx)
	case usage.Bytes >= want:
		return sizeCheck{}, nil
	case limited.Err() != nil:
		return sizeCheck{doubt: fmt.Sprintf("its files were not all counted within %s, those that were have %s of %s", limit.Round(time.Second), text.Bytes(usage.Bytes), text.Bytes(want))}, nil
	case uploader.IsVolumeIO(err):
		return sizeCheck{}, retryable(v1alpha1.ReasonVolumeIO, err)
	case err != nil:
		return sizeCheck{}, fmt.Errorf("measure the restored files: %w", err)
	case usage.Skipped > 0:
		return sizeCheck{doubt: text.Count(usage.Skipped, "file, directory or mount", "files, directories or mounts") + " in it could not be looked at"}, nil
	default:
		return sizeCheck{missingBytes: want - usage.Bytes}, nil
	}
}

// acceptMissingBytes fails a restore whose volume lacks bytes: with a retryable error at first, and for good if the same number is
// missing again, unless any loss is allowed.
func (op *Operation) acceptMissingBytes(ctx context.Context, bytes int64, lack string) error {
	if bytes != op.lastMissingBytes && op.attempt < op.env.MaxAttempts {
		op.lastMissingBytes = bytes
		return retryable(v1alpha1.ReasonMissingData, errors.New(lack))
	}
	allowed, err := op.partial(ctx)
	if err != nil {
		return err
	}
	if allowed < 100 {
		return Permanent(v1alpha1.ReasonMissingData, errors.New(lack))
	}
	return nil
}
