package v1alpha1

import (
	"encoding/json"
	"time"
)

// The documents in which Plimsoll says how far something is. Their writers and readers are of different versions at times, so
// fields are only added, never renamed or given another meaning. A reader ignores fields that it does not know, and treats a
// state, step or reason that it does not know as one without a special meaning. A writer owns its whole document and replaces
// it, with the fields that a newer version has written. Directory schema has a JSON schema and an example of each.

// State is the one word that tells people where a volume is.
type State string

// The states of a volume, in the order in which they usually come.
const (
	StateQueued       State = "Queued"       // waits for a slot on its node
	StateWaiting      State = "Waiting"      // waits for something else, named in Reason and Message
	StateScanning     State = "Scanning"     // scans the volume to determine its size
	StateTransferring State = "Transferring" // bytes move
	StateStalled      State = "Stalled"      // no byte moved and no other work was done for the stall time
	StateFinishing    State = "Finishing"    // everything is read, the last of it is being stored
	StateCompleted    State = "Completed"
	StateFailed       State = "Failed"
	StateCanceled     State = "Canceled"
)

// Terminal reports whether s is the last state of a volume.
func (s State) Terminal() bool {
	return s == StateCompleted || s == StateFailed || s == StateCanceled
}

// VolumeProgress is how far a PodVolumeBackup or PodVolumeRestore is: its annotation AnnotationProgress, as JSON. Where
// TotalBytes is known, 0 <= BytesDone <= TotalBytes; BytesDone never falls, and equals TotalBytes only in state Completed.
//
// +kubebuilder:object:generate=false
type VolumeProgress struct {
	State   State  `json:"state"`
	Reason  Reason `json:"reason,omitempty"`  // why it waits, is stalled, has failed, or lacks files although it completed
	Message string `json:"message,omitempty"` // the same for people: what it waits for, or why the last attempt ended

	BytesDone  int64 `json:"bytesDone"`
	TotalBytes int64 `json:"totalBytes"`           // 0: not known yet
	TotalFinal bool  `json:"totalFinal,omitempty"` // false: a percentage is provisional

	// SnapshotBytes is the size of the snapshot where it is less than TotalBytes: of a volume that changed while it was read.
	SnapshotBytes *int64 `json:"snapshotBytes,omitempty"`

	BytesPerSecond int64  `json:"bytesPerSecond"`       // over the last two minutes
	ETASeconds     *int64 `json:"etaSeconds,omitempty"` // absent: not known yet

	FilesDone     int64  `json:"filesDone,omitempty"`
	FilesTotal    int64  `json:"filesTotal,omitempty"`
	BytesUploaded int64  `json:"bytesUploaded,omitempty"`
	Errors        int64  `json:"errors,omitempty"`
	Vanished      int64  `json:"vanished,omitempty"` // entries of the volume that went away while it was read, at least
	LastError     string `json:"lastError,omitempty"`
	CurrentItem   string `json:"currentItem,omitempty"`

	StartTime        time.Time `json:"startTime,omitzero"`
	LastProgressTime time.Time `json:"lastProgressTime,omitzero"` // when a byte last moved
	LastWorkTime     time.Time `json:"lastWorkTime,omitzero"`     // when a sign of work was last seen, see LastWork; older writers do not tell
	Heartbeat        time.Time `json:"heartbeat,omitzero"`        // when the writer last looked

	Attempt int `json:"attempt,omitempty"` // 1 for the first try
	// Uncounted means that an agent that ends now leaves the attempt to the next one: it was told to stop, or the operation
	// waits for something that is not its data path. Otherwise the next agent begins another attempt.
	Uncounted     bool `json:"uncounted,omitempty"`
	Resumes       int  `json:"resumes,omitempty"`       // how often an attempt was left to the next agent like that
	QueuePosition int  `json:"queuePosition,omitempty"` // 1 is next; in state Queued only
}

// LastWork returns when the volume last showed a sign of work: a byte moved, an entry was found or listed, a flush advanced.
func (p *VolumeProgress) LastWork() time.Time {
	if p.LastWorkTime.After(p.LastProgressTime) {
		return p.LastWorkTime
	}
	return p.LastProgressTime
}

// AgentProgress is the answer of a node agent's endpoint /progress: what it works on at this moment.
//
// +kubebuilder:object:generate=false
type AgentProgress struct {
	Node       string           `json:"node"`
	Operations []AgentOperation `json:"operations"` // oldest first
}

// AgentOperation is one operation of a node agent.
//
// +kubebuilder:object:generate=false
type AgentOperation struct {
	Kind         string         `json:"kind"` // backup or restore
	Name         string         `json:"name"` // of the PodVolumeBackup or PodVolumeRestore
	UID          string         `json:"uid"`
	PodNamespace string         `json:"podNamespace"`
	Pod          string         `json:"pod"`
	Volume       string         `json:"volume"`
	Uploader     string         `json:"uploader"`
	Deadline     *time.Time     `json:"deadline,omitempty"` // a backup that has not ended by then is failed
	Progress     VolumeProgress `json:"progress"`
}

// RestoreStep is what a restore is doing.
type RestoreStep string

// The steps of a restore, in their order.
const (
	StepCollecting RestoreStep = "Collecting" // reads the backup and decides what is restored
	StepRestoring  RestoreStep = "Restoring"  // creates items
	StepVolumes    RestoreStep = "Volumes"    // all items were tried; node agents still copy volumes
	StepFinalizing RestoreStep = "Finalizing"
	StepDone       RestoreStep = "Done"
)

// RestoreProgress is how far a Restore is: its annotation AnnotationProgress, as JSON.
//
// +kubebuilder:object:generate=false
type RestoreProgress struct {
	Step RestoreStep `json:"step"`
	// Percent is that of items or bytes, whichever is further behind. Only a restore that is Completed has 100. As JSON it is
	// absent while the number of items is not known.
	Percent int             `json:"percent"`
	DryRun  bool            `json:"dryRun,omitempty"`
	Message string          `json:"message,omitempty"`
	Items   RestoreItems    `json:"items"`
	Volumes *RestoreVolumes `json:"volumes,omitempty"` // nil: there are none
	Hooks   *RestoreHooks   `json:"hooks,omitempty"`   // exec hooks; nil: there are none
	// Errors and Warnings are how many there were when all items had been tried, and at the end.
	Errors   int `json:"errors,omitempty"`
	Warnings int `json:"warnings,omitempty"`
}

// PercentKnown reports whether Percent has a meaning.
func (p *RestoreProgress) PercentKnown() bool { return p.Step != StepRestoring || p.Items.Total > 0 }

// MarshalJSON leaves out a percentage that is not known.
func (p RestoreProgress) MarshalJSON() ([]byte, error) {
	type plain RestoreProgress
	known := struct {
		plain
		Percent *int `json:"percent,omitempty"`
	}{plain: plain(p)}
	if p.PercentKnown() {
		known.Percent = &p.Percent
	}
	return json.Marshal(known)
}

// RestoreItems is how far a restore is with Kubernetes objects: 0 <= Restored <= Total. Total is the size of the union of what
// was restored and of what is still to be, so that items which others bring along adjust it and none counts twice.
//
// In one-phase mode Total is an estimate, the number of items in the backup, and Restored + Skipped <= Total. It is 0 until the
// end if the Backup does not say.
//
// +kubebuilder:object:generate=false
type RestoreItems struct {
	Total    int        `json:"totalItems"`
	Restored int        `json:"itemsRestored"`          // that were tried, whatever became of them
	Counts   ItemCounts `json:"counts"`                 // of those
	Current  string     `json:"current,omitempty"`      // the last one, such as "pods shop/web"
	Skipped  int        `json:"itemsSkipped,omitempty"` // that filters have left out; counted in one-phase mode only
	Estimate bool       `json:"estimate,omitempty"`     // Total is one
}

// Done returns the number of items of Total that were looked at: tried, or left out by filters.
func (i RestoreItems) Done() int { return i.Restored + i.Skipped }

// ItemCounts says what became of the items of a restore that were tried.
//
// +kubebuilder:object:generate=false
type ItemCounts struct {
	Created   int `json:"created"`
	Updated   int `json:"updated"`
	Unchanged int `json:"unchanged"` // was there already, equal
	Skipped   int `json:"skipped"`   // left alone on purpose, such as tokens and volumes that are provisioned anew
	Failed    int `json:"failed"`    // with an error, or there already, different, and not to be updated
}

// RestoreVolumes is how far all volumes of a Restore are together.
//
// +kubebuilder:object:generate=false
type RestoreVolumes struct {
	BytesDone  int64          `json:"bytesDone"`
	TotalBytes int64          `json:"totalBytes"` // as far as they are known
	Phases     map[string]int `json:"phases"`     // number of PodVolumeRestores
}

// RestoreHooks counts the exec hooks of a restore.
//
// +kubebuilder:object:generate=false
type RestoreHooks struct {
	Attempted int `json:"attempted"`
	Ended     int `json:"ended"`  // of those, well or not
	Failed    int `json:"failed"` // of those that have ended
}
