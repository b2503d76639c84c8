package restore

import (
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

// TestActions has what the small actions make of items, and what of them they leave alone. Those that decide about volumes
// have tests of their own.
func TestActions(t *testing.T) {
	t.Parallel()
	cluster := bareCluster(t)
	for _, test := range []struct {
		name     string
		resource string
		spec     velerov1.RestoreSpec
		input    Input
		item     string
		want     expectation
	}{{
		name:     "an APIService of the API server itself is left out",
		resource: "apiservices.apiregistration.k8s.io",
		item:     `{metadata: {name: v1.apps, labels: {kube-aggregator.kubernetes.io/automanaged: onstart}}}`,
		want:     expectation{skip: "the API server makes it itself"},
	}, {
		name:     "another APIService is restored",
		resource: "apiservices.apiregistration.k8s.io",
		item:     `{metadata: {name: v1beta1.metrics.k8s.io, labels: {app: metrics}}}`,
		want:     expectation{item: `{metadata: {name: v1beta1.metrics.k8s.io, labels: {app: metrics}}}`},
	}, {
		name:     "side effects that v1 does not take become None",
		resource: "validatingwebhookconfigurations.admissionregistration.k8s.io",
		item: `{apiVersion: admissionregistration.k8s.io/v1, metadata: {name: a}, webhooks: [
			{name: a, sideEffects: Unknown}, {name: b, sideEffects: NoneOnDryRun}, {name: c}, {name: d, sideEffects: None}]}`,
		want: expectation{item: `{apiVersion: admissionregistration.k8s.io/v1, metadata: {name: a}, webhooks: [
			{name: a, sideEffects: None}, {name: b, sideEffects: NoneOnDryRun}, {name: c, sideEffects: None}, {name: d, sideEffects: None}]}`},
	}, {
		name:     "side effects stay in v1beta1",
		resource: "mutatingwebhookconfigurations.admissionregistration.k8s.io",
		item:     `{apiVersion: admissionregistration.k8s.io/v1beta1, metadata: {name: a}, webhooks: [{sideEffects: Some}]}`,
		want:     expectation{item: `{apiVersion: admissionregistration.k8s.io/v1beta1, metadata: {name: a}, webhooks: [{sideEffects: Some}]}`},
	}, {
		name:     "a CRD that preserves unknown fields does so by its schemas",
		resource: "customresourcedefinitions.apiextensions.k8s.io",
		item: `{apiVersion: apiextensions.k8s.io/v1, metadata: {name: a}, spec: {preserveUnknownFields: true, versions: [
			{name: v1, schema: {openAPIV3Schema: {type: object}}}, {name: v2}]}}`,
		want: expectation{item: `{apiVersion: apiextensions.k8s.io/v1, metadata: {name: a}, spec: {preserveUnknownFields: false, versions: [
			{name: v1, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}, {name: v2}]}}`},
	}, {
		name:     "another CRD stays as it is",
		resource: "customresourcedefinitions.apiextensions.k8s.io",
		item:     `{apiVersion: apiextensions.k8s.io/v1, metadata: {name: a}, spec: {versions: [{schema: {openAPIV3Schema: {type: object}}}]}}`,
		want: expectation{
			item: `{apiVersion: apiextensions.k8s.io/v1, metadata: {name: a}, spec: {versions: [{schema: {openAPIV3Schema: {type: object}}}]}}`,
		},
	}, {
		name:     "subjects follow the namespace mapping",
		resource: "rolebindings.rbac.authorization.k8s.io",
		spec:     velerov1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "shop-copy"}},
		item: `{metadata: {name: a, namespace: shop}, subjects: [
			{kind: ServiceAccount, name: web, namespace: shop}, {kind: ServiceAccount, name: x, namespace: other}, {kind: User, name: shop}]}`,
		want: expectation{item: `{metadata: {name: a, namespace: shop}, subjects: [
			{kind: ServiceAccount, name: web, namespace: shop-copy}, {kind: ServiceAccount, name: x, namespace: other}, {kind: User, name: shop}]}`},
	}, {
		name:     "so do those of a ClusterRoleBinding",
		resource: "clusterrolebindings.rbac.authorization.k8s.io",
		spec:     velerov1.RestoreSpec{NamespaceMapping: map[string]string{"shop": "shop-copy"}},
		item:     `{metadata: {name: a}, subjects: [{kind: ServiceAccount, name: web, namespace: shop}]}`,
		want:     expectation{item: `{metadata: {name: a}, subjects: [{kind: ServiceAccount, name: web, namespace: shop-copy}]}`},
	}, {
		name:     "a Job forgets the UID that it had",
		resource: "jobs.batch",
		item: `{metadata: {name: a}, spec: {
			selector: {matchLabels: {controller-uid: u, batch.kubernetes.io/controller-uid: u, app: a}},
			template: {metadata: {labels: {controller-uid: u, batch.kubernetes.io/controller-uid: u, job-name: a}}}}}`,
		want: expectation{item: `{metadata: {name: a}, spec: {selector: {matchLabels: {app: a}}, template: {metadata: {labels: {job-name: a}}}}}`},
	}, {
		name:     "a ServiceAccount forgets the tokens that Kubernetes has made",
		resource: "serviceaccounts",
		item: `{metadata: {name: web}, secrets: [{name: web-token-x7k2p}, {name: registry}, {name: web-token-for-ci}, {name: other-token-x7k2p}],
			imagePullSecrets: [{name: registry}]}`,
		want: expectation{item: `{metadata: {name: web}, secrets: [{name: registry}, {name: web-token-for-ci}, {name: other-token-x7k2p}],
			imagePullSecrets: [{name: registry}]}`},
	}, {
		name:     "such a token is left out",
		resource: "secrets",
		input:    serviceAccount(t, "web-token-x7k2p"),
		item: `{metadata: {name: web-token-x7k2p, namespace: shop, annotations: {kubernetes.io/service-account.name: web}},
			type: kubernetes.io/service-account-token}`,
		want: expectation{skip: "Kubernetes before 1.24 made this token"},
	}, {
		name:     "one of such a name that the ServiceAccount does not have was made by somebody else",
		resource: "secrets",
		input:    serviceAccount(t, "web-token-other"),
		item: `{metadata: {name: web-token-x7k2p, namespace: shop, annotations: {kubernetes.io/service-account.name: web}},
			type: kubernetes.io/service-account-token, data: {token: YQ==}}`,
		want: expectation{
			item: `{metadata: {name: web-token-x7k2p, namespace: shop, annotations: {kubernetes.io/service-account.name: web}},
				type: kubernetes.io/service-account-token, data: {}}`,
			additional: []string{"serviceaccounts shop/web"},
		},
	}, {
		name:     "one of such a name whose ServiceAccount the backup does not have",
		resource: "secrets",
		item: `{metadata: {name: web-token-x7k2p, namespace: shop, annotations: {kubernetes.io/service-account.name: web}},
			type: kubernetes.io/service-account-token}`,
		want: expectation{skip: "Kubernetes before 1.24 made this token", warnings: []string{`made for ServiceAccount "web", which the backup does not have`}},
	}, {
		name:     "a token that somebody has asked for gets a new content",
		resource: "secrets",
		item: `{metadata: {name: ci, annotations: {kubernetes.io/service-account.name: web, kubernetes.io/service-account.uid: u}},
			type: kubernetes.io/service-account-token, data: {token: YQ==, ca.crt: YQ==, namespace: c2hvcA==, extra: YQ==}}`,
		want: expectation{item: `{metadata: {name: ci, annotations: {kubernetes.io/service-account.name: web}},
			type: kubernetes.io/service-account-token, data: {namespace: c2hvcA==, extra: YQ==}}`},
	}, {
		name:     "another Secret stays as it is, whatever its name",
		resource: "secrets",
		item:     `{metadata: {name: web-token-x7k2p, annotations: {kubernetes.io/service-account.name: web}}, type: Opaque, data: {token: YQ==}}`,
		want: expectation{
			item: `{metadata: {name: web-token-x7k2p, annotations: {kubernetes.io/service-account.name: web}}, type: Opaque, data: {token: YQ==}}`,
		},
	}, {
		name:     "of the parts of an image's name the longest is replaced",
		resource: "deployments.apps",
		input:    Input{Images: map[string]string{"a.test": "b.test", "a.test/web": "c.test/site", "": "x"}},
		item: `{kind: Deployment, metadata: {name: a}, spec: {template: {spec: {
			containers: [{image: "a.test/web:1"}, {image: "a.test/db:1"}, {image: z}, {}], initContainers: [{image: "a.test/a.test"}]}}}}`,
		want: expectation{item: `{kind: Deployment, metadata: {name: a}, spec: {template: {spec: {
			containers: [{image: "c.test/site:1"}, {image: "b.test/db:1"}, {image: z}, {}], initContainers: [{image: "b.test/b.test"}]}}}}`},
	}, {
		name:     "images of CronJobs are replaced",
		resource: "cronjobs.batch",
		input:    Input{Images: map[string]string{"a.test": "b.test"}},
		item:     `{kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: a.test/web}]}}}}}}`,
		want:     expectation{item: `{kind: CronJob, metadata: {name: a}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: b.test/web}]}}}}}}`},
	}, {
		name:     "a storage class that is to be replaced by none that exists is an error",
		resource: "statefulsets.apps",
		input:    Input{StorageClasses: map[string]string{"old": "new"}},
		item:     `{kind: StatefulSet, metadata: {name: a}, spec: {volumeClaimTemplates: [{spec: {storageClassName: old}}]}}`,
		want:     expectation{err: `storage class "new", which "old" is to be replaced by, does not exist`},
	}, {
		name:     "other storage classes stay",
		resource: "statefulsets.apps",
		input:    Input{StorageClasses: map[string]string{"old": "new"}},
		item:     `{kind: StatefulSet, metadata: {name: a}, spec: {volumeClaimTemplates: [{spec: {storageClassName: fast}}, {spec: {}}]}}`,
		want:     expectation{item: `{kind: StatefulSet, metadata: {name: a}, spec: {volumeClaimTemplates: [{spec: {storageClassName: fast}}, {spec: {}}]}}`},
	}, {
		name:     "a DataUpload is left out",
		resource: "datauploads.velero.io",
		item:     `{metadata: {name: a, namespace: velero}}`,
		want:     expectation{skip: "data mover"},
	}, {
		name:     "a group snapshot is left out with a warning",
		resource: "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
		item:     `{metadata: {name: a, namespace: shop}}`,
		want:     expectation{skip: "group snapshots", warnings: []string{"only the VolumeSnapshots in them"}},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.input.Restore = &velerov1.Restore{Spec: test.spec}
			item, out, err := prepareItem(t, scopeWith(cluster, test.input), test.resource, decodeItem(t, test.item))
			test.want.check(t, item, out, err)
		})
	}
}

// serviceAccount is a backup with ServiceAccount shop/web, which has a token.
func serviceAccount(tb testing.TB, token string) Input {
	tb.Helper()
	return Input{Archive: archiveOf(tb, "1.1.0", map[string]string{
		"serviceaccounts/namespaces/shop/web": `{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: shop}, secrets: [{name: ` + token + `}]}`,
	})}
}

// TestEveryActionIsForAnItem sees that the list of actions is whole: each has a name of its own, resources and a function.
func TestEveryActionIsForAnItem(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, action := range actions {
		if names[action.name] || action.name == "" || len(action.resources) == 0 || action.apply == nil {
			t.Errorf("action %q is there twice or incomplete", action.name)
		}
		names[action.name] = true
	}
}
