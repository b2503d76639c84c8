package restore

import "context"

// automanaged labels the APIServices that the API server makes itself.
const automanaged = "kube-aggregator.kubernetes.io/automanaged"

// skipManagedAPIService leaves out what the API server makes itself.
func skipManagedAPIService(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
	if _, ok := in.item.GetLabels()[automanaged]; ok {
		return actionOutput{skip: "the API server makes it itself"}, nil
	}
	return actionOutput{}, nil
}
