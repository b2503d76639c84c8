package restore

import "context"

// correctSideEffects replaces side effects that v1 does not take any more, as v1beta1 did: backups of clusters before
// Kubernetes 1.22 may have them.
func correctSideEffects(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
	if in.item.GetAPIVersion() != "admissionregistration.k8s.io/v1" {
		return actionOutput{}, nil
	}
	for webhook := range objectsOf(in.item.Object, "webhooks") {
		switch textOf(webhook, "sideEffects") {
		case "None", "NoneOnDryRun":
		default:
			webhook["sideEffects"] = "None"
		}
	}
	return actionOutput{}, nil
}
