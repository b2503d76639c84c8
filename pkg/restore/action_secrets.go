package restore

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// serviceAccountName is the annotation of a token's Secret that names its ServiceAccount.
const serviceAccountName = "kubernetes.io/service-account.name"

// generatedToken reports whether a name is one that Kubernetes, before 1.24, gave to the token of a ServiceAccount: five
// characters follow. Tokens that users created mostly have other names, and are restored.
func generatedToken(serviceAccount, name string) bool {
	suffix, ok := strings.CutPrefix(name, serviceAccount+"-token-")
	return ok && serviceAccount != "" && len(suffix) == 5
}

// prepareToken leaves out tokens that Kubernetes itself made for ServiceAccounts, before 1.24: it noted each on its ServiceAccount. Velero
// leaves out what has such a name if the ServiceAccount is in the cluster. The others get a new token: Kubernetes' controller writes it where
// none is, and removes a Secret with the UID of another ServiceAccount, or of one that does not exist yet: that is restored before.
func prepareToken(ctx context.Context, s *scope, in *actionInput) (actionOutput, error) {
	if textOf(in.item.Object, "type") != "kubernetes.io/service-account-token" {
		return actionOutput{}, nil
	}
	account := key{serviceAccounts, in.original.GetNamespace(), in.item.GetAnnotations()[serviceAccountName]}
	object := findItem(s.Archive, account)
	if name := in.item.GetName(); generatedToken(account.name, name) {
		skip := actionOutput{skip: fmt.Sprintf("Kubernetes before 1.24 made this token for ServiceAccount %q, and newer versions give pods tokens without a Secret", account.name)}
		if object == nil {
			skip.warnings = []string{fmt.Sprintf("not restored: its name is that of a token which Kubernetes before 1.24 made for ServiceAccount %q, which the backup does not have. "+
				"If something else uses it, make it by hand", account.name)}
			return skip, nil
		}
		for secret := range objectsOf(object, "secrets") {
			if textOf(secret, "name") == name {
				return skip, nil
			}
		}
	}
	var out actionOutput
	if object != nil {
		exists, err := s.serviceAccountExists(ctx, account)
		if err != nil {
			return actionOutput{}, err
		}
		if !exists {
			out.additional = []key{account}
		}
	}
	removeAnnotations(in.item, "kubernetes.io/service-account.uid")
	data, _ := fieldOf[map[string]any](in.item.Object, "data")
	delete(data, "token")
	delete(data, "ca.crt")
	return out, nil
}

// serviceAccountExists reports whether the cluster has a ServiceAccount of the backup. Then its token needs no other, and the filters of
// the Restore alone decide whether the backup's is merged into it.
func (s *scope) serviceAccountExists(ctx context.Context, account key) (bool, error) {
	name := types.NamespacedName{Namespace: s.targetNamespace(account.namespace), Name: account.name}
	_, err := s.findObject(ctx, serviceAccounts.WithVersion("v1"), name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for ServiceAccount %q: %w", account.name, err)
	}
	return true, nil
}
