package restore

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTokenBringsItsServiceAccount restores the Secret of a token by its label, which its ServiceAccount does not have. Kubernetes removes
// such a Secret without a ServiceAccount; one that is there is not the Restore's to change.
func TestTokenBringsItsServiceAccount(t *testing.T) {
	t.Parallel()
	for name, exists := range map[string]bool{"which is there": true, "which is not there": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			a.createNamespace(shop)
			version := ""
			if exists {
				version = a.create("serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: `+shop+`}}`).GetResourceVersion()
			}
			a.input.Restore.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "ci"}}
			a.backup(
				of("serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: shop, annotations: {role: admin}}, imagePullSecrets: [{name: old}]}`),
				of("secrets", `{apiVersion: v1, kind: Secret, metadata: {name: ci, namespace: shop, labels: {app: ci}, annotations: {kubernetes.io/service-account.name: web}},
					type: kubernetes.io/service-account-token}`),
			)
			outcome := a.run()
			if !outcome.Results.Errors.IsEmpty() || a.get("secrets", shop, "ci") == nil {
				t.Errorf("Secret is not restored:\n%s", resultsText(outcome))
			}
			switch account := a.get("serviceaccounts", shop, "web"); {
			case account == nil:
				t.Error("no ServiceAccount")
			case exists && account.GetResourceVersion() != version:
				t.Errorf("the ServiceAccount, which the selector leaves out, was changed: %v", account.Object)
			case !exists && account.GetAnnotations()["role"] != "admin":
				t.Errorf("the ServiceAccount is not that of the backup: %v", account.Object)
			}
		})
	}
}
