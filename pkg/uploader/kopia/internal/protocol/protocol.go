// Package protocol is what the node agent and its kopia worker say to each other: one Request on stdin, and a Message in each line
// of stdout.
package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Args are the arguments that make a program a worker.
var Args = []string{"worker", "kopia"}

// Operation is what a worker is to do.
type Operation string

// The operations.
const (
	OpBackup     Operation = "backup"
	OpRestore    Operation = "restore"
	OpInitialize Operation = "initialize"
	OpOpen       Operation = "open"
	OpClear      Operation = "clear"
	OpVerify     Operation = "verify"
	OpCheck      Operation = "check"
	OpList       Operation = "list"
	OpRead       Operation = "read"
	OpDiff       Operation = "diff"
	OpUsage      Operation = "usage"
	OpMeasure    Operation = "measure"
	OpForget     Operation = "forget"
	OpMaintain   Operation = "maintain"
	OpImport     Operation = "import"
	OpImported   Operation = "imported"
	OpSnapshots  Operation = "snapshots"

	OpRepairIndex Operation = "repair index"
)

// Request is all that a worker is told. It travels on stdin, secrets included, as gob because JSON would change bytes
// that are not UTF-8, which passwords and paths may have.
type Request struct {
	Form      string // Form() of the agent
	Operation Operation

	Directory             string            // a repository in the file system, else empty
	Storage               *uploader.Storage // any other repository
	Password              string
	Env                   map[string]string // for the libraries of the clouds
	InsecureSkipTLSVerify bool
	ReadOnly              bool

	ConfigFile                 string // where kopia may keep the way to the repository for the time of the run
	CacheDir                   string // empty: no cache
	CacheLimit                 int64  // bytes
	UploadLimit, DownloadLimit int64  // bytes per second; 0: none

	ProgressInterval   time.Duration
	CheckpointInterval time.Duration
	Parallel           int

	Source, Parent string            // backup; import: Source
	VolumeID       string            // backup
	Tags           map[string]string // backup, import
	Origin         string            // import
	// Previous is the snapshot of another import, of PreviousOrigin, that unchanged entries are taken from; empty: none. For import.
	Previous, PreviousOrigin string

	Snapshot   string   // restore, verify, list, read, diff
	Other      string   // diff: the newer snapshot
	TotalBytes int64    // restore, verify, import
	Sparse     bool     // restore
	Paths      []string // restore: relative to the snapshot's root; none: all of it

	SamplePart, SampleParts int // verify: as in uploader.VerifyRequest

	Path      string // list, read: relative to the snapshot's root
	Recursive bool   // list
	Offset    int64  // read

	Forget []uploader.ForgetSnapshot // forget

	ReadData bool     // check: uploader.CheckRequest.ReadData
	Wanted   []string // check: uploader.CheckRequest.Snapshots

	Apply, Full bool // maintain

	Parts      []string      // clear, measure
	PackPart   string        // measure: how the names of packs begin
	Unfinished string        // clear
	Quiet      time.Duration // initialize, clear: see uploader.Remains
}

// Form describes the protocol. An agent and a worker of different versions may not have the same: a worker that does not know
// a field would leave out silently what it asks for.
func Form() string {
	return fmt.Sprintf("%+v %+v %+v %+v", Request{}, Result{}, progress.Reading{}, Entry{}) + fmt.Sprintf(" %+v %+v %+v %+v %+v", Change{}, Snapshot{}, Frame{}, uploader.ForgetSnapshot{}, Forgotten{}) + fmt.Sprintf(" %+v %+v", uploader.CheckResult{}, uploader.IndexRepair{})
}

// Frame is a part of what follows the Request of an import on stdin, as gob, too: an Entry, then a file's content in pieces of Data
// that have its size together, unless it is Unchanged since Previous. End is the last one: without it the worker must not take what came
// for all.
type Frame struct {
	Entry     *Entry
	Unchanged bool
	Data      []byte
	End       *End
}

// End says that everything has come.
type End struct {
	Time       time.Time // when the snapshot was made
	Attributes int64     // entries with extended attributes, which have not come
}

// Message is one line of a worker's stdout. Exactly one of its fields is set; a result or a failure is the last one.
type Message struct {
	Reading *progress.Reading `json:"reading,omitempty"`
	Note    *Note             `json:"note,omitempty"`
	Entry   *Entry            `json:"entry,omitempty"`  // list
	Change  *Change           `json:"change,omitempty"` // diff
	Data    []byte            `json:"data,omitempty"`   // read: at most MaxData bytes

	Snapshot  *Snapshot  `json:"snapshot,omitempty"`  // usage, imported, snapshots; forget: all there are before the first is removed
	Forgotten *Forgotten `json:"forgotten,omitempty"` // forget: one for each snapshot of the request, in its order

	Result  *Result  `json:"result,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
}

// Snapshot is one of a finished backup.
type Snapshot struct {
	ID    string    `json:"id"`
	Time  time.Time `json:"time"`
	Bytes *int64    `json:"bytes,omitempty"` // absent: not recorded

	Origin string `json:"origin,omitempty"` // imported

	Described *uploader.RepositorySnapshot `json:"described,omitempty"` // snapshots
}

// Forgotten is what became of a snapshot that was to be removed.
type Forgotten struct {
	State uploader.ForgetState `json:"state"`
	Why   string               `json:"why,omitempty"`
}

// Usage is what a repository holds, and what it takes.
type Usage struct {
	Unfinished int64                `json:"unfinished,omitempty"`
	Pieces     int64                `json:"pieces,omitempty"`
	DataBytes  int64                `json:"dataBytes,omitempty"`
	RawBytes   int64                `json:"rawBytes,omitempty"`
	Storage    uploader.StorageSize `json:"storage,omitzero"`
}

// Entry is one entry of a snapshot. Names are bytes, since JSON would change those that are no UTF-8.
type Entry struct {
	Path    []byte      `json:"path"` // relative to the snapshot's root
	Mode    os.FileMode `json:"mode"`
	Size    int64       `json:"size"`
	ModTime time.Time   `json:"modTime"`
	Target  []byte      `json:"target,omitempty"`
	UID     uint32      `json:"uid,omitempty"`
	GID     uint32      `json:"gid,omitempty"`
}

// Change is an entry that two snapshots do not have alike.
type Change struct {
	From    *Entry `json:"from,omitempty"` // absent: added
	To      *Entry `json:"to,omitempty"`   // absent: removed
	Content bool   `json:"content,omitempty"`
}

// Note is something for the agent's log.
type Note struct {
	Level slog.Level `json:"level"`
	Text  string     `json:"text"`
}

// Result is what a worker has done.
type Result struct {
	SnapshotID            string   `json:"snapshotID,omitempty"`
	TotalBytes            int64    `json:"totalBytes"`
	TotalFiles            int64    `json:"totalFiles,omitempty"`
	SizesOnDisk           int64    `json:"sizesOnDisk,omitempty"` // restore
	BytesUploaded         int64    `json:"bytesUploaded,omitempty"`
	Errors                int64    `json:"errors,omitempty"`
	Vanished              int64    `json:"vanished,omitempty"`            // backup
	VanishedDirectories   int64    `json:"vanishedDirectories,omitempty"` // backup
	Excluded              int64    `json:"excluded,omitempty"`            // backup
	FailedPaths           []string `json:"failedPaths,omitempty"`
	UnreadableDirectories int64    `json:"unreadableDirectories,omitempty"` // backup
	LastError             string   `json:"lastError,omitempty"`             // restore, verify

	Sampled     bool  `json:"sampled,omitempty"`     // verify
	NotCompared int64 `json:"notCompared,omitempty"` // verify
	Absent      int64 `json:"absent,omitempty"`      // verify
	SameNames   int64 `json:"sameNames,omitempty"`   // verify

	Lost []string `json:"lost,omitempty"` // forget

	Special    int64 `json:"special,omitempty"`    // import
	Attributes int64 `json:"attributes,omitempty"` // import

	Reused      int64 `json:"reused,omitempty"`      // import: those of TotalFiles whose content is that of Previous
	ReusedBytes int64 `json:"reusedBytes,omitempty"` // import

	Contents volume.Contents  `json:"contents,omitzero"` // restore
	Refused  uploader.Refused `json:"refused,omitzero"`  // restore

	Check *uploader.CheckResult `json:"check,omitempty"` // check

	Repair *uploader.IndexRepair `json:"repair,omitempty"` // repair index

	Usage Usage `json:"usage,omitzero"` // usage, measure; of usage, imported, snapshots and forget, TotalFiles is the number of snapshots
}

var snapshotID = regexp.MustCompile(`^[0-9a-f]+$`)

// IsSnapshotID reports whether id looks like the id of a snapshot.
func IsSnapshotID(id string) bool { return snapshotID.MatchString(id) }

// Bounds of what a worker may say.
const (
	MaxFailedPaths = 20
	MaxData        = 64 << 10
	MaxText        = 16 << 10 // a path of PATH_MAX bytes, each of them quoted
	maxSnapshotID  = 64
)

// Decode reads one line. It is strict: a worker that says anything unexpected is not to be trusted with the rest.
func Decode(line []byte) (Message, error) {
	var m Message
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return Message{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Message{}, errors.New("more than one value in a line")
	}
	return m, m.check()
}

func (m Message) check() error {
	set := 0
	for _, is := range []bool{m.Reading != nil, m.Note != nil, m.Entry != nil, m.Change != nil, m.Data != nil, m.Snapshot != nil, m.Forgotten != nil, m.Result != nil, m.Failure != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("%d messages in a line", set)
	}
	switch {
	case m.Reading != nil:
		return checkReading(*m.Reading)
	case m.Note != nil:
		return checkText(m.Note.Text)
	case m.Entry != nil:
		return m.Entry.check()
	case m.Change != nil:
		return m.Change.check()
	case m.Data != nil:
		return checkData(m.Data)
	case m.Snapshot != nil:
		return m.Snapshot.check()
	case m.Forgotten != nil:
		return m.Forgotten.check()
	case m.Failure != nil:
		return checkText(m.Failure.Text, string(m.Failure.Cause))
	default:
		return m.Result.check()
	}
}

func checkReading(r progress.Reading) error {
	switch r.Stage {
	case progress.StageUnknown, progress.StageWaiting, progress.StageScanning, progress.StageTransferring, progress.StageFinishing:
	default:
		return errors.New("unknown stage")
	}
	if err := checkText(string(r.Reason), r.Message, r.LastError, r.CurrentItem); err != nil {
		return err
	}
	return checkCounts(r.BytesDone, r.TotalBytes, r.FilesDone, r.FilesTotal, r.BytesUploaded, r.Errors, r.Vanished, r.Steps)
}

func (r *Result) check() error {
	if len(r.FailedPaths) > MaxFailedPaths || len(r.Lost) > uploader.MaxExamples {
		return fmt.Errorf("%d failed paths, %d lost snapshots", len(r.FailedPaths), len(r.Lost))
	}
	if err := checkText(append(append(slices.Clone(r.FailedPaths), r.SnapshotID, r.LastError, r.Refused.Example), r.Lost...)...); err != nil {
		return err
	}
	if r.Check != nil {
		if err := checkCheck(r.Check); err != nil {
			return err
		}
	}
	if r.Repair != nil {
		if err := errors.Join(checkText(r.Repair.Example), checkCounts(r.Repair.Added, r.Repair.Gone, r.Repair.Unread, r.Repair.BadIndexes)); err != nil {
			return err
		}
	}
	return checkCounts(r.TotalBytes, r.TotalFiles, r.SizesOnDisk, r.BytesUploaded, r.Errors, r.UnreadableDirectories, r.Vanished, r.VanishedDirectories, r.Excluded, r.NotCompared, r.Absent, r.SameNames, r.Special, r.Attributes,
		r.Refused.Owners, r.Refused.Modes, r.Refused.Times,
		r.Contents.Directories, r.Contents.Links, r.Contents.Files, r.Contents.Bytes,
		r.Usage.Unfinished, r.Usage.Pieces, r.Usage.DataBytes, r.Usage.RawBytes, r.Usage.Storage.Objects, r.Usage.Storage.Bytes, r.Usage.Storage.Packs, r.Usage.Storage.PackBytes)
}

func checkCheck(c *uploader.CheckResult) error {
	texts := []string{c.LockError, c.LastError, c.TouchError, c.Note}
	for _, list := range [][]string{c.DamagedPacks, c.TouchedPaths, c.Remedies} {
		if len(list) > uploader.MaxExamples {
			return fmt.Errorf("a list of %d texts", len(list))
		}
		texts = append(texts, list...)
	}
	if len(c.TouchedSnapshots) > uploader.MaxTouched {
		return fmt.Errorf("a list of %d snapshots", len(c.TouchedSnapshots))
	}
	texts = append(texts, c.TouchedSnapshots...)
	if len(c.Locks) > 0 || c.Looks <= 0 {
		return fmt.Errorf("%d locks after %d looks", len(c.Locks), c.Looks)
	}
	return errors.Join(checkText(texts...), checkCounts(c.Snapshots, c.Packs, c.Damaged, c.Unread, c.Touched))
}

func (s *Snapshot) check() error {
	if !IsSnapshotID(s.ID) || len(s.ID) > maxSnapshotID {
		return fmt.Errorf("a snapshot with an id of %d bytes", len(s.ID))
	}
	if s.Bytes == nil {
		return checkText(s.Origin)
	}
	return errors.Join(checkText(s.Origin), checkCounts(*s.Bytes))
}

func (f *Forgotten) check() error {
	switch f.State {
	case uploader.ForgetRemoved, uploader.ForgetNotFound, uploader.ForgetRefused, uploader.ForgetPresent:
		return checkText(f.Why)
	default:
		return errors.New("unknown state of a snapshot")
	}
}

func (e *Entry) check() error {
	if len(e.Path) == 0 || len(e.Path) > MaxText || len(e.Target) > MaxText || e.Target != nil && len(e.Target) == 0 {
		return fmt.Errorf("an entry with a path of %d bytes that leads to one of %d", len(e.Path), len(e.Target))
	}
	return checkCounts(e.Size)
}

func (c *Change) check() error {
	if c.From == nil && c.To == nil || c.From != nil && c.To != nil && !bytes.Equal(c.From.Path, c.To.Path) {
		return errors.New("a change that is not one of one entry")
	}
	for _, e := range []*Entry{c.From, c.To} {
		if e == nil {
			continue
		}
		if err := e.check(); err != nil {
			return err
		}
	}
	return nil
}

func checkData(data []byte) error {
	if len(data) == 0 || len(data) > MaxData {
		return fmt.Errorf("%d bytes of data", len(data))
	}
	return nil
}

func checkText(texts ...string) error {
	for _, text := range texts {
		if len(text) > MaxText {
			return fmt.Errorf("a text of %d bytes", len(text))
		}
	}
	return nil
}

func checkCounts(counts ...int64) error {
	for _, n := range counts {
		if n < 0 {
			return fmt.Errorf("the count %d", n)
		}
	}
	return nil
}
