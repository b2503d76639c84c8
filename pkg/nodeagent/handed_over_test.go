package nodeagent

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// exited is an init container that has ended with 0.
var exited = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}

// An agent has handed a volume over and was killed before it could say so on the object. Whatever comes then, the volume is
// complete, and its pod may have begun to use it.
func TestHandedOverBeforeTheEndWasWritten(t *testing.T) {
	t.Parallel()
	const inProgress = `{"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z","progress":{"bytesDone":99,"totalBytes":100}}}`
	const lastAttempt = `{"metadata":{"annotations":{"plimsoll.io/progress":"{\"state\":\"Finishing\",\"attempt\":5}"}},
		"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z","progress":{"bytesDone":99,"totalBytes":100}}}`
	const canceled = `{"spec":{"cancel":true},"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z"}}`
	tests := map[string]struct {
		patch    string
		done     bool // it was handed over
		state    corev1.ContainerState
		podPhase corev1.PodPhase
		deleted  bool // the pod, of which kubelet still has the directory
		phase    string
	}{
		"and it waits still":                {patch: inProgress, done: true, state: running, phase: podvolume.PhaseCompleted},
		"in the last attempt":               {patch: lastAttempt, done: true, state: running, phase: podvolume.PhaseCompleted},
		"not, and no attempt is left":       {patch: lastAttempt, state: running, phase: podvolume.PhaseFailed},
		"and then canceled":                 {patch: canceled, done: true, state: running, phase: podvolume.PhaseCanceled},
		"and the pod runs":                  {patch: inProgress, done: true, state: exited, podPhase: corev1.PodRunning, phase: podvolume.PhaseCompleted},
		"and the pod has ended well":        {patch: inProgress, done: true, state: exited, podPhase: corev1.PodSucceeded, phase: podvolume.PhaseCompleted},
		"and the pod has failed":            {patch: inProgress, done: true, state: exited, podPhase: corev1.PodFailed, phase: podvolume.PhaseCompleted},
		"and the pod is gone":               {patch: inProgress, done: true, state: exited, deleted: true, phase: podvolume.PhaseCompleted},
		"not, whatever the pod runs":        {patch: inProgress, state: exited, podPhase: corev1.PodRunning, phase: podvolume.PhaseFailed},
		"not, however well the pod's ended": {patch: inProgress, state: exited, podPhase: corev1.PodSucceeded, phase: podvolume.PhaseFailed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			pod := c.pod("target", "data")
			pvr := c.newRestore(pod, "data", "1234abcd")
			c.Create(pvr)
			if tc.done {
				c.handOver(pod, pvr)
			}
			c.Patch(pvr.DeepCopy(), tc.patch)
			c.setInitContainer(pod, tc.state)
			if tc.podPhase != "" {
				c.setPhase(pod, tc.podPhase)
			}
			if tc.deleted {
				if err := c.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
					t.Fatal(err)
				}
			}
			data := failing(t, errors.New("would rewrite files under a pod that uses them"))
			c.startAgent(data, nil)
			end := c.end(pvr)
			if end.Phase != tc.phase || tc.phase == podvolume.PhaseCompleted && end.TotalBytes != 100 {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			if tc.phase == podvolume.PhaseCompleted && (end.Message != "snapshot x was restored without 37 files" || annotated(t, end).Errors != 37) {
				t.Errorf("of what an earlier agent knew it says %q, with %d errors", end.Message, annotated(t, end).Errors)
			}
			if calls := data.Calls(); len(calls) != 0 {
				t.Errorf("the data path was called: %v", calls)
			}
		})
	}
}

// setPhase lets kubelet report the phase of the pod.
func (c *cluster) setPhase(pod *corev1.Pod, phase corev1.PodPhase) {
	c.t.Helper()
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = phase
	if err := c.Client.Status().Patch(c.t.Context(), pod, before); err != nil {
		c.t.Fatal(err)
	}
}
