package podvolume

import (
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// What an agent that was told to stop, was killed while it waited, or died at work has left on an object.
func TestNextAttempt(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		phase, left      string
		attempt, resumes int
	}{
		"nothing":                       {phase: PhaseNew, attempt: 1},
		"Velero's agent died":           {phase: PhaseInProgress, attempt: 2},
		"died at work":                  {phase: PhaseInProgress, left: `{"state":"Transferring","attempt":2}`, attempt: 3},
		"died at work, stopped before":  {phase: PhaseInProgress, left: `{"state":"Transferring","attempt":2,"resumes":4}`, attempt: 3, resumes: 4},
		"died in the pause after":       {phase: PhaseInProgress, left: `{"state":"Waiting","attempt":2}`, attempt: 3},
		"stopped":                       {phase: PhaseInProgress, left: `{"state":"Transferring","attempt":2,"uncounted":true}`, attempt: 2, resumes: 1},
		"died while it waited":          {phase: PhaseInProgress, left: `{"state":"Waiting","attempt":2,"uncounted":true,"resumes":9}`, attempt: 2, resumes: 10},
		"stopped again and again":       {phase: PhaseInProgress, left: `{"state":"Waiting","attempt":2,"uncounted":true,"resumes":10}`, attempt: 3, resumes: 10},
		"stopped before it had claimed": {phase: PhaseNew, left: `{"state":"Queued","uncounted":true}`, attempt: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pvb := &velerov1.PodVolumeBackup{Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhase(tc.phase)}}
			if tc.left != "" {
				pvb.Annotations = map[string]string{v1alpha1.AnnotationProgress: tc.left}
			}
			attempt, p := FromBackup(pvb).nextAttempt()
			if attempt != tc.attempt || p.Resumes != tc.resumes {
				t.Errorf("attempt %d, resumed %d times; want %d, %d", attempt, p.Resumes, tc.attempt, tc.resumes)
			}
		})
	}
}
