package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/tree"
)

// maxDifferences is how many differences are told of each volume.
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
	d.say("made %d volumes in %d pods: %d files, %s", volumes, len(sources), files, formatSize(bytes))
	return sources, nil
}

// backUp backs all volumes up and returns the PodVolumeBackups by the labels of their volumes.
func (d *demo) backUp(ctx context.Context, sources []*instance, j *journal) (map[string]*velerov1.PodVolumeBackup, error) {
	begin := time.Now()
	backup, err := d.server.beginBackup(ctx)
	if err != nil {
		return nil, err
	}
	var labels []string
	for _, in := range sources {
		for _, v := range in.volumes {
			if err := d.server.createBackup(ctx, backup, in, v.name); err != nil {
				return nil, err
			}
			labels = append(labels, label(in.name, v.name))
		}
	}
	d.say("created %d PodVolumeBackups, that of gallery/photos for kopia, the others for restic", len(labels))
	if err := d.follow(ctx, &velerov1.PodVolumeBackupList{}, "backup", labels, j); err != nil {
		return nil, err
	}
	d.say("backed up %d volumes in %.1f s", len(labels), time.Since(begin).Seconds())
	d.result.backedUp = len(labels)
	backups, err := d.server.backups(ctx)
	return backups, errors.Join(err, d.server.endBackup(ctx, backup))
}

// follow shows the progress of the labels' volumes until they all have ended well.
func (d *demo) follow(ctx context.Context, list client.ObjectList, action string, labels []string, j *journal) error {
	v := d.view(action, labels)
	err := follow(ctx, d.client, list, j.ended()+len(labels), j, v)
	v.close()
	return errors.Join(err, j.failures())
}

// target is a pod into which is restored.
type target struct {
	*instance
	stored []volume       // those of its volumes that there is a snapshot of
	init   *initContainer // nil if there is none
}

// restore restores all that was stored into pods of other namespaces. These pods run when it returns.
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
	var labels []string
	for _, in := range sources {
		t, err := d.startTarget(ctx, restore, in, backups)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
		for _, v := range t.stored {
			name := label(in.name, v.name)
			if err := d.server.createRestore(ctx, restore, t.instance, backups[name]); err != nil {
				return nil, err
			}
			labels = append(labels, name)
		}
	}
	d.say("created %d PodVolumeRestores", len(labels))
	if err := d.follow(ctx, &velerov1.PodVolumeRestoreList{}, "restore", labels, j); err != nil {
		return nil, err
	}
	for _, t := range targets {
		if err := d.finishTarget(ctx, t); err != nil {
			return nil, err
		}
	}
	d.say("restored %d volumes in %.1f s; init containers have ended, pods run", len(labels), time.Since(begin).Seconds())
	return targets, d.server.endRestore(ctx, restore)
}

// startTarget starts the pod that a backed up one becomes. It has an init container if there is something to restore.
func (d *demo) startTarget(ctx context.Context, restore *velerov1.Restore, source *instance, backups map[string]*velerov1.PodVolumeBackup) (*target, error) {
	t := &target{}
	for _, v := range source.volumes {
		name := label(source.name, v.name)
		if backups[name].Status.SnapshotID != "" {
			t.stored = append(t.stored, v)
			continue
		}
		d.say("%s was empty: no snapshot, no PodVolumeRestore; its new pod just starts", name)
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
		return fmt.Errorf("what was restored differs from the original in %d ways:\n%w", d.result.differences, errors.Join(differences...))
	}
	d.say("compared content, mode, owner, times, links, holes and attributes in %.1f s", time.Since(begin).Seconds())
	return nil
}
