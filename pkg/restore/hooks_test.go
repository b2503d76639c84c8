package restore

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// kubelet is where the API server sends the commands for pods of a node to: the streams of a real kubelet, without containers.
// A command is its output, its exit code, and how long it takes: "print hello", "exit 3", "hang".
type kubelet struct {
	*attempt
	node string

	mu  sync.Mutex
	ran []string // such as "shop/web/main [print hello]"
}

func newKubelet(a *attempt) *kubelet {
	a.tb.Helper()
	k := &kubelet{attempt: a, node: "node-" + a.id}
	server := httptest.NewTLSServer(http.HandlerFunc(k.serve))
	a.tb.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		a.tb.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		a.tb.Fatal(err)
	}
	node := a.create("nodes", `{apiVersion: v1, kind: Node, metadata: {name: `+k.node+`}}`)
	a.deleteAtEnd("nodes", k.node)
	node.Object["status"] = map[string]any{
		"addresses":       []any{map[string]any{"type": "InternalIP", "address": address.Hostname()}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": int64(port)}},
	}
	if _, err := a.resource("nodes").UpdateStatus(a.tb.Context(), node, metav1.UpdateOptions{}); err != nil {
		a.tb.Fatal(err)
	}
	return k
}

// serve runs a command: the path is /exec/NAMESPACE/POD/CONTAINER.
func (k *kubelet) serve(w http.ResponseWriter, request *http.Request) {
	command := strings.Join(request.URL.Query()["command"], " ")
	k.mu.Lock()
	k.ran = append(k.ran, strings.TrimPrefix(request.URL.Path, "/exec/")+" ["+command+"]")
	k.mu.Unlock()
	if _, err := httpstream.Handshake(request, w, []string{"v4.channel.k8s.io"}); err != nil {
		k.tb.Error(err)
		return
	}
	arrived := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, request, func(stream httpstream.Stream, _ <-chan struct{}) error {
		arrived <- stream
		return nil
	})
	if conn == nil {
		k.tb.Error("no connection")
		return
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	for range 3 { // error, stdout, stderr
		select {
		case stream := <-arrived:
			streams[stream.Headers().Get(corev1.StreamType)] = stream
		case <-conn.CloseChan():
			return
		}
	}
	k.run(command, streams, conn.CloseChan())
}

func (k *kubelet) run(command string, streams map[string]httpstream.Stream, closed <-chan bool) {
	verb, argument, _ := strings.Cut(command, " ")
	status := `{"status": "Success"}`
	switch verb {
	case "print":
		_, _ = io.WriteString(streams[corev1.StreamTypeStdout], argument)
	case "exit":
		status = `{"status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with non-zero exit code",
			"details": {"causes": [{"reason": "ExitCode", "message": "` + argument + `"}]}}`
	case "hang":
		<-closed
		return
	}
	_, _ = io.WriteString(streams[corev1.StreamTypeError], status)
	for _, stream := range streams {
		_ = stream.Close()
	}
	<-closed
}

// start binds a pod that comes to be to the node and says what its containers do, as a kubelet.
func (k *kubelet) start(ctx context.Context, namespace, name, status string) error {
	pods := k.resource("pods").Namespace(namespace)
	for {
		if _, err := pods.Get(ctx, name, metav1.GetOptions{}); err == nil {
			break
		}
		if err := apiretry.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Binding", "metadata": map[string]any{"name": name, "namespace": namespace},
		"target": map[string]any{"kind": "Node", "name": k.node},
	}}
	if _, err := pods.Create(ctx, binding, metav1.CreateOptions{}, "binding"); err != nil {
		return err
	}
	_, err := pods.Patch(ctx, name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	return err
}

// hookedPod is a pod in namespace "shop" with two containers and annotations, as JSON.
func hookedPod(name, annotations string) archived {
	return of("pods", fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: shop, labels: {app: %[1]s}, annotations: %s}, spec: {
		containers: [{name: main, image: a.test/a}, {name: side, image: a.test/a}]}, status: {phase: Running}}`, name, annotations))
}

const bothRun = `{"status": {"phase": "Running", "containerStatuses": [
	{"name": "main", "image": "a", "imageID": "a", "ready": false, "restartCount": 0, "state": {"running": {}}},
	{"name": "side", "image": "a", "imageID": "a", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}`

// TestExecHooks runs commands in the containers of restored pods, by way of the API server.
func TestExecHooks(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	exec := func(container string, command ...string) velerov1.RestoreResourceHook {
		return velerov1.RestoreResourceHook{Exec: &velerov1.ExecRestoreHook{Container: container, Command: command}}
	}
	failing := exec("main", "exit", "3")
	failing.Exec.OnError = velerov1.HookErrorModeFail
	hanging := exec("main", "hang")
	hanging.Exec.ExecTimeout = metav1.Duration{Duration: 5 * time.Second}
	impatient := exec("main", "print")
	impatient.Exec.WaitForReady, impatient.Exec.WaitTimeout = new(true), metav1.Duration{Duration: time.Second}
	for name, test := range map[string]struct {
		annotations string
		hooks       []velerov1.RestoreResourceHook
		status      string // of the pod, as a patch
		ran         []string
		want        Hooks
		errors      []string // parts of them
	}{
		"annotation, before the Restore's": {
			annotations: `{post.hook.restore.velero.io/command: '["print", "hello"]', post.hook.restore.velero.io/container: side, post.hook.restore.velero.io/wait-for-ready: "true"}`,
			hooks:       []velerov1.RestoreResourceHook{exec("main", "print", "no")},
			status:      bothRun, ran: []string{"side [print hello]"}, want: Hooks{Attempted: 1, Ended: 1},
		},
		"one after the other": {
			hooks:  []velerov1.RestoreResourceHook{exec("", "print", "a"), exec("main", "print", "b"), exec("side", "print", "c")},
			status: bothRun, ran: []string{"main [print a]", "main [print b]", "side [print c]"}, want: Hooks{Attempted: 3, Ended: 3},
		},
		"one that fails, and the next goes on": {
			hooks:  []velerov1.RestoreResourceHook{exec("main", "exit", "3"), exec("main", "print", "b")},
			status: bothRun, ran: []string{"main [exit 3]", "main [print b]"}, want: Hooks{Attempted: 2, Ended: 2, Failed: 1},
			errors: []string{`restore hook "all" in container "main" of pod SHOP/web: command terminated with exit code 3`},
		},
		"one that fails, and keeps the others from running": {
			hooks:  []velerov1.RestoreResourceHook{failing, exec("side", "print", "b")},
			status: bothRun, ran: []string{"main [exit 3]"}, want: Hooks{Attempted: 2, Ended: 2, Failed: 2},
			errors: []string{`container "main" of pod SHOP/web: command terminated with exit code 3`, `container "side" of pod SHOP/web: not run: a hook before it failed`},
		},
		"one that hangs": {
			hooks:  []velerov1.RestoreResourceHook{hanging},
			status: bothRun, ran: []string{"main [hang]"}, want: Hooks{Attempted: 1, Ended: 1, Failed: 1},
			errors: []string{"timed out after 5s; the command may still run"},
		},
		"a container that is not ready in time": {
			hooks:  []velerov1.RestoreResourceHook{impatient},
			status: bothRun, want: Hooks{Attempted: 1, Ended: 1, Failed: 1},
			errors: []string{"not run: its container was not up in time"},
		},
		"a container that is not there": {
			hooks:  []velerov1.RestoreResourceHook{exec("other", "print")},
			status: bothRun, want: Hooks{Attempted: 1, Ended: 1, Failed: 1}, errors: []string{`not run: the pod has no container "other"`},
		},
		"a pod that has ended": {
			hooks:  []velerov1.RestoreResourceHook{exec("main", "print")},
			status: `{"status": {"phase": "Failed"}}`, want: Hooks{Attempted: 1, Ended: 1, Failed: 1}, errors: []string{"not run: the pod has ended"},
		},
		"a pod that never starts": {
			hooks:  []velerov1.RestoreResourceHook{exec("main", "print")},
			status: `{"status": {"phase": "Pending"}}`, want: Hooks{Attempted: 1, Ended: 1, Failed: 1}, errors: []string{"not run: not done when the restore ended"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			k := newKubelet(a)
			a.config.ResourceTimeout = 10 * time.Second
			a.input.Restore.Spec.Hooks.Resources = []velerov1.RestoreResourceHookSpec{{Name: "all", IncludedNamespaces: []string{shop}, PostHooks: test.hooks}}
			var reported Hooks
			a.input.ReportHooks = func(h Hooks) { reported = h }
			a.backup(hookedPod("web", either(test.annotations, "{}")))
			started := make(chan error, 1)
			go func() { started <- k.start(t.Context(), shop, "web", test.status) }()
			outcome := a.runToTheEnd()
			if err := <-started; err != nil {
				t.Fatal(err)
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			var ran []string
			for _, command := range test.ran {
				ran = append(ran, shop+"/web/"+command)
			}
			if diff := cmp.Diff(ran, k.ran); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			if outcome.Hooks != test.want || reported != test.want {
				t.Errorf("hooks %+v, reported %+v, want %+v", outcome.Hooks, reported, test.want)
			}
			got := outcome.Results.Errors.Namespaces[shop]
			if len(got) != len(test.errors) {
				t.Fatalf("errors %q, want %q", got, test.errors)
			}
			for i, want := range test.errors {
				if !strings.Contains(got[i], strings.ReplaceAll(want, "SHOP", shop)) {
					t.Errorf("error %q, want %q", got[i], want)
				}
			}
		})
	}
}

// runToTheEnd restores, and finalizes.
func (a *attempt) runToTheEnd() *Outcome {
	a.tb.Helper()
	e := a.engine()
	run := a.collect(e)
	outcome, err := run.RestoreItems(a.tb.Context(), a.report)
	if err == nil {
		err = run.Finalize(a.tb.Context(), outcome)
	}
	if err != nil {
		a.tb.Fatal(err)
	}
	return outcome
}

// TestExecHooksNeedRights runs a hook as somebody who may do all but that.
func TestExecHooksNeedRights(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	k := newKubelet(a)
	a.backup(hookedPod("web", `{post.hook.restore.velero.io/command: /x}`))
	a.create("clusterroles.v1.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: most-`+a.id+`}, rules: [
		{apiGroups: ["*"], resources: [pods, pods/status, namespaces], verbs: ["*"]}]}`)
	a.create("clusterrolebindings.v1.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: most-`+a.id+`},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: most-`+a.id+`}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: u-`+a.id+`}]}`)
	a.config.ResourceTimeout = 30 * time.Second
	a.config.REST.Impersonate.UserName = "u-" + a.id
	started := make(chan error, 1)
	go func() { started <- k.start(t.Context(), shop, "web", bothRun) }()
	outcome := a.runToTheEnd()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if got := resultsText(outcome); !strings.Contains(got, `cannot create resource "pods/exec"`) {
		t.Error(got)
	}
}
