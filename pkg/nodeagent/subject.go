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
	PhaseNew        = string(velerov1.PodVolumeBackupPhaseNew)
	PhaseInProgress = string(velerov1.PodVolumeBackupPhaseInProgress)
	PhaseCompleted  = string(velerov1.PodVolumeBackupPhaseCompleted)
	PhaseFailed     = string(velerov1.PodVolumeBackupPhaseFailed)
	PhaseAccepted   = string(velerov1.PodVolumeBackupPhaseAccepted)
	PhasePrepared   = string(velerov1.PodVolumeBackupPhasePrepared)
	PhaseCanceling  = string(velerov1.PodVolumeBackupPhaseCanceling)
	PhaseCanceled   = string(velerov1.PodVolumeBackupPhaseCanceled)
)

// PodVolume is what a PodVolumeBackup and a PodVolumeRestore have in common, as the object said when it was read.
type PodVolume struct {
	Kind   Kind
	Object client.Object

	Pod            corev1.ObjectReference
	Volume         string
	Location       string // BackupStorageLocation
	RepoIdentifier string
	RepoNamespace  string // the namespace whose repository holds the snapshot
	UploaderType   string
	Settings       map[string]string

	Phase           string
	CancelRequested bool // somebody asks for the end: spec.cancel, or the phase Canceling that Velero's own agent left behind
	Message         string
	Node            string // that serves it; of a restore only once it is claimed
	Started         *metav1.Time
	// completed is when it ended.
	Completed  *metav1.Time
	BytesDone  int64
	TotalBytes int64
}

func FromBackup(pvb *velerov1.PodVolumeBackup) PodVolume {
	return PodVolume{
		Kind: Backup, Object: pvb,
		Pod: pvb.Spec.Pod, Volume: pvb.Spec.Volume,
		Location: pvb.Spec.BackupStorageLocation, RepoIdentifier: pvb.Spec.RepoIdentifier, RepoNamespace: pvb.Spec.Pod.Namespace,
		UploaderType: pvb.Spec.UploaderType, Settings: pvb.Spec.UploaderSettings,
		Phase: string(pvb.Status.Phase), CancelRequested: pvb.Spec.Cancel || string(pvb.Status.Phase) == PhaseCanceling,
		Message: pvb.Status.Message, Node: pvb.Spec.Node,
		Started: pvb.Status.StartTimestamp, Completed: pvb.Status.CompletionTimestamp, BytesDone: pvb.Status.Progress.BytesDone, TotalBytes: pvb.Status.Progress.TotalBytes,
	}
}

func FromRestore(pvr *velerov1.PodVolumeRestore) PodVolume {
	return PodVolume{
		Kind: Restore, Object: pvr,
		Pod: pvr.Spec.Pod, Volume: pvr.Spec.Volume,
		Location: pvr.Spec.BackupStorageLocation, RepoIdentifier: pvr.Spec.RepoIdentifier, RepoNamespace: pvr.Spec.SourceNamespace,
		UploaderType: pvr.Spec.UploaderType, Settings: pvr.Spec.UploaderSettings,
		Phase: string(pvr.Status.Phase), CancelRequested: pvr.Spec.Cancel || string(pvr.Status.Phase) == PhaseCanceling,
		Message: pvr.Status.Message, Node: pvr.Status.Node,
		Started: pvr.Status.StartTimestamp, Completed: pvr.Status.CompletionTimestamp, BytesDone: pvr.Status.Progress.BytesDone, TotalBytes: pvr.Status.Progress.TotalBytes,
	}
}

func FromObject(object client.Object) PodVolume {
	if pvb, ok := object.(*velerov1.PodVolumeBackup); ok {
		return FromBackup(pvb)
	}
	return FromRestore(object.(*velerov1.PodVolumeRestore))
}

// Key names a subject in the agent's memory: all of them live in one namespace.
type Key struct {
	Kind Kind
	Name string
}

func (s PodVolume) Key() Key { return Key{s.Kind, s.Object.GetName()} }

// String names the volume as people do.
func (s PodVolume) String() string {
	return fmt.Sprintf("volume %q of pod %s/%s", s.Volume, s.Pod.Namespace, s.Pod.Name)
}

// UploaderName is the data path that the subject asks for. Objects from before Velero 1.10 name none.
func (s PodVolume) UploaderName() string { return cmp.Or(s.UploaderType, "restic") }

func (s PodVolume) Terminal() bool {
	return s.Phase == PhaseCompleted || s.Phase == PhaseFailed || s.Phase == PhaseCanceled
}

// LastSnapshot is what an earlier process said of the subject; empty for one that nobody has touched.
func (s PodVolume) LastSnapshot() progress.Snapshot {
	var p progress.Snapshot
	if err := json.Unmarshal([]byte(s.Object.GetAnnotations()[v1alpha1.AnnotationProgress]), &p); err != nil {
		p = progress.Snapshot{}
	}
	p.BytesDone, p.TotalBytes = max(p.BytesDone, s.BytesDone), max(p.TotalBytes, s.TotalBytes)
	if s.Phase == PhaseInProgress {
		p.Attempt = max(p.Attempt, 1) // Velero's own agent leaves no annotation
	}
	return p
}

// maxResumes bounds how often the agents of a node leave an attempt of one operation uncounted: what makes kubelet stop the
// agent again and again, as a failing probe does, must not go on for ever.
const maxResumes = 10

// nextAttempt returns the number of the attempt that a new process makes, and what the object said of the earlier ones. A
// process that was told to stop, or ended while the operation waited, has left its attempt to this one.
func (s PodVolume) nextAttempt() (int, progress.Snapshot) {
	p := s.LastSnapshot()
	if p.Uncounted && p.Attempt > 0 && p.Resumes < maxResumes {
		p.Resumes++
		return p.Attempt, p
	}
	p.Uncounted = false
	return p.Attempt + 1, p
}

// intSetting returns a number out of uploaderSettings, 0 where there is none.
func (s PodVolume) intSetting(name string) (int, error) {
	text, ok := s.Settings[name]
	if !ok || text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, Permanent(ReasonInvalidSettings, fmt.Errorf("uploaderSettings %s=%q is not a number: correct it in the Backup's or Restore's uploaderConfig", name, text))
	}
	return n, nil
}

// boolSetting returns a truth value out of uploaderSettings, false where there is none.
func (s PodVolume) boolSetting(name string) (bool, error) {
	text, ok := s.Settings[name]
	if !ok || text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, Permanent(ReasonInvalidSettings, fmt.Errorf("uploaderSettings %s=%q is neither true nor false: correct it in the Restore's uploaderConfig", name, text))
	}
	return b, nil
}

// minAgeRemaining is how long the operation may not become terminal yet. A server of Velero 1.14 to 1.15 counts a
// PodVolumeBackup only after its create call has returned, and crashes over one that was faster than 2 s
// (docs/contracts/velero-node-agent.md 2.4). The agent's own clock is asked: that of the API server may be another one.
func (op *Operation) minAgeRemaining() time.Duration {
	if op.Kind == Restore || op.Phase == PhaseInProgress {
		return 0
	}
	return time.Until(op.began.Add(3 * time.Second))
}
