package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// A pod ends while its volume is read: kubelet removes an emptyDir's files, and the data paths take vanished files for no
// loss. A volume of a driver stays mounted as long as a worker reads it.
func TestPodEndsDuringBackup(t *testing.T) {
	t.Parallel()
	deletePod := func(c *cluster, pod *corev1.Pod) {
		if err := c.Client.Delete(context.WithoutCancel(c.t.Context()), pod.DeepCopy()); err != nil {
			c.t.Error(err)
		}
	}
	deleteByForce := func(c *cluster, pod *corev1.Pod) {
		c.Patch(pod.DeepCopy(), `{"metadata":{"finalizers":null}}`)
		if err := c.Client.Delete(context.WithoutCancel(c.t.Context()), pod.DeepCopy(), client.GracePeriodSeconds(0)); err != nil {
			c.t.Error(err)
		}
	}
	replace := func(c *cluster, pod *corev1.Pod) {
		deleteByForce(c, pod)
		c.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Spec: *pod.Spec.DeepCopy()})
	}
	tests := map[string]struct {
		claim     bool
		unmounted bool // the claim's driver puts files into the directory
		end       func(*cluster, *corev1.Pod)
		vanished  int64
		phase     string
		want      string // in the message
	}{
		"emptyDir, evicted":       {end: (*cluster).evict, phase: podvolume.PhaseFailed, want: "has ended (Failed Evicted)"},
		"emptyDir, being deleted": {end: deletePod, phase: podvolume.PhaseFailed, want: "is being deleted"},
		"emptyDir, gone":          {end: deleteByForce, phase: podvolume.PhaseFailed, want: "does not exist any more"},
		"claim, evicted":          {claim: true, end: (*cluster).evict, phase: podvolume.PhaseCompleted},
		"claim, gone":             {claim: true, end: deleteByForce, phase: podvolume.PhaseCompleted},
		"claim, gone with files":  {claim: true, end: deleteByForce, vanished: 1, phase: podvolume.PhaseFailed, want: "does not exist any more"},
		"claim, evicted, a file":  {claim: true, end: (*cluster).evict, vanished: 1, phase: podvolume.PhaseCompleted},
		"unmounted, evicted":      {claim: true, unmounted: true, end: (*cluster).evict, phase: podvolume.PhaseFailed, want: "has ended (Failed Evicted)"},
		"unmounted, gone":         {claim: true, unmounted: true, end: deleteByForce, phase: podvolume.PhaseFailed, want: "does not exist any more"},
		"claim, replaced":         {claim: true, end: replace, phase: podvolume.PhaseCompleted},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			var pod *corev1.Pod
			var dir string
			if tc.claim {
				pod, dir = c.podWithClaim()
				if !tc.unmounted {
					bindMount(t, t.TempDir(), dir)
				}
			} else {
				pod = c.pod("source", "data")
				dir = c.dir(pod, "data")
			}
			c.Patch(pod.DeepCopy(), `{"metadata":{"finalizers":["plimsoll.io/test"]}}`) // the object outlives its deletion, as until kubelet has cleaned up
			write(t, filepath.Join(dir, "file"), "x")
			data := uploadertest.NewFake(t.TempDir())
			data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
				tc.end(c, pod)
				if !tc.claim {
					if err := os.RemoveAll(dir); err != nil {
						t.Error(err)
					}
				}
				return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 1, Vanished: tc.vanished}, nil
			}
			c.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = tc.unmounted })
			pvb := c.newBackup(pod, "data")
			c.Create(pvb)
			end := c.end(pvb)
			if end.Phase != tc.phase || !strings.Contains(message(end), tc.want) {
				t.Errorf("want %s because %q, ended as %s", tc.phase, tc.want, describe([]podvolume.PodVolume{end}))
			}
			if id := end.Object.(*velerov1.PodVolumeBackup).Status.SnapshotID; (id != "") != (tc.phase == podvolume.PhaseCompleted) {
				t.Errorf("%s with snapshot %q", end.Phase, id)
			}
		})
	}
}

// thenRemoved is a data path whose first backup loses its volume's directory once its snapshot is stored.
type thenRemoved struct {
	uploader.Uploader
	remove func(dir string)
	times  atomic.Int32
}

func (u *thenRemoved) Backup(ctx context.Context, req uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
	result, err := u.Uploader.Backup(ctx, req, p)
	if err == nil && u.times.Add(1) == 1 { // before that, there may be no repository
		u.remove(req.Volume.Name())
	}
	return result, err
}

// kubelet removes an emptyDir before the API server says that its pod has ended. What was stored then may lack anything.
func TestVolumeIsRemovedDuringBackup(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		again    bool // it is made again
		phase    string
		want     string // in the message
		attempts int
	}{
		"removed":               {phase: podvolume.PhaseFailed, want: "torn down while it was read", attempts: 1},
		"removed, two tries":    {phase: podvolume.PhaseFailed, want: "not mounted", attempts: 2},
		"made again":            {again: true, phase: podvolume.PhaseFailed, want: "is another directory than before", attempts: 1},
		"made again, two tries": {again: true, phase: podvolume.PhaseCompleted, attempts: 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			pod := c.pod("source", "data")
			c.setPhase(pod, corev1.PodRunning)
			write(t, filepath.Join(c.dir(pod, "data"), "file"), "x")
			remove := func(dir string) {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
				if tc.again {
					mkdir(t, dir)
					write(t, filepath.Join(dir, "other"), "of a new volume")
				}
			}
			c.startAgent(nil, func(cfg *Config) {
				cfg.Uploaders = map[string]uploader.Uploader{"kopia": &thenRemoved{Uploader: newKopia(t), remove: remove}}
				cfg.MaxAttempts = tc.attempts
			})
			pvb := c.newBackup(pod, "data")
			pvb.Spec.UploaderType = "kopia"
			c.Create(pvb)
			end := c.end(pvb)
			if end.Phase != tc.phase || annotated(t, end).Attempt != tc.attempts || !strings.Contains(message(end), tc.want) {
				t.Errorf("want %s in attempt %d because %q, ended as %s", tc.phase, tc.attempts, tc.want, describe([]podvolume.PodVolume{end}))
			}
			if id := end.Object.(*velerov1.PodVolumeBackup).Status.SnapshotID; (id != "") != (tc.phase == podvolume.PhaseCompleted) {
				t.Errorf("%s with snapshot %q", end.Phase, id)
			}
		})
	}
}
