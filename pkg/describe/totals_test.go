package describe

import (
	"math"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func TestPercentOfTotals(t *testing.T) {
	t.Parallel()
	volume := func(state progress.State, done, total int64) Volume {
		return Volume{Progress: progress.Snapshot{State: state, BytesDone: done, TotalBytes: total}}
	}
	for name, test := range map[string]struct {
		volumes []Volume
		percent int
		known   bool
	}{
		"none":              {},
		"no total is known": {volumes: []Volume{volume(progress.StateScanning, 5, 0)}},
		"rounded down":      {[]Volume{volume(progress.StateTransferring, 1, 3), volume(progress.StateTransferring, 1, 3)}, 33, true},
		"one is not known":  {volumes: []Volume{volume(progress.StateTransferring, 10, 100), volume(progress.StateScanning, 5000, 0)}},
		"one is queued":     {[]Volume{volume(progress.StateTransferring, 95, 100), volume(progress.StateQueued, 0, 0)}, 95, true},
		"one was empty":     {[]Volume{volume(progress.StateTransferring, 10, 100), volume(progress.StateCompleted, 0, 0)}, 10, true},
		"hostile":           {[]Volume{volume(progress.StateTransferring, math.MaxInt64, math.MaxInt64), volume(progress.StateTransferring, math.MaxInt64, math.MaxInt64)}, 99, true},
		"negative":          {[]Volume{volume(progress.StateTransferring, -5, 100), volume(progress.StateTransferring, 50, 100)}, 25, true},
		"all completed":     {[]Volume{volume(progress.StateCompleted, 0, 0), volume(progress.StateCompleted, 3, 3)}, 100, true},
		"one failed":        {[]Volume{volume(progress.StateFailed, 3, 3), volume(progress.StateCompleted, 3, 3)}, 99, true},
	} {
		totals := Sum(test.volumes)
		if percent, known := totals.Percent(); percent != test.percent || known != test.known {
			t.Errorf("%s: %d, %t, want %d, %t", name, percent, known, test.percent, test.known)
		}
	}
}

// TestPhaseBeatsAnnotation: an agent of ours was replaced by Velero's own, which ends what ours had begun.
func TestPhaseBeatsAnnotation(t *testing.T) {
	t.Parallel()
	for phase, want := range map[velerov1.PodVolumeBackupPhase]progress.State{
		velerov1.PodVolumeBackupPhaseFailed: progress.StateFailed, velerov1.PodVolumeBackupPhaseCanceled: progress.StateCanceled,
		velerov1.PodVolumeBackupPhaseCompleted: progress.StateCompleted, velerov1.PodVolumeBackupPhaseInProgress: progress.StateTransferring,
	} {
		pvb := &velerov1.PodVolumeBackup{Status: velerov1.PodVolumeBackupStatus{Phase: phase}}
		pvb.Annotations = map[string]string{v1alpha1.AnnotationProgress: `{"state":"Transferring","bytesDone":5,"totalBytes":10,"bytesPerSecond":3,"etaSeconds":2}`}
		v := OfPodVolumeBackup(pvb)
		moves := v.Progress.BytesPerSecond > 0 || v.Progress.ETASeconds != nil
		if v.Progress.State != want || v.Ended() != want.Terminal() || moves == want.Terminal() || v.Progress.BytesDone != 5 {
			t.Errorf("%s: %+v", phase, v.Progress)
		}
	}
}
