package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

const (
	// parkedFor is how long nothing is read from a repository that does not open, until somebody looks again whether it does.
	parkedFor = 10 * time.Minute
	// openTimeout bounds that look.
	openTimeout = time.Minute
)

// parked is a repository that did not open. A task of 300 volumes would else try 900 times to reach a bucket that is gone.
type parked struct {
	until  time.Time
	volume string // at which it was found
	err    error
}

// park looks whether a volume could not be read because its repository does not open, and parks the repository then. An error of a volume says
// nothing of the others.
func (r *run) park(ctx context.Context, pvb *velerov1.PodVolumeBackup, reason v1alpha1.Reason) {
	if reason != v1alpha1.ReasonDataPath {
		return
	}
	if err := r.open(ctx, pvb); err != nil && ctx.Err() == nil {
		volume := pvb.Spec.Pod.Namespace + "/" + pvb.Spec.Pod.Name + ":" + pvb.Spec.Volume
		r.log.Warn("The repository does not open: its other volumes are not tried", "volume", volume, "for", parkedFor, "error", err)
		r.parked[keyOf(new(repositoryOf(pvb)))] = parked{time.Now().Add(parkedFor), volume, err}
	}
}

// isParked reports whether a volume is in a repository that does not open, and notes that then. Once the time has passed, one that opens is parked
// no more.
func (r *run) isParked(ctx context.Context, pvb *velerov1.PodVolumeBackup, v *v1alpha1.RepositoryTaskVolume) bool {
	repository := keyOf(new(repositoryOf(pvb)))
	p, ok := r.parked[repository]
	if !ok {
		return false
	}
	if time.Now().After(p.until) {
		delete(r.parked, repository)
		r.park(ctx, pvb, v1alpha1.ReasonDataPath)
		if p, ok = r.parked[repository]; !ok {
			return false
		}
	}
	v.Result, v.Reason = v1alpha1.VolumeFailed, v1alpha1.ReasonRepositoryUnavailable
	v.Message = messageOf(fmt.Sprintf("not tried, since the repository did not open for volume %s: %s", p.volume, p.err))
	return true
}

// open returns why a repository that the work on a volume needs does not open. One that is locked, or is not there, has answered.
func (r *run) open(ctx context.Context, pvb *velerov1.PodVolumeBackup) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	from, err := r.repositories.Of(ctx, pvb)
	if err != nil {
		return err
	}
	if r.object.Spec.Type != v1alpha1.TaskMigrate {
		return open(ctx, r.cfg.Verifiers[uploaderOf(pvb)], from)
	}
	to, err := r.kopiaRepository(ctx, pvb)
	if err != nil {
		return err
	}
	return errors.Join(open(ctx, r.cfg.Exporter, from), open(ctx, r.cfg.Importer, to))
}

func open(ctx context.Context, dataPath any, repository uploader.Repository) error {
	opener, ok := dataPath.(uploader.Opener)
	if !ok {
		return nil
	}
	err := opener.Open(ctx, repository)
	if errors.Is(err, uploader.ErrRepositoryLocked) || errors.Is(err, uploader.ErrRepositoryNotFound) || errors.Is(err, uploader.ErrRepositoryIncomplete) {
		return nil
	}
	return err
}
