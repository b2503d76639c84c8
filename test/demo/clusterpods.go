package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	volumesDir = "/volumes" // in the pods: volumes are mounted in it
	scratchDir = "/scratch" // in the pods: what a restored pod compares with is made in it
)

// startSources starts a pod for each app. Its init container fills the volumes.
func (c *cluster) startSources(ctx context.Context, apps []app) ([]*instance, content, error) {
	var sources []*instance
	var all content
	for i, a := range apps {
		in := &instance{app: a, pod: c.appPod(a, a.name, c.nodes[i%len(c.nodes)])}
		in.pod.Spec.InitContainers = []corev1.Container{c.appContainer(a, "fill", "fill", a.name, strconv.FormatInt(c.bytes, 10))}
		in.pod.Spec.Containers = []corev1.Container{c.appContainer(a, "app", "sleep")}
		if err := c.client.Create(ctx, in.pod); err != nil {
			return nil, all, fmt.Errorf("create pod %s: %w", in.pod.Name, err)
		}
		sources = append(sources, in)
	}
	for _, in := range sources {
		if err := c.awaitPod(ctx, in.pod, "runs", func() bool { return in.pod.Status.Phase == corev1.PodRunning }); err != nil {
			return nil, all, err
		}
		var made content
		if err := readMessage(in.pod.Status.InitContainerStatuses, "fill", &made); err != nil {
			return nil, all, fmt.Errorf("fill the volumes of pod %s: %w", in.name, err)
		}
		all.Files, all.Bytes = all.Files+made.Files, all.Bytes+made.Bytes
	}
	return sources, all, nil
}

// startTarget starts the restored copy of a pod, on another node if there is one. Its container makes the source's files again and
// compares.
func (c *cluster) startTarget(ctx context.Context, restore *velerov1.Restore, source *instance, stored []volume) (*target, error) {
	pod := c.appPod(source.app, source.name+restoredSuffix, c.otherNode(source.pod.Spec.NodeName))
	if len(stored) > 0 {
		pod.Spec.InitContainers = []corev1.Container{c.restoreWait(restore, stored)}
	}
	pod.Spec.Containers = []corev1.Container{c.appContainer(source.app, "verify", "verify", source.name, strconv.FormatInt(c.bytes, 10))}
	if err := c.client.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	return &target{instance: &instance{app: source.app, pod: pod}, stored: stored}, nil
}

func (c *cluster) otherNode(than string) string {
	for _, node := range c.nodes {
		if node != than {
			return node
		}
	}
	return than
}

func (c *cluster) finishTarget(ctx context.Context, t *target) error {
	return c.awaitPod(ctx, t.pod, "has its volumes", func() bool {
		return t.pod.Status.Phase == corev1.PodRunning || t.pod.Status.Phase == corev1.PodSucceeded
	})
}

func (c *cluster) compare(ctx context.Context, _ *instance, restored *target) (verdict, error) {
	pod := restored.pod
	if err := c.awaitPod(ctx, pod, "has compared its volumes", func() bool { return pod.Status.Phase == corev1.PodSucceeded }); err != nil {
		return verdict{}, err
	}
	var v verdict
	return v, readMessage(pod.Status.ContainerStatuses, "verify", &v)
}

// readMessage reads the termination message of a container.
func readMessage(statuses []corev1.ContainerStatus, container string, into any) error {
	for _, status := range statuses {
		if status.Name == container && status.State.Terminated != nil {
			return json.Unmarshal([]byte(status.State.Terminated.Message), into)
		}
	}
	return fmt.Errorf("container %s has not ended", container)
}

// awaitPod waits until holds reports true, and keeps pod up to date for that. It returns an error if the pod fails.
func (c *cluster) awaitPod(ctx context.Context, pod *corev1.Pod, what string, holds func() bool) error {
	return c.await(ctx, "pod "+pod.Name+" "+what, func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if err == nil && pod.Status.Phase == corev1.PodFailed {
			err = errors.New("pod " + pod.Name + " has failed: " + lastWords(pod))
		}
		return err == nil && holds(), err
	})
}

// lastWords are the termination messages of a pod's containers.
func lastWords(pod *corev1.Pod) string {
	words := []string{pod.Status.Message}
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if ended := status.State.Terminated; ended != nil && ended.ExitCode != 0 {
			words = append(words, fmt.Sprintf("container %s: %s (exit code %d) %s", status.Name, ended.Reason, ended.ExitCode, ended.Message))
		}
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// newPod returns a pod without containers that runs once on a node.
func (c *cluster) newPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: ownMeta(name),
		Spec: corev1.PodSpec{
			Affinity: onlyOn(node), RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(2)),
			AutomountServiceAccountToken: new(false),
		},
	}
}

// appPod returns a pod with the app's volumes, which are emptyDirs: each cluster has them, and the agent can back them up
// everywhere.
func (c *cluster) appPod(a app, name, node string) *corev1.Pod {
	pod := c.newPod(name, node)
	for _, volume := range append([]string{path.Base(scratchDir)}, a.volumeNames()...) {
		source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: source})
	}
	return pod
}

// container returns a container that runs this program as the image's user, without rights.
func (c *cluster) container(name string, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: c.options.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: append([]string{"/usr/local/bin/demo"}, args...),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// appContainer returns a container with the app's volumes. It is root, to make and read files of other users.
func (c *cluster) appContainer(a app, name string, args ...string) corev1.Container {
	container := c.container(name, args...)
	container.SecurityContext.RunAsUser = new(int64(0))
	container.SecurityContext.Capabilities.Add = []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"}
	container.VolumeMounts = []corev1.VolumeMount{{Name: path.Base(scratchDir), MountPath: scratchDir}}
	for _, volume := range a.volumeNames() {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: path.Join(volumesDir, volume)})
	}
	return container
}

// restoreWait returns the init container that a Velero server gives to restored pods.
func (c *cluster) restoreWait(restore *velerov1.Restore, stored []volume) corev1.Container {
	container := c.container(restoreWait)
	container.Command = []string{"/usr/local/bin/node-agent", "restore-wait", string(restore.UID)}
	for _, v := range stored {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: v.name, MountPath: path.Join("/restores", v.name)})
	}
	return container
}

// onlyOn lets pods run on these nodes only.
func onlyOn(nodes ...string) *corev1.Affinity {
	selector := &corev1.NodeSelector{}
	for _, node := range nodes { // terms are alternatives; each takes one value
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}})
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
}
