package podvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Partial is the largest share of a volume's files, in percent, that a Completed backup or restore may lack. The zero value
// allows none.
type Partial float64

// toleratedFiles may be missing wherever any share may: in a small volume one unreadable file is a large share. Five leaves room
// for lost+found, a socket's lock or an editor's left-overs, and is too few to be a database.
const toleratedFiles = 5

// ParsePartial reads "complete" (any share), "fail" (none), or a share such as "1%" or "0.5%".
func ParsePartial(text string) (Partial, error) {
	switch text {
	case "complete":
		return 100, nil
	case "fail":
		return 0, nil
	}
	number, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(percent >= 0 && percent <= 100) {
		return 0, fmt.Errorf("%q is neither complete, fail nor a percentage such as 1%%", text)
	}
	return Partial(percent), nil
}

// tolerates reports whether an operation that has failed at some files may be Completed. Except with 100 %, at least half of the
// files must have been moved.
func (p Partial) tolerates(failed, moved int64) bool {
	switch {
	case failed == 0, p >= 100:
		return true
	case p <= 0, failed > moved:
		return false
	default:
		return failed <= toleratedFiles || float64(failed)*100 <= float64(p)*float64(failed+moved)
	}
}

// toleratesUnreadable reports whether a backup may be Completed. What a directory held that could not be read, nobody knows: it is no
// share of the volume.
func (p Partial) toleratesUnreadable(res uploader.BackupResult) bool {
	return p >= 100 || res.UnreadableDirectories == 0 && p.tolerates(res.Errors, res.TotalFiles)
}

// toleratesUnwritten reports whether a restore may be Completed. Where the snapshot could not be listed, nobody knows how much is missing, and all of it
// may be.
func (p Partial) toleratesUnwritten(res uploader.RestoreResult) bool {
	restored := res.TotalFiles - res.Errors
	if res.Unlisted {
		return p >= 100 && restored > 0
	}
	return p.tolerates(res.Errors, restored) && (restored > 0 || res.TotalFiles == 0)
}

// manyVanished reports whether so much has vanished that people should look: files of a volume in use come and go. A directory may have been any
// number of files, and one that was renamed is missing under both names.
func manyVanished(res *uploader.BackupResult) bool {
	return res.VanishedDirectories > 0 || res.Vanished > 2*toleratedFiles && res.Vanished*100 > res.TotalFiles
}

// partial returns what the operation may lack: by its own annotation, else that of its Backup or Restore, else the agent's
// setting.
func (op *Operation) partial(ctx context.Context) (Partial, error) {
	text, ok := op.Object.GetAnnotations()[v1alpha1.AnnotationPartial]
	if !ok {
		owner, err := op.owner(ctx)
		if err != nil {
			return 0, err
		}
		text, ok = owner[v1alpha1.AnnotationPartial]
	}
	switch {
	case ok:
		p, err := ParsePartial(text)
		if err != nil {
			return 0, Permanent(v1alpha1.ReasonInvalidSettings, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationPartial, err))
		}
		return p, nil
	case op.Kind == Backup:
		return op.env.Partial, nil
	default:
		return op.env.PartialRestore, nil
	}
}

// owner returns the annotations of the Backup or Restore that the object belongs to.
func (op *Operation) owner(ctx context.Context) (map[string]string, error) {
	for _, owner := range op.Object.GetOwnerReferences() {
		var object client.Object
		switch owner.Kind {
		case "Backup":
			object = &velerov1.Backup{}
		case "Restore":
			object = &velerov1.Restore{}
		default:
			continue
		}
		err := op.env.patientAPI.Get(ctx, types.NamespacedName{Namespace: op.env.Namespace, Name: owner.Name}, object)
		switch {
		case apierrors.IsNotFound(err), err == nil && object.GetUID() != owner.UID:
			return nil, nil
		case apierrors.IsForbidden(err): // no reason to fail the volume
			op.env.Logger.Warn("Cannot read the annotations of a Backup or Restore; using the agent's own settings", "kind", owner.Kind, "name", owner.Name, "error", err)
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("get %s %s: %w", owner.Kind, owner.Name, err)
		}
		return object.GetAnnotations(), nil
	}
	return nil, nil
}

// acceptUnreadable fails a backup that lacks more files than it may.
func (op *Operation) acceptUnreadable(ctx context.Context, res uploader.BackupResult) error {
	if res.Errors == 0 {
		return nil
	}
	allowed, err := op.partial(ctx)
	if err != nil {
		return err
	}
	if allowed.toleratesUnreadable(res) {
		return nil
	}
	return Permanent(v1alpha1.ReasonUnreadableFiles, errors.New(describeUnreadable("could not be read", res)))
}

// acceptUnwritten fails a restore that lacks more files than it may. An attempt that lacks any file is followed by another one,
// until two have failed at the same files.
func (op *Operation) acceptUnwritten(ctx context.Context, res uploader.RestoreResult) error {
	if res.Errors == 0 {
		return nil
	}
	text := describeFiles("could not be written", res.Errors, res.FailedPaths)
	if res.LastError != "" {
		text += " (" + res.LastError + ")"
	}
	if res.Unlisted {
		text += "; the snapshot could not be listed to its end, so a directory among them may be any number of files"
	}
	lacks := unwrittenFiles{count: res.Errors, paths: res.FailedPaths}
	if !lacks.equal(op.lastUnwritten) && op.attempt < op.env.MaxAttempts {
		op.lastUnwritten = lacks
		return retryable(v1alpha1.ReasonUnwrittenFiles, errors.New(text))
	}
	allowed, err := op.partial(ctx)
	if err != nil {
		return err
	}
	if allowed.toleratesUnwritten(res) {
		return nil
	}
	return Permanent(v1alpha1.ReasonUnwrittenFiles, errors.New(text))
}

// unwrittenFiles are the files that an attempt of a restore could not write.
type unwrittenFiles struct {
	count int64
	paths []string // not all of them, if there are many
}

// equal reports whether two attempts have failed at the same files.
func (e unwrittenFiles) equal(other unwrittenFiles) bool {
	if e.count != other.count || e.count == 0 {
		return false
	}
	all := int64(len(e.paths)) >= e.count && int64(len(other.paths)) >= other.count
	return !all || slices.Equal(e.paths, other.paths)
}

// maxNamedPaths is how many files a message names; the others are only counted.
const maxNamedPaths = 5

// describeUnreadable returns what a backup lacks, directories first, and some of the names.
func describeUnreadable(what string, res uploader.BackupResult) string {
	if res.UnreadableDirectories == 0 {
		return describeFiles(what, res.Errors, res.FailedPaths)
	}
	counted := text.Count(res.UnreadableDirectories, "directory", "directories")
	if files := res.Errors - res.UnreadableDirectories; files > 0 {
		counted += " and " + text.Count(files, "file", "files")
	}
	return counted + " " + what + namedPaths(res.Errors, res.FailedPaths)
}

// describeFiles returns the number of files that an operation lacks, and some of their names.
func describeFiles(what string, count int64, paths []string) string {
	return text.Count(count, "file", "files") + " " + what + namedPaths(count, paths)
}

// namedPaths returns the end of a message that names some of the paths, those of directories first.
func namedPaths(count int64, paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	paths = slices.Clone(paths)
	slices.SortStableFunc(paths, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	var named []string
	for _, path := range paths[:min(len(paths), maxNamedPaths)] {
		named = append(named, text.ShortPath(path))
	}
	message := ": " + strings.Join(named, ", ")
	if more := count - int64(len(named)); more > 0 {
		message += fmt.Sprintf(" and %d more", more)
	}
	return message
}

// rank is 0 for the path of a directory, which ends with a slash, and 1 for others.
func rank(path string) int {
	if strings.HasSuffix(path, "/") {
		return 0
	}
	return 1
}
