package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// startBackup says since when, and with which timeout, the server waits for the volumes.
func (c *cluster) startBackup(since time.Time, timeout string) {
	c.t.Helper()
	c.Patch(c.backup.DeepCopy(), fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"status":{"startTimestamp":%q}}`,
		velerov1.PodVolumeOperationTimeoutAnnotation, timeout, since.UTC().Format(time.RFC3339)))
}

// The server would forget the volumes that are done, too.
func TestDeadline(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startBackup(time.Now(), "3s")
	hold := newHolding()
	agent, _ := c.startAgent(hold.fake(t), func(cfg *Config) { cfg.BackupTimeout = 4 * time.Hour })
	pod := c.pod("source", "running", "queued")
	first, second := c.newBackup(pod, "running"), c.newBackup(pod, "queued")
	c.Create(first)
	c.Create(second)
	for _, pvb := range []*velerov1.PodVolumeBackup{first, second} { // on a busy machine it comes before the first one runs
		end := c.end(pvb)
		if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "Backup b1 (3s after its start)") || !strings.Contains(end.Message, "--fs-backup-timeout") {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
	agent.running.Wait()
	for _, o := range agent.Operations() {
		t.Errorf("still there: %+v", o)
	}
}

func TestNobodyWaitsForABackupThatHasEnded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startBackup(time.Now().Add(-time.Hour), "1s")
	c.Patch(c.backup.DeepCopy(), `{"status":{"phase":"Failed"}}`) // its server was restarted
	c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.BackupTimeout = time.Second })
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// Whoever waits for a lock leaves the slot to others.
func TestLockedRepositoryDoesNotHoldTheSlot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	var free atomic.Bool
	data.OnBackup = func(_ context.Context, req uploader.BackupRequest, _ progress.Sink) (uploader.BackupResult, error) {
		if req.Tags["volume"] == "locked" && !free.Load() {
			return uploader.BackupResult{}, &uploader.LockedError{Owner: "locked by PID 7 on node-b", Err: uploader.ErrRepositoryLocked}
		}
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, nil
	}
	c.startAgent(data, func(cfg *Config) { cfg.LockWait, cfg.LockDelay = time.Hour, 200*time.Millisecond })
	pod := c.pod("source", "locked", "other")
	locked, other := c.newBackup(pod, "locked"), c.newBackup(pod, "other")
	c.Create(locked)
	c.history.until(t, locked, "waiting for PID 7", func(s podvolume.PodVolume) bool {
		p := s.LastSnapshot()
		return p.State == progress.StateWaiting && strings.Contains(p.Message, "PID 7 on node-b") && p.Uncounted
	})
	c.Create(other)
	if end := c.end(other); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	free.Store(true)
	end := c.end(locked)
	if p := annotated(t, end); end.Phase != podvolume.PhaseCompleted || p.Attempt != 1 {
		t.Errorf("ended as %s: waiting is no attempt", describe([]podvolume.PodVolume{end}))
	}
}

// A retry asks the data path to look for what was stored.
func TestRetryResumes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	resumes := make(chan bool, 2)
	data.OnBackup = func(_ context.Context, req uploader.BackupRequest, _ progress.Sink) (uploader.BackupResult, error) {
		resumes <- req.Resume
		if !req.Resume {
			return uploader.BackupResult{}, errors.New("connection reset")
		}
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, nil
	}
	c.startAgent(data, nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	c.end(pvb)
	if first, second := <-resumes, <-resumes; first || !second {
		t.Errorf("first attempt resumes: %v, second: %v", first, second)
	}
}

// A copy from another cluster can have the finalizer of an agent that is not here.
func TestFinalizersOfEndedObjectsAreTakenOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	here, there := c.newBackup(c.pod("source", "data"), "data"), c.newBackup(c.pod("other", "data"), "data")
	there.Spec.Node = "node-of-another-cluster"
	for _, pvb := range []*velerov1.PodVolumeBackup{here, there} {
		pvb.Finalizers = []string{v1alpha1.FinalizerPodVolume, veleroFinalizer}
		c.Create(pvb)
		c.Patch(pvb.DeepCopy(), `{"status":{"phase":"Completed"}}`)
		if err := c.Client.Delete(t.Context(), pvb.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = 100 * time.Millisecond })
	for _, pvb := range []*velerov1.PodVolumeBackup{here, there} {
		c.history.untilDeleted(t, pvb)
	}
}

// The agent of a node that exists may be away for a while: its object is left alone.
func TestRunningBackupOfAnotherNodeIsKept(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other-" + c.Namespace}}
	c.Create(node)
	theirs, gone := c.newBackup(c.pod("source", "data"), "data"), c.newBackup(c.pod("source-2", "data"), "data")
	theirs.Spec.Node, gone.Spec.Node = node.Name, "node-that-was"
	for _, pvb := range []*velerov1.PodVolumeBackup{theirs, gone} {
		pvb.Finalizers = []string{v1alpha1.FinalizerPodVolume}
		c.Create(pvb)
		c.Patch(pvb.DeepCopy(), `{"status":{"phase":"InProgress"}}`)
		if err := c.Client.Delete(t.Context(), pvb.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.AbandonedAfter = 50 * time.Millisecond })
	c.history.untilDeleted(t, gone)
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || len(theirs.Finalizers) != 1 {
		t.Errorf("the other node's object: %v, finalizers %v", err, theirs.Finalizers)
	}
	c.Patch(theirs, `{"metadata":{"finalizers":null}}`)
}

func TestRestoreSaysWhyItsPodDoesNotWait(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) { cfg.ProgressInterval = 2 * time.Second })
	pvr := c.restoreOfAPodWithoutImage()
	c.history.until(t, pvr, "waiting for the image", func(s podvolume.PodVolume) bool {
		p := s.LastSnapshot()
		return p.State == progress.StateWaiting && strings.Contains(p.Message, "ImagePullBackOff")
	})
}

func TestRestoreEndsWhenItsPodDoesNotWait(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) {
		cfg.PrepareTimeout, cfg.ProgressInterval = 4*time.Second, 2*time.Second
	})
	end := c.end(c.restoreOfAPodWithoutImage())
	if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "within 4s: init container restore-wait: ImagePullBackOff no such image") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
}

// restoreOfAPodWithoutImage makes a restore of which nothing changes any more: only time brings the agent back.
func (c *cluster) restoreOfAPodWithoutImage() *velerov1.PodVolumeRestore {
	c.t.Helper()
	pod := c.pod("target", "data")
	c.setInitContainer(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}})
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	return pvr
}

func TestRestoreOfAPodWithoutNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cancel         bool
		phase, message string
		timeout        time.Duration
	}{
		"for too long": {phase: podvolume.PhaseFailed, message: "0/3 nodes are available", timeout: time.Millisecond},
		"canceled":     {cancel: true, phase: podvolume.PhaseCanceled, message: "was canceled", timeout: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			pod := c.podOn("", "target")
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
			if err := c.Client.Status().Update(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			pvr := c.newRestore(pod, "data", "1234abcd")
			pvr.Spec.Cancel = tc.cancel
			c.Create(pvr)
			c.startAgent(uploadertest.NewFake(t.TempDir()), func(cfg *Config) {
				cfg.PrepareTimeout, cfg.AbandonedAfter = tc.timeout, 2*time.Second
			})
			if end := c.end(pvr); end.Phase != tc.phase || !strings.Contains(end.Message, tc.message) {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
		})
	}
}

// Two agents on one node would move each volume twice.
func TestSecondAgentWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	first, stop := c.startAgent(hold.fake(t), nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	<-hold.started
	data := uploadertest.NewFake(t.TempDir())
	second, _ := c.startAgent(data, nil)
	if err := first.Ready(nil); err != nil {
		t.Errorf("the first agent is not ready: %v", err)
	}
	if err := second.Ready(nil); err == nil {
		t.Error("the second agent is ready while the first one serves the node")
	}
	stop()
	end := c.end(pvb)
	if end.Phase != podvolume.PhaseCompleted || len(data.Calls()) == 0 {
		t.Errorf("the second agent has not taken over: %s", describe([]podvolume.PodVolume{end}))
	}
}

// A Velero server with its agents may be beside a namespace of ours.
func TestAgentsOfTwoNamespacesServeANode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *os.File { return openDir(t, dir) }
	lock := func(file *os.File, namespace string, want bool) {
		t.Helper()
		if alone, err := lockNamespace(file, namespace); err != nil || alone != want {
			t.Errorf("alone in %s: %v, error %v", namespace, alone, err)
		}
	}
	first := open()
	lock(first, "velero", true)
	lock(open(), "plimsoll", true)
	second := open()
	lock(second, "velero", false)
	lock(second, "velero", false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	lock(second, "velero", true)
}

// isEnd reports whether a patch is a terminal write.
func isEnd(p client.Patch, o client.Object) bool {
	b, err := p.Data(o)
	return err == nil && strings.Contains(string(b), "completionTimestamp")
}

// The API server has taken the terminal write, and its answer is lost.
func TestAnswerToTheTerminalWriteIsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	var lost atomic.Int32
	c.Intercept = interceptor.Funcs{Patch: func(ctx context.Context, direct client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		err := direct.Patch(ctx, o, p, opts...)
		if err == nil && isEnd(p, o) {
			lost.Add(1)
			return apierrors.NewInternalError(errors.New("the answer is lost"))
		}
		return err
	}}
	c.startAgent(uploadertest.NewFake(t.TempDir()), nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	c.event(pvb, v1alpha1.EventCompleted)
	if n := lost.Load(); n != 1 {
		t.Errorf("%d terminal writes, want 1", n)
	}
}

// A CRD may refuse something that nobody has thought of.
func TestRefusedResultIsWrittenInBrief(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.Intercept = interceptor.Funcs{Patch: func(ctx context.Context, direct client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		if b, err := p.Data(o); err == nil && isEnd(p, o) && strings.Contains(string(b), "incrementalBytes") {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "PodVolumeBackup"}, o.GetName(), nil)
		}
		return direct.Patch(ctx, o, p, opts...)
	}}
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, nil
	}
	c.startAgent(data, nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	end := c.history.until(t, pvb, "terminal", podvolume.PodVolume.Terminal)
	if last := end[len(end)-1]; last.Phase != podvolume.PhaseCompleted || last.Object.(*velerov1.PodVolumeBackup).Status.SnapshotID != "1234abcd" || len(last.Object.GetFinalizers()) > 0 {
		t.Errorf("ended as %s", describe(end))
	}
}

// TestRefusedEndIsNoSuccess: where the API server takes no terminal write at all, neither an Event nor a metric says that the backup is done.
func TestRefusedEndIsNoSuccess(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.Intercept = interceptor.Funcs{Patch: func(ctx context.Context, direct client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		if isEnd(p, o) {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "PodVolumeBackup"}, o.GetName(), nil)
		}
		return direct.Patch(ctx, o, p, opts...)
	}}
	data := uploadertest.NewFake(t.TempDir())
	data.OnBackup = func(context.Context, uploader.BackupRequest, progress.Sink) (uploader.BackupResult, error) {
		return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 100}, nil
	}
	counts := metrics.NewOperations("node")
	registry := prometheus.NewRegistry()
	registry.MustRegister(counts)
	c.startAgent(data, func(cfg *Config) { cfg.Metrics = counts })
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	var ended []string
	testenv.Eventually(t, "the operation ends", func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		ended = nil
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "plimsoll_operations_total" && m.GetCounter().GetValue() > 0 {
					ended = append(ended, fmt.Sprint(m.GetLabel()))
				}
			}
		}
		return len(ended) > 0
	})
	if len(ended) != 1 || !strings.Contains(ended[0], `"failed"`) || !strings.Contains(ended[0], `"APIServer"`) {
		t.Fatalf("counted as %q", ended)
	}
	if note := c.event(pvb, v1alpha1.EventFailed); !strings.Contains(note, "the API server rejects that it is Completed") {
		t.Errorf("Event %q", note)
	}
	c.Get(pvb)
	if pvb.Status.Phase != velerov1.PodVolumeBackupPhaseInProgress {
		t.Errorf("phase %s", pvb.Status.Phase)
	}
}

// Another one's finalizer that came while the volume was moved must not get lost.
func TestFinalizersOfOthersAreKept(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	c.startAgent(hold.fake(t), nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	<-hold.started
	c.Patch(pvb.DeepCopy(), fmt.Sprintf(`{"metadata":{"finalizers":["example.com/theirs",%q]}}`, v1alpha1.FinalizerPodVolume))
	close(hold.release)
	if end := c.end(pvb); fmt.Sprint(end.Object.GetFinalizers()) != "[example.com/theirs]" {
		t.Errorf("finalizers %v", end.Object.GetFinalizers())
	}
}

// A stopping agent says how far it has come.
func TestStoppingAgentLeavesItsProgress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	_, stop := c.startAgent(hold.fake(t), func(cfg *Config) { cfg.ProgressInterval = time.Hour })
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	<-hold.started
	stop()
	c.history.until(t, pvb, "half done", func(s podvolume.PodVolume) bool { return s.Phase == podvolume.PhaseInProgress && s.BytesDone == 50 })
}
