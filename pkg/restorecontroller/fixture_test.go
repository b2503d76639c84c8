package restorecontroller

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// cluster is a namespace with a backup storage location, and what the storage of that keeps.
type cluster struct {
	*testenv.Env

	t        *testing.T
	location *velerov1.BackupStorageLocation
	dir      string // what the storage keeps, below the location's prefix
}

// newCluster has its location in a directory.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c, root := newNamespace(t), t.TempDir()
	c.dir = filepath.Join(root, "prefix")
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.location = c.DirectoryLocation("default", root)
	c.location.Spec.ObjectStorage.Prefix = "prefix"
	c.Create(c.location)
	return c
}

// newClusterOnS3 has its location on an S3 server.
func newClusterOnS3(t *testing.T) *cluster {
	t.Helper()
	c, server := newNamespace(t), s3.Start(t)
	bucket := server.Bucket(t)
	c.dir = filepath.Join(server.Dir(bucket), "prefix")
	c.location = c.BucketLocation("default", server, bucket)
	c.location.Spec.ObjectStorage.Prefix = "prefix"
	c.Create(c.location)
	return c
}

// newNamespace has no location.
func newNamespace(t *testing.T) *cluster {
	t.Helper()
	return &cluster{Env: testenv.New(t, testenv.Options{}), t: t}
}

// start runs a controller until the test or the returned function ends it.
func (c *cluster) start(tune func(*Config)) (controller *Controller, stop func()) {
	c.t.Helper()
	cfg := Config{
		Namespace: c.Namespace, Version: "v1.2.3", Engine: &script{}, TempDir: c.t.TempDir(),
		ValidationFrequency: 100 * time.Millisecond, SyncPeriod: 100 * time.Millisecond, ProgressInterval: 10 * time.Millisecond,
		Logger: c.Logger(),
	}
	if tune != nil {
		tune(&cfg)
	}
	stop = c.StartManager(ctrl.Options{Cache: CacheOptions(c.Namespace)}, func(_ context.Context, mgr ctrl.Manager) (err error) {
		controller, err = SetUp(mgr, cfg)
		return err
	})
	return controller, stop
}

// put places a file into the storage, behind everybody's back.
func (c *cluster) put(key string, content []byte) {
	c.t.Helper()
	file := filepath.Join(c.dir, key)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// has reports whether the storage has a file or directory.
func (c *cluster) has(key string) bool {
	_, err := os.Stat(filepath.Join(c.dir, key))
	return err == nil
}

// stored is the unpacked content of a file in the storage.
func (c *cluster) stored(key string) string {
	c.t.Helper()
	packed, err := os.ReadFile(filepath.Join(c.dir, key))
	if err != nil {
		c.t.Fatal(err)
	}
	return unpack(c.t, packed)
}

// backUp puts a backup into the storage as another cluster's Velero did it, with items and a record of one volume.
func (c *cluster) backUp(name string, change func(*velerov1.Backup)) {
	c.t.Helper()
	ended := metav1.NewTime(time.Now().Add(-24 * time.Hour).Truncate(time.Second))
	backup := &velerov1.Backup{
		TypeMeta: metav1.TypeMeta{APIVersion: "velero.io/v1", Kind: "Backup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: name, UID: "11111111-2222-3333-4444-555555555555", ResourceVersion: "77",
			Finalizers:      []string{"example.io/elsewhere"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Schedule", Name: "nightly", UID: "66666666-2222-3333-4444-555555555555"}},
			Labels:          map[string]string{velerov1.ScheduleNameLabel: "nightly", velerov1.StorageLocationLabel: "elsewhere"},
		},
		Spec: velerov1.BackupSpec{StorageLocation: "elsewhere"},
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseCompleted, FormatVersion: "1.1.0", StartTimestamp: &ended, CompletionTimestamp: &ended,
			Progress: &velerov1.BackupProgress{TotalItems: 7, ItemsBackedUp: 7},
		},
	}
	if change != nil {
		change(backup)
	}
	c.put("backups/"+name+"/"+name+".tar.gz", archive(map[string]string{
		"metadata/version":                                   "1.1.0\n",
		"resources/namespaces/cluster/shop.json":             `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`,
		"resources/configmaps/namespaces/shop/settings.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","namespace":"shop"},"data":{"a":"b"}}`,
	}))
	c.putJSON("backups/"+name+"/"+name+"-podvolumebackups.json.gz", []any{c.volumeRecord(name, name+"-data", velerov1.PodVolumeBackupPhaseCompleted)})
	c.put("backups/"+name+"/velero-backup.json", []byte(encode(backup)))
}

func (c *cluster) volumeRecord(backup, name string, phase velerov1.PodVolumeBackupPhase) *velerov1.PodVolumeBackup {
	return &velerov1.PodVolumeBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: "velero.io/v1", Kind: "PodVolumeBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: name, UID: "99999999-2222-3333-4444-555555555555", ResourceVersion: "78",
			Finalizers: []string{"example.io/agent"}, Labels: map[string]string{velerov1.BackupNameLabel: backup, velerov1.BackupUIDLabel: "old"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: backup, UID: "old"}},
		},
		Spec: velerov1.PodVolumeBackupSpec{
			Node: "n1", Pod: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web", UID: "p"}, Volume: "data",
			BackupStorageLocation: "elsewhere", UploaderType: "restic",
		},
		Status: velerov1.PodVolumeBackupStatus{Phase: phase, SnapshotID: "abc123"},
	}
}

func (c *cluster) putJSON(key string, value any) {
	c.t.Helper()
	c.put(key, pack(encode(value)))
}

func pack(content string) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return packed.Bytes()
}

func unpack(t *testing.T, packed []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func archive(files map[string]string) []byte {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for name, content := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))})
		_, _ = w.Write([]byte(content))
	}
	_ = w.Close()
	return pack(plain.String())
}

func (c *cluster) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: name}
}

func (c *cluster) newBackup(name string) *velerov1.Backup {
	return &velerov1.Backup{ObjectMeta: c.Meta(name)}
}

func (c *cluster) newVolumeBackup(name string) *velerov1.PodVolumeBackup {
	return &velerov1.PodVolumeBackup{ObjectMeta: c.Meta(name)}
}

// isSynced says that a Backup and all of its records are there.
func isSynced(b *velerov1.Backup, err error) bool {
	return err == nil && b.Annotations[v1alpha1.AnnotationSynced] != ""
}

// serveDownloads serves what the controller offers, where its URLs say.
func serveDownloads(t *testing.T) (base string, serve func(*Controller)) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	t.Cleanup(server.Close)
	return "http://" + server.Listener.Addr().String(), func(c *Controller) {
		server.Config.Handler = c
		server.Start()
	}
}

// script is an engine that does what a test says.
type script struct {
	collect  func(context.Context, restore.Input) (*restore.Plan, error)
	run      func(context.Context, *restore.Plan, func(restore.Progress)) (*restore.Outcome, error)
	finalize func(context.Context, *restore.Plan, *restore.Outcome) error
}

func (s *script) Collect(ctx context.Context, input restore.Input) (_ restore.Run, err error) {
	plan := &restore.Plan{TotalItems: input.Archive.Len()}
	if s.collect != nil {
		plan, err = s.collect(ctx, input)
	}
	return &scriptedRun{s, plan}, err
}

type scriptedRun struct {
	*script
	plan *restore.Plan
}

func (s *scriptedRun) Plan() *restore.Plan { return s.plan }

func (s *scriptedRun) RestoreItems(ctx context.Context, report func(restore.Progress)) (*restore.Outcome, error) {
	if s.run == nil {
		p := restore.Progress{Total: s.plan.TotalItems, Restored: s.plan.TotalItems, Counts: restore.Counts{Created: s.plan.TotalItems}}
		report(p)
		return &restore.Outcome{Progress: p, Resources: map[string][]string{"v1/ConfigMap": {"shop/settings(created)"}}}, nil
	}
	return s.run(ctx, s.plan, report)
}

func (s *scriptedRun) Finalize(ctx context.Context, outcome *restore.Outcome) error {
	if s.finalize == nil {
		return nil
	}
	return s.finalize(ctx, s.plan, outcome)
}

// logCounter counts what a controller says.
type logCounter struct {
	want  string
	count atomic.Int32
}

func (l *logCounter) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements io.Writer.
func (l *logCounter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(l.want)) {
		l.count.Add(1)
	}
	return len(b), nil
}
