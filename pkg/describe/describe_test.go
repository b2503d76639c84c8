package describe

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/util/results"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// now is when tests look.
var now = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(-d))) }

// snapshots has one for each state, as the node agent writes them.
var snapshots = map[progress.State]progress.Snapshot{
	progress.StateQueued:  {State: progress.StateQueued, QueuePosition: 2, Heartbeat: now.Add(-5 * time.Minute)},
	progress.StateWaiting: {State: progress.StateWaiting, Reason: v1alpha1.ReasonRepositoryLocked, Message: "the repository is locked by PID 7 on node-b since 02:41", Heartbeat: now.Add(-8 * time.Second), Attempt: 1},
	progress.StateScanning: {
		State: progress.StateScanning, BytesDone: 1 << 20, TotalBytes: 7 << 20, FilesDone: 3, FilesTotal: 40, Attempt: 1, Heartbeat: now.Add(-8 * time.Second),
	},
	progress.StateTransferring: {
		State: progress.StateTransferring, BytesDone: 3 << 30, TotalBytes: 8 << 30, TotalFinal: true, BytesPerSecond: 12 << 20, ETASeconds: new(int64(427)),
		FilesDone: 1200, FilesTotal: 4100, BytesUploaded: 1 << 30, CurrentItem: "mysql/ibdata1", Attempt: 2,
		LastProgressTime: now.Add(-time.Second), Heartbeat: now.Add(-time.Second),
	},
	progress.StateStalled: {
		State: progress.StateStalled, Reason: v1alpha1.ReasonTransferStalled, Message: "no byte moved", BytesDone: 1 << 30, TotalBytes: 8 << 30, TotalFinal: true, Errors: 2,
		LastError: "open cache/a: permission denied", LastProgressTime: now.Add(-7 * time.Minute), Heartbeat: now.Add(-9 * time.Second), Attempt: 1,
	},
	progress.StateFinishing: {
		State: progress.StateFinishing, BytesDone: 8<<30 - 1, TotalBytes: 8 << 30, TotalFinal: true, LastProgressTime: now.Add(-20 * time.Second),
		Heartbeat: now.Add(-9 * time.Minute), Attempt: 1,
	},
	progress.StateCompleted: {State: progress.StateCompleted, BytesDone: 8 << 30, TotalBytes: 8 << 30, TotalFinal: true, Attempt: 1},
	progress.StateFailed: {
		State: progress.StateFailed, BytesDone: 1 << 30, TotalBytes: 8 << 30, TotalFinal: true, Errors: 1, LastError: "open a: input/output error", Attempt: 5,
		Reason: v1alpha1.ReasonWrongPassword, Message: "wrong repository password",
	},
	progress.StateCanceled: {State: progress.StateCanceled, BytesDone: 1 << 30, TotalBytes: 8 << 30, TotalFinal: true, Attempt: 1},
}

var phases = map[progress.State]velerov1.PodVolumeBackupPhase{
	progress.StateQueued: "", progress.StateCompleted: velerov1.PodVolumeBackupPhaseCompleted,
	progress.StateFailed: velerov1.PodVolumeBackupPhaseFailed, progress.StateCanceled: velerov1.PodVolumeBackupPhaseCanceled,
}

// podVolumeBackup is a volume in a state, named after it.
func podVolumeBackup(state progress.State) *velerov1.PodVolumeBackup {
	name := strings.ToLower(string(state))
	b := &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "nightly-" + name, CreationTimestamp: *ago(10 * time.Minute), Labels: map[string]string{velerov1.BackupNameLabel: "nightly"},
		},
		Spec: velerov1.PodVolumeBackupSpec{
			Node: "node-a", Pod: corev1.ObjectReference{Namespace: "shop", Name: "web-0"}, Volume: name, UploaderType: "restic",
		},
	}
	phase, ended := phases[state]
	switch {
	case !ended:
		phase = velerov1.PodVolumeBackupPhaseInProgress
		b.Status.StartTimestamp = ago(9 * time.Minute)
	case phase != "":
		b.Status.StartTimestamp, b.Status.CompletionTimestamp = ago(9*time.Minute), ago(time.Minute)
		if said := snapshots[state].Message; said != "" { // as the agent's terminal write has it
			b.Status.Message = "backup of volume \"" + name + "\" of pod shop/web-0 failed: " + said + "; " + snapshots[state].Reason.Remedy()
		}
	}
	if state == progress.StateCompleted {
		b.Status.SnapshotID = "4f3c1d2e"
	}
	b.Status.Phase = phase
	b.Annotations = map[string]string{v1alpha1.AnnotationProgress: encode(snapshots[state])}
	return b
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func backup(phase velerov1.BackupPhase) *velerov1.Backup {
	return &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "nightly", CreationTimestamp: *ago(12 * time.Minute), Labels: map[string]string{velerov1.ScheduleNameLabel: "every-night"},
		},
		Spec: velerov1.BackupSpec{StorageLocation: "default"},
		Status: velerov1.BackupStatus{
			Phase: phase, StartTimestamp: ago(11 * time.Minute), Progress: &velerov1.BackupProgress{TotalItems: 120, ItemsBackedUp: 45},
		},
	}
}

func restore(phase velerov1.RestorePhase) *velerov1.Restore {
	return &velerov1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "shop", CreationTimestamp: *ago(12 * time.Minute)},
		Spec:       velerov1.RestoreSpec{BackupName: "nightly"},
		Status: velerov1.RestoreStatus{
			Phase: phase, StartTimestamp: ago(11 * time.Minute), Progress: &velerov1.RestoreProgress{TotalItems: 120, ItemsRestored: 45},
		},
	}
}

// restored has each way in which a volume is restored, as Velero and our restore controller write it.
const restored = `[
  {"pvcName": "data", "pvcNamespace": "shop", "pvName": "pv-1", "restoreMethod": "PodVolumeRestore", "snapshotDataMoved": false,
   "pvrInfo": {"snapshotHandle": "4f3c1d2e", "size": 8589934592, "uploaderType": "restic", "volumeName": "data", "podName": "web-0", "podNamespace": "shop", "Phase": "Completed"},
   "startTimestamp": "2026-11-22T02:50:00Z", "completionTimestamp": "2026-11-22T02:58:00Z", "result": "succeeded", "plimsollReason": ""},
  {"restoreMethod": "PodVolumeRestore", "snapshotDataMoved": false,
   "pvrInfo": {"snapshotHandle": "aa", "uploaderType": "kopia", "volumeName": "scratch", "podName": "web-0", "podNamespace": "shop", "nodeName": "node-a", "Phase": "Failed"},
   "result": "failed", "plimsollReason": "the pod was deleted while its volume was worked on"},
  {"pvcName": "logs", "pvcNamespace": "shop", "pvName": "pv-2", "restoreMethod": "CSISnapshot", "snapshotDataMoved": false,
   "csiSnapshotInfo": {"snapshotHandle": "snap-1", "size": 1073741824, "driver": "ebs.csi.aws.com", "vscName": "velero-x", "ReadyToUse": null}},
  {"pvcName": "moved", "pvcNamespace": "shop", "restoreMethod": "CSISnapshot", "snapshotDataMoved": true, "ofLaterVelero": {"kept": true},
   "snapshotDataMovementInfo": {"dataMover": "", "uploaderType": "kopia", "snapshotHandle": "bb", "operationID": "dd-1", "size": 2048, "Phase": ""}},
  {"pvcName": "disk", "pvcNamespace": "shop", "pvName": "pv-3", "restoreMethod": "NativeSnapshot", "snapshotDataMoved": false,
   "nativeSnapshotInfo": {"snapshotHandle": "snap-9", "volumeType": "gp3", "volumeAZ": "eu-1a", "iops": "0", "Phase": ""}},
  {"pvcName": "cache", "pvcNamespace": "shop", "pvName": "pv-4", "snapshotDataMoved": false, "plimsollOutcome": "ProvisionedEmpty", "plimsollReason": "it was not backed up"},
  {"pvName": "pv-5", "snapshotDataMoved": false, "plimsollOutcome": "Kept"},
  {"pvcName": "old", "pvcNamespace": "shop", "snapshotDataMoved": false, "plimsollOutcome": "Unsupported", "plimsollReason": "CSI snapshots of Velero before 1.14"},
  {"pvcName": "new", "pvcNamespace": "shop", "restoreMethod": "OfLaterVelero", "snapshotDataMoved": false, "plimsollOutcome": "OfLaterPlimsoll"},
  {}
]`

const backedUp = `[
  {"pvcName": "data", "pvcNamespace": "shop", "pvName": "pv-1", "backupMethod": "PodVolumeBackup", "result": "succeeded",
   "pvbInfo": {"snapshotHandle": "4f3c1d2e", "size": 8589934592, "uploaderType": "restic", "volumeName": "data", "podName": "web-0", "podNamespace": "shop", "nodeName": "node-a", "Phase": "Completed"},
   "startTimestamp": "2026-11-22T02:50:00Z", "completionTimestamp": "2026-11-22T02:58:00Z"},
  {"pvcName": "moved", "pvcNamespace": "shop", "pvName": "pv-2", "backupMethod": "CSISnapshot", "snapshotDataMoved": true, "preserveLocalSnapshot": true,
   "csiSnapshotInfo": {"snapshotHandle": "unknown", "size": 0, "driver": "ebs.csi.aws.com", "vscName": "unknown"},
   "snapshotDataMovementInfo": {"dataMover": "velero", "uploaderType": "kopia", "snapshotHandle": "bb", "operationID": "du-1", "size": 2048, "Phase": "Completed"}},
  {"pvName": "pv-3", "skipped": true, "skippedReason": "no applicable volumesnapshotter found"}
]`

func records[T any](t *testing.T, text string, decode func(*strings.Reader) ([]T, error), of func([]T) []Record) []Record {
	t.Helper()
	list, err := decode(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return of(list)
}

func restoredRecords(t *testing.T) []Record {
	t.Helper()
	return records(t, restored, func(r *strings.Reader) ([]volumeinfo.Volume[volumeinfo.RestoredVolume], error) {
		return volumeinfo.DecodeRestore(r)
	}, OfRestoredVolumes)
}

func backedUpRecords(t *testing.T) []Record {
	t.Helper()
	return records(t, backedUp, func(r *strings.Reader) ([]volumeinfo.Volume[volumeinfo.BackupVolume], error) {
		return volumeinfo.DecodeBackup(r)
	}, OfBackedUpVolumes)
}

// descriptions are what is described, by the name of the file with the text.
func descriptions(t *testing.T) map[string]*Description {
	t.Helper()
	all := map[string]*Description{}
	add := func(name string, o Operation, volumes, plugins []Volume) *Description {
		d := Describe(&View{At: now, Operation: &o, Volumes: append(volumes, plugins...)})
		all[name] = d
		return d
	}

	var states []Volume
	for state := range snapshots {
		v := OfPodVolumeBackup(podVolumeBackup(state))
		states = append(states, v)
		add("backup-volume-"+strings.ToLower(string(state)), OfBackup(backup(velerov1.BackupPhaseInProgress)), []Volume{v}, nil)
	}
	add("backup-running", OfBackup(backup(velerov1.BackupPhaseInProgress)), states, nil)

	add("backup-new", OfBackup(&velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "nightly", CreationTimestamp: *ago(time.Minute)}}), nil, nil)

	refused := backup(velerov1.BackupPhaseFailedValidation)
	refused.Status.Progress, refused.Status.ValidationErrors = nil, []string{"backup storage location \"nope\" does not exist"}
	add("backup-refused", OfBackup(refused), nil, nil)

	waiting := backup(velerov1.BackupPhaseWaitingForPluginOperations)
	waiting.Status.BackupItemOperationsAttempted, waiting.Status.BackupItemOperationsCompleted = 4, 1
	add("backup-waiting-for-plugins", OfBackup(waiting), nil, nil)

	// Velero's own node agent writes no annotation.
	plain := podVolumeBackup(progress.StateTransferring)
	plain.Annotations = nil
	plain.Status.Progress.BytesDone, plain.Status.Progress.TotalBytes = 3<<30, 8<<30
	young := podVolumeBackup(progress.StateQueued)
	young.Annotations = nil
	add("backup-by-velero", OfBackup(backup(velerov1.BackupPhaseInProgress)), []Volume{OfPodVolumeBackup(plain), OfPodVolumeBackup(young)}, nil)

	ended := backup(velerov1.BackupPhasePartiallyFailed)
	ended.Status.CompletionTimestamp, ended.Status.Expiration = ago(time.Minute), ago(-720*time.Hour)
	ended.Status.Errors, ended.Status.Warnings, ended.Status.Progress.ItemsBackedUp = 2, 1, 120
	d := add("backup-partially-failed", OfBackup(ended), []Volume{OfPodVolumeBackup(podVolumeBackup(progress.StateFailed))}, pluginBackups())
	d.Records = backedUpRecords(t)
	d.Results = &Results{
		Errors:   results.Result{Velero: []string{"pod volume backup failed: wrong repository password"}, Namespaces: map[string][]string{"shop": {"a", "b\nc"}, "attic": {"d"}}},
		Warnings: results.Result{Cluster: []string{"no such thing"}},
	}

	running := restore(velerov1.RestorePhaseInProgress)
	asWritten(t, running, "restoring")
	add("restore-running", OfRestore(running), []Volume{OfPodVolumeRestore(podVolumeRestore())}, pluginRestores())

	dry := restore(velerov1.RestorePhaseCompleted)
	dry.Status.CompletionTimestamp = ago(0)
	asWritten(t, dry, "dry-run")
	add("restore-dry-run", OfRestore(dry), nil, nil)

	one := restore(velerov1.RestorePhaseCompleted)
	one.Status.CompletionTimestamp = ago(time.Minute)
	asWritten(t, one, "one-phase-done")
	add("restore-one-phase", OfRestore(one), nil, nil)

	completed := restore(velerov1.RestorePhaseCompleted)
	completed.Status.CompletionTimestamp, completed.Status.Progress.ItemsRestored = ago(time.Minute), 120
	add("restore-completed", OfRestore(completed), nil, nil).Records = restoredRecords(t)

	failed := restore(velerov1.RestorePhaseFailed)
	failed.Status.FailureReason, failed.Status.Progress = "the controller was stopped while items were restored", nil
	d = add("restore-failed", OfRestore(failed), nil, nil)
	d.Notes = []string{"nobody answered the DownloadRequest within 10s"}

	hostile := restore(velerov1.RestorePhaseInProgress)
	hostile.Annotations = map[string]string{v1alpha1.AnnotationProgress: encode(map[string]any{
		"step": "\x1b[2J", "percent": -5, "message": "a\nPhase: Completed", "items": map[string]any{"totalItems": -1, "itemsRestored": 7, "current": "\u202egnp.exe"},
	})}
	evil := podVolumeRestore()
	evil.Spec.Pod.Name, evil.Spec.Volume, evil.Status.Message = "web\x1b]0;owned\a", "a\tb", "\u009b31m"
	evil.Annotations = map[string]string{v1alpha1.AnnotationProgress: encode(progress.Snapshot{
		State: "Transferring\r", BytesDone: 9e18, TotalBytes: 1, BytesPerSecond: -1, ETASeconds: new(int64(-9e18)), LastError: "open \xff\x1b[A: no", CurrentItem: "\u2066x", Attempt: -3,
		QueuePosition: -1, LastProgressTime: now.Add(1e18), Heartbeat: now.Add(1e18),
	})}
	d = add("restore-hostile", OfRestore(hostile), []Volume{OfPodVolumeRestore(evil)}, nil)
	d.Notes = []string{"Get \"https://x/\x1b[31m\": no"}
	d.Records = OfRestoredVolumes([]volumeinfo.Volume[volumeinfo.RestoredVolume]{{Typed: volumeinfo.RestoredVolume{
		PVCName: "\x1b[1m", PVCNamespace: "a\nb", RestoreMethod: "\x07", Reason: "\u202e", PodVolume: &volumeinfo.PodVolumeInfo{Size: -1, SnapshotHandle: "\x00"},
	}}})
	d.Results = &Results{Errors: results.Result{Namespaces: map[string][]string{"\x1b[5m": {"\x1b[6n"}}}}
	return all
}

// asWritten applies a merge patch to a Restore, as our restore controller writes it: TestDescribedProgress of
// pkg/restorecontroller keeps the files equal to its code.
func asWritten(t *testing.T, r *velerov1.Restore, name string) {
	t.Helper()
	patch, err := os.ReadFile(filepath.Join("testdata", "restores", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	r.Status.Progress = nil
	if err := json.Unmarshal(patch, r); err != nil { // it sets nothing but the annotation and status.progress
		t.Fatal(err)
	}
}

// TestItems has restores as the controller writes them: one that has looked at all of its items is at 100 %, whatever filters have left out.
func TestItems(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ done, total, share, skipped int }{
		"restoring":      {52, 120, 43, 7},
		"one-phase-done": {3000, 3000, 100, 2900},
		"dry-run":        {0, 120, 100, 0}, // none is tried
	} {
		r := restore(velerov1.RestorePhaseInProgress)
		asWritten(t, r, name)
		o := OfRestore(r)
		share, known := o.Items.Share()
		if i := o.Items; !known || i.Done != want.done || i.Total != want.total || share != want.share || i.Skipped != want.skipped {
			t.Errorf("%s: %d %%, %+v; want %+v", name, share, i, want)
		}
		if p := o.Items.Percent; p == nil || *p != share {
			t.Errorf("%s: the controller says %v %%, we say %d %%", name, p, share)
		}
		r.Annotations = nil // as those see it who know Velero only
		if s := r.Status.Progress; s != nil && (OfRestore(r).Items.Done != want.done || s.TotalItems != want.total) {
			t.Errorf("%s: status.progress is %+v", name, s)
		}
	}
}

// TestTotalThatIsNotKnown is a restore in one-phase mode of a Backup that does not say how many items it has.
func TestTotalThatIsNotKnown(t *testing.T) {
	t.Parallel()
	r := restore(velerov1.RestorePhaseInProgress)
	r.Status.Progress = nil
	r.Annotations = map[string]string{v1alpha1.AnnotationProgress: `{"step":"Restoring","items":{"totalItems":0,"itemsRestored":7,"estimate":true}}`}
	d := Description{Operation: OfRestore(r)}
	var text strings.Builder
	p := newPage(&text)
	d.printItems(p)
	if err := p.out.Flush(); err != nil || !strings.Contains(text.String(), "7, total not known yet") || strings.Contains(text.String(), "%") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func pluginBackups() []Volume {
	running := &v1alpha1.VolumePluginBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "nightly-pv-7", CreationTimestamp: *ago(8 * time.Minute)},
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: "pv-7", Backup: "nightly", Plugin: "example.io/disks", PluginSpecific: map[string]string{"pool": "fast\x1b[1m"}},
	}
	running.Status.SnapshotID = "snap-77"
	running.Status.VolumeOperationStatus = v1alpha1.VolumeOperationStatus{
		Phase: v1alpha1.PhaseInProgress, State: "Transferring", Progress: v1alpha1.VolumeOperationProgress{TotalBytes: 4 << 30, BytesDone: 1 << 30},
		BytesPerSecond: 1 << 20, ETASeconds: new(int64(3072)), StartTimestamp: ago(8 * time.Minute), LastProgressTimestamp: ago(3 * time.Second), HeartbeatTimestamp: ago(3 * time.Second),
	}
	return []Volume{OfVolumePluginBackup(running)}
}

func pluginRestores() []Volume {
	ended := &v1alpha1.VolumePluginRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "snap-77", CreationTimestamp: *ago(8 * time.Minute)},
		Spec:       v1alpha1.VolumePluginRestoreSpec{SnapshotID: "snap-77", Backup: "nightly", Plugin: "example.io/disks"},
	}
	ended.Spec.Volume, ended.Status.VolumeID = "pv-8", "vol-8"
	ended.Status.VolumeOperationStatus = v1alpha1.VolumeOperationStatus{
		Phase: v1alpha1.PhaseFailed, Message: "quota exceeded", Progress: v1alpha1.VolumeOperationProgress{TotalBytes: 4 << 30, BytesDone: 1 << 30},
		StartTimestamp: ago(8 * time.Minute), CompletionTimestamp: ago(7 * time.Minute),
	}
	return []Volume{OfVolumePluginRestore(ended)}
}

func podVolumeRestore() *velerov1.PodVolumeRestore {
	return &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "shop-1", CreationTimestamp: *ago(10 * time.Minute), Labels: map[string]string{velerov1.RestoreNameLabel: "shop"},
			Annotations: map[string]string{v1alpha1.AnnotationProgress: encode(snapshots[progress.StateTransferring])},
		},
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod: corev1.ObjectReference{Namespace: "shop", Name: "web-0"}, Volume: "data", UploaderType: "restic", SnapshotID: "4f3c1d2e", SourceNamespace: "shop",
		},
		Status: velerov1.PodVolumeRestoreStatus{Phase: velerov1.PodVolumeRestorePhaseInProgress, StartTimestamp: ago(9 * time.Minute), Node: "node-a"},
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	for name, d := range descriptions(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text strings.Builder
			if err := d.Print(&text); err != nil {
				t.Fatal(err)
			}
			golden(t, "describe/"+name+".txt", text.String())
		})
	}
}

// TestJSON holds what scripts rely on: the keys, percentages, and that the list of volumes is there as it was stored.
func TestJSON(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"backup-running", "restore-completed", "backup-partially-failed"} {
		text, err := json.MarshalIndent(descriptions(t)[name], "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "describe/"+name+".json", string(text)+"\n")
		var told struct {
			VolumeInfo any `json:"volumeInfo"`
		}
		if err := json.Unmarshal(text, &told); err != nil {
			t.Fatal(err)
		}
		if name != "restore-completed" {
			continue
		}
		var stored []any
		if err := json.Unmarshal([]byte(restored), &stored); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sortedTexts(stored), sortedTexts(told.VolumeInfo.([]any))); diff != "" {
			t.Errorf("the list of volumes has changed on its way: %s", diff)
		}
	}
}

func sortedTexts(list []any) map[string]int {
	texts := map[string]int{}
	for _, v := range list {
		texts[encode(v)]++
	}
	return texts
}

func TestHasStored(t *testing.T) {
	t.Parallel()
	for phase, want := range map[string]bool{
		"New": false, "Queued": false, "ReadyToStart": false, "FailedValidation": false, "InProgress": false,
		"WaitingForPluginOperations": true, "Finalizing": true, "FinalizingPartiallyFailed": true,
		"Completed": true, "PartiallyFailed": true, "Failed": true, "OfLaterVelero": true,
	} {
		if got := (&Operation{Phase: phase}).HasStored(); got != want {
			t.Errorf("%s: %v", phase, got)
		}
	}
	if !(&Operation{Phase: "InProgress", Items: Items{Step: "Volumes"}}).HasStored() {
		t.Error("our restore controller stores them before it waits for volumes")
	}
}

// TestSilent has agents that write as often as each state asks for, and agents that are late.
func TestSilent(t *testing.T) {
	t.Parallel()
	waiting := progress.Snapshot{State: progress.StateWaiting, Message: "init container restore-wait: ErrImagePull"}
	waitingFor := func(reason v1alpha1.Reason) progress.Snapshot {
		return progress.Snapshot{State: progress.StateWaiting, Reason: reason}
	}
	for name, test := range map[string]struct {
		kind, phase string
		snapshot    progress.Snapshot
		limit       time.Duration
	}{
		"restore whose pod waits for an image":               {KindPodVolumeRestore, "New", waiting, waitingSilence},
		"claimed restore whose pod starts again":             {KindPodVolumeRestore, phaseInProgress, waiting, waitingSilence},
		"restore in the queue":                               {KindPodVolumeRestore, "New", snapshots[progress.StateQueued], waitingSilence},
		"restore that was taken and has not moved yet":       {KindPodVolumeRestore, phaseInProgress, snapshots[progress.StateScanning], silence},
		"restore that moves":                                 {KindPodVolumeRestore, phaseInProgress, snapshots[progress.StateTransferring], silence},
		"backup in the queue":                                {KindPodVolumeBackup, "New", snapshots[progress.StateQueued], waitingSilence},
		"backup that waits for a lock":                       {KindPodVolumeBackup, phaseInProgress, snapshots[progress.StateWaiting], silence},
		"backup whose repository does not open":              {KindPodVolumeBackup, phaseInProgress, waitingFor(v1alpha1.ReasonRepositoryUnavailable), waitingSilence},
		"backup whose location has no free place":            {KindPodVolumeBackup, phaseInProgress, waitingFor(v1alpha1.ReasonLocationBusy), waitingSilence},
		"backup that is stalled":                             {KindPodVolumeBackup, phaseInProgress, snapshots[progress.StateStalled], silence},
		"task that waits for a repository":                   {KindRepositoryTask, phaseInProgress, waiting, waitingSilence},
		"task that reads":                                    {KindRepositoryTask, phaseInProgress, snapshots[progress.StateTransferring], silence},
		"backup of a plugin whose process has not begun yet": {KindVolumePluginBackup, "New", snapshots[progress.StateScanning], silence},
	} {
		v := Volume{Kind: test.kind, Phase: test.phase, Progress: test.snapshot}
		v.Progress.Heartbeat = now.Add(-test.limit)
		if v.Silent(now) {
			t.Errorf("%s: silent after %s", name, test.limit)
		}
		if !v.Silent(now.Add(time.Second)) {
			t.Errorf("%s: not silent after more than %s", name, test.limit)
		}
	}
}
