package volumeplugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
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
	again := func(err error) bool {
		o.recorder.log.unnamed(err)
		return !lasting(err)
	}
	_ = apiretry.Policy{Backoff: newBackoff(), Retry: again}.Do(ctx, func() error {
		return client.IgnoreNotFound(o.patchVolume(ctx, name)) // the object may have been deleted
	})
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
