package restic

import (
	"context"
	"fmt"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.SnapshotLister = (*Uploader)(nil)

// Snapshots runs restic snapshots without a lock.
func (u *Uploader) Snapshots(ctx context.Context, repo uploader.Repository) ([]uploader.RepositorySnapshot, error) {
	var snapshots []uploader.RepositorySnapshot
	err := u.inWorkspace(repo, func(w *workspace) error {
		w.cacheDir = "" // it may hold snapshots that the repository has lost
		listed, err := u.unlockedSnapshots(ctx, w)
		for i := range listed {
			snapshots = append(snapshots, listed[i].described())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	return snapshots, nil
}

// described reads the tags that Velero and Plimsoll give to each snapshot of a pod volume.
func (s *listedSnapshot) described() uploader.RepositorySnapshot {
	d := uploader.RepositorySnapshot{ID: s.ID, Time: s.Time}
	tags := map[string]string{}
	for _, tag := range s.Tags {
		key, value, _ := strings.Cut(tag, "=")
		if known, twice := tags[key]; twice && known != value {
			d.Protected = printable(fmt.Sprintf("it has the tag %s twice", key))
		}
		tags[key] = value
	}
	d.Volume = uploader.SnapshotVolume{Namespace: tags["ns"], Pod: tags["pod"], PodUID: tags["pod-uid"], Name: tags["volume"]}
	d.Backup = tags["backup"]
	if d.Volume.Namespace == "" || d.Volume.Pod == "" || d.Volume.Name == "" {
		d.Protected = "it has not the tags of a pod's volume"
	}
	return d
}
