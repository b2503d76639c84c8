package pluginrecords

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

type phases = map[string]v1alpha1.Phase

func (s *site) untilKept(backup string, want phases) {
	s.t.Helper()
	s.Eventually("file of "+backup, func() bool { return cmp.Equal(s.kept(backup), want) })
}

func modified(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

// TestRecordsAreKeptUntilTheyHaveEnded follows a backup from its begin until the last volume has ended, later than the backup.
func TestRecordsAreKeptUntilTheyHaveEnded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := s.start(nil)
	b := s.backup("nightly")
	pv1, pv2 := s.record(b, "pv-1", nil), s.record(b, "pv-2", nil)
	s.fence()
	if files := s.files("nightly"); files != "" {
		t.Fatalf("before Velero has stored anything there is %s", files)
	}
	s.store(b)
	s.untilKept("nightly", phases{"pv-1": v1alpha1.PhaseInProgress, "pv-2": v1alpha1.PhaseInProgress})
	s.say(pv1, complete)
	s.untilKept("nightly", phases{"pv-1": v1alpha1.PhaseCompleted, "pv-2": v1alpha1.PhaseInProgress})

	before := modified(t, s.path("nightly"))
	s.say(pv2, `{"heartbeatTimestamp": "2026-01-01T00:00:00Z", "bytesPerSecond": 7, "etaSeconds": 3}`)
	s.fence()
	if after := modified(t, s.path("nightly")); !after.Equal(before) {
		t.Error("it was written again for a heartbeat")
	}
	stop()
	s.say(pv2, complete) // while nobody looks
	stop = s.start(nil)
	s.untilKept("nightly", phases{"pv-1": v1alpha1.PhaseCompleted, "pv-2": v1alpha1.PhaseCompleted})

	before = modified(t, s.path("nightly"))
	stop()
	s.start(nil)
	s.fence()
	if after := modified(t, s.path("nightly")); !after.Equal(before) {
		t.Error("another process has written it again without a change")
	}
}

// TestRecordsOfOthersAreNotKept has records that name the backup, and are not of it.
func TestRecordsOfOthersAreNotKept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.record(&velerov1.Backup{ObjectMeta: s.Meta("nightly")}, "of-a-backup-that-was", func(r *v1alpha1.VolumePluginBackup) { r.OwnerReferences = nil })
	s.Eventually("the next second", func() bool { // creation times have seconds
		var r v1alpha1.VolumePluginBackup
		err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "nightly-of-a-backup-that-was"}, &r)
		return err == nil && time.Since(r.CreationTimestamp.Time) > 2*time.Second
	})
	b := s.backup("nightly")
	s.record(b, "synced", func(r *v1alpha1.VolumePluginBackup) { r.Labels[v1alpha1.LabelSynced] = "default" })
	s.record(b, "owned-by-another", func(r *v1alpha1.VolumePluginBackup) { r.OwnerReferences[0].UID = "another" })
	s.record(b, "without-owner", func(r *v1alpha1.VolumePluginBackup) { r.OwnerReferences = nil })
	s.store(b)
	s.start(nil)
	s.untilKept("nightly", phases{"without-owner": v1alpha1.PhaseInProgress})
}

func TestRecordStaysWhenItsObjectIsDeleted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(nil)
	b := s.backup("nightly")
	pv1, pv2 := s.record(b, "pv-1", nil), s.record(b, "pv-2", nil)
	s.store(b)
	both := phases{"pv-1": v1alpha1.PhaseInProgress, "pv-2": v1alpha1.PhaseInProgress}
	s.untilKept("nightly", both)
	s.Delete(pv1)
	s.say(pv2, complete)
	both["pv-2"] = v1alpha1.PhaseCompleted
	s.untilKept("nightly", both)

	// Velero deletes the backup: the phase, the files, the object.
	s.Patch(b, `{"status": {"phase": "Deleting"}}`)
	if err := os.RemoveAll(filepath.Join(s.dir, "backups", "nightly")); err != nil {
		t.Fatal(err)
	}
	s.record(b, "pv-3", nil)
	s.fence()
	s.Delete(b)
	s.fence()
	if files := s.files("nightly"); files != "" {
		t.Errorf("in a deleted backup there is %s", files)
	}
}

// TestNothingIsLeftInABackupThatIsDeletedMeanwhile deletes a backup between the last look and the write.
func TestNothingIsLeftInABackupThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.record(b, "pv-1", nil)
	s.store(b)
	dir := filepath.Join(s.dir, "backups", "nightly")
	mgr, err := ctrl.NewManager(s.Config, ctrl.Options{Scheme: s.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	deletes := interceptor.NewClient(s.Client, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := api.Get(ctx, key, o, opts...)
			if _, last := o.(*velerov1.Backup); last {
				err = errors.Join(err, os.RemoveAll(dir))
			}
			return err
		},
	})
	k := newKeeper(mgr, Config{Namespace: s.Namespace})
	k.api = deletes
	record := asStored(s.record(b, "pv-2", nil))
	if err := k.keep(t.Context(), b, []v1alpha1.VolumePluginBackup{record}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory holds %s: %v", s.files("nightly"), err)
	}
}

// TestOutagesAreSurvived lets some tries fail, as often as the case says.
func TestOutagesAreSurvived(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ begin, end func(s *site) error }{
		"store": {
			func(s *site) error { return os.Rename(s.dir, s.dir+".away") },
			func(s *site) error { return os.Rename(s.dir+".away", s.dir) },
		},
		"location": {
			func(s *site) error { return s.Client.Delete(s.t.Context(), s.location) },
			func(s *site) error {
				s.location.ResourceVersion = ""
				return s.Client.Create(s.t.Context(), s.location)
			},
		},
		"backup is not in the store yet": {
			func(s *site) error { return os.Remove(filepath.Join(s.dir, "backups/nightly/velero-backup.json")) },
			func(s *site) error { s.store(&velerov1.Backup{ObjectMeta: s.Meta("nightly")}); return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			b := s.backup("nightly")
			s.record(b, "pv-1", nil)
			s.store(b)
			if err := tc.begin(s); err != nil {
				t.Fatal(err)
			}
			metrics := NewMetrics()
			s.start(metrics)
			s.Eventually("three tries", func() bool { return testutil.ToFloat64(metrics.errors.WithLabelValues("default")) >= 3 })
			if n := testutil.CollectAndCount(metrics.failing); n != 1 {
				t.Errorf("%d locations fail", n)
			}
			if err := tc.end(s); err != nil {
				t.Fatal(err)
			}
			s.untilKept("nightly", phases{"pv-1": v1alpha1.PhaseInProgress})
			s.Eventually("one write", func() bool { return testutil.ToFloat64(metrics.written) == 1 })
			s.Eventually("no location fails", func() bool { return testutil.CollectAndCount(metrics.failing) == 0 })
		})
	}
}

func TestReadOnlyLocationIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	readOnly := s.location.DeepCopy()
	readOnly.ObjectMeta, readOnly.Spec.AccessMode = s.Meta("read-only"), velerov1.BackupStorageLocationAccessModeReadOnly
	s.Create(readOnly)
	b := s.backupIn("read-only", "nightly")
	s.record(b, "pv-1", nil)
	s.store(b)
	s.start(nil)
	s.fence()
	if files := s.files("nightly"); files != "velero-backup.json" {
		t.Errorf("it holds %s", files)
	}
	s.Patch(readOnly, `{"spec":{"accessMode":"ReadWrite"}}`)
	s.untilKept("nightly", phases{"pv-1": v1alpha1.PhaseInProgress})
}

func TestDamagedFileIsWrittenAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.record(b, "pv-1", nil)
	s.put("nightly/nightly-volumepluginbackups.json.gz", []byte("no gzip"))
	s.store(b)
	s.start(nil)
	s.Eventually("readable", func() bool {
		content, err := os.ReadFile(s.path("nightly"))
		return err == nil && string(content) != "no gzip"
	})
	s.untilKept("nightly", phases{"pv-1": v1alpha1.PhaseInProgress})
}

func TestSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	bare := controlplane.ForTest(t, controlplane.Options{Dir: t.TempDir()})
	mgr, err := ctrl.NewManager(bare.Config(), ctrl.Options{Scheme: runtime.NewScheme(), Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := SetUp(t.Context(), mgr, Config{Namespace: "velero"}); !errors.Is(err, ErrNoCRDs) {
		t.Errorf("got %v, want ErrNoCRDs", err)
	}
}
