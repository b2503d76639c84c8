package pluginrecords

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
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

// site is a namespace with a Velero server, which the test plays, and a location that is a directory.
type site struct {
	t        *testing.T
	rest     *rest.Config
	scheme   *runtime.Scheme
	client   client.Client
	ns       string
	location *velerov1.BackupStorageLocation
	dir      string // of the bucket
	fences   int
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, rest: apiServer(t), scheme: runtime.NewScheme(), dir: t.TempDir()}
	if err := errors.Join(clientgoscheme.AddToScheme(s.scheme), velerov1.AddToScheme(s.scheme), v1alpha1.AddToScheme(s.scheme)); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.client, err = client.New(s.rest, client.Options{Scheme: s.scheme}); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "velero-"}}
	s.create(namespace)
	s.ns = namespace.Name
	s.location = &velerov1.BackupStorageLocation{ObjectMeta: s.meta("default")}
	s.location.Spec.Provider, s.location.Spec.Config = "velero.io/fs", map[string]string{"fspath": s.dir}
	s.location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "bucket"}
	s.create(s.location)
	return s
}

func (s *site) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.ns, Name: name}
}

func (s *site) create(o client.Object) {
	s.t.Helper()
	if err := s.client.Create(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) patch(o client.Object, patch string) {
	s.t.Helper()
	if err := s.client.Patch(s.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		s.t.Fatal(err)
	}
}

// start runs a Keeper, which counts in metrics unless they are nil, until the test or the returned function ends it.
func (s *site) start(metrics *Metrics) (stop func()) {
	s.t.Helper()
	mgr, err := ctrl.NewManager(s.rest, ctrl.Options{
		Scheme: s.scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{s.ns: {}}},
		Controller: config.Controller{SkipNameValidation: new(true)}, // one process, many keepers
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	err = SetUp(ctx, mgr, Config{
		Namespace: s.ns, Interval: 10 * time.Millisecond, Timeout: 2 * patience, // a store that hangs does so for the whole test
		Metrics: metrics, Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	})
	if err != nil {
		cancel()
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := mgr.Start(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(stop)
	return stop
}

// backup makes a Backup that Velero works on.
func (s *site) backup(name string) *velerov1.Backup {
	s.t.Helper()
	return s.backupIn("default", name)
}

func (s *site) backupIn(location, name string) *velerov1.Backup {
	s.t.Helper()
	b := &velerov1.Backup{
		ObjectMeta: s.meta(name), Spec: velerov1.BackupSpec{StorageLocation: location},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress},
	}
	s.create(b)
	return b
}

// store does what Velero does when a backup ends: the files first, then the phase.
func (s *site) store(b *velerov1.Backup) {
	s.t.Helper()
	text, err := json.Marshal(&velerov1.Backup{
		TypeMeta: metav1.TypeMeta{APIVersion: "velero.io/v1", Kind: "Backup"}, ObjectMeta: metav1.ObjectMeta{Name: b.Name},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.put(b.Name+"/velero-backup.json", text)
	s.patch(b, `{"status": {"phase": "Completed"}}`)
}

// put makes a file of a backup.
func (s *site) put(name string, content []byte) {
	s.t.Helper()
	path := filepath.Join(s.dir, "backups", name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// record makes the record of a volume, half way through.
func (s *site) record(b *velerov1.Backup, volume string, change func(*v1alpha1.VolumePluginBackup)) *v1alpha1.VolumePluginBackup {
	s.t.Helper()
	r := &v1alpha1.VolumePluginBackup{
		ObjectMeta: s.meta(b.Name + "-" + volume),
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: volume, Backup: b.Name, Plugin: "example.io/disks"},
	}
	r.Labels = map[string]string{v1alpha1.LabelBackup: v1alpha1.LabelValue(b.Name)}
	r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: b.Name, UID: b.UID}}
	if change != nil {
		change(r)
	}
	s.create(r)
	s.say(r, `{"phase": "InProgress", "snapshotID": "snap/`+volume+`", "progress": {"bytesDone": 5, "totalBytes": 10}}`)
	return r
}

// say patches the status of a record.
func (s *site) say(r *v1alpha1.VolumePluginBackup, status string) {
	s.t.Helper()
	if err := s.client.Status().Patch(s.t.Context(), r, client.RawPatch(types.MergePatchType, []byte(`{"status": `+status+`}`))); err != nil {
		s.t.Fatal(err)
	}
}

const complete = `{"phase": "Completed", "progress": {"bytesDone": 10}}`

func (s *site) path(backup string) string {
	return filepath.Join(s.dir, "backups", backup, backup+"-volumepluginbackups.json.gz")
}

// kept is what the file of a backup says: the phases of the records by volume, nil if there is none.
func (s *site) kept(backup string) map[string]v1alpha1.Phase {
	s.t.Helper()
	packed, err := os.ReadFile(s.path(backup))
	if err != nil {
		return nil
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		s.t.Fatal(err)
	}
	var records []v1alpha1.VolumePluginBackup
	if err := json.NewDecoder(unpacked).Decode(&records); err != nil {
		s.t.Fatal(err)
	}
	phases := map[string]v1alpha1.Phase{}
	for _, r := range records {
		told := r.Status.Phase != "" // the first write may come before the status is seen
		if r.Kind != "VolumePluginBackup" || r.ResourceVersion != "" || len(r.OwnerReferences) > 0 || told && r.Status.SnapshotID != "snap/"+r.Spec.Volume {
			s.t.Errorf("it is stored as %+v", r)
		}
		phases[r.Spec.Volume] = r.Status.Phase
	}
	return phases
}

// fence returns when backups that are made now have their records: all that was told before has been looked at then, since
// the watches are in order, and who has waited longest comes first.
func (s *site) fence() {
	s.t.Helper()
	for range 3 {
		s.fences++
		b := s.backup(fmt.Sprintf("fence-%d", s.fences))
		s.record(b, "v", nil)
		s.store(b)
		s.until("the fence", func() bool { return len(s.kept(b.Name)) == 1 })
	}
}

func (s *site) files(backup string) string {
	s.t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, "backups", backup))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func (s *site) until(what string, is func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !is(); {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%s: waited in vain", what)
		}
	}
}
