package repositorytask

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// RefusedError says why volumes cannot be worked on. Another try does not help.
type RefusedError struct {
	Reason  v1alpha1.Reason
	Message string
}

// Error returns the message.
func (e *RefusedError) Error() string { return e.Message }

func refuse(reason v1alpha1.Reason, format string, args ...any) error {
	return &RefusedError{reason, fmt.Sprintf(format, args...)}
}

// Selection says which PodVolumeBackups to work on: those of a Backup, one by its name, or the newest of each volume.
type Selection struct {
	Backup          string                      // the name of a Velero Backup; empty: PodVolumeBackup or Latest is set
	PodVolumeBackup string                      // the name of a PodVolumeBackup, which need not belong to a Backup
	Latest          bool                        // the newest completed one of each volume in each location
	Stored          bool                        // with Latest: the newest one that has a snapshot, of each volume in each repository
	All             bool                        // the restic ones of all Backups
	Volume          *v1alpha1.PodVolumeSelector // of the volumes; nil: all
}

// String names what is selected, as in "backup nightly".
func (s Selection) String() string {
	if s.PodVolumeBackup != "" {
		return "PodVolumeBackup " + s.PodVolumeBackup
	}
	if s.Latest {
		return "the latest backups"
	}
	if s.All {
		return "all restic backups"
	}
	if s.Backup == "" {
		return "backups without a Backup"
	}
	return "backup " + s.Backup
}

// PodVolumeBackups reads the selected PodVolumeBackups of a namespace, in a stable order. Their backup has ended, but may, unless
// Latest is set, have failed, or have left no snapshot. The error is a *RefusedError if there are none, or the API server's. api needs the rights to
// get Backups, to get and list PodVolumeBackups and to list VolumePluginBackups.
func (s Selection) PodVolumeBackups(ctx context.Context, api client.Reader, namespace string) ([]velerov1.PodVolumeBackup, error) {
	switch {
	case s.PodVolumeBackup != "":
		return s.single(ctx, api, namespace)
	case s.Latest:
		return s.latest(ctx, api, namespace)
	case s.All:
		return s.allRestic(ctx, api, namespace)
	}
	var backup velerov1.Backup
	err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: s.Backup}, &backup)
	switch {
	case apierrors.IsNotFound(err):
		return nil, refuse(v1alpha1.ReasonBackupNotFound, "namespace %s has no Backup %q", namespace, s.Backup)
	case err != nil:
		return nil, fmt.Errorf("get Backup %s: %w", s.Backup, err)
	case !hasEnded(&backup):
		return nil, refuse(v1alpha1.ReasonNotReady, "Backup %q has not ended: it is %s", s.Backup, cmp.Or(string(backup.Status.Phase), "New"))
	}
	var list velerov1.PodVolumeBackupList
	// Velero cuts the label as LabelValue does. Another backup's label may be the same, but not its UID.
	if err := api.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{velerov1.BackupNameLabel: v1alpha1.LabelValue(backup.Name)}); err != nil {
		return nil, fmt.Errorf("list the PodVolumeBackups of backup %s: %w", backup.Name, err)
	}
	var selected []velerov1.PodVolumeBackup
	for i := range list.Items {
		if belongsTo(&list.Items[i], &backup) && s.Volume.Selects(&list.Items[i].Spec.Pod, list.Items[i].Spec.Volume) {
			selected = append(selected, list.Items[i])
		}
	}
	if len(selected) == 0 {
		return nil, s.nothing(ctx, api, namespace)
	}
	proof.Sort(selected)
	return selected, nil
}

// single reads the one PodVolumeBackup that is named.
func (s Selection) single(ctx context.Context, api client.Reader, namespace string) ([]velerov1.PodVolumeBackup, error) {
	var pvb velerov1.PodVolumeBackup
	err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: s.PodVolumeBackup}, &pvb)
	switch {
	case apierrors.IsNotFound(err):
		return nil, refuse(v1alpha1.ReasonPodVolumeBackupNotFound, "namespace %s has no PodVolumeBackup %q", namespace, s.PodVolumeBackup)
	case err != nil:
		return nil, fmt.Errorf("get PodVolumeBackup %s: %w", s.PodVolumeBackup, err)
	case !volumeHasEnded(&pvb):
		return nil, refuse(v1alpha1.ReasonNotReady, "PodVolumeBackup %q has not ended: it is %s", s.PodVolumeBackup, cmp.Or(string(pvb.Status.Phase), "New"))
	}
	return []velerov1.PodVolumeBackup{pvb}, nil
}

// shortcoming says what a selected Backup that has not completed may lack: Velero makes no PodVolumeBackup for a volume on a node
// without a node agent. Empty: nothing is known.
func (s Selection) shortcoming(ctx context.Context, api client.Reader, namespace string) (string, error) {
	if s.Backup == "" {
		return "", nil
	}
	var backup velerov1.Backup
	err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: s.Backup}, &backup)
	switch {
	case apierrors.IsNotFound(err): // deleted since its volumes were selected
		return fmt.Sprintf("Backup %s was deleted", s.Backup), nil
	case err != nil:
		return "", fmt.Errorf("get Backup %s: %w", s.Backup, err)
	case backup.Status.Phase == velerov1.BackupPhaseCompleted:
		return "", nil
	}
	return fmt.Sprintf("Backup %s is %s: volumes that it lacks were not looked at", backup.Name, backup.Status.Phase), nil
}

func hasEnded(b *velerov1.Backup) bool {
	switch b.Status.Phase {
	case velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed, velerov1.BackupPhaseFailed, velerov1.BackupPhaseFailedValidation:
		return true
	default:
		return false
	}
}

func volumeHasEnded(pvb *velerov1.PodVolumeBackup) bool {
	switch pvb.Status.Phase {
	case velerov1.PodVolumeBackupPhaseCompleted, velerov1.PodVolumeBackupPhaseFailed, velerov1.PodVolumeBackupPhaseCanceled:
		return true
	default:
		return false
	}
}

// OwnerBackup returns the name of the Backup that a PodVolumeBackup refers to as its owner; empty: it refers to none. Objects
// that a server has synced from a bucket refer to the Backup of this cluster.
func OwnerBackup(pvb *velerov1.PodVolumeBackup) string {
	for _, owner := range pvb.OwnerReferences {
		if owner.Kind == "Backup" && strings.HasPrefix(owner.APIVersion, velerov1.SchemeGroupVersion.Group+"/") {
			return owner.Name
		}
	}
	return ""
}

// belongsTo trusts the reference to the owner before the label, which Velero cuts.
func belongsTo(pvb *velerov1.PodVolumeBackup, b *velerov1.Backup) bool {
	owner := OwnerBackup(pvb)
	return owner == "" || owner == b.Name
}

// nothing is the error of a selection without volumes. It names the plugins that have made volumes of the backup.
func (s Selection) nothing(ctx context.Context, api client.Reader, namespace string) error {
	if s.Volume != nil {
		return refuse(v1alpha1.ReasonNoPodVolumes, "backup %q has no volume %s whose files were backed up", s.Backup, s.Volume)
	}
	var records v1alpha1.VolumePluginBackupList
	if err := api.List(ctx, &records, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the VolumePluginBackups: %w", err)
	}
	var plugins []string
	made := 0
	for i := range records.Items {
		if r := &records.Items[i]; r.Spec.Backup == s.Backup {
			made++
			plugins = append(plugins, r.Spec.Plugin)
		}
	}
	if made == 0 {
		return refuse(v1alpha1.ReasonNoPodVolumes, "backup %q has no volume whose files were backed up with restic or kopia", s.Backup)
	}
	slices.Sort(plugins)
	return refuse(v1alpha1.ReasonNoPodVolumes, "backup %q has %s, made by %s: only the plugin can read them. No volume of it is in a repository of restic or kopia",
		s.Backup, text.Count(int64(made), "volume", "volumes"), strings.Join(slices.Compact(plugins), ", "))
}

// newVolume is the entry of a volume that is not done yet, or will not be: then it says why.
func newVolume(pvb *velerov1.PodVolumeBackup) v1alpha1.RepositoryTaskVolume {
	v := v1alpha1.RepositoryTaskVolume{
		Namespace: pvb.Spec.Pod.Namespace, Pod: pvb.Spec.Pod.Name, Volume: pvb.Spec.Volume, PodVolumeBackup: pvb.Name,
		BackupStorageLocation: pvb.Spec.BackupStorageLocation, Uploader: v1alpha1.UploaderName(pvb.Spec.UploaderType), SnapshotID: pvb.Status.SnapshotID, Result: v1alpha1.VolumePending,
		BackupTimestamp: new(metav1.NewTime(proof.BackupTime(pvb))), ClaimUID: pvb.Labels[velerov1.PVCUIDLabel],
	}
	switch {
	case pvb.Status.Phase == phaseUnsynced:
		v.Result, v.Reason = v1alpha1.VolumeFailed, v1alpha1.ReasonPodVolumeBackupNotFound
		v.Message = "the location lists the volume in this backup, and the cluster has no PodVolumeBackup of it, so a Velero server would not restore it. " +
			"A server syncs the backup again when its Backup is deleted with 'kubectl delete backups.velero.io NAME'; 'velero backup delete' would delete its data"
	case pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted:
		v.Result, v.Reason = v1alpha1.VolumeFailed, v1alpha1.ReasonNotBackedUp
		v.Message = "the backup of the volume is " + cmp.Or(string(pvb.Status.Phase), "New") + WithoutCompleteSnapshot(pvb)
	case pvb.Status.SnapshotID == "":
		v.Result, v.Reason, v.Message = v1alpha1.VolumeSkipped, v1alpha1.ReasonEmptyVolume, "the volume was empty: there is no snapshot"
	}
	return v
}

// WithoutCompleteSnapshot says, after the phase of a PodVolumeBackup that has not completed, why nothing reads its snapshot. One that has failed for
// files that it could not read names the snapshot of the others.
func WithoutCompleteSnapshot(pvb *velerov1.PodVolumeBackup) string {
	if pvb.Status.SnapshotID == "" {
		return ", so there is no snapshot"
	}
	return fmt.Sprintf(". It names snapshot %s, which is not a complete backup and is not read", pvb.Status.SnapshotID)
}

const uploaderRestic = "restic"
