package rbac

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// cluster is an API server with what a Velero server and kubelet make, played by the test as administrator.
type cluster struct {
	t       *testing.T
	client  client.Client
	rest    *rest.Config
	pods    string // kubelet's pods directory
	repos   string // directory of the repositories
	backup  *velerov1.Backup
	restore *velerov1.Restore
}

func newCluster(t *testing.T, config *rest.Config) *cluster {
	t.Helper()
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{clientgoscheme.AddToScheme, velerov1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{t: t, client: admin, rest: config, pods: t.TempDir(), repos: t.TempDir()}
}

func (c *cluster) create(objects ...client.Object) {
	c.t.Helper()
	for _, o := range objects {
		if err := c.client.Create(c.t.Context(), o); err != nil {
			c.t.Fatal(err)
		}
	}
}

// install makes what is there before the agent starts.
func (c *cluster) install() {
	c.t.Helper()
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	c.create(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: apps}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{"disk": "fast"}}},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver}},
		&corev1.Secret{ObjectMeta: meta("velero-repo-credentials"), StringData: map[string]string{"repository-password": rand.Text()}},
		&corev1.ConfigMap{ObjectMeta: meta(configMap), Data: map[string]string{
			"config": `{"loadConcurrency": {"perNodeConfig": [{"nodeSelector": {"matchLabels": {"disk": "fast"}}, "number": 4}]}}`,
		}},
		&velerov1.BackupStorageLocation{ObjectMeta: meta("default"), Spec: velerov1.BackupStorageLocationSpec{
			Provider:    "velero.io/fs",
			Config:      map[string]string{"fspath": c.repos, "resticRepoPrefix": filepath.Join(c.repos, "restic")},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		}},
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
	c.backup = &velerov1.Backup{ObjectMeta: meta("b1"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress}}
	c.restore = &velerov1.Restore{ObjectMeta: meta("r1"), Spec: velerov1.RestoreSpec{BackupName: "b1"}, Status: velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress}}
	c.create(c.backup, c.restore)
}

// kubeconfig writes a kubeconfig with a token of the service account.
func (c *cluster) kubeconfig(account client.ObjectKey) string {
	c.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.rest.Host, CertificateAuthorityData: c.rest.CAData}
	config.AuthInfos["agent"] = &clientcmdapi.AuthInfo{Token: c.token(account)}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "agent"}
	config.CurrentContext = "test"
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// token returns a token of the service account.
func (c *cluster) token(account client.ObjectKey) string {
	c.t.Helper()
	request := &authenticationv1.TokenRequest{}
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name}}
	if err := c.client.SubResource("token").Create(c.t.Context(), object, request); err != nil {
		c.t.Fatal(err)
	}
	return request.Status.Token
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
	c.create(pod)
	for _, dir := range []string{"kubernetes.io~empty-dir/scratch", "kubernetes.io~csi/pv-" + name + "-csi/mount", "kubernetes.io~csi/pv-" + name + "-old/mount"} {
		if err := os.MkdirAll(filepath.Join(c.pods, string(pod.UID), "volumes", dir), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.wait(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	return pod
}

// claim makes a claim that is bound to the volume, and returns the pod's volume of the same name without the pod's.
func (c *cluster) claim(name string, pv corev1.PersistentVolume) corev1.Volume {
	c.t.Helper()
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv.Name, pv.Spec.AccessModes, pv.Spec.Capacity = "pv-"+name, modes, size
	c.create(&pv, &corev1.PersistentVolumeClaim{
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
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("%s is still there", path)
		}
	}
}

// wait lets kubelet report the state of the pod's init container.
func (c *cluster) wait(pod *corev1.Pod, state corev1.ContainerState) {
	c.t.Helper()
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodPending
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: restoreWait, State: state, Image: "agent", ImageID: "agent"}}
	if err := c.client.Status().Patch(c.t.Context(), pod, before); err != nil {
		c.t.Fatal(err)
	}
}

// newBackup makes a PodVolumeBackup as a Velero server does.
func (c *cluster) newBackup(pod *corev1.Pod, volume, uploader string) *velerov1.PodVolumeBackup {
	c.t.Helper()
	pvb := velero.PodVolumeBackup(c.backup, pod, volume, uploader)
	pvb.Labels[velerov1.PVCUIDLabel] = pod.Name + volume
	c.create(pvb)
	return pvb
}

// newRestore makes a PodVolumeRestore as a Velero server does.
func (c *cluster) newRestore(pod *corev1.Pod, volume, uploader, snapshot string) *velerov1.PodVolumeRestore {
	c.t.Helper()
	pvr := velero.PodVolumeRestore(c.restore, pod, volume, uploader, snapshot, apps)
	c.create(pvr)
	return pvr
}

// until reads an object again and again until ok accepts it.
func (c *cluster) until(o client.Object, what string, ok func() bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := c.client.Get(ctx, client.ObjectKeyFromObject(o), o); err == nil && ok() {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("%T %s did not become %s: %+v", o, o.GetName(), what, o)
		}
	}
}

// backedUp waits for the end of a backup, in the phase, and returns its snapshot.
func (c *cluster) backedUp(pvb *velerov1.PodVolumeBackup, phase velerov1.PodVolumeBackupPhase) string {
	c.t.Helper()
	c.until(pvb, "terminal", func() bool { return pvb.Status.CompletionTimestamp != nil })
	if pvb.Status.Phase != phase {
		c.t.Errorf("%s of volume %s ends as %s, want %s: %s", pvb.Name, pvb.Spec.Volume, pvb.Status.Phase, phase, pvb.Status.Message)
	}
	return pvb.Status.SnapshotID
}

// restored waits for the end of a restore, in the phase.
func (c *cluster) restored(pvr *velerov1.PodVolumeRestore, phase velerov1.PodVolumeRestorePhase) {
	c.t.Helper()
	c.until(pvr, "terminal", func() bool { return pvr.Status.CompletionTimestamp != nil })
	if pvr.Status.Phase != phase {
		c.t.Errorf("%s of volume %s ends as %s, want %s: %s", pvr.Name, pvr.Spec.Volume, pvr.Status.Phase, phase, pvr.Status.Message)
	}
}

func (c *cluster) patch(o client.Object, format string, args ...any) {
	c.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
	if err := c.client.Patch(c.t.Context(), o, patch); err != nil {
		c.t.Fatal(err)
	}
}
