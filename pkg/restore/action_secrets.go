package restore

import (
	"context"
	"strings"
)

// serviceAccountName is the annotation of a token's Secret that names its ServiceAccount.
const serviceAccountName = "kubernetes.io/service-account.name"

// generatedToken reports whether a name is one that Kubernetes, before 1.24, gave to the token of a ServiceAccount: five
// characters follow. Tokens that users created mostly have other names, and are restored.
func generatedToken(serviceAccount, name string) bool {
	suffix, ok := strings.CutPrefix(name, serviceAccount+"-token-")
	return ok && serviceAccount != "" && len(suffix) == 5
}

// prepareToken leaves out the tokens of ServiceAccounts that Kubernetes makes itself. The others get a new token: the
// controller writes it where none is, and removes a Secret with the UID of another ServiceAccount.
func prepareToken(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
	if textOf(in.item.Object, "type") != "kubernetes.io/service-account-token" {
		return actionOutput{}, nil
	}
	if generatedToken(in.item.GetAnnotations()[serviceAccountName], in.item.GetName()) {
		return actionOutput{skip: "Kubernetes makes a ServiceAccount's token itself"}, nil
	}
	removeAnnotations(in.item, "kubernetes.io/service-account.uid")
	data, _ := fieldOf[map[string]any](in.item.Object, "data")
	delete(data, "token")
	delete(data, "ca.crt")
	return actionOutput{}, nil
}
