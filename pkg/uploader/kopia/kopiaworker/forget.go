package kopiaworker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// forget deletes the manifests of snapshots in one session, and opens the repository again to see whether they are gone and all others
// are there. The contents stay until a full maintenance finds that nothing needs them.
func (j *job) forget(ctx context.Context) (protocol.Result, error) {
	var done atomic.Int64
	defer j.reportOnTimer(func() progress.Reading {
		return progress.Reading{Stage: progress.StageTransferring, BytesDone: done.Load(), TotalBytes: int64(len(j.Forget)), TotalFinal: true}
	})()
	before, outcomes, err := j.forgetOnce(ctx, &done)
	if err != nil {
		return protocol.Result{}, err
	}
	after, err := j.snapshotIDs(ctx)
	if err != nil {
		return protocol.Result{}, fmt.Errorf("look at the repository again: %w", err)
	}
	removed := map[manifest.ID]bool{}
	for i, s := range j.Forget {
		if outcomes[i].State != uploader.ForgetRemoved {
			continue
		}
		id := manifest.ID(s.ID)
		if removed[id] = true; after[id] {
			return protocol.Result{}, fmt.Errorf("snapshot %s is still there after it was deleted", s.ID)
		}
	}
	result := protocol.Result{TotalFiles: int64(len(before))}
	for id := range before {
		if !after[id] && !removed[id] && len(result.Lost) < uploader.MaxExamples {
			result.Lost = append(result.Lost, string(id))
		}
	}
	slices.Sort(result.Lost)
	for i := range outcomes {
		j.say(protocol.Message{Forgotten: &outcomes[i]})
	}
	return result, nil
}

// forgetOnce deletes the manifests, and returns all that there were before.
func (j *job) forgetOnce(ctx context.Context, done *atomic.Int64) (before map[manifest.ID]bool, outcomes []protocol.Forgotten, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	if before, err = listIDs(ctx, r); err != nil {
		return nil, nil, err
	}
	for id := range before { // the caller knows them then whatever comes
		j.say(protocol.Message{Snapshot: &protocol.Snapshot{ID: string(id)}})
	}
	outcomes = make([]protocol.Forgotten, len(j.Forget))
	err = repo.WriteSession(ctx, r, repo.WriteSessionOptions{Purpose: "forget snapshots"}, func(ctx context.Context, w repo.RepositoryWriter) error {
		for i := range j.Forget {
			var err error
			if outcomes[i], err = forgetSnapshot(ctx, w, &j.Forget[i]); err != nil {
				return err
			}
			done.Add(1)
		}
		return ctx.Err()
	})
	return before, outcomes, err
}

// forgetSnapshot deletes the manifest of a snapshot, if that is one of the volume.
func forgetSnapshot(ctx context.Context, w repo.RepositoryWriter, s *uploader.ForgetSnapshot) (protocol.Forgotten, error) {
	man, err := loadSnapshot(ctx, w, s.ID)
	switch {
	case errors.Is(err, snapshot.ErrSnapshotNotFound):
		return protocol.Forgotten{State: uploader.ForgetNotFound}, nil
	case err != nil:
		return protocol.Forgotten{}, fmt.Errorf("read snapshot %s: %w", s.ID, err)
	case s.Look:
		return protocol.Forgotten{State: uploader.ForgetPresent}, nil
	}
	why := isMarked(man)
	if why == "" && !s.Orphan {
		why = isNotOf(man, &s.Volume)
	}
	if why != "" {
		return protocol.Forgotten{State: uploader.ForgetRefused, Why: protocol.Printable(why)}, nil
	}
	if err := w.DeleteManifest(ctx, man.ID); err != nil {
		return protocol.Forgotten{}, fmt.Errorf("delete snapshot %s: %w", s.ID, err)
	}
	return protocol.Forgotten{State: uploader.ForgetRemoved}, nil
}

// isMarked says why a snapshot is not whole, or is needed by somebody; empty: neither. The pin of Velero is on every snapshot that Velero or
// Plimsoll makes: it keeps kopia's own policies away. Any other pin was set by a person.
func isMarked(man *snapshot.Manifest) string {
	if man.IncompleteReason != "" {
		return "it is the snapshot of an unfinished backup: " + man.IncompleteReason
	}
	for _, p := range man.Pins {
		if p != pin {
			return fmt.Sprintf("it has the pin %q", p)
		}
	}
	return ""
}

// isNotOf says why a snapshot is not one of the volume that belongs to no Backup; empty: it is.
func isNotOf(man *snapshot.Manifest, v *uploader.SnapshotVolume) string {
	for tag, value := range man.Tags {
		if strings.HasPrefix(tag, "backup") {
			return fmt.Sprintf("it has the tag %s=%s: it belongs to a Backup", tag, value)
		}
	}
	if man.Source.Host != identity || man.Source.UserName != identity || !isSource(man.Source.Path, man.Tags, v) {
		return fmt.Sprintf("its source is %s", man.Source)
	}
	return ""
}

// isSource reports whether a source is that of a volume, as Velero from 1.17 on or before names it
// (docs/contracts/velero-node-agent.md 6.4).
func isSource(source string, tags map[string]string, v *uploader.SnapshotVolume) bool {
	from117 := path.Join("snapshot-pod-volume", "kopia", v.Namespace, v.Pod)
	if path.Dir(source) == from117 {
		name := path.Base(source)
		return name == v.Name || v.Claim != "" && name == v.Claim
	}
	return v.PodUID != "" && strings.Contains(source, "/"+v.PodUID+"/") && tags["ns"] == v.Namespace && tags["pod"] == v.Pod && tags["volume"] == v.Name
}

// snapshotIDs opens the repository and lists its snapshots.
func (j *job) snapshotIDs(ctx context.Context) (_ map[manifest.ID]bool, err error) {
	r, err := j.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	return listIDs(ctx, r)
}

// listIDs returns the snapshots of backups that were finished: a backup that ends removes its unfinished ones.
func listIDs(ctx context.Context, r repo.Repository) (map[manifest.ID]bool, error) {
	listed, err := snapshot.ListSnapshotManifests(ctx, r, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	snapshots, err := snapshot.LoadSnapshots(ctx, r, listed)
	if err != nil {
		return nil, fmt.Errorf("read the snapshots: %w", err)
	}
	ids := make(map[manifest.ID]bool, len(snapshots))
	for _, man := range snapshots {
		if man.IncompleteReason == "" {
			ids[man.ID] = true
		}
	}
	return ids, nil
}
