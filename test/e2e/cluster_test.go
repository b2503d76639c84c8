//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

const (
	veleroNamespace = "velero"
	ownNamespace    = "plimsoll-e2e" // of the S3 server, and of what has to be done on nodes
	nodeDir         = "/var/tmp"     // on nodes: local volumes lie in a directory there
	nodeDirInPod    = "/node"
)

// cluster is where the suite runs.
type cluster struct {
	config    string // kubeconfig
	client    client.WithWatch
	logs      kubernetes.Interface // only for logs of pods, which client has no way to read
	nodes     []string             // two
	hostnames map[string]string    // of the nodes, as their labels say
	agent     string               // image
	own       string               // image of the suite's own pods
	server    string               // image of a Velero server
	oldServer string               // and of one that makes backups with restic, 1.16
	s3        string               // URL of the S3 server

	mu         sync.Mutex
	namespaces []string    // all that the suite has made
	backedUp   []string    // those with a repository of restic
	pods       []types.UID // all that were in these namespaces, or were an agent
}

// connect returns the cluster of KUBECONFIG. It fails for one in which something like Velero is already.
func connect(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		config:    os.Getenv("KUBECONFIG"),
		agent:     cmp.Or(os.Getenv("E2E_IMAGE"), "localhost/plimsoll/node-agent:dev"),
		own:       cmp.Or(os.Getenv("E2E_WORKLOAD_IMAGE"), "localhost/plimsoll/e2e:dev"),
		server:    cmp.Or(os.Getenv("E2E_VELERO_IMAGE"), "localhost/plimsoll/velero:dev"),
		oldServer: cmp.Or(os.Getenv("E2E_VELERO_116_IMAGE"), "localhost/plimsoll/velero-1.16:dev"),
	}
	if c.config == "" {
		t.Fatal("KUBECONFIG is not set: run the suite with `make e2e`")
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.config)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, velerov1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if c.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if c.logs, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Get(t.Context(), types.NamespacedName{Name: veleroNamespace}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Fatalf("the suite needs a cluster without namespace %s: it would remove it in the end (%v)", veleroNamespace, err)
	}
	c.nodes = c.findNodes(t)
	return c
}

// findNodes returns two nodes that pods can run on. One that has just become ready keeps its taint for a moment.
func (c *cluster) findNodes(t *testing.T) []string {
	t.Helper()
	var names []string
	eventually(t, "two nodes have no taints", func(ctx context.Context) (bool, error) {
		var nodes corev1.NodeList
		if err := c.client.List(ctx, &nodes); err != nil {
			return false, err
		}
		names, c.hostnames = nil, map[string]string{}
		for _, node := range nodes.Items {
			if len(node.Spec.Taints) == 0 && !node.Spec.Unschedulable {
				names = append(names, node.Name)
				c.hostnames[node.Name] = node.Labels[corev1.LabelHostname]
			}
		}
		return len(names) >= 2, fmt.Errorf("only %v", names)
	})
	return names[:2]
}

// kubectl returns what kubectl prints.
func (c *cluster) kubectl(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), parts.Kubectl(t), append([]string{"--kubeconfig", c.config}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return out
}

// create makes an object that must not exist yet.
func (c *cluster) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := c.client.Create(t.Context(), object); err != nil {
		t.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch object.(type) {
	case *corev1.Namespace:
		c.namespaces = append(c.namespaces, object.GetName())
	case *corev1.Pod:
		if object.GetNamespace() != ownNamespace {
			c.pods = append(c.pods, object.GetUID())
		}
	}
}

func (c *cluster) createNamespace(t *testing.T, name string) {
	t.Helper()
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}})
}

// awaitPod waits until a pod is in a phase, and returns it as it is then.
func (c *cluster) awaitPod(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	var now corev1.Pod
	eventually(t, "pod "+pod.Namespace+"/"+pod.Name+" is "+string(phase), func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(pod), &now)
		if err == nil && now.Status.Phase != phase && (now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded) {
			t.Fatalf("pod %s/%s is %s, want %s\n%s", pod.Namespace, pod.Name, now.Status.Phase, phase, lastWords(&now))
		}
		return err == nil && now.Status.Phase == phase, err
	})
	return &now
}

// lastWords are the termination messages of a pod's containers.
func lastWords(pod *corev1.Pod) string {
	var words strings.Builder
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if ended := status.State.Terminated; ended != nil {
			words.WriteString(ended.Message)
		}
	}
	return words.String()
}

// onNode runs the suite's program with rights over a node, and returns what it says.
func (c *cluster) onNode(t *testing.T, node string, args ...string) string {
	t.Helper()
	return lastWords(c.awaitPod(t, c.startOnNode(t, node, args...), corev1.PodSucceeded))
}

// onNodes is onNode for all nodes at the same time.
func (c *cluster) onNodes(t *testing.T, args ...string) map[string]string {
	t.Helper()
	pods := map[string]*corev1.Pod{}
	for _, node := range c.nodes {
		pods[node] = c.startOnNode(t, node, args...)
	}
	said := map[string]string{}
	for node, pod := range pods {
		said[node] = lastWords(c.awaitPod(t, pod, corev1.PodSucceeded))
	}
	return said
}

func (c *cluster) startOnNode(t *testing.T, node string, args ...string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ownNamespace, GenerateName: "on-" + node + "-"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, HostPID: true, Affinity: onlyOn(node),
			Volumes: []corev1.Volume{{Name: "node", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: nodeDir, Type: new(corev1.HostPathDirectory)},
			}}},
			Containers: []corev1.Container{{
				Name: "tool", Image: c.own, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
				SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
				VolumeMounts:    []corev1.VolumeMount{{Name: "node", MountPath: nodeDirInPod}},
			}},
		},
	}
	c.create(t, pod)
	return pod
}

// onlyOn lets the scheduler choose a node, which it must do for volumes to be bound, but only that one.
func onlyOn(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: nodeSelector(node)}}
}

func nodeSelector(node string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
	}}}}
}
