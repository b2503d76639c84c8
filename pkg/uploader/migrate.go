package uploader

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// ErrDamaged comes from Export when the snapshot cannot be read as it was stored: pieces of it are damaged or missing in the repository.
var ErrDamaged = errors.New("the snapshot is damaged in the repository")

// Exporter is a data path whose snapshots can be stored by another one.
type Exporter interface {
	// Export hands each entry of the snapshot to each, a directory before what it holds, those of a directory in the order of their
	// names' bytes. It ends with the first error that each returns. Without an error, all entries were handed on, and the repository's
	// records agree with them. It writes nothing to the repository, no lock either.
	//
	// With Previous it may read only what has changed since then. Where it cannot tell what that is, it reads everything.
	Export(ctx context.Context, req ExportRequest, each func(Exported) error) (ExportResult, error)
}

// ExportRequest is one snapshot to hand on.
type ExportRequest struct {
	Repository Repository
	SnapshotID string
	Previous   string // another snapshot of the volume, which the receiver has; empty: none
}

// Exported is an entry with what it holds.
type Exported struct {
	Entry

	Content    io.Reader // of a file: Size bytes, to be read before the next entry; nil for everything else
	Attributes bool      // it has extended attributes, which are not handed on; only known of what was read

	// Unchanged: the content of this file, or the target of this link, is the one that Previous has at this path, by the ids of its
	// pieces. It is not handed on. All else of the entry is that of this snapshot.
	Unchanged bool
}

// ExportResult says when the snapshot was made.
type ExportResult struct{ Time time.Time }

// Importer is a data path that stores snapshots of another one.
type Importer interface {
	// Import stores what export hands on as a snapshot, reads it back from the storage, and compares each entry: path, type, mode, owner,
	// time, size, target, and the hash of its content. Only if all are equal the snapshot becomes visible, in one step. What was stored
	// before a failure is used by the next try.
	//
	// Of an entry that is Exported.Unchanged the content is that of Previous: the new snapshot refers to the same object, which is looked
	// up in the storage's records and not read.
	Import(ctx context.Context, req ImportRequest, export ExportFunc, p progress.Sink) (ImportResult, error)

	// Imported returns the snapshots that Import has made in the repository, by their Origin.
	Imported(ctx context.Context, repo Repository) (map[string]string, error)
}

// ExportFunc is Exporter.Export for one snapshot.
type ExportFunc func(ctx context.Context, each func(Exported) error) (ExportResult, error)

// ImportRequest says how a snapshot is stored.
type ImportRequest struct {
	Repository Repository
	Source     string            // as in BackupRequest
	Tags       map[string]string // as in BackupRequest
	Origin     string            // names the snapshot that is stored, and is kept with it
	TotalBytes int64             // its size where the caller knows it, else 0
	Previous   ImportedSnapshot  // ExportRequest.Previous, as it was imported; zero: none
}

// ImportedSnapshot is a snapshot that Import has made.
type ImportedSnapshot struct{ SnapshotID, Origin string }

// ImportResult is what was stored and compared. Without Mismatched, SnapshotID names the new snapshot; else there is none.
type ImportResult struct {
	SnapshotID    string
	Files         int64 // compared
	Bytes         int64 // their size
	Reused        int64 // those of Files that have their content from Previous
	ReusedBytes   int64 // their size
	BytesUploaded int64 // bytes added to the repository
	Special       int64 // FIFOs, sockets and devices, which the snapshot lacks: the data path does not store them
	Attributes    int64 // entries whose extended attributes the snapshot lacks, of those that were read
	Mismatched    int64 // entries that were read back with a difference
	FailedPaths   []string
	LastError     string // what was wrong with one of them
}
