package backupstore_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/util/results"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// TestStore runs what every storage must do against those that can be had on this machine. Azure and Google Cloud have no
// server here: only how their clients are made is tested, in azure_test.go and gcs_test.go.
func TestStore(t *testing.T) {
	t.Parallel()
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		testStore(t, inDirectory)
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		server := s3.Start(t)
		testStore(t, func(tb testing.TB) *place { tb.Helper(); return onServer(tb, server) })
	})
}

func testStore(t *testing.T, newPlace func(testing.TB) *place) {
	for name, test := range map[string]func(*testing.T, *place){
		"validate":               testValidate,
		"list":                   testList,
		"absent":                 testAbsent,
		"empty":                  testEmpty,
		"damaged":                testDamaged,
		"log":                    testLog,
		"write and delete":       testRestoreFiles,
		"failing write":          testFailingWrite,
		"large write":            testLargeWrite,
		"read-only":              testReadOnly,
		"volume plugin backups":  testVolumePluginBackups,
		"downloads":              testDownloads,
		"chunk framing":          testChunkFraming,
		"no bucket":              testNoBucket,
		"names":                  testNames,
		"archive of a backup":    testBackupArchive,
		"canceled":               testCanceled,
		"deleting what has gone": testDeleteNothing,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, newPlace(t))
		})
	}
	for version, g := range goldens {
		t.Run("velero "+version, func(t *testing.T) {
			p := newPlace(t)
			g.put(t, p)
			testGolden(t, p, version)
		})
	}
}

func testValidate(t *testing.T, p *place) {
	store := p.open(t)
	if err := store.Validate(t.Context()); err != nil {
		t.Errorf("an empty store: %v", err)
	}
	for _, dir := range []string{"backups", "restores", "restic", "metadata", "plugins", "kopia"} {
		p.put(t, dir+"/x/y", nil)
	}
	p.put(t, "a-file-is-no-matter", nil)
	if err := store.Validate(t.Context()); err != nil {
		t.Errorf("a store with all of Velero's directories: %v", err)
	}
	p.put(t, "photos/1.jpg", nil)
	wantError(t, store.Validate(t.Context()), backupstore.ErrInvalidLayout, "photos", "prefix")
}

func testList(t *testing.T, p *place) {
	store := p.open(t)
	names, err := store.Backups(t.Context())
	if err != nil || len(names) > 0 {
		t.Errorf("an empty store: %v, %v, want no names", names, err)
	}
	p.put(t, "backups/b.2/velero-backup.json", nil)
	p.put(t, "backups/a-1/velero-backup.json", nil)
	p.put(t, "backups/a/deep/er/file", nil)
	p.put(t, "backups/No_Name/velero-backup.json", nil)
	p.put(t, "backups/file", nil)
	p.put(t, "restores/r/x", nil)
	names, err = store.Backups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "backups", []string{"a", "a-1", "b.2"}, names)
	names, err = store.Restores(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "restores", []string{"r"}, names)
}

// backup returns the backup "nightly" of a place.
func backup(t *testing.T, p *place) backupstore.Backup {
	t.Helper()
	b, err := p.open(t).Backup("nightly")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// readers are the methods that read one file of a backup each, with the file's name.
func readers(t *testing.T, b backupstore.Backup) map[string]func() (any, error) {
	t.Helper()
	ctx := t.Context()
	return map[string]func() (any, error){
		"-podvolumebackups.json.gz":           func() (any, error) { v, err := b.PodVolumeBackups(ctx); return len(v), err },
		"-volumepluginbackups.json.gz":        func() (any, error) { v, err := b.VolumePluginBackups(ctx); return len(v), err },
		"-volumesnapshots.json.gz":            func() (any, error) { v, err := b.NativeSnapshots(ctx); return len(v), err },
		"-volumeinfo.json.gz":                 func() (any, error) { v, err := b.VolumeInfos(ctx); return len(v), err },
		"-csi-volumesnapshots.json.gz":        func() (any, error) { v, err := b.CSIVolumeSnapshots(ctx); return len(v), err },
		"-csi-volumesnapshotcontents.json.gz": func() (any, error) { v, err := b.CSIVolumeSnapshotContents(ctx); return len(v), err },
		"-csi-volumesnapshotclasses.json.gz":  func() (any, error) { v, err := b.CSIVolumeSnapshotClasses(ctx); return len(v), err },
		"-itemoperations.json.gz":             func() (any, error) { v, err := b.ItemOperations(ctx); return len(v), err },
		"-resource-list.json.gz":              func() (any, error) { v, err := b.ResourceList(ctx); return len(v), err },
		"-results.gz": func() (any, error) {
			v, err := b.Results(ctx)
			return len(v.Errors.Velero) + len(v.Warnings.Velero), err
		},
	}
}

func testAbsent(t *testing.T, p *place) {
	b := backup(t, p)
	for file, read := range readers(t, b) {
		if got, err := read(); !errors.Is(err, backupstore.ErrNotFound) || got != 0 {
			t.Errorf("%s: got %v, %v, want nothing and ErrNotFound", file, got, err)
		}
	}
	_, err := b.Metadata(t.Context())
	wantError(t, err, backupstore.ErrNotFound, "velero-backup.json")
	_, err = b.OpenArchive(t.Context(), backupstore.ArchiveOptions{})
	wantError(t, err, backupstore.ErrNotFound, "nightly.tar.gz")
	_, err = b.OpenLog(t.Context())
	wantError(t, err, backupstore.ErrNotFound, "nightly-logs.gz")
	files, err := b.Files(t.Context())
	if err != nil || len(files) > 0 {
		t.Errorf("files of a backup that does not exist: %v, %v", files, err)
	}
}

// testEmpty: a file without content has nothing, as one with null. The list of pod volumes is different: Velero writes null or an array with every
// backup, and to take a truncated one for a backup without volumes would lose them.
func testEmpty(t *testing.T, p *place) {
	b := backup(t, p)
	for file, read := range readers(t, b) {
		for what, content := range map[string][]byte{"null": pack("null\n"), "empty gzip": pack(""), "empty": {}, "blank": pack(" \n")} {
			p.put(t, "backups/nightly/nightly"+file, content)
			got, err := read()
			if file == "-podvolumebackups.json.gz" && what != "null" {
				wantError(t, err, backupstore.ErrDamaged, file)
				err = nil
			}
			if err != nil || got != 0 {
				t.Errorf("%s, %s: got %v, %v, want nothing", file, what, got, err)
			}
		}
	}
}

func testDamaged(t *testing.T, p *place) {
	b := backup(t, p)
	long := pack(`["` + strings.Repeat("velero", 10000) + `"]`)
	for file, read := range readers(t, b) {
		for what, content := range map[string][]byte{
			"not packed": []byte("[]"), "cut off": long[:len(long)-6], "wrong checksum": append(slices.Clone(long[:len(long)-8]), make([]byte, 8)...),
			"garbage after it": append(pack("null"), "garbage"...), "no JSON": pack("<html>"), "two values": pack("null null"), "another type": pack("17"),
		} {
			p.put(t, "backups/nightly/nightly"+file, content)
			got, err := read()
			wantError(t, err, backupstore.ErrDamaged, file)
			if got != 0 {
				t.Errorf("%s, %s: got %v beside the error", file, what, got)
			}
		}
	}
	for what, content := range map[string]string{
		"empty": "", "null": "null", "no JSON": "<html>", "array": "[]", "cut off": goldens["1.18"].metadata[:100],
		"of Ark":            `{"kind":"Backup","apiVersion":"ark.heptio.com/v1","metadata":{"name":"nightly"}}`,
		"a Restore":         `{"kind":"Restore","apiVersion":"velero.io/v1","metadata":{"name":"nightly"}}`,
		"of another backup": `{"kind":"Backup","apiVersion":"velero.io/v1","metadata":{"name":"weekly"}}`,
	} {
		p.put(t, "backups/nightly/velero-backup.json", []byte(content))
		if metadata, err := b.Metadata(t.Context()); !errors.Is(err, backupstore.ErrDamaged) || metadata.Content.Object != nil {
			t.Errorf("metadata %s: got %v, %v, want ErrDamaged", what, metadata.Content.Object, err)
		}
	}
}

func testLog(t *testing.T, p *place) {
	log := strings.Repeat("level=info\n", 10_000)
	packed := pack(log)
	p.put(t, "backups/nightly/nightly-logs.gz", packed)
	b := backup(t, p)
	read := func() (string, error) {
		r, err := b.OpenLog(t.Context())
		if err != nil {
			return "", err
		}
		defer r.Close()
		content, err := io.ReadAll(r)
		return string(content), err
	}
	if got, err := read(); err != nil || got != log {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(log))
	}
	p.put(t, "backups/nightly/nightly-logs.gz", packed[:len(packed)/2])
	_, err := read()
	wantError(t, err, backupstore.ErrDamaged, "nightly-logs.gz", "cut off")
	p.put(t, "backups/nightly/nightly-logs.gz", []byte("plain text"))
	_, err = read()
	wantError(t, err, backupstore.ErrDamaged, "nightly-logs.gz")
}

// restore returns the restore "r" of a place.
func restore(t *testing.T, p *place) backupstore.Restore {
	t.Helper()
	r, err := p.open(t).Restore("r")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// putRestore writes every file of a restore.
func putRestore(t *testing.T, r backupstore.Restore) {
	t.Helper()
	ctx := t.Context()
	for _, err := range []error{
		r.PutLog(ctx, strings.NewReader("level=info\n")),
		r.PutResults(ctx, backupstore.Results{Warnings: results.Result{Velero: []string{"w"}}}),
		r.PutResourceList(ctx, map[string][]string{"v1/Pod": {"shop/web(created)"}}),
		r.PutItemOperations(ctx, nil),
		r.PutVolumeInfos(ctx, []volumeinfo.BackupVolume{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func testRestoreFiles(t *testing.T, p *place) {
	p.put(t, "restores/other/x", nil)
	p.put(t, "restores/r-2/x", nil)
	p.put(t, "backups/r/x", nil)
	others := p.objects(t)
	r := restore(t, p)
	if err := r.PutLog(t.Context(), strings.NewReader("the first try\n")); err != nil {
		t.Fatal(err)
	}
	before, err := r.Files(t.Context())
	if err != nil || len(before) != 1 {
		t.Fatalf("files: %v, %v, want one", before, err)
	}
	putRestore(t, r)
	for file, want := range map[string]string{
		"restore-r-logs.gz":                "level=info\n",
		"restore-r-results.gz":             `{"warnings":{"velero":["w"]},"errors":{}}` + "\n",
		"restore-r-resource-list.json.gz":  `{"v1/Pod":["shop/web(created)"]}` + "\n",
		"restore-r-itemoperations.json.gz": "[]\n",
		"r-volumeinfo.json.gz":             "[]\n",
	} {
		equal(t, file, want, unpack(t, p.content(t, "restores/r/"+file)))
	}
	p.put(t, "restores/r/an-addition-of-ours", []byte("12345"))
	files, err := r.Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, file.Name)
		if file.Name == before[0].Name && file.Tag == before[0].Tag {
			t.Errorf("the tag of %s is still %q after a change", file.Name, file.Tag)
		}
		if file.Name == "an-addition-of-ours" && file.Size != 5 {
			t.Errorf("%s has %d bytes, want 5", file.Name, file.Size)
		}
	}
	equal(t, "files", []string{
		"an-addition-of-ours", "r-volumeinfo.json.gz", "restore-r-itemoperations.json.gz", "restore-r-logs.gz",
		"restore-r-resource-list.json.gz", "restore-r-results.gz",
	}, names)
	if err := r.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "objects after the deletion", others, p.objects(t))
	if restores, err := p.open(t).Restores(t.Context()); err != nil || slices.Contains(restores, "r") {
		t.Errorf("restores after the deletion: %v, %v", restores, err)
	}
}

// failingReader gives some of a log, and then an error.
type failingReader struct{ left int }

var errPipe = errors.New("the pipe broke")

func (f *failingReader) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, errPipe
	}
	n := min(f.left, len(p))
	f.left -= n
	return n, nil
}

func testFailingWrite(t *testing.T, p *place) {
	r := restore(t, p)
	wantError(t, r.PutLog(t.Context(), &failingReader{left: 1 << 20}), errPipe, "restore-r-logs.gz")
	equal(t, "objects after a write that failed", []string(nil), p.keys(t, "restores"))
	putRestore(t, r)
	before := p.content(t, "restores/r/restore-r-logs.gz")
	wantError(t, r.PutLog(t.Context(), &failingReader{left: 1 << 20}), errPipe)
	equal(t, "the log after a write that failed", before, p.content(t, "restores/r/restore-r-logs.gz"))
}

// testLargeWrite takes several requests of a cloud's API.
func testLargeWrite(t *testing.T, p *place) {
	r := restore(t, p)
	noise := make([]byte, 10<<20)
	state := uint64(1)
	for i := range noise {
		state = state*6364136223846793005 + 1442695040888963407
		noise[i] = byte(state >> 56)
	}
	if err := r.PutLog(t.Context(), bytes.NewReader(noise)); err != nil {
		t.Fatal(err)
	}
	if unpack(t, p.content(t, "restores/r/restore-r-logs.gz")) != string(noise) {
		t.Error("the log is not what was written")
	}
}

func testReadOnly(t *testing.T, p *place) {
	p.put(t, "restores/r/restore-r-logs.gz", pack("log"))
	before := p.objects(t)
	p.location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	if !p.open(t).ReadOnly() {
		t.Error("the store does not say that it is read-only")
	}
	r, b := restore(t, p), backup(t, p)
	ctx := t.Context()
	for what, err := range map[string]error{
		"log": r.PutLog(ctx, strings.NewReader("x")), "results": r.PutResults(ctx, backupstore.Results{}),
		"resource list": r.PutResourceList(ctx, nil), "operations": r.PutItemOperations(ctx, nil), "volume infos": r.PutVolumeInfos(ctx, nil),
		"deletion": r.Delete(ctx), "volume plugin backups": b.PutVolumePluginBackups(ctx, nil),
		"removal of volume plugin backups": b.RemoveVolumePluginBackups(ctx),
	} {
		if !errors.Is(err, backupstore.ErrReadOnly) {
			t.Errorf("%s: got %v, want ErrReadOnly", what, err)
		}
	}
	equal(t, "objects", before, p.objects(t))
	if files, err := r.Files(ctx); err != nil || len(files) != 1 {
		t.Errorf("reading: %v, %v, want one file", files, err)
	}
}

func testVolumePluginBackups(t *testing.T, p *place) {
	b := backup(t, p)
	records := []v1alpha1.VolumePluginBackup{{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VolumePluginBackup"},
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
	}}
	for range 2 {
		if err := b.PutVolumePluginBackups(t.Context(), records); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "objects", []string{"backups/nightly/nightly-volumepluginbackups.json.gz"}, p.keys(t, "backups"))
	got, err := b.VolumePluginBackups(t.Context())
	if err != nil || len(got) != 1 {
		t.Fatalf("got %v, %v, want one record", got, err)
	}
	equal(t, "record", records[0], got[0].Typed)
	for range 2 {
		if err := b.RemoveVolumePluginBackups(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "objects after removal", []string(nil), p.keys(t, "backups"))
}

// testChunkFraming reads what velero-plugin-for-aws 1.14.2 has left in some buckets.
func testChunkFraming(t *testing.T, p *place) {
	packed := pack(`{"v1/Pod":["shop/web"]}`)
	framed := func(content []byte) []byte {
		half := len(content) / 2
		return []byte(hex(half) + "\r\n" + string(content[:half]) + "\r\n" + hex(len(content)-half) + "\r\n" + string(content[half:]) +
			"\r\n0\r\nx-amz-checksum-crc32:6AzUXw==\r\n\r\n")
	}
	p.put(t, "backups/nightly/nightly-resource-list.json.gz", framed(packed))
	p.put(t, "backups/nightly/nightly.tar.gz", framed(archive(versioned...)))
	b := backup(t, p)
	list, err := b.ResourceList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "resource list", map[string][]string{"v1/Pod": {"shop/web"}}, list)
	a, err := b.OpenArchive(t.Context(), backupstore.ArchiveOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Len() != 3 {
		t.Errorf("%d items, want 3", a.Len())
	}
	p.put(t, "backups/nightly/nightly-resource-list.json.gz", framed(packed)[:20])
	_, err = b.ResourceList(t.Context())
	wantError(t, err, backupstore.ErrDamaged)
}

func testNoBucket(t *testing.T, p *place) {
	p.location.Spec.ObjectStorage.Bucket = "no-such-bucket"
	if p.location.Spec.Config["fspath"] != "" {
		p.location.Spec.Config["fspath"] += "/none"
	}
	store, err := backupstore.Open(t.Context(), p.resolver(), p.location)
	if err == nil {
		defer store.Close()
		_, listed := store.Backups(t.Context())
		wantError(t, listed, backupstore.ErrNoBucket)
		err = store.Validate(t.Context())
	}
	wantError(t, err, backupstore.ErrNoBucket, "make it")
}

func testNames(t *testing.T, p *place) {
	p.put(t, "backups/nightly/velero-backup.json", nil)
	before := p.objects(t)
	store := p.open(t)
	for _, name := range []string{"", ".", "..", "a/b", "../restores", "nightly/", "/nightly", "a..b", "A", "a b", "a\\b", "ä", "a\n", strings.Repeat("a", 254)} {
		if b, err := store.Backup(name); !errors.Is(err, backupstore.ErrInvalidName) || b.Name() != name && b.Name() != "" {
			t.Errorf("backup %q: got %v, want ErrInvalidName", name, err)
		}
		if _, err := store.Restore(name); !errors.Is(err, backupstore.ErrInvalidName) {
			t.Errorf("restore %q: got %v, want ErrInvalidName", name, err)
		}
		for _, kind := range []velerov1.DownloadTargetKind{velerov1.DownloadTargetKindBackupLog, velerov1.DownloadTargetKindRestoreLog} {
			target := velerov1.DownloadTarget{Kind: kind, Name: name}
			if _, err := store.OpenDownload(t.Context(), target); !errors.Is(err, backupstore.ErrInvalidName) {
				t.Errorf("%s of %q: got %v, want ErrInvalidName", kind, name, err)
			}
			if _, err := store.DownloadURL(t.Context(), target, 0); !errors.Is(err, backupstore.ErrInvalidName) {
				t.Errorf("URL for %s of %q: got %v, want ErrInvalidName", kind, name, err)
			}
		}
	}
	equal(t, "objects", before, p.objects(t))
}

func testCanceled(t *testing.T, p *place) {
	goldens["1.18"].put(t, p)
	store := p.open(t)
	ctx, cancel := contextWithCause(t)
	cancel(errPipe)
	_, err := store.Backups(ctx)
	wantError(t, err, errPipe)
	b, err := store.Backup("nightly")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.OpenArchive(ctx, backupstore.ArchiveOptions{Dir: t.TempDir()}); err == nil || errors.Is(err, backupstore.ErrDamaged) {
		t.Errorf("got %v, want an error that does not blame the archive", err)
	}
}

func testDeleteNothing(t *testing.T, p *place) {
	if err := restore(t, p).Delete(t.Context()); err != nil {
		t.Error(err)
	}
}
