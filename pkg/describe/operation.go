package describe

import (
	"cmp"
	"encoding/json"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// The kinds of operations.
const (
	KindBackup  = "Backup"
	KindRestore = "Restore"
)

// Operation is a Backup or a Restore.
type Operation struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`

	Phase            string   `json:"phase"` // New where the object has none yet
	FailureReason    string   `json:"failureReason,omitempty"`
	ValidationErrors []string `json:"validationErrors,omitempty"`
	Errors           int      `json:"errors"`
	Warnings         int      `json:"warnings"`

	Backup   string        `json:"backup,omitempty"`          // what a restore restores
	Schedule string        `json:"schedule,omitempty"`        // what a backup or restore comes from
	Location string        `json:"storageLocation,omitempty"` // of a backup
	TTL      time.Duration `json:"ttl,omitempty"`             // of a backup, in nanoseconds
	Items    Items         `json:"items"`

	// Operations are the asynchronous ones of plugins and data movers, such as the movement of CSI snapshots.
	Operations    Operations `json:"operations,omitzero"`
	QueuePosition int        `json:"queuePosition,omitempty"` // of a backup, in phase Queued of Velero 1.18

	Created    time.Time `json:"created"`
	Started    time.Time `json:"started,omitzero"`
	Completed  time.Time `json:"completed,omitzero"`
	Expiration time.Time `json:"expiration,omitzero"` // of a backup
}

// Operations says how many asynchronous operations were begun and have ended.
type Operations struct {
	Attempted int `json:"attempted"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// Items says how far an operation is with the Kubernetes objects.
type Items struct {
	Done  int `json:"done"`  // that were looked at: tried, or left out by filters
	Total int `json:"total"` // 0: not known yet

	// What follows comes from our restore controller only.
	Step     v1alpha1.RestoreStep `json:"step,omitempty"`
	Percent  *int                 `json:"percent,omitempty"` // of items or bytes, whichever is further behind
	Message  string               `json:"message,omitempty"`
	Current  string               `json:"current,omitempty"`
	DryRun   bool                 `json:"dryRun,omitempty"`
	Estimate bool                 `json:"estimate,omitempty"` // Total is one
	Skipped  int                  `json:"skipped,omitempty"`  // of Done, left out by filters; counted in one-phase mode only
	Counts   v1alpha1.ItemCounts  `json:"counts,omitzero"`    // of the rest of Done
}

// Share is the percentage of items that were looked at, rounded down. It is false while the total is not known.
func (i *Items) Share() (int, bool) {
	switch {
	case i.Total <= 0, i.DryRun && i.Step != v1alpha1.StepDone: // a dry run counts none, and has looked at all when it ends
		return 0, false
	case i.DryRun:
		return 100, true
	case i.Done >= i.Total:
		return 100, true
	}
	return percent(int64(max(i.Done, 0)), int64(i.Total)), true
}

// OfBackup describes a Backup.
func OfBackup(b *velerov1.Backup) Operation {
	o := newOperation(KindBackup, b)
	s := &b.Status
	o.Phase, o.FailureReason, o.ValidationErrors = cmp.Or(string(s.Phase), "New"), s.FailureReason, s.ValidationErrors
	o.Errors, o.Warnings = s.Errors, s.Warnings
	o.Schedule, o.Location, o.TTL = b.Labels[velerov1.ScheduleNameLabel], b.Spec.StorageLocation, b.Spec.TTL.Duration
	o.Started, o.Completed, o.Expiration = timeOf(s.StartTimestamp), timeOf(s.CompletionTimestamp), timeOf(s.Expiration)
	o.Operations = Operations{s.BackupItemOperationsAttempted, s.BackupItemOperationsCompleted, s.BackupItemOperationsFailed}
	o.QueuePosition = s.QueuePosition
	if s.Progress != nil {
		o.Items.Done, o.Items.Total = s.Progress.ItemsBackedUp, s.Progress.TotalItems
	}
	return o
}

// OfRestore describes a Restore, with what our restore controller tells in its annotation where there is one.
func OfRestore(r *velerov1.Restore) Operation {
	o := newOperation(KindRestore, r)
	s := &r.Status
	o.Phase, o.FailureReason, o.ValidationErrors = cmp.Or(string(s.Phase), "New"), s.FailureReason, s.ValidationErrors
	o.Errors, o.Warnings = s.Errors, s.Warnings
	o.Backup, o.Schedule = r.Spec.BackupName, r.Spec.ScheduleName
	o.Started, o.Completed = timeOf(s.StartTimestamp), timeOf(s.CompletionTimestamp)
	o.Operations = Operations{s.RestoreItemOperationsAttempted, s.RestoreItemOperationsCompleted, s.RestoreItemOperationsFailed}
	if s.Progress != nil {
		o.Items.Done, o.Items.Total = s.Progress.ItemsRestored, s.Progress.TotalItems
	}
	o.Items.setProgress(r.Annotations[v1alpha1.AnnotationProgress])
	return o
}

// setProgress takes the annotation of our restore controller, if there is one.
func (i *Items) setProgress(annotation string) {
	var told v1alpha1.RestoreProgress
	if json.Unmarshal([]byte(annotation), &told) != nil {
		return
	}
	i.Done, i.Total = told.Items.Done(), told.Items.Total
	i.Step, i.Message, i.DryRun = told.Step, told.Message, told.DryRun
	if told.Step != "" && told.PercentKnown() {
		i.Percent = &told.Percent
	}
	i.Current, i.Estimate, i.Skipped, i.Counts = told.Items.Current, told.Items.Estimate, told.Items.Skipped, told.Items.Counts
}

func newOperation(kind string, o metav1.Object) Operation {
	return Operation{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), Created: o.GetCreationTimestamp().Time}
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// Owns reports whether a volume belongs to the operation, and not to an earlier one of its name. What a plugin restores names only
// the backup that it comes from: it belongs to the restore of that backup that ran when it was created.
func (o *Operation) Owns(v *Volume) bool {
	if v.Restores() != (o.Kind == KindRestore) {
		return false
	}
	if v.Kind == KindVolumePluginRestore {
		return v.Owner == o.Backup && !v.Created.Before(o.Created) && (o.Completed.IsZero() || !v.Created.After(o.Completed))
	}
	if v.OwnerUID != "" {
		return v.OwnerUID == o.UID
	}
	return v.Owner == o.Name
}

// Verdict is what an operation has come to.
type Verdict string

// The verdicts. Velero's phases that say the same of backups and restores are one verdict.
const (
	VerdictRunning   Verdict = "Running"
	VerdictCompleted Verdict = "Completed"
	VerdictPartial   Verdict = "PartiallyFailed"
	VerdictFailed    Verdict = "Failed"   // or refused
	VerdictDeleting  Verdict = "Deleting" // of a Backup that had ended: how is not known any more
)

// Verdict returns the operation's state: running, or how it ended (docs/contracts/velero-restore.md 3.2 has the phases).
func (o *Operation) Verdict() Verdict {
	switch o.Phase {
	case string(velerov1.BackupPhaseCompleted):
		return VerdictCompleted
	case string(velerov1.BackupPhasePartiallyFailed):
		return VerdictPartial
	case string(velerov1.BackupPhaseFailed), string(velerov1.BackupPhaseFailedValidation):
		return VerdictFailed
	case string(velerov1.BackupPhaseDeleting): // which servers refuse while it runs, and where it stays if its deletion fails
		return VerdictDeleting
	default:
		return VerdictRunning
	}
}
