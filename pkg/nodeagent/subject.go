package nodeagent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Kind is what an operation does with its volume.
type Kind string

// The kinds of operations.
const (
	Backup  Kind = "backup"
	Restore Kind = "restore"
)

// The phases of PodVolumeBackups and PodVolumeRestores. They have the same names; those from Accepted on exist since
// Velero 1.17 (docs/contracts/velero-node-agent.md 1.2).
const (
	phaseNew        = string(velerov1.PodVolumeBackupPhaseNew)
	phaseInProgress = string(velerov1.PodVolumeBackupPhaseInProgress)
	phaseCompleted  = string(velerov1.PodVolumeBackupPhaseCompleted)
	phaseFailed     = string(velerov1.PodVolumeBackupPhaseFailed)
	phaseAccepted   = string(velerov1.PodVolumeBackupPhaseAccepted)
	phasePrepared   = string(velerov1.PodVolumeBackupPhasePrepared)
	phaseCanceling  = string(velerov1.PodVolumeBackupPhaseCanceling)
	phaseCanceled   = string(velerov1.PodVolumeBackupPhaseCanceled)
)

// subject is what a PodVolumeBackup and a PodVolumeRestore have in common, as the object said when it was read.
type subject struct {
	kind   Kind
	object client.Object

	pod            corev1.ObjectReference
	volume         string
	location       string // BackupStorageLocation
	repoIdentifier string
	repoNamespace  string // the namespace whose repository holds the snapshot
	uploaderType   string
	settings       map[string]string

	phase   string
	cancel  bool // somebody asks for the end: spec.cancel, or the phase Canceling that Velero's own agent left behind
	message string
	node    string // that serves it; of a restore only once it is claimed
	started *metav1.Time
	// completed is when it ended.
	completed *metav1.Time
	done      int64
	total     int64
}

func ofBackup(pvb *velerov1.PodVolumeBackup) subject {
	return subject{
		kind: Backup, object: pvb,
		pod: pvb.Spec.Pod, volume: pvb.Spec.Volume,
		location: pvb.Spec.BackupStorageLocation, repoIdentifier: pvb.Spec.RepoIdentifier, repoNamespace: pvb.Spec.Pod.Namespace,
		uploaderType: pvb.Spec.UploaderType, settings: pvb.Spec.UploaderSettings,
		phase: string(pvb.Status.Phase), cancel: pvb.Spec.Cancel || string(pvb.Status.Phase) == phaseCanceling,
		message: pvb.Status.Message, node: pvb.Spec.Node,
		started: pvb.Status.StartTimestamp, completed: pvb.Status.CompletionTimestamp, done: pvb.Status.Progress.BytesDone, total: pvb.Status.Progress.TotalBytes,
	}
}

func ofRestore(pvr *velerov1.PodVolumeRestore) subject {
	return subject{
		kind: Restore, object: pvr,
		pod: pvr.Spec.Pod, volume: pvr.Spec.Volume,
		location: pvr.Spec.BackupStorageLocation, repoIdentifier: pvr.Spec.RepoIdentifier, repoNamespace: pvr.Spec.SourceNamespace,
		uploaderType: pvr.Spec.UploaderType, settings: pvr.Spec.UploaderSettings,
		phase: string(pvr.Status.Phase), cancel: pvr.Spec.Cancel || string(pvr.Status.Phase) == phaseCanceling,
		message: pvr.Status.Message, node: pvr.Status.Node,
		started: pvr.Status.StartTimestamp, completed: pvr.Status.CompletionTimestamp, done: pvr.Status.Progress.BytesDone, total: pvr.Status.Progress.TotalBytes,
	}
}

func subjectOf(object client.Object) subject {
	if pvb, ok := object.(*velerov1.PodVolumeBackup); ok {
		return ofBackup(pvb)
	}
	return ofRestore(object.(*velerov1.PodVolumeRestore))
}

// key names a subject in the agent's memory: all of them live in one namespace.
type key struct {
	kind Kind
	name string
}

func (s subject) key() key { return key{s.kind, s.object.GetName()} }

// String names the volume as people do.
func (s subject) String() string {
	return fmt.Sprintf("volume %q of pod %s/%s", s.volume, s.pod.Namespace, s.pod.Name)
}

// uploaderName is the data path that the subject asks for. Objects from before Velero 1.10 name none.
func (s subject) uploaderName() string { return cmp.Or(s.uploaderType, "restic") }

func (s subject) terminal() bool {
	return s.phase == phaseCompleted || s.phase == phaseFailed || s.phase == phaseCanceled
}

// previous is what an earlier process said of the subject; empty for one that nobody has touched.
func (s subject) previous() progress.Snapshot {
	var p progress.Snapshot
	if err := json.Unmarshal([]byte(s.object.GetAnnotations()[v1alpha1.AnnotationProgress]), &p); err != nil {
		p = progress.Snapshot{}
	}
	p.BytesDone, p.TotalBytes = max(p.BytesDone, s.done), max(p.TotalBytes, s.total)
	if s.phase == phaseInProgress {
		p.Attempt = max(p.Attempt, 1) // Velero's own agent leaves no annotation
	}
	return p
}

// maxResumes bounds how often the agents of a node leave an attempt of one operation uncounted: what makes kubelet stop the
// agent again and again, as a failing probe does, must not go on for ever.
const maxResumes = 10

// nextAttempt returns the number of the attempt that a new process makes, and what the object said of the earlier ones. A
// process that was told to stop, or ended while the operation waited, has left its attempt to this one.
func (s subject) nextAttempt() (int, progress.Snapshot) {
	p := s.previous()
	if p.Uncounted && p.Attempt > 0 && p.Resumes < maxResumes {
		p.Resumes++
		return p.Attempt, p
	}
	p.Uncounted = false
	return p.Attempt + 1, p
}

// setting returns a number out of uploaderSettings, 0 where there is none.
func (s subject) setting(name string) (int, error) {
	text, ok := s.settings[name]
	if !ok || text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, permanent(ReasonInvalidSettings, fmt.Errorf("uploaderSettings %s=%q is not a number: correct it in the Backup's or Restore's uploaderConfig", name, text))
	}
	return n, nil
}

// flag returns a truth value out of uploaderSettings, false where there is none.
func (s subject) flag(name string) (bool, error) {
	text, ok := s.settings[name]
	if !ok || text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, permanent(ReasonInvalidSettings, fmt.Errorf("uploaderSettings %s=%q is neither true nor false: correct it in the Restore's uploaderConfig", name, text))
	}
	return b, nil
}

// unsettled is how long the operation may not become terminal yet. A server of Velero 1.14 to 1.15 counts a
// PodVolumeBackup only after its create call has returned, and crashes over one that was faster than 2 s
// (docs/contracts/velero-node-agent.md 2.4). The agent's own clock is asked: that of the API server may be another one.
func (op *operation) unsettled() time.Duration {
	if op.kind == Restore || op.phase == phaseInProgress {
		return 0
	}
	return time.Until(op.began.Add(3 * time.Second))
}
