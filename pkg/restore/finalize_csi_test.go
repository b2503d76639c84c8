package restore

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// staticObjects answers as an API server that has these objects, given as JSON by the end of their paths. What is missing is not found.
type staticObjects func(path string) string

func (s staticObjects) RoundTrip(request *http.Request) (*http.Response, error) {
	object := s(request.URL.Path)
	if object == "" {
		return bare{}.RoundTrip(request)
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: request, Body: io.NopCloser(strings.NewReader(object)),
	}, nil
}

// TestSnapshotThatCannotBeUsed: a claim that waits for a snapshot which is gone is an error of the Restore, also where it is only bound
// when a pod uses it.
func TestSnapshotThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	const (
		claim    = `{"apiVersion":"v1","kind":"PersistentVolumeClaim","spec":{"storageClassName":"late","dataSource":{"kind":"VolumeSnapshot","name":"vs"}},"status":{"phase":"Pending"}}`
		snapshot = `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","spec":{"source":{"volumeSnapshotContentName":"c"}},"status":{}}`
		content  = `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshotContent","spec":{"source":{"snapshotHandle":"snap-1"}}}`
		class    = `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","volumeBindingMode":"WaitForFirstConsumer"}`
		noPods   = `{"apiVersion":"v1","kind":"PodList","items":[]}`
		pods     = `{"apiVersion":"v1","kind":"PodList","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"data"}}]}}]}`
	)
	failed := strings.Replace(snapshot, `"status":{}`, `"status":{"error":{"message":"no such snapshot"}}`, 1)
	going := strings.Replace(claim, `"spec"`, `"metadata":{"deletionTimestamp":"2026-01-02T03:04:05Z"},"spec"`, 1)
	usable := strings.Replace(snapshot, `"status":{}`, `"status":{"readyToUse":true}`, 1)
	unused := "warning shop: persistentvolumeclaims/data: reclaim policy and labels of its old volume: its storage class waits"
	for _, test := range []struct {
		name                  string
		claim, snapshot, pods string
		content               string
		readyAfter            time.Duration // the snapshot; never if 0
		want                  []string      // parts of the results, one for each
		waits                 time.Duration // at least
	}{{
		name: "no VolumeSnapshot", claim: claim, content: content, pods: noPods,
		want: []string{`error shop: persistentvolumeclaims/data: it gets no data: VolumeSnapshot "vs" is not in the cluster`, unused},
	}, {
		name: "no content", claim: claim, snapshot: snapshot, pods: noPods,
		want: []string{`it gets no data: VolumeSnapshotContent "c" of VolumeSnapshot "vs" is not in the cluster`, unused},
	}, {
		name: "the storage does not have it", claim: claim, snapshot: failed, content: content, pods: noPods, waits: time.Minute,
		want: []string{`it gets no data: VolumeSnapshot "vs", of snapshot "snap-1" of the storage: no such snapshot. Delete the claim`, unused},
	}, {
		name: "never ready", claim: claim, snapshot: snapshot, content: content, pods: noPods, waits: time.Minute,
		want: []string{`of the storage: it is not ready to use`, unused},
	}, {
		name: "ready after an error", claim: claim, snapshot: failed, content: content, pods: noPods, readyAfter: 20 * time.Second, waits: 20 * time.Second,
		want: []string{unused},
	}, {
		name: "ready, and the pod that uses it has no node yet", claim: claim, snapshot: usable, content: content, pods: pods, waits: time.Minute,
		want: []string{`warning shop: persistentvolumeclaims/data: reclaim policy and labels of its old volume: not done within 1m0s: its storage class waits`},
	}, {
		name: "ready, and no volume though the pod has a node", claim: strings.Replace(claim, `"spec"`, `"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"n1"}},"spec"`, 1),
		snapshot: usable, content: content, pods: pods, waits: time.Minute,
		want: []string{`error shop: persistentvolumeclaims/data: reclaim policy and labels of its old volume: not done within 1m0s: a node is chosen`},
	}, {
		name: "deleted since", pods: noPods,
		want: []string{"error shop: persistentvolumeclaims/data: the claim was deleted since the restore created it; the data of the backup is not in the cluster"}, // at once
	}, {
		name: "being deleted", claim: going, snapshot: snapshot, content: content, pods: noPods,
		want: []string{"error shop: persistentvolumeclaims/data: the claim was deleted since the restore created it; the data of the backup is not in the cluster"},
	}, {
		name: "being deleted with its volume", claim: strings.Replace(going, "Pending", "Bound", 1), pods: noPods,
		want: []string{"warning shop: persistentvolumeclaims/data: the claim was deleted since the restore created it. Data of the backup went into it before"},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			archive := archiveOf(t, "1.1.0", map[string]string{
				"persistentvolumeclaims/namespaces/shop/data": `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {velero.io/volume-snapshot-name: vs-1}},
					spec: {volumeName: pv-1}, status: {phase: Bound}}`,
				"persistentvolumeclaims/namespaces/shop/other": `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: other, namespace: shop}, spec: {volumeName: pv-2}}`,
			})
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				client, err := dynamic.NewForConfig(&rest.Config{Host: "http://api.test", QPS: -1, Transport: staticObjects(func(path string) string {
					snapshot := test.snapshot
					if test.readyAfter > 0 && time.Since(began) >= test.readyAfter {
						snapshot = strings.Replace(snapshot, `"status":{`, `"status":{"readyToUse":true,`, 1)
					}
					for end, object := range map[string]string{
						"/shop/persistentvolumeclaims/data": test.claim, "/shop/volumesnapshots/vs": snapshot, "/volumesnapshotcontents/c": test.content,
						"/storageclasses/late": class, "/shop/pods": test.pods,
					} {
						if strings.HasSuffix(path, end) {
							return object
						}
					}
					return ""
				})})
				if err != nil {
					t.Fatal(err)
				}
				info := volumeinfo.BackupVolume{
					PVName: "pv-1", PVCName: "data", PVCNamespace: "shop", BackupMethod: volumeinfo.MethodCSISnapshot, PV: &volumeinfo.PVInfo{ReclaimPolicy: "Retain"},
				}
				r := &run{scope: scopeWith(client, Input{Archive: archive, VolumeInfos: []volumeinfo.BackupVolume{info}})}
				r.engine.config.bindingInterval = 10 * time.Second
				outcome := &Outcome{Resources: map[string][]string{"v1/PersistentVolumeClaim": {"shop/data(created)", "shop/other(created)"}}}
				if err := r.finalizeClaims(t.Context(), outcome); err != nil {
					t.Fatal(err)
				}
				said := resultsText(outcome)
				if lines := strings.Split(said, "\n"); len(lines) != len(test.want) {
					t.Errorf("want %d results, got:\n%s", len(test.want), said)
				}
				for _, part := range test.want {
					if !strings.Contains(said, part) {
						t.Errorf("no %q in:\n%s", part, said)
					}
				}
				if took := time.Since(began); took < test.waits || took > test.waits+time.Minute {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// TestClaimsOfSnapshots has the claims that are created, under the names that they get.
func TestClaimsOfSnapshots(t *testing.T) {
	t.Parallel()
	claim := func(name string) string {
		return `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: ` + name + `, namespace: shop, annotations: {velero.io/volume-snapshot-name: vs-1}}, spec: {volumeName: pv-` + name + `}}`
	}
	var infos []volumeinfo.BackupVolume
	for _, name := range []string{"created", "kept"} {
		infos = append(infos, volumeinfo.BackupVolume{PVName: "pv-" + name, BackupMethod: volumeinfo.MethodCSISnapshot})
	}
	infos = append(infos, volumeinfo.BackupVolume{PVName: "pv-filled", BackupMethod: volumeinfo.MethodPodVolumeBackup})
	input := Input{VolumeInfos: infos, Archive: archiveOf(t, "1.1.0", map[string]string{
		"persistentvolumeclaims/namespaces/shop/created": claim("created"), "persistentvolumeclaims/namespaces/shop/kept": claim("kept"),
		"persistentvolumeclaims/namespaces/shop/filled": claim("filled"),
	})}
	restore := restoreWith(func(r *velerov1.Restore) { r.Spec.NamespaceMapping = map[string]string{"shop": "copy"} })
	input.Restore = &restore
	r := &run{scope: scopeWith(bareCluster(t), input)}
	got := r.claimsOfSnapshots(map[types.NamespacedName]bool{{Namespace: "copy", Name: "created"}: true, {Namespace: "copy", Name: "filled"}: true, {Namespace: "shop", Name: "kept"}: true})
	if len(got) != 1 || !got[types.NamespacedName{Namespace: "copy", Name: "created"}] {
		t.Errorf("got %v", got)
	}
}
