// Package protocol is what the server of FileRequests and its clients say to each other: HTTP through a port-forward.
//
// Each answer begins with status 200 as soon as the token is accepted, and ends with an End in the trailer, which alone says
// that the answer is complete. Lists are JSON values, one a line. Content is the bytes themselves.
package protocol

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// The questions about a FileRequest.
const (
	Volumes = "volumes" // answered by Volumes, the newest of each volume first
	Entries = "entries" // answered by Entries
	Content = "content" // answered by the bytes of a file or of a tar archive
	Diff    = "diff"    // answered by Changes, each directory's before those of what it holds
)

// The headers of an answer with content.
const (
	HeaderType = "Plimsoll-Type" // TypeFile or TypeDirectory
	HeaderSize = "Plimsoll-Size" // of a file, in bytes
	// HeaderOffset is how many bytes of a directory's archive are left out. Servers that leave out none do not send it.
	HeaderOffset = "Plimsoll-Offset"

	TypeFile      = "file"
	TypeDirectory = "directory"
)

// TrailerEnd holds an End.
const TrailerEnd = "Plimsoll-End"

// End is how an answer ended.
type End struct {
	Complete     bool   `json:"complete,omitempty"`
	Error        string `json:"error,omitempty"`        // one line of printable text
	NotFound     bool   `json:"notFound,omitempty"`     // the snapshot has no such path
	SessionEnded bool   `json:"sessionEnded,omitempty"` // the session has ended, and with it the answer: another session may answer the question
	SHA256       string `json:"sha256,omitempty"`       // of all content, that before the offset included
}

// Encode returns the trailer's value. It is of ASCII only.
func (e End) Encode() string {
	text, _ := json.Marshal(e) // never fails
	return base64.StdEncoding.EncodeToString(text)
}

// DecodeEnd reads the trailer of an answer whose body was read to its end.
func DecodeEnd(trailer http.Header) (End, error) {
	var e End
	text, err := base64.StdEncoding.DecodeString(trailer.Get(TrailerEnd))
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		return End{}, fmt.Errorf("the answer has no end: %w", err)
	}
	return e, nil
}

// Volume is one backup of a volume.
type Volume struct {
	PodVolumeBackup string    `json:"podVolumeBackup"`
	UID             string    `json:"uid"`              // of the PodVolumeBackup
	Backup          string    `json:"backup,omitempty"` // empty: it belongs to none
	Namespace       string    `json:"namespace"`
	Pod             string    `json:"pod"`
	Volume          string    `json:"volume"`
	Uploader        string    `json:"uploader"`
	SnapshotID      string    `json:"snapshotID,omitempty"` // empty with a Problem, or where the volume was empty
	Time            time.Time `json:"time"`                 // of the backup
	Problem         string    `json:"problem,omitempty"`    // why there is no snapshot that can be read, where there should be one
	Other           bool      `json:"other,omitempty"`      // selected by the FileRequest's spec.other
}

// Entry is one entry of a snapshot. Names are bytes, since JSON would change those that are no UTF-8.
type Entry struct {
	Path    []byte      `json:"path"` // relative to the volume
	Mode    os.FileMode `json:"mode"`
	Size    int64       `json:"size"`
	ModTime time.Time   `json:"modTime"`
	Target  []byte      `json:"target,omitempty"` // of a symbolic link
	UID     uint32      `json:"uid,omitempty"`
	GID     uint32      `json:"gid,omitempty"`
}

// Change is an entry that two snapshots do not have alike.
type Change struct {
	From    *Entry   `json:"from,omitempty"`    // absent: the entry was added
	To      *Entry   `json:"to,omitempty"`      // absent: the entry was removed
	Differs []string `json:"differs,omitempty"` // in which respects, as in uploader.Difference; for entries of both
}

// Query is what a client asks about a volume.
type Query struct {
	PodVolumeBackup string
	Path            string // relative to the volume
	Recursive       bool   // Entries
	Name            string // Entries: a pattern (path.Match) of the names that are wanted; empty: all
	Offset          int64  // Content: leave out so many bytes of a file, or of a directory's archive (see HeaderOffset)
	Other           string // Diff: the PodVolumeBackup that it is compared with, the newer one
}

// Encode returns the query of a URL, which takes any bytes.
func (q *Query) Encode() string {
	v := url.Values{"volume": {q.PodVolumeBackup}, "path": {q.Path}}
	if q.Recursive {
		v.Set("recursive", "true")
	}
	if q.Name != "" {
		v.Set("name", q.Name)
	}
	if q.Offset > 0 {
		v.Set("offset", strconv.FormatInt(q.Offset, 10))
	}
	if q.Other != "" {
		v.Set("other", q.Other)
	}
	return v.Encode()
}

// ParseQuery reads what Encode wrote.
func ParseQuery(v url.Values) (Query, error) {
	q := Query{PodVolumeBackup: v.Get("volume"), Path: v.Get("path"), Recursive: v.Get("recursive") == "true", Name: v.Get("name"), Other: v.Get("other")}
	if v.Has("offset") {
		var err error
		if q.Offset, err = strconv.ParseInt(v.Get("offset"), 10, 64); err != nil || q.Offset < 0 {
			return Query{}, fmt.Errorf("offset %q is not a number of bytes", v.Get("offset"))
		}
	}
	if err := CheckPath(q.Path); err != nil {
		return Query{}, err
	}
	if _, err := path.Match(q.Name, ""); err != nil {
		return Query{}, fmt.Errorf("the pattern %q: %w", q.Name, err)
	}
	return q, nil
}

// CheckPath returns an error for a path that would lead out of the volume.
func CheckPath(p string) error {
	if clean := path.Clean(strings.TrimLeft(p, "/")); clean == ".." || strings.HasPrefix(clean, "../") {
		return fmt.Errorf("the path %q leads out of the volume: name it relative to the volume's top directory", p)
	}
	return nil
}

// Clean returns a path without a slash at its begin and end, and without empty and "." parts. Empty: the volume itself.
func Clean(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

// NewToken returns a random token.
func NewToken() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return base64.RawURLEncoding.EncodeToString(secret)
}

// HashToken returns what a FileRequest has of a token.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// URLPath returns the path of a question about the FileRequest.
func URLPath(request, question string) string { return "/v1/" + request + "/" + question }
