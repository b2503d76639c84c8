//go:build e2e

package e2e

import (
	"path"
	"slices"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/velero"
)

// What a Velero server does: the objects are made field for field as by newPodVolumeBackup and newPodVolumeRestore of its
// pkg/podvolume, those of kopia as in 1.18, those of restic as in 1.16, the last one that made any.

const (
	restoredSuffix = "-restored"          // of the namespaces into which is restored
	pvcNameKey     = "velero.io/pvc-name" // pkg/podvolume/configs of Velero
)

func (c *cluster) beginBackup(t *testing.T, name string) *velerov1.Backup {
	t.Helper()
	backup := &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: name},
		Spec:       velerov1.BackupSpec{StorageLocation: location},
		Status:     velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	c.create(t, backup)
	return backup
}

// requestBackups asks for the backup of all volumes of an app.
func (c *cluster) requestBackups(t *testing.T, backup *velerov1.Backup, a *app) {
	t.Helper()
	c.agentPod(t, a.node) // a server asks only where one runs
	for _, volume := range a.volumes {
		pvb := velero.PodVolumeBackup(backup, a.pod, volume, a.uploader)
		pvb.Spec.RepoIdentifier = c.identifier(a)
		if volume == local {
			pvb.Annotations = map[string]string{pvcNameKey: a.claim.Name}
			pvb.Labels[velerov1.PVCUIDLabel] = string(a.claim.UID)
			pvb.Spec.Tags["pvc-uid"] = string(a.claim.UID)
		}
		c.create(t, pvb)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.uploader == restic && !slices.Contains(c.backedUp, a.namespace) {
		c.backedUp = append(c.backedUp, a.namespace)
	}
}

// identifier is what a server writes into repoIdentifier: restic's address, and nothing for kopia.
func (c *cluster) identifier(a *app) string {
	if a.uploader == kopia {
		return ""
	}
	return c.resticAddress(a.namespace)
}

func (c *cluster) resticAddress(namespace string) string {
	return "s3:" + c.s3 + "/" + path.Join(bucket, "e2e", "restic", namespace)
}

// beginRestore makes a Restore into other namespaces, with sparse files as such.
func (c *cluster) beginRestore(t *testing.T, apps []*app) *velerov1.Restore {
	t.Helper()
	namespaces := map[string]string{}
	for _, a := range apps {
		namespaces[a.namespace] = a.namespace + restoredSuffix
	}
	restore := &velerov1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: apps[0].namespace},
		Spec: velerov1.RestoreSpec{
			BackupName: apps[0].namespace, NamespaceMapping: namespaces,
			UploaderConfig: &velerov1.UploaderConfigForRestore{WriteSparseFiles: new(true)},
		},
		Status: velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	c.create(t, restore)
	return restore
}

// requestRestore asks for the restore of what a PodVolumeBackup stored into a volume of a new pod.
func (c *cluster) requestRestore(t *testing.T, restore *velerov1.Restore, target *app, pvb *velerov1.PodVolumeBackup) {
	t.Helper()
	pvr := velero.PodVolumeRestore(restore, target.pod, pvb.Spec.Volume, pvb.Spec.UploaderType, pvb.Status.SnapshotID, pvb.Spec.Pod.Namespace)
	pvr.Spec.SnapshotSize, pvr.Spec.RepoIdentifier = pvb.Status.Progress.TotalBytes, pvb.Spec.RepoIdentifier
	pvr.Spec.UploaderSettings = map[string]string{"WriteSparseFiles": "true"}
	if pvb.Spec.Volume == local {
		pvr.Labels[velerov1.PVCUIDLabel] = string(target.claim.UID)
	}
	c.create(t, pvr)
}

func (c *cluster) endBackup(t *testing.T, backup *velerov1.Backup) {
	t.Helper()
	before := backup.DeepCopy()
	backup.Status.Phase, backup.Status.CompletionTimestamp = velerov1.BackupPhaseCompleted, new(metav1.Now())
	if err := c.client.Patch(t.Context(), backup, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}
