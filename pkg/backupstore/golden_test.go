package backupstore_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden is a backup as a version of Velero lays it out: files without the backup's name in front, unpacked. They are
// written from contract section 1, not by this package.
type golden struct {
	metadata string
	files    map[string]string // packed in the store
	entries  []tarEntry
}

const (
	podJSON       = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop"}}`
	namespaceJSON = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`
	deployJSON    = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","generation":9007199254740993}}`
)

// goldens are backups named "nightly".
var goldens = map[string]golden{
	"1.0": {
		metadata: `{
  "kind": "Backup",
  "apiVersion": "velero.io/v1",
  "metadata": {"name": "nightly", "namespace": "velero", "labels": {"velero.io/storage-location": "default"}},
  "spec": {"storageLocation": "default", "ttl": "720h0m0s", "hooks": {"resources": null}},
  "status": {"version": 1, "phase": "Completed", "expiration": "2019-06-20T00:00:00Z",
    "volumeBackups": {"pv-1": {"snapshotID": "snap-1", "type": "gp2"}}}
}
`,
		files: map[string]string{
			"-podvolumebackups.json.gz": "null\n",
			"-volumesnapshots.json.gz": `[{"spec":{"backupName":"nightly","backupUID":"u","location":"aws-default","persistentVolumeName":"pv-1",
				"providerVolumeID":"vol-1","volumeType":"gp2","volumeAZ":"us-east-1a"},"status":{"providerSnapshotID":"snap-1","phase":"Completed"}}]` + "\n",
			"-resource-list.json.gz": `{"v1/Namespace":["shop"],"v1/Pod":["shop/web"]}` + "\n",
			"-logs.gz":               "time=\"2019-05-20T00:00:00Z\" level=info msg=\"Backup completed\"\n",
		},
		entries: []tarEntry{
			{name: "resources/pods/namespaces/shop/web.json", content: podJSON},
			{name: "resources/namespaces/cluster/shop.json", content: namespaceJSON},
			{name: "metadata/version", content: "1\n"},
		},
	},
	"1.6": {
		metadata: `{"kind":"Backup","apiVersion":"velero.io/v1","metadata":{"name":"nightly","namespace":"velero"},
			"spec":{"storageLocation":"default"},"status":{"version":1,"formatVersion":"1.1.0","phase":"PartiallyFailed","errors":1,
			"progress":{"totalItems":3,"itemsBackedUp":3}}}`,
		files: map[string]string{
			"-podvolumebackups.json.gz": `[{"kind":"PodVolumeBackup","apiVersion":"velero.io/v1","metadata":{"name":"nightly-x7x","namespace":"velero"},
				"spec":{"node":"node-a","pod":{"kind":"Pod","namespace":"shop","name":"web"},"volume":"data","repoIdentifier":"s3:s3-eu.amazonaws.com/b/restic/shop"},
				"status":{"phase":"Completed","snapshotID":"abc","progress":{"totalBytes":10,"bytesDone":10}}}]`,
			"-volumesnapshots.json.gz":            "",
			"-csi-volumesnapshots.json.gz":        `[{"apiVersion":"snapshot.storage.k8s.io/v1beta1","kind":"VolumeSnapshot","metadata":{"name":"vs"}}]`,
			"-csi-volumesnapshotcontents.json.gz": "null",
			"-resource-list.json.gz":              `{"apps/v1/Deployment":["shop/web"],"v1/Namespace":["shop"],"v1/Pod":["shop/web"]}`,
		},
		entries: versioned,
	},
	"1.18": {
		metadata: `{"kind":"Backup","apiVersion":"velero.io/v1","metadata":{"name":"nightly","namespace":"velero",
			"annotations":{"velero.io/source-cluster-k8s-gitversion":"v1.33.1"}},
			"spec":{"storageLocation":"default","snapshotMoveData":true,"inTheYear2030":{"new":true}},
			"status":{"version":1,"formatVersion":"1.1.0","phase":"Completed","hookStatus":{}}}`,
		files: map[string]string{
			"-podvolumebackups.json.gz": "null\n",
			"-itemoperations.json.gz": `[{"spec":{"backupName":"nightly","backupUID":"u","backupItemAction":"velero.io/csi-pvc-backupper",
				"resourceIdentifier":{"Group":"","Resource":"persistentvolumeclaims","Namespace":"shop","Name":"data"},"operationID":"du-1","postOperationItems":null},
				"status":{"phase":"Completed","nCompleted":7,"nTotal":7}}]`,
			"-volumeinfo.json.gz": `[{"pvcName":"data","pvcNamespace":"shop","pvName":"pv-1","backupMethod":"CSISnapshot","snapshotDataMoved":true,
				"preserveLocalSnapshot":false,"skipped":false,"result":"succeeded","inTheYear2030":1,
				"csiSnapshotInfo":{"snapshotHandle":"unknown","size":5,"driver":"d","vscName":"unknown","operationID":"unknown","ReadyToUse":null},
				"snapshotDataMovementInfo":{"dataMover":"velero","uploaderType":"kopia","snapshotHandle":"k","operationID":"du-1","size":5,"Phase":"Completed"}},
				{"backupMethod":"PodVolumeBackup","snapshotDataMoved":false,"preserveLocalSnapshot":false,"skipped":false,
				"pvbInfo":{"uploaderType":"kopia","volumeName":"tmp","podName":"web","podNamespace":"shop","phase":"Completed"}}]`,
			"-results.gz":            `{"errors":{},"warnings":{"velero":["w"],"namespaces":{"shop":["x"]}}}`,
			"-resource-list.json.gz": `{"apps/v1/Deployment":["shop/web"],"v1/Namespace":["shop"],"v1/Pod":["shop/web"]}`,
		},
		entries: versioned,
	},
}

// versioned is an archive of the layout 1.1.0, with the feature EnableAPIGroupVersions.
var versioned = []tarEntry{
	{name: "resources/deployments.apps/namespaces/shop/web.json", content: deployJSON},
	{name: "resources/deployments.apps/v1-preferredversion/namespaces/shop/web.json", content: deployJSON},
	{name: "resources/deployments.apps/v1beta1/namespaces/shop/web.json", content: deployJSON},
	{name: "resources/pods/namespaces/shop/web.json", content: podJSON},
	{name: "resources/pods/v1-preferredversion/namespaces/shop/web.json", content: podJSON},
	{name: "resources/namespaces/cluster/shop.json", content: namespaceJSON},
	{name: "resources/namespaces/v1-preferredversion/cluster/shop.json", content: namespaceJSON},
	{name: "metadata/version", content: "1.1.0\n"},
}

func (g golden) put(tb testing.TB, p *place) {
	tb.Helper()
	p.put(tb, "backups/nightly/velero-backup.json", []byte(g.metadata))
	p.put(tb, "backups/nightly/nightly.tar.gz", archive(g.entries...))
	for file, content := range g.files {
		p.put(tb, "backups/nightly/nightly"+file, pack(content))
	}
}

// equal compares with the difference shown.
func equal(tb testing.TB, what string, want, got any) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
