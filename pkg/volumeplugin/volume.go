package volumeplugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// SetVolume names the PersistentVolume that a restore is for, also after the restore has ended: Velero tells it last. It
// returns when that is written, or after Options.FlushTimeout. A backup has its volume from the begin; there it does nothing.
func (o *Operation) SetVolume(name string) {
	timeout := time.NewTimer(o.recorder.FlushTimeout)
	defer timeout.Stop()
	select {
	case <-o.recorder.begun(func(ctx context.Context) { o.nameVolume(ctx, name) }):
	case <-timeout.C:
	}
}

// nameVolume tries until the object has the name of its volume, or only people can help.
func (o *Operation) nameVolume(ctx context.Context, name string) {
	select {
	case <-o.found:
	case <-o.over:
	case <-ctx.Done():
	}
	select {
	case <-o.found:
	default:
		return // there is no object
	}
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, longPause) {
		err := o.patchVolume(ctx, name)
		if client.IgnoreNotFound(err) == nil { // done, or the object was deleted
			return
		}
		o.recorder.log.unnamed(err)
		if lasting(err) {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// patchVolume changes nothing else: the status may be written at the same time.
func (o *Operation) patchVolume(ctx context.Context, name string) error {
	object, isRestore := o.object.DeepCopyObject().(*v1alpha1.VolumePluginRestore)
	if !isRestore {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{v1alpha1.LabelVolume: v1alpha1.LabelValue(name)}},
		"spec":     map[string]string{"volume": name},
	})
	if err != nil {
		return fmt.Errorf("name the volume of VolumePluginRestore %s: %w", object.Name, err)
	}
	if err := o.recorder.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("name the volume of VolumePluginRestore %s: %w", object.Name, err)
	}
	return nil
}
