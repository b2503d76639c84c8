package pluginrecords

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// foreign puts the records of a backup into the bucket, as `records` of another cluster has written them.
func (s *site) foreign(backup string, records ...v1alpha1.VolumePluginBackup) {
	s.t.Helper()
	var packed bytes.Buffer
	packer := gzip.NewWriter(&packed)
	if err := errors.Join(json.NewEncoder(packer).Encode(records), packer.Close()); err != nil {
		s.t.Fatal(err)
	}
	s.put(backup+"/"+backup+"-volumepluginbackups.json.gz", packed.Bytes())
}

// synced makes a Backup as the server's backup sync does, whose cluster ended it so long ago.
func (s *site) synced(name string, ago time.Duration) *velerov1.Backup {
	s.t.Helper()
	b := &velerov1.Backup{
		ObjectMeta: s.Meta(name), Spec: velerov1.BackupSpec{StorageLocation: "default"},
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseCompleted, CompletionTimestamp: &metav1.Time{Time: time.Now().Add(-ago)}, VolumeSnapshotsAttempted: 1,
		},
	}
	s.Create(b)
	return b
}

func foreignRecord(backup, volume string, phase v1alpha1.Phase, done int64) v1alpha1.VolumePluginBackup {
	r := v1alpha1.VolumePluginBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VolumePluginBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "elsewhere", Name: backup + "-" + volume, UID: "of-another-cluster", Labels: map[string]string{v1alpha1.LabelBackup: backup},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: backup, UID: "of-another-cluster"}},
		},
		Spec: v1alpha1.VolumePluginBackupSpec{Volume: volume, Backup: backup, Plugin: "example.io/disks"},
	}
	r.Status.Phase, r.Status.SnapshotID = phase, "snap/"+volume
	r.Status.Progress = v1alpha1.VolumeOperationProgress{BytesDone: done, TotalBytes: 10}
	return r
}

// imported returns the record of a backup's volume, an empty one while there is none.
func (s *site) imported(backup, volume string) v1alpha1.VolumePluginBackup {
	s.t.Helper()
	var r v1alpha1.VolumePluginBackup
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: backup + "-" + volume}, &r); client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
	return r
}

// TestRecordsComeWithBackupsOfOtherClusters has a backup whose records end only after its Backup was synced.
func TestRecordsComeWithBackupsOfOtherClusters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(nil)
	s.foreign("nightly", foreignRecord("nightly", "pv-1", v1alpha1.PhaseCompleted, 10), foreignRecord("nightly", "pv-2", v1alpha1.PhaseInProgress, 4))
	b := s.synced("nightly", time.Minute)
	s.Eventually("both records", func() bool {
		return s.imported("nightly", "pv-1").Status.Phase == v1alpha1.PhaseCompleted && s.imported("nightly", "pv-2").Status.Progress.BytesDone == 4
	})
	for _, volume := range []string{"pv-1", "pv-2"} {
		r := s.imported("nightly", volume)
		if len(r.OwnerReferences) != 1 || r.OwnerReferences[0].UID != b.UID || r.Labels[v1alpha1.LabelSynced] != "default" ||
			r.Status.SnapshotID != "snap/"+volume {
			t.Errorf("it is imported as %+v", r)
		}
	}
	s.foreign("nightly", foreignRecord("nightly", "pv-2", v1alpha1.PhaseCompleted, 10))
	s.Eventually("the end of the second", func() bool { return s.imported("nightly", "pv-2").Status.Phase == v1alpha1.PhaseCompleted })
}

// TestRecordsOfOldBackupsAreReadOnce has a backup that ended long ago: its file is not expected to change.
func TestRecordsOfOldBackupsAreReadOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(nil)
	s.foreign("old", foreignRecord("old", "pv-1", v1alpha1.PhaseCompleted, 10))
	s.synced("old", 30*24*time.Hour)
	s.Eventually("its record", func() bool { return s.imported("old", "pv-1").Status.Phase == v1alpha1.PhaseCompleted })
	s.foreign("old", foreignRecord("old", "pv-1", v1alpha1.PhaseCompleted, 10), foreignRecord("old", "pv-2", v1alpha1.PhaseCompleted, 10))
	s.fence()
	if r := s.imported("old", "pv-2"); r.Name != "" {
		t.Error("the file was read again")
	}
}

// TestImportSurvivesAnOutage lets the store be away when the Backup comes.
func TestImportSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	metrics := NewMetrics()
	s.start(metrics)
	s.put("nightly/nightly-volumepluginbackups.json.gz", []byte("no gzip"))
	s.synced("nightly", time.Minute)
	s.Eventually("a try that fails", func() bool { return errorsOf(t, metrics) > 0 })
	s.foreign("nightly", foreignRecord("nightly", "pv-1", v1alpha1.PhaseCompleted, 10))
	s.Eventually("its record", func() bool { return s.imported("nightly", "pv-1").Status.Phase == v1alpha1.PhaseCompleted })
}

func errorsOf(t *testing.T, metrics *Metrics) float64 {
	t.Helper()
	return testutil.ToFloat64(metrics.errors.WithLabelValues("default"))
}
