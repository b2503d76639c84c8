package restore

import "context"

// forgetTokens takes away the references to tokens that Kubernetes has made: they are not restored, see prepareToken.
func forgetTokens(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
	removeObjects(in.item.Object, "secrets", func(secret map[string]any) bool {
		return generatedToken(in.item.GetName(), textOf(secret, "name"))
	})
	return actionOutput{}, nil
}
