package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// holding is a data path whose backups stop at half until they are released.
type holding struct {
	started chan struct{} // one value for each backup that has begun
	release chan struct{} // closed to let all of them end
}

func newHolding() *holding {
	return &holding{started: make(chan struct{}, 100), release: make(chan struct{})}
}

func (h *holding) fake(t *testing.T) *uploadertest.Fake {
	t.Helper()
	fake := uploadertest.NewFake(t.TempDir())
	fake.OnBackup = func(ctx context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, h.hold(ctx, p)
	}
	fake.OnRestore = func(ctx context.Context, _ uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{TotalBytes: 100}, h.hold(ctx, p)
	}
	return fake
}

func (h *holding) hold(ctx context.Context, p progress.Sink) error {
	p.Report(progress.Reading{BytesDone: 50, TotalBytes: 100, TotalFinal: true})
	h.started <- struct{}{}
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("worker ended: %w", context.Cause(ctx))
	}
}

// failing returns a data path whose backups and restores fail.
func failing(t *testing.T, err error) *uploadertest.Fake {
	t.Helper()
	fake := uploadertest.NewFake(t.TempDir())
	fake.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
		return uploader.BackupResult{}, err
	}
	fake.OnRestore = func(context.Context, uploader.RestoreRequest, progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{}, err
	}
	return fake
}

func TestFailures(t *testing.T) {
	t.Parallel()
	works := func(t *testing.T) *uploadertest.Fake { t.Helper(); return uploadertest.NewFake(t.TempDir()) }
	tests := map[string]struct {
		data  func(t *testing.T) *uploadertest.Fake
		spoil func(c *cluster, pod *corev1.Pod, pvb *velerov1.PodVolumeBackup)
		tune  func(*Config)
		want  []string // in the message
		calls int      // of Backup
	}{
		"wrong password": {
			data: func(t *testing.T) *uploadertest.Fake {
				t.Helper()
				return failing(t, fmt.Errorf("restic: %w", uploader.ErrWrongPassword))
			},
			want:  []string{"wrong repository password", "velero-repo-credentials"},
			calls: 1,
		},
		"locked for too long": {
			data: func(t *testing.T) *uploadertest.Fake {
				t.Helper()
				return failing(t, fmt.Errorf("locked by PID 7 on node-b: %w", uploader.ErrRepositoryLocked))
			},
			want:  []string{"PID 7 on node-b", "restic unlock"},
			calls: 1,
		},
		"repository missing and not to be made": {
			data: works, tune: func(cfg *Config) { cfg.InitRepositories = false },
			want: []string{"repository does not exist", "--init-repositories"}, calls: 1,
		},
		"fails at each attempt": {
			data: func(t *testing.T) *uploadertest.Fake { t.Helper(); return failing(t, errors.New("connection reset")) },
			tune: func(cfg *Config) { cfg.MaxAttempts = 3 },
			want: []string{"connection reset"}, calls: 3,
		},
		"pod is gone": {
			data: works,
			spoil: func(c *cluster, _ *corev1.Pod, pvb *velerov1.PodVolumeBackup) {
				pvb.Spec.Pod.Name, pvb.Spec.Pod.UID = "no-such-pod", ""
			},
			want: []string{"does not exist any more"},
		},
		"pod was replaced": {
			data:  works,
			spoil: func(_ *cluster, _ *corev1.Pod, pvb *velerov1.PodVolumeBackup) { pvb.Spec.Pod.UID = "another" },
			want:  []string{"was replaced"},
		},
		"pod has no such volume": {
			data:  works,
			spoil: func(_ *cluster, _ *corev1.Pod, pvb *velerov1.PodVolumeBackup) { pvb.Spec.Volume = "nope" },
			want:  []string{`has no volume "nope"`},
		},
		"volume twice on the host": {
			data: works,
			spoil: func(c *cluster, pod *corev1.Pod, _ *velerov1.PodVolumeBackup) {
				mkdir(c.t, filepath.Join(c.hostPods, c.node, string(pod.UID), "volumes", "kubernetes.io~nfs", "data"))
			},
			want: []string{"more than one directory", "kubernetes.io~nfs"},
		},
		"unknown uploader type": {
			data:  works,
			spoil: func(_ *cluster, _ *corev1.Pod, pvb *velerov1.PodVolumeBackup) { pvb.Spec.UploaderType = "kopia" },
			want:  []string{`uploader type "kopia" is not served`},
		},
		"no such location": {
			data: works,
			spoil: func(_ *cluster, _ *corev1.Pod, pvb *velerov1.PodVolumeBackup) {
				pvb.Spec.BackupStorageLocation = "nope"
			},
			want: []string{"BackupStorageLocation", "nope", "does not exist"},
		},
		"no password": {
			data: works,
			spoil: func(c *cluster, _ *corev1.Pod, _ *velerov1.PodVolumeBackup) {
				err := c.Client.Delete(c.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "velero-repo-credentials"}})
				if err != nil {
					c.t.Fatal(err)
				}
			},
			want: []string{"velero-repo-credentials", "does not exist"},
		},
		"settings that are no numbers": {
			data: works,
			spoil: func(_ *cluster, _ *corev1.Pod, pvb *velerov1.PodVolumeBackup) {
				pvb.Spec.UploaderSettings = map[string]string{"ParallelFilesUpload": "many"}
			},
			want: []string{`ParallelFilesUpload="many"`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			data := tc.data(t)
			pod := c.pod("source", "data")
			pvb := c.newBackup(pod, "data")
			if tc.spoil != nil {
				tc.spoil(c, pod, pvb)
			}
			c.Create(pvb)
			c.startAgent(data, tc.tune)
			end := c.end(pvb)
			if end.Phase != podvolume.PhaseFailed {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			for _, want := range append(tc.want, `volume "`+pvb.Spec.Volume) {
				if !strings.Contains(message(end), want) {
					t.Errorf("message lacks %q: %s", want, message(end))
				}
			}
			if strings.Contains(message(end), resticrepo.Password) {
				t.Errorf("password in %s", message(end))
			}
			if id := end.Object.(*velerov1.PodVolumeBackup).Status.SnapshotID; id != "" {
				t.Errorf("failed with snapshot %s: a server would restore it", id)
			}
			if n := len(data.Calls()); tc.calls > 0 && n != tc.calls {
				t.Errorf("%d calls of the data path, want %d", n, tc.calls)
			}
			if note := c.event(pvb, v1alpha1.EventFailed); note != message(end) {
				t.Errorf("Event says %q, status.message %q", note, message(end))
			}
		})
	}
}

func TestPartialBackup(t *testing.T) {
	t.Parallel()
	for name, failPartial := range map[string]bool{"complete": false, "fail": true, "5%": false, "4%": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			data := uploadertest.NewFake(t.TempDir())
			data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
				return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 7, TotalFiles: 200, Errors: 9, FailedPaths: []string{"secret/key", "b", "c", "d", "e", "f"}}, nil
			}
			allowed, err := podvolume.ParsePartial(name)
			if err != nil {
				t.Fatal(err)
			}
			c.startAgent(data, func(cfg *Config) { cfg.Partial = allowed })
			pvb := c.newBackup(c.pod("source", "data"), "data")
			c.Create(pvb)
			end := c.end(pvb)
			status := end.Object.(*velerov1.PodVolumeBackup).Status
			if !strings.Contains(status.Message, "9 files") || !strings.Contains(status.Message, "secret/key, b, c, d, e and 4 more") {
				t.Errorf("message %q", status.Message)
			}
			if failPartial {
				if end.Phase != podvolume.PhaseFailed || status.SnapshotID != "" {
					t.Errorf("ended as %+v", status)
				}
				c.event(pvb, v1alpha1.EventFailed)
				return
			}
			if end.Phase != podvolume.PhaseCompleted || status.SnapshotID != "1234abcd" {
				t.Errorf("ended as %+v", status)
			}
			c.event(pvb, v1alpha1.EventPartial)
		})
	}
}

func TestAttemptsGoOnAfterAFailure(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	var tries atomic.Int32
	data.OnBackup = func(_ context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
		p.Report(progress.Reading{BytesDone: 60, TotalBytes: 100, TotalFinal: true})
		if tries.Add(1) == 1 {
			return uploader.BackupResult{}, errors.New("connection reset")
		}
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, nil
	}
	c.startAgent(data, nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	end := c.end(pvb)
	if p := annotated(t, end); end.Phase != podvolume.PhaseCompleted || p.Attempt != 2 {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if note := c.event(pvb, v1alpha1.EventRetrying); !strings.Contains(note, "connection reset") {
		t.Errorf("Event says %q", note)
	}
}

func TestMissingRepositoryIsMadeOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	shared := t.TempDir()
	var inside, made atomic.Int32
	agentOn := func(node string) {
		data := uploadertest.NewFake(shared)
		plain := uploadertest.NewFake(shared)
		data.OnInitialize = func(ctx context.Context, repo uploader.Repository) error {
			if inside.Add(1) > 1 {
				t.Error("two agents create the repository at the same time")
			}
			defer inside.Add(-1)
			made.Add(1)
			return plain.Initialize(ctx, repo)
		}
		c.startAgentOn(node, data, func(cfg *Config) { cfg.Concurrency = 2 })
	}
	other := c.node + "-b"
	var backups []*velerov1.PodVolumeBackup
	for i, node := range []string{c.node, other, c.node, other} {
		pod := c.podOn(node, fmt.Sprintf("pod-%d", i), "data")
		write(t, filepath.Join(c.dir(pod, "data"), "file"), "content")
		pvb := c.newBackup(pod, "data")
		pvb.Spec.Node = node
		c.Create(pvb)
		backups = append(backups, pvb)
	}
	agentOn(c.node)
	agentOn(other)
	for _, pvb := range backups {
		if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
	if made.Load() == 0 {
		t.Error("nobody has made the repository")
	}
}

// A new repository over the data of another one would be the end of that.
func TestIncompleteRepositoryIsFinal(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	data.OnInitialize = func(context.Context, uploader.Repository) error {
		return fmt.Errorf("%w: it has p0, but not kopia.repository", uploader.ErrRepositoryIncomplete)
	}
	c.startAgent(data, nil)
	pod := c.pod("source", "data")
	write(t, filepath.Join(c.dir(pod, "data"), "file"), "content")
	pvb := c.newBackup(pod, "data")
	c.Create(pvb)
	end := c.end(pvb)
	if end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "but not kopia.repository") || !strings.Contains(message(end), "lifecycle rules") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	if p := annotated(t, end); p.Attempt != 1 {
		t.Errorf("%d attempts", p.Attempt)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		velero      string
		backupPhase velerov1.BackupPhase
		want        string
	}{
		"while the server waits for it": {controlplane.LatestVelero, velerov1.BackupPhaseInProgress, podvolume.PhaseFailed},
		"when nobody waits":             {controlplane.LatestVelero, velerov1.BackupPhaseFailed, podvolume.PhaseCanceled},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, tc.velero)
			hold := newHolding()
			c.startAgent(hold.fake(t), nil)
			c.Patch(c.backup, fmt.Sprintf(`{"status":{"phase":%q}}`, tc.backupPhase))
			pvb := c.newBackup(c.pod("source", "data"), "data")
			c.Create(pvb)
			<-hold.started
			c.Patch(pvb.DeepCopy(), `{"spec":{"cancel":true}}`)
			end := c.end(pvb)
			if end.Phase != tc.want || !strings.Contains(message(end), "was canceled") || end.BytesDone == 100 {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
		})
	}
}

func TestCancelOfARestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	c.startAgent(hold.fake(t), nil)
	pod := c.pod("target", "data")
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	c.setInitContainer(pod, running)
	<-hold.started
	c.Patch(pvr.DeepCopy(), `{"spec":{"cancel":true}}`)
	if end := c.end(pvr); end.Phase != podvolume.PhaseCanceled {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

func TestAnotherAgentResumes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	first := newHolding()
	_, stop := c.startAgent(first.fake(t), nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	<-first.started
	c.history.until(t, pvb, "half done", func(s podvolume.PodVolume) bool { return s.BytesDone == 50 })
	stop()

	second := newHolding()
	data := second.fake(t)
	data.OnBackup = func(ctx context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
		p.Report(progress.Reading{BytesDone: 10, TotalBytes: 100, TotalFinal: true}) // from the beginning
		second.started <- struct{}{}
		select {
		case <-second.release:
		case <-ctx.Done():
		}
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, context.Cause(ctx)
	}
	c.startAgent(data, nil)
	<-second.started
	versions := c.history.until(t, pvb, "resumed", func(s podvolume.PodVolume) bool {
		p := s.LastSnapshot()
		return p.Resumes == 1 && !p.Uncounted && s.BytesDone > 0
	})
	if now := versions[len(versions)-1]; now.BytesDone != 50 || now.Phase != podvolume.PhaseInProgress {
		t.Errorf("early after the other agent's start: %s", describe(versions))
	}
	close(second.release)
	if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// A rolling upgrade or a drain says nothing about a volume: an agent that is told to stop leaves its attempt to the next one.
func TestPlannedStopsCostNoAttempt(t *testing.T) {
	t.Parallel()
	for _, kind := range []podvolume.Kind{podvolume.Backup, podvolume.Restore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			pod := c.pod("pod", "data")
			var object client.Object = c.newBackup(pod, "data")
			if kind == podvolume.Restore {
				object = c.newRestore(pod, "data", "1234abcd")
			}
			c.Create(object)
			if kind == podvolume.Restore {
				c.setInitContainer(pod, running)
			}
			once := func(cfg *Config) { cfg.MaxAttempts = 1 }
			for range 3 {
				hold := newHolding()
				_, stop := c.startAgent(hold.fake(t), once)
				<-hold.started
				stop()
			}
			hold := newHolding()
			close(hold.release)
			c.startAgent(hold.fake(t), once)
			end := c.end(object)
			if p := annotated(t, end); end.Phase != podvolume.PhaseCompleted || p.Attempt != 1 || p.Resumes != 3 || p.Uncounted {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			if kind == podvolume.Backup {
				c.checkCrashesCount(object)
			}
		})
	}
}

// checkCrashesCount holds that no version of an object that was worked on would spare a crash its attempt.
func (c *cluster) checkCrashesCount(o client.Object) {
	c.t.Helper()
	c.history.mu.Lock()
	defer c.history.mu.Unlock()
	var left bool
	for _, v := range c.history.versions[o.GetUID()] {
		p := v.LastSnapshot()
		// What an agent writes while it stops, and its successor before it has begun.
		stops := p.Uncounted && (p.State == progress.StateTransferring || p.State == progress.StateQueued)
		left = left || stops
		if p.Uncounted && !stops {
			c.t.Errorf("an agent that dies now leaves its attempt to the next one: %s", describe([]podvolume.PodVolume{v}))
		}
	}
	if !left {
		c.t.Error("no agent has left its attempt to the next one")
	}
}

func TestTooManyRestarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	c.Patch(pvb, `{"metadata":{"annotations":{"plimsoll.io/progress":"{\"state\":\"Waiting\",\"message\":\"out of luck\",\"attempt\":2}"}},"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z"}}`)
	c.startAgent(newHolding().fake(t), func(cfg *Config) { cfg.MaxAttempts = 2 })
	if end := c.end(pvb); end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "(last known: out of luck)") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

func TestIdleAttemptEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	c.startAgent(hold.fake(t), func(cfg *Config) { cfg.IdleTimeout, cfg.MaxAttempts = 800*time.Millisecond, 1 })
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	end := c.end(pvb)
	if end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "no byte moved and no other work was done for 800ms") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

func TestStalledAttemptIsTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	c.startAgent(hold.fake(t), func(cfg *Config) { cfg.StallAfter = 200 * time.Millisecond })
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	c.event(pvb, v1alpha1.EventStalled)
	close(hold.release)
	if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// The server that waits for it sees how it ended before it sees that it is gone.
func TestDeletedWhileRunning(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	agent, _ := c.startAgent(hold.fake(t), nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	<-hold.started
	if err := c.Client.Delete(t.Context(), pvb.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	versions := c.history.until(t, pvb, "terminal", podvolume.PodVolume.Terminal)
	if end := versions[len(versions)-1]; end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "was deleted") {
		t.Errorf("ended as %s", describe(versions))
	}
	c.history.untilDeleted(t, pvb)
	agent.running.Wait()
	if list := agent.Operations(); len(list) != 0 {
		t.Errorf("operations left: %+v", list)
	}
}

// A finalizer of Velero's own agent would keep the object for ever.
func TestVelerosFinalizerIsTakenOffWithTheTerminalWrite(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(uploadertest.NewFake(t.TempDir()), nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	pvb.Finalizers = []string{veleroFinalizer, "example.com/theirs"}
	c.Create(pvb)
	c.Patch(pvb.DeepCopy(), `{"status":{"phase":"Prepared"}}`)
	if end := c.end(pvb); len(end.Object.GetFinalizers()) != 1 || end.Object.GetFinalizers()[0] != "example.com/theirs" {
		t.Errorf("finalizers %v", end.Object.GetFinalizers())
	}
}

func TestBackupsAndRestoresTakeTurns(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	var mu sync.Mutex
	var order []podvolume.Kind
	note := func(k podvolume.Kind) { mu.Lock(); defer mu.Unlock(); order = append(order, k) }
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(ctx context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
		note(podvolume.Backup)
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, hold.hold(ctx, p)
	}
	data.OnRestore = func(ctx context.Context, _ uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
		note(podvolume.Restore)
		return uploader.RestoreResult{TotalBytes: 100}, hold.hold(ctx, p)
	}
	agent, _ := c.startAgent(data, nil)
	var objects []client.Object
	pod := c.pod("source", "v1", "v2", "v3")
	target := c.pod("target", "v1", "v2")
	c.setInitContainer(target, running)
	for i := range 3 {
		pvb := c.newBackup(pod, fmt.Sprintf("v%d", i+1))
		c.Create(pvb)
		objects = append(objects, pvb)
		if i == 0 {
			<-hold.started
		}
	}
	for i := range 2 {
		pvr := c.newRestore(target, fmt.Sprintf("v%d", i+1), "1234abcd")
		c.Create(pvr)
		objects = append(objects, pvr)
	}
	for _, o := range objects[1:] {
		c.history.until(t, o, "queued with a position", func(s podvolume.PodVolume) bool { return s.LastSnapshot().QueuePosition > 0 })
	}
	positions := map[int]bool{}
	for _, o := range agent.Operations() {
		if o.Progress.State == progress.StateQueued {
			positions[o.Progress.QueuePosition] = true
		}
	}
	if len(positions) != 4 || !positions[1] || !positions[4] {
		t.Errorf("queue positions %v, want 1 to 4", positions)
	}
	close(hold.release)
	for _, o := range objects {
		if end := c.end(o); end.Phase != podvolume.PhaseCompleted {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
	if fmt.Sprint(order) != "[backup restore backup restore backup]" {
		t.Errorf("order %v", order)
	}
}
