package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	nodeName    = "demo-node"
	csiDriver   = "csi.demo.plimsoll.io"
	restoreWait = "restore-wait" // the init container that Velero gives to restored pods
)

// node plays kubelet: it makes the directories of pods and writes their status.
type node struct {
	client client.Client
	pods   string // kubelet's pods directory
}

// instance is an app's pod on the node.
type instance struct {
	app
	pod    *corev1.Pod
	claims map[string]*corev1.PersistentVolumeClaim // by volume; absent for an emptyDir
	dirs   map[string]string                        // by volume, where its files are
}

// startPod creates the app's pod in a namespace and reports it as running. With arguments for the init container, that one runs
// first.
func (n *node) startPod(ctx context.Context, a app, namespace string, initArgs ...string) (*instance, error) {
	in := &instance{app: a, claims: map[string]*corev1.PersistentVolumeClaim{}, dirs: map[string]string{}}
	if err := n.createNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	for _, v := range a.volumes {
		if !v.csi {
			continue
		}
		claim, err := n.createClaim(ctx, namespace, a.name+"-"+v.name)
		if err != nil {
			return nil, fmt.Errorf("create the claim of %s: %w", label(a.name, v.name), err)
		}
		in.claims[v.name] = claim
	}
	in.pod = newPod(in, namespace, initArgs)
	if err := n.client.Create(ctx, in.pod); err != nil {
		return nil, fmt.Errorf("create pod %s: %w", a.name, err)
	}
	for _, v := range a.volumes {
		in.dirs[v.name] = n.volumeDir(in, v)
		if err := os.MkdirAll(in.dirs[v.name], 0o755); err != nil {
			return nil, fmt.Errorf("make the directory of %s: %w", label(a.name, v.name), err)
		}
	}
	return in, n.setRunning(ctx, in.pod, len(initArgs) > 0)
}

func (n *node) createNamespace(ctx context.Context, name string) error {
	err := n.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// createDriver creates the CSIDriver of the CSI volumes.
func (n *node) createDriver(ctx context.Context) error {
	err := n.client.Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver}})
	if err != nil {
		return fmt.Errorf("create CSIDriver %s: %w", csiDriver, err)
	}
	return nil
}

// createClaim makes a PersistentVolumeClaim and the PersistentVolume that it is bound to.
func (n *node) createClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	volume := "pv-" + namespace + "-" + name
	size := resource.MustParse("1Ti")
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: volume, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	}
	if err := n.client.Create(ctx, claim); err != nil {
		return nil, err
	}
	return claim, n.client.Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: corev1.ResourceList{corev1.ResourceStorage: size},
			ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: volume},
			},
		},
	})
}

func newPod(in *instance, namespace string, initArgs []string) *corev1.Pod {
	main := corev1.Container{Name: in.name, Image: in.name}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: in.name},
		Spec:       corev1.PodSpec{NodeName: nodeName},
	}
	first := corev1.Container{Name: restoreWait, Image: restoreWait, Args: initArgs}
	for _, v := range in.volumes {
		source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		if claim := in.claims[v.name]; claim != nil {
			source = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v.name, VolumeSource: source})
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: v.name, MountPath: "/" + v.name})
		first.VolumeMounts = append(first.VolumeMounts, corev1.VolumeMount{Name: v.name, MountPath: "/restores/" + v.name})
	}
	pod.Spec.Containers = []corev1.Container{main}
	if len(initArgs) > 0 {
		pod.Spec.InitContainers = []corev1.Container{first}
	}
	return pod
}

// volumeDir returns the directory in which kubelet has the files of a volume.
func (n *node) volumeDir(in *instance, v volume) string {
	return filepath.Join(n.volumesDir(in, v), map[bool]string{true: "mount", false: v.name}[v.csi])
}

// volumesDir returns a directory that contains only volumes of the pod, as /restores does in the init container. For a CSI
// volume that is the volume's own directory, which contains the directory "mount".
func (n *node) volumesDir(in *instance, v volume) string {
	volumes := filepath.Join(n.pods, string(in.pod.UID), "volumes")
	if v.csi {
		return filepath.Join(volumes, "kubernetes.io~csi", "pv-"+in.pod.Namespace+"-"+in.claims[v.name].Name)
	}
	return filepath.Join(volumes, "kubernetes.io~empty-dir")
}

// setRunning writes the status of a pod whose containers, or whose init container, run.
func (n *node) setRunning(ctx context.Context, pod *corev1.Pod, inInit bool) error {
	before := pod.DeepCopy()
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	pod.Status.Phase, pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = corev1.PodRunning, nil, nil
	if inInit {
		pod.Status.Phase = corev1.PodPending
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: restoreWait, State: running}}
	} else {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, Ready: true, State: running}}
	}
	if err := n.client.Status().Patch(ctx, pod, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("report pod %s as running: %w", pod.Name, err)
	}
	return nil
}
