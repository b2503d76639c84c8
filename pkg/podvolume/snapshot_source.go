package podvolume

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/client-go/discovery"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// The names and tags that Velero's own agents give to kopia's snapshots, and search for to continue a chain
// (docs/contracts/velero-node-agent.md 6.4).
const (
	uploaderKopia    = "kopia"
	requesterTag     = "snapshot-requester"
	uploaderTag      = "snapshot-uploader"
	requesterTo116   = "pod-volume-backup-restore"
	requesterFrom117 = "snapshot-pod-volume"
	pvcAnnotation    = "velero.io/pvc-name"
)

// setSnapshotSource sets the name and tags under which a snapshot is stored: restic's as in the PodVolumeBackup, kopia's as the
// Velero version of the cluster's CRDs would set them, so that snapshots of both form one chain.
func (op *Operation) setSnapshotSource(ctx context.Context, pvb *velerov1.PodVolumeBackup, req *uploader.BackupRequest) error {
	req.Tags = pvb.Spec.Tags
	if pvb.Spec.UploaderType != uploaderKopia {
		return nil
	}
	from117, err := op.env.crdHasCancel(ctx)
	if err != nil {
		return err
	}
	if !from117 {
		req.Source = req.Volume.Name()
		req.Tags = maps.Clone(pvb.Spec.Tags)
		if req.Tags == nil {
			req.Tags = map[string]string{}
		}
		req.Tags[requesterTag], req.Tags[uploaderTag] = requesterTo116, uploaderKopia
		return nil
	}
	name := pvb.Annotations[pvcAnnotation]
	if name == "" {
		name = pvb.Spec.Volume
	}
	req.Source = path.Join(requesterFrom117, uploaderKopia, pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, name)
	req.Tags = map[string]string{requesterTag: requesterFrom117, uploaderTag: uploaderKopia}
	return nil
}

// crdHasCancel reports whether PodVolumeBackups have spec.cancel, which came with Velero 1.17. The schema is published to
// every authenticated client, so that this needs no right to read CustomResourceDefinitions.
func (e *Environment) crdHasCancel(ctx context.Context) (bool, error) {
	d, err := discovery.NewDiscoveryClientForConfig(e.rest)
	if err != nil {
		return false, fmt.Errorf("make a client for the API schema: %w", err)
	}
	var raw []byte
	err = untilAnswered(ctx, func() error {
		var err error
		raw, err = d.RESTClient().Get().AbsPath("/openapi/v3/apis/velero.io/v1").Do(ctx).Raw()
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read the schema of velero.io/v1: %w", err)
	}
	var schema struct {
		Components struct {
			Schemas map[string]struct {
				Properties struct {
					Spec struct {
						Properties map[string]json.RawMessage `json:"properties"`
					} `json:"spec"`
				} `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &schema); err != nil {
		return false, fmt.Errorf("read the schema of velero.io/v1: %w", err)
	}
	_, ok := schema.Components.Schemas["io.velero.v1.PodVolumeBackup"].Properties.Spec.Properties["cancel"]
	return ok, nil
}
