package volumeplugin

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// OpenBackup finds or makes the object that BeginBackup would write to. It is for who must know the object, or why there is
// none, before GoOn reports in it; the error wraps the API server's. An object of the same snapshot may have ended.
func (r *Recorder) OpenBackup(ctx context.Context, req BackupRequest) (*v1alpha1.VolumePluginBackup, error) {
	found, err := r.openBackup(req)(ctx)
	if err != nil {
		return nil, err
	}
	object, _ := found.record.Object.(*v1alpha1.VolumePluginBackup)
	return object, nil
}

// OpenRestore is to BeginRestore what OpenBackup is to BeginBackup.
func (r *Recorder) OpenRestore(ctx context.Context, req RestoreRequest) (*v1alpha1.VolumePluginRestore, error) {
	found, err := r.openRestore(nameOfThis(req), req)(ctx)
	if err != nil {
		return nil, err
	}
	object, _ := found.record.Object.(*v1alpha1.VolumePluginRestore)
	return object, nil
}

// GoOn goes on with the operation of a VolumePluginBackup or VolumePluginRestore, whoever has begun it. It returns at once.
// Its id is what the object says: one that OpenBackup or OpenRestore was given is still to be told, with SetID.
func (r *Recorder) GoOn(object client.Object) *Operation {
	left := recordOf(object)
	key := restoreKey(object.GetName())
	if backup, ok := object.(*v1alpha1.VolumePluginBackup); ok {
		key = backupKey(backup.Spec.Backup, backup.Spec.Volume)
	}
	return r.begin(key, left.kind+" "+left.GetName(), *left.id, func(ctx context.Context) (opened, error) {
		found := opened{record: left, goesOn: true}
		if _, isRestore := object.(*v1alpha1.VolumePluginRestore); isRestore && left.status.Progress.TotalBytes == 0 {
			_, found.knownSize = r.backupOf(ctx, *left.snapshotID)
		}
		return found, nil
	})
}

// Ended is closed when nothing more is written: the end is, the object was deleted or had ended, or the Recorder is closed.
func (o *Operation) Ended() <-chan struct{} { return o.over }
