package repositorytask

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// refusedError ends a task before it has begun: it cannot do what it is asked for.
type refusedError struct {
	reason  v1alpha1.Reason
	message string
}

func (e *refusedError) Error() string { return e.message }

func refuse(reason v1alpha1.Reason, format string, args ...any) error {
	return &refusedError{reason, fmt.Sprintf(format, args...)}
}

// selectVolumes returns the PodVolumeBackups that a task works on, in a stable order.
func (c *Controller) selectVolumes(ctx context.Context, spec *v1alpha1.RepositoryTaskSpec) ([]velerov1.PodVolumeBackup, error) {
	if spec.Type != v1alpha1.TaskVerify {
		return nil, refuse(v1alpha1.ReasonUnsupported, "this version does not know tasks of type %q", spec.Type)
	}
	var backup velerov1.Backup
	err := c.api.Get(ctx, c.name(spec.Backup), &backup)
	switch {
	case apierrors.IsNotFound(err):
		return nil, refuse(v1alpha1.ReasonBackupNotFound, "namespace %s has no Backup %q", c.cfg.Namespace, spec.Backup)
	case err != nil:
		return nil, fmt.Errorf("get Backup %s: %w", spec.Backup, err)
	case !hasEnded(&backup):
		return nil, refuse(v1alpha1.ReasonNotReady, "Backup %q has not ended: it is %s", spec.Backup, cmp.Or(string(backup.Status.Phase), "New"))
	}
	var list velerov1.PodVolumeBackupList
	// Velero cuts the label as LabelValue does. Another backup's label may be the same, but not its UID.
	if err := c.api.List(ctx, &list, client.InNamespace(c.cfg.Namespace), client.MatchingLabels{velerov1.BackupNameLabel: v1alpha1.LabelValue(backup.Name)}); err != nil {
		return nil, fmt.Errorf("list the PodVolumeBackups of backup %s: %w", backup.Name, err)
	}
	var selected []velerov1.PodVolumeBackup
	for i := range list.Items {
		if belongsTo(&list.Items[i], &backup) && selects(spec.Volume, &list.Items[i]) {
			selected = append(selected, list.Items[i])
		}
	}
	if len(selected) == 0 {
		return nil, c.nothingSelected(ctx, spec)
	}
	slices.SortFunc(selected, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(cmp.Compare(a.Spec.Pod.Namespace, b.Spec.Pod.Namespace), cmp.Compare(a.Spec.Pod.Name, b.Spec.Pod.Name),
			cmp.Compare(a.Spec.Volume, b.Spec.Volume), cmp.Compare(a.Name, b.Name))
	})
	return selected, nil
}

func hasEnded(b *velerov1.Backup) bool {
	switch b.Status.Phase {
	case velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed, velerov1.BackupPhaseFailed, velerov1.BackupPhaseFailedValidation:
		return true
	default:
		return false
	}
}

// belongsTo trusts the reference to the owner before the label, which Velero cuts. Objects that a server has synced from a
// bucket refer to the Backup of this cluster.
func belongsTo(pvb *velerov1.PodVolumeBackup, b *velerov1.Backup) bool {
	for _, owner := range pvb.OwnerReferences {
		if owner.Kind == "Backup" && strings.HasPrefix(owner.APIVersion, velerov1.SchemeGroupVersion.Group+"/") {
			return owner.Name == b.Name
		}
	}
	return true
}

func selects(s *v1alpha1.PodVolumeSelector, pvb *velerov1.PodVolumeBackup) bool {
	return s == nil || s.Namespace == pvb.Spec.Pod.Namespace && (s.Pod == "" || s.Pod == pvb.Spec.Pod.Name) && (s.Volume == "" || s.Volume == pvb.Spec.Volume)
}

// nothingSelected is the error of a task without volumes. It names the plugins that have made volumes of the backup.
func (c *Controller) nothingSelected(ctx context.Context, spec *v1alpha1.RepositoryTaskSpec) error {
	if spec.Volume != nil {
		return refuse(v1alpha1.ReasonNoPodVolumes, "backup %q has no volume %s whose files were backed up", spec.Backup, selectorText(spec.Volume))
	}
	var records v1alpha1.VolumePluginBackupList
	if err := c.api.List(ctx, &records, client.InNamespace(c.cfg.Namespace)); err != nil {
		return fmt.Errorf("list the VolumePluginBackups: %w", err)
	}
	var plugins []string
	made := 0
	for i := range records.Items {
		if r := &records.Items[i]; r.Spec.Backup == spec.Backup {
			made++
			plugins = append(plugins, r.Spec.Plugin)
		}
	}
	if made == 0 {
		return refuse(v1alpha1.ReasonNoPodVolumes, "backup %q has no volume whose files were backed up with restic or kopia", spec.Backup)
	}
	slices.Sort(plugins)
	return refuse(v1alpha1.ReasonNoPodVolumes, "backup %q has %s, made by %s: only the plugin can read them. No volume of it is in a repository of restic or kopia",
		spec.Backup, text.Count(int64(made), "volume", "volumes"), strings.Join(slices.Compact(plugins), ", "))
}

func selectorText(s *v1alpha1.PodVolumeSelector) string {
	return fmt.Sprintf("%s/%s:%s", s.Namespace, cmp.Or(s.Pod, "*"), cmp.Or(s.Volume, "*"))
}

// newVolume is the entry of a volume that is not done yet, or will not be: then it says why.
func newVolume(pvb *velerov1.PodVolumeBackup) v1alpha1.RepositoryTaskVolume {
	v := v1alpha1.RepositoryTaskVolume{
		Namespace: pvb.Spec.Pod.Namespace, Pod: pvb.Spec.Pod.Name, Volume: pvb.Spec.Volume, PodVolumeBackup: pvb.Name,
		Uploader: cmp.Or(pvb.Spec.UploaderType, uploaderRestic), SnapshotID: pvb.Status.SnapshotID, Result: v1alpha1.VolumePending,
	}
	switch {
	case pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted:
		v.Result, v.Reason = v1alpha1.VolumeFailed, v1alpha1.ReasonNotBackedUp
		v.Message = fmt.Sprintf("the backup of the volume is %s: there is no snapshot", cmp.Or(string(pvb.Status.Phase), "New"))
	case pvb.Status.SnapshotID == "":
		v.Result, v.Reason, v.Message = v1alpha1.VolumeSkipped, v1alpha1.ReasonEmptyVolume, "the volume was empty: there is no snapshot"
	}
	return v
}

// uploaderRestic is what an empty uploaderType means, in objects from before Velero 1.10.
const uploaderRestic = "restic"
