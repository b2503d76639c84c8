package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// maxDifferences limits the differences that are listed for each volume.
const maxDifferences = 20

// makeVolumes starts the pods and fills their volumes.
func (d *demo) makeVolumes(ctx context.Context) ([]*instance, error) {
	var sources []*instance
	var volumes, files, bytes int64
	for _, a := range apps() {
		in, err := d.node.startPod(ctx, a, a.namespace)
		if err != nil {
			return nil, err
		}
		sources = append(sources, in)
		for _, v := range a.volumes {
			volumes++
			if v.fill == nil {
				continue
			}
			if err := v.fill(in.dirs[v.name], d.bytes*v.share/100); err != nil {
				return nil, fmt.Errorf("fill volume %s: %w", label(a.name, v.name), err)
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			n, size, err := countFiles(in.dirs[v.name])
			if err != nil {
				return nil, err
			}
			files, bytes = files+n, bytes+size
		}
	}
	d.say("made %d volumes in %d pods: %d files, %s", volumes, len(sources), files, describe.Bytes(bytes))
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

// restore restores all snapshots into pods of other namespaces, which run when it returns.
func (d *demo) restore(ctx context.Context, sources []*instance, backups map[string]*velerov1.PodVolumeBackup, j *journal) ([]*target, error) {
	begin := time.Now()
	restore, err := d.server.beginRestore(ctx, sources)
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
		if err := d.finishTarget(ctx, t); err != nil {
			return nil, err
		}
	}
	d.say("restored %d volumes in %.1f s; the init containers have ended, the pods run", volumes, time.Since(begin).Seconds())
	return targets, nil
}

// startTarget starts the restored copy of a pod, with an init container if one of its volumes has a snapshot.
func (d *demo) startTarget(ctx context.Context, restore *velerov1.Restore, source *instance, backups map[string]*velerov1.PodVolumeBackup) (*target, error) {
	t := &target{}
	for _, v := range source.volumes {
		name := label(source.name, v.name)
		if backups[name].Status.SnapshotID != "" {
			t.stored = append(t.stored, v)
			continue
		}
		d.say("%s was empty: no snapshot and no PodVolumeRestore, so its new pod just starts", name)
	}
	var initArgs []string
	if len(t.stored) > 0 {
		initArgs = []string{string(restore.UID)}
	}
	var err error
	t.instance, err = d.node.startPod(ctx, source.app, restore.Spec.NamespaceMapping[source.pod.Namespace], initArgs...)
	if err == nil && len(t.stored) > 0 {
		t.init, err = startInitContainer(ctx, d.agent, string(restore.UID), d.node.volumesDir(t.instance, t.stored[0]), func() error {
			return d.node.setRunning(ctx, t.pod, false)
		})
	}
	return t, err
}

// finishTarget waits for the end of the pod's init container, after which its containers run.
func (d *demo) finishTarget(ctx context.Context, t *target) error {
	if t.init == nil {
		return nil
	}
	if err := t.init.wait(ctx); err != nil {
		return fmt.Errorf("init container %s of pod %s: %w", restoreWait, t.name, err)
	}
	return nil
}

// compare compares the volumes of the new pods with those that were backed up.
func (d *demo) compare(ctx context.Context, sources []*instance, targets []*target) error {
	begin := time.Now()
	var differences []error
	for i, in := range sources {
		for _, v := range in.volumes {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			found, err := tree.Compare(in.dirs[v.name], targets[i].dirs[v.name], tree.Options{Sparse: true})
			if err != nil {
				return err
			}
			d.result.restored++
			d.result.differences += len(found)
			for _, difference := range found[:min(len(found), maxDifferences)] {
				differences = append(differences, fmt.Errorf("%s: %s", label(in.name, v.name), difference))
			}
		}
	}
	if len(differences) > 0 {
		return fmt.Errorf("the restored volumes differ from the originals in %d places:\n%w", d.result.differences, errors.Join(differences...))
	}
	d.say("compared content, mode, owner, times, links, holes and attributes in %.1f s", time.Since(begin).Seconds())
	return nil
}
