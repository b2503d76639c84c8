package rbac

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestMetricsAuth asks an agent with --metrics-auth for its metrics, with and without a token that may get them. The agent
// has the rights that deploy/metrics-auth gives, which it must need.
func TestMetricsAuth(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	runtime.LockOSThread() // as in TestRights
	defer runtime.UnlockOSThread()
	program, restic := parts.NodeAgent(t), parts.Restic(t, parts.DefaultRestic)
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	audit := filepath.Join(t.TempDir(), "audit.log")
	c := newCluster(t, audit)
	base := readObjects(t, filepath.Join(root, "deploy", "node-agent", "serviceaccount.yaml"))
	account := accountIn(t, base)
	added := readObjects(t, filepath.Join(root, "deploy", "metrics-auth", "rbac.yaml"))
	c.apply(append(append(base, readObjects(t, filepath.Join(root, "deploy", "node-agent", "rbac.yaml"))...), added...))
	stranger, reader := c.user("stranger"), c.user("reader")
	c.Create(&rbacv1.ClusterRoleBinding{ // before the agent, so that the API server knows it when the agent asks
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "plimsoll-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "reader"}},
	})

	address := loopback.ForTest(t)
	stop := startAgent(t, program, []string{
		"server", "--kubeconfig=" + testenv.Kubeconfig(c.t, c.WithToken(account)), "--namespace=" + namespace, "--host-pods-path=" + c.pods,
		"--restic-path=" + restic, "--cache-dir=" + t.TempDir(), "--metrics-address=" + address, "--metrics-auth",
	}, "")
	awaitReady(t, "https://"+address+"/readyz")
	for name, tc := range map[string]struct {
		url, token string
		code       int
		want       string // in the body
	}{
		"metrics":                      {"https://" + address + "/metrics", reader, 200, "plimsoll_build_info"},
		"progress":                     {"https://" + address + "/progress", reader, 200, `"operations"`},
		"metrics without a token":      {"https://" + address + "/metrics", "", 401, ""},
		"progress without a token":     {"https://" + address + "/progress", "", 401, ""},
		"metrics with a made-up token": {"https://" + address + "/metrics", "made-up", 401, ""},
		"metrics for a stranger":       {"https://" + address + "/metrics", stranger, 403, ""},
		"progress for a stranger":      {"https://" + address + "/progress", stranger, 403, ""},
		"alive":                        {"https://" + address + "/healthz", "", 200, "ok"},
		"ready":                        {"https://" + address + "/readyz", "", 200, "ok"},
		"without TLS":                  {"http://" + address + "/metrics", reader, 400, ""},
	} {
		code, body, err := get(t.Context(), tc.url, tc.token)
		if err != nil && code == 0 || code != tc.code || !strings.Contains(body, tc.want) {
			t.Errorf("%s: got %d, %v, want %d with %q: %.200s", name, code, err, tc.code, tc.want, body)
		}
		if tc.code != http.StatusOK && strings.Contains(body, "plimsoll") {
			t.Errorf("%s: got %s", name, body)
		}
	}
	stop()
	judge(t, granted(t, withoutReaders(added)), readRequests(t, audit, "system:serviceaccount:"+account.Namespace+":"+account.Name))
}

// withoutReaders leaves out the role that is not the agent's.
func withoutReaders(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	var own []*unstructured.Unstructured
	for _, o := range objects {
		if o.GetName() != "plimsoll-metrics-reader" {
			own = append(own, o)
		}
	}
	return own
}

// user makes a service account and returns a token of it.
func (c *cluster) user(name string) string {
	c.t.Helper()
	c.Create(&corev1.ServiceAccount{ObjectMeta: c.Meta(name)})
	return c.WithToken(client.ObjectKey{Namespace: namespace, Name: name}).BearerToken
}

// awaitReady waits until the agent answers.
func awaitReady(t *testing.T, url string) {
	t.Helper()
	testenv.Eventually(t, "an answer from "+url, func() bool {
		code, _, err := get(t.Context(), url, "")
		return err == nil && code == http.StatusOK
	})
}

// get reads a page of the agent, whose certificate nobody has signed.
func get(ctx context.Context, url, token string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	response, err := c.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}
