package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/screen"
)

const (
	// clusterNamespace has all that the demo makes in a cluster but a role, its binding and CRDs.
	clusterNamespace = "plimsoll-demo"
	// clusterRole is the name of the node agent's ClusterRole and its binding.
	clusterRole = "plimsoll-demo-node-agent"
	// partOf is the label of what the demo has made, with the namespace as value.
	partOf = "app.kubernetes.io/part-of"

	// maxNodes is the number of nodes that the demo uses: enough to restore on another node than the source's.
	maxNodes = 2
	// connectTimeout is how long the first questions to the API server may take.
	connectTimeout = 30 * time.Second
)

// clusterOptions say how the demo runs in a cluster.
type clusterOptions struct {
	bytes      int64  // of data, about
	kubeconfig string // a file
	image      string // of all pods
	kubelet    string // kubelet's directory on the nodes
	console    screen.Console
	signals    <-chan os.Signal // the first one ends the demo, the next one its clean-up
}

// cluster is a demo in a cluster of the user's.
type cluster struct {
	*demo
	options clusterOptions
	logs    kubernetes.Interface // only for logs of pods, which client has no way to read
	nodes   []string             // that the demo uses
	s3      string               // URL of the S3 server

	imageMissingSince time.Time // zero if the nodes have the image
}

var _ place = (*cluster)(nil)

// runInCluster runs the demo in a cluster. When it returns, it has removed all that it has made there, or says what is left.
func runInCluster(ctx context.Context, o clusterOptions) (result, error) {
	c, err := connect(o)
	if err != nil {
		return result{}, err
	}
	if err := c.preflight(ctx); err != nil {
		return result{}, err
	}
	err = c.untilInterrupted(ctx, c.installAndRun)
	return c.result, errors.Join(err, c.cleanUp(ctx))
}

// connect returns a cluster about which nothing is known yet.
func connect(o clusterOptions) (*cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", o.kubeconfig, err)
	}
	scheme, err := newScheme(clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, velerov1.AddToScheme)
	if err != nil {
		return nil, err
	}
	c := &cluster{demo: &demo{bytes: o.bytes, console: o.console}, options: o}
	if c.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if c.logs, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	c.place, c.server = c, &server{client: c.client, namespace: clusterNamespace}
	return c, nil
}

// preflight returns an error, and changes nothing, unless the demo can begin.
func (c *cluster) preflight(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	found, err := c.findNamespace(ctx)
	switch {
	case err != nil:
		return err
	case found != nil && !isOurs(found):
		return fmt.Errorf("namespace %s is in the cluster and was not made by the demo; the demo needs this name", clusterNamespace)
	case found != nil:
		return fmt.Errorf("namespace %s is in the cluster: another demo runs, or an earlier one was not removed. Remove it with: %s", clusterNamespace, c.cleanCommand())
	}
	return c.findNodes(ctx)
}

// findNamespace returns the demo's namespace, or nil if there is none.
func (c *cluster) findNamespace(ctx context.Context) (*corev1.Namespace, error) {
	var namespace corev1.Namespace
	err := c.client.Get(ctx, types.NamespacedName{Name: clusterNamespace}, &namespace)
	if err == nil {
		return &namespace, nil
	}
	if err = client.IgnoreNotFound(err); err != nil {
		err = fmt.Errorf("look for namespace %s: %w", clusterNamespace, err)
	}
	return nil, err
}

func isOurs(object client.Object) bool { return object.GetLabels()[partOf] == clusterNamespace }

// findNodes chooses the nodes: ready, without taints that keep pods away, and with processors that the image is for.
func (c *cluster) findNodes(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	for i := range nodes.Items {
		if usable(&nodes.Items[i]) {
			c.nodes = append(c.nodes, nodes.Items[i].Name)
		}
	}
	if len(c.nodes) == 0 {
		return fmt.Errorf("no node is ready, of linux/%s and without taints, so the demo's pods would not start", runtime.GOARCH)
	}
	slices.Sort(c.nodes)
	c.nodes = c.nodes[:min(len(c.nodes), maxNodes)]
	return nil
}

func usable(node *corev1.Node) bool {
	keepsAway := func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	isReady := func(s corev1.NodeCondition) bool {
		return s.Type == corev1.NodeReady && s.Status == corev1.ConditionTrue
	}
	return !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, keepsAway) && slices.ContainsFunc(node.Status.Conditions, isReady) &&
		node.Labels[corev1.LabelOSStable] == "linux" && node.Labels[corev1.LabelArchStable] == runtime.GOARCH
}

// installAndRun makes all that the demo needs, and runs it.
func (c *cluster) installAndRun(ctx context.Context) error {
	ctx, cancel := withTimeLimit(ctx, c.bytes)
	defer cancel()
	err := orCause(ctx, c.install(ctx))
	if err == nil {
		journal := newJournal()
		if err = orCause(ctx, c.backUpAndRestore(ctx, journal)); err == nil {
			err = c.checkUnchanged(ctx, journal)
		}
	}
	if err != nil && !explained(err) {
		c.sayTroubles(context.WithoutCancel(ctx))
	}
	return err
}

// explained reports whether an error says enough by itself.
func explained(err error) bool {
	return errors.Is(err, screen.ErrInterrupted) || errors.Is(err, screen.ErrQuit) || errors.Is(err, errNoImage)
}

// untilInterrupted runs f with a context that ends with the next signal.
func (c *cluster) untilInterrupted(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-c.options.signals:
			cancel(screen.ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	return f(ctx)
}

// namespaceMapping: all pods are in the demo's namespace.
func (*cluster) namespaceMapping([]*instance) map[string]string { return nil }

// cleanCommand is what removes an earlier demo.
func (c *cluster) cleanCommand() string { return "make demo-clean KUBECONFIG=" + c.options.kubeconfig }

// sayTroubles writes what helps to understand a failure.
func (c *cluster) sayTroubles(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var pods corev1.PodList
	if err := c.client.List(ctx, &pods, client.InNamespace(clusterNamespace)); err != nil {
		c.say("the pods could not be listed: %v", err)
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		c.say("pod %s on %s is %s%s", pod.Name, pod.Spec.NodeName, pod.Status.Phase, strings.Join(append([]string{""}, waitingReasons(pod)...), ", "))
		if pod.Labels["name"] == agentName {
			tail, err := c.logs.CoreV1().Pods(clusterNamespace).GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: new(int64(20))}).DoRaw(ctx)
			c.say("the end of its log:\n%s", tail)
			if err != nil {
				c.say("its log could not be read: %v", err)
			}
		}
	}
	var events corev1.EventList
	if err := c.client.List(ctx, &events, client.InNamespace(clusterNamespace)); err != nil {
		c.say("the Events could not be listed: %v", err)
	}
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning {
			c.say("Event of %s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}

// waitingReasons says for what a pod's containers wait.
func waitingReasons(pod *corev1.Pod) []string {
	var reasons []string
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := status.State.Waiting; w != nil {
			reasons = append(reasons, fmt.Sprintf("container %s waits: %s %s", status.Name, w.Reason, w.Message))
		}
	}
	return reasons
}

func ownMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: clusterNamespace, Name: name, Labels: map[string]string{partOf: clusterNamespace}}
}
