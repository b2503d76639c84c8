package podvolume

import (
	"encoding/json"
	"fmt"
	"strconv"

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

// The phases of PodVolumeBackups and PodVolumeRestores. They have the same names; Canceling and Canceled exist since
// Velero 1.17 (docs/contracts/velero-node-agent.md 1.2).
const (
	PhaseNew        = string(velerov1.PodVolumeBackupPhaseNew)
	PhaseInProgress = string(velerov1.PodVolumeBackupPhaseInProgress)
	PhaseCompleted  = string(velerov1.PodVolumeBackupPhaseCompleted)
	PhaseFailed     = string(velerov1.PodVolumeBackupPhaseFailed)
	PhaseCanceling  = string(velerov1.PodVolumeBackupPhaseCanceling)
	PhaseCanceled   = string(velerov1.PodVolumeBackupPhaseCanceled)
)

// PodVolume has what a PodVolumeBackup and a PodVolumeRestore have in common, as of when the object was read.
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
	Node            string // that serves it; a restore has none before its claim
	Started         *metav1.Time
	Completed       *metav1.Time // when it ended
	BytesDone       int64
	TotalBytes      int64
}

// FromBackup returns the PodVolume of a PodVolumeBackup.
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

// FromRestore returns the PodVolume of a PodVolumeRestore.
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

// FromObject returns the PodVolume of a PodVolumeBackup or PodVolumeRestore.
func FromObject(object client.Object) PodVolume {
	if pvb, ok := object.(*velerov1.PodVolumeBackup); ok {
		return FromBackup(pvb)
	}
	return FromRestore(object.(*velerov1.PodVolumeRestore))
}

// Key identifies an object in the agent's namespace.
type Key struct {
	Kind Kind
	Name string
}

// Key returns the key of the object.
func (pv PodVolume) Key() Key { return Key{pv.Kind, pv.Object.GetName()} }

// String returns the volume's name for messages.
func (pv PodVolume) String() string {
	return fmt.Sprintf("volume %q of pod %s/%s", pv.Volume, pv.Pod.Namespace, pv.Pod.Name)
}

// UploaderName returns the uploader type. Objects from before Velero 1.10 have none, and mean restic.
func (pv PodVolume) UploaderName() string { return v1alpha1.UploaderName(pv.UploaderType) }

// Terminal reports whether the object has ended.
func (pv PodVolume) Terminal() bool {
	return pv.Phase == PhaseCompleted || pv.Phase == PhaseFailed || pv.Phase == PhaseCanceled
}

// LastSnapshot returns the progress that the object shows, empty for an object that no agent has claimed.
func (pv PodVolume) LastSnapshot() progress.Snapshot {
	var p progress.Snapshot
	if err := json.Unmarshal([]byte(pv.Object.GetAnnotations()[v1alpha1.AnnotationProgress]), &p); err != nil {
		p = progress.Snapshot{}
	}
	p.BytesDone, p.TotalBytes = max(p.BytesDone, pv.BytesDone), max(p.TotalBytes, pv.TotalBytes)
	if pv.Phase == PhaseInProgress {
		p.Attempt = max(p.Attempt, 1) // Velero's own agent leaves no annotation
	}
	return p
}

// maxResumes bounds how often an interrupted attempt of one operation is not counted: whatever makes kubelet stop the agent again
// and again, such as a failing probe, must not go on for ever.
const maxResumes = 10

// nextAttempt returns the number of the attempt that a new process makes, and the progress that the object shows. It continues
// the attempt of a process that was told to stop, or that ended while the operation waited.
func (pv PodVolume) nextAttempt() (int, progress.Snapshot) {
	p := pv.LastSnapshot()
	if p.Uncounted && p.Attempt > 0 && p.Resumes < maxResumes {
		p.Resumes++
		return p.Attempt, p
	}
	p.Uncounted = false
	return p.Attempt + 1, p
}

// intSetting returns a number from uploaderSettings, 0 if it is not set.
func (pv PodVolume) intSetting(name string) (int, error) {
	text, ok := pv.Settings[name]
	if !ok || text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, Permanent(v1alpha1.ReasonInvalidSettings, fmt.Errorf("uploaderSettings %s=%q is not a number: correct it in the Backup's or Restore's uploaderConfig", name, text))
	}
	return n, nil
}

// boolSetting returns a boolean from uploaderSettings, false if it is not set.
func (pv PodVolume) boolSetting(name string) (bool, error) {
	text, ok := pv.Settings[name]
	if !ok || text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, Permanent(v1alpha1.ReasonInvalidSettings, fmt.Errorf("uploaderSettings %s=%q is neither true nor false: correct it in the Restore's uploaderConfig", name, text))
	}
	return b, nil
}

// StopRequest returns why the operation is asked to end, nil if it is not.
func (pv PodVolume) StopRequest() error {
	switch {
	case pv.Object.GetDeletionTimestamp() != nil:
		return ErrDeleted
	case pv.CancelRequested:
		return ErrCanceled
	default:
		return nil
	}
}

// emptyObject returns an empty object of pv's type, to read into.
func (pv PodVolume) emptyObject() client.Object {
	if pv.Kind == Backup {
		return &velerov1.PodVolumeBackup{}
	}
	return &velerov1.PodVolumeRestore{}
}
