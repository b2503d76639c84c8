//go:build e2e

package e2e

import (
	"path"
	"strconv"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of volumes, which are also their names.
const (
	disk   = "disk"   // an emptyDir
	memory = "memory" // an emptyDir in memory
	local  = "local"  // a claim on a local volume, which survives the pod
)

var ownLabels = map[string]string{"app.kubernetes.io/part-of": ownNamespace}

// app is a pod with volumes, each with a tree of its own.
type app struct {
	namespace, name, node string
	uploader              string // the data path of its volumes
	volumes               []string
	kopiaTimes            bool   // as far as Velero's own node agent restores times
	bytes                 int64  // of each volume
	seed                  uint64 // of the first volume

	pod   *corev1.Pod                   // when it has been started
	claim *corev1.PersistentVolumeClaim // of volume local, if it has one
}

// startApps makes the apps' namespace, starts their pods and waits until their volumes are filled.
func (c *cluster) startApps(t *testing.T, apps []*app) {
	t.Helper()
	c.createNamespace(t, apps[0].namespace)
	for _, a := range apps {
		c.startApp(t, a, nil)
	}
	for _, a := range apps {
		a.pod = c.awaitPod(t, a.pod, corev1.PodRunning)
	}
}

// startTargets makes the pods into which is restored. They wait until somebody does that.
func (c *cluster) startTargets(t *testing.T, apps []*app, restore *velerov1.Restore) []*app {
	t.Helper()
	c.createNamespace(t, apps[0].namespace+restoredSuffix)
	var targets []*app
	for _, a := range apps {
		target := *a
		target.namespace += restoredSuffix
		c.startApp(t, &target, restore)
		targets = append(targets, &target)
	}
	return targets
}

// startApp makes an app's pod: one that fills its volumes and stays, or, for a restore, one that compares them and ends.
func (c *cluster) startApp(t *testing.T, a *app, restore *velerov1.Restore) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name, Labels: ownLabels},
		Spec: corev1.PodSpec{
			Affinity: onlyOn(a.node), RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(5)),
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	for _, volume := range a.volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: c.volumeSource(t, a, volume)})
	}
	if restore == nil {
		pod.Spec.InitContainers = []corev1.Container{c.container(a, "fill", a.treeArgs("make"))}
		pod.Spec.Containers = []corev1.Container{c.container(a, "app", []string{"sleep"})}
	} else {
		pod.Spec.InitContainers = []corev1.Container{c.restoreWait(a, restore), c.container(a, "fill", a.treeArgs("make"))}
		pod.Spec.Containers = []corev1.Container{c.container(a, "app", a.treeArgs("verify", "/scratch"))}
	}
	c.create(t, pod)
	a.pod = pod
}

func (c *cluster) container(a *app, name string, args []string) corev1.Container {
	mounts := []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	for _, volume := range a.volumes {
		mounts = append(mounts, corev1.VolumeMount{Name: volume, MountPath: path.Join("/volumes", volume)})
	}
	return corev1.Container{Name: name, Image: c.own, ImagePullPolicy: corev1.PullIfNotPresent, Args: args, VolumeMounts: mounts}
}

// treeArgs are the arguments for the program that makes and compares trees.
func (a *app) treeArgs(command string, dirs ...string) []string {
	args := []string{
		command, "-bytes=" + strconv.FormatInt(a.bytes, 10), "-seed=" + strconv.FormatUint(a.seed, 10),
		"-plain=" + strconv.FormatBool(a.uploader == kopia), "-kopia-times=" + strconv.FormatBool(a.kopiaTimes),
	}
	for _, volume := range a.volumes {
		dirs = append(dirs, path.Join("/volumes", volume))
	}
	return append(args, dirs...)
}

// restoreWait is the init container that a Velero server adds, with our image instead of Velero's: the first one, as a
// user without rights, with the UID of the Restore as its argument. A server that is given only the name of our image
// calls it by the name of Velero's helper.
func (c *cluster) restoreWait(a *app, restore *velerov1.Restore) corev1.Container {
	container := corev1.Container{
		Name: "restore-wait", Image: c.agent, ImagePullPolicy: corev1.PullIfNotPresent,
		Args: []string{"restore-wait", string(restore.UID)},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), RunAsNonRoot: new(true), RunAsUser: new(int64(1000)),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if a.uploader == kopia {
		container.Command, container.Args = []string{"/velero-restore-helper"}, []string{string(restore.UID)}
	}
	for _, volume := range a.volumes {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: path.Join("/restores", volume)})
	}
	return container
}

func (c *cluster) volumeSource(t *testing.T, a *app, volume string) corev1.VolumeSource {
	t.Helper()
	switch volume {
	case disk:
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	case memory:
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
	default:
		a.claim = c.claimLocal(t, a)
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: a.claim.Name}}
	}
}

// claimLocal makes a local PersistentVolume on the app's node, and a claim that is bound to that.
func (c *cluster) claimLocal(t *testing.T, a *app) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim := c.makeLocalVolume(t, a)
	c.create(t, claim)
	return claim
}

// makeLocalVolume makes a directory on the app's node, and a local PersistentVolume of it. It returns a claim on it.
func (c *cluster) makeLocalVolume(t *testing.T, a *app) *corev1.PersistentVolumeClaim {
	t.Helper()
	name := a.volumeName()
	c.onNode(t, a.node, "mkdir", path.Join(nodeDirInPod, ownNamespace, name))
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.create(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: ownLabels},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, StorageClassName: storageClass,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			NodeAffinity:                  &corev1.VolumeNodeAffinity{Required: c.localTo(a.node)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: path.Join(nodeDir, ownNamespace, name)},
			},
		},
	})
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: new(storageClass), VolumeName: name,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}
}

// localTo is the node affinity of a local volume, which the API server takes by label only.
func (c *cluster) localTo(node string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{c.hostnames[node]}},
	}}}}
}

// awaitVerified waits for the end of a pod into which was restored. It must not have begun before its volumes were there.
func (c *cluster) awaitVerified(t *testing.T, a *app) {
	t.Helper()
	pod := c.awaitPod(t, a.pod, corev1.PodSucceeded)
	if message := lastWords(pod); message != "" {
		t.Errorf("pod %s/%s says:\n%s", pod.Namespace, pod.Name, message)
	}
	init, app := pod.Status.InitContainerStatuses[0].State.Terminated, pod.Status.ContainerStatuses[0].State.Terminated
	if init == nil || app == nil || app.StartedAt.Before(&init.FinishedAt) {
		t.Errorf("pod %s/%s ran before its init container had ended: %+v, %+v", pod.Namespace, pod.Name, init, app)
	}
}
