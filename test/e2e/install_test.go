//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	bucket   = "backups"
	s3Key    = "plimsoll-e2e"
	s3Secret = "plimsoll-e2e-secret"
	s3Port   = 7070

	s3Credentials = "[default]\naws_access_key_id=" + s3Key + "\naws_secret_access_key=" + s3Secret + "\n"

	password     = "a password for repositories"
	location     = velero.Location
	storageClass = "plimsoll-e2e-local"
)

// install installs all that is there before the first backup, and waits until it runs.
func (c *cluster) install(t *testing.T) {
	c.startStorage(t)
	for _, object := range c.manifests(t, "manifests") {
		c.apply(t, object)
	}
	c.createSettings(t)
	c.awaitAgents(t)
}

// startStorage makes what volumes and backups are stored on.
func (c *cluster) startStorage(t *testing.T) {
	t.Helper()
	c.createNamespace(t, ownNamespace)
	c.onNodes(t, "remove", nodeDirInPod+"/"+ownNamespace) // a run that was killed has left its local volumes, and a new one must be empty
	c.create(t, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: storageClass}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	})
	c.startS3(t)
}

// manifests are those of a directory, with the image under test. What others need comes first.
func (c *cluster) manifests(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(c.kubectl(t, "kustomize", dir)), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.setImage(object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

// setImage does what kustomize's images do.
func (c *cluster) setImage(object *unstructured.Unstructured) error {
	switch object.GetKind() {
	case "DaemonSet", "Deployment":
		containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return err
		}
		containers[0].(map[string]any)["image"] = c.agent
		return unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers")
	case "ConfigMap": // the image for the init container of restored pods
		return unstructured.SetNestedField(object.Object, c.agent, "data", "image")
	}
	return nil
}

// apply makes an object as `kubectl apply --server-side` does. Its definition may not be served yet.
func (c *cluster) apply(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	eventually(t, object.GetKind()+" "+object.GetName()+" is applied", func(ctx context.Context) (bool, error) {
		err := c.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner("plimsoll-e2e"))
		return err == nil, err
	})
}

// startS3 starts the S3 server on the first node. Its address is that of its pod: there may be no Services.
func (c *cluster) startS3(t *testing.T) {
	t.Helper()
	mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ownNamespace, Name: "s3"},
		Spec: corev1.PodSpec{
			Affinity: onlyOn(c.nodes[0]), TerminationGracePeriodSeconds: new(int64(1)),
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			InitContainers: []corev1.Container{{
				Name: "bucket", Image: c.own, ImagePullPolicy: corev1.PullIfNotPresent, VolumeMounts: mounts,
				Args: []string{"mkdir", "/data/sidecar", "/data/buckets/" + bucket},
			}},
			Containers: []corev1.Container{{
				Name: "s3", Image: c.own, ImagePullPolicy: corev1.PullIfNotPresent, VolumeMounts: mounts,
				Command: []string{
					"versitygw", "--quiet", "--port", fmt.Sprintf(":%d", s3Port), "--access", s3Key, "--secret", s3Secret,
					"posix", "--sidecar", "/data/sidecar", "/data/buckets",
				},
				ReadinessProbe: &corev1.Probe{
					PeriodSeconds: 1,
					ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(s3Port)}},
				},
			}},
		},
	}
	c.create(t, pod)
	pod = c.awaitPod(t, pod, corev1.PodRunning)
	eventually(t, "the S3 server is ready", func(ctx context.Context) (bool, error) {
		var now corev1.Pod
		err := c.client.Get(ctx, client.ObjectKeyFromObject(pod), &now)
		return err == nil && len(now.Status.ContainerStatuses) == 1 && now.Status.ContainerStatuses[0].Ready, err
	})
	c.s3 = fmt.Sprintf("http://%s:%d", pod.Status.PodIP, s3Port)
}

// createSettings makes what `velero install` and a Velero server make.
func (c *cluster) createSettings(t *testing.T) {
	t.Helper()
	c.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: "cloud-credentials"},
		StringData: map[string]string{"cloud": s3Credentials},
	})
	c.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: "velero-repo-credentials"},
		StringData: map[string]string{"repository-password": password},
	})
	eventually(t, "the API server knows BackupStorageLocations", func(ctx context.Context) (bool, error) {
		err := c.client.List(ctx, &velerov1.BackupStorageLocationList{}, client.InNamespace(veleroNamespace))
		return err == nil, err
	})
	c.create(t, &velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: location},
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: "aws", Default: true,
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: bucket, Prefix: "e2e"}},
			Config:      map[string]string{"region": "us-east-1", "s3ForcePathStyle": "true", "s3Url": c.s3},
		},
	})
}

// awaitAgents waits until the agent is ready on all nodes.
func (c *cluster) awaitAgents(t *testing.T) {
	t.Helper()
	eventually(t, "the node agent is ready on all nodes", func(ctx context.Context) (bool, error) {
		var set appsv1.DaemonSet
		if err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: "node-agent"}, &set); err != nil {
			return false, err
		}
		s := set.Status
		ready := s.ObservedGeneration == set.Generation && int(s.NumberReady) >= len(c.nodes) && s.NumberReady == s.DesiredNumberScheduled
		return ready, fmt.Errorf("%d of %d are ready", s.NumberReady, s.DesiredNumberScheduled)
	})
	for _, node := range c.nodes {
		pod := c.agentPod(t, node)
		c.mu.Lock()
		c.pods = append(c.pods, pod.UID)
		c.mu.Unlock()
	}
}

// capabilities are the numbers of those that a manifest may add (capabilities(7)).
var capabilities = map[string]int{
	"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "MKNOD": 27, "SETFCAP": 31,
}

// testConfinement compares what the kernel lets the agents do with what the manifest asks for.
func (c *cluster) testConfinement(t *testing.T) {
	for _, node := range c.nodes {
		pod := c.agentPod(t, node)
		var mask int64
		for _, name := range pod.Spec.Containers[0].SecurityContext.Capabilities.Add {
			number, known := capabilities[string(name)]
			if !known {
				t.Fatalf("capability %s has no number here", name)
			}
			mask |= 1 << number
		}
		want := map[string]string{"Uid": "0 0 0 0", "NoNewPrivs": "1", "Seccomp": "2", "Root": "ro"}
		want["CapEff"] = fmt.Sprintf("%016x", mask)
		want["CapBnd"] = want["CapEff"]
		var got map[string]string
		if err := json.Unmarshal([]byte(c.onNode(t, node, "agent", node)), &got); err != nil {
			t.Fatal(err)
		}
		for key := range want {
			if got[key] != want[key] {
				t.Errorf("the agent on %s has %s %s, want %s", node, key, got[key], want[key])
			}
		}
		if log := c.log(t, pod, "node-agent"); strings.Contains(log, "unconfined") {
			t.Errorf("workers on %s are not confined: %s", node, log)
		}
	}
}

// checkGuarded looks whether the agents could guard what their restores have done, which their logs say only afterwards.
func (c *cluster) checkGuarded(t *testing.T) {
	for _, node := range c.nodes {
		if log := c.log(t, c.agentPod(t, node), "node-agent"); strings.Contains(log, "cannot be guarded") || !strings.Contains(log, "metadataGuard=true") {
			t.Errorf("restores on %s are not guarded: %s", node, log)
		}
	}
}

// uninstall removes everything, in the order in which people should, and fails if anything is left on the nodes.
func (c *cluster) uninstall(t *testing.T) {
	c.forgetOperations(t)
	c.deleteManifests(t, "manifests")
	c.removeRest(t)
}

// forgetOperations deletes all backups and restores, and waits until they are gone: finalizers need who runs now. The restore
// controller goes after the Restores, which need it, and before the Backups, which it would bring back from the bucket.
func (c *cluster) forgetOperations(t *testing.T) {
	t.Helper()
	c.forget(t, &velerov1.Restore{}, &velerov1.RestoreList{})
	c.deleteManifests(t, "restore-controller")
	eventually(t, "the restore controller is gone", func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		labels := client.MatchingLabels{"app.kubernetes.io/name": "plimsoll-restore-controller"}
		err := c.client.List(ctx, &pods, client.InNamespace(veleroNamespace), labels)
		return err == nil && len(pods.Items) == 0, err
	})
	c.forget(t, &velerov1.PodVolumeRestore{}, &velerov1.PodVolumeRestoreList{})
	c.forget(t, &velerov1.PodVolumeBackup{}, &velerov1.PodVolumeBackupList{})
	c.forget(t, &velerov1.Backup{}, &velerov1.BackupList{})
}

func (c *cluster) forget(t *testing.T, kind client.Object, list client.ObjectList) {
	t.Helper()
	err := c.client.DeleteAllOf(t.Context(), kind, client.InNamespace(veleroNamespace))
	if err != nil && !meta.IsNoMatchError(err) { // without the definitions there is nothing
		t.Errorf("delete all %T: %v", kind, err)
	}
	c.awaitNone(t, list)
}

func (c *cluster) deleteManifests(t *testing.T, dir string) {
	t.Helper()
	for _, object := range slices.Backward(c.manifests(t, dir)) {
		c.delete(t, object)
	}
}

// removeRest removes what the suite itself has made, when namespace velero is gone or going.
func (c *cluster) removeRest(t *testing.T) {
	t.Helper()
	for _, name := range c.namespaces {
		if name != ownNamespace {
			c.delete(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	c.awaitGone(t, append(slices.DeleteFunc(slices.Clone(c.namespaces), func(name string) bool { return name == ownNamespace }), veleroNamespace))
	if err := c.client.DeleteAllOf(t.Context(), &corev1.PersistentVolume{}, client.MatchingLabels(ownLabels)); err != nil {
		t.Error(err)
	}
	c.delete(t, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: storageClass}})
	c.checkNodes(t)
	c.delete(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ownNamespace}})
	c.awaitGone(t, []string{ownNamespace})
}

func (c *cluster) delete(t *testing.T, object client.Object) {
	t.Helper()
	if err := client.IgnoreNotFound(c.client.Delete(t.Context(), object)); err != nil {
		t.Errorf("delete %T %s: %v", object, object.GetName(), err)
	}
}

func (c *cluster) awaitNone(t *testing.T, list client.ObjectList) {
	t.Helper()
	eventually(t, fmt.Sprintf("no %T is left", list), func(ctx context.Context) (bool, error) {
		err := c.client.List(ctx, list, client.InNamespace(veleroNamespace))
		if meta.IsNoMatchError(err) {
			return true, nil
		}
		left, _ := json.Marshal(list)
		return err == nil && !bytes.Contains(left, []byte(`"spec"`)), errors.Join(err, fmt.Errorf("left: %.2000s", left))
	})
}

func (c *cluster) awaitGone(t *testing.T, namespaces []string) {
	t.Helper()
	for _, name := range namespaces {
		eventually(t, "namespace "+name+" is gone", func(ctx context.Context) (bool, error) {
			var now corev1.Namespace
			err := c.client.Get(ctx, types.NamespacedName{Name: name}, &now)
			return apierrors.IsNotFound(err), fmt.Errorf("%+v", now.Status.Conditions)
		})
	}
}

// checkLocks asks restic for the locks in each of its repositories.
func (c *cluster) checkLocks(t *testing.T) {
	t.Helper()
	pods := map[string]*corev1.Pod{}
	for _, namespace := range c.backedUp {
		pods[namespace] = c.startRestic(t, namespace, "--no-lock", "list", "locks")
	}
	for namespace, pod := range pods {
		if locks := c.resticSaid(t, pod); locks != "" {
			t.Errorf("restic's repository of %s has locks: %s", namespace, locks)
		}
	}
}

// restic runs restic itself in a repository of the suite, and returns what it says.
func (c *cluster) restic(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	return c.resticSaid(t, c.startRestic(t, namespace, args...))
}

func (c *cluster) startRestic(t *testing.T, namespace string, args ...string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ownNamespace, GenerateName: "restic-"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: restic, Image: c.agent, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: append([]string{restic, "--repo", c.resticAddress(namespace), "--no-cache"}, args...),
				Env: []corev1.EnvVar{
					{Name: "RESTIC_PASSWORD", Value: password},
					{Name: "AWS_ACCESS_KEY_ID", Value: s3Key},
					{Name: "AWS_SECRET_ACCESS_KEY", Value: s3Secret},
					{Name: "AWS_REGION", Value: "us-east-1"},
				},
			}},
		},
	}
	c.create(t, pod)
	return pod
}

func (c *cluster) resticSaid(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	c.awaitPod(t, pod, corev1.PodSucceeded)
	return strings.TrimSpace(c.log(t, pod, restic))
}

// checkNodes removes the suite's directories from the nodes, and looks for processes and mounts that nobody needs.
func (c *cluster) checkNodes(t *testing.T) {
	t.Helper()
	args := []string{"leftovers"}
	for _, uid := range c.pods {
		args = append(args, string(uid))
	}
	for node, left := range c.onNodes(t, args...) {
		if left != "" {
			t.Errorf("left on %s:\n%s", node, left)
		}
	}
	c.onNodes(t, "remove", nodeDirInPod+"/"+ownNamespace)
}

func (c *cluster) log(t *testing.T, pod *corev1.Pod, container string) string {
	t.Helper()
	text, err := c.logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container}).DoRaw(t.Context())
	if err != nil {
		t.Fatalf("log of pod %s: %v", pod.Name, err)
	}
	return string(text)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
