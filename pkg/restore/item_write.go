package restore

import (
	"context"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// write creates the item or, if it exists, compares it with what is there: most items do not exist. It returns false if an
// object that stood in its way is gone.
func (r *run) write(ctx context.Context, i *item) (ended bool) {
	withStatus := r.addStatus(i)
	var made *unstructured.Unstructured
	calls := 0
	err := r.retry(ctx, i.resource, func() (err error) {
		calls++
		made, err = r.create(ctx, i)
		return err
	})
	i.createRetried = i.createRetried || calls > 1
	exists := apierrors.IsAlreadyExists(err) || portsTaken(i, err)
	switch {
	case err == nil:
		r.afterCreate(ctx, i, made, withStatus)
		return true
	case !exists && (!i.createRetried || !isAnswer(err)):
		i.fail("%v", err)
		return true
	}
	existing, ended := r.existing(ctx, i, err)
	if existing == nil {
		return ended
	}
	if i.createRetried && r.isOurs(existing) && !r.existedBefore(existing) {
		r.afterCreate(ctx, i, existing, withStatus)
		return true
	}
	if !exists {
		i.fail("%v", err)
		return true
	}
	r.reconcile(ctx, i, existing)
	if i.action == updated && i.resource == customResourceDefinitions {
		r.awaitEstablished(ctx, i)
	}
	return true
}

// isAnswer reports whether the API server has refused a request. What an earlier request has made may be the reason, as with a quota that is used up by it.
func isAnswer(err error) bool { return !apiretry.Unreachable(err) && !apiretry.Overloaded(err) }

// create creates the item. Admission may refuse it for what is different a moment later: a pod whose PriorityClass has only just
// been made, see unnoticedClass, and anything with a conflict, such as a ResourceQuota that was changed meanwhile.
func (r *run) create(ctx context.Context, i *item) (made *unstructured.Unstructured, err error) {
	again := func(err error) bool {
		return apierrors.IsConflict(err) || i.resource == pods && r.unnoticedClass(ctx, i.object, err)
	}
	err = apiretry.Policy{Patience: admissionPatience, Retry: again}.Do(ctx, func() (err error) {
		made, err = i.client.Create(ctx, i.object, metav1.CreateOptions{FieldManager: fieldManager})
		return err
	})
	return made, err
}

// afterCreate does what has to be done once an item was created.
func (r *run) afterCreate(ctx context.Context, i *item, made *unstructured.Unstructured, withStatus bool) {
	i.action = created
	i.errors = append(i.errors, i.lacks...)
	if withStatus {
		r.restoreStatus(ctx, i, made)
	}
	switch i.resource {
	case customResourceDefinitions:
		r.awaitEstablished(ctx, i)
	case pods:
		if hooks, warnings := r.execHooks(made); len(hooks) > 0 {
			i.warnings = append(i.warnings, warnings...)
			r.startHooks(made, hooks)
		}
		volumes, warnings, errs := r.restorePodVolumes(ctx, i.original, made)
		i.volumes, i.warnings = volumes, append(i.warnings, warnings...)
		r.reportVolumes(volumes)
		for _, err := range errs {
			i.addError("%v", err) // the pod was created all the same
		}
	}
}

// reportVolumes reports the size of volumes whose PodVolumeRestores were created.
func (r *run) reportVolumes(volumes []velerov1.PodVolumeRestore) {
	if r.ReportVolumes == nil || len(volumes) == 0 {
		return
	}
	var bytes int64
	for i := range volumes {
		bytes += max(volumes[i].Spec.SnapshotSize, 0)
	}
	r.ReportVolumes(bytes)
}

// addStatus reports whether the item's status is restored when the item is there. Where a kind has no subresource for it, it
// is a field as any other.
func (r *run) addStatus(i *item) bool {
	status, ok := i.original.Object["status"]
	if !ok || !r.selection.restoresStatus(i.resource, i.object.GetAnnotations()) {
		return false
	}
	if !i.served.status {
		i.object.Object["status"] = status
	}
	return i.served.status
}

func (r *run) restoreStatus(ctx context.Context, i *item, made *unstructured.Unstructured) {
	latest := made
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := r.retry(ctx, i.resource, func() error {
			object := latest.DeepCopy()
			object.Object["status"] = i.original.Object["status"]
			_, err := i.client.UpdateStatus(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})
			return err
		})
		if apierrors.IsConflict(err) {
			if again, getErr := i.client.Get(ctx, made.GetName(), metav1.GetOptions{}); getErr == nil {
				latest = again
			}
		}
		return err
	})
	if err != nil {
		i.warn("its status is not restored: %v", err)
	}
}
