package filerequest

import (
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

// TestProblemOfFailedBackup: a backup that has failed for some of its files names a snapshot, and nobody is told that it has none.
func TestProblemOfFailedBackup(t *testing.T) {
	t.Parallel()
	pvb := &velerov1.PodVolumeBackup{Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseFailed}}
	for snapshot, want := range map[string]string{
		"":         "its backup is Failed, so there is no snapshot",
		"1a2b3c4d": "its backup is Failed. It names snapshot 1a2b3c4d, which is not a complete backup and is not read",
	} {
		pvb.Status.SnapshotID = snapshot
		if v := volumeOf(pvb); v.Problem != want || v.SnapshotID != "" {
			t.Errorf("snapshot %q: %+v", snapshot, v)
		}
	}
}
