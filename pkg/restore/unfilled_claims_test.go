package restore

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// overloadedLists answers the first lists of claims as an overloaded API server, and counts all of them.
type overloadedLists struct {
	next     http.RoundTripper
	overload int32
	lists    *atomic.Int32
}

func (o overloadedLists) RoundTrip(request *http.Request) (*http.Response, error) {
	list := request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/persistentvolumeclaims") && request.URL.Query().Get("watch") == ""
	if !list || o.lists.Add(1) > o.overload {
		return o.next.RoundTrip(request)
	}
	return &http.Response{
		StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcdserver: no leader","code":500}`)),
	}, nil
}

// modifiedRestore has restored pod "web" as "web-copy", with claim "a" as "a-copy", "b" and two more. Nothing fills claim "c". "b", "gone" and
// "going" were deleted since.
func modifiedRestore(t *testing.T) (a *attempt, shop string, outcome *Outcome) {
	t.Helper()
	a = newAttempt(t)
	_, shop = a.inNamespaces()
	a.config.ResourceTimeout = 20 * time.Second
	a.input.Restore.Spec.ResourceModifier = &corev1.TypedLocalObjectReference{Kind: "ConfigMap", Name: "rules"}
	a.input.Modifiers = modifiersOf(t, renameRule("^a$", "a-copy")+
		`- {conditions: {groupResource: pods}, patches: [{operation: replace, path: /metadata/name, value: web-copy},
			{operation: replace, path: /spec/volumes/0/persistentVolumeClaim/claimName, value: a-copy}]}`)
	names := []string{"a", "b", "gone", "going", "c"}
	a.input.VolumeInfos = a.listedVolumes(volumeinfo.MethodPodVolumeBackup, names...)
	a.input.VolumeInfos[2].PV = &volumeinfo.PVInfo{ReclaimPolicy: "Retain"}
	var files []archived
	var volumes []string
	for _, name := range names {
		files = append(files, a.claimOfBackup(name, ""))
		a.input.PodVolumeBackups = append(a.input.PodVolumeBackups, podVolumeBackup("v-"+name, name, "s-"+name))
		volumes = append(volumes, `{name: v-`+name+`, persistentVolumeClaim: {claimName: `+name+`}}`)
	}
	a.backup(append(files, of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
		volumes: [`+strings.Join(volumes[:2], ", ")+`], containers: [{name: a, image: a}]}}`))...)
	outcome = a.run()
	claims := a.resource("persistentvolumeclaims").Namespace(shop)
	for _, name := range []string{"b", "gone", "going"} {
		if err := claims.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"b", "gone"} {
		gone := a.get("persistentvolumeclaims", shop, name)
		gone.SetFinalizers(nil)
		if _, err := claims.Update(t.Context(), gone, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return a, shop, outcome
}

// TestFilledClaimsAreKnownByTheirUIDs finalizes a restore with its resource modifiers, and in another process after these were deleted. Both
// ask for the claims at once, and again while the API server is overloaded.
func TestFilledClaimsAreKnownByTheirUIDs(t *testing.T) {
	t.Parallel()
	a, shop, outcome := modifiedRestore(t)
	modifiers := a.input.Modifiers
	lost := func(claim string) string {
		return "error " + shop + ": persistentvolumeclaims/" + claim + ": the claim was deleted since the restore created it; the data of the backup is not in the cluster"
	}
	full := "warning " + shop + ": persistentvolumeclaims/b: the claim was deleted since the restore created it. Data of the backup went into it before"
	for name, test := range map[string]struct {
		modifiers *Modifiers
		want      []string
	}{
		"with the modifiers": {modifiers, []string{
			"error " + shop + ": persistentvolumeclaims/c: its new volume is empty: it would be filled through pod web",
			lost("going"), lost("gone"), full,
		}},
		"without them": {nil, []string{
			"error " + shop + ": persistentvolumeclaims/c: it is not known whether its data was restored: no PodVolumeRestore fills it",
			lost("going"), lost("gone"),
			"warning " + shop + `: persistentvolumeclaims/a-copy: its data is restored, but it is none of the backup's claims`, full,
			`warning velero: the resource modifiers of the restore (ConfigMap "rules", spec.resourceModifier) cannot be read any more`,
		}},
	} {
		a.input.Modifiers = test.modifiers
		its := a.copy()
		its.input, its.config = a.input, a.config
		lists := &atomic.Int32{}
		its.config.REST = rest.CopyConfig(a.config.REST)
		its.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper { return overloadedLists{next, 1, lists} })
		end := &Outcome{Resources: outcome.Resources, PodVolumes: slices.Clone(outcome.PodVolumes)}
		if err := its.collect(its.engine()).Finalize(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(resultsText(end), "\n")
		if !slices.EqualFunc(lines, test.want, strings.HasPrefix) {
			t.Errorf("%s: results (-want +got):\n%s", name, cmp.Diff(test.want, lines))
		}
		if lists.Load() != 2 {
			t.Errorf("%s: %d lists of claims, want one that is refused and one more", name, lists.Load())
		}
	}
	if len(outcome.PodVolumes) != 2 || outcome.PodVolumes[0].Labels[velerov1.PVCUIDLabel] == "" {
		t.Errorf("PodVolumeRestores: %+v", outcome.PodVolumes)
	}
}
