package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// errVolumesTimeout is Velero's.
var errVolumesTimeout = errors.New("timed out waiting for all PodVolumeRestores to complete")

// listVolumes returns the restore's PodVolumeRestores, as the cache knows them.
func (e *execution) listVolumes(ctx context.Context) ([]velerov1.PodVolumeRestore, error) {
	var list velerov1.PodVolumeRestoreList
	err := e.c.client.List(ctx, &list, client.InNamespace(e.op.name.Namespace), client.MatchingLabels{velerov1.RestoreUIDLabel: string(e.op.uid)})
	if err != nil {
		return nil, fmt.Errorf("list the restore's PodVolumeRestores: %w", err)
	}
	return list.Items, nil
}

// trackVolumes notes the restore's PodVolumeRestores as they are now, also those of an earlier process.
func (e *execution) trackVolumes(ctx context.Context) {
	if e.tracker == nil {
		return
	}
	volumes, err := e.listVolumes(ctx)
	if err != nil {
		e.journal.Warn("Restore volume info is not complete", "error", err)
	}
	for i := range volumes {
		e.tracker.TrackPodVolume(&volumes[i])
	}
}

// followVolumes tells the progress of volumes while items are still restored.
func (e *execution) followVolumes(ctx context.Context) {
	for {
		select {
		case <-e.op.volumes:
		case <-ctx.Done():
			return
		}
		if volumes, err := e.listVolumes(ctx); err == nil {
			sum := sumUp(volumes)
			e.op.progress.update(func(p *Progress) { addVolumes(p, sum) })
		}
	}
}

// waitForVolumes returns when the restore's PodVolumeRestores have ended. Those that have not ended well, or not in time,
// are errors of the restore.
func (e *execution) waitForVolumes(ctx context.Context) error {
	if len(e.outcome.PodVolumes) == 0 {
		return nil
	}
	e.setStep(v1alpha1.StepVolumes)
	if err := e.writeStep(ctx); err != nil {
		return err
	}
	deadline := time.NewTimer(time.Until(e.volumeDeadline()))
	defer deadline.Stop()
	for {
		check, err := e.checkVolumes(ctx)
		if err != nil {
			return err
		}
		if check.pending == 0 {
			check.addTo(&e.outcome.Results)
			return nil
		}
		select {
		case <-e.op.volumes:
		case <-deadline.C:
			check.addTo(&e.outcome.Results)
			addError(&e.outcome.Results, errVolumesTimeout.Error())
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// volumeDeadline is when the restore stops waiting, by Velero's annotation, which was checked, or the controller's own rule.
func (e *execution) volumeDeadline() time.Time {
	timeout := e.c.cfg.PodVolumeTimeout
	if d, err := time.ParseDuration(e.restore.Annotations[velerov1.PodVolumeOperationTimeoutAnnotation]); err == nil {
		timeout = d
	}
	started := e.restore.Status.StartTimestamp
	if started == nil {
		started = &e.restore.CreationTimestamp
	}
	return started.Add(timeout)
}

// volumeCheck is what has become of a restore's volumes.
type volumeCheck struct {
	pending  int      // that have not ended
	problems []string // of those that have not ended well
	remarks  []string // of those that are complete, such as files that could not be written, which the user has accepted
}

// addTo adds what the check has found to the restore's results.
func (c *volumeCheck) addTo(results *backupstore.Results) {
	for _, problem := range c.problems {
		addError(results, problem)
	}
	for _, remark := range c.remarks {
		addWarning(results, remark)
	}
}

// checkVolumes tells the progress, and returns what has become of the volumes.
func (e *execution) checkVolumes(ctx context.Context) (volumeCheck, error) {
	var check volumeCheck
	volumes, err := e.listVolumes(ctx)
	if err != nil {
		return check, err
	}
	sum := sumUp(volumes)
	e.op.progress.update(func(p *Progress) { p.Volumes = sum })
	known := map[string]*velerov1.PodVolumeRestore{}
	for i := range volumes {
		known[volumes[i].Name] = &volumes[i]
		e.tracker.TrackPodVolume(&volumes[i])
	}
	for i := range e.outcome.PodVolumes {
		v := known[e.outcome.PodVolumes[i].Name]
		if v == nil {
			if v, err = e.getUncached(ctx, &e.outcome.PodVolumes[i]); err != nil {
				return check, err
			}
		}
		created := &e.outcome.PodVolumes[i]
		ended, problem := volumeResult(v, created)
		switch {
		case !ended:
			check.pending++
		case problem != "":
			check.problems = append(check.problems, problem)
		case v.Status.Message != "":
			check.remarks = append(check.remarks, fmt.Sprintf("pod volume restore completed, and says of %s: %s", volumeText(created), v.Status.Message))
		}
	}
	return check, nil
}

func volumeText(v *velerov1.PodVolumeRestore) string {
	return fmt.Sprintf("volume %s of pod %s/%s", v.Spec.Volume, v.Spec.Pod.Namespace, v.Spec.Pod.Name)
}

// getUncached reads a PodVolumeRestore that the cache does not know, or not yet, however long the API server does not answer;
// nil if it is gone.
func (e *execution) getUncached(ctx context.Context, created *velerov1.PodVolumeRestore) (*velerov1.PodVolumeRestore, error) {
	var volume velerov1.PodVolumeRestore
	err := e.c.retry(ctx, e.op, func() error { return e.c.api.Get(ctx, client.ObjectKeyFromObject(created), &volume) })
	if errors.Is(err, errNothingToDo) {
		return nil, nil //nolint:nilnil // volumeResult knows what that means
	}
	return &volume, err
}

// volumeResult reports whether a volume has ended, and how if not well. v is nil if its object is gone.
func volumeResult(v, created *velerov1.PodVolumeRestore) (ended bool, problem string) {
	what := volumeText(created)
	if v == nil {
		return true, "pod volume restore was deleted: " + what
	}
	switch v.Status.Phase {
	case velerov1.PodVolumeRestorePhaseCompleted:
		return true, ""
	case velerov1.PodVolumeRestorePhaseFailed:
		return true, fmt.Sprintf("pod volume restore failed: %s: %s", what, v.Status.Message)
	case velerov1.PodVolumeRestorePhaseCanceled:
		return true, fmt.Sprintf("pod volume restore canceled: %s: %s", what, v.Status.Message)
	default:
		return false, ""
	}
}
