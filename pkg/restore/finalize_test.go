package restore

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// answers hands the answers to requests to a test, which may change the requests before.
type answers struct {
	next   http.RoundTripper
	before func(*http.Request)
	after  func(*http.Request, *http.Response)
}

func (a answers) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	a.before(request)
	response, err := a.next.RoundTrip(request)
	if err == nil {
		a.after(request, response)
	}
	return response, err
}

// unboundClaim has restored claim "late", which waits for pod "web" to be scheduled, and may get a volume.
func unboundClaim(t *testing.T) (a *attempt, shop string, run *run, outcome *Outcome) {
	t.Helper()
	a = newAttempt(t)
	_, shop = a.inNamespaces()
	class := "late-" + a.id
	a.create("storageclasses.v1.storage.k8s.io", `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: `+class+`}, provisioner: p, volumeBindingMode: WaitForFirstConsumer}`)
	a.backup(
		of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: late, namespace: shop},
			spec: {volumeName: old-`+a.id+`, storageClassName: `+class+`, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`),
		of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
			volumes: [{name: data, persistentVolumeClaim: {claimName: late}}], containers: [{name: a, image: a}]}}`),
	)
	a.input.VolumeInfos = []volumeinfo.BackupVolume{{
		PVName: "old-" + a.id, PVCName: "late", PVCNamespace: "shop", BackupMethod: volumeinfo.MethodPodVolumeBackup,
		PV: &volumeinfo.PVInfo{ReclaimPolicy: "Retain"},
	}}
	run = a.collect(a.engine())
	outcome, err := run.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	outcome.Results = backupstore.Results{}
	return a, shop, run, outcome
}

// serviceAccount is a configuration for one that has what Finalize needs, but for the right to watch claims.
func (a *attempt) serviceAccount(namespace string) (config *rest.Config, mayWatch func()) {
	a.tb.Helper()
	name := "finalizer-" + a.id
	a.create("serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: `+name+`, namespace: `+namespace+`}}`)
	grant := func(role, rules string) {
		a.create("clusterroles.v1.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: `+role+`}, rules: `+rules+`}`)
		a.create("clusterrolebindings.v1.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: `+role+`},
			roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: `+role+`}, subjects: [{kind: ServiceAccount, name: `+name+`, namespace: `+namespace+`}]}`)
	}
	grant(name, `[{apiGroups: ["", storage.k8s.io], resources: [persistentvolumeclaims, persistentvolumes, pods, storageclasses], verbs: [get, list, patch]}]`)
	request := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}}
	request.SetName(name)
	token, err := a.resource("serviceaccounts").Namespace(namespace).Create(a.tb.Context(), request, metav1.CreateOptions{}, "token")
	if err != nil {
		a.tb.Fatal(err)
	}
	config = rest.AnonymousClientConfig(a.config.REST)
	config.BearerToken, config.QPS = textOf(token.Object, "status", "token"), -1
	its, err := dynamic.NewForConfig(config)
	if err != nil {
		a.tb.Fatal(err)
	}
	a.untilAllowed(func() error {
		_, err := its.Resource(podObjects).Namespace(namespace).List(a.tb.Context(), metav1.ListOptions{})
		return err
	})
	return config, func() {
		grant(name+"-watch", `[{apiGroups: [""], resources: [persistentvolumeclaims], verbs: [watch]}]`)
		a.untilAllowed(func() error {
			w, err := its.Resource(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")).Namespace(namespace).Watch(a.tb.Context(), metav1.ListOptions{})
			if err == nil {
				w.Stop()
			}
			return err
		})
	}
}

// untilAllowed repeats a request until it succeeds: rules are in force a little after they are made.
func (a *attempt) untilAllowed(request func() error) {
	a.tb.Helper()
	for request() != nil {
		if err := apiretry.Sleep(a.tb.Context(), pollInterval); err != nil {
			a.tb.Fatal(err)
		}
	}
}

// tell notes that something has happened, once or more often.
func tell(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// TestFinalizeWaitsForConsumer has a claim that is bound as soon as its pod is scheduled, which is later than Finalize first
// looks. A watch says so: one that works, one that works after the API server has refused it for a while, and one that works
// after the API server has not known for a while who asks.
func TestFinalizeWaitsForConsumer(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]int{"at once": 0, "no right to watch": http.StatusForbidden, "unknown user": http.StatusUnauthorized} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, shop, run, outcome := unboundClaim(t)
			config, mayWatch := a.serviceAccount(shop)
			if refusal != http.StatusForbidden {
				mayWatch()
			}
			unknown, refused, watched := &atomic.Bool{}, make(chan struct{}, 1), make(chan struct{}, 1)
			unknown.Store(refusal == http.StatusUnauthorized)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return answers{next, func(request *http.Request) {
					if unknown.Load() {
						request.Header.Set("Authorization", "Bearer of-nobody")
					}
				}, func(request *http.Request, response *http.Response) {
					switch {
					case request.URL.Query().Get("watch") == "":
					case response.StatusCode == http.StatusOK:
						tell(watched)
					case response.StatusCode == refusal:
						tell(refused)
					}
				}}
			})
			its := newAttempt(t)
			its.connect(config)
			its.config.bindingInterval = 24 * time.Hour // the watch alone tells
			if refusal != 0 {
				its.config.bindingInterval = 100 * time.Millisecond // it is tried again
			}
			run.engine = its.engine()
			done := make(chan error, 1)
			go func() { done <- run.Finalize(t.Context(), outcome) }()
			await := func(what string, happened <-chan struct{}) {
				select {
				case <-happened:
				case err := <-done:
					t.Fatalf("%s: it has ended before: %v\n%s", what, err, resultsText(outcome))
				case <-time.After(3 * time.Minute):
					t.Fatalf("%s: waited in vain", what)
				}
			}
			if refusal != 0 {
				await("refused", refused)
				await("refused again", refused)
			}
			if refusal == http.StatusForbidden {
				mayWatch()
			}
			unknown.Store(false)
			await("watched", watched)
			a.bind(shop, "late", "new-"+a.id)
			select {
			case err := <-done:
				if err != nil || resultsText(outcome) != "" {
					t.Errorf("%v\n%s", err, resultsText(outcome))
				}
			case <-time.After(3 * time.Minute):
				t.Fatal("it does not notice that the claim is bound")
			}
			if policy := textOf(a.get("persistentvolumes", "", "new-"+a.id).Object, "spec", "persistentVolumeReclaimPolicy"); policy != "Retain" {
				t.Errorf("its volume has policy %q", policy)
			}
		})
	}
}

// TestAnnotatedClaimWithoutItsPod: Velero 1.0 noted the snapshots of claims on the pods alone. A restore without them has no data for the
// claims.
func TestAnnotatedClaimWithoutItsPod(t *testing.T) {
	t.Parallel()
	for name, leaveOut := range map[string]bool{"without its pod": true, "with its pod": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			if leaveOut {
				a.input.Restore.Spec.IncludedResources = []string{"persistentvolumeclaims", "persistentvolumes"}
			}
			a.input.Archive = archiveOf(t, "1", map[string]string{
				"persistentvolumeclaims/namespaces/shop/data": `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop},
					spec: {volumeName: old-` + a.id + `, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
				"pods/namespaces/shop/web": `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, annotations: {snapshot.velero.io/v: s1}},
					spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: data}}], containers: [{name: a, image: a}]}}`,
			})
			run := a.collect(a.engine())
			outcome, err := run.RestoreItems(t.Context(), a.report)
			if err != nil {
				t.Fatal(err)
			}
			if err := run.Finalize(t.Context(), outcome); err != nil {
				t.Fatal(err)
			}
			want := ""
			if leaveOut {
				want = "error " + shop + ": persistentvolumeclaims/data: its new volume is empty: it would be filled through pod web"
			}
			if said := resultsText(outcome); !strings.HasPrefix(said, want) || (said == "") == leaveOut {
				t.Errorf("want %q in:\n%s", want, said)
			}
		})
	}
}

// TestFinalizeEndsWithoutConsumer ends the wait for a claim whose pod is not scheduled: that is no error of the restore.
func TestFinalizeEndsWithoutConsumer(t *testing.T) {
	t.Parallel()
	a, shop, run, _ := unboundClaim(t)
	ctx, cancel := context.WithCancel(t.Context())
	a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return answers{next, func(*http.Request) {}, func(request *http.Request, _ *http.Response) {
			if request.URL.Query().Get("watch") != "" { // which comes after the first look
				cancel()
			}
		}}
	})
	run.engine = a.engine()
	problems := run.patchVolumes(ctx, run.volumesToPatch(map[types.NamespacedName]bool{{Namespace: shop, Name: "late"}: true}))
	problem := problems[types.NamespacedName{Namespace: shop, Name: "late"}]
	if !errors.Is(problem, errUnbound) || errors.Is(problem, errUnused) || !strings.Contains(problem.Error(), "not done within 10m0s") {
		t.Errorf("got %v", problem)
	}
}
