package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// explained calls explain, and returns what it says as values.
func (c *cluster) explained(args ...string) describe.Explanation {
	c.t.Helper()
	var e describe.Explanation
	out, errOut, code := c.run(append([]string{"explain", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &e); err != nil || code != 0 {
		c.t.Fatalf("exit code %d, %v: %s%s", code, err, out, errOut)
	}
	if len(e.Notes) > 0 {
		c.t.Errorf("notes: %q", e.Notes)
	}
	return e
}

// startServer makes the pod of a Velero server.
func (c *cluster) startServer() {
	c.t.Helper()
	server := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "velero", Labels: map[string]string{"deploy": "velero"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "velero", Image: "velero/velero:v1.16.2"}}},
	}
	c.Create(server)
	c.Change(server, func() { server.Status.Phase = corev1.PodRunning })
}

// TestExplainBackup follows a backup from where nobody serves it to where it is queued behind another one.
func TestExplainBackup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := c.newBackup("nightly")
	big := c.backUp(b, "big", bigSize)
	if e := c.explained("pvb", big.Name); !strings.Contains(e.Why, "no node agent runs on node "+c.node.Name) || e.See == "" {
		t.Errorf("without an agent: %+v", e)
	}
	if e := c.explained("backup/nightly"); !strings.Contains(e.Why, "no Velero server runs in namespace "+c.Namespace) || len(e.Volumes) != 1 {
		t.Errorf("without a server: %+v", e)
	}

	c.startServer()
	c.startAgent(slowly)
	testenv.EventuallyGet(c.Env, big, "moving", func(p *velerov1.PodVolumeBackup, _ error) bool { return snapshotOf(p).BytesDone > bigSize/100 })
	queued := c.backUp(b, "patient", 1<<10)
	testenv.EventuallyGet(c.Env, queued, "queued", func(p *velerov1.PodVolumeBackup, _ error) bool { return snapshotOf(p).QueuePosition == 1 })

	e := c.explained("podvolumebackups.velero.io/" + queued.Name)
	if !strings.Contains(e.Why, "number 1 in the queue of node "+c.node.Name) || !strings.Contains(strings.Join(e.Facts, "\n"), "volume data of pod "+c.Namespace+"/big") {
		t.Errorf("queued: %+v", e)
	}
	if facts := strings.Join(e.Facts, "\n"); !strings.Contains(facts, "gives up on all volumes of the Backup in") {
		t.Errorf("lacks the deadline: %s", facts)
	}
	e = c.explained("pvb", big.Name)
	if len(e.Events) == 0 || e.Events[0].Reason != "Started" || e.Events[0].Object != "PodVolumeBackup/"+big.Name {
		t.Errorf("Events: %+v", e.Events)
	}
	out, errOut, code := c.run("explain", "backup", "nightly")
	for _, want := range []string{"it works on its items: 10 of 40 (25%)", "Volumes that have not completed:", "number 1 in the queue", "docs/node-agent.md#queue"} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("exit code %d, lacks %q: %s%s", code, want, out, errOut)
		}
	}
}

// TestExplainAgrees holds that the sum of a backup's volumes and what is said of the volume are of the same moment: the object
// of this volume has no progress, and its agent tells it.
func TestExplainAgrees(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	w := newWatched(t)
	w.serveProgress(slowly)
	w.kubeconfig = w.config
	w.backUp(w.newBackup("nightly"), "big", 4*bigSize) // restic reads no more than some packs ahead of what it has stored, so it never has read all
	moved := regexp.MustCompile(`\d[.\d]* (KiB|MiB) of`)
	var e describe.Explanation
	w.Eventually("the volume moves", func() bool {
		e = w.explained("backup", "nightly")
		return len(e.Volumes) == 1 && moved.MatchString(e.Volumes[0].Why)
	})
	if want := moved.FindString(e.Volumes[0].Why); !strings.Contains(e.Facts[len(e.Facts)-1], want) {
		t.Errorf("the volume: %s; the backup: %q", e.Volumes[0].Why, e.Facts)
	}
}

// TestExplainFailure explains what a node agent wrote of a failure, by the reason beside its message.
func TestExplainFailure(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startAgent(slowly)
	pvb := velero.PodVolumeBackup(c.newBackup("nightly"), c.node.Pod("web", "data"), "not-there", "restic")
	c.Create(pvb)
	testenv.EventuallyGet(c.Env, pvb, "failed", func(p *velerov1.PodVolumeBackup, _ error) bool {
		return p.Status.Phase == velerov1.PodVolumeBackupPhaseFailed
	})
	const reason = v1alpha1.ReasonVolumeNotFound
	e := c.explained("pvb", pvb.Name)
	if e.Reason != reason || !slices.Contains(e.Do, reason.Remedy()) || strings.Contains(e.Why, reason.Remedy()) || !strings.Contains(e.Why, `has no volume "not-there"`) {
		t.Errorf("explained as %+v", e)
	}
}

// TestExplainSilence has a volume whose agent went in full flight: its last rate is not that of the backup.
func TestExplainSilence(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := c.newBackup("nightly")
	pvb := velero.PodVolumeBackup(b, c.node.Pod("web", "data"), "data", "restic")
	pvb.Annotations = map[string]string{
		v1alpha1.AnnotationProgress: `{"state": "Transferring", "bytesDone": 5, "totalBytes": 10, "bytesPerSecond": 2, "etaSeconds": 3, "heartbeat": "2020-01-01T00:00:00Z"}`,
	}
	pvb.Status.Phase = velerov1.PodVolumeBackupPhaseInProgress
	c.Create(pvb)
	if facts := strings.Join(c.explained("backup", "nightly").Facts, "\n"); !strings.Contains(facts, "no movement reported") {
		t.Errorf("the facts are %s", facts)
	}
}

// TestExplainRestore explains a restore whose pod cannot be scheduled, and one whose pod is gone.
func TestExplainRestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restore := &velerov1.Restore{
		ObjectMeta: c.Meta("shop"), Spec: velerov1.RestoreSpec{BackupName: "nightly"},
		Status: velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress},
	}
	c.Create(restore)
	pod := &corev1.Pod{
		ObjectMeta: c.Meta("web-0"),
		Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "restore-wait", Image: "agent"}}, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
	c.Create(pod)
	pvr := velero.PodVolumeRestore(restore, pod, "data", "restic", "4f3c1d2e", "shop")
	c.Create(pvr)
	c.Change(pod, func() {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available\x1b[2J"}}
	})
	c.Create(&eventsv1.Event{ // as the scheduler writes it
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: "web-0-"}, EventTime: metav1.NowMicro(), ReportingController: "default-scheduler", ReportingInstance: "x",
		Action: "Scheduling", Reason: "FailedScheduling", Type: corev1.EventTypeWarning, Note: "no room",
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: c.Namespace, Name: pod.Name, UID: pod.UID},
	})
	e := c.explained("pvr", pvr.Name)
	if !strings.Contains(e.Why, "has no node yet: 0/3 nodes are available") || e.See == "" {
		t.Errorf("unscheduled: %+v", e)
	}
	if len(e.Events) != 1 || e.Events[0].Note != "no room" {
		t.Errorf("Events: %+v", e.Events)
	}
	if out, _, code := c.run("explain", "pvr/"+pvr.Name); code != 0 || strings.Contains(out, "\x1b") || !strings.Contains(out, "Warning FailedScheduling") {
		t.Errorf("exit code %d: %q", code, out)
	}
	if err := c.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	if e := c.explained("restore", "shop"); len(e.Volumes) != 1 || !strings.Contains(e.Volumes[0].Why, "does not exist") {
		t.Errorf("pod gone: %+v", e)
	}
}

// TestExplainALock has a real restic that holds the lock of a repository which a real agent wants to write to.
func TestExplainALock(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.tune = func(config *nodeagent.Config) { config.LockWait, config.LockDelay = 2*time.Hour, time.Hour } // it waits while we look
	c.startAgent(0)
	b := c.newBackup("nightly")
	testenv.EventuallyGet(c.Env, c.backUp(b, "first", 1<<20), "completed", func(p *velerov1.PodVolumeBackup, _ error) bool {
		return p.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted
	})
	holder := c.holdLock(filepath.Join(c.store, "restic", c.Namespace))
	waits := testenv.EventuallyGet(c.Env, c.backUp(b, "second", 1<<10), "waiting", func(p *velerov1.PodVolumeBackup, _ error) bool { return snapshotOf(p).State == progress.StateWaiting })
	e := c.explained("pvb", waits.Name)
	if want := fmt.Sprintf("it waits: the repository is locked exclusively by PID %d on ", holder); !strings.HasPrefix(e.Why, want) || !strings.HasSuffix(e.See, "#locks") {
		t.Errorf("locked: %q, see %q; want %q", e.Why, e.See, want)
	}
	if do := strings.Join(e.Do, "\n"); !strings.Contains(do, "restic unlock") {
		t.Errorf("what to do: %q", do)
	}
}

// holdLock makes a real restic hold the exclusive lock of a repository until the test ends, and returns its PID.
func (c *cluster) holdLock(repository string) (pid int) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), parts.Restic(c.t, parts.DefaultRestic), "-r", repository, "check", "--read-data", "--limit-download", "1", "--no-cache")
	cmd.Env = []string{"RESTIC_PASSWORD=" + resticrepo.Password, "TMPDIR=" + c.t.TempDir(), "HOME=" + c.t.TempDir()}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c.Eventually("restic has locked the repository", func() bool {
		locks, err := filepath.Glob(filepath.Join(repository, "locks", "*"))
		return err == nil && slices.ContainsFunc(locks, func(name string) bool { return !strings.Contains(name, "-tmp-") })
	})
	return cmd.Process.Pid
}

// TestExplainPlugins explains what a plugin tells, alone and as a part of its Backup.
func TestExplainPlugins(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.newBackup("nightly")
	c.startServer()
	record := &v1alpha1.VolumePluginBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "nightly-pv-7", Labels: map[string]string{v1alpha1.LabelBackup: "nightly"}},
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: "pv-7", Backup: "nightly", Plugin: "example.io/disks"},
	}
	c.Create(record)
	c.Change(record, func() {
		record.Status.Phase, record.Status.State, record.Status.Message = v1alpha1.PhaseInProgress, "Stalled", "the array is busy"
		record.Status.HeartbeatTimestamp, record.Status.LastProgressTimestamp = new(metav1.Now()), new(metav1.NewTime(time.Now().Add(-time.Hour)))
		record.Status.Progress = v1alpha1.VolumeOperationProgress{BytesDone: 1 << 20, TotalBytes: 4 << 20}
	})
	for _, name := range []string{"vpb/nightly-pv-7", "volumepluginbackups.plimsoll.io/nightly-pv-7"} {
		if e := c.explained(name); !strings.HasPrefix(e.Why, "no byte has moved for 60m") || !strings.Contains(strings.Join(e.Facts, "\n"), "the array is busy") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	e := c.explained("backup", "nightly")
	if len(e.Volumes) != 1 || e.Volumes[0].Subject != "pv-7" || !strings.Contains(strings.Join(e.Facts, "\n"), "volumes: 1: 1 Stalled; 1.0 MiB of 4.0 MiB (25%)") {
		t.Errorf("of the Backup: %+v", e)
	}

	restored := &v1alpha1.VolumePluginRestore{
		ObjectMeta: c.Meta("snap-77"),
		Spec:       v1alpha1.VolumePluginRestoreSpec{SnapshotID: "snap-77", Backup: "nightly", Plugin: "example.io/disks"},
	}
	c.Create(&velerov1.Restore{ObjectMeta: c.Meta("shop"), Spec: velerov1.RestoreSpec{BackupName: "nightly"}})
	c.Create(restored)
	c.Change(restored, func() { restored.Status.Phase, restored.Status.Message = v1alpha1.PhaseFailed, "quota exceeded" })
	if e := c.explained("vpr", "snap-77"); e.Why != "it has failed: quota exceeded" {
		t.Errorf("restore: %+v", e)
	}
	if e := c.explained("restore", "shop"); len(e.Volumes) != 1 || e.Volumes[0].Why != "it has failed: quota exceeded" {
		t.Errorf("of the Restore: %+v", e)
	}
}

// TestBackupThatIsDeleted has a Backup whose deletion has failed: it stays in its phase, and nobody waits for more.
func TestBackupThatIsDeleted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := c.newBackup("nightly")
	c.Change(b, func() { b.Status.Phase = velerov1.BackupPhaseDeleting })
	c.startServer()
	request := func(backup string, uid types.UID, errs ...string) {
		c.Create(&velerov1.DeleteBackupRequest{ // as the velero command makes it
			ObjectMeta: metav1.ObjectMeta{
				Namespace: c.Namespace, GenerateName: backup + "-", Labels: map[string]string{velerov1.BackupNameLabel: backup, velerov1.BackupUIDLabel: string(uid)},
			},
			Spec:   velerov1.DeleteBackupRequestSpec{BackupName: backup},
			Status: velerov1.DeleteBackupRequestStatus{Phase: velerov1.DeleteBackupRequestPhaseProcessed, Errors: errs},
		})
	}
	request("weekly", "x", "another backup")
	request("nightly", "y", "an earlier one of the name")
	if e := c.explained("backup", "nightly"); !strings.Contains(e.Why, "but it is still there") {
		t.Errorf("not asked for: %q", e.Why)
	}
	request("nightly", b.UID, "no such bucket")
	if e := c.explained("backup", "nightly"); e.Why != "its deletion has failed: no such bucket" {
		t.Errorf("deletion failed: %q", e.Why)
	}
	out, errOut, code := c.run("watch", "backup", "nightly", "--wait", "--timeout", testenv.Patience.String())
	if code != 1 || !strings.Contains(errOut, "is being deleted") || !strings.HasPrefix(out, "Backup nightly Deleting") {
		t.Errorf("--wait: exit code %d: %s%s", code, out, errOut)
	}
}

func TestExplainErrors(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nothing there": {[]string{"explain", "pvb", "nope"}, 1, `there is no PodVolumeBackup "nope" in namespace ` + c.Namespace},
		"no plugin's":   {[]string{"explain", "vpb", "nope"}, 1, "get volumepluginbackups.plimsoll.io' lists"},
		"another group": {[]string{"explain", "vpb.velero.io/x"}, 2, `"vpb.velero.io" is none of`},
		"another kind":  {[]string{"explain", "node/x"}, 2, `"node" is none of`},
		"no arguments":  {[]string{"explain"}, 2, "KIND NAME"},
		"empty name":    {[]string{"explain", "backup/"}, 2, "KIND NAME"},
		"format":        {[]string{"explain", "pvb", "x", "-o", "xml"}, 2, "--output=xml"},
	} {
		out, errOut, code := c.run(test.args...)
		if code != test.code || !strings.Contains(errOut, test.want) || strings.Count(errOut, "\n") != 1 || out != "" {
			t.Errorf("%s: exit code %d, want %d, with %q: %s%s", name, code, test.code, test.want, out, errOut)
		}
	}
}

// TestCompletion completes kinds and names as a shell asks for it.
func TestCompletion(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.newBackup("nightly")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"__complete", "--kubeconfig", c.kubeconfig, "-n", c.Namespace, "describe", ""}, "backup\nrestore\n"},
		{[]string{"__complete", "--kubeconfig", c.kubeconfig, "-n", c.Namespace, "explain", "backup", ""}, "nightly\n"},
	} {
		if out, errOut, code := c.runBare(test.args...); code != 0 || !strings.Contains(out, test.want) {
			t.Errorf("%q: exit code %d: %s%s", test.args, code, out, errOut)
		}
	}
}
