package restic

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// hostName is the host that snapshots are stored under, as Velero stores them: a pod's name would never find a parent.
const hostName = "velero"

// snapshotID is what goes for a snapshot. restic takes other things, too, such as "latest" or an option.
var snapshotID = regexp.MustCompile(`^[0-9a-f]{8,64}$`)

const jsonFlag = "--json"

// backupArgs are the arguments after the command. restic splits a tag at its commas, which the snapshot then carries as
// several tags; Velero's snapshots have them so, too.
func (u *Uploader) backupArgs(req uploader.BackupRequest) []string {
	args := []string{".", jsonFlag, "--host", hostName}
	for _, key := range slices.Sorted(maps.Keys(req.Tags)) {
		args = append(args, "--tag", key+"="+req.Tags[key])
	}
	if req.Parent != "" {
		args = append(args, "--parent", req.Parent)
	}
	if req.Parallel > 0 && u.version.readsConcurrently() {
		args = append(args, "--read-concurrency", strconv.Itoa(req.Parallel))
	}
	return args
}

func (u *Uploader) restoreArgs(req uploader.RestoreRequest) []string {
	args := []string{req.SnapshotID, "--target", ".", jsonFlag}
	if req.Sparse && u.version.leavesHoles() {
		args = append(args, "--sparse")
	}
	return append(append(args, includeArgs(req.InnerPaths())...), lockArgs(req.Repository)...)
}

// statsArgs needs no lock: the size of one snapshot never changes. Without its directories restic stats fails.
func statsArgs(req uploader.RestoreRequest) []string {
	return []string{jsonFlag, "--mode", "restore-size", req.SnapshotID, "--no-lock"}
}

func listArgs(req uploader.RestoreRequest) []string {
	args := append([]string{jsonFlag}, lockArgs(req.Repository)...)
	if len(req.Paths) == 0 {
		return append(args, req.SnapshotID)
	}
	args = append(args, "--recursive", req.SnapshotID)
	for _, p := range req.InnerPaths() {
		args = append(args, "/"+p)
	}
	return args
}

// lockArgs keeps restic from writing a lock into a repository that must not be written to.
func lockArgs(repo uploader.Repository) []string {
	if repo.ReadOnly {
		return []string{"--no-lock"}
	}
	return nil
}

// globalArgs are the arguments of every command.
func (u *Uploader) globalArgs(w *workspace) []string {
	var args []string
	if w.cacheDir == "" {
		args = append(args, "--no-cache")
	}
	if w.repository.InsecureSkipTLSVerify {
		args = append(args, "--insecure-tls")
	}
	if limit := kibibytes(w.repository.Limit(uploader.Share(u.options.UploadLimit, u.options.Slots))); limit > 0 {
		args = append(args, "--limit-upload", strconv.FormatInt(limit, 10))
	}
	if limit := kibibytes(w.repository.Limit(uploader.Share(u.options.DownloadLimit, u.options.Slots))); limit > 0 {
		args = append(args, "--limit-download", strconv.FormatInt(limit, 10))
	}
	return args
}

// kibibytes rounds up: restic takes 0 for no limit.
func kibibytes(bytes int64) int64 { return (max(bytes, 0) + 1023) / 1024 }

func checkSnapshotID(id string) error {
	if !snapshotID.MatchString(id) {
		return fmt.Errorf("%w: %q is no snapshot id", uploader.ErrSnapshotNotFound, printable(id))
	}
	return nil
}
