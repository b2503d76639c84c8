package proof

import (
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// TestAnOlderBackupDoesNotHideDamage: a check has found damage, and then an older backup was read and is whole.
func TestAnOlderBackupDoesNotHideDamage(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2026, 11, 27, hour, 0, 0, 0, time.UTC) }
	newest := &velerov1.PodVolumeBackup{Status: velerov1.PodVolumeBackupStatus{SnapshotID: "aaaa", StartTimestamp: new(metav1.NewTime(at(3)))}}
	for name, test := range map[string]struct {
		backup time.Time
		want   bool
	}{"the older one": {at(2), true}, "the newest": {at(3), false}} {
		f := &Findings{
			proofs: map[Volume]Proof{VolumeOf(newest): {Verified: at(11), proven: []provenBackup{{at: at(11), backup: test.backup}}}},
			checks: map[v1alpha1.RepositoryKey]Checks{RepositoryOf(newest): {{At: at(10)}}},
		}
		if got := f.Of(newest).Damaged; got != test.want {
			t.Errorf("%s was read: damaged is %t", name, got)
		}
	}
}
