package nodeagent

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Each progress write of a restore comes to the agents of all nodes. They ask for its pod only when its own agent may be gone.
func TestRestoreElsewhereIsLeftAlone(t *testing.T) {
	t.Parallel()
	restore := func(change func(*velerov1.PodVolumeRestore, *progress.Snapshot)) *velerov1.PodVolumeRestore {
		pvr := &velerov1.PodVolumeRestore{ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}}
		pvr.Status.Phase, pvr.Status.Node = velerov1.PodVolumeRestorePhaseInProgress, "elsewhere"
		s := progress.Snapshot{State: progress.StateTransferring, Heartbeat: time.Now().Add(-time.Minute)}
		if change != nil {
			change(pvr, &s)
		}
		pvr.Annotations = map[string]string{ProgressAnnotation: encode(s)}
		return pvr
	}
	tests := map[string]struct {
		change func(*velerov1.PodVolumeRestore, *progress.Snapshot)
		asks   bool
	}{
		"its agent writes": {},
		"its agent's clock is ahead": {change: func(_ *velerov1.PodVolumeRestore, s *progress.Snapshot) {
			s.Heartbeat = time.Now().Add(time.Hour)
		}},
		"its agent is silent": {asks: true, change: func(_ *velerov1.PodVolumeRestore, s *progress.Snapshot) {
			s.Heartbeat = time.Now().Add(-6 * time.Minute)
		}},
		"Velero's own agent has it": {asks: true, change: func(_ *velerov1.PodVolumeRestore, s *progress.Snapshot) {
			*s = progress.Snapshot{}
		}},
		"nobody has claimed it": {asks: true, change: func(pvr *velerov1.PodVolumeRestore, s *progress.Snapshot) {
			pvr.Status.Phase, pvr.Status.Node = velerov1.PodVolumeRestorePhaseNew, ""
			*s = progress.Snapshot{}
		}},
		"it is in its agent's queue": {change: func(pvr *velerov1.PodVolumeRestore, s *progress.Snapshot) {
			pvr.Status.Phase, pvr.Status.Node = velerov1.PodVolumeRestorePhaseNew, ""
			s.State = progress.StateQueued
		}},
		"its agent's queue is silent": {asks: true, change: func(pvr *velerov1.PodVolumeRestore, s *progress.Snapshot) {
			pvr.Status.Phase, pvr.Status.Node = velerov1.PodVolumeRestorePhaseNew, ""
			s.State, s.Heartbeat = progress.StateQueued, time.Now().Add(-6*time.Minute)
		}},
		"it was this node's": {asks: true, change: func(pvr *velerov1.PodVolumeRestore, _ *progress.Snapshot) {
			pvr.Status.Node = "here"
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				reader := &answers{errs: []error{errors.New("asked")}}
				a := &Agent{cfg: Config{NodeName: "here", AbandonedAfter: 5 * time.Minute}, api: reader}
				result, err := a.reconcileRestoreWithoutPod(t.Context(), ofRestore(restore(tc.change)))
				if asked := reader.reads > 0; asked != tc.asks || asked != (err != nil) {
					t.Errorf("asked for the pod: %v (%v), want %v", asked, err, tc.asks)
				}
				if !tc.asks && (result.RequeueAfter <= 0 || result.RequeueAfter > 10*time.Minute) {
					t.Errorf("looks again in %s", result.RequeueAfter)
				}
			})
		})
	}
}
