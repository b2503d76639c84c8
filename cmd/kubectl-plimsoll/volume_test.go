package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// claim makes a claim that is bound to a PersistentVolume of type NFS.
func (c *cluster) claim(name string) *corev1.PersistentVolumeClaim {
	c.t.Helper()
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + c.Namespace + "-" + name}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: modes, Capacity: size,
		PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}},
	}}
	c.Create(pv)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: c.Meta(name), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: pv.Name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}
	c.Create(claim)
	c.Change(claim, func() { claim.Status.Phase = corev1.ClaimBound })
	return claim
}

// claimDir is where kubelet mounts a claim for a pod.
func (c *cluster) claimDir(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) string {
	return filepath.Join(c.node.Pods, string(pod.UID), "volumes", "kubernetes.io~nfs", claim.Spec.VolumeName)
}

// podWith makes a pod whose volume data is the claim. change may make it another.
func (c *cluster) podWith(name string, claim *corev1.PersistentVolumeClaim, change func(*corev1.Pod)) *corev1.Pod {
	c.t.Helper()
	mount := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod := &corev1.Pod{
		ObjectMeta: c.Meta(name),
		Spec: corev1.PodSpec{
			NodeName: c.node.Name, Containers: []corev1.Container{{Name: "main", Image: "main", VolumeMounts: mount}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}}},
		},
	}
	if change != nil {
		change(pod)
	}
	c.Create(pod)
	if err := os.MkdirAll(c.claimDir(pod, claim), 0o755); err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// runs lets kubelet report that a pod runs.
func (c *cluster) runs(pod *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	c.Change(pod, func() {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	return pod
}

// waits lets kubelet report that a pod's init container waits for its volumes.
func (c *cluster) waits(pod *corev1.Pod) {
	c.t.Helper()
	c.Change(pod, func() {
		pod.Status.Phase = corev1.PodPending
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: v1alpha1.ContainerRestoreWait, Image: "agent", ImageID: "agent", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	})
}

// agentPod makes the objects of Plimsoll's node agent on the node; the agent itself is that of startAgent.
func (c *cluster) agentPod() {
	c.t.Helper()
	labels := map[string]string{"name": "node-agent", "role": "node-agent", "app.kubernetes.io/name": "plimsoll-node-agent"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{NodeName: c.node.Name, Containers: []corev1.Container{{Name: "node-agent", Image: "plimsoll:v0.1.0"}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}},
	}
	c.Create(&appsv1.DaemonSet{
		ObjectMeta: c.Meta("node-agent"),
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "node-agent-x", Labels: labels}, Spec: template.Spec}
	c.Create(pod)
	c.runs(pod)
}

// source makes a running pod with a tree of files in its claim.
func (c *cluster) source(plain bool) (pod *corev1.Pod, dir string) {
	c.t.Helper()
	claim := c.claim("data-db-0")
	pod = c.runs(c.podWith("db-0", claim, nil))
	dir = c.claimDir(pod, claim)
	if err := tree.Make(dir, tree.Spec{Bytes: 1 << 20, Plain: plain}); err != nil {
		c.t.Fatal(err)
	}
	return pod, dir
}

// serveHelper does for the pod of a restore into a claim what scheduler and kubelet do, the init container included. It
// returns where the claim is, once the pod has ended.
func (c *cluster) serveHelper(claim *corev1.PersistentVolumeClaim) <-chan string {
	c.t.Helper()
	served := make(chan string, 1)
	go func() {
		defer close(served)
		var pods corev1.PodList
		for len(pods.Items) == 0 {
			if err := c.Client.List(c.t.Context(), &pods, client.InNamespace(c.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "plimsoll-restore"}); err != nil {
				c.t.Error(err)
				return
			}
			<-time.After(50 * time.Millisecond)
		}
		pod := &pods.Items[0]
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: c.node.Name}}
		if err := c.Client.SubResource("binding").Create(c.t.Context(), pod, binding); err != nil {
			c.t.Error(err)
			return
		}
		dir := c.claimDir(pod, claim)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			c.t.Error(err)
			return
		}
		if err := c.waitAsHelper(pod, dir); err != nil {
			c.t.Error(err)
			return
		}
		served <- dir
	}()
	return served
}

func (c *cluster) waitAsHelper(pod *corev1.Pod, dir string) error {
	ctx := c.t.Context()
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		return err
	}
	wait := &pod.Spec.InitContainers[0]
	if wait.Name != v1alpha1.ContainerRestoreWait || wait.Image != "plimsoll:v0.1.0" || wait.Args[0] != v1alpha1.ContainerRestoreWait || len(wait.Args) != 2 || wait.VolumeMounts[0].MountPath != "/restores/volume" {
		return fmt.Errorf("the init container is %+v", wait)
	}
	status := func(state corev1.ContainerState, phase corev1.PodPhase) error {
		before := client.MergeFrom(pod.DeepCopy())
		pod.Status.Phase = phase
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.ContainerRestoreWait, Image: "agent", ImageID: "agent", State: state}}
		return c.Client.Status().Patch(ctx, pod, before)
	}
	if err := status(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.PodPending); err != nil {
		return err
	}
	err := donefile.Wait(ctx, filepath.Dir(dir), types.UID(wait.Args[1]), func(string) {})
	if ended := ctx.Err() != nil || errors.Is(err, donefile.ErrRestoreFailed); ended {
		return nil // the restore has failed, as it should, or the test has ended before it was told
	} else if err != nil {
		return err
	}
	return status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, corev1.PodSucceeded)
}

// same holds two trees against each other, without the top directory.
func same(t *testing.T, want, got string, plain bool) {
	t.Helper()
	differences, err := tree.Compare(want, got, tree.Options{Plain: plain})
	if err != nil {
		t.Fatal(err)
	}
	differences = slices.DeleteFunc(differences, func(d string) bool { return strings.HasPrefix(d, ".:") || strings.HasPrefix(d, `".":`) })
	if len(differences) > 0 {
		t.Errorf("the restored volume differs:\n%s", strings.Join(differences, "\n"))
	}
}

// TestVolume backs up a volume, finds the backup, and restores it both into a claim and into a pod that waits.
func TestVolume(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{uploaderRestic, uploaderKopia} {
		t.Run(uploader, func(t *testing.T) {
			t.Parallel()
			testVolume(t, uploader)
		})
	}
}

func testVolume(t *testing.T, uploader string) {
	c := newCluster(t)
	c.startAgent(0)
	c.agentPod()
	plain := uploader == uploaderKopia
	_, sourceDir := c.source(plain)

	out, errOut, code := c.run("volume", "backup", c.Namespace+"/db-0", "data", "--to", "default", "--uploader", uploader)
	if code != 0 || !strings.Contains(out, "Completed: snapshot ") || !strings.Contains(errOut, "100%") {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	var stored []storedVolume
	out, errOut, code = c.run("volume", "list", c.Namespace+"/db-0", "data", "-o", "json")
	if err := json.Unmarshal([]byte(out), &stored); err != nil || code != 0 || len(stored) != 1 {
		t.Fatalf("code %d, %v: %s%s", code, err, out, errOut)
	}
	if s := stored[0]; s.Claim != "data-db-0" || s.Uploader != uploader || s.StorageLocation != "default" || s.Phase != "Completed" || s.SnapshotID == "" {
		t.Errorf("listed is %+v", s)
	}

	claim := c.claim("restored")
	served := c.serveHelper(claim)
	out, errOut, code = c.run("volume", "restore", "--into-claim", c.Namespace+"/restored", "--from", stored[0].Name)
	if code != 0 || !strings.Contains(out, "Completed: ") {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	same(t, sourceDir, <-served, plain)
	var left corev1.PodList
	if err := c.Client.List(t.Context(), &left, client.InNamespace(c.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "plimsoll-restore"}); err != nil || len(left.Items) > 0 {
		t.Errorf("pods are left: %v, %v", left.Items, err)
	}

	pod, dir := c.waitingPod()
	out, errOut, code = c.run("volume", "restore", c.Namespace+"/"+pod.Name, "data", "--from", stored[0].SnapshotID, "-o", "json")
	var restored struct{ Kind, Phase, Owner string }
	if err := json.Unmarshal([]byte(out), &restored); err != nil || code != 0 || restored.Phase != "Completed" || restored.Owner != "by-hand" {
		t.Fatalf("code %d, %v: %s%s", code, err, out, errOut)
	}
	c.Change(pod, func() {
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: v1alpha1.ContainerRestoreWait, Image: "agent", ImageID: "agent", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
		}}
	})
	c.Eventually("the agent removes what was for the init container", func() bool {
		_, err := os.Lstat(filepath.Join(dir, ".velero"))
		return errors.Is(err, os.ErrNotExist)
	})
	same(t, sourceDir, dir, plain)
}

// waitingPod makes a pod that waits for its volumes, and where its volume is.
func (c *cluster) waitingPod() (pod *corev1.Pod, dir string) {
	c.t.Helper()
	restore := &velerov1.Restore{ObjectMeta: c.Meta("by-hand"), Spec: velerov1.RestoreSpec{BackupName: "by-hand"}}
	c.Create(restore)
	claim := c.claim("data-db-1")
	pod = c.podWith("db-1", claim, func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: v1alpha1.ContainerRestoreWait, Image: "agent", Args: []string{v1alpha1.ContainerRestoreWait, string(restore.UID)},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/restores/data"}},
		}}
	})
	c.waits(pod)
	return pod, c.claimDir(pod, claim)
}

// TestVolumeFails has an end that is none: exit code 3.
func TestVolumeFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startAgent(0)
	c.agentPod()
	c.source(true)
	if out, errOut, code := c.run("volume", "backup", c.Namespace+"/db-0", "data"); code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	pod, _ := c.waitingPod()
	out, errOut, code := c.run("volume", "restore", c.Namespace+"/"+pod.Name, "data", "--from", strings.Repeat("0", 64))
	if code != exitFailed || !strings.Contains(errOut, "ended as Failed: ") {
		t.Errorf("code %d, %s%s", code, out, errOut)
	}
}

// TestVolumeEndsBeforeItsBackup ends the command, and looks what becomes of the backup. There is no agent to carry it out.
func TestVolumeEndsBeforeItsBackup(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args     []string
		code     int
		says     string
		canceled bool
	}{
		"at once":               {[]string{"--no-wait"}, 0, "", false},
		"timeout":               {[]string{"--timeout=2s"}, exitTimeout, "has not ended after 2s; it continues", false},
		"interrupted":           {nil, exitInterrupted, "continues: end it with 'kubectl -n ", false},
		"interrupted, canceled": {[]string{"--cancel-on-interrupt"}, exitInterrupted, "is canceled", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.agentPod()
			c.source(true)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			out := &trigger{text: " created\n", do: func() {}}
			if tc.code == exitInterrupted {
				out.do = interrupt
			}
			var errOut bytes.Buffer
			args := append([]string{"--kubeconfig", c.kubeconfig, "-n", c.Namespace, "volume", "backup", c.Namespace + "/db-0", "data"}, tc.args...)
			if code := run(ctx, strings.NewReader(""), out, &errOut, args); code != tc.code || !strings.Contains(errOut.String(), tc.says) {
				t.Errorf("code %d, want %d; %s", code, tc.code, &errOut)
			}
			var list velerov1.PodVolumeBackupList
			if err := c.Client.List(t.Context(), &list, client.InNamespace(c.Namespace)); err != nil || len(list.Items) != 1 {
				t.Fatalf("%d PodVolumeBackups, %v", len(list.Items), err)
			}
			pvb := list.Items[0]
			if pvb.Spec.Cancel != tc.canceled {
				t.Errorf("spec.cancel is %v", pvb.Spec.Cancel)
			}
		})
	}
}

// TestVolumeObjects holds what is created against what a Velero server would have created.
func TestVolumeObjects(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	source, _ := c.source(true)
	c.Create(&velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "shop-default-restic", Labels: map[string]string{
			velerov1.VolumeNamespaceLabel: c.Namespace, velerov1.StorageLocationLabel: "default", velerov1.RepositoryTypeLabel: uploaderRestic,
		}},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: c.Namespace, BackupStorageLocation: "default", RepositoryType: uploaderRestic, ResticIdentifier: "s3:http://s3/bucket/restic/shop",
			MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
		},
	})
	if out, errOut, code := c.run("volume", "backup", c.Namespace+"/db-0", "data", "--no-wait"); code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	var backups velerov1.PodVolumeBackupList
	if err := c.Client.List(t.Context(), &backups, client.InNamespace(c.Namespace)); err != nil || len(backups.Items) != 1 {
		t.Fatalf("%d PodVolumeBackups, %v", len(backups.Items), err)
	}
	backup := &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "b1", UID: "b1"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: c.Meta("data-db-0")}
	testenv.EventuallyGet(c.Env, claim, "there", func(_ *corev1.PersistentVolumeClaim, err error) bool { return err == nil })
	wantBackup := velero.PodVolumeBackup(backup, source, "data", uploaderRestic)
	wantBackup.Spec.RepoIdentifier, wantBackup.Spec.Tags["pvc-uid"] = "s3:http://s3/bucket/restic/shop", string(claim.UID)
	for _, tag := range []string{"backup", "backup-uid"} { // there is none
		delete(wantBackup.Spec.Tags, tag)
	}
	made := &backups.Items[0]
	if diff := cmp.Diff(wantBackup.Spec, made.Spec); diff != "" {
		t.Errorf("the backup (-server's +ours):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{velerov1.PVCUIDLabel: string(claim.UID)}, made.Labels); diff != "" || made.Annotations[pvcNameAnnotation] != claim.Name || len(made.OwnerReferences) > 0 {
		t.Errorf("the backup's metadata is %+v", made.ObjectMeta)
	}

	pod, _ := c.waitingPod()
	c.Change(made, func() {
		made.Status = velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseFailed, SnapshotID: "4f2c1a9b", Message: "one file"}
		made.Status.Progress.TotalBytes = 42
	})
	out, errOut, code := c.run("volume", "restore", c.Namespace+"/"+pod.Name, "data", "--from", made.Name, "--no-wait", "--write-sparse-files")
	if code != 0 || !strings.Contains(errOut, "is Failed, and its snapshot may be incomplete: one file") {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	var restores velerov1.PodVolumeRestoreList
	if err := c.Client.List(t.Context(), &restores, client.InNamespace(c.Namespace)); err != nil || len(restores.Items) != 1 {
		t.Fatalf("%d PodVolumeRestores, %v", len(restores.Items), err)
	}
	restore := &velerov1.Restore{ObjectMeta: c.Meta("by-hand")}
	testenv.EventuallyGet(c.Env, restore, "there", func(_ *velerov1.Restore, err error) bool { return err == nil })
	claim = &corev1.PersistentVolumeClaim{ObjectMeta: c.Meta("data-db-1")}
	testenv.EventuallyGet(c.Env, claim, "there", func(_ *corev1.PersistentVolumeClaim, err error) bool { return err == nil })
	wantRestore := velero.PodVolumeRestore(restore, pod, "data", uploaderRestic, "4f2c1a9b", c.Namespace)
	wantRestore.Spec.RepoIdentifier, wantRestore.Spec.SnapshotSize = "s3:http://s3/bucket/restic/shop", 42
	wantRestore.Spec.UploaderSettings = map[string]string{"WriteSparseFiles": "true"}
	wantRestore.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
	got := &restores.Items[0]
	if diff := cmp.Diff(wantRestore.Spec, got.Spec); diff != "" {
		t.Errorf("the restore (-server's +ours):\n%s", diff)
	}
	if diff := cmp.Diff(wantRestore.Labels, got.Labels); diff != "" {
		t.Errorf("the restore's labels (-server's +ours):\n%s", diff)
	}
	if diff := cmp.Diff(wantRestore.OwnerReferences, got.OwnerReferences); diff != "" {
		t.Errorf("the restore's owners (-server's +ours):\n%s", diff)
	}
	if _, errOut, code := c.run("volume", "restore", c.Namespace+"/"+pod.Name, "data", "--from", made.Name); code != 1 || !strings.Contains(errOut, "already restores into it") {
		t.Errorf("a second one: code %d, %s", code, errOut)
	}
}

// TestVolumePaths makes the object that asks for single paths, for a pod that runs and for a claim.
func TestVolumePaths(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	pod, _ := c.source(true)
	c.claim("free")
	const snapshot = "4f2c1a9b"
	for _, target := range [][]string{{c.Namespace + "/" + pod.Name, "data"}, {"--into-claim", c.Namespace + "/free"}} {
		args := append([]string{"volume", "restore"}, target...)
		out, errOut, code := c.run(append(args, "--from", snapshot, "--path", "/conf/", "--path", "a, b*", "--overwrite", "if-newer", "--no-wait")...)
		if code != 0 {
			t.Fatalf("%q: code %d, %s%s", target, code, out, errOut)
		}
		var restores velerov1.PodVolumeRestoreList
		if err := c.Client.List(t.Context(), &restores, client.InNamespace(c.Namespace)); err != nil || len(restores.Items) != 1 {
			t.Fatalf("%d PodVolumeRestores, %v", len(restores.Items), err)
		}
		got := &restores.Items[0]
		paths, err := v1alpha1.ParseRestorePaths(got.Annotations[v1alpha1.AnnotationRestorePaths])
		if diff := cmp.Diff(v1alpha1.RestorePaths{Paths: []string{"conf", "a, b*"}, Overwrite: v1alpha1.OverwriteIfNewer}, paths); diff != "" || err != nil {
			t.Errorf("%q: the paths (-want +got):\n%s%v", target, diff, err)
		}
		if got.Spec.SnapshotID != v1alpha1.SnapshotIDPathsPrefix+snapshot || got.Spec.SnapshotSize != 0 {
			t.Errorf("%q: the spec is %+v", target, got.Spec)
		}
		if err := c.Client.Delete(t.Context(), got); err != nil {
			t.Fatal(err)
		}
	}
}

// TestVolumeIntoClaimEnds has a pod that nobody runs: what becomes of it and of the restore when the command ends.
func TestVolumeIntoClaimEnds(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		policy   string // of the namespace, for pods
		args     []string
		code     int
		says     string
		pods     int
		restores int
		canceled bool
	}{
		"timeout":             {"baseline", []string{"--timeout=2s"}, exitTimeout, "continues", 1, 1, false},
		"interrupted":         {"baseline", nil, exitInterrupted, "Delete its pod when it has ended", 1, 1, false},
		"canceled":            {"baseline", []string{"--cancel-on-interrupt"}, exitInterrupted, "is canceled", 0, 1, true},
		"at once":             {"privileged", []string{"--no-wait"}, 0, "Delete it when the restore has ended", 1, 1, false},
		"root is not allowed": {"restricted", []string{"--no-wait"}, 1, "set --run-as-user", 0, 0, false},
		"no root":             {"restricted", []string{"--no-wait", "--run-as-user=999"}, 0, "created", 1, 1, false},
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
			in.claim("data")
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			errOut := &trigger{text: "pod/", do: func() {}}
			if tc.code == exitInterrupted {
				errOut.do = interrupt
			}
			args := append([]string{
				"--kubeconfig", c.kubeconfig, "-n", c.Namespace, "volume", "restore", "--into-claim", shop.Name + "/data", "--from", "4f2c1a9b",
			}, tc.args...)
			if code := run(ctx, strings.NewReader(""), io.Discard, errOut, args); code != tc.code || !strings.Contains(errOut.String(), tc.says) {
				t.Errorf("code %d, want %d with %q: %s", code, tc.code, tc.says, errOut)
			}
			var pods corev1.PodList
			var restores velerov1.PodVolumeRestoreList
			if err := errors.Join(c.Client.List(t.Context(), &pods, client.InNamespace(shop.Name)), c.Client.List(t.Context(), &restores, client.InNamespace(c.Namespace))); err != nil {
				t.Fatal(err)
			}
			if len(pods.Items) != tc.pods || len(restores.Items) != tc.restores {
				t.Fatalf("%d pods, %d PodVolumeRestores: %s", len(pods.Items), len(restores.Items), errOut)
			}
			if tc.restores > 0 && restores.Items[0].Spec.Cancel != tc.canceled {
				t.Errorf("spec.cancel is %v", restores.Items[0].Spec.Cancel)
			}
		})
	}
}

// trigger keeps what is written, and does something once a text is written to it.
type trigger struct {
	said bytes.Buffer // not embedded: its WriteString would go past Write
	text string
	do   func()
}

func (w *trigger) String() string { return w.said.String() }

func (w *trigger) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.text)) {
		w.do()
	}
	return w.said.Write(p)
}

// TestVolumeWaitsInSilence waits for a backup whose agent is gone: what it said last is not what happens now.
func TestVolumeWaitsInSilence(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "silent", Annotations: map[string]string{
			v1alpha1.AnnotationProgress: `{"state": "Transferring", "bytesDone": 5, "totalBytes": 10, "bytesPerSecond": 2, "etaSeconds": 3, "heartbeat": "2020-01-01T00:00:00Z"}`,
		}},
		Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseInProgress},
	}
	c.Create(pvb)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	said := &trigger{text: "Silent ", do: interrupt}
	var cmd cobra.Command
	cmd.SetContext(ctx)
	cmd.SetErr(said)
	v := &volumes{objects: objects{api: c.Client, namespace: c.Namespace}, client: c.Client}
	last, err := (&waitOptions{}).follow(&cmd, v, pvb)
	if err == nil || last.Progress.BytesPerSecond != 0 || last.Progress.ETASeconds != nil || strings.Contains(said.String(), "2 B/s") {
		t.Errorf("%v, %+v, %s", err, last.Progress, said)
	}
}

// TestVolumeRefuses has what cannot be done. Nothing may have been created.
func TestVolumeRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pod, _ := c.source(true)
	c.runs(c.podWith("elsewhere", c.claim("elsewhere"), func(p *corev1.Pod) { p.Spec.NodeName = "other" }))
	c.podWith("pending", c.claim("pending"), nil)
	c.runs(c.podWith("plain", c.claim("plain"), func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes,
			corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}},
			corev1.Volume{Name: "unmounted", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}))
	c.podWith("lonely", c.claim("lonely"), func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: v1alpha1.ContainerRestoreWait, Image: "agent", Args: []string{"no-uid"}, VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/restores/data"}},
		}}
	})
	c.claim("free")
	c.claim("passing-scratch")
	c.runs(c.podWith("passing", c.claim("passing"), func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}},
		}}})
	}))
	c.Create(&velerov1.BackupStorageLocation{
		ObjectMeta: c.Meta("old"),
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: "aws", AccessMode: velerov1.BackupStorageLocationAccessModeReadOnly,
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		},
	})
	c.Create(&velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "failed", Labels: map[string]string{"theirs": "yes"}},
		Spec:       velerov1.PodVolumeBackupSpec{Node: c.node.Name, Pod: corev1.ObjectReference{Namespace: c.Namespace, Name: "db-0"}, Volume: "data", BackupStorageLocation: "default"},
		Status:     velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseFailed, Message: "no\x1b[2J space"},
	})
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class-" + c.Namespace}, Provisioner: "example.com"}
	c.Create(class)
	from := "--from=" + strings.Repeat("a", 8)
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"overwrite without a path":    {[]string{"restore", c.Namespace + "/plain", "data", from, "--overwrite", "always"}, 2, "--overwrite needs --path"},
		"an unknown overwrite":        {[]string{"restore", c.Namespace + "/plain", "data", from, "--path", "a", "--overwrite", "ask"}, 2, "neither never"},
		"a path that leads up":        {[]string{"restore", c.Namespace + "/plain", "data", from, "--path", "../a"}, 2, `has a part ".."`},
		"a path beneath another":      {[]string{"restore", c.Namespace + "/plain", "data", from, "--path", "a", "--path", "a/b"}, 2, "already"},
		"the volume itself as a path": {[]string{"restore", c.Namespace + "/plain", "data", from, "--path", "./"}, 2, "is the volume itself"},
		"no agent":                    {[]string{"backup", c.Namespace + "/db-0", "data"}, 1, "no node agent runs on node " + c.node.Name},
		"no pod":                      {[]string{"backup", c.Namespace + "/gone", "data"}, 1, "there is no pod " + c.Namespace + "/gone"},
		"no volume":                   {[]string{"backup", c.Namespace + "/plain", "gone"}, 1, `has no volume "gone": its volumes are data, host, unmounted`},
		"pod pending":                 {[]string{"backup", c.Namespace + "/pending", "data"}, 1, "the pod does not run (Pending)"},
		"hostPath":                    {[]string{"backup", c.Namespace + "/plain", "host"}, 1, "node agents back up no hostPath volumes"},
		"no location":                 {[]string{"backup", c.Namespace + "/db-0", "data", "--to=tape"}, 1, `there is no BackupStorageLocation "tape"`},
		"read-only location":          {[]string{"backup", c.Namespace + "/db-0", "data", "--to=old"}, 1, "BackupStorageLocation old is read-only"},
		"uploader":                    {[]string{"backup", c.Namespace + "/db-0", "data", "--uploader=rsync"}, 2, "neither restic nor kopia"},
		"schedule":                    {[]string{"backup", c.Namespace + "/db-0", "data", "--schedule=daily"}, 2, "want five fields"},
		"no namespace":                {[]string{"backup", "db-0", "data"}, 2, `"db-0" is not NAMESPACE/NAME`},
		"no volume named":             {[]string{"backup", c.Namespace + "/db-0"}, 2, "want NAMESPACE/POD VOLUME"},
		"nothing to restore":          {[]string{"restore", c.Namespace + "/db-0", "data"}, 2, "--from is missing"},
		"unknown backup":              {[]string{"restore", c.Namespace + "/db-0", "data", "--from=nightly"}, 1, "neither a PodVolumeBackup in namespace"},
		"no latest of a pod":          {[]string{"restore", c.Namespace + "/db-0", "data", "--from=latest"}, 1, "there is no completed PodVolumeBackup of volume data of pod " + c.Namespace + "/db-0; "},
		"no latest of a claim":        {[]string{"restore", "--into-claim=" + c.Namespace + "/free", "--from=latest"}, 1, "there is no completed PodVolumeBackup of PersistentVolumeClaim " + c.Namespace + "/free; "},
		"failed backup":               {[]string{"restore", c.Namespace + "/db-0", "data", "--from=failed"}, 1, `PodVolumeBackup failed has no snapshot: it is Failed: no\x1b[2J space`},
		"pod does not wait":           {[]string{"restore", c.Namespace + "/db-0", "data", from}, 1, "no init container restore-wait, so it does not wait for its volumes: scale down its workload, and restore with --into-claim " + c.Namespace + "/data-db-0"},
		"no Restore":                  {[]string{"restore", c.Namespace + "/lonely", "data", from}, 1, `the pod waits for a Restore with the UID "no-uid"`},
		"claim is used":               {[]string{"restore", "--into-claim=" + c.Namespace + "/data-db-0", from}, 1, "pod db-0 uses it: scale down"},
		"ephemeral claim":             {[]string{"restore", "--into-claim=" + c.Namespace + "/passing-scratch", from}, 1, "pod passing uses it: scale down"},
		"schedule, no wait":           {[]string{"backup", c.Namespace + "/db-0", "data", "--schedule=@daily", "--no-wait"}, 2, "--schedule cannot be combined with --no-wait"},
		"no claim":                    {[]string{"restore", "--into-claim=" + c.Namespace + "/gone", from}, 1, "it does not exist; --to-claim creates it"},
		"new claim exists":            {[]string{"restore", "--to-claim=" + c.Namespace + "/free", from}, 1, "it exists already: restore into it with --into-claim"},
		"new claim, no class":         {[]string{"restore", "--to-claim=" + c.Namespace + "/new", from, "--storage-class=gone"}, 1, `the cluster has no StorageClass "gone"`},
		"new claim, no size":          {[]string{"restore", "--to-claim=" + c.Namespace + "/new", from, "--storage-class=" + class.Name}, 1, "set --size"},
		"new claim, bad size":         {[]string{"restore", "--to-claim=" + c.Namespace + "/new", from, "--size=large"}, 2, "--size=large is not a size such as 50Gi"},
		"new claim, no image":         {[]string{"restore", "--to-claim=" + c.Namespace + "/new", from, "--storage-class=" + class.Name, "--size=1Gi"}, 1, "no DaemonSet of Plimsoll's node agent"},
		"size of an old claim":        {[]string{"restore", "--into-claim=" + c.Namespace + "/free", from, "--size=1Gi"}, 2, "--storage-class and --size need --to-claim"},
		"old and new claim":           {[]string{"restore", "--into-claim=" + c.Namespace + "/free", "--to-claim=" + c.Namespace + "/new", from}, 2, "give either --into-claim"},
		"no image":                    {[]string{"restore", "--into-claim=" + c.Namespace + "/free", from}, 1, "no DaemonSet of Plimsoll's node agent"},
		"claim and pod":               {[]string{"restore", c.Namespace + "/db-0", "data", "--into-claim=" + c.Namespace + "/free", from}, 2, "give either"},
		"location of snapshots":       {[]string{"restore", "--into-claim=" + c.Namespace + "/free", from, "--location=tape"}, 1, `there is no BackupStorageLocation "tape"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := c.run(append([]string{"volume"}, tc.args...)...)
			if code != tc.code || !strings.Contains(errOut, tc.want) || out != "" {
				t.Errorf("code %d, want %d with %q: %s%s", code, tc.code, tc.want, out, errOut)
			}
			if code == 1 && !strings.Contains(errOut, "nothing was created") {
				t.Errorf("it does not say that nothing was created: %s", errOut)
			}
		})
	}
	var backups velerov1.PodVolumeBackupList
	var restores velerov1.PodVolumeRestoreList
	for _, list := range []client.ObjectList{&backups, &restores} {
		if err := c.Client.List(t.Context(), list, client.InNamespace(pod.Namespace)); err != nil {
			t.Fatal(err)
		}
	}
	if len(backups.Items) != 1 || len(restores.Items) > 0 {
		t.Errorf("created were %d PodVolumeBackups and %d PodVolumeRestores", len(backups.Items)-1, len(restores.Items))
	}
}
