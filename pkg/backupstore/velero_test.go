package backupstore_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/vmware-tanzu/velero/pkg/itemoperation"
	"github.com/vmware-tanzu/velero/pkg/util/results"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// velero runs Velero's own code for backup stores, of the version in go.mod, on a place in a directory.
func velero(t *testing.T, p *place, command, name string, input any) []byte {
	t.Helper()
	stdin, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), parts.VeleroStore(t), command, p.dir, name)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("velero-store %s: %v\n%s", command, err, &stderr)
	}
	return output
}

// TestReadsWhatVeleroStored has Velero lay a backup out; its content is that of the golden.
func TestReadsWhatVeleroStored(t *testing.T) {
	t.Parallel()
	p, g := inDirectory(t), goldens["1.18"]
	handedOver := map[string][]byte{"metadata": []byte(g.metadata), "contents": archive(g.entries...), "log": pack("level=info\n")}
	for as, file := range map[string]string{
		"podVolumeBackups": "-podvolumebackups.json.gz", "itemOperations": "-itemoperations.json.gz", "volumeInfo": "-volumeinfo.json.gz",
		"results": "-results.gz", "resourceList": "-resource-list.json.gz",
	} {
		handedOver[as] = pack(g.files[file])
	}
	velero(t, p, "put-backup", "nightly", handedOver)

	store := p.open(t)
	if err := store.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	names, err := store.Backups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "backups", []string{"nightly"}, names)
	b := backup(t, p)
	files, err := b.Files(t.Context())
	if err != nil || len(files) != len(handedOver) {
		t.Errorf("files: %v, %v, want %d", files, err, len(handedOver))
	}
	for file, read := range readers(t, b) {
		if _, there := g.files[file]; there {
			if _, err := read(); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	metadata, err := b.Metadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testGolden1x18(t, b, metadata)
	if log, err := b.OpenLog(t.Context()); err != nil {
		t.Error(err)
	} else if err := log.Close(); err != nil {
		t.Error(err)
	}
	a, err := b.OpenArchive(t.Context(), backupstore.ArchiveOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Len() != 3 {
		t.Errorf("%d items, want 3", a.Len())
	}
}

// TestVeleroTakesNoNoticeOfPluginRecords has Velero read a backup with the file that is not its own, and delete it.
func TestVeleroTakesNoNoticeOfPluginRecords(t *testing.T) {
	t.Parallel()
	p, g := inDirectory(t), goldens["1.18"]
	velero(t, p, "put-backup", "nightly", map[string][]byte{
		"metadata": []byte(g.metadata), "contents": archive(g.entries...), "log": pack("level=info\n"),
		"podVolumeBackups": pack(g.files["-podvolumebackups.json.gz"]),
	})
	var before, after map[string]any
	if err := json.Unmarshal(velero(t, p, "get-backup", "nightly", nil), &before); err != nil {
		t.Fatal(err)
	}
	if err := backup(t, p).PutVolumePluginBackups(t.Context(), []v1alpha1.VolumePluginBackup{{}}); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(velero(t, p, "get-backup", "nightly", nil), &after); err != nil {
		t.Fatal(err)
	}
	equal(t, "what Velero sees", before, after)
	equal(t, "names", any([]any{"nightly"}), after["names"])
	if err := p.open(t).Validate(t.Context()); err != nil {
		t.Error(err)
	}
	velero(t, p, "delete-backup", "nightly", nil)
	equal(t, "objects after Velero's deletion", []string(nil), p.objects(t))
}

// TestVeleroReadsWhatIsStored has Velero read a restore's files, sign their names for the CLI, and delete them.
func TestVeleroReadsWhatIsStored(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	r := restore(t, p)
	putRestore(t, r)
	operations := []itemoperation.RestoreOperation{{Spec: itemoperation.RestoreOperationSpec{RestoreName: "r", OperationID: "dd-1"}}}
	if err := r.PutItemOperations(t.Context(), operations); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Results        map[string]results.Result
		ResourceList   map[string][]string
		ItemOperations []itemoperation.RestoreOperation
		URLs           map[string]string
	}
	if err := json.Unmarshal(velero(t, p, "get-restore", "r", nil), &got); err != nil {
		t.Fatal(err)
	}
	equal(t, "results", map[string]results.Result{"warnings": {Velero: []string{"w"}}, "errors": {}}, got.Results)
	equal(t, "resource list", map[string][]string{"v1/Pod": {"shop/web(created)"}}, got.ResourceList)
	equal(t, "item operations", operations, got.ItemOperations)
	equal(t, "files that the CLI fetches", map[string]string{
		"RestoreLog":            "cluster-a/restores/r/restore-r-logs.gz",
		"RestoreResults":        "cluster-a/restores/r/restore-r-results.gz",
		"RestoreResourceList":   "cluster-a/restores/r/restore-r-resource-list.json.gz",
		"RestoreItemOperations": "cluster-a/restores/r/restore-r-itemoperations.json.gz",
		"RestoreVolumeInfo":     "cluster-a/restores/r/r-volumeinfo.json.gz",
	}, got.URLs)
	for _, key := range got.URLs {
		p.content(t, key[len("cluster-a/"):])
	}
	velero(t, p, "delete", "r", nil)
	equal(t, "objects after Velero's deletion", []string(nil), p.objects(t))
}
