package pluginrecords

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// site is a namespace with a Velero server, which the test plays, and a location that is a directory.
type site struct {
	*testenv.Env

	t        *testing.T
	location *velerov1.BackupStorageLocation
	dir      string // of the bucket
	fences   int
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{Env: testenv.New(t, testenv.Options{}), t: t, dir: t.TempDir()}
	s.location = s.DirectoryLocation("default", s.dir)
	s.Create(s.location)
	return s
}

// start runs a Keeper, which counts in metrics unless they are nil, until the test or the returned function ends it.
func (s *site) start(metrics *Metrics) (stop func()) {
	s.t.Helper()
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{s.Namespace: {}}}}
	return s.StartManager(options, func(ctx context.Context, mgr ctrl.Manager) error {
		return SetUp(ctx, mgr, Config{
			Namespace: s.Namespace, Interval: 10 * time.Millisecond, Metrics: metrics, Logger: s.Logger(),
			Timeout: 2 * testenv.Patience, // a store that hangs does so for the whole test
		})
	})
}

// backup makes a Backup that Velero works on.
func (s *site) backup(name string) *velerov1.Backup {
	s.t.Helper()
	return s.backupIn("default", name)
}

func (s *site) backupIn(location, name string) *velerov1.Backup {
	s.t.Helper()
	b := &velerov1.Backup{
		ObjectMeta: s.Meta(name), Spec: velerov1.BackupSpec{StorageLocation: location},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress},
	}
	s.Create(b)
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
	s.Patch(b, `{"status": {"phase": "Completed"}}`)
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
		ObjectMeta: s.Meta(b.Name + "-" + volume),
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: volume, Backup: b.Name, Plugin: "example.io/disks"},
	}
	r.Labels = map[string]string{v1alpha1.LabelBackup: v1alpha1.LabelValue(b.Name)}
	r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: b.Name, UID: b.UID}}
	if change != nil {
		change(r)
	}
	s.Create(r)
	s.say(r, `{"phase": "InProgress", "snapshotID": "snap/`+volume+`", "progress": {"bytesDone": 5, "totalBytes": 10}}`)
	return r
}

// say patches the status of a record.
func (s *site) say(r *v1alpha1.VolumePluginBackup, status string) {
	s.t.Helper()
	if err := s.Client.Status().Patch(s.t.Context(), r, client.RawPatch(types.MergePatchType, []byte(`{"status": `+status+`}`))); err != nil {
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
		s.Eventually("the fence", func() bool { return len(s.kept(b.Name)) == 1 })
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
