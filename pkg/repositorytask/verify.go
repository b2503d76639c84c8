package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// Bounds of what a volume's entry says. CRD: 10 paths.
const (
	maxPaths = 10
	maxPath  = 256 // bytes
)

// verifyVolume reads a volume's snapshot, and again after failures that may pass. Damage counts when it is seen twice: a storage that
// answers with less than it has makes whole files look damaged. A restored volume that differs counts at once: it was compared with what the
// repository has by hash, so it is the volume that is not the same, if only this time. The error is that of ctx, or the API server's.
func (r *run) verifyVolume(ctx context.Context, i int, v v1alpha1.RepositoryTaskVolume) (v1alpha1.RepositoryTaskVolume, error) {
	if err := r.admit(ctx, &r.backups[i]); err != nil {
		return r.leave(v, err), nil
	}
	began, try, damaged := time.Now(), 1, false
	look := func(ctx context.Context, i int) (uploader.VerifyResult, error) { return r.verifyOnce(ctx, i, &v) }
	restores := r.object.Spec.RestoreTo != nil
	if restores {
		look = func(ctx context.Context, i int) (uploader.VerifyResult, error) { return r.restoreOnce(ctx, i, &v) }
	}
	for {
		result, err := look(ctx, i)
		if err == nil && !restores && !damaged && !result.Proven() {
			r.log.Warn("Volume looks damaged; looking again", "pod", v.Namespace+"/"+v.Pod, "volume", v.Volume, "mismatched", result.Mismatched, "error", result.LastError)
			damaged = true
			continue
		}
		if err == nil {
			return withResult(v, &result, restores), nil
		}
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		reason, mayPass := classify(err)
		v.Result, v.Reason, v.Message = v1alpha1.VolumeFailed, reason, text.ShortenMiddle(text.Line(err.Error(), 4*maxMessage), maxMessage)
		pause := r.cfg.RetryDelay
		switch {
		case reason == v1alpha1.ReasonRepositoryLocked && time.Since(began) < r.cfg.LockWait:
			pause = r.cfg.LockDelay
		case mayPass && try < r.cfg.Tries:
			try++
		default:
			if err := r.learn(ctx, &r.backups[i], reason); err != nil {
				return r.leave(v, err), nil
			}
			return r.withoutLoss(ctx, &r.backups[i], v)
		}
		r.log.Warn("Volume was not verified; trying again", "pod", v.Namespace+"/"+v.Pod, "volume", v.Volume, "reason", reason, "after", pause, "error", err)
		r.tracker.Report(waiting(reason, v.Message))
		if err := apiretry.Sleep(ctx, pause); err != nil {
			return v, err
		}
	}
}

// leave leaves a volume whose repository does not open for later, or makes it one that has failed if the task has waited long enough.
func (r *run) leave(v v1alpha1.RepositoryTaskVolume, err error) v1alpha1.RepositoryTaskVolume {
	v.Result, v.Reason, v.Message = v1alpha1.VolumePending, v1alpha1.ReasonRepositoryUnavailable, messageOf(err.Error())
	if !r.parks(err) {
		v.Result = v1alpha1.VolumeFailed
	}
	return v
}

// withResult takes what was found into the entry of a volume: in the repository, or in a volume that it was restored into.
func withResult(v v1alpha1.RepositoryTaskVolume, r *uploader.VerifyResult, restored bool) v1alpha1.RepositoryTaskVolume {
	v.Files, v.Bytes, v.Mismatched, v.NotCompared, v.Absent = r.Files, r.Bytes, r.Mismatched, r.NotCompared, r.Absent
	v.Reason, v.Message, v.Paths = "", "", nil
	if !r.Sampled { // all was read
		v.SamplePart, v.SampleParts = 0, 0
	}
	switch {
	case r.Proven() && r.SameNames > 0:
		v.Result, v.Reason = v1alpha1.VolumeFailed, v1alpha1.ReasonUnsupported
		v.Message = fmt.Sprintf("its content is whole, but %s the name of another entry, since kopia does not store names that are no UTF-8 as they were: "+
			"a restore writes only one of them. Rename them in the volume, and back it up again; 'repository get' of their directory brings all", text.Count(r.SameNames, "entry has", "entries have"))
		return v
	case r.Proven() && r.Sampled:
		v.Result = v1alpha1.VolumeSampled
		return v
	case r.Proven():
		v.Result = v1alpha1.VolumeVerified
		return v
	}
	v.Result, v.Reason = v1alpha1.VolumeMismatched, v1alpha1.ReasonMismatched
	v.Message = text.Count(r.Mismatched, "file is", "files are") + " not what the repository's records say"
	if restored {
		v.Reason = v1alpha1.ReasonRestoreMismatch
		v.Message = fmt.Sprintf("restored into a volume of class %q, %s not what the repository's records say", v.StorageClassName, text.Count(r.Mismatched, "file or directory is", "files and directories are"))
	}
	if r.NotCompared > 0 {
		v.Message += fmt.Sprintf(", %d not compared", r.NotCompared)
	}
	if r.LastError != "" {
		v.Message += ", such as " + r.LastError
	}
	v.Message = text.ShortenMiddle(text.Line(v.Message, 4*maxMessage), maxMessage)
	for _, path := range r.FailedPaths[:min(len(r.FailedPaths), maxPaths)] {
		v.Paths = append(v.Paths, text.Line(path, maxPath))
	}
	slices.Sort(v.Paths)
	return v
}

// verifyOnce reads a volume's snapshot, or a part of it.
func (r *run) verifyOnce(ctx context.Context, i int, v *v1alpha1.RepositoryTaskVolume) (uploader.VerifyResult, error) {
	pvb := &r.backups[i]
	kind := v1alpha1.UploaderName(pvb.Spec.UploaderType)
	verifier := r.cfg.Verifiers[kind]
	if verifier == nil {
		return uploader.VerifyResult{}, fmt.Errorf("uploader type %q: %w", kind, uploader.ErrUnsupported)
	}
	repo, err := r.repositories.Of(ctx, pvb)
	if err != nil {
		return uploader.VerifyResult{}, err
	}
	v.Address = shownAddress(&repo)
	return verifier.Verify(ctx, uploader.VerifyRequest{
		Repository: repo, SnapshotID: pvb.Status.SnapshotID, TotalBytes: max(pvb.Status.Progress.TotalBytes, 0), SamplePart: int(v.SamplePart), SampleParts: int(v.SampleParts),
	}, progress.SinkFunc(func(reading progress.Reading) { r.report(i, reading) }))
}

// addOtherAddress says in the message of a volume that its record names another repository than the one that was read: what it has found, and has not,
// is easily taken for the other's.
func addOtherAddress(pvb *velerov1.PodVolumeBackup, v *v1alpha1.RepositoryTaskVolume) {
	if other := otherAddress(pvb, v.Address); other != "" {
		v.Message = messageOf(strings.TrimPrefix(v.Message+"; "+other, "; "))
	}
}

// report adds what the other volumes have to a reading of one. It is called by one goroutine at a time.
func (r *run) report(i int, reading progress.Reading) {
	total := r.done
	for at := i + 1; at < len(r.sizes); at++ {
		total += r.sizes[at]
	}
	if reading.TotalBytes == 0 {
		reading.TotalBytes = r.sizes[i]
	}
	reading.TotalBytes += total
	reading.BytesDone += r.done
	reading.Errors += r.wrong
	reading.FilesDone, reading.FilesTotal = 0, 0 // of one volume
	if r.done > 0 && reading.Stage == progress.StageScanning {
		reading.Stage = progress.StageTransferring
	}
	r.tracker.Report(reading)
}

// classify returns the reason of an error, and whether another try may help.
func classify(err error) (reason v1alpha1.Reason, mayPass bool) {
	if failed, ok := errors.AsType[*scratchError](err); ok {
		return failed.reason, failed.mayPass
	}
	for _, known := range []struct {
		err    error
		reason v1alpha1.Reason
	}{
		{repository.ErrMisconfigured, v1alpha1.ReasonInvalidLocation},
		{uploader.ErrRepositoryNotFound, v1alpha1.ReasonRepositoryNotFound},
		{uploader.ErrRepositoryIncomplete, v1alpha1.ReasonRepositoryIncomplete},
		{uploader.ErrWrongPassword, v1alpha1.ReasonWrongPassword},
		{uploader.ErrRepositoryLocked, v1alpha1.ReasonRepositoryLocked},
		{uploader.ErrSnapshotNotFound, v1alpha1.ReasonSnapshotNotFound},
		{uploader.ErrUnconfirmed, v1alpha1.ReasonUnconfirmed},
		{uploader.ErrRepositoryDamaged, v1alpha1.ReasonDamaged},
		{uploader.ErrMaintenanceOwner, v1alpha1.ReasonMaintenanceOwner},
		{uploader.ErrUnsupported, v1alpha1.ReasonUnsupported},
		{errors.ErrUnsupported, v1alpha1.ReasonUnsupported},
	} {
		if errors.Is(err, known.err) {
			// Backups that others need cannot be read while the index lacks their packs, whatever the reason was.
			return known.reason, errors.Is(err, uploader.ErrPacksLeftOut)
		}
	}
	switch {
	case errors.Is(err, uploader.ErrDamaged):
		return v1alpha1.ReasonMismatched, true
	case errors.Is(err, uploader.ErrNoSpace):
		return v1alpha1.ReasonNoSpace, true
	}
	if exit, ok := errors.AsType[*worker.ExitError](err); ok && exit.OutOfMemory {
		return v1alpha1.ReasonOutOfMemory, true
	}
	return v1alpha1.ReasonDataPath, true
}
