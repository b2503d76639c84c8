package restore

import "context"

// preserveFields replaces spec.preserveUnknownFields, which v1 does not take, by what says the same of each version's
// schema: CRDs that were made as v1beta1 have it.
func preserveFields(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
	spec, _ := fieldOf[map[string]any](in.item.Object, "spec")
	if preserve, _ := spec["preserveUnknownFields"].(bool); !preserve || in.item.GetAPIVersion() != "apiextensions.k8s.io/v1" {
		return actionOutput{}, nil
	}
	spec["preserveUnknownFields"] = false
	for version := range objectsOf(spec, "versions") {
		if schema, ok := fieldOf[map[string]any](version, "schema", "openAPIV3Schema"); ok {
			schema["x-kubernetes-preserve-unknown-fields"] = true
		}
	}
	return actionOutput{}, nil
}
