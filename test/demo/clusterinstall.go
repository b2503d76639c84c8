package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

const (
	agentName = "node-agent" // of the DaemonSet, and in the label name of its pods

	s3Name   = "s3"
	s3Port   = 7070
	s3Key    = "plimsoll-demo"
	s3Secret = "plimsoll-demo-secret" // guards nothing: the server holds the demo's data only
	s3Bucket = "backups"
	s3Region = "us-east-1"

	// patience is how long the cluster may take for something that takes seconds.
	patience = 4 * time.Minute
	// pollEvery is the time between two looks at the cluster.
	pollEvery = 500 * time.Millisecond
	// imagePatience is how long pods may fail to pull the image. kubelet tries again after 10 s and after 20 s.
	imagePatience = 20 * time.Second
)

// errNoImage is returned by await if the nodes cannot get the demo's image.
var errNoImage = errors.New("the nodes cannot get the image")

// install makes what is there before the first backup, and waits until it runs. The S3 server comes first: it is the first one
// to miss an image.
func (c *cluster) install(ctx context.Context) error {
	c.say("using namespace %s, %s and image %s", clusterNamespace, nodesText(c.nodes), c.options.image)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterNamespace, Labels: map[string]string{
		partOf: clusterNamespace, "pod-security.kubernetes.io/enforce": "privileged", // for the node agent
	}}}
	if err := c.client.Create(ctx, namespace); err != nil {
		return fmt.Errorf("create namespace %s: %w", clusterNamespace, err)
	}
	for _, step := range []func(context.Context) error{c.installCRDs, c.startS3, c.installAgent, c.createLocation, c.awaitAgents} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func nodesText(nodes []string) string {
	if len(nodes) == 1 {
		return "node " + nodes[0]
	}
	return "nodes " + strings.Join(nodes, " and ")
}

// installCRDs makes Velero's CRDs that are missing, with a label by which cleanUp knows them.
func (c *cluster) installCRDs(ctx context.Context) error {
	crds, err := controlplane.VeleroCRDs(veleroVersion)
	if err != nil {
		return err
	}
	made := 0
	for _, crd := range crds {
		crd.Labels = map[string]string{partOf: clusterNamespace}
		err := c.client.Create(ctx, crd)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create CRD %s: %w", crd.Name, err)
		}
		if err == nil {
			made++
		}
	}
	if made > 0 {
		c.say("installed %d CRDs of Velero %s, which are removed at the end", made, veleroVersion)
	}
	return c.await(ctx, "the CRDs are served", func(ctx context.Context) (bool, error) {
		for _, crd := range crds {
			if err := c.client.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
				return false, fmt.Errorf("get CRD %s: %w", crd.Name, err)
			}
			if !slices.ContainsFunc(crd.Status.Conditions, isEstablished) {
				return false, nil
			}
		}
		return true, nil
	})
}

func isEstablished(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
	return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
}

// startS3 starts the S3 server. Its address is that of its pod, so that the cluster's Services do not matter.
func (c *cluster) startS3(ctx context.Context) error {
	pod := c.newPod(s3Name, c.nodes[0])
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	directories := c.container("directories", "mkdir", "/data/sidecar", path.Join("/data/buckets", s3Bucket))
	gateway := c.container(s3Name)
	gateway.Command = []string{
		"/usr/local/bin/versitygw", "--quiet", "--port", fmt.Sprintf(":%d", s3Port), "--access", s3Key, "--secret", s3Secret,
		"posix", "--sidecar", "/data/sidecar", "/data/buckets",
	}
	gateway.ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(s3Port)}},
	}
	directories.VolumeMounts, gateway.VolumeMounts = mounts, mounts
	pod.Spec.InitContainers, pod.Spec.Containers = []corev1.Container{directories}, []corev1.Container{gateway}
	if err := c.client.Create(ctx, pod); err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	err := c.awaitPod(ctx, pod, "is ready", func() bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].Ready
	})
	c.s3 = "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(s3Port))
	return err
}

// createLocation makes what a Velero server has before its first backup.
func (c *cluster) createLocation(ctx context.Context) error {
	credentials := &corev1.Secret{
		ObjectMeta: ownMeta("cloud-credentials"),
		StringData: map[string]string{"cloud": "[default]\naws_access_key_id=" + s3Key + "\naws_secret_access_key=" + s3Secret + "\n"},
	}
	if err := c.client.Create(ctx, credentials); err != nil {
		return fmt.Errorf("create Secret %s: %w", credentials.Name, err)
	}
	return c.server.install(ctx, velerov1.BackupStorageLocationSpec{
		Provider: "aws", Default: true,
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: s3Bucket}},
		Config:      map[string]string{"region": s3Region, "s3ForcePathStyle": "true", "s3Url": c.s3},
	})
}

// installAgent makes the objects of deploy/node-agent, for the demo's namespace and nodes.
func (c *cluster) installAgent(ctx context.Context) error {
	root, err := parts.Root()
	if err != nil {
		return err
	}
	for _, name := range []string{"serviceaccount.yaml", "rbac.yaml", "daemonset.yaml"} {
		objects, err := c.readManifest(filepath.Join(root, "deploy", "node-agent", name))
		if err != nil {
			return fmt.Errorf("read the manifest %s of the node agent: %w", name, err)
		}
		for _, object := range objects {
			c.adapt(object)
			if err := c.client.Create(ctx, object); err != nil {
				return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
			}
		}
	}
	return nil
}

func (c *cluster) readManifest(file string) ([]client.Object, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(c.client.Scheme()).UniversalDeserializer()
	var objects []client.Object
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object.(client.Object))
	}
}

// adapt changes an object of the installation for the demo: its namespace, and the name of what is in none.
func (c *cluster) adapt(object client.Object) {
	object.SetLabels(map[string]string{partOf: clusterNamespace})
	if object.GetNamespace() != "" {
		object.SetNamespace(clusterNamespace)
	}
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		o.Name = clusterRole
	case *rbacv1.ClusterRoleBinding:
		o.Name, o.RoleRef.Name, o.Subjects[0].Namespace = clusterRole, clusterRole, clusterNamespace
	case *rbacv1.RoleBinding:
		o.Subjects[0].Namespace = clusterNamespace
	case *appsv1.DaemonSet:
		c.adaptAgent(&o.Spec.Template)
	}
}

// adaptAgent changes as little as possible of the agent's pods: image, nodes, kubelet's directory, and progress that can be seen in
// seconds. They have no priority over the user's pods, and no Prometheus scrapes them.
func (c *cluster) adaptAgent(template *corev1.PodTemplateSpec) {
	template.Annotations, template.Spec.PriorityClassName = nil, ""
	template.Spec.Affinity = onlyOn(c.nodes...)
	agent := &template.Spec.Containers[0]
	agent.Image, agent.ImagePullPolicy = c.options.image, corev1.PullIfNotPresent
	agent.Args = append(agent.Args, "--concurrency=2", "--progress-interval=1s")
	for i := range template.Spec.Volumes {
		if host := template.Spec.Volumes[i].HostPath; host != nil {
			host.Path = path.Join(c.options.kubelet, "pods")
		}
	}
}

func (c *cluster) awaitAgents(ctx context.Context) error {
	begin := time.Now()
	set := &appsv1.DaemonSet{ObjectMeta: ownMeta(agentName)}
	err := c.await(ctx, "the node agents are ready", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(set), set)
		return int(set.Status.NumberReady) == len(c.nodes), err
	})
	if err == nil {
		c.say("started the node agent on %s in %.1f s", nodesText(c.nodes), time.Since(begin).Seconds())
	}
	return err
}

// await waits until holds reports true, or returns an error. It returns errNoImage soon if that is what the pods wait for.
func (c *cluster) await(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	return c.poll(ctx, what, func(ctx context.Context) (bool, error) {
		held, err := holds(ctx)
		if err == nil && !held {
			err = c.checkImage(ctx)
		}
		return held, err
	})
}

// checkImage returns errNoImage if pods have failed to get the image for a while.
func (c *cluster) checkImage(ctx context.Context) error {
	var pods corev1.PodList
	if err := c.client.List(ctx, &pods, client.InNamespace(clusterNamespace)); err != nil {
		return fmt.Errorf("list the demo's pods: %w", err)
	}
	for i := range pods.Items {
		for _, status := range slices.Concat(pods.Items[i].Status.InitContainerStatuses, pods.Items[i].Status.ContainerStatuses) {
			if w := status.State.Waiting; w != nil && isImageProblem(w.Reason) {
				if c.imageMissingSince.IsZero() {
					c.imageMissingSince = time.Now()
				}
				if time.Since(c.imageMissingSince) < imagePatience {
					return nil
				}
				return fmt.Errorf("%w %s: pod %s on %s: %s: %s\n%s", errNoImage, c.options.image, pods.Items[i].Name, pods.Items[i].Spec.NodeName, w.Reason, w.Message, loadImage)
			}
		}
	}
	c.imageMissingSince = time.Time{}
	return nil
}

func isImageProblem(reason string) bool {
	return slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}, reason)
}

// loadImage says how an image gets onto nodes.
const loadImage = `Build the image and load it on the nodes:
  make bin/image/demo.tar
  kind load image-archive bin/image/demo.tar                 for kind
  k3s ctr images import bin/image/demo.tar                   on each node, for k3s
  ctr --namespace k8s.io images import bin/image/demo.tar    on each node, for other clusters with containerd
Or push it to a registry, and run the demo with IMAGE=NAME.`
