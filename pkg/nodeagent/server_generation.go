package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// What Velero's own agents write into kopia's snapshots, and look for to continue a chain of them
// (docs/contracts/velero-node-agent.md 6.4).
const (
	uploaderKopia    = "kopia"
	requesterTag     = "snapshot-requester"
	uploaderTag      = "snapshot-uploader"
	requesterTo116   = "pod-volume-backup-restore"
	requesterFrom117 = "snapshot-pod-volume"
	pvcAnnotation    = "velero.io/pvc-name"
)

// setSnapshotSource decides under which name and tags a snapshot is filed: restic's as the PodVolumeBackup says, kopia's as the Velero
// of the cluster's CRDs would, so that each continues what the other has begun.
func (a *Agent) setSnapshotSource(ctx context.Context, pvb *velerov1.PodVolumeBackup, req *uploader.BackupRequest) error {
	req.Tags = pvb.Spec.Tags
	if pvb.Spec.UploaderType != uploaderKopia {
		return nil
	}
	from117, err := a.crdHasCancel(ctx)
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

// crdHasCancel says whether PodVolumeBackups have spec.cancel, which came with Velero 1.17. The schema is published to
// every authenticated client, so that this needs no right to read CustomResourceDefinitions.
func (a *Agent) crdHasCancel(ctx context.Context) (bool, error) {
	d, err := discovery.NewDiscoveryClientForConfig(a.rest)
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

// repositoryConfig returns the settings of the subject's BackupRepository, which a Velero server keeps; nil where there is
// none. They hold kopia's cache limit, and nothing that a restic repository needs.
func (a *Agent) repositoryConfig(ctx context.Context, s PodVolume) map[string]string {
	if s.UploaderType != uploaderKopia {
		return nil
	}
	var list velerov1.BackupRepositoryList
	err := a.patientAPI.List(ctx, &list, client.InNamespace(a.cfg.Namespace), client.MatchingLabels{
		velerov1.VolumeNamespaceLabel: s.RepoNamespace,
		velerov1.StorageLocationLabel: s.Location,
		velerov1.RepositoryTypeLabel:  uploaderKopia,
	})
	if err != nil {
		a.cfg.Logger.Debug("Cannot read the BackupRepository, using the default cache limit", "error", err)
		return nil
	}
	if len(list.Items) == 0 {
		return nil
	}
	return list.Items[0].Spec.RepositoryConfig
}
