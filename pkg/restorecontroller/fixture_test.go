package restorecontroller

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// patience is how long a test waits for what must come. Nothing waits for it to pass.
const patience = 3 * time.Minute

// plane is the control plane of this package's tests.
var plane = controlplane.Shared{CRDs: controlplane.AllCRDs}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(plane.Main(m))
}

func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	cfg := plane.Get(t).Config()
	cfg.QPS, cfg.Burst = -1, -1
	return cfg
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, velerov1.AddToScheme, velerov2alpha1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// cluster is a namespace with a backup storage location, and what the storage of that keeps.
type cluster struct {
	t        *testing.T
	rest     *rest.Config
	scheme   *runtime.Scheme
	client   client.WithWatch
	ns       string
	location *velerov1.BackupStorageLocation
	dir      string // what the storage keeps, below the location's prefix
	// failed is called when a controller ends with an error; without it the test fails.
	failed func(error)
	// intercept changes calls of controllers that are started after it was set.
	intercept interceptor.Funcs
}

// newCluster has its location in a directory.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := newNamespace(t)
	root := t.TempDir()
	c.dir = filepath.Join(root, "prefix")
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.location.Spec = velerov1.BackupStorageLocationSpec{Provider: "velero.io/fs", Config: map[string]string{"fspath": root}}
	c.location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "bucket", Prefix: "prefix"}
	c.create(c.location)
	return c
}

// newClusterOnS3 has its location on an S3 server.
func newClusterOnS3(t *testing.T) *cluster {
	t.Helper()
	server := s3.Start(t)
	c := newNamespace(t)
	bucket := server.Bucket(t)
	c.dir = filepath.Join(server.Dir(bucket), "prefix")
	c.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "cloud"},
		StringData: map[string]string{"cloud": "[default]\naws_access_key_id = " + server.AccessKey + "\naws_secret_access_key = " + server.SecretKey + "\n"},
	})
	c.location.Spec = velerov1.BackupStorageLocationSpec{
		Provider: "aws", Config: map[string]string{"s3Url": "https://" + server.Endpoint, "region": "us-east-1", "s3ForcePathStyle": "true"},
		Credential: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "cloud"}, Key: "cloud"},
	}
	c.location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: bucket, Prefix: "prefix", CACert: server.CACert}
	c.create(c.location)
	return c
}

func newNamespace(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, rest: apiServer(t), scheme: newScheme(t)}
	var err error
	if c.client, err = client.NewWithWatch(c.rest, client.Options{Scheme: c.scheme}); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "plimsoll-"}}
	c.create(namespace)
	c.ns = namespace.Name
	c.location = &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "default"}}
	return c
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	if err := c.client.Create(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) patch(o client.Object, patch string) {
	c.t.Helper()
	if err := c.client.Patch(c.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) delete(o client.Object) {
	c.t.Helper()
	if err := c.client.Delete(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

// start runs a controller until the test or the returned function ends it.
func (c *cluster) start(tune func(*Config)) (controller *Controller, stop func()) {
	c.t.Helper()
	mgr, err := ctrl.NewManager(c.rest, ctrl.Options{
		Scheme: c.scheme, Cache: CacheOptions(c.ns), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // one process, many controllers
		NewClient:  c.newClient,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	cfg := Config{
		Namespace: c.ns, Version: "v1.2.3", Engine: &script{}, TempDir: c.t.TempDir(),
		ValidationFrequency: 100 * time.Millisecond, SyncPeriod: 100 * time.Millisecond, ProgressInterval: 10 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(c.t.Output(), nil)),
	}
	if tune != nil {
		tune(&cfg)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	if controller, err = SetUp(mgr, cfg); err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := mgr.Start(ctx)
		switch {
		case c.failed != nil:
			c.failed(err)
		case err != nil:
			c.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	c.t.Cleanup(stop)
	return controller, stop
}

// newClient makes a controller's client, whose calls the test may change.
func (c *cluster) newClient(config *rest.Config, options client.Options) (client.Client, error) {
	direct, err := client.NewWithWatch(config, options)
	if err != nil {
		return nil, err
	}
	return interceptor.NewClient(direct, c.intercept), nil
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

// has says whether the storage has a file or directory.
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

// eventually waits until an object, or its absence, is as it should be, and returns it.
func eventually[T client.Object](c *cluster, object T, what string, is func(o T, err error) bool) T {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := c.client.Get(c.t.Context(), client.ObjectKeyFromObject(object), object)
		if is(object, err) {
			return object
		}
		if time.Now().After(deadline) {
			text, _ := json.MarshalIndent(object, "", " ")
			c.t.Fatalf("%s: waited in vain; last: %v %s", what, err, text)
		}
		pause(c.t)
	}
}

// until waits for a condition that no object shows.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); pause(t) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: waited in vain", what)
		}
	}
}

// pause lets others work between two looks.
func pause(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(20 * time.Millisecond):
	case <-t.Context().Done():
	}
}

func (c *cluster) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.ns, Name: name}
}

func (c *cluster) newBackup(name string) *velerov1.Backup {
	return &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: name}}
}

func (c *cluster) newVolumeBackup(name string) *velerov1.PodVolumeBackup {
	return &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: name}}
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

func (s *script) Collect(ctx context.Context, input restore.Input) (*restore.Plan, error) {
	if s.collect == nil {
		return &restore.Plan{TotalItems: input.Archive.Len()}, nil
	}
	return s.collect(ctx, input)
}

func (s *script) Run(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
	if s.run == nil {
		p := restore.Progress{Total: plan.TotalItems, Restored: plan.TotalItems, Counts: restore.Counts{Created: plan.TotalItems}}
		report(p)
		return &restore.Outcome{Progress: p, Resources: map[string][]string{"v1/ConfigMap": {"shop/settings(created)"}}}, nil
	}
	return s.run(ctx, plan, report)
}

func (s *script) Finalize(ctx context.Context, plan *restore.Plan, outcome *restore.Outcome) error {
	if s.finalize == nil {
		return nil
	}
	return s.finalize(ctx, plan, outcome)
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
