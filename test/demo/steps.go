package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

const (
	// maxDifferences limits the differences that are listed for each pod.
	maxDifferences = 10
	// maxDifference limits the bytes of each: all of a pod fit into a termination message as JSON, of which kubelet keeps 4096 bytes.
	maxDifference = 200
)

// makeVolumes starts the pods and fills their volumes.
func (d *demo) makeVolumes(ctx context.Context) ([]*instance, error) {
	sources, made, err := d.place.startSources(ctx, apps())
	if err != nil {
		return nil, err
	}
	volumes := 0
	for _, in := range sources {
		volumes += len(in.volumes)
	}
	d.say("made %d volumes in %d pods: %d files, %s", volumes, len(sources), made.Files, describe.Bytes(made.Bytes))
	return sources, nil
}

// backUp backs all volumes up and returns the PodVolumeBackups by the labels of their volumes.
func (d *demo) backUp(ctx context.Context, sources []*instance, j *journal) (map[string]*velerov1.PodVolumeBackup, error) {
	begin := time.Now()
	backup, err := d.server.beginBackup(ctx)
	if err != nil {
		return nil, err
	}
	volumes := 0
	for _, in := range sources {
		for _, v := range in.volumes {
			if err := d.server.createBackup(ctx, backup, in, v.name); err != nil {
				return nil, err
			}
			volumes++
		}
	}
	d.say("created %d PodVolumeBackups: gallery/photos with kopia, the others with restic", volumes)
	op := operation{
		list: &velerov1.PodVolumeBackupList{}, volumes: volumes,
		read: func() describe.Operation { return describe.OfBackup(backup) },
		end:  func(ctx context.Context) error { return d.server.endBackup(ctx, backup, j.failures() == nil) },
	}
	if err := d.follow(ctx, op, j); err != nil {
		return nil, err
	}
	d.say("backed up %d volumes in %.1f s", volumes, time.Since(begin).Seconds())
	d.result.backedUp = volumes
	return d.server.backups(ctx)
}

// target is a pod into which volumes are restored.
type target struct {
	*instance
	stored []volume       // the volumes that have a snapshot
	init   *initContainer // nil if there is none
}

// restore restores all snapshots into other pods, which run when it returns.
func (d *demo) restore(ctx context.Context, sources []*instance, backups map[string]*velerov1.PodVolumeBackup, j *journal) ([]*target, error) {
	begin := time.Now()
	restore, err := d.server.beginRestore(ctx, d.place.namespaceMapping(sources))
	if err != nil {
		return nil, err
	}
	var targets []*target
	defer func() {
		for _, t := range targets {
			t.init.end()
		}
	}()
	volumes := 0
	for _, in := range sources {
		t, err := d.startTarget(ctx, restore, in, backups)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
		for _, v := range t.stored {
			if err := d.server.createRestore(ctx, restore, t.instance, backups[label(in.name, v.name)]); err != nil {
				return nil, err
			}
			volumes++
		}
	}
	d.say("created %d PodVolumeRestores", volumes)
	op := operation{
		list: &velerov1.PodVolumeRestoreList{}, volumes: volumes,
		read: func() describe.Operation { return describe.OfRestore(restore) },
		end:  func(ctx context.Context) error { return d.server.endRestore(ctx, restore, j.failures() == nil) },
	}
	if err := d.follow(ctx, op, j); err != nil {
		return nil, err
	}
	for _, t := range targets {
		if err := d.place.finishTarget(ctx, t); err != nil {
			return nil, err
		}
	}
	d.say("restored %d volumes in %.1f s; the init containers have ended, the pods run", volumes, time.Since(begin).Seconds())
	return targets, nil
}

// startTarget starts the restored copy of a pod, with an init container if one of its volumes has a snapshot.
func (d *demo) startTarget(ctx context.Context, restore *velerov1.Restore, source *instance, backups map[string]*velerov1.PodVolumeBackup) (*target, error) {
	var stored []volume
	for _, v := range source.volumes {
		name := label(source.name, v.name)
		if backups[name].Status.SnapshotID != "" {
			stored = append(stored, v)
			continue
		}
		d.say("%s was empty: no snapshot and no PodVolumeRestore, so its new pod just starts", name)
	}
	return d.place.startTarget(ctx, restore, source, stored)
}

// compare compares the volumes of the new pods with those that were backed up.
func (d *demo) compare(ctx context.Context, sources []*instance, targets []*target) error {
	begin := time.Now()
	var differences []error
	for i, in := range sources {
		found, err := d.place.compare(ctx, in, targets[i])
		if err != nil {
			return fmt.Errorf("compare the volumes of pod %s: %w", in.name, err)
		}
		d.result.restored += len(in.volumes)
		d.result.differences += found.Differences
		for _, difference := range found.Listed {
			differences = append(differences, errors.New(difference))
		}
	}
	if d.result.differences > 0 {
		return fmt.Errorf("the restored volumes differ from the originals in %d places:\n%w", d.result.differences, errors.Join(differences...))
	}
	d.say("compared content, mode, owner, times, links, holes and attributes in %.1f s", time.Since(begin).Seconds())
	return nil
}
