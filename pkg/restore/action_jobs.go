package restore

import "context"

// forgetController takes away the labels by which a Job finds its pods: they hold its UID, and the API server makes new
// ones for the new UID. A Job with a selector of its own (spec.manualSelector) does not use them.
func forgetController(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
	selector, _ := fieldOf[map[string]any](in.item.Object, "spec", "selector", "matchLabels")
	template, _ := fieldOf[map[string]any](in.item.Object, "spec", "template", "metadata", "labels")
	for _, labels := range []map[string]any{selector, template} {
		delete(labels, "controller-uid")
		delete(labels, "batch.kubernetes.io/controller-uid") // since Kubernetes 1.27
	}
	return actionOutput{}, nil
}
