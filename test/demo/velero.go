package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	veleroNamespace = "velero"
	location        = velero.Location
	backupName      = "demo"
	restoreName     = "demo-restore"
	restoredSuffix  = "-restored" // of the namespaces that volumes are restored into
	restic          = "restic"
	kopia           = "kopia"
	pvcNameKey      = "velero.io/pvc-name" // pkg/podvolume/configs of Velero
)

// server plays the Velero server: it creates the objects that the node agent works on, field for field as Velero 1.18 does
// (newPodVolumeBackup and newPodVolumeRestore of its pkg/podvolume; docs/contracts/velero-node-agent.md 2.1 and 2.2).
type server struct {
	client       client.Client
	namespace    string // of the server and of the node agents
	repositories string // directory of the repositories, one for each namespace and data path; empty if they are not in a directory
}

// directory returns the BackupStorageLocation of a directory.
func (s *server) directory() velerov1.BackupStorageLocationSpec {
	return velerov1.BackupStorageLocationSpec{
		Provider:    "velero.io/fs",
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "demo"}},
		Config:      map[string]string{"resticRepoPrefix": s.repositories, "fspath": s.repositories},
	}
}

// install creates the BackupStorageLocation and the Secret that exist before the first backup.
func (s *server) install(ctx context.Context, spec velerov1.BackupStorageLocationSpec) error {
	objects := []client.Object{
		&velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: location}, Spec: spec},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "velero-repo-credentials"},
			StringData: map[string]string{"repository-password": rand.Text()},
		},
	}
	for _, object := range objects {
		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// beginBackup makes the Backup that owns PodVolumeBackups.
func (s *server) beginBackup(ctx context.Context) (*velerov1.Backup, error) {
	backup := &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: backupName},
		Spec:       velerov1.BackupSpec{StorageLocation: location},
		Status:     velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	if err := s.client.Create(ctx, backup); err != nil {
		return nil, fmt.Errorf("create Backup: %w", err)
	}
	return backup, nil
}

func (s *server) endBackup(ctx context.Context, backup *velerov1.Backup, completed bool) error {
	before := backup.DeepCopy()
	backup.Status.Phase, backup.Status.CompletionTimestamp = velerov1.BackupPhasePartiallyFailed, new(metav1.Now())
	if completed {
		backup.Status.Phase = velerov1.BackupPhaseCompleted
	}
	return s.client.Patch(ctx, backup, client.MergeFrom(before))
}

// createBackup asks for the backup of a volume.
func (s *server) createBackup(ctx context.Context, backup *velerov1.Backup, in *instance, volume string) error {
	pvb := velero.PodVolumeBackup(backup, in.pod, volume, in.uploader)
	pvb.Spec.RepoIdentifier = s.identifier(in.uploader, in.namespace)
	if claim := in.claims[volume]; claim != nil {
		pvb.Annotations = map[string]string{pvcNameKey: claim.Name}
		pvb.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
		pvb.Spec.Tags["pvc-uid"] = string(claim.UID)
	}
	if err := s.client.Create(ctx, pvb); err != nil {
		return fmt.Errorf("create PodVolumeBackup of %s: %w", label(in.name, volume), err)
	}
	return nil
}

// backups returns the PodVolumeBackups by the labels of their volumes.
func (s *server) backups(ctx context.Context) (map[string]*velerov1.PodVolumeBackup, error) {
	var list velerov1.PodVolumeBackupList
	if err := s.client.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{velerov1.BackupNameLabel: backupName}); err != nil {
		return nil, fmt.Errorf("list PodVolumeBackups: %w", err)
	}
	backups := map[string]*velerov1.PodVolumeBackup{}
	for i := range list.Items {
		pvb := &list.Items[i]
		backups[label(pvb.Spec.Pod.Name, pvb.Spec.Volume)] = pvb
	}
	return backups, nil
}

// beginRestore makes the Restore that owns PodVolumeRestores. It restores sparse files as such.
func (s *server) beginRestore(ctx context.Context, namespaces map[string]string) (*velerov1.Restore, error) {
	restore := &velerov1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: restoreName},
		Spec: velerov1.RestoreSpec{
			BackupName: backupName, NamespaceMapping: namespaces,
			UploaderConfig: &velerov1.UploaderConfigForRestore{WriteSparseFiles: new(true)},
		},
		Status: velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	if err := s.client.Create(ctx, restore); err != nil {
		return nil, fmt.Errorf("create Restore: %w", err)
	}
	return restore, nil
}

func (s *server) endRestore(ctx context.Context, restore *velerov1.Restore, completed bool) error {
	before := restore.DeepCopy()
	restore.Status.Phase, restore.Status.CompletionTimestamp = velerov1.RestorePhasePartiallyFailed, new(metav1.Now())
	if completed {
		restore.Status.Phase = velerov1.RestorePhaseCompleted
	}
	return s.client.Patch(ctx, restore, client.MergeFrom(before))
}

// createRestore asks for the restore of what a PodVolumeBackup stored into a volume of a new pod.
func (s *server) createRestore(ctx context.Context, restore *velerov1.Restore, in *instance, pvb *velerov1.PodVolumeBackup) error {
	pvr := velero.PodVolumeRestore(restore, in.pod, pvb.Spec.Volume, pvb.Spec.UploaderType, pvb.Status.SnapshotID, pvb.Spec.Pod.Namespace)
	pvr.Spec.SnapshotSize, pvr.Spec.RepoIdentifier = pvb.Status.Progress.TotalBytes, pvb.Spec.RepoIdentifier
	pvr.Spec.UploaderSettings = map[string]string{"WriteSparseFiles": "true"}
	if claim := in.claims[pvb.Spec.Volume]; claim != nil {
		pvr.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
	}
	if err := s.client.Create(ctx, pvr); err != nil {
		return fmt.Errorf("create PodVolumeRestore of %s: %w", label(in.name, pvb.Spec.Volume), err)
	}
	return nil
}

// identifier is what a Velero server writes into repoIdentifier: restic's address, and nothing for kopia. From nothing, the agent
// derives the address of restic's repository, too.
func (s *server) identifier(uploader, namespace string) string {
	if uploader == kopia || s.repositories == "" {
		return ""
	}
	return filepath.Join(s.repositories, namespace)
}
