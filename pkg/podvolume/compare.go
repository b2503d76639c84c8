package podvolume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Bounds of what a comparison says of paths, in bytes: it goes into an annotation.
const (
	maxComparedPath    = 100
	maxComparedExample = 400
)

// compares reports whether the object asks for a comparison of the restored volume.
func (pv PodVolume) compares() bool {
	return pv.Kind == Restore && pv.Object.GetAnnotations()[v1alpha1.AnnotationCompare] == "true"
}

// restoreSink returns the tracker. Of a restore that is compared, what the data path reports is the first half of the bytes.
func (op *Operation) restoreSink() progress.Sink {
	if !op.compares() {
		return op.tracker
	}
	return progress.SinkFunc(func(r progress.Reading) {
		r.TotalBytes *= 2
		if r.Stage == progress.StageFinishing {
			r.Stage = progress.StageTransferring
		}
		op.tracker.Report(r)
	})
}

// compareRestored compares the restored volume with the snapshot, if the object asks for it, and writes what it has found on the object. A
// difference fails the restore: the volume is not handed over.
func (op *Operation) compareRestored(ctx context.Context, up uploader.Uploader, req uploader.RestoreRequest, restored uploader.RestoreResult) error {
	if !op.compares() {
		return nil
	}
	browser, ok := up.(uploader.Browser)
	if !ok {
		return Permanent(v1alpha1.ReasonUnsupported, fmt.Errorf("uploader type %s cannot read the snapshot to compare it", op.UploaderName()))
	}
	found, err := op.compare(ctx, browser, req, max(restored.TotalBytes, 0))
	switch {
	case stopCause(ctx) != nil:
		return stopCause(ctx)
	case uploader.IsVolumeIO(err):
		return retryable(v1alpha1.ReasonVolumeIO, err)
	case err != nil:
		return fmt.Errorf("compare the restored volume with the snapshot: %w", err)
	}
	if err := op.writeComparison(ctx, found); err != nil {
		return fmt.Errorf("write what the comparison has found: %w", err)
	}
	if found.Mismatched > 0 {
		return Permanent(v1alpha1.ReasonRestoreMismatch, errors.New(describeComparison(found)))
	}
	op.log.Info("The restored volume is what the snapshot says", "files", found.Files, "bytes", found.Bytes)
	return nil
}

// compare reads the snapshot out of the repository once more, and the volume from its storage. size is that of the snapshot.
func (op *Operation) compare(ctx context.Context, browser uploader.Browser, req uploader.RestoreRequest, size int64) (volume.Compared, error) {
	c := volume.NewComparison(req.Volume, func(entries, bytes int64, path string) {
		op.tracker.Report(progress.Reading{
			Stage: progress.StageTransferring, BytesDone: size + bytes, TotalBytes: 2 * size, TotalFinal: true, FilesDone: entries, CurrentItem: path,
		})
	})
	defer c.Close()
	c.Except(donefile.Reserved(donefile.RestoreUID(op.Object.(*velerov1.PodVolumeRestore))))
	whole := uploader.BrowseRequest{Repository: req.Repository, SnapshotID: req.SnapshotID, Recursive: true, Uncached: true}
	err := browser.List(ctx, whole, func(e uploader.Entry) error {
		return c.Entry(volume.Recorded{Path: e.Path, Mode: e.Mode, ModTime: e.ModTime, UID: e.UID, GID: e.GID})
	})
	if err != nil {
		return volume.Compared{}, err
	}
	archive, output := io.Pipe()
	read := make(chan error, 1)
	go func() {
		err := browser.Read(ctx, whole, output)
		_ = output.CloseWithError(err) // never fails
		read <- err
	}()
	err = c.Archive(ctx, archive)
	if err == nil {
		_, err = io.Copy(io.Discard, archive) // what Read says comes after the archive's end
	}
	_ = archive.CloseWithError(err) // never fails
	if readErr := <-read; err == nil {
		err = readErr
	}
	return c.Compared(), err
}

// writeComparison writes what was found on the object. It is no part of the terminal write, which has bounds of its own.
func (op *Operation) writeComparison(ctx context.Context, found volume.Compared) error {
	document := v1alpha1.Comparison{
		Files: found.Files, Bytes: found.Bytes, Mismatched: found.Mismatched, Differences: found.Differences, Example: text.ShortenMiddle(text.Line(found.Example, 4*maxComparedExample), maxComparedExample),
	}
	for _, path := range found.Paths {
		document.Paths = append(document.Paths, text.ShortenMiddle(text.Line(path, 4*maxComparedPath), maxComparedPath))
	}
	return op.patchWithRetry(ctx, func(fresh PodVolume) (patch, error) {
		if fresh.Terminal() {
			return patch{}, ErrEnded
		}
		return patch{Metadata: patchMetadata{Annotations: map[string]string{v1alpha1.AnnotationComparison: encode(document)}}}, nil
	})
}

// describeComparison says what differs.
func describeComparison(found volume.Compared) string {
	var respects []string
	for _, what := range slices.Sorted(maps.Keys(found.Differences)) {
		respects = append(respects, fmt.Sprintf("%d %s", found.Differences[what], what))
	}
	return fmt.Sprintf("%s not what the snapshot says (%s), such as %s", text.Count(found.Mismatched, "entry of the restored volume is", "entries of the restored volume are"),
		strings.Join(respects, ", "), text.Line(found.Example, maxComparedExample))
}
