package nodeagent

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// A node was started while a volume was restored, and the pod's init container does not come back.
func TestInitContainerDoesNotComeBack(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		tune func(*Config)
		back bool // it comes back in the end
	}{
		"for too long": {tune: func(cfg *Config) { cfg.PrepareTimeout = time.Second }},
		"for a while":  {back: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			pod := c.pod("target", "data")
			pvr := c.newRestore(pod, "data", "1234abcd")
			c.Create(pvr)
			c.Patch(pvr.DeepCopy(), fmt.Sprintf(`{"metadata":{"annotations":{"plimsoll.io/progress":"{\"state\":\"Transferring\",\"attempt\":2}"}},
				"status":{"phase":"InProgress","node":%q,"startTimestamp":"2026-01-01T00:00:00Z"}}`, c.node))
			c.setInitContainer(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}})
			data := uploadertest.NewFake(t.TempDir())
			c.startAgent(data, tc.tune)
			if !tc.back {
				if end := c.end(pvr); end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "did not start its init container") {
					t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
				}
				return
			}
			c.history.until(t, pvr, "waiting for the init container", func(s podvolume.PodVolume) bool {
				p := s.LastSnapshot()
				return p.State == progress.StateWaiting && strings.Contains(p.Message, "ImagePullBackOff no such image") && p.Attempt == 2
			})
			c.handOver(pod, pvr)
			c.setInitContainer(pod, running)
			if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted || annotated(t, end).Attempt != 3 {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
		})
	}
}

// A node was started while restores were in the queue, which may be hours after their creation. That the agent says what
// they wait for changes nothing of that.
func TestQueuedRestoreWaitsForItsPodAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{unready: map[podvolume.Key]unreadyRestore{}}
		pvr := &velerov1.PodVolumeRestore{ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}}
		for i, state := range []progress.State{progress.StateQueued, progress.StateWaiting, progress.StateWaiting} {
			pvr.Annotations = map[string]string{v1alpha1.AnnotationProgress: encode(progress.Snapshot{State: state})}
			if waited := a.unreadyTime(podvolume.FromRestore(pvr)); waited != time.Duration(i)*time.Minute {
				t.Errorf("in state %s it waits for %s", state, waited)
			}
			<-time.After(time.Minute)
		}
	})
}
