package rbac

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	namespace   = "velero"
	apps        = "shop" // the pods' namespace
	nodeName    = "node-1"
	csiDriver   = "csi.example.com"
	restoreWait = "restore-wait"
	configMap   = "node-agent-config"
)

// cluster is a control plane with what a Velero server and kubelet make, played by the test as administrator.
type cluster struct {
	*testenv.Env

	t       *testing.T
	pods    string // kubelet's pods directory
	repos   string // directory of the repositories
	backup  *velerov1.Backup
	restore *velerov1.Restore
}

// newCluster writes what is asked of the API server to a file.
func newCluster(t *testing.T, audit string) *cluster {
	t.Helper()
	e := testenv.New(t, testenv.Options{Namespace: namespace, AuditLog: audit})
	return &cluster{Env: e, t: t, pods: t.TempDir(), repos: t.TempDir()}
}

// install makes what is there before the agent starts.
func (c *cluster) install() {
	c.t.Helper()
	c.CreateNamespaces(apps)
	c.Create(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{"disk": "fast"}}},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver}},
		&corev1.Secret{ObjectMeta: c.Meta("velero-repo-credentials"), StringData: map[string]string{"repository-password": rand.Text()}},
		&corev1.ConfigMap{ObjectMeta: c.Meta(configMap), Data: map[string]string{
			"config": `{"loadConcurrency": {"perNodeConfig": [{"nodeSelector": {"matchLabels": {"disk": "fast"}}, "number": 4}]}}`,
		}},
		c.DirectoryLocation("default", c.repos),
		&velerov1.BackupRepository{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "shop-default-kopia", Labels: map[string]string{
				velerov1.VolumeNamespaceLabel: apps, velerov1.StorageLocationLabel: "default", velerov1.RepositoryTypeLabel: "kopia",
			}},
			Spec: velerov1.BackupRepositorySpec{
				VolumeNamespace: apps, BackupStorageLocation: "default", RepositoryType: "kopia",
				MaintenanceFrequency: metav1.Duration{Duration: time.Hour}, RepositoryConfig: map[string]string{"cacheLimitMB": "100"},
			},
		},
	)
	c.backup = &velerov1.Backup{ObjectMeta: c.Meta("b1"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress}}
	c.restore = &velerov1.Restore{ObjectMeta: c.Meta("r1"), Spec: velerov1.RestoreSpec{BackupName: "b1"}, Status: velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress}}
	c.Create(c.backup, c.restore)
}

// pod makes a pod with an emptyDir, a volume of a CSI driver, and one of a plugin that has become a CSI driver.
func (c *cluster) pod(name string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: apps, Name: name},
		Spec: corev1.PodSpec{
			NodeName:       nodeName,
			InitContainers: []corev1.Container{{Name: restoreWait, Image: "agent"}},
			Containers:     []corev1.Container{{Name: "main", Image: "main"}},
			Volumes: []corev1.Volume{
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				c.claim(name+"-csi", corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: name},
				}}}),
				c.claim(name+"-old", corev1.PersistentVolume{
					ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": csiDriver}},
					Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
						NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"},
					}},
				}),
			},
		},
	}
	c.Create(pod)
	for _, dir := range []string{"kubernetes.io~empty-dir/scratch", "kubernetes.io~csi/pv-" + name + "-csi/mount", "kubernetes.io~csi/pv-" + name + "-old/mount"} {
		if err := os.MkdirAll(filepath.Join(c.pods, string(pod.UID), "volumes", dir), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.SetInitContainer(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	return pod
}

// claim makes a claim that is bound to the volume, and returns the pod's volume of the same name without the pod's.
func (c *cluster) claim(name string, pv corev1.PersistentVolume) corev1.Volume {
	c.t.Helper()
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv.Name, pv.Spec.AccessModes, pv.Spec.Capacity = "pv-"+name, modes, size
	c.Create(&pv, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: apps, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: pv.Name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	})
	return corev1.Volume{Name: name[len(name)-len("csi"):], VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}
}

// dir is where kubelet has a volume of a pod.
func (c *cluster) dir(pod *corev1.Pod, volume string) string {
	plugin := filepath.Join("kubernetes.io~csi", "pv-"+pod.Name+"-"+volume, "mount")
	if volume == "scratch" {
		plugin = filepath.Join("kubernetes.io~empty-dir", volume)
	}
	return filepath.Join(c.pods, string(pod.UID), "volumes", plugin)
}

// untilGone waits until there is nothing of that path.
func (c *cluster) untilGone(path string) {
	c.t.Helper()
	c.Eventually(path+" is gone", func() bool {
		_, err := os.Lstat(path)
		return errors.Is(err, os.ErrNotExist)
	})
}

// newBackup makes a PodVolumeBackup as a Velero server does.
func (c *cluster) newBackup(pod *corev1.Pod, volume, uploader string) *velerov1.PodVolumeBackup {
	c.t.Helper()
	pvb := velero.PodVolumeBackup(c.backup, pod, volume, uploader)
	pvb.Labels[velerov1.PVCUIDLabel] = pod.Name + volume
	c.Create(pvb)
	return pvb
}

// newRestore makes a PodVolumeRestore as a Velero server does.
func (c *cluster) newRestore(pod *corev1.Pod, volume, uploader, snapshot string) *velerov1.PodVolumeRestore {
	c.t.Helper()
	pvr := velero.PodVolumeRestore(c.restore, pod, volume, uploader, snapshot, apps)
	c.Create(pvr)
	return pvr
}

// backedUp waits for the end of a backup, in the phase, and returns its snapshot.
func (c *cluster) backedUp(pvb *velerov1.PodVolumeBackup, phase velerov1.PodVolumeBackupPhase) string {
	c.t.Helper()
	testenv.EventuallyGet(c.Env, pvb, "terminal", func(_ *velerov1.PodVolumeBackup, err error) bool {
		return err == nil && pvb.Status.CompletionTimestamp != nil
	})
	if pvb.Status.Phase != phase {
		c.t.Errorf("%s of volume %s ends as %s, want %s: %s", pvb.Name, pvb.Spec.Volume, pvb.Status.Phase, phase, pvb.Status.Message)
	}
	return pvb.Status.SnapshotID
}

// restored waits for the end of a restore, in the phase.
func (c *cluster) restored(pvr *velerov1.PodVolumeRestore, phase velerov1.PodVolumeRestorePhase) {
	c.t.Helper()
	testenv.EventuallyGet(c.Env, pvr, "terminal", func(_ *velerov1.PodVolumeRestore, err error) bool {
		return err == nil && pvr.Status.CompletionTimestamp != nil
	})
	if pvr.Status.Phase != phase {
		c.t.Errorf("%s of volume %s ends as %s, want %s: %s", pvr.Name, pvr.Spec.Volume, pvr.Status.Phase, phase, pvr.Status.Message)
	}
}
