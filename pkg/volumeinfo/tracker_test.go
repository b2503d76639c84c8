package volumeinfo_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmware-tanzu/velero/pkg/apis/velero/shared"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

const shop = "shop"

// cluster is a control plane in which a restore has made its claims.
type cluster struct {
	*testenv.Env

	t   *testing.T
	log bytes.Buffer
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Env: testenv.New(t, testenv.Options{Namespace: "velero"}), t: t}
	c.CreateNamespaces(shop)
	return c
}

func (c *cluster) tracker() *volumeinfo.Tracker {
	return volumeinfo.NewTracker(c.Client, slog.New(slog.NewTextHandler(&c.log, nil)))
}

// claim makes a claim, bound to the volume that is named.
func (c *cluster) claim(name, volume string, source *corev1.TypedLocalObjectReference) {
	c.t.Helper()
	c.Create(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, DataSource: source,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	})
}

// serveSnapshots makes the API server know VolumeSnapshots.
func (c *cluster) serveSnapshots() {
	c.t.Helper()
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "volumesnapshots", Singular: "volumesnapshot", Kind: "VolumeSnapshot", ListKind: "VolumeSnapshotList"}
	c.Create(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "volumesnapshots.snapshot.storage.k8s.io",
			Annotations: map[string]string{"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/139"},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "snapshot.storage.k8s.io", Names: names, Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}},
			}},
		},
	})
}

func (c *cluster) snapshot(name string) {
	c.t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"namespace": shop, "name": name, "annotations": map[string]any{
			"velero.io/csi-volumesnapshot-handle": "snap-01a3", "velero.io/csi-driver-name": "ebs.csi.aws.com",
		}},
		"spec":   map[string]any{"source": map[string]any{"volumeSnapshotContentName": "vsc-1"}},
		"status": map[string]any{"restoreSize": "2Gi"},
	}}
	// The API server serves a new kind only after a while.
	deadline := time.After(time.Minute)
	for err := c.Client.Create(c.t.Context(), object); err != nil; err = c.Client.Create(c.t.Context(), object) {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			c.t.Fatal(err)
		}
	}
}

func podVolumeRestore() *velerov1.PodVolumeRestore {
	began := metav1.NewTime(time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC))
	pvr := &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{UID: "1"},
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod: corev1.ObjectReference{Namespace: shop, Name: "web"}, Volume: "data", UploaderType: "kopia", SnapshotID: "8197", SnapshotSize: 100,
		},
	}
	pvr.Status.StartTimestamp = &began
	return pvr
}

// TestTracker follows a restore with a volume of each kind.
func TestTracker(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.checkWithoutSnapshots()
	c.serveSnapshots()
	c.snapshot("hash-1")
	for name, volume := range map[string]string{"copied": "", "kept": "disk-9", "empty": "", "old": "disk-7"} {
		c.claim(name, volume, nil)
	}
	group := "snapshot.storage.k8s.io"
	c.claim("snapped", "", &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "hash-1"})
	c.Create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "main"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "copied"},
			}}},
		},
	})

	tracker := c.tracker()
	pvr := podVolumeRestore()
	tracker.TrackPodVolume(pvr)
	tracker.TrackOutcome(shop, "empty", "", volumeinfo.OutcomeEmpty, "the volume was not backed up")
	tracker.TrackOutcome(shop, "kept", "disk-9", volumeinfo.OutcomeKept, "its reclaim policy is Retain")
	tracker.TrackOutcome(shop, "copied", "", volumeinfo.OutcomeEmpty, "it is filled later")
	if list := tracker.Result(); len(list) != 4 {
		t.Errorf("before anything was asked there are %d volumes, want the 4 that were tracked: %+v", len(list), list)
	}

	pvr.Status.Phase, pvr.Status.Progress = velerov1.PodVolumeRestorePhaseCompleted, shared.DataMoveOperationProgress{TotalBytes: 5, BytesDone: 5}
	pvr.Status.CompletionTimestamp = new(metav1.NewTime(pvr.Status.StartTimestamp.Add(time.Minute)))
	tracker.TrackPodVolume(pvr)
	var resources []string
	for _, claim := range []string{"copied", "kept", "empty", "snapped"} {
		resources = append(resources, shop+"/"+claim+"(created)")
	}
	tracker.Populate(t.Context(), map[string][]string{"v1/PersistentVolumeClaim": append(resources, shop+"/old(skipped)", "nonsense", "(")})
	got, err := json.MarshalIndent(tracker.Result(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(want), string(got)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if c.log.Len() > 0 {
		t.Errorf("the log says %s", c.log.String())
	}
}

// want is field for field what Velero 1.18 writes (docs/contracts/velero-restore.md 4.1), and what comes after it in an element.
const want = `
[
  {
    "pvcName": "copied",
    "pvcNamespace": "shop",
    "restoreMethod": "PodVolumeRestore",
    "snapshotDataMoved": false,
    "pvrInfo": {
      "snapshotHandle": "8197",
      "size": 5,
      "uploaderType": "kopia",
      "volumeName": "data",
      "podName": "web",
      "podNamespace": "shop",
      "Phase": ""
    },
    "startTimestamp": "2026-03-01T03:00:00Z",
    "completionTimestamp": "2026-03-01T03:01:00Z",
    "result": "succeeded"
  },
  {
    "pvcName": "empty",
    "pvcNamespace": "shop",
    "snapshotDataMoved": false,
    "plimsollOutcome": "ProvisionedEmpty",
    "plimsollReason": "the volume was not backed up"
  },
  {
    "pvcName": "kept",
    "pvcNamespace": "shop",
    "pvName": "disk-9",
    "snapshotDataMoved": false,
    "plimsollOutcome": "Kept",
    "plimsollReason": "its reclaim policy is Retain"
  },
  {
    "pvcName": "snapped",
    "pvcNamespace": "shop",
    "restoreMethod": "CSISnapshot",
    "snapshotDataMoved": false,
    "csiSnapshotInfo": {
      "snapshotHandle": "snap-01a3",
      "size": 2147483648,
      "driver": "ebs.csi.aws.com",
      "vscName": "vsc-1",
      "ReadyToUse": null
    }
  }
]
`

// checkWithoutSnapshots: what an API server that knows no VolumeSnapshots does not tell is in the log, and the list has the rest.
func (c *cluster) checkWithoutSnapshots() {
	c.t.Helper()
	group := "snapshot.storage.k8s.io"
	c.claim("early", "", &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "hash-1"})
	tracker := c.tracker()
	tracker.TrackPodVolume(podVolumeRestore())
	tracker.Populate(c.t.Context(), map[string][]string{"v1/PersistentVolumeClaim": {shop + "/early(created)"}})
	if list := tracker.Result(); len(list) != 1 || list[0].PodVolume.SnapshotHandle != "8197" || list[0].PodVolume.Size != 100 {
		c.t.Errorf("list %+v", list)
	}
	if text := c.log.String(); !strings.Contains(text, "not complete") || !strings.Contains(text, "VolumeSnapshot") {
		c.t.Errorf("the log says %q", text)
	}
	c.log.Reset()
}
