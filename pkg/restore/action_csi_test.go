package restore

import (
	"fmt"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

func TestCSISnapshots(t *testing.T) {
	t.Parallel()
	const (
		name    = "d2c02c9bf0f91e37199a1440c2a449d48aae2974272b45ddbb8b4d499bfadc5a" // printf 11111111-2222-3333-4444-555555555555/vs-1 | sha256sum
		content = `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: content-1, annotations: {
				csi.storage.k8s.io/snapshotter-secret-name: s, csi.storage.k8s.io/snapshotter-secret-namespace: kube-system}},
			spec: {driver: d, deletionPolicy: Delete, volumeSnapshotClassName: old, source: {volumeHandle: vol-1},
				volumeSnapshotRef: {kind: VolumeSnapshot, name: vs-1, namespace: shop, uid: u, resourceVersion: '7'}},
			status: {snapshotHandle: snap-1}}`
		snapshot = `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: vs-1, namespace: shop},
			spec: {volumeSnapshotClassName: old, source: {persistentVolumeClaimName: data}}, status: {boundVolumeSnapshotContentName: content-1}}`
		class = `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotClass, driver: d, metadata: {name: old, annotations: {
				csi.storage.k8s.io/snapshotter-list-secret-name: s, csi.storage.k8s.io/snapshotter-list-secret-namespace: kube-system}}}`
	)
	without := velerov1.RestoreSpec{RestorePVs: new(false)}
	for _, test := range []struct {
		name     string
		resource string
		spec     velerov1.RestoreSpec
		item     string
		want     expectation
	}{{
		name:     "a VolumeSnapshot is made of its content",
		resource: "volumesnapshots.snapshot.storage.k8s.io",
		item:     snapshot,
		want: expectation{
			item: `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot,
				metadata: {name: ` + name + `, namespace: shop, annotations: {velero.io/csi-vsc-deletion-policy: Retain}},
				spec: {source: {volumeSnapshotContentName: ` + name + `}}}`,
			additional: []string{"volumesnapshotcontents.snapshot.storage.k8s.io /content-1"},
		},
	}, {
		name:     "a VolumeSnapshot of a group",
		resource: "volumesnapshots.snapshot.storage.k8s.io",
		item:     strings.Replace(snapshot, "namespace: shop", "namespace: shop, annotations: {velero.io/csi-volumegroupsnapshot-handle: g1}", 1),
		want: expectation{
			additional: []string{"volumesnapshotcontents.snapshot.storage.k8s.io /content-1"},
			warnings:   []string{`it is part of group snapshot "g1"`},
		},
	}, {
		name:     "a VolumeSnapshot that was not ready",
		resource: "volumesnapshots.snapshot.storage.k8s.io",
		item:     strings.Replace(snapshot, "boundVolumeSnapshotContentName: content-1", "", 1),
		want:     expectation{err: "no content when it was backed up"},
	}, {
		name:     "no VolumeSnapshots are asked for",
		resource: "volumesnapshots.snapshot.storage.k8s.io",
		spec:     without,
		item:     snapshot,
		want:     expectation{skip: "spec.restorePVs"},
	}, {
		name:     "a content leads to the snapshot, and both outlive each other",
		resource: "volumesnapshotcontents.snapshot.storage.k8s.io",
		spec:     velerov1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "shop-copy"}},
		item:     content,
		want: expectation{
			item: `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: ` + name + `, annotations: {
					csi.storage.k8s.io/snapshotter-secret-name: s, csi.storage.k8s.io/snapshotter-secret-namespace: kube-system}},
				spec: {driver: d, deletionPolicy: Retain, source: {snapshotHandle: snap-1},
					volumeSnapshotRef: {kind: VolumeSnapshot, name: ` + name + `, namespace: shop-copy}}}`,
			additional: []string{"secrets kube-system/s"},
		},
	}, {
		name:     "a content that was not ready",
		resource: "volumesnapshotcontents.snapshot.storage.k8s.io",
		item:     strings.Replace(content, "snapshotHandle: snap-1", "", 1),
		want:     expectation{err: "not complete when it was backed up"},
	}, {
		name:     "no contents are asked for",
		resource: "volumesnapshotcontents.snapshot.storage.k8s.io",
		spec:     without,
		item:     content,
		want:     expectation{skip: "spec.restorePVs"},
	}, {
		name:     "a class comes with its secret",
		resource: "volumesnapshotclasses.snapshot.storage.k8s.io",
		item:     class,
		want:     expectation{item: class, additional: []string{"secrets kube-system/s"}},
	}, {
		name:     "no classes are asked for",
		resource: "volumesnapshotclasses.snapshot.storage.k8s.io",
		spec:     without,
		item:     class,
		want:     expectation{skip: "spec.restorePVs"},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := scopeWith(bareCluster(t), Input{Restore: &velerov1.Restore{Spec: test.spec}})
			item, out, err := prepareItem(t, s, test.resource, decodeItem(t, test.item))
			test.want.check(t, item, out, err)
		})
	}
}

// TestClaimOfSnapshotGrows: a claim asks for what its snapshot takes, if that is more than it has asked for.
func TestClaimOfSnapshotGrows(t *testing.T) {
	t.Parallel()
	const note = "annotations: {velero.io/csi-volumesnapshot-restore-size: '%s'}"
	for _, test := range []struct{ name, asked, noted, content, want string }{
		{"as the snapshot says", "1Gi", "1536Mi", "", "1536Mi"},
		{"as its content says", "1Gi", "", "1610612736", "1536Mi"},
		{"the larger of both", "1Gi", "2Gi", "1610612736", "2Gi"},
		{"the larger of both again", "1Gi", "1Gi", "1610612736", "1536Mi"},
		{"enough was asked for", "2048Mi", "2Gi", "1610612736", "2048Mi"},
		{"nothing is known", "1Gi", "", "", "1Gi"},
		{"nobody can read it", "1Gi", "lots", "many", "1Gi"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			claim := `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {velero.io/volume-snapshot-name: vs-1}},
				spec: {volumeName: pv-1, resources: {requests: {storage: ` + test.asked + `}}}}`
			snapshot := `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: vs-1, namespace: shop, ` + note + `},
				status: {boundVolumeSnapshotContentName: content-1}}`
			objects := map[string]string{
				"persistentvolumeclaims/namespaces/shop/data":                  claim,
				"volumesnapshots.snapshot.storage.k8s.io/namespaces/shop/vs-1": fmt.Sprintf(snapshot, test.noted),
			}
			if test.content != "" {
				objects["volumesnapshotcontents.snapshot.storage.k8s.io/cluster/content-1"] = `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent,
					metadata: {name: content-1}, status: {restoreSize: ` + test.content + `}}`
			}
			infos := []volumeinfo.BackupVolume{{PVName: "pv-1", BackupMethod: volumeinfo.MethodCSISnapshot}}
			s := scopeWith(bareCluster(t), Input{VolumeInfos: infos, Archive: archiveOf(t, "1.1.0", objects)})
			item, _, err := prepareItem(t, s, "persistentvolumeclaims", decodeItem(t, claim))
			if err != nil {
				t.Fatal(err)
			}
			if got := textOf(item.Object, "spec", "resources", "requests", "storage"); got != test.want {
				t.Errorf("it asks for %s, want %s", got, test.want)
			}
		})
	}
}
