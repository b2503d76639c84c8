package restic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// restoreSize asks restic how many bytes a restore of the snapshot writes, hard links once. The PodVolumeBackup's own
// total counts them once for each link (docs/contracts/restic-kopia.md 3). beside is set while a restore runs.
func (u *Uploader) restoreSize(ctx context.Context, w *workspace, req uploader.RestoreRequest, beside bool) (int64, error) {
	var last []byte // restic 0.19.0 prints text before the JSON
	err := u.run(ctx, w, invocation{
		command: "stats", args: statsArgs(req), beside: beside, stdout: func(line []byte) {
			if len(line) > 0 {
				last = append(last[:0], line...)
			}
		},
	})
	if err != nil {
		return 0, err
	}
	return parseStats(last, req.SnapshotID)
}

// errNoStats comes when restic ended well but what it printed cannot be read.
var errNoStats = errors.New("restic stats does not say the snapshot's size")

// parseStats reads the line of restic stats. For an unknown snapshot restic exits without an error.
func parseStats(line []byte, id string) (int64, error) {
	var stats struct {
		TotalSize      uint64 `json:"total_size"`
		SnapshotsCount int    `json:"snapshots_count"`
	}
	if err := json.Unmarshal(line, &stats); err != nil {
		return 0, fmt.Errorf("%w: %w", errNoStats, err)
	}
	if stats.SnapshotsCount != 1 {
		return 0, fmt.Errorf("%w: %s", uploader.ErrSnapshotNotFound, id)
	}
	return count(stats.TotalSize), nil
}
