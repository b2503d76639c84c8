package volumeplugin

import (
	"cmp"
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// maxRuns is how many objects one volume may have in one backup: a plugin that fails and begins anew gets another one.
const maxRuns = 100

// veleroBackup is whose deletion deletes our objects.
var veleroBackup = schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: "Backup"}

// openBackup finds the object of a backup that was begun and not ended, or makes one.
func (r *Recorder) openBackup(req BackupRequest) opener {
	return func(ctx context.Context) (opened, error) {
		spec := v1alpha1.VolumePluginBackupSpec{Volume: req.Volume, Backup: req.Backup, Plugin: r.Plugin, PluginSpecific: req.PluginSpecific}
		labels := client.MatchingLabels{
			v1alpha1.LabelBackup: v1alpha1.LabelValue(spec.Backup), v1alpha1.LabelVolume: v1alpha1.LabelValue(spec.Volume),
			v1alpha1.LabelPlugin: v1alpha1.LabelValue(r.Plugin),
		}
		list := &v1alpha1.VolumePluginBackupList{}
		if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace), labels); err != nil {
			return opened{}, fmt.Errorf("look for the VolumePluginBackup of volume %s: %w", spec.Volume, err)
		}
		for i := range list.Items {
			if o := &list.Items[i]; sameBackup(o, spec) && r.goesOn(o, req.SnapshotID) {
				return opened{record: recordOf(o), goesOn: true}, nil
			}
		}
		name := nameOfVolume(r.Plugin, spec.Backup, spec.Volume)
		if req.SnapshotID != "" {
			name = NameOf(req.SnapshotID)
		}
		return r.createBackup(ctx, name, labels, spec, req.SnapshotID)
	}
}

func sameBackup(o *v1alpha1.VolumePluginBackup, spec v1alpha1.VolumePluginBackupSpec) bool {
	return o.Spec.Backup == spec.Backup && o.Spec.Volume == spec.Volume && o.Spec.Plugin == spec.Plugin
}

// goesOn reports whether o is the object of this operation. One that has ended is it only if it is of the same snapshot.
func (r *Recorder) goesOn(o *v1alpha1.VolumePluginBackup, snapshotID string) bool {
	if recordOf(o).synced() {
		return false
	}
	sameSnapshot := snapshotID != "" && o.Status.SnapshotID == snapshotID
	return sameSnapshot || !o.Status.Phase.Terminal()
}

// createBackup makes the object under its name or, where other runs have had that, under the next number.
func (r *Recorder) createBackup(ctx context.Context, name string, labels map[string]string, spec v1alpha1.VolumePluginBackupSpec, snapshotID string) (opened, error) {
	meta := metav1.ObjectMeta{Namespace: r.Namespace, Labels: maps.Clone(labels), OwnerReferences: r.owner(ctx, spec.Backup)}
	if snapshotID != "" {
		meta.Labels[v1alpha1.LabelSnapshotID] = v1alpha1.LabelValue(snapshotID)
	}
	for run := 1; run <= maxRuns; run++ {
		meta.Name = name
		if run > 1 {
			meta.Name = fmt.Sprintf("%s-%d", name, run)
		}
		object := &v1alpha1.VolumePluginBackup{ObjectMeta: meta, Spec: spec}
		err := r.Client.Create(ctx, object)
		if err == nil {
			return opened{record: recordOf(object)}, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return opened{}, fmt.Errorf("create the VolumePluginBackup of volume %s: %w", spec.Volume, err)
		}
		if err := r.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return opened{}, fmt.Errorf("get VolumePluginBackup %s: %w", meta.Name, err)
		}
		if sameBackup(object, spec) && r.goesOn(object, snapshotID) { // another process was quicker
			return opened{record: recordOf(object), goesOn: true}, nil
		}
	}
	return opened{}, fmt.Errorf("volume %s has %d VolumePluginBackups in backup %s", spec.Volume, maxRuns, spec.Backup)
}

// owner returns the Backup as the owner, so that our object is deleted with it. Without the right to see it, or in a
// cluster without Velero, there is none.
func (r *Recorder) owner(ctx context.Context, backup string) []metav1.OwnerReference {
	if backup == "" {
		return nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(veleroBackup)
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: backup}, object); err != nil {
		r.log.log.Debug("Object gets no owner", "backup", backup, "error", err)
		return nil
	}
	return []metav1.OwnerReference{{
		APIVersion: veleroBackup.GroupVersion().String(), Kind: veleroBackup.Kind, Name: backup, UID: object.UID,
	}}
}

// openRestore makes the object of a restore, or finds it under its name.
func (r *Recorder) openRestore(name string, req RestoreRequest) opener {
	return func(ctx context.Context) (opened, error) {
		source, size := r.backupOf(ctx, req.SnapshotID)
		backup := cmp.Or(req.Backup, source.Backup)
		labels := map[string]string{
			v1alpha1.LabelPlugin: v1alpha1.LabelValue(r.Plugin), v1alpha1.LabelSnapshotID: v1alpha1.LabelValue(req.SnapshotID),
		}
		if backup != "" {
			labels[v1alpha1.LabelBackup] = v1alpha1.LabelValue(backup)
		}
		if source.Volume != "" {
			labels[v1alpha1.LabelVolume] = v1alpha1.LabelValue(source.Volume)
		}
		object := &v1alpha1.VolumePluginRestore{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name, Labels: labels, OwnerReferences: r.owner(ctx, backup)},
			Spec: v1alpha1.VolumePluginRestoreSpec{
				SnapshotID: req.SnapshotID, Volume: source.Volume, Backup: backup, Plugin: r.Plugin, PluginSpecific: req.PluginSpecific,
			},
		}
		err := r.Client.Create(ctx, object)
		if err == nil {
			return opened{record: recordOf(object), knownSize: size}, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return opened{}, fmt.Errorf("create the VolumePluginRestore of snapshot %s: %w", req.SnapshotID, err)
		}
		if err := r.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return opened{}, fmt.Errorf("get VolumePluginRestore %s: %w", name, err)
		}
		return opened{record: recordOf(object), goesOn: true, knownSize: size}, nil
	}
}

// backupOf returns what is known about a snapshot from the time when it was made, here or in another cluster.
func (r *Recorder) backupOf(ctx context.Context, snapshotID string) (spec v1alpha1.VolumePluginBackupSpec, size int64) {
	list := &v1alpha1.VolumePluginBackupList{}
	labels := client.MatchingLabels{
		v1alpha1.LabelPlugin: v1alpha1.LabelValue(r.Plugin), v1alpha1.LabelSnapshotID: v1alpha1.LabelValue(snapshotID),
	}
	if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace), labels); err != nil {
		r.log.log.Debug("Nothing is known about the backup of a snapshot", "snapshot", snapshotID, "error", err)
		return spec, 0
	}
	for i := range list.Items {
		o := &list.Items[i]
		if o.Spec.Plugin != r.Plugin || o.Status.SnapshotID != snapshotID {
			continue
		}
		if o.Status.Phase == v1alpha1.PhaseCompleted {
			size = o.Status.Progress.TotalBytes
		}
		return o.Spec, size
	}
	return spec, 0
}
