//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

const (
	disks       = beside + "-disks"                             // namespace, PersistentVolume and Backup
	pluginDir   = nodeDir + "/" + ownNamespace + "/plugin"      // on the second node; the server's pod has it at the same path
	pluginOnTop = nodeDirInPod + "/" + ownNamespace + "/plugin" // for onNode
)

// testServerPlugin has the sample plugin, which the server finds in its plugin directory and starts, make and restore a
// snapshot: everything that the objects tell is written by that process.
func (c *cluster) testServerPlugin(t *testing.T) {
	c.onNode(t, c.nodes[1], "mkdir", pluginOnTop+"/volumes/shop", pluginOnTop+"/snapshots")
	c.onNode(t, c.nodes[1], "copy", "/usr/local/bin", pluginOnTop+"/volumes/shop")
	for _, object := range c.manifests(t, "records") {
		c.apply(t, object)
	}
	c.create(t, &velerov1.VolumeSnapshotLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: location},
		Spec: velerov1.VolumeSnapshotLocationSpec{
			Provider: "example.io/directories", Config: map[string]string{"dir": pluginDir, "limit": "4000000", "interval": "200ms"},
		},
	})
	c.giveServerDisks(t)
	pod, volume := c.startDiskApp(t)
	made := c.checkPluginBackup(t)
	c.checkPluginRestore(t, pod, volume, made)
	c.checkPluginDeletes(t)
	c.deleteManifests(t, "records")
}

// giveServerDisks moves the server to the second node, and lets it have the directories of the plugin there.
func (c *cluster) giveServerDisks(t *testing.T) {
	t.Helper()
	server := &appsv1.Deployment{}
	if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: veleroNamespace, Name: "velero"}, server); err != nil {
		t.Fatal(err)
	}
	before := server.DeepCopy()
	server.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType} // the node has no CPU for two
	spec := &server.Spec.Template.Spec
	spec.Affinity = onlyOn(c.nodes[1])
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "disks", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: pluginDir, Type: new(corev1.HostPathDirectory)},
	}})
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "disks", MountPath: pluginDir})
	if err := c.client.Patch(t.Context(), server, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server runs with its disks", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(server), server)
		s := server.Status
		ready := s.ObservedGeneration == server.Generation && s.UpdatedReplicas == 1 && s.Replicas == 1 && s.AvailableReplicas == 1
		return err == nil && ready, errors.Join(err, fmt.Errorf("%+v", s))
	})
}

// startDiskApp starts a pod with a claim on the plugin's volume.
func (c *cluster) startDiskApp(t *testing.T) (*corev1.Pod, *corev1.PersistentVolume) {
	t.Helper()
	c.createNamespace(t, disks)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: disks, Labels: ownLabels},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, StorageClassName: storageClass, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			NodeAffinity:           &corev1.VolumeNodeAffinity{Required: c.localTo(c.nodes[1])},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: pluginDir + "/volumes/shop"}},
		},
	}
	c.create(t, volume)
	c.create(t, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: disks, Name: local},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: new(storageClass), VolumeName: volume.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: disks, Name: "app"},
		Spec: corev1.PodSpec{
			Affinity: onlyOn(c.nodes[1]), TerminationGracePeriodSeconds: new(int64(1)),
			Volumes: []corev1.Volume{{Name: local, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: local},
			}}},
			Containers: []corev1.Container{{
				Name: "app", Image: c.own, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"sleep"},
				VolumeMounts: []corev1.VolumeMount{{Name: local, MountPath: "/data"}},
			}},
		},
	}
	c.create(t, pod)
	return c.awaitPod(t, pod, corev1.PodRunning), volume
}

// followPlugin waits for the end of a plugin's operation, and holds that its progress was seen and never fell.
func (c *cluster) followPlugin(t *testing.T, what string, status func(ctx context.Context) (*v1alpha1.VolumeOperationStatus, error)) {
	t.Helper()
	seen, last := map[int32]bool{}, int64(0)
	eventually(t, what+" ends", func(ctx context.Context) (bool, error) {
		s, err := status(ctx)
		if err != nil || s == nil {
			return false, err
		}
		if s.Progress.BytesDone < last {
			t.Errorf("%s: %d bytes done after %d", what, s.Progress.BytesDone, last)
		}
		last = s.Progress.BytesDone
		if s.Percent != nil && !s.Phase.Terminal() {
			seen[*s.Percent] = true
		}
		return s.Phase.Terminal(), fmt.Errorf("%+v", *s)
	})
	if len(seen) < 3 {
		t.Errorf("%s: only the percentages %v were seen before its end", what, seen)
	}
}

// checkPluginBackup makes the Backup, and returns its record.
func (c *cluster) checkPluginBackup(t *testing.T) *v1alpha1.VolumePluginBackup {
	t.Helper()
	c.velero(t, "backup", "create", disks, "--include-namespaces", disks)
	made := &v1alpha1.VolumePluginBackup{}
	c.followPlugin(t, "the snapshot", func(ctx context.Context) (*v1alpha1.VolumeOperationStatus, error) {
		var list v1alpha1.VolumePluginBackupList
		if err := c.client.List(ctx, &list, client.InNamespace(veleroNamespace)); err != nil || len(list.Items) == 0 {
			return nil, err
		}
		*made = list.Items[0]
		return &made.Status.VolumeOperationStatus, nil
	})
	backup := &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: disks}}
	eventually(t, "the server has completed Backup "+disks, func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(backup), backup)
		return backup.Status.CompletionTimestamp != nil, errors.Join(err, errors.New(string(backup.Status.Phase)))
	})
	if s := backup.Status; s.Phase != velerov1.BackupPhaseCompleted || s.Errors > 0 || s.VolumeSnapshotsCompleted != 1 {
		t.Fatalf("Backup %s is %+v:\n%s", disks, s, c.velero(t, "backup", "logs", disks))
	}
	if made.Status.Phase != v1alpha1.PhaseCompleted || made.Status.SnapshotID == "" || made.Spec.Volume != disks || made.Spec.Backup != disks {
		t.Errorf("the record is %+v", made)
	}
	eventually(t, "the record is in the bucket", func(ctx context.Context) (bool, error) {
		key := path.Join(besidePrefix, "backups", disks, disks+"-volumepluginbackups.json.gz")
		_, err := c.storage(t).StatObject(ctx, bucket, key, minio.StatObjectOptions{})
		return err == nil, err
	})
	if shown := c.plimsoll(t, "describe", "backup", disks); !strings.Contains(shown, made.Name) || !strings.Contains(shown, made.Status.SnapshotID) {
		t.Errorf("kubectl plimsoll describe backup does not show %s and its snapshot:\n%s", made.Name, shown)
	}
	return made
}

// checkPluginRestore deletes the app and its volume, and has the server restore both.
func (c *cluster) checkPluginRestore(t *testing.T, pod *corev1.Pod, volume *corev1.PersistentVolume, made *v1alpha1.VolumePluginBackup) {
	t.Helper()
	before := c.onNode(t, c.nodes[1], "digest", pluginOnTop+"/volumes/shop")
	c.delete(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: disks}})
	c.awaitGone(t, []string{disks})
	c.delete(t, volume)
	eventually(t, "the PersistentVolume is gone", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(volume), &corev1.PersistentVolume{})
		return apierrors.IsNotFound(err), err
	})

	c.velero(t, "restore", "create", disks, "--from-backup", disks)
	record := &v1alpha1.VolumePluginRestore{}
	c.followPlugin(t, "the restore of the snapshot", func(ctx context.Context) (*v1alpha1.VolumeOperationStatus, error) {
		var list v1alpha1.VolumePluginRestoreList
		if err := c.client.List(ctx, &list, client.InNamespace(veleroNamespace)); err != nil || len(list.Items) == 0 {
			return nil, err
		}
		*record = list.Items[0]
		return &record.Status.VolumeOperationStatus, nil
	})
	restored := c.awaitPod(t, pod, corev1.PodRunning)
	if restored.UID == pod.UID {
		t.Error("the pod is the one that was backed up")
	}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(volume), volume); err != nil {
		t.Fatal(err)
	}
	if record.Status.Phase != v1alpha1.PhaseCompleted || record.Spec.Volume != volume.Name || record.Spec.SnapshotID != made.Status.SnapshotID ||
		record.Status.Progress != made.Status.Progress || record.Status.VolumeID != filepath.Base(volume.Spec.Local.Path) {
		text, _ := json.Marshal(record)
		t.Errorf("the record of the restore is %s, the volume is on %s", text, volume.Spec.Local.Path)
	}
	after := c.onNode(t, c.nodes[1], "digest", pluginOnTop+"/volumes/"+record.Status.VolumeID)
	if after != before || strings.HasPrefix(after, "0 ") {
		t.Errorf("the restored volume has %s, the volume had %s", after, before)
	}
}

// checkPluginDeletes deletes the Backup: its files, its snapshot and the plugin's objects go with it.
func (c *cluster) checkPluginDeletes(t *testing.T) {
	t.Helper()
	c.velero(t, "backup", "delete", disks, "--confirm")
	eventually(t, "Backup "+disks+" and the records of its plugin are gone", func(ctx context.Context) (bool, error) {
		var records v1alpha1.VolumePluginBackupList
		backup := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: disks}, &velerov1.Backup{})
		err := c.client.List(ctx, &records, client.InNamespace(veleroNamespace))
		return apierrors.IsNotFound(backup) && err == nil && len(records.Items) == 0, errors.Join(backup, err)
	})
	for object := range c.storage(t).ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Prefix: path.Join(besidePrefix, "backups", disks) + "/", Recursive: true}) {
		t.Errorf("the bucket still has %s (%v)", object.Key, object.Err)
	}
	if left := c.onNode(t, c.nodes[1], "digest", pluginOnTop+"/snapshots"); !strings.HasPrefix(left, "0 files") {
		t.Errorf("the plugin still has a snapshot: %s", left)
	}
}
