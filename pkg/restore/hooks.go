package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// Hooks counts the exec hooks of restored pods. Attempted are all that there were to run, as in Velero.
type Hooks = v1alpha1.RestoreHooks

// Why hooks do not run.
var (
	errHookTimeout = errors.New("its container was not up in time")
	errHookOverdue = errors.New("not done when the restore ended")
	errHookBefore  = errors.New("a hook before it failed, with on-error Fail")
	errHookPodGone = errors.New("the pod was deleted")
	errHookPodOver = errors.New("the pod has ended")
)

// defaultExecTimeout is Velero's, for a hook that does not say.
const defaultExecTimeout = 30 * time.Second

// hookRuns are the exec hooks of a restore. Those of a pod run beside the restore from the pod's creation on, and are waited
// for by Finalize. It is safe for concurrent use.
type hookRuns struct {
	pods sync.WaitGroup
	stop context.CancelCauseFunc // ends those that still wait or run

	mu     sync.Mutex
	counts Hooks
	errors []hookError
	report func(Hooks) // may be nil
}

type hookError struct {
	namespace string
	error
}

// start runs the hooks of a pod that was just created.
func (h *hookRuns) start(ctx context.Context, s *scope, pod *unstructured.Unstructured, hooks []execHook) {
	h.count(Hooks{Attempted: len(hooks)})
	p := &podHooks{
		scope: s, runs: h, began: time.Now(), pending: hooks, uid: pod.GetUID(),
		name: types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetName()},
	}
	h.pods.Go(func() { p.run(ctx) })
}

func (h *hookRuns) count(more Hooks) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.Attempted += more.Attempted
	h.counts.Ended += more.Ended
	h.counts.Failed += more.Failed
	if h.report != nil {
		h.report(h.counts)
	}
}

func (h *hookRuns) now() Hooks {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

func (h *hookRuns) addError(err hookError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errors = append(h.errors, err)
}

// wait returns when all hooks have ended, and ends those that have not after the timeout. It writes what became of them into
// the outcome.
func (h *hookRuns) wait(timeout time.Duration, outcome *Outcome) {
	timer := time.AfterFunc(timeout, func() { h.stop(errHookOverdue) })
	h.pods.Wait()
	timer.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	outcome.Hooks = h.counts
	slices.SortFunc(h.errors, func(a, b hookError) int { return strings.Compare(a.Error(), b.Error()) })
	for _, err := range h.errors {
		outcome.Results.Errors.Add(err.namespace, err.error)
	}
	h.errors = nil
}

// podHooks are the exec hooks of one pod.
type podHooks struct {
	*scope
	runs    *hookRuns
	name    types.NamespacedName
	uid     types.UID
	began   time.Time
	pending []execHook // not run yet
}

// run runs the hooks of each container when it is up, in their order, and says of those that cannot run why.
func (p *podHooks) run(ctx context.Context) {
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if longest := longestWait(p.pending); longest > 0 {
		waiting, cancel = context.WithTimeoutCause(ctx, longest, errHookTimeout)
	}
	defer cancel()
	err := p.watch(waiting, func(pod *unstructured.Unstructured) error { return p.runReady(ctx, pod) })
	for _, hook := range p.pending {
		p.end(hook, fmt.Errorf("not run: %w", err))
	}
}

// watch calls see with the pod as it is, again after each change, until no hook is pending or see returns an error.
func (p *podHooks) watch(ctx context.Context, see func(*unstructured.Unstructured) error) error {
	for {
		var pod *unstructured.Unstructured
		err := p.engine.retry(ctx, func() (err error) {
			pod, err = p.getObject(ctx, podObjects, p.name)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case apierrors.IsNotFound(err), err == nil && pod.GetUID() != p.uid:
			return errHookPodGone
		case err != nil:
			return fmt.Errorf("look at the pod: %w", err)
		}
		if err := see(pod); err != nil || len(p.pending) == 0 {
			return err
		}
		p.awaitChange(ctx, pod.GetResourceVersion())
	}
}

// awaitChange returns when the pod has changed, or may have: where it cannot be watched, after a moment.
func (p *podHooks) awaitChange(ctx context.Context, version string) {
	changes, err := p.engine.cluster.Resource(podObjects).Namespace(p.name.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", p.name.Name).String(), ResourceVersion: version,
	})
	if err != nil {
		_ = apiretry.Sleep(ctx, time.Second)
		return
	}
	defer changes.Stop()
	select {
	case _, open := <-changes.ResultChan():
		if !open {
			_ = apiretry.Sleep(ctx, time.Second)
		}
	case <-ctx.Done():
	}
}

// runReady runs the pending hooks whose containers are up. The error says why the others will not run.
func (p *podHooks) runReady(ctx context.Context, pod *unstructured.Unstructured) error {
	if leftOut(pods, pod) != "" {
		return errHookPodOver
	}
	all := p.pending
	p.pending = nil
	for i, hook := range all {
		if !hasContainer(pod, hook.container) {
			p.end(hook, fmt.Errorf("not run: the pod has no container %q", hook.container))
			continue
		}
		if !isUp(pod, hook.container, slices.ContainsFunc(all, func(other execHook) bool { return other.container == hook.container && other.waitForReady })) {
			p.pending = append(p.pending, hook)
			continue
		}
		err := p.exec(ctx, hook)
		p.end(hook, err)
		if err != nil && hook.onError == velerov1.HookErrorModeFail {
			p.pending = append(p.pending, all[i+1:]...)
			return errHookBefore
		}
	}
	return nil
}

// end notes what became of a hook.
func (p *podHooks) end(hook execHook, err error) {
	log := p.Log.With("namespace", p.name.Namespace, "pod", p.name.Name, "container", hook.container, "hook", hook.name)
	ended := Hooks{Ended: 1}
	if err != nil {
		ended.Failed = 1
		err = fmt.Errorf("restore hook %q in container %q of pod %s: %w", hook.name, hook.container, p.name, err)
		p.runs.addError(hookError{p.name.Namespace, err})
		log.Error("Restore hook failed", "error", err)
	} else {
		log.Info("Restore hook ended")
	}
	p.runs.count(ended)
}

// exec runs the command of a hook, and logs what it prints.
func (p *podHooks) exec(ctx context.Context, hook execHook) error {
	if hook.waitTimeout > 0 && time.Since(p.began) > hook.waitTimeout {
		return fmt.Errorf("not run: %w", errHookTimeout)
	}
	timeout := cmp.Or(hook.execTimeout, defaultExecTimeout)
	errTimeout := fmt.Errorf("timed out after %s; the command may still run", timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	var stdout, stderr beginning
	err := p.engine.exec(ctx, p.name, hook, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	p.Log.Info("Restore hook has printed", "namespace", p.name.Namespace, "pod", p.name.Name, "container", hook.container,
		"stdout", string(stdout), "stderr", string(stderr))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// exec runs a command in a container. Streams go by WebSocket or, through what does not know that, by SPDY.
func (e *Engine) exec(ctx context.Context, pod types.NamespacedName, hook execHook, streams remotecommand.StreamOptions) error {
	target, err := e.execURL(pod, hook)
	if err != nil {
		return err
	}
	websocket, err := remotecommand.NewWebSocketExecutor(e.config.REST, "GET", target.String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(e.config.REST, "POST", target)
	if err != nil {
		return err
	}
	either, err := remotecommand.NewFallbackExecutor(websocket, spdy, httpstream.IsUpgradeFailure)
	if err != nil {
		return err
	}
	return either.StreamWithContext(ctx, streams)
}

func (e *Engine) execURL(pod types.NamespacedName, hook execHook) (*url.URL, error) {
	config := rest.CopyConfig(e.config.REST)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return client.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: hook.container, Command: hook.command, Stdout: true, Stderr: true,
	}, clientgoscheme.ParameterCodec).URL(), nil
}

func hasContainer(pod *unstructured.Unstructured, name string) bool {
	for container := range objectsOf(pod.Object, "spec", "containers") {
		if textOf(container, "name") == name {
			return true
		}
	}
	return false
}

// isUp reports whether a container runs or, if that is asked for, is ready.
func isUp(pod *unstructured.Unstructured, container string, ready bool) bool {
	for status := range objectsOf(pod.Object, "status", "containerStatuses") {
		if textOf(status, "name") != container {
			continue
		}
		isReady, _ := fieldOf[bool](status, "ready")
		_, runs := fieldOf[map[string]any](status, "state", "running")
		return ready && isReady || !ready && runs
	}
	return false
}

// longestWait is how long any of the hooks may wait for its container; 0 if one of them does not say.
func longestWait(hooks []execHook) (longest time.Duration) {
	for _, hook := range hooks {
		if hook.waitTimeout <= 0 {
			return 0
		}
		longest = max(longest, hook.waitTimeout)
	}
	return longest
}

// beginning keeps the first 4 KiB of what is written to it: a container may print without end.
type beginning []byte

func (b *beginning) Write(data []byte) (int, error) {
	*b = append(*b, data[:min(len(data), 4<<10-len(*b))]...)
	return len(data), nil
}
