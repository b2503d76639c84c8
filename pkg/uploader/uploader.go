// Package uploader says what a data path must do: move a volume's files into a repository and back, and report how far
// it is. The implementations are in its sub-packages; uploadertest holds the suite that each of them passes.
//
// For the methods of all interfaces of this package:
//   - They are safe for concurrent use.
//   - Canceling ctx ends the worker and releases its locks. The method then returns an error that wraps context.Cause(ctx).
//   - A progress.Sink may be nil.
//   - The errors below keep their meaning. A comment names those that it takes to understand a method, and not all that may come.
package uploader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// What a caller decides on. Implementations wrap these.
var (
	// ErrRepositoryNotFound comes from every method but Initialize when there is no repository at the address.
	ErrRepositoryNotFound = errors.New("repository does not exist")
	// ErrRepositoryIncomplete comes from Initialize when the address holds data, but not what a repository begins with: the
	// repository that was there has lost its oldest objects. A new one would shut its snapshots off for good.
	ErrRepositoryIncomplete = errors.New("the repository has lost its configuration or its keys, and still holds data")
	// ErrWrongPassword comes from every method when no key of the repository opens with the password.
	ErrWrongPassword = errors.New("wrong repository password")
	// ErrRepositoryLocked comes when another process holds the repository's lock, as a *LockedError where it is known who.
	// Whether and how long to wait is the caller's decision.
	ErrRepositoryLocked = errors.New("repository is locked")
	// ErrSnapshotNotFound comes from Restore, Verify, Check, List, Read, Diff and Export when the repository has no such snapshot.
	ErrSnapshotNotFound = errors.New("snapshot does not exist in the repository")
	// ErrNoSpace comes from Restore at the first write that fails for lack of space in the volume, and from Backup when the
	// repository is full.
	ErrNoSpace = errors.New("no space left on device")
	// ErrScratchFull comes from every method when there is no room for what only serves the run: temporary files, which
	// all runs keep in one place, and the cache. It is no ErrNoSpace: when the other runs have ended there is room again.
	ErrScratchFull = errors.New("the node agent's directory for temporary files, or its cache, is full")
	// ErrFlush comes from Restore when the volume's disk did not take what was written. It is final: such a disk loses what is
	// written next, too, and the kernel reports a failed writeback only once. Until the pages are dropped the page cache
	// shows what the disk does not have (Linux 6.18, ext4), so data paths drop them before they compare files.
	ErrFlush = errors.New("what was written to the volume did not reach its disk")
	// ErrVolumeIO comes from Backup and Restore when the volume's file system fails as a whole, as it does when its driver, its
	// server or its disk is gone: what was or was not moved since then says nothing of the files. Backup leaves no snapshot
	// that looks complete, but what it has stored. Another try may work.
	ErrVolumeIO = errors.New("the volume's file system failed")
	// ErrNothingRead comes from Backup when the volume has entries and none of its files could be read.
	ErrNothingRead = errors.New("none of the volume's files could be read")
	// ErrUnconfirmed comes from Check when it has found something each time, and never the same twice: nothing is known. It comes from Usage when
	// the repository changes under each measurement, and from RepairIndex, Backup and Unlock when the storage may not list all that it has.
	ErrUnconfirmed = errors.New("the result could not be confirmed")
	// ErrPacksLeftOut is an ErrUnconfirmed of RepairIndex: the index may lack packs that the storage has, also such as it had before. Another repair
	// adds them.
	ErrPacksLeftOut = errors.New("the index that was written may lack packs, and must be repaired again")
	// ErrRepositoryDamaged comes from Prune when the repository has lost data that snapshots need: it is left as it is.
	ErrRepositoryDamaged = errors.New("the repository has lost data that snapshots need")
	// ErrMaintenanceOwner comes from Prune when kopia's maintenance of the repository belongs to another user than Velero's.
	ErrMaintenanceOwner = errors.New("the repository's maintenance belongs to somebody else")
	// ErrUnsupported comes when a request asks for what this data path, or the version of its program, cannot do.
	ErrUnsupported = errors.New("not supported")
)

// LockedError is an ErrRepositoryLocked that names the owner.
type LockedError struct {
	Owner string // for a person, such as "locked exclusively by PID 7 on node-b as root since 2026-11-21 03:00:00"
	Err   error  // wraps ErrRepositoryLocked
}

// Error is Err's.
func (e *LockedError) Error() string { return e.Err.Error() }

// Unwrap gives Err.
func (e *LockedError) Unwrap() error { return e.Err }

// Uploader is a data path. Each call runs in a worker process of its own.
type Uploader interface {
	// Backup stores the volume as one snapshot. Files that cannot be read do not fail it: the snapshot is kept and
	// BackupResult counts them. A volume without any entry gives no snapshot, and no error. ErrVolumeIO ends it.
	Backup(ctx context.Context, req BackupRequest, p progress.Sink) (BackupResult, error)

	// Restore writes a snapshot's files into the volume, over what is there. Paths that cannot be written do not fail it:
	// RestoreResult counts them. It ends at the first sign of a full volume; ErrVolumeIO fails it.
	Restore(ctx context.Context, req RestoreRequest, p progress.Sink) (RestoreResult, error)

	// Initialize creates the repository, or does nothing where one exists already. It writes nothing where data of an earlier
	// one is left, and removes what a creation has left that was killed half-way. Two processes must not initialize one repository at the same time: callers hold a lease.
	Initialize(ctx context.Context, repo Repository) error
}

// Opener is a data path that can say whether it gets into a repository.
type Opener interface {
	// Open opens the repository with its password and writes nothing to it.
	Open(ctx context.Context, repo Repository) error
}

// Repository is where snapshots are kept and how to get in. Its values are secret as far as they are of type Secret.
type Repository struct {
	// URL is restic's address of the repository, such as "s3:https://minio:9000/bucket/prefix/restic/shop" or a directory.
	// kopia's repositories have one of the same form, to be shown, told apart and, for a directory, used.
	URL string
	// Storage says where a kopia repository is that is not a directory; nil for restic.
	Storage *Storage
	// CacheLimit is how many bytes kopia may cache of this repository; 0: the data path's default.
	CacheLimit int64
	// Password opens the repository. It is used to the byte, trailing newlines included (docs/contracts/velero-node-agent.md 6.1).
	Password Secret
	// Env holds credentials and settings of the storage as environment variables, such as AWS_ACCESS_KEY_ID.
	Env map[string]Secret
	// Files maps the name of an environment variable to a file's content: the file is written for the worker (mode 0600)
	// and the variable names it, as GOOGLE_APPLICATION_CREDENTIALS needs it.
	Files map[string]Secret
	// ReadPaths are files and directories outside the volume that the worker has to read: mounted credentials and tokens.
	ReadPaths []string
	// CACert is a PEM bundle to trust besides the system's.
	CACert []byte
	// InsecureSkipTLSVerify turns the check of the storage's certificate off.
	InsecureSkipTLSVerify bool
	// ReadOnly says that nothing may be written, locks included.
	ReadOnly bool
	// MaxBytesPerSecond is how much one run may send to the storage, and how much it may receive; 0: as much as the data path's own limits allow,
	// of which a lower one holds.
	MaxBytesPerSecond int64
}

// Limit returns the lower one of MaxBytesPerSecond and a limit of the data path; 0 is no limit.
func (r Repository) Limit(own int64) int64 {
	if own <= 0 || r.MaxBytesPerSecond > 0 && r.MaxBytesPerSecond < own {
		return r.MaxBytesPerSecond
	}
	return own
}

// Local returns the directory of a repository in the file system, and false for one behind a network.
func (r Repository) Local() (string, bool) {
	if r.URL != "" && r.URL[0] == '/' {
		return r.URL, true
	}
	if dir, ok := strings.CutPrefix(r.URL, "local:"); ok {
		return dir, true
	}
	return "", false
}

// FindDirectory returns an error that wraps ErrRepositoryNotFound if a local repository's directory is missing. To be called
// before a worker is confined: to one that began without the directory it stays closed, also if another process makes the
// repository before the worker opens it.
func (r Repository) FindDirectory() error {
	dir, local := r.Local()
	if !local {
		return nil
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w (%w)", ErrRepositoryNotFound, err)
	}
	return nil
}

// Storage is a bucket, or what another cloud calls it, that holds repositories.
type Storage struct {
	Type       StorageType
	Bucket     string // of Azure: the container
	Prefix     string // of the objects' names; ends with a slash unless it is empty
	Endpoint   string // S3: the server's host and port
	Region     string // S3: may be empty
	DisableTLS bool   // S3: plain HTTP
}

// StorageType is a kind of storage.
type StorageType string

// The kinds of storage.
const (
	StorageS3    StorageType = "s3"
	StorageAzure StorageType = "azure"
	StorageGCS   StorageType = "gcs"
)

// BackupRequest is one volume to store.
type BackupRequest struct {
	Repository Repository
	Volume     *os.File // the volume's root directory, opened; the worker's working directory
	// Source is the path under which kopia files the snapshot; empty: the volume's name (docs/contracts/velero-node-agent.md 6.4).
	// restic takes no notice.
	Source string
	// VolumeID tells the volume from all others, also from one that had its Source before; empty: not known. kopia looks for a snapshot to compare
	// with only among those of the same VolumeID and Source. restic takes no notice.
	VolumeID string
	Tags     map[string]string // as in the PodVolumeBackup's spec.tags; for kopia with the requester's and the uploader's
	Parent   string            // the snapshot to compare with; empty: the data path looks for one itself
	Parallel int               // files read at the same time; 0: the data path's default
	// Resume says that an earlier attempt was interrupted: what it has stored is looked for before it is sent again. kopia
	// finds it without being told.
	Resume bool
}

// BackupResult is what a backup left in the repository.
type BackupResult struct {
	SnapshotID    string // empty for an empty volume
	TotalBytes    int64  // bytes of all files in the snapshot
	TotalFiles    int64  // files in the snapshot
	BytesUploaded int64  // bytes added to the repository
	Errors        int64  // files and directories that could not be read; the snapshot lacks them
	FailedPaths   []string
	// UnreadableDirectories counts those of Errors that may stand for any number of files (HoldsFiles).
	UnreadableDirectories int64
	// Vanished counts the entries that were listed and then not there any more. They are no errors: files of a volume in use
	// come and go. restic from 0.17 on does not name all of them, so there may have been more.
	Vanished int64
	// VanishedDirectories counts those of Vanished that were directories, with all that was in them, as far as that is known: with restic it
	// is not.
	VanishedDirectories int64
	// LackAttributes is what was stored without all of its attributes. They are no errors.
	LackAttributes LackAttributes
	// Excluded counts the files and directories that the volume itself has left out, with .kopiaignore or CACHEDIR.TAG (kopia).
	Excluded int64
}

// LackAttributes counts the entries that a backup has stored without all of their extended attributes, since these could not be read (restic: kopia
// stores none).
type LackAttributes struct {
	Entries int64
	Example string // the first of the entries, by name
}

// RestoreRequest is one snapshot to write into a volume.
type RestoreRequest struct {
	Repository Repository
	Volume     *os.File // the volume's root directory, opened; the worker's working directory
	SnapshotID string
	TotalBytes int64 // the snapshot's size where the caller knows it, else 0
	Parallel   int   // files written at the same time; 0: the data path's default
	Sparse     bool  // leave holes for runs of zeros
	// Own is an entry of the volume's top directory that is the caller's own and that no snapshot has, so that nothing is written over it; empty: none.
	Own string

	// Paths are the parts of the snapshot to restore, each as BrowseRequest.Path and none beneath another; nil: all of it. The directories that
	// lead to them are made, too. Volume then holds nothing but what an earlier attempt with the same Paths has left there.
	// ErrPathNotFound names the paths that the snapshot does not have, and ErrNoSpace says that the volume has no room for the others:
	// nothing is written then.
	Paths []string
}

// RestoreResult is what a restore wrote.
type RestoreResult struct {
	TotalBytes int64 // bytes of all files in the snapshot
	TotalFiles int64 // files in the snapshot; 0 where the data path does not say
	// SizesOnDisk is what the sizes of the volume's files must add up to now at least, files with several names counted once;
	// 0 where the data path cannot tell.
	SizesOnDisk int64
	Errors      int64 // files and directories that could not be written, or not with all their attributes
	FailedPaths []string
	LastError   string // what was wrong with one of them
	// Unlisted means that not all directories of the snapshot could be read: some of Errors may stand for any number of files.
	Unlisted bool
	// Refused is what the volume did not take of entries that are whole otherwise. kopia stores no extended attributes, and restic counts
	// entries that lack something else as Errors.
	Refused Refused

	// Contents is what the snapshot has at and beneath RestoreRequest.Paths. Nothing without Paths.
	Contents volume.Contents
}

// Refused counts the restored entries that lack an attribute of the backup: FAT, SMB, and NFS, with root_squash in particular, do not take all of them.
type Refused struct {
	Owners int64 `json:"owners,omitempty"`
	Modes  int64 `json:"modes,omitempty"`
	Times  int64 `json:"times,omitempty"`
	// Attributes are the extended ones, such as ACLs and capabilities, without the labels of SELinux.
	Attributes int64 `json:"attributes,omitempty"`

	Example string `json:"example,omitempty"` // the first of the entries, by name; empty: nothing was refused
}

// Verifier is a data path that can prove that a snapshot can be restored. Every Uploader of ours is one.
type Verifier interface {
	// Verify reads every file of the snapshot out of the repository and compares it with the repository's records: the hash of
	// each piece and the size of each file. It writes nothing but restic's lock. Damage is no error: VerifyResult counts it. An
	// error means that nothing is proven, such as that the storage did not answer. A data path that cannot sample reads everything.
	Verify(ctx context.Context, req VerifyRequest, p progress.Sink) (VerifyResult, error)
}

// VerifyRequest is one snapshot to prove.
type VerifyRequest struct {
	Repository Repository
	SnapshotID string
	TotalBytes int64 // the snapshot's size where the caller knows it, else 0
	Parallel   int   // files read at the same time; 0: the data path's default

	// SamplePart, counted from 1, is the part of the content to read, of SampleParts; 0: all of it. The same content is always in the
	// same part, so a snapshot of which each part was read was read in whole.
	SamplePart, SampleParts int
}

// VerifyResult is what was compared. A snapshot is proven if Mismatched and NotCompared are both 0, and it is not Sampled.
type VerifyResult struct {
	Sampled     bool  // only the part that was asked for was read. The rest is listed in the repository, with its size
	Files       int64 // files whose content was read, of a sample as far as it is in the part, and is what the repository's records say
	Bytes       int64 // their size; of a sample: what was read
	Mismatched  int64 // files, links and directories that cannot be restored as they were: damaged, missing or of another size
	NotCompared int64 // files that were not looked at, because of what Mismatched counts
	// Absent counts the files and directories that the snapshot lacks since they could not be read when it was made. 0 where
	// the data path does not say.
	Absent int64
	// SameNames counts the entries that kopia has stored with the name of another one in their directory, as it does with names that are no UTF-8: they are
	// whole, but a restore writes only one of them.
	SameNames   int64
	FailedPaths []string // some of the mismatched
	LastError   string   // what was wrong with one of them
}

// Proven reports whether all that the snapshot holds, or all of a sample, can be restored.
func (r VerifyResult) Proven() bool { return r.Mismatched == 0 && r.NotCompared == 0 }

// Share returns the part of a node's limit that one of its runs gets; 0 is no limit. It stays what it is while the run lasts,
// since restic takes a limit only at its start: so the node keeps the limit however many volumes run, and does not use all
// of it when there are few.
func Share(limit int64, slots func() int) int64 {
	if limit <= 0 || slots == nil {
		return limit
	}
	return max(limit/int64(max(slots(), 1)), 1)
}

// Secret is a value that must not be seen: it prints as asterisks.
type Secret string

const redacted = "******"

// String hides the value.
func (Secret) String() string { return redacted }

// GoString hides the value from %#v.
func (Secret) GoString() string { return redacted }

// LogValue hides the value from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the value from encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Reveal gives the value, for the one place that needs it.
func (s Secret) Reveal() string { return string(s) }
