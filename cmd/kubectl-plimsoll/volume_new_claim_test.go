package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// class makes a StorageClass. Nobody provisions for it but provision.
func (c *cluster) class(name string) string {
	c.t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + c.Namespace}, Provisioner: "example.com"}
	c.Create(class)
	return class.Name
}

// provision does for a claim that is created what a provisioner does, and then serves the pod of its restore.
func (c *cluster) provision(name string) <-chan string {
	served := make(chan string, 1)
	go func() {
		defer close(served)
		claim, err := c.bindNew(name)
		if err != nil {
			c.t.Error(err)
			return
		}
		served <- <-c.serveHelper(claim)
	}()
	return served
}

// bindNew waits for a claim, and binds it to a PersistentVolume of type NFS.
func (c *cluster) bindNew(name string) (*corev1.PersistentVolumeClaim, error) {
	ctx, claim := c.t.Context(), &corev1.PersistentVolumeClaim{}
	for c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, claim) != nil {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + c.Namespace + "-" + name}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
		PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}},
	}}
	before := client.MergeFrom(claim.DeepCopy())
	claim.Spec.VolumeName = pv.Name
	if err := errors.Join(c.Client.Create(ctx, pv), c.Client.Patch(ctx, claim, before)); err != nil {
		return nil, err
	}
	before = client.MergeFrom(claim.DeepCopy())
	claim.Status.Phase = corev1.ClaimBound
	return claim, c.Client.Status().Patch(ctx, claim, before)
}

// left lists what a restore has left in the cluster's namespace: its pods, and a claim.
func (c *cluster) left(claim string) (pods int, there bool) {
	c.t.Helper()
	var list corev1.PodList
	if err := c.Client.List(c.t.Context(), &list, client.InNamespace(c.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "plimsoll-restore"}); err != nil {
		c.t.Fatal(err)
	}
	var object corev1.PersistentVolumeClaim
	err := c.Client.Get(c.t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: claim}, &object)
	if client.IgnoreNotFound(err) != nil {
		c.t.Fatal(err)
	}
	return len(list.Items), err == nil && object.DeletionTimestamp == nil // its finalizer is that of a controller that does not run here
}

// TestVolumeToClaim restores a volume, and single paths of it, into claims that do not exist before, and paths that the backup lacks.
func TestVolumeToClaim(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, uploader := range []string{uploaderRestic, uploaderKopia} {
		t.Run(uploader, func(t *testing.T) {
			t.Parallel()
			testVolumeToClaim(t, uploader)
		})
	}
}

func testVolumeToClaim(t *testing.T, uploader string) {
	c := newCluster(t)
	c.startAgent(0)
	c.agentPod()
	plain := uploader == uploaderKopia
	_, sourceDir := c.source(plain)
	if err := errors.Join(os.MkdirAll(filepath.Join(sourceDir, "conf"), 0o755), os.WriteFile(filepath.Join(sourceDir, "conf", "a.yaml"), []byte("a: 1\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out, errOut, code := c.run("volume", "backup", c.Namespace+"/db-0", "data", "--uploader", uploader); code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	var backups velerov1.PodVolumeBackupList
	if err := c.Client.List(t.Context(), &backups, client.InNamespace(c.Namespace)); err != nil || len(backups.Items) != 1 {
		t.Fatalf("%d PodVolumeBackups, %v", len(backups.Items), err)
	}
	from, class := backups.Items[0].Name, c.class("fast")
	restore := func(claim string, more ...string) (said string, code int) {
		out, errOut, code := c.run(append([]string{"volume", "restore", "--to-claim", c.Namespace + "/" + claim, "--from", from, "--storage-class", class}, more...)...)
		return out + errOut, code
	}

	served := c.provision("whole")
	said, code := restore("whole")
	if code != 0 || !strings.Contains(said, "Completed: ") || !strings.Contains(said, "persistentvolumeclaim/whole created in namespace "+c.Namespace+": 1Gi, StorageClass "+class) {
		t.Fatalf("code %d, %s", code, said)
	}
	same(t, sourceDir, <-served, plain)
	if pods, there := c.left("whole"); pods > 0 || !there {
		t.Errorf("%d pods are left, the claim is there: %v", pods, there)
	}

	served = c.provision("paths")
	if said, code := restore("paths", "--path", "conf", "--size", "3Gi"); code != 0 || !strings.Contains(said, ": 3Gi, ") {
		t.Fatalf("code %d, %s", code, said)
	}
	dir := <-served
	content, err := os.ReadFile(filepath.Join(dir, "conf", "a.yaml"))
	entries, listErr := os.ReadDir(dir)
	if err := errors.Join(err, listErr); err != nil || string(content) != "a: 1\n" || len(entries) != 1 {
		t.Errorf("%q, %v, %v", content, entries, err)
	}

	_ = c.provision("none")
	said, code = restore("none", "--path", "not there")
	if code != exitFailed || !strings.Contains(said, "persistentvolumeclaim/none is left, and may have a part of the files") {
		t.Errorf("code %d, %s", code, said)
	}
	if pods, there := c.left("none"); pods > 0 || !there {
		t.Errorf("%d pods are left, the claim is there: %v", pods, there)
	}
}

// TestVolumeToClaimEnds has a claim that nobody provisions: what becomes of it when the command ends.
func TestVolumeToClaimEnds(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		policy string // of the namespace, for pods
		args   []string
		code   int
		says   string
		pods   int
		claim  bool
	}{
		"timeout":             {"baseline", []string{"--timeout=2s"}, exitTimeout, "persistentvolumeclaim/new is left, and the restore into it continues", 1, true},
		"interrupted":         {"baseline", nil, exitInterrupted, "persistentvolumeclaim/new is left, and the restore into it continues", 1, true},
		"canceled":            {"baseline", []string{"--cancel-on-interrupt"}, exitInterrupted, "persistentvolumeclaim/new is left, and may have a part of the files", 0, true},
		"at once":             {"baseline", []string{"--no-wait"}, 0, "Delete it when the restore has ended", 1, true},
		"root is not allowed": {"restricted", []string{"--no-wait"}, 1, "set --run-as-user", 0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.agentPod()
			shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": tc.policy}}}
			c.Create(shop)
			in := *c
			in.Env = c.In(shop.Name)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			errOut := &trigger{text: "pod/", do: func() {}}
			if tc.code == exitInterrupted {
				errOut.do = interrupt
			}
			args := append([]string{
				"--kubeconfig", c.kubeconfig, "-n", c.Namespace, "volume", "restore", "--to-claim", shop.Name + "/new", "--from", "4f2c1a9b", "--storage-class", c.class("fast"), "--size=1Gi",
			}, tc.args...)
			if code := run(ctx, strings.NewReader(""), io.Discard, errOut, args); code != tc.code || !strings.Contains(errOut.String(), tc.says) {
				t.Errorf("code %d, want %d with %q: %s", code, tc.code, tc.says, errOut)
			}
			if pods, there := in.left("new"); pods != tc.pods || there != tc.claim {
				t.Errorf("%d pods, the claim is there: %v; %s", pods, there, errOut)
			}
		})
	}
}

// TestVolumeToClaimDefaults has what a claim is like that is created, by the claim that was backed up.
func TestVolumeToClaimDefaults(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	fast, slow := c.class("fast"), c.class("slow")
	storage := func(size string) corev1.VolumeResourceRequirements {
		return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}
	}
	shared := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany}
	c.Create(&corev1.PersistentVolumeClaim{ObjectMeta: c.Meta("shared"), Spec: corev1.PersistentVolumeClaimSpec{AccessModes: shared, StorageClassName: &fast, Resources: storage("7Gi")}})
	for claim, bytes := range map[string]int64{"shared": 1 << 30, "gone": 8 << 30} {
		pvb := &velerov1.PodVolumeBackup{
			ObjectMeta: c.Meta("of-" + claim), Spec: velerov1.PodVolumeBackupSpec{
				Pod: corev1.ObjectReference{Kind: "Pod", Namespace: c.Namespace, Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: uploaderKopia, Node: "n",
			},
			Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: strings.Repeat("a", 32)},
		}
		pvb.Annotations, pvb.Status.Progress.TotalBytes = map[string]string{pvcNameAnnotation: claim}, bytes
		c.Create(pvb)
	}
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	for name, tc := range map[string]struct {
		args  []string
		class string
		size  string
		modes []corev1.PersistentVolumeAccessMode
	}{
		"like-the-source": {[]string{"--from=of-shared"}, fast, "7Gi", shared[1:]},
		"of-a-class":      {[]string{"--from=of-shared", "--storage-class", slow}, slow, "7Gi", once},
		"of-a-size":       {[]string{"--from=of-shared", "--size=2Gi"}, fast, "2Gi", shared[1:]},
		"without-source":  {[]string{"--from=of-gone", "--storage-class", slow}, slow, "10Gi", once},
		"the-latest-gone": {[]string{"--from=of-gone", "--storage-class", slow, "--path=a"}, slow, "10Gi", once},
	} {
		if out, errOut, code := c.run(append([]string{"volume", "restore", "--to-claim", c.Namespace + "/" + name, "--no-wait"}, tc.args...)...); code != 0 {
			t.Errorf("%s: code %d, %s%s", name, code, out, errOut)
			continue
		}
		var claim corev1.PersistentVolumeClaim
		if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, &claim); err != nil {
			t.Fatal(err)
		}
		want := corev1.PersistentVolumeClaimSpec{AccessModes: tc.modes, StorageClassName: &tc.class, Resources: storage(tc.size), VolumeMode: claim.Spec.VolumeMode}
		if diff := cmp.Diff(want, claim.Spec); diff != "" {
			t.Errorf("%s: the claim (-want +got):\n%s", name, diff)
		}
	}
	c.checkBesideAgents()
}

// checkBesideAgents holds the pods of new claims to the nodes that have an agent: elsewhere nobody would restore into them.
func (c *cluster) checkBesideAgents() {
	c.t.Helper()
	var pods corev1.PodList
	if err := c.Client.List(c.t.Context(), &pods, client.InNamespace(c.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "plimsoll-restore"}); err != nil || len(pods.Items) == 0 {
		c.t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	for i := range pods.Items {
		affinity := pods.Items[i].Spec.Affinity
		if affinity == nil || affinity.PodAffinity == nil || len(affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 1 ||
			affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].Namespaces[0] != c.Namespace {
			c.t.Errorf("pod %s may run on a node without an agent: %+v", pods.Items[i].Name, affinity)
		}
	}
}
