package podvolume

import (
	"context"
	"maps"
	"path"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

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
	req.Tags, req.VolumeID = pvb.Spec.Tags, volumeID(pvb)
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

// volumeID tells the volume of a backup from all others. Only a claim outlives its pod.
func volumeID(pvb *velerov1.PodVolumeBackup) string {
	switch claim, pod := pvb.Labels[velerov1.PVCUIDLabel], pvb.Spec.Pod.UID; {
	case claim != "":
		return claim
	case pod != "":
		return string(pod) + "/" + pvb.Spec.Volume
	default:
		return ""
	}
}
