package progress

import "time"

// State is the one word that tells people where an operation is.
type State string

// The states of an operation, in the order in which they usually come.
const (
	StateQueued       State = "Queued"       // waits for a slot on its node
	StateWaiting      State = "Waiting"      // waits for something else, named in Reason
	StateScanning     State = "Scanning"     // finds out how much there is to do
	StateTransferring State = "Transferring" // bytes move
	StateStalled      State = "Stalled"      // no byte moved for the stall time, although it should
	StateFinishing    State = "Finishing"    // everything is read, the last of it is being stored
	StateCompleted    State = "Completed"
	StateFailed       State = "Failed"
	StateCanceled     State = "Canceled"
)

// Terminal says whether nothing comes after s.
func (s State) Terminal() bool {
	return s == StateCompleted || s == StateFailed || s == StateCanceled
}

// Snapshot is what people are told about an operation: an immutable value, ready to be stored as JSON in the
// annotation plimsoll.io/progress. Where TotalBytes is known, 0 <= BytesDone <= TotalBytes; BytesDone never falls, and
// equals TotalBytes only in state Completed.
type Snapshot struct {
	State  State  `json:"state"`
	Reason string `json:"reason,omitempty"` // what it waits for, or why the last attempt ended

	BytesDone  int64 `json:"bytesDone"`
	TotalBytes int64 `json:"totalBytes"`           // 0: not known yet
	TotalFinal bool  `json:"totalFinal,omitempty"` // false: a percentage is provisional

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
	Heartbeat        time.Time `json:"heartbeat,omitzero"`        // when the writer last looked

	Attempt int `json:"attempt,omitempty"` // 1 for the first try
	// Uncounted means that an agent that ends now leaves the attempt to the next one: it was told to stop, or the operation
	// waits for something that is not its data path. Otherwise the next agent begins another attempt.
	Uncounted     bool `json:"uncounted,omitempty"`
	Resumes       int  `json:"resumes,omitempty"`       // how often an attempt was left to the next agent like that
	QueuePosition int  `json:"queuePosition,omitempty"` // 1 is next; in state Queued only
}
