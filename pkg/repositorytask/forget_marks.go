package repositorytask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// markAll marks the records of the snapshots that are to be removed. A record that somebody changes at the same time is kept.
func (f *forgetting) markAll(ctx context.Context) error {
	for _, s := range f.open {
		if s.Result != v1alpha1.RetentionPending || s.marked {
			continue
		}
		if s.record.Status.SnapshotID != s.SnapshotID || !retention.IsCandidate(s.record) {
			s.keep(retention.RuleAnother, changedMeanwhile)
			continue
		}
		err := f.markRecord(ctx, s.record)
		switch {
		case err == nil:
			s.marked = true
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			s.keep(retention.RuleAnother, "its PodVolumeBackup was changed or deleted meanwhile")
		default:
			return fmt.Errorf("mark PodVolumeBackup %s: %w", s.PodVolumeBackup, err)
		}
	}
	return nil
}

// markRecord sets the mark, if nobody has changed the record since it was read. A conflict may come of a mark of this task whose answer was lost.
func (f *forgetting) markRecord(ctx context.Context, record *velerov1.PodVolumeBackup) error {
	changed := record.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	changed.Annotations[v1alpha1.AnnotationForgetting] = string(f.object.UID)
	err := apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
		return f.client.Patch(ctx, changed, client.MergeFromWithOptions(record, client.MergeFromWithOptimisticLock{}))
	})
	if apierrors.IsConflict(err) {
		var now velerov1.PodVolumeBackup
		getErr := apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error { return f.api.Get(ctx, client.ObjectKeyFromObject(record), &now) })
		if getErr != nil {
			return getErr
		}
		if now.UID == record.UID && now.Annotations[v1alpha1.AnnotationForgetting] == string(f.object.UID) {
			changed, err = &now, nil
		}
	}
	if err == nil {
		*record = *changed
	}
	return err
}

// mayBeRepeated reports whether the API server has not answered. A conflict or a refusal is an answer: the record is kept as it is.
func mayBeRepeated(err error) bool { return apiretry.Unreachable(err) || apiretry.Overloaded(err) }

// unmarkPresent removes the marks of snapshots that are there after an error. Where that cannot be found out the marks stay, and the next
// task looks.
func (f *forgetting) unmarkPresent(ctx context.Context) {
	var pending []*openSnapshot
	for _, s := range f.open {
		if s.Result == v1alpha1.RetentionPending {
			pending = append(pending, s)
		}
	}
	outcomes, err := f.forget(ctx, pending, true)
	for i := range outcomes {
		if outcomes[i].State == uploader.ForgetPresent {
			err = errors.Join(err, f.unmark(ctx, pending[i]))
		}
	}
	if err != nil {
		f.log.Warn("Marks of PodVolumeBackups are left; the next task of type Forget looks for their snapshots", "error", err)
	}
}

// unmark removes the mark of a record, also if the record was changed meanwhile, and leaves a new record of the same name alone.
func (f *forgetting) unmark(ctx context.Context, s *openSnapshot) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.record.UID, "annotations": map[string]any{v1alpha1.AnnotationForgetting: nil}}})
	if err != nil {
		return fmt.Errorf("encode that PodVolumeBackup %s has no mark: %w", s.PodVolumeBackup, err)
	}
	err = apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
		return f.client.Patch(ctx, s.record.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("remove the mark of PodVolumeBackup %s: %w", s.PodVolumeBackup, err)
	}
	s.marked = false
	return nil
}
