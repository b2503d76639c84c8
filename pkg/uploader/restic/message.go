package restic

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"syscall"

	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// message is one line of restic's JSON output: the union of what the versions print (docs/contracts/restic-kopia.md 1 to 3).
// A field that a line lacks is zero.
type message struct {
	Type   string `json:"message_type"`
	Action string `json:"action"` // restic 0.14 gives the lines of --verbose the type "status" and this

	TotalFiles       uint64   `json:"total_files"`
	TotalBytes       uint64   `json:"total_bytes"`
	FilesDone        uint64   `json:"files_done"`
	BytesDone        uint64   `json:"bytes_done"`
	SecondsRemaining uint64   `json:"seconds_remaining"`
	CurrentFiles     []string `json:"current_files"`

	FilesRestored uint64 `json:"files_restored"`
	BytesRestored uint64 `json:"bytes_restored"`
	FilesSkipped  uint64 `json:"files_skipped"`
	BytesSkipped  uint64 `json:"bytes_skipped"`

	SnapshotID          string `json:"snapshot_id"`
	DataAdded           uint64 `json:"data_added"`
	DataAddedPacked     uint64 `json:"data_added_packed"` // compressed; since restic 0.17
	TotalFilesProcessed uint64 `json:"total_files_processed"`
	TotalBytesProcessed uint64 `json:"total_bytes_processed"`

	Error   json.RawMessage `json:"error"`
	During  string          `json:"during"`
	Item    string          `json:"item"`
	Message string          `json:"message"`
}

// The types of message that count here; any other is ignored.
const (
	typeStatus    = "status"
	typeSummary   = "summary"
	typeError     = "error"
	typeExitError = "exit_error"
)

// decode reads a line into m and reports whether it is JSON. The slices of m are used again for the next line.
func (m *message) decode(line []byte) bool {
	*m = message{CurrentFiles: m.CurrentFiles[:0], Error: m.Error[:0]}
	return json.Unmarshal(line, m) == nil
}

const noReason = "restic gives no reason"

// errorText says what went wrong with an item. Up to restic 0.16 the error's text is lost: what remains of it is the
// JSON form of Go's error value, as in {"Op":"open","Path":"un/noread","Err":13} or {}.
func (m *message) errorText() string {
	var e struct {
		Message string `json:"message"`
		Op      string
		Path    string
		Err     json.RawMessage
	}
	if json.Unmarshal(m.Error, &e) != nil {
		return noReason
	}
	errno, err := strconv.ParseUint(string(e.Err), 10, 16)
	switch {
	case e.Message != "":
		return strings.TrimSuffix(e.Message, "\n")
	case err == nil && e.Op != "":
		return strings.TrimSpace(e.Op + " " + e.Path + ": " + syscall.Errno(errno).Error())
	default:
		return noReason
	}
}

// looksLikeJSON reports whether a line of stderr may be a message; restic mixes plain text into it even with --json.
func looksLikeJSON(line []byte) bool { return bytes.HasPrefix(line, []byte("{")) }

// maxText bounds what is kept of a path or of an error's text, in bytes.
const maxText = 512

// printable makes what restic says fit for a message, a log or an annotation.
func printable(said string) string { return text.Line(said, maxText) }
