package nodeagent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// sharedClaim is a claim that two volumes have, of one pod or of two, in one directory of the node.
type sharedClaim struct {
	*cluster
	dir      string
	pods     []*corev1.Pod // of the volumes
	restores []*velerov1.PodVolumeRestore
}

func newSharedClaim(t *testing.T, onePod bool) *sharedClaim {
	t.Helper()
	s := &sharedClaim{cluster: newCluster(t, controlplane.LatestVelero)}
	s.newClaim()
	if onePod {
		pod, dir := s.podOfClaim("db", "data", "again")
		s.pods, s.dir = []*corev1.Pod{pod, pod}, dir
		s.restores = []*velerov1.PodVolumeRestore{s.newRestore(pod, "data", "1111abcd"), s.newRestore(pod, "again", "2222abcd")}
	} else {
		s.dir = t.TempDir()
		for _, name := range []string{"first", "second"} {
			pod, dir := s.podOfClaim(name, "data")
			bindMount(t, s.dir, dir)
			s.pods, s.restores = append(s.pods, pod), append(s.restores, s.newRestore(pod, "data", "1111abcd"))
		}
	}
	for _, pod := range s.pods {
		s.setInitContainer(pod, running)
	}
	return s
}

// settle lets the agent look at the markers of the pods, as it does each ProgressInterval, until it would believe that one is missing.
func (s *sharedClaim) settle(ctx context.Context, agent *Agent) {
	for range 3 {
		for _, pod := range s.pods {
			if _, err := agent.reconcilePod(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil {
				s.t.Error(err)
			}
		}
		<-time.After(agent.cfg.ProgressInterval)
	}
}

// Two restores into one directory share its done file. A pod must not begin while the second one writes, also where only one of them may run
// at a time, and where the agent looks after the markers meanwhile.
func TestRestoresIntoOneClaim(t *testing.T) {
	t.Parallel()
	for name, onePod := range map[string]bool{"two volumes of a pod": true, "two pods": false} {
		for slots, concurrency := range map[string]int{"one after the other": 1, "at the same time": 2} {
			t.Run(name+"/"+slots, func(t *testing.T) {
				t.Parallel()
				s := newSharedClaim(t, onePod)
				var agent *Agent
				started := make(chan struct{}) // closed when agent is set
				var writing, calls atomic.Int32
				data := uploadertest.NewFake(t.TempDir())
				data.OnRestore = func(ctx context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
					<-started
					if writing.Add(1) > 1 {
						t.Error("two restores write into one directory at the same time")
					}
					defer writing.Add(-1)
					if calls.Add(1) == 2 {
						s.awaitEnd() //nolint:contextcheck // it is the test's own
						s.settle(ctx, agent)
						if marked(t, s.dir, string(s.restore.UID)) {
							t.Error("the pod may begin while a restore writes into its volume")
						}
					}
					return uploader.RestoreResult{TotalBytes: 1}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("x"), 0o600)
				}
				for _, pvr := range s.restores {
					s.Create(pvr)
				}
				agent, _ = s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted, cfg.Concurrency = true, concurrency })
				close(started)
				for _, pvr := range s.restores {
					if end := s.end(pvr); end.Phase != podvolume.PhaseCompleted {
						t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
					}
				}
				testenv.Eventually(t, "the done file is there", func() bool { return marked(t, s.dir, string(s.restore.UID)) })
				for _, pod := range s.pods {
					s.setInitContainer(pod, exited)
				}
				holdsOnly(t, s.dir, "file")
			})
		}
	}
}

// awaitEnd waits until one of the restores has ended.
func (s *sharedClaim) awaitEnd() {
	testenv.Eventually(s.t, "one of the restores has ended", func() bool {
		for _, pvr := range s.restores {
			fresh := &velerov1.PodVolumeRestore{}
			if err := s.Client.Get(s.t.Context(), client.ObjectKeyFromObject(pvr), fresh); err == nil && podvolume.FromRestore(fresh).Terminal() {
				return true
			}
		}
		return false
	})
}

// What a failed restore has left in the directory of a complete one is not complete, whichever ended first.
func TestOneOfTheRestoresIntoAClaimFails(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]int32{"the first": 1, "the second": 2} {
		for pods, onePod := range map[string]bool{"two volumes of a pod": true, "two pods": false} {
			t.Run(name+"/"+pods, func(t *testing.T) {
				t.Parallel()
				s := newSharedClaim(t, onePod)
				var calls atomic.Int32
				data := uploadertest.NewFake(t.TempDir())
				data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
					if calls.Add(1) == failing {
						return uploader.RestoreResult{}, uploader.ErrNoSpace
					}
					return uploader.RestoreResult{TotalBytes: 1}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("x"), 0o600)
				}
				for _, pvr := range s.restores {
					s.Create(pvr)
				}
				agent, _ := s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true })
				for _, pvr := range s.restores {
					s.end(pvr)
				}
				failed := donefile.Name(s.restore.UID, "failed")
				testenv.Eventually(t, "the failure is told", func() bool { return marked(t, s.dir, failed) })
				s.settle(t.Context(), agent)
				if !marked(t, s.dir, failed) || marked(t, s.dir, string(s.restore.UID)) {
					t.Errorf("the init container is told %v", entries(t, filepath.Join(s.dir, donefile.Dir)))
				}
			})
		}
	}
}

// The second restore into a claim has overwritten half of what the first one restored when its pod goes, and nobody waits for a second one any more. What
// the first pod's claim holds is not complete, also if no agent was there when the second restore ended.
func TestPodOfTheSecondRestoreIntoAClaimGoes(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("agent away: %v", away), func(t *testing.T) {
			t.Parallel()
			s := newSharedClaim(t, false)
			halfway := make(chan struct{})
			var calls atomic.Int32
			data := uploadertest.NewFake(t.TempDir())
			data.OnRestore = func(ctx context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
				call := calls.Add(1)
				err := os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte{byte(call)}, 0o600)
				if call > 1 {
					close(halfway)
					<-ctx.Done()
					err = context.Cause(ctx)
				}
				return uploader.RestoreResult{TotalBytes: 1}, err
			}
			agent, stop := s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true })
			s.Create(s.restores[0])
			s.end(s.restores[0])
			s.Create(s.restores[1])
			<-halfway
			if away {
				stop()
			}
			if err := s.Client.Delete(t.Context(), s.pods[1], client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
			if away { // the agent of another node has ended it
				s.Patch(s.restores[1].DeepCopy(), `{"metadata":{"finalizers":null},"status":{"phase":"Failed","completionTimestamp":"2026-01-01T00:00:00Z"}}`)
				agent, _ = s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true })
			}
			if end := s.end(s.restores[1]); end.Phase != podvolume.PhaseFailed {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			s.pods = s.pods[:1]
			done, failed := string(s.restore.UID), donefile.Name(s.restore.UID, "failed")
			testenv.Eventually(t, "the init container is told something", func() bool { return marked(t, s.dir, done) || marked(t, s.dir, failed) })
			s.settle(t.Context(), agent)
			said, err := os.ReadFile(filepath.Join(s.dir, donefile.Dir, failed))
			if err != nil || !strings.HasPrefix(string(said), "Overwritten: ") || marked(t, s.dir, done) {
				t.Errorf("the init container is told %q, %v", said, err)
			}
		})
	}
}

// A restore whose pod has gone half way leaves a claim incomplete until another one completes it.
func TestClaimIsCompletedAfterAHalf(t *testing.T) {
	t.Parallel()
	s := newSharedClaim(t, false)
	halfway := make(chan struct{})
	var calls atomic.Int32
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(ctx context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		if calls.Add(1) == 2 {
			close(halfway)
			<-ctx.Done()
			return uploader.RestoreResult{}, context.Cause(ctx)
		}
		return uploader.RestoreResult{TotalBytes: 1}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("x"), 0o600)
	}
	third, dir := s.podOfClaim("third", "data")
	bindMount(t, s.dir, dir)
	s.setInitContainer(third, running)
	s.pods, s.restores = append(s.pods, third), append(s.restores, s.newRestore(third, "data", "1111abcd"))
	s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true })
	s.Create(s.restores[0])
	s.end(s.restores[0])
	s.Create(s.restores[1])
	<-halfway
	s.Create(s.restores[2]) // is pending when the second one ends
	s.history.until(t, s.restores[2], "queued", func(pv podvolume.PodVolume) bool { return pv.LastSnapshot().State == progress.StateQueued })
	if err := s.Client.Delete(t.Context(), s.pods[1], client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.end(s.restores[1])
	if end := s.end(s.restores[2]); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	testenv.Eventually(t, "the done file is there", func() bool { return marked(t, s.dir, string(s.restore.UID)) })
	s.setInitContainer(s.pods[0], exited)
	s.setInitContainer(third, exited)
	holdsOnly(t, s.dir, "file")
}

// A restore that fails fails both, whichever comes first, until it is made again and completes the claim.
func TestClaimIsCompletedAfterAFailure(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]int32{"the first": 1, "the second": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSharedClaim(t, false)
			var calls atomic.Int32
			data := uploadertest.NewFake(t.TempDir())
			data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
				if calls.Add(1) == failing {
					return uploader.RestoreResult{}, uploader.ErrNoSpace
				}
				return uploader.RestoreResult{TotalBytes: 1}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("x"), 0o600)
			}
			s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true })
			for _, pvr := range s.restores {
				s.Create(pvr)
				s.end(pvr)
			}
			failed := donefile.Name(s.restore.UID, "failed")
			testenv.Eventually(t, "the failure is told", func() bool { return marked(t, s.dir, failed) })
			again := s.newRestore(s.pods[failing-1], "data", "1111abcd")
			s.Create(again)
			if end := s.end(again); end.Phase != podvolume.PhaseCompleted {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			testenv.Eventually(t, "the done file is there, and no failed file", func() bool {
				return marked(t, s.dir, string(s.restore.UID)) && !marked(t, s.dir, failed)
			})
		})
	}
}

// A second restore into the claim that was deleted before it has written fails nobody: what the first has restored is whole.
func TestSecondRestoreIntoAClaimIsDeletedBefore(t *testing.T) {
	t.Parallel()
	s := newSharedClaim(t, false)
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{TotalBytes: 1}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("x"), 0o600)
	}
	s.setInitContainer(s.pods[1], initializing) // so the second restore waits
	s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true })
	s.Create(s.restores[1])
	s.Create(s.restores[0])
	s.end(s.restores[0])
	if marked(t, s.dir, string(s.restore.UID)) {
		t.Error("the pod begins while another restore is to write into its claim")
	}
	if err := s.Client.Delete(t.Context(), s.restores[1]); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the done file is there", func() bool { return marked(t, s.dir, string(s.restore.UID)) })
}

// The pod of a complete restore begins while another restore of the same Restore writes into the directory: its markers are not removed before that has
// ended, and with them what that has reserved.
func TestMarkersAreNotRemovedBesideARestore(t *testing.T) {
	t.Parallel()
	s := newSharedClaim(t, false)
	var agent *Agent
	started := make(chan struct{}) // closed when agent is set
	var calls atomic.Int32
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(ctx context.Context, _ uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		if calls.Add(1) == 2 {
			<-started
			s.setInitContainer(s.pods[0], exited) //nolint:contextcheck // it is the test's own
			s.settle(ctx, agent)
			if names := entries(t, s.dir); !slices.Equal(names, []string{donefile.Reserved(s.restore.UID)}) {
				t.Errorf("beside the restore the volume holds %v", names)
			}
		}
		return uploader.RestoreResult{TotalBytes: 1}, nil
	}
	agent, _ = s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true })
	close(started)
	for _, pvr := range s.restores {
		s.Create(pvr)
		if end := s.end(pvr); end.Phase != podvolume.PhaseCompleted {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
	s.setInitContainer(s.pods[1], exited)
	holdsOnly(t, s.dir)
}

// A restore into the same claim was created, and the watches have not brought it yet: the pod does not begin without its data.
func TestRestoreIntoTheClaimIsSeenLate(t *testing.T) {
	t.Parallel()
	for name, onePod := range map[string]bool{"two volumes of a pod": true, "two pods": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, late := newSharedClaim(t, onePod), newLateWatch("podvolumerestores")
			data := uploadertest.NewFake(t.TempDir())
			var calls atomic.Int32
			data.OnRestore = func(context.Context, uploader.RestoreRequest, progress.Sink) (uploader.RestoreResult, error) {
				if calls.Add(1) == 1 {
					close(late.hold)
					s.Create(s.restores[1]) //nolint:contextcheck // it is the test's own
				}
				return uploader.RestoreResult{TotalBytes: 1}, nil
			}
			var agent *Agent
			s.withLateWatch(late, func() { agent, _ = s.startAgent(data, func(cfg *Config) { cfg.AllowUnmounted = true }) })
			s.Create(s.restores[0])
			s.end(s.restores[0])
			s.settle(t.Context(), agent)
			if marked(t, s.dir, string(s.restore.UID)) {
				t.Error("the pod may begin before the second restore has")
			}
			close(late.release)
			s.end(s.restores[1])
			testenv.Eventually(t, "the done file is there", func() bool { return marked(t, s.dir, string(s.restore.UID)) })
		})
	}
}

// lateWatch holds what the watches of a resource bring to an agent from hold on, until release.
type lateWatch struct {
	resource      string
	hold, release chan struct{}
}

func newLateWatch(resource string) lateWatch {
	return lateWatch{resource, make(chan struct{}), make(chan struct{})}
}

type lateBody struct {
	io.ReadCloser
	lateWatch
}

func (b lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	select {
	case <-b.hold:
		<-b.release
	default:
	}
	return n, err
}

// withLateWatch lets the agents that are started in do learn late what becomes of a resource.
func (c *cluster) withLateWatch(w lateWatch, do func()) {
	direct := c.Config
	c.Config = rest.CopyConfig(direct)
	c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(req)
			if err == nil && req.URL.Query().Get("watch") != "" && strings.HasSuffix(req.URL.Path, "/"+w.resource) {
				answer.Body = lateBody{answer.Body, w}
			}
			return answer, err
		})
	})
	do()
	c.Config = direct
}

// The init container ends while the volume is written: it was told so by something else, and the pod has seen half of the data. The restore is
// not Completed, also if the watch of pods has not brought that yet.
func TestPodBeginsWhileItIsRestored(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	late := newLateWatch("pods")
	pod := c.pod("target", "data")
	c.setInitContainer(pod, running)
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		close(late.hold)
		c.setInitContainer(pod, exited) //nolint:contextcheck // it is the test's own
		return uploader.RestoreResult{TotalBytes: 1}, os.WriteFile(filepath.Join(req.Volume.Name(), "file"), []byte("x"), 0o600)
	}
	c.withLateWatch(late, func() { c.startAgent(data, nil) })
	t.Cleanup(func() { close(late.release) })
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	end := c.end(pvr)
	if end.Phase != podvolume.PhaseFailed || annotated(t, end).Reason != v1alpha1.ReasonPodGone || !strings.Contains(message(end), "has ended already") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if marked(t, c.dir(pod, "data"), string(c.restore.UID)) {
		t.Error("the volume has a done file")
	}
}
