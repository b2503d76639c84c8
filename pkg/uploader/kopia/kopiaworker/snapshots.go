package kopiaworker

import (
	"context"
	"errors"
	"strings"

	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// describeSnapshots sends what the repository says of each snapshot of a finished backup.
func (j *job) describeSnapshots(ctx context.Context) (_ protocol.Result, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	var sent int64
	err = eachSnapshot(ctx, r, func(man *snapshot.Manifest) {
		if man.IncompleteReason == "" {
			sent++
			j.say(protocol.Message{Snapshot: &protocol.Snapshot{ID: string(man.ID), Described: describe(man)}})
		}
	})
	return protocol.Result{TotalFiles: sent}, err
}

// The tags and sources of snapshots of pod volumes (docs/contracts/velero-node-agent.md 6.4).
const (
	requesterTag     = "snapshot-requester"
	requesterTo116   = "pod-volume-backup-restore"
	requesterFrom117 = "snapshot-pod-volume"
)

// describe tells what the manifest says. Velero from 1.17 on does not write down the Backup.
func describe(man *snapshot.Manifest) *uploader.RepositorySnapshot {
	s := &uploader.RepositorySnapshot{Time: man.StartTime.ToTime(), Backup: protocol.Printable(man.Tags["backup"])}
	if end := man.EndTime.ToTime(); end.After(s.Time) {
		s.Time = end
	}
	switch man.Tags[requesterTag] {
	case requesterFrom117:
		if parts := strings.Split(man.Source.Path, "/"); len(parts) == 5 && parts[0] == requesterFrom117 {
			s.Volume = uploader.SnapshotVolume{Namespace: parts[2], Pod: parts[3], Name: parts[4]}
		}
	case requesterTo116:
		s.Volume = uploader.SnapshotVolume{Namespace: man.Tags["ns"], Pod: man.Tags["pod"], PodUID: man.Tags["pod-uid"], Name: man.Tags["volume"]}
	}
	s.Protected = protocol.Printable(isMarked(man))
	switch {
	case man.Tags[originTag] != "":
		s.Protected = "it was migrated from restic"
	case man.Source.Host != identity || man.Source.UserName != identity || s.Volume.Namespace == "" || s.Volume.Pod == "" || s.Volume.Name == "":
		s.Protected = protocol.Printable("it is of no pod's volume: its source is " + man.Source.String())
	}
	return s
}
