package restore

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// application is what a namespace of a real API server has, by resource.
var application = map[string]string{
	"configmaps":                         `{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: NS, finalizers: [example.com/keep]}, data: {a: b}}`,
	"secrets":                            `{apiVersion: v1, kind: Secret, metadata: {name: web, namespace: NS}, stringData: {a: b}}`,
	"services":                           `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NS}, spec: {ports: [{port: 80}], selector: {app: web}}}`,
	"limitranges":                        `{apiVersion: v1, kind: LimitRange, metadata: {name: web, namespace: NS}, spec: {limits: [{type: Pod, max: {cpu: "4"}}]}}`,
	"roles.v1.rbac.authorization.k8s.io": `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: web, namespace: NS}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}`,
	"rolebindings.v1.rbac.authorization.k8s.io": `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: web, namespace: NS}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: web}, subjects: [{kind: ServiceAccount, name: default, namespace: NS}]}`,
	"deployments.v1.apps":                       `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: NS}, spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: web}]}}}}`,
	"cronjobs.v1.batch":                         `{apiVersion: batch/v1, kind: CronJob, metadata: {name: web, namespace: NS}, spec: {schedule: "0 3 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: web, image: web}]}}}}}}`,
	"ingresses.v1.networking.k8s.io":            `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: NS}, spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}}`,
}

// TestRestoreBackupsOfAllVersions restores a namespace of a real API server from the backup that each generation of Velero
// makes of it.
func TestRestoreBackupsOfAllVersions(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	source := "all-" + a.id
	a.createNamespace(source)
	for resource, manifest := range application {
		a.create(resource, inNamespace(manifest, source))
	}
	items, err := velero.Collect(t.Context(), a.config.REST, source)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []velero.Version{velero.V1_0, velero.V1_6, velero.V1_14, velero.V1_18} {
		t.Run(version.String(), func(t *testing.T) {
			t.Parallel()
			restoreBackupOf(t, version, items, source)
		})
	}
}

func inNamespace(manifest, namespace string) string {
	return string(bytes.ReplaceAll([]byte(manifest), []byte("NS"), []byte(namespace)))
}

func restoreBackupOf(t *testing.T, version velero.Version, items []velero.Item, source string) {
	t.Helper()
	files, err := velero.Stored{Version: version, Backup: &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "b1"}}, Items: items}.Files()
	if err != nil {
		t.Fatal(err)
	}
	a := newAttempt(t)
	a.input.Archive, err = backupstore.OpenArchive(t.Context(), "archive", bytes.NewReader(files["backups/b1/b1.tar.gz"]), backupstore.ArchiveOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.input.Archive.Close() })
	target := "restored-" + a.id
	a.input.Restore.Spec.NamespaceMapping = map[string]string{source: target}

	outcome := a.run()
	if said := resultsText(outcome); said != "" {
		t.Errorf("the restore says:\n%s", said)
	}
	if created := outcome.Progress.Counts.Created; created < len(application)+1 {
		t.Errorf("%d items were created, want these of the application and the namespace: %v", created, outcome.Resources)
	}
	for resource := range application {
		was, is := a.get(resource, source, "web"), a.get(resource, target, "web")
		if is == nil {
			t.Errorf("%s was not restored", resource)
			continue
		}
		for _, field := range []string{"data", "rules", "roleRef"} {
			if diff := cmp.Diff(was.Object[field], is.Object[field]); diff != "" {
				t.Errorf("%s of %s (-was +is):\n%s", field, resource, diff)
			}
		}
		if resource != "services" { // it has an address of its own
			if diff := cmp.Diff(was.Object["spec"], is.Object["spec"]); diff != "" {
				t.Errorf("spec of %s (-was +is):\n%s", resource, diff)
			}
		}
		if is.GetUID() == was.GetUID() || is.GetLabels()[velerov1.BackupNameLabel] != "b1" || len(is.GetFinalizers()) != len(was.GetFinalizers()) {
			t.Errorf("%s has metadata %v", resource, is.Object["metadata"])
		}
	}
}
