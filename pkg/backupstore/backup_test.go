package backupstore_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

func testGolden(t *testing.T, p *place, version string) {
	b := backup(t, p)
	metadata, err := b.Metadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := backupstore.CheckRestorable(&metadata.Typed); err != nil {
		t.Error(err)
	}
	// Every file of the golden can be read, and every other one is absent.
	for file, read := range readers(t, b) {
		_, there := goldens[version].files[file]
		if _, err := read(); there && err != nil || !there && !errors.Is(err, backupstore.ErrNotFound) {
			t.Errorf("%s: %v", file, err)
		}
	}
	files, err := b.Files(t.Context())
	if want := len(goldens[version].files) + 2; err != nil || len(files) != want {
		t.Errorf("files: %v, %v, want %d", files, err, want)
	}
	switch version {
	case "1.0":
		testGolden1x0(t, b)
	case "1.6":
		testGolden1x6(t, b)
	case "1.18":
		testGolden1x18(t, b, metadata)
	}
}

func testGolden1x0(t *testing.T, b backupstore.Backup) {
	snapshots, err := b.NativeSnapshots(t.Context())
	if err != nil || len(snapshots) != 1 {
		t.Fatalf("got %v, %v, want one snapshot", snapshots, err)
	}
	equal(t, "snapshot", backupstore.NativeSnapshot{
		Spec: backupstore.NativeSnapshotSpec{
			BackupName: "nightly", BackupUID: "u", Location: "aws-default", PersistentVolumeName: "pv-1",
			ProviderVolumeID: "vol-1", VolumeType: "gp2", VolumeAZ: "us-east-1a",
		},
		Status: backupstore.NativeSnapshotStatus{ProviderSnapshotID: "snap-1", Phase: "Completed"},
	}, snapshots[0])
	r, err := b.OpenLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if log, err := io.ReadAll(r); err != nil || string(log) != goldens["1.0"].files["-logs.gz"] {
		t.Errorf("log: got %q, %v", log, err)
	}
}

func testGolden1x6(t *testing.T, b backupstore.Backup) {
	volumes, err := b.PodVolumeBackups(t.Context())
	if err != nil || len(volumes) != 1 {
		t.Fatalf("got %v, %v, want one PodVolumeBackup", volumes, err)
	}
	v := volumes[0].Typed
	if v.Spec.Pod.Namespace != "shop" || v.Status.SnapshotID != "abc" || v.Status.Progress.BytesDone != 10 {
		t.Errorf("got %+v", v)
	}
	snapshots, err := b.CSIVolumeSnapshots(t.Context())
	if err != nil || len(snapshots) != 1 || snapshots[0].GetName() != "vs" {
		t.Errorf("got %v, %v, want the VolumeSnapshot vs", snapshots, err)
	}
}

func testGolden1x18(t *testing.T, b backupstore.Backup, metadata backupstore.Object[velerov1.Backup]) {
	spec, _ := metadata.Content.Object["spec"].(map[string]any)
	equal(t, "a field that the types do not know", any(map[string]any{"new": true}), spec["inTheYear2030"])
	operations, err := b.ItemOperations(t.Context())
	if err != nil || len(operations) != 1 || operations[0].Spec.ResourceIdentifier.Resource != "persistentvolumeclaims" || operations[0].Status.NTotal != 7 {
		t.Errorf("got %+v, %v", operations, err)
	}
	infos, err := b.VolumeInfos(t.Context())
	if err != nil || len(infos) != 2 {
		t.Fatalf("got %+v, %v, want two", infos, err)
	}
	if i := infos[0]; i.DataMovement.Phase != "Completed" || i.CSISnapshot.ReadyToUse != nil || i.CSISnapshot.Size != 5 {
		t.Errorf("got %+v", i)
	}
	if i := infos[1]; i.PVName != "" || i.PodVolume.Phase != velerov1.PodVolumeBackupPhaseCompleted {
		t.Errorf("got %+v", i)
	}
	results, err := b.Results(t.Context())
	if err != nil || !slices.Equal(results.Warnings.Namespaces["shop"], []string{"x"}) || !results.Errors.IsEmpty() {
		t.Errorf("got %+v, %v", results, err)
	}
}

func testBackupArchive(t *testing.T, p *place) {
	goldens["1.18"].put(t, p)
	b := backup(t, p)
	a, err := b.OpenArchive(t.Context(), backupstore.ArchiveOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Len() != 3 || a.FormatVersion() != "1.1.0" {
		t.Errorf("%d items of format %q, want 3 of 1.1.0", a.Len(), a.FormatVersion())
	}
	whole := p.content(t, "backups/nightly/nightly.tar.gz")
	p.put(t, "backups/nightly/nightly.tar.gz", whole[:len(whole)-20])
	_, err = b.OpenArchive(t.Context(), backupstore.ArchiveOptions{Dir: t.TempDir()})
	wantError(t, err, backupstore.ErrDamaged, "nightly.tar.gz", "cut off")
}

func testDownloads(t *testing.T, p *place) {
	store := p.open(t)
	goldens["1.18"].put(t, p)
	putRestore(t, restore(t, p))
	for kind, key := range map[velerov1.DownloadTargetKind]string{
		velerov1.DownloadTargetKindBackupContents:        "backups/nightly/nightly.tar.gz",
		velerov1.DownloadTargetKindBackupItemOperations:  "backups/nightly/nightly-itemoperations.json.gz",
		velerov1.DownloadTargetKindBackupResourceList:    "backups/nightly/nightly-resource-list.json.gz",
		velerov1.DownloadTargetKindBackupResults:         "backups/nightly/nightly-results.gz",
		velerov1.DownloadTargetKindBackupVolumeInfos:     "backups/nightly/nightly-volumeinfo.json.gz",
		velerov1.DownloadTargetKindRestoreLog:            "restores/r/restore-r-logs.gz",
		velerov1.DownloadTargetKindRestoreResults:        "restores/r/restore-r-results.gz",
		velerov1.DownloadTargetKindRestoreResourceList:   "restores/r/restore-r-resource-list.json.gz",
		velerov1.DownloadTargetKindRestoreItemOperations: "restores/r/restore-r-itemoperations.json.gz",
		velerov1.DownloadTargetKindRestoreVolumeInfo:     "restores/r/r-volumeinfo.json.gz",
	} {
		target := velerov1.DownloadTarget{Kind: kind, Name: "nightly"}
		if key[0] == 'r' {
			target.Name = "r"
		}
		want := p.content(t, key)
		r, err := store.OpenDownload(t.Context(), target)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		got, err := io.ReadAll(r)
		if err != nil || r.Close() != nil {
			t.Errorf("%s: %v", kind, err)
		}
		equal(t, string(kind), want, got)
		testDownloadURL(t, p, store, target, want)
	}
	for _, kind := range []velerov1.DownloadTargetKind{velerov1.DownloadTargetKindBackupLog, "Unheard"} {
		_, err := store.OpenDownload(t.Context(), velerov1.DownloadTarget{Kind: kind, Name: "nightly"})
		wantError(t, err, backupstore.ErrNotFound)
	}
}

func testDownloadURL(t *testing.T, p *place, store *backupstore.Store, target velerov1.DownloadTarget, want []byte) {
	t.Helper()
	signed, err := store.DownloadURL(t.Context(), target, 10*time.Minute)
	if p.location.Spec.Provider == "velero.io/fs" {
		wantError(t, err, backupstore.ErrNoURL)
		return
	}
	if err != nil {
		t.Errorf("URL for %s: %v", target.Kind, err)
		return
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, signed, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := p.httpClient(t).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("GET for %s: %s, %v, %s", target.Kind, response.Status, err, got)
	}
	equal(t, "content behind the URL for "+string(target.Kind), want, got)
}

func TestCheckRestorable(t *testing.T) {
	t.Parallel()
	for phase, ok := range map[velerov1.BackupPhase]bool{
		"": false, velerov1.BackupPhaseNew: false, velerov1.BackupPhaseQueued: false, velerov1.BackupPhaseInProgress: false,
		velerov1.BackupPhaseWaitingForPluginOperations: false, velerov1.BackupPhaseFinalizing: false,
		velerov1.BackupPhaseFinalizingPartiallyFailed: false, velerov1.BackupPhaseFailed: false,
		velerov1.BackupPhaseFailedValidation: false, velerov1.BackupPhaseDeleting: false, "InTheYear2030": false,
		velerov1.BackupPhaseCompleted: true, velerov1.BackupPhasePartiallyFailed: true,
	} {
		b := &velerov1.Backup{Status: velerov1.BackupStatus{Phase: phase}}
		b.Name = "nightly"
		err := backupstore.CheckRestorable(b)
		if ok && err != nil {
			t.Errorf("%s: %v", phase, err)
		}
		if !ok {
			wantError(t, err, backupstore.ErrNotRestorable, "nightly")
		}
	}
}

// TestRecordsAreBounded: a record takes three bytes in the bucket, packed even less, and near a kilobyte in memory.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	p.put(t, "backups/b1/b1-podvolumebackups.json.gz", pack("["+strings.Repeat("{},", 60_000)+"{}]"))
	p.put(t, "backups/b1/b1-volumeinfo.json.gz", pack("{}"))
	b, err := p.open(t).Backup("b1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.PodVolumeBackups(t.Context())
	wantError(t, err, backupstore.ErrTooLarge, "more than 50000 records")
	_, err = b.VolumeInfos(t.Context())
	wantError(t, err, backupstore.ErrDamaged, "begins with {")
}

// TestDocumentThatTakesTooMuchMemory is small where it lies, and would be large decoded.
func TestDocumentThatTakesTooMuchMemory(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	p.put(t, "backups/nightly/nightly-podvolumebackups.json.gz", pack(`[{"novelty":[`+strings.Repeat(`{},`, 2<<20)+`{}]}]`))
	b, err := p.open(t).Backup("nightly")
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.PodVolumeBackups(t.Context())
	wantError(t, err, backupstore.ErrTooLarge, "nightly-podvolumebackups.json.gz", "MiB of memory")
}
