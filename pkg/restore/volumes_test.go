package restore

import (
	"maps"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// TestVolumeDecisions goes through the table of docs/contracts/velero-restore.md 3.7: what becomes of PersistentVolume pv-1 and of
// claim shop/data that was bound to it, for each way in which a backup has or has not their data. The cluster has neither.
func TestVolumeDecisions(t *testing.T) {
	t.Parallel()
	const (
		keptVolume = `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-1, annotations: {}},
			spec: {persistentVolumeReclaimPolicy: POLICY, claimRef: {name: data, namespace: shop-copy}}}`
		waitingClaim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {keep: me}}, spec: {volumeName: pv-1, dataSource: {kind: X}, dataSourceRef: {kind: X}}}`
		newClaim     = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {keep: me}}, spec: {}}`
		// printf 11111111-2222-3333-4444-555555555555/vs-1 | sha256sum
		csiName  = "d2c02c9bf0f91e37199a1440c2a449d48aae2974272b45ddbb8b4d499bfadc5a"
		csiClaim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {keep: me}},
			spec: {dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: NAME}}}`
	)
	info := func(method string, moved bool) []volumeinfo.BackupVolume {
		return []volumeinfo.BackupVolume{{PVName: ""}, {PVName: "pv-1", PVCName: "data", PVCNamespace: "shop", BackupMethod: method, SnapshotDataMoved: moved}}
	}
	listed := func(pvb volumeinfo.PodVolumeInfo, result string) []volumeinfo.BackupVolume {
		list := info(volumeinfo.MethodPodVolumeBackup, false)
		pvb.UploaderType, pvb.VolumeName, pvb.PodName, pvb.PodNamespace = "kopia", "v", "web", "shop"
		list[1].PodVolume, list[1].Result = &pvb, result
		return list
	}
	skippedFor := func(reason string) []volumeinfo.BackupVolume {
		return []volumeinfo.BackupVolume{{PVName: "pv-1", PVCName: "data", PVCNamespace: "shop", Skipped: true, SkippedReason: reason}}
	}
	// As Velero 1.14 to 1.18 serialize it.
	const notRunning = "podvolume: encountered a problem with backing up the PVC of pod shop/web: pod is not in the expected status, name=web, namespace=shop, phase=Pending: " +
		"pod is not running;volumeSnapshot: not satisfy the criteria for VolumePolicy or the legacy snapshot way;"
	native := []backupstore.NativeSnapshot{{
		Spec:   backupstore.NativeSnapshotSpec{PersistentVolumeName: "pv-1", ProviderVolumeID: "vol-1", Location: "aws"},
		Status: backupstore.NativeSnapshotStatus{ProviderSnapshotID: "snap-1"},
	}}
	filled := []velerov1.PodVolumeBackup{podVolumeBackup("data", "data", "s1")}
	failedRecord := podVolumeBackup("data", "data", "")
	failedRecord.Status.Phase, failedRecord.Status.Message = velerov1.PodVolumeBackupPhaseFailed, "no space"
	emptied := podVolumeBackup("data", "data", "")
	emptied.Status.Message = "volume was empty so no snapshot was taken; the volume has no data, and in its backup of nightly-1 it had 2.0 GiB"
	plainEmpty := podVolumeBackup("data", "data", "")
	plainEmpty.Status.Message = "volume was empty so no snapshot was taken"
	failedWithSnapshot := podVolumeBackup("data", "data", "s1")
	failedWithSnapshot.Status.Phase = velerov1.PodVolumeBackupPhaseFailed
	csiAnnotation, moverAnnotation := "velero.io/volume-snapshot-name: vs-1", "velero.io/data-upload-name: du-1"

	for _, test := range []struct {
		name        string
		policy      string // Delete if empty
		annotations string // of the claim
		input       Input
		restore     velerov1.Restore
		objects     map[string]string
		version     string // of the archive; 1.1.0 if empty
		volume      expectation
		claim       expectation
	}{{
		name:   "native snapshot: neither the old disk nor an empty one",
		input:  Input{VolumeInfos: info(volumeinfo.MethodNativeSnapshot, false), NativeSnapshots: native},
		volume: expectation{err: `native snapshot "snap-1" of "vol-1" (VolumeSnapshotLocation "aws"): only a snapshot plugin`},
		claim:  expectation{item: waitingClaim, errors: []string{`it waits for PersistentVolume "pv-1", which is not restored`}, unfilled: volumeinfo.OutcomeUnsupported},
	}, {
		name:   "native snapshot before Velero 1.13",
		policy: "Retain",
		input:  Input{NativeSnapshots: native},
		volume: expectation{err: `make a volume of the snapshot`},
		claim:  expectation{item: waitingClaim, errors: []string{"plimsoll.io/keep-native-volumes=true"}, unfilled: volumeinfo.OutcomeUnsupported},
	}, {
		name:  "native snapshot, and the old disk is asked for",
		input: Input{NativeSnapshots: native},
		restore: restoreWith(func(r *velerov1.Restore) {
			r.Annotations = map[string]string{v1alpha1.AnnotationKeepNativeVolumes: "true"}
		}),
		volume: expectation{item: keptVolume},
		claim:  expectation{item: waitingClaim, warnings: []string{`it waits for PersistentVolume "pv-1", which is not in the cluster`}, unfilled: volumeinfo.OutcomeWaiting},
	}, {
		name:    "native snapshot, and no volumes of snapshots are asked for",
		input:   Input{NativeSnapshots: native},
		restore: restoreWith(func(r *velerov1.Restore) { r.Spec.RestorePVs = new(false) }),
		volume:  expectation{skip: "claim shop/data gets a new volume"},
		claim:   expectation{item: newClaim, warnings: []string{"its new volume is empty: the Restore asks for no volumes of snapshots (spec.restorePVs)"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "pod volume",
		input:  Input{VolumeInfos: info(volumeinfo.MethodPodVolumeBackup, false), PodVolumeBackups: filled},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:    "pod volume, whatever restorePVs says: it is no snapshot",
		input:   Input{VolumeInfos: info(volumeinfo.MethodPodVolumeBackup, false), PodVolumeBackups: filled},
		restore: restoreWith(func(r *velerov1.Restore) { r.Spec.RestorePVs = new(false) }),
		volume:  expectation{skip: "claim shop/data gets a new volume"},
		claim:   expectation{item: newClaim},
	}, {
		name:   "pod volume before Velero 1.13",
		policy: "Retain",
		input:  Input{PodVolumeBackups: filled},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:   "pod volume whose record does not name the claim",
		policy: "Retain",
		input:  Input{PodVolumeBackups: []velerov1.PodVolumeBackup{podVolumeBackup("v", "", "s1")}},
		objects: map[string]string{
			"pods/namespaces/shop/web": `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]}}`,
		},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:    "pod volume that Velero 1.0 noted on the pod",
		policy:  "Retain",
		version: "1",
		objects: map[string]string{
			"pods/namespaces/shop/web": `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, annotations: {snapshot.velero.io/v: s1}},
				spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]}}`,
		},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:   "pod volume that was empty",
		input:  Input{VolumeInfos: info(volumeinfo.MethodPodVolumeBackup, false), PodVolumeBackups: []velerov1.PodVolumeBackup{plainEmpty}},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:   "pod volume that was empty, and had data before",
		input:  Input{VolumeInfos: info(volumeinfo.MethodPodVolumeBackup, false), PodVolumeBackups: []velerov1.PodVolumeBackup{emptied}},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim: expectation{
			item: newClaim, unfilled: volumeinfo.OutcomeEmpty,
			warnings: []string{"its new volume is empty: its backup Completed (PodVolumeBackup nightly-data): " + emptied.Status.Message},
		},
	}, {
		name:   "pod volume that one pod's backup found empty, and another pod's did not",
		input:  Input{VolumeInfos: info(volumeinfo.MethodPodVolumeBackup, false), PodVolumeBackups: append([]velerov1.PodVolumeBackup{emptied}, filled...)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:   "pod volume whose backup failed",
		input:  Input{VolumeInfos: info(volumeinfo.MethodPodVolumeBackup, false), PodVolumeBackups: []velerov1.PodVolumeBackup{failedRecord}},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim, errors: []string{"its new volume stays empty: its backup Failed (PodVolumeBackup nightly-data): no space"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "pod volume whose record is missing",
		input:  Input{VolumeInfos: info(volumeinfo.MethodPodVolumeBackup, false)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim, errors: []string{"the record of that (PodVolumeBackup) is missing"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "pod volume whose record is missing, and the list of volumes has its snapshot",
		input:  Input{VolumeInfos: listed(volumeinfo.PodVolumeInfo{SnapshotHandle: "s1", Phase: "Completed"}, volumeinfo.ResultSucceeded)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:   "pod volume whose record is missing, and the list of volumes says that it was empty",
		input:  Input{VolumeInfos: listed(volumeinfo.PodVolumeInfo{Phase: "Completed"}, volumeinfo.ResultSucceeded)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:   "pod volume whose record is missing, and the list of volumes has no snapshot",
		input:  Input{VolumeInfos: listed(volumeinfo.PodVolumeInfo{Phase: "InProgress"}, volumeinfo.ResultFailed)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim: expectation{
			item:     newClaim,
			errors:   []string{`volume "pv-1": its new volume stays empty: its backup InProgress (its PodVolumeBackup is missing): the backup's list of volumes has no snapshot of it. Delete the claim`},
			unfilled: volumeinfo.OutcomeEmpty,
		},
	}, {
		name:   "pod volume before Velero 1.13 whose backup failed with a snapshot",
		policy: "Retain",
		input:  Input{PodVolumeBackups: []velerov1.PodVolumeBackup{failedWithSnapshot}},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}, {
		name:        "CSI snapshot",
		annotations: csiAnnotation,
		input:       Input{VolumeInfos: info(volumeinfo.MethodCSISnapshot, false)},
		volume:      expectation{skip: "claim shop/data gets a new volume"},
		claim:       expectation{item: csiClaim, additional: []string{"volumesnapshots.snapshot.storage.k8s.io shop/vs-1"}},
	}, {
		name:        "CSI snapshot before Velero 1.13",
		policy:      "Retain",
		annotations: csiAnnotation,
		objects: map[string]string{
			"volumesnapshots.snapshot.storage.k8s.io/namespaces/shop/vs-1": `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: vs-1, namespace: shop}}`,
		},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: csiClaim, additional: []string{"volumesnapshots.snapshot.storage.k8s.io shop/vs-1"}},
	}, {
		name:        "an annotation of an earlier restore is no CSI snapshot",
		policy:      "Retain",
		annotations: csiAnnotation,
		volume:      expectation{item: keptVolume},
		claim:       expectation{item: waitingClaim, warnings: []string{`it waits for PersistentVolume "pv-1", which is not in the cluster`}, unfilled: volumeinfo.OutcomeWaiting},
	}, {
		name:        "CSI snapshot, and no volumes of snapshots are asked for",
		annotations: csiAnnotation,
		input:       Input{VolumeInfos: info(volumeinfo.MethodCSISnapshot, false)},
		restore:     restoreWith(func(r *velerov1.Restore) { r.Spec.RestorePVs = new(false) }),
		volume:      expectation{skip: "claim shop/data gets a new volume"},
		claim:       expectation{item: newClaim, warnings: []string{"spec.restorePVs"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "CSI snapshot that the claim does not name",
		input:  Input{VolumeInfos: info(volumeinfo.MethodCSISnapshot, false)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim, errors: []string{"its new volume is empty: the backup does not name the claim's VolumeSnapshot"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "data mover",
		input:  Input{VolumeInfos: info(volumeinfo.MethodCSISnapshot, true)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim, errors: []string{"its new volume is empty: the data was moved by Velero's data mover"}, unfilled: volumeinfo.OutcomeUnsupported},
	}, {
		name:        "data mover before Velero 1.13",
		policy:      "Retain",
		annotations: moverAnnotation,
		volume:      expectation{skip: "claim shop/data gets a new volume"},
		claim:       expectation{item: newClaim, errors: []string{"data mover"}, unfilled: volumeinfo.OutcomeUnsupported},
	}, {
		name:   "no data, Delete: empty, and it says so",
		input:  Input{VolumeInfos: []volumeinfo.BackupVolume{{PVName: "pv-1", Skipped: true, SkippedReason: "opted out"}}},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim, warnings: []string{"its new volume is empty: the backup has no data of it (opted out), and the reclaim policy"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "Velero could not back it up from its pod, Delete",
		input:  Input{VolumeInfos: skippedFor(notRunning)},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim: expectation{
			item: newClaim, unfilled: volumeinfo.OutcomeEmpty,
			errors: []string{`volume "pv-1": its new volume is empty: Velero could not back it up (podvolume: encountered a problem with backing up the PVC of pod shop/web: pod is not in the expected status`},
		},
	}, {
		name:    "Velero could not back it up from its pod, whatever restorePVs says: it was to be no snapshot",
		input:   Input{VolumeInfos: skippedFor(notRunning)},
		restore: restoreWith(func(r *velerov1.Restore) { r.Spec.RestorePVs = new(false) }),
		volume:  expectation{skip: "claim shop/data gets a new volume"},
		claim:   expectation{item: newClaim, errors: []string{"its new volume is empty: Velero could not back it up"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "the user skipped it: no error",
		input:  Input{VolumeInfos: skippedFor("podvolume: opted out due to annotation in pod web;volumeSnapshot: not satisfy the criteria for VolumePolicy or the legacy snapshot way;")},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim, warnings: []string{"its new volume is empty: the backup has no data of it (podvolume: opted out"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "no data and no record, Delete",
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim, warnings: []string{"the backup has no data of it, and the reclaim policy"}, unfilled: volumeinfo.OutcomeEmpty},
	}, {
		name:   "no data, Retain: as it was",
		policy: "Retain",
		input:  Input{VolumeInfos: []volumeinfo.BackupVolume{{PVName: "pv-1", Skipped: true}}},
		volume: expectation{item: keptVolume},
		claim:  expectation{item: waitingClaim, warnings: []string{`it waits for PersistentVolume "pv-1", which is not in the cluster`}, unfilled: volumeinfo.OutcomeWaiting},
	}, {
		name:   "of two records of a volume the one with data counts",
		input:  Input{VolumeInfos: append([]volumeinfo.BackupVolume{{PVName: "pv-1", Skipped: true}}, info(volumeinfo.MethodPodVolumeBackup, false)...), PodVolumeBackups: filled},
		volume: expectation{skip: "claim shop/data gets a new volume"},
		claim:  expectation{item: newClaim},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			policy, version := "Delete", "1.1.0"
			if test.policy != "" {
				policy = test.policy
			}
			if test.version != "" {
				version = test.version
			}
			annotations := "pv.kubernetes.io/bind-completed: 'yes', volume.kubernetes.io/selected-node: n1, keep: me"
			if test.annotations != "" {
				annotations += ", " + test.annotations
			}
			volume := `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-1, uid: u, annotations: {pv.kubernetes.io/bound-by-controller: 'yes'}},
				spec: {persistentVolumeReclaimPolicy: ` + policy + `, claimRef: {name: data, namespace: shop, uid: u, resourceVersion: '7'}}, status: {phase: Bound}}`
			claim := `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {` + annotations + `}},
				spec: {volumeName: pv-1, dataSource: {kind: X}, dataSourceRef: {kind: X}}, status: {phase: Bound}}`
			objects := map[string]string{"persistentvolumes/cluster/pv-1": volume, "persistentvolumeclaims/namespaces/shop/data": claim}
			maps.Copy(objects, test.objects)
			test.input.Archive = archiveOf(t, version, objects)
			test.input.Restore = test.restore.DeepCopy()
			test.input.Restore.Spec.NamespaceMapping = map[string]string{"shop": "shop-copy"}
			s := scopeWith(bareCluster(t), test.input)

			item, out, err := prepareItem(t, s, "persistentvolumes", decodeItem(t, volume))
			test.volume.item = strings.ReplaceAll(test.volume.item, "POLICY", policy)
			test.volume.check(t, item, out, err)

			item, out, err = prepareItem(t, s, "persistentvolumeclaims", decodeItem(t, claim))
			test.claim.item = strings.ReplaceAll(test.claim.item, "NAME", csiName)
			test.claim.additional = append([]string{"persistentvolumes /pv-1"}, test.claim.additional...)
			test.claim.check(t, item, out, err)
		})
	}
}

// TestDataMoverSelector: what Velero's data mover has selected a claim's volume by goes, what somebody else has stays.
func TestDataMoverSelector(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{
		`{selector: {matchLabels: {velero.io/dynamic-pv-restore: shop.data.x7k2p}}}`:                                                    `{}`,
		`{selector: {matchLabels: {velero.io/dynamic-pv-restore: shop.data.x7k2p, disk: fast}}}`:                                        `{selector: {matchLabels: {disk: fast}}}`,
		`{selector: {matchLabels: {velero.io/dynamic-pv-restore: shop.data.x7k2p}, matchExpressions: [{key: disk, operator: Exists}]}}`: `{selector: {matchExpressions: [{key: disk, operator: Exists}]}}`,
		`{selector: {}}`:                       `{selector: {}}`,
		`{selector: {matchLabels: [no, map]}}`: `{selector: {matchLabels: [no, map]}}`,
	} {
		claim := `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: SPEC}`
		original := decodeItem(t, strings.Replace(claim, "SPEC", before, 1))
		if err := unstructured.SetNestedField(original.Object, "pv-1", "spec", "volumeName"); err != nil {
			t.Fatal(err)
		}
		infos := []volumeinfo.BackupVolume{{PVName: "pv-1", BackupMethod: volumeinfo.MethodPodVolumeBackup}}
		s := scopeWith(bareCluster(t), Input{VolumeInfos: infos, PodVolumeBackups: []velerov1.PodVolumeBackup{podVolumeBackup("data", "data", "s1")}})
		item, out, err := prepareItem(t, s, "persistentvolumeclaims", original)
		expectation{item: strings.Replace(claim, "SPEC", after, 1)}.check(t, item, out, err)
	}
}

func restoreWith(edit func(*velerov1.Restore)) velerov1.Restore {
	var r velerov1.Restore
	edit(&r)
	return r
}

// TestVolumesWithoutTheOtherHalf has volumes and claims of which the backup lacks the other half.
func TestVolumesWithoutTheOtherHalf(t *testing.T) {
	t.Parallel()
	cluster := bareCluster(t)
	infos := []volumeinfo.BackupVolume{{PVName: "pv-1", BackupMethod: volumeinfo.MethodPodVolumeBackup}}
	for _, test := range []struct {
		name     string
		resource string
		infos    []volumeinfo.BackupVolume
		path     string
		pod      string // pod shop/web in the backup, if it is there
		item     string
		want     expectation
	}{{
		name:     "a volume that nobody claimed, Retain",
		resource: "persistentvolumes", path: "persistentvolumes/cluster/pv-1",
		item: `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-1}, spec: {persistentVolumeReclaimPolicy: Retain}}`,
		want: expectation{item: `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-1}, spec: {persistentVolumeReclaimPolicy: Retain}}`},
	}, {
		name:     "a volume that nobody claimed, Delete",
		resource: "persistentvolumes", path: "persistentvolumes/cluster/pv-1",
		item: `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-1}, spec: {persistentVolumeReclaimPolicy: Delete}}`,
		want: expectation{skip: "gets a new volume", warnings: []string{"the backup does not have its claim"}},
	}, {
		name:     "a claim whose volume is recorded, but not in the backup, gets a new one",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/data", infos: infos,
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv-1}}`,
		want: expectation{
			item:   `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {}}`,
			errors: []string{"PodVolumeBackup) is missing"}, unfilled: volumeinfo.OutcomeEmpty,
		},
	}, {
		name:     "a claim of whose volume nothing is known asks for it",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/data",
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv-1}}`,
		want: expectation{item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv-1}}`},
	}, {
		name:     "a claim whose volume is not in the backup, and Velero could not back it up from its pod",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/data",
		infos: []volumeinfo.BackupVolume{{PVName: "pv-1", Skipped: true, SkippedReason: podVolumeProblem + "shop/web: pod is not running;"}},
		item:  `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv-1}}`,
		want: expectation{
			item:     `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv-1}}`,
			warnings: []string{`it is bound to PersistentVolume "pv-1" if that is there: it is not in the backup, and Velero could not back up its data (` + podVolumeProblem + `shop/web: pod is not running)`},
			unfilled: volumeinfo.OutcomeWaiting,
		},
	}, {
		name:     "a claim of an ephemeral volume",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/web-data", pod: ephemeralPod,
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-data, namespace: shop, ownerReferences: [{apiVersion: v1, kind: Pod, name: web, uid: u, controller: true}]}, spec: {}}`,
		want: expectation{skip: "made anew for an ephemeral volume of pod web"},
	}, {
		name:     "a claim of a Spark driver",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/web-exec-1-pvc-0", pod: ephemeralPod,
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-exec-1-pvc-0, namespace: shop, ownerReferences: [{apiVersion: v1, kind: Pod, name: web, uid: u, controller: true}]}, spec: {}}`,
		want: expectation{item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-exec-1-pvc-0, namespace: shop}, spec: {}}`},
	}, {
		name:     "a claim that a pod uses and owns, but not as its controller",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/web-data", pod: ephemeralPod,
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-data, namespace: shop, ownerReferences: [{apiVersion: v1, kind: Pod, name: web, uid: u}]}, spec: {}}`,
		want: expectation{item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-data, namespace: shop}, spec: {}}`},
	}, {
		name:     "a claim that is named as one of an ephemeral volume, of a pod that has none",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/web-cache", pod: ephemeralPod,
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-cache, namespace: shop, ownerReferences: [{apiVersion: v1, kind: Pod, name: web, uid: u, controller: true}]}, spec: {}}`,
		want: expectation{item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-cache, namespace: shop}, spec: {}}`},
	}, {
		name:     "a claim of a StatefulSet that deletes its claims",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/data",
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: web, uid: u}]}, spec: {}}`,
		want: expectation{item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {}}`},
	}, {
		name:     "a claim that was never bound",
		resource: "persistentvolumeclaims", path: "persistentvolumeclaims/namespaces/shop/data",
		item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {storageClassName: fast}, status: {phase: Pending}}`,
		want: expectation{item: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {storageClassName: fast}}`},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			objects := map[string]string{test.path: test.item}
			if test.pod != "" {
				objects["pods/namespaces/shop/web"] = test.pod
			}
			s := scopeWith(cluster, Input{VolumeInfos: test.infos, Archive: archiveOf(t, "1.1.0", objects)})
			item, out, err := prepareItem(t, s, test.resource, decodeItem(t, test.item))
			test.want.check(t, item, out, err)
		})
	}
}

// ephemeralPod has an ephemeral volume "data", and uses a claim for another one.
const ephemeralPod = `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u}, spec: {volumes: [
	{name: data, ephemeral: {volumeClaimTemplate: {spec: {}}}}, {name: cache, persistentVolumeClaim: {claimName: web-cache}}]}}`

// TestKeptVolumeThatVeleroCouldNotBackUp: a claim that is bound to the storage that it had gets it as it is now, not as the backup should have it.
func TestKeptVolumeThatVeleroCouldNotBackUp(t *testing.T) {
	t.Parallel()
	s := scopeWith(bareCluster(t), Input{})
	claim := decodeItem(t, `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {volumeName: pv-1}}`)
	for problem, warned := range map[string]bool{"": false, "podvolume: encountered a problem": true} {
		name := types.NamespacedName{Namespace: "shop", Name: "data"}
		out := s.fill(&actionInput{original: claim, item: claim.DeepCopy()}, name, name, source{dataFrom: fromSameVolume, problem: problem})
		if out.unfilled == nil || out.unfilled.Outcome != volumeinfo.OutcomeKept || (len(out.warnings) == 1) != warned || len(out.errors) > 0 {
			t.Errorf("with problem %q: got %+v", problem, out)
		}
	}
}
