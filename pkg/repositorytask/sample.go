package repositorytask

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// sampleParts returns how many parts the content of a volume has of which a sample reads one, of about this percentage.
func sampleParts(percent int32) int32 { return (100 + percent - 1) / percent }

// chooseParts chooses the part of each volume that a sample reads. One that an earlier process of the task has chosen stays.
func (r *run) chooseParts(ctx context.Context, volumes []v1alpha1.RepositoryTaskVolume) error {
	percent := r.object.Spec.Sample
	if percent <= 0 {
		return nil
	}
	var tasks v1alpha1.RepositoryTaskList
	if err := r.api.List(ctx, &tasks, client.InNamespace(r.cfg.Namespace)); err != nil {
		return fmt.Errorf("find the parts whose turn it is: %w", err)
	}
	results := proof.ResultsOf(tasks.Items)
	for i := range volumes {
		v := &volumes[i]
		if v.Result == v1alpha1.VolumePending && v.SampleParts == 0 && v.Uploader == uploaderKopia { // restic reads whole snapshots
			v.SampleParts = sampleParts(percent)
			v.SamplePart = results.NextPart(v)
		}
	}
	return nil
}
