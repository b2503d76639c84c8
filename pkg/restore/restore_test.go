package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vmware-tanzu/velero/pkg/apis/velero/shared"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/itemoperation"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// definition is a CustomResourceDefinition of widgets in a group of its own, in two versions of which v2 is stored.
func definition(group string) archived {
	return of("customresourcedefinitions.apiextensions.k8s.io", fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: false
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  - name: v2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
status:
  conditions: [{type: Established, status: "True"}]
  storedVersions: [v2]
`, group))
}

func widget(group, version, namespace, name string) archived {
	return of("widgets."+group, fmt.Sprintf(`{apiVersion: %s/%s, kind: Widget, metadata: {namespace: %s, name: %s}, spec: {size: 3}, status: {ready: true}}`,
		group, version, namespace, name))
}

func TestRestoreCustomResources(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	one, two := "one"+a.id+".example.com", "two"+a.id+".example.com"
	a.input.Restore.Spec.RestoreStatus = &velerov1.RestoreStatusSpec{IncludedResources: []string{"widgets." + one}}
	a.backup(definition(one), definition(two),
		widget(one, "v1", a.id, "a"), widget(one, "v2", a.id, "b"), widget(two, "v2", a.id, "c"), widget(two, "v9", a.id, "d"))
	outcome := a.run()
	want := map[string][]string{
		"apiextensions.k8s.io/v1/CustomResourceDefinition": {"widgets." + one + "(created)", "widgets." + two + "(created)"},
		"v1/Namespace":     {a.id + "(created)"},
		one + "/v1/Widget": {a.id + "/a(created)"},
		one + "/v2/Widget": {a.id + "/b(created)"},
		two + "/v2/Widget": {a.id + "/c(created)"},
		two + "/v9/Widget": {a.id + "/d(failed)"},
	}
	if diff := cmp.Diff(want, outcome.Resources); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Counts{Created: 6, Failed: 1}, outcome.Progress.Counts); diff != "" {
		t.Error(diff)
	}
	if got := resultsText(outcome); !strings.Contains(got, "does not serve Widget of "+two+"/v9, only of "+two+"/v1, "+two+"/v2") {
		t.Error(got)
	}
	for name, restored := range map[string]bool{"a": true, "b": true} {
		status, found, err := unstructured.NestedBool(a.get("widgets.v2."+one, a.id, name).Object, "status", "ready")
		if err != nil || found != restored || status != restored {
			t.Errorf("status of %s: %v, %v, %v", name, status, found, err)
		}
	}
	if _, found := a.get("widgets.v2."+two, a.id, "c").Object["status"]; found {
		t.Error("a status was restored that nobody has asked for")
	}
}

// TestRestoreResets looks at what of an item goes into the cluster.
func TestRestoreResets(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.input.Backup.Name = strings.Repeat("long-", 14)
	a.backup(
		of("namespaces", fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, uid: u, labels: {team: a}, annotations: {note: b}},
			spec: {finalizers: [kubernetes]}, status: {phase: Terminating}}`, a.id)),
		of("configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, data: {k: v}, metadata: {namespace: %s, name: a, uid: u, resourceVersion: "1",
			generation: 4, deletionTimestamp: "2024-01-01T00:00:00Z", deletionGracePeriodSeconds: 30, generateName: x-, selfLink: /x,
			creationTimestamp: "2024-01-01T00:00:00Z", finalizers: [example.com/keep], labels: {l: "1"}, annotations: {a: "2"},
			ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: gone, uid: v}],
			managedFields: [{manager: kubectl, operation: Update, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: {"f:data": {}}}]}}`, a.id)),
	)
	a.run()
	got := a.get("configmaps", a.id, "a")
	labels := got.GetLabels()
	if backup := labels[velerov1.BackupNameLabel]; len(backup) != 63 || !strings.HasPrefix(backup, a.input.Backup.Name[:57]) {
		t.Errorf("label of the backup %q", backup)
	}
	delete(labels, velerov1.BackupNameLabel)
	if diff := cmp.Diff(map[string]string{"l": "1", velerov1.RestoreNameLabel: a.input.Restore.Name}, labels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"example.com/keep"}, got.GetFinalizers()); diff != "" {
		t.Error(diff)
	}
	if len(got.GetOwnerReferences()) > 0 || got.GetDeletionTimestamp() != nil || got.GetGenerateName() != "" || got.GetUID() == "u" {
		t.Errorf("metadata of the backup is restored: %v", got.Object)
	}
	if fields := got.GetManagedFields(); len(fields) != 1 || fields[0].Manager != "plimsoll-restore" {
		t.Errorf("managed by %v", fields)
	}
	namespace := a.get("namespaces", "", a.id)
	if namespace.GetLabels()["team"] != "a" || namespace.GetAnnotations()["note"] != "b" || namespace.GetLabels()["velero.io/restore-name"] != "" {
		t.Errorf("namespace %v", namespace.Object)
	}
}

// TestRestoreExisting restores over objects that are equal, different or in the way, with both policies.
func TestRestoreExisting(t *testing.T) {
	t.Parallel()
	for policy, test := range map[velerov1.PolicyType]struct {
		counts   Counts
		listed   []string
		value    string
		relabels bool
	}{
		"":     {Counts{Created: 1, Unchanged: 2, Failed: 1}, []string{"different(failed)", "equal(skipped)", "missing(created)"}, "cluster", false},
		"none": {Counts{Created: 1, Unchanged: 2, Failed: 1}, []string{"different(failed)", "equal(skipped)", "missing(created)"}, "cluster", false},
		"update": {
			Counts{Created: 1, Updated: 1, Unchanged: 2},
			[]string{"different(updated)", "equal(skipped)", "missing(created)"},
			"backup", true,
		},
	} {
		t.Run(string("policy "+policy), func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			a.createNamespace(a.id)
			for _, name := range []string{"equal", "different"} {
				value := map[string]string{"equal": "backup", "different": "cluster"}[name]
				a.create("configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, data: {key: %s}, metadata: {namespace: %s, name: %s, labels: {app: %[3]s}}}`, value, a.id, name))
			}
			a.input.Restore.Spec.ExistingResourcePolicy = policy
			a.backup(configMap(a.id, "equal", "backup"), configMap(a.id, "different", "backup"), configMap(a.id, "missing", "backup"))
			outcome := a.run()
			if diff := cmp.Diff(test.counts, outcome.Progress.Counts); diff != "" {
				t.Error(diff)
			}
			var listed []string
			for _, name := range test.listed {
				listed = append(listed, a.id+"/"+name)
			}
			if diff := cmp.Diff(listed, outcome.Resources["v1/ConfigMap"]); diff != "" {
				t.Error(diff)
			}
			different := a.get("configmaps", a.id, "different")
			if value, _, _ := unstructured.NestedString(different.Object, "data", "key"); value != test.value {
				t.Errorf("data is of the %s, want that of the %s", value, test.value)
			}
			for _, object := range []*unstructured.Unstructured{different, a.get("configmaps", a.id, "equal")} {
				if labelled := object.GetLabels()[velerov1.RestoreNameLabel] == a.input.Restore.Name; labelled != test.relabels {
					t.Errorf("%s is labelled: %v, want %v", object.GetName(), labelled, test.relabels)
				}
			}
			warned := strings.Contains(resultsText(outcome), `could not restore, ConfigMap "different" already exists. Warning: the in-cluster version is different than the backed-up version`)
			if warned == test.relabels || len(outcome.Results.Errors.Namespaces) > 0 {
				t.Error(resultsText(outcome))
			}
		})
	}
}

func TestRestoreServiceAccount(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.createNamespace(a.id)
	a.create("serviceaccounts", fmt.Sprintf(`{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: %s, name: default, labels: {x: cluster}},
		secrets: [{name: new}], imagePullSecrets: [{name: both}]}`, a.id))
	a.backup(of("serviceaccounts", fmt.Sprintf(`{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: %s, name: default, labels: {x: backup, more: backup}, annotations: {z: backup}},
		secrets: [{name: old}], imagePullSecrets: [{name: both}, {name: pull}]}`, a.id)))
	outcome := a.run()
	if outcome.Progress.Counts.Updated != 1 {
		t.Error(resultsText(outcome))
	}
	got := a.get("serviceaccounts", a.id, "default")
	want := map[string]any{
		"labels": map[string]any{"x": "cluster", "more": "backup", "velero.io/restore-name": nil, "velero.io/backup-name": nil},
		"z":      "backup", "secrets": []any{"new", "old"}, "imagePullSecrets": []any{"both", "pull"},
	}
	labels := map[string]any{"velero.io/restore-name": nil, "velero.io/backup-name": nil}
	for name, value := range got.GetLabels() {
		labels[name] = value
	}
	names := func(field string) (names []any) {
		list, _ := got.Object[field].([]any)
		for _, reference := range list {
			names = append(names, nameOf(reference))
		}
		return names
	}
	have := map[string]any{
		"labels": labels, "z": got.GetAnnotations()["z"], "secrets": names("secrets"), "imagePullSecrets": names("imagePullSecrets"),
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
}

// TestRestoreNodePort restores a service whose port is taken: by itself, and by another one.
func TestRestoreNodePort(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.createNamespace(a.id)
	mine := a.create("services", fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: mine}, spec: {type: NodePort, ports: [{port: 80}]}}`, a.id))
	ports, _, _ := unstructured.NestedSlice(mine.Object, "spec", "ports")
	nodePort := ports[0].(map[string]any)["nodePort"]
	service := func(name string) archived {
		return of("services", fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: %s}, spec: {type: NodePort, ports: [{port: 80, nodePort: %d}]}}`,
			a.id, name, nodePort))
	}
	a.input.Restore.Spec.PreserveNodePorts = new(true)
	a.backup(service("mine"), service("other"))
	outcome := a.run()
	got := resultsText(outcome)
	if !strings.Contains(got, "error "+a.id+": error restoring services/"+a.id+"/other: ") || !strings.Contains(got, "provided port is already allocated") {
		t.Errorf("nothing is said about the service whose port is taken:\n%s", got)
	}
	if !strings.Contains(got, `could not restore, Service "mine" already exists`) {
		t.Errorf("the service that exists is not treated as one:\n%s", got)
	}
}

// TestRestoreHealthCheckPort has the port of a Service's health check taken, which the API server calls an internal error.
func TestRestoreHealthCheckPort(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.createNamespace(a.id)
	service := func(name string, port int64) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: %s}, spec: {type: LoadBalancer, externalTrafficPolicy: Local,
			allocateLoadBalancerNodePorts: false, healthCheckNodePort: %d, ports: [{port: 80}]}}`, a.id, name, port)
	}
	port := numberOf(a.create("services", service("mine", 0)).Object, "spec", "healthCheckNodePort")
	a.input.Restore.Spec.PreserveNodePorts = new(true)
	a.config.ResourceTimeout = 2 * time.Second // it is not tried again for so long
	requests := a.watchRequests()
	a.backup(of("services", service("mine", port)), of("services", service("other", port)))
	got := resultsText(a.run())
	if !strings.Contains(got, "error "+a.id+": error restoring services/"+a.id+"/other: ") || !strings.Contains(got, "HealthCheck NodePort") {
		t.Errorf("nothing is said about the service whose port is taken:\n%s", got)
	}
	if !strings.Contains(got, `could not restore, Service "mine" already exists`) {
		t.Errorf("the service that exists is not treated as one:\n%s", got)
	}
	if n := requests.count("POST /api/v1/namespaces/" + a.id + "/services"); n != 2 {
		t.Errorf("%d requests for 2 services", n)
	}
}

func TestRestoreIntoOtherNamespaces(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	first, second, target := a.id+"-1", a.id+"-2", a.id+"-new"
	a.input.Restore.Spec.NamespaceMapping = map[string]string{first: target, second: target}
	a.backup(
		of("namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: `+first+`, labels: {from: first}}}`),
		of("namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: `+second+`, labels: {from: second}}}`),
		configMap(first, "same", "1"), configMap(second, "same", "2"), configMap(second, "only", "2"))
	a.config.Concurrency = 1 // so that the first wins
	outcome := a.run()
	if diff := cmp.Diff([]string{target + "/only(created)", target + "/same(created)"}, outcome.Resources["v1/ConfigMap"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{target + "(created)"}, outcome.Resources["v1/Namespace"]); diff != "" {
		t.Error(diff)
	}
	if value := a.get("namespaces", "", target).GetLabels()["from"]; value != "first" {
		t.Errorf("the namespace is like %s", value)
	}
	if got := resultsText(outcome); !strings.Contains(got, "configmaps "+second+"/same is not restored: configmaps "+first+"/same has taken its place") {
		t.Error(got)
	}
	if a.get("namespaces", "", first) != nil {
		t.Error("the old namespace was made, too")
	}
	if p := outcome.Progress; p.Total != 3 || p.Restored != 3 {
		t.Errorf("%+v", p)
	}
}

// TestCollisionLosesData: of two claims and two pods that are mapped to one place, the data of the second is not restored, which is an error if there
// should be some.
func TestCollisionLosesData(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	first, second, target := a.id+"-1", a.id+"-2", a.id+"-new"
	a.input.Restore.Spec.NamespaceMapping = map[string]string{first: target, second: target}
	claim := func(namespace, name string) archived {
		return of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: `+name+`, namespace: `+namespace+`},
			spec: {volumeName: `+name+`-`+namespace+`, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
	}
	pod := func(namespace, name string) archived {
		return of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: `+name+`, namespace: `+namespace+`}, spec: {
			volumes: [{name: logs, emptyDir: {}}, {name: data, emptyDir: {}}], containers: [{name: a, image: a}]}}`)
	}
	usesClaim := of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: uses-claim, namespace: `+second+`}, spec: {
		volumes: [{name: data, persistentVolumeClaim: {claimName: data}}, {name: none, persistentVolumeClaim: {claimName: none}}], containers: [{name: a, image: a}]}}`)
	claims := []string{"data", "none", "empty", "failed", "moved", "snapshot", "lost", "skipped"}
	items := []archived{usesClaim}
	for _, name := range claims {
		items = append(items, claim(first, name), claim(second, name))
	}
	for name, snapshot := range map[string]string{"data": "s-data", "empty": "", "failed": ""} {
		pvb := podVolumeBackup(name, name, snapshot)
		pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name = second, "uses-claim"
		if name == "failed" {
			pvb.Status.Phase = velerov1.PodVolumeBackupPhaseFailed
		}
		a.input.PodVolumeBackups = append(a.input.PodVolumeBackups, pvb)
	}
	for name, info := range map[string]volumeinfo.BackupVolume{
		"data": {BackupMethod: volumeinfo.MethodPodVolumeBackup}, "empty": {BackupMethod: volumeinfo.MethodPodVolumeBackup},
		"failed": {BackupMethod: volumeinfo.MethodPodVolumeBackup}, "moved": {BackupMethod: volumeinfo.MethodCSISnapshot, SnapshotDataMoved: true},
		"snapshot": {BackupMethod: volumeinfo.MethodNativeSnapshot}, "lost": {BackupMethod: volumeinfo.MethodCSISnapshot},
		"skipped": {Skipped: true, SkippedReason: "podvolume: opted out"},
	} {
		info.PVName = name + "-" + second
		a.input.VolumeInfos = append(a.input.VolumeInfos, info)
	}
	a.backup(append(items, pod(first, "db-0"), pod(second, "db-0"), pod(first, "web"), pod(second, "web"))...)
	for _, volume := range []string{"logs", "data"} {
		pvb := podVolumeBackup(volume, "", "s-"+volume)
		pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name = second, "db-0"
		a.input.PodVolumeBackups = append(a.input.PodVolumeBackups, pvb)
	}
	a.config.HelperImage = "example.test/node-agent:1"
	a.config.Concurrency = 1 // so that the first wins
	got := resultsText(a.run())
	for _, want := range []string{
		"error " + target + ": pods " + second + "/db-0 is not restored: pods " + first + "/db-0 has taken its place in namespace " + target +
			" (spec.namespaceMapping). The data of its volumes is not restored: data, logs.",
		"warning " + target + ": pods " + second + "/web is not restored: pods " + first + "/web has taken its place",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	for _, name := range claims {
		kind := "error "
		if slices.Contains([]string{"none", "empty", "skipped"}, name) {
			kind = "warning "
		}
		want := kind + target + ": persistentvolumeclaims " + second + "/" + name + " is not restored: persistentvolumeclaims " + first + "/" + name + " has taken its place"
		if !strings.Contains(got, want) || strings.Count(got, "persistentvolumeclaims "+second+"/"+name+" is not restored") != 1 {
			t.Errorf("not once %q:\n%s", want, got)
		}
	}
}

// TestIncompleteBackup: a Backup that is PartiallyFailed lacks what nothing else in it tells of.
func TestIncompleteBackup(t *testing.T) {
	t.Parallel()
	for phase, test := range map[velerov1.BackupPhase]struct {
		errors int
		want   []string
	}{
		velerov1.BackupPhaseCompleted:       {0, nil},
		velerov1.BackupPhasePartiallyFailed: {3, []string{"Backup b1 is PartiallyFailed (3 errors): items and volumes that it lacks are not restored. Its log says which"}},
	} {
		a := newAttempt(t)
		a.input.Backup.Status.Phase, a.input.Backup.Status.Errors = phase, test.errors
		a.backup(configMap(a.id, "a", ""))
		r := a.collect(a.engine())
		outcome, err := r.RestoreItems(t.Context(), a.report)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, outcome.Results.Warnings.Velero); diff != "" || !cmp.Equal(test.want, r.plan.Problems, cmpopts.EquateEmpty()) {
			t.Errorf("%s: problems of the plan %q, warnings (-want +got):\n%s", phase, r.plan.Problems, diff)
		}
	}
}

// TestRestoreOneNamespace has a volume follow its claim: the total grows by what was not planned.
func TestRestoreOneNamespace(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	shop, pv := a.id+"-shop", a.id+"-pv"
	a.input.Restore.Spec.IncludedNamespaces = []string{shop}
	claim := func(namespace string) archived {
		return of("persistentvolumeclaims", fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {namespace: %s, name: data},
			spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: "", volumeName: %s}, status: {phase: Bound}}`, namespace, pv))
	}
	a.backup(claim(shop), claim(a.id+"-other"), of("persistentvolumes", fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %s},
		spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, hostPath: {path: /x},
			claimRef: {kind: PersistentVolumeClaim, namespace: %s, name: data, uid: old}}}`, pv, shop)))
	e := a.engine()
	run := a.collect(e)
	if run.plan.TotalItems != 2 || run.plan.LeftOut != 2 {
		t.Errorf("planned %d, left out %d, want the namespace and the claim of four", run.plan.TotalItems, run.plan.LeftOut)
	}
	outcome, err := run.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	if p := outcome.Progress; p.Restored != 3 || p.Total != 3 || p.Counts.Created != 3 {
		t.Errorf("%+v\n%s", p, resultsText(outcome))
	}
	if a.get("persistentvolumes", "", pv) == nil || a.get("namespaces", "", a.id+"-other") != nil {
		t.Error("the wrong things were restored")
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.input.Restore.Spec.NamespaceMapping = map[string]string{"b": "c"}
	a.input.Restore.Spec.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"not-this"}},
	}}
	pod := func(name, more string) archived {
		return of("pods", `{apiVersion: v1, kind: Pod, metadata: {namespace: a, name: `+name+more)
	}
	a.backup(
		of("deployments.apps", `{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: b, name: web}}`),
		pod("runs", `}, status: {phase: Running}}`), pod("ended", `}, status: {phase: Succeeded}}`), pod("broken", `}, status: {phase: Failed}}`),
		pod("mirror", `, annotations: {kubernetes.io/config.mirror: x}}}`),
		of("jobs.batch", `{apiVersion: batch/v1, kind: Job, metadata: {namespace: a, name: ended}, status: {completionTime: "2024-01-01T00:00:00Z"}}`),
		configMap("b", "here", ""), configMap("a", "there", ""), configMap("a", "not-this", ""), configMap("a", "kube-root-ca.crt", ""),
		archived{"resources/configmaps/namespaces/a/damaged.json", "{"},
		archived{"resources/configmaps/namespaces/a/liar.json", `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "b", "name": "liar"}}`},
		archived{"something/else", ""},
		of("events", `{apiVersion: v1, kind: Event, metadata: {namespace: a, name: e}}`),
	)
	record := func(pod, snapshot string, bytes int64) velerov1.PodVolumeBackup {
		return velerov1.PodVolumeBackup{
			Spec:   velerov1.PodVolumeBackupSpec{Volume: "data", Pod: corev1.ObjectReference{Namespace: "a", Name: pod}},
			Status: velerov1.PodVolumeBackupStatus{SnapshotID: snapshot, Progress: shared.DataMoveOperationProgress{TotalBytes: bytes}},
		}
	}
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{record("runs", "s1", 100), record("ended", "s2", 1000), record("elsewhere", "s3", 1000)}
	run := a.collect(a.engine())
	if run.plan.VolumeBytes != 100 {
		t.Errorf("the plan's pods have %d bytes in volumes, want 100", run.plan.VolumeBytes)
	}
	var got struct {
		Resources []struct {
			Resource   string
			TotalItems int
			Namespaces []PlannedNamespace
		}
		TotalItems, LeftOut int
		Problems            []string
	}
	data, err := json.Marshal(run.plan)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := run.plan.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := `6 items are restored, 7 are left out.

namespaces: 2
  a b

configmaps: 2
  a: there
  b -> c: here

pods: 1
  a: runs

deployments.apps: 1
  b -> c: web

problems: 3
`
	if head, _, _ := strings.Cut(text.String(), "  entry"); head != want {
		t.Error(cmp.Diff(want, head))
	}
	if got.TotalItems != 6 || len(got.Resources) != 4 || len(got.Problems) != 3 || got.Resources[1].Resource != "configmaps" {
		t.Errorf("%s", data)
	}
}

// TestRestoreHostileItems restores what nobody has looked at. Each costs itself only.
func TestRestoreHostileItems(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	role := strings.TrimSuffix(of("clusterroles.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: `+a.id+`}}`).content, "\n")
	a.input.Restore.Spec.ExcludedResources = []string{"clusterroles"}
	a.backup(
		archived{"resources/priorityclasses.scheduling.k8s.io/cluster/" + a.id + ".json", role},
		archived{"resources/configmaps/namespaces/" + a.id + "/lists.json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"` + a.id + `","name":"lists","labels":[1],"annotations":"x","finalizers":{}},"data":[]}`},
		archived{"resources/configmaps/cluster/" + a.id + ".json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + a.id + `"}}`},
		of("priorityclasses.scheduling.k8s.io", `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, value: 1, metadata: {namespace: `+a.id+`, name: p}}`),
		configMap(a.id, "good", ""),
	)
	outcome := a.run()
	if diff := cmp.Diff([]string{a.id + "/good(created)"}, slices.DeleteFunc(slices.Clone(outcome.Resources["v1/ConfigMap"]), func(entry string) bool { return strings.HasSuffix(entry, "(failed)") })); diff != "" {
		t.Error(diff)
	}
	if c := outcome.Progress.Counts; c.Failed != 4 {
		t.Errorf("%+v\n%s", c, resultsText(outcome))
	}
	if a.get("clusterroles.v1.rbac.authorization.k8s.io", "", a.id) != nil {
		t.Error("what is left out was restored from the place of something else")
	}
}

// TestRestoreRefused has the API server refuse items by quota and by admission: final, and theirs alone.
func TestRestoreRefused(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.createNamespace(a.id)
	quota := a.create("resourcequotas", fmt.Sprintf(`{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: %s, name: q}, spec: {hard: {count/secrets: "1"}}}`, a.id))
	quota.Object["status"] = map[string]any{"hard": map[string]any{"count/secrets": "1"}, "used": map[string]any{"count/secrets": "1"}}
	if _, err := a.resource("resourcequotas").Namespace(a.id).UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.create("validatingwebhookconfigurations.v1.admissionregistration.k8s.io", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %s}
webhooks:
- name: gone.example.com
  clientConfig: {url: "https://127.0.0.1:1/"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [endpoints]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
  sideEffects: None
  admissionReviewVersions: [v1]
`, a.id))
	a.backup(
		of("secrets", fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: s}}`, a.id)),
		of("endpoints", fmt.Sprintf(`{apiVersion: v1, kind: Endpoints, metadata: {namespace: %s, name: e}}`, a.id)),
		of("configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: %s, name: "not_a_name"}}`, a.id)),
		of("services", fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: hostile}, spec: {ports: [{port: 80, name: "EOF. Please retry."}]}}`, a.id)),
		configMap(a.id, "good", ""),
	)
	// Quota, webhook and validation come to the same item again and again if they are not recognised.
	a.config.ResourceTimeout = time.Hour
	outcome := a.run()
	got := resultsText(outcome)
	for _, want := range []string{"exceeded quota: q", "failed calling webhook", `Invalid value: "not_a_name"`, `Invalid value: "EOF. Please retry."`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if diff := cmp.Diff(Counts{Created: 1, Unchanged: 1, Failed: 4}, outcome.Progress.Counts); diff != "" {
		t.Error(diff)
	}
}

// TestRestoreModifierThatFails restores the item all the same, with an error, as Velero does.
func TestRestoreModifierThatFails(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backup(configMap(a.id, "a", "old"))
	a.input.Modifiers = modifiersOf(t, `
- {conditions: {groupResource: configmaps}, patches: [{operation: replace, path: /data/no/where, value: x}]}
- {conditions: {groupResource: "{configmaps,secrets}"}, patches: [{operation: replace, path: /data/key, value: new}]}
- {conditions: {groupResource: "config-maps"}, patches: [{operation: remove, path: /data}]}`)
	outcome := a.run()
	if diff := cmp.Diff([]string{a.id + "/a(created)"}, outcome.Resources["v1/ConfigMap"]); diff != "" {
		t.Error(diff)
	}
	if value := textOf(a.get("configmaps", a.id, "a").Object, "data", "key"); value != "new" {
		t.Errorf("data is %q", value)
	}
	want := "error " + a.id + ": error restoring configmaps/" + a.id + "/a: resource modifier rule 1: replace /data/no/where: "
	if got := resultsText(outcome); !strings.HasPrefix(got, want) ||
		!strings.Contains(got, `warning velero: resource modifier rule 3 changes nothing: no resource of the backup or of the cluster matches conditions.groupResource "config-maps"`) {
		t.Error(got)
	}
}

// TestRestoreWarnsOfPlugins tells of each item on which a plugin worked that is not run here, as far as the backup says it.
func TestRestoreWarnsOfPlugins(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backup(configMap(a.id, "a", ""), configMap(a.id, "b", ""))
	for name, plugin := range map[string]string{"a": "example.com/mover", "b": "velero.io/csi-pvc-backupper"} {
		a.input.Operations = append(a.input.Operations, itemoperation.BackupOperation{Spec: itemoperation.BackupOperationSpec{
			BackupItemAction: plugin, ResourceIdentifier: velero.ResourceIdentifier{GroupResource: configMaps, Namespace: a.id, Name: name},
		}})
	}
	want := "warning " + a.id + ": configmaps/" + a.id + `/a: plugin "example.com/mover" worked on it during the backup, and Plimsoll runs no plugins: what it would do at a restore is not done`
	if got := resultsText(a.run()); got != want {
		t.Error(got)
	}
}

// TestHooksThatCannotBeRead must not be taken for hooks of no pod.
func TestHooksThatCannotBeRead(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.backup(configMap(a.id, "a", ""))
	a.input.Restore.Spec.Hooks.Resources = []velerov1.RestoreResourceHookSpec{{Name: "unlock", LabelSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}},
	}}}
	if _, err := a.engine().Collect(t.Context(), a.input); err == nil || !strings.Contains(err.Error(), `spec.hooks "unlock"`) {
		t.Errorf("got %v", err)
	}
}

// TestRestoreConflict has admission lose races for a ResourceQuota, as the API server says it: the item is not lost.
func TestRestoreConflict(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	left := &atomic.Int32{}
	left.Store(2)
	a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodPost || !strings.HasSuffix(request.URL.Path, "/configmaps") || left.Add(-1) < 0 {
				return next.RoundTrip(request)
			}
			return &http.Response{
				StatusCode: http.StatusConflict, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
				Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,"message":
					"Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified; please apply your changes to the latest version and try again"}`)),
			}, nil
		})
	})
	a.backup(configMap(a.id, "a", ""))
	outcome := a.run()
	if diff := cmp.Diff(Counts{Created: 2}, outcome.Progress.Counts); diff != "" || left.Load() >= 0 {
		t.Errorf("%d conflicts left; %s%s", left.Load(), diff, resultsText(outcome))
	}
}

// TestRestoreAfterOneOfItsName finds what an earlier Restore of its name has made, after an answer that says nothing about it.
// The API server dates what it makes, so it is the Restore that is late.
func TestRestoreAfterOneOfItsName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		began time.Duration
		want  Counts
	}{
		"made before": {began: time.Hour, want: Counts{Unchanged: 2}},
		"just made":   {want: Counts{Created: 1, Unchanged: 1}}, // perhaps by the request whose answer was lost
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			a.input.Restore.Status.StartTimestamp = new(metav1.NewTime(time.Now().Add(test.began)))
			a.createNamespace(a.id)
			a.create("configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, data: {key: ""}, metadata: {namespace: %s, name: a,
				labels: {app: a, velero.io/backup-name: b1, velero.io/restore-name: %s}}}`, a.id, a.input.Restore.Name))
			var refused atomic.Bool
			a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(request *http.Request) (*http.Response, error) {
					if request.Method != http.MethodPost || !strings.HasSuffix(request.URL.Path, "/configmaps") || refused.Swap(true) {
						return next.RoundTrip(request)
					}
					return &http.Response{
						StatusCode: http.StatusTooManyRequests, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
						Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`)),
					}, nil
				})
			})
			a.backup(configMap(a.id, "a", ""))
			outcome := a.run()
			if diff := cmp.Diff(test.want, outcome.Progress.Counts); diff != "" || !refused.Load() {
				t.Errorf("refused %v; %s%s", refused.Load(), diff, resultsText(outcome))
			}
		})
	}
}

// TestRestoreTerminatingNamespace waits for a namespace that is being deleted, and makes it anew.
func TestRestoreTerminatingNamespace(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	old := a.deleteNamespace()
	requests := a.watchRequests()
	gone := make(chan error, 1)
	go func() {
		if !requests.await(t.Context(), "GET /api/v1/namespaces/"+a.id, 2) {
			gone <- errors.New("the namespace is not looked at twice")
			return
		}
		gone <- a.finalizeNamespace(t.Context(), a.id)
	}()
	a.backup(configMap(a.id, "a", ""))
	outcome := a.run()
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Counts{Created: 2}, outcome.Progress.Counts); diff != "" {
		t.Error(diff, resultsText(outcome))
	}
	if a.get("namespaces", "", a.id).GetUID() == old {
		t.Error("the namespace is the old one")
	}
}

// TestRestoreStuckNamespace waits for a namespace that stays: once, and then its items fail.
func TestRestoreStuckNamespace(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.deleteNamespace()
	requests := a.watchRequests()
	a.config.ResourceTimeout = time.Second
	a.backup(configMap(a.id, "a", ""), configMap(a.id, "b", ""))
	outcome := a.run()
	if diff := cmp.Diff(Counts{Failed: 3}, outcome.Progress.Counts); diff != "" {
		t.Error(diff, resultsText(outcome))
	}
	got := resultsText(outcome)
	for _, want := range []string{
		"error : error restoring namespaces/" + a.id + ": one of this name is being deleted",
		"error " + a.id + ": error restoring configmaps/" + a.id + "/b: namespace " + a.id + " cannot be used",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if n := requests.count("POST /api/v1/namespaces"); n != 1 {
		t.Errorf("the namespace was tried %d times", n)
	}
	if n := requests.count("POST /api/v1/namespaces/" + a.id + "/configmaps"); n > 0 {
		t.Errorf("%d items were sent into a namespace that is being deleted", n)
	}
}

// deleteNamespace makes a namespace named like the attempt and deletes it, which nobody finalizes, and returns its UID.
func (a *attempt) deleteNamespace() types.UID {
	a.tb.Helper()
	a.createNamespace(a.id)
	if err := a.resource("namespaces").Delete(a.tb.Context(), a.id, metav1.DeleteOptions{}); err != nil {
		a.tb.Fatal(err)
	}
	return a.get("namespaces", "", a.id).GetUID()
}

// TestRestoreCanceled ends a restore in the middle.
func TestRestoreCanceled(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	var files []archived
	for i := range 200 {
		files = append(files, configMap(a.id, fmt.Sprintf("c%03d", i), ""))
	}
	a.backup(files...)
	e := a.engine()
	run := a.collect(e)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	outcome, err := run.RestoreItems(ctx, func(p Progress) {
		a.report(p)
		if p.Restored == 50 {
			cancel(reason)
		}
	})
	if !errors.Is(err, reason) {
		t.Errorf("error %v, want the cause", err)
	}
	p := outcome.Progress
	if p.Restored < 50 || p.Restored >= p.Total || p.Total != 201 || p.Counts.Failed > 0 {
		t.Errorf("%+v", p)
	}
	if got := len(outcome.Resources["v1/ConfigMap"]) + 1; got != p.Restored {
		t.Errorf("%d items are listed, and %d restored", got, p.Restored)
	}
	if got := resultsText(outcome); got != "" {
		t.Error(got)
	}
}

// TestRestoreOnePhase restores with the counters of the one-phase design.
func TestRestoreOnePhase(t *testing.T) {
	t.Parallel()
	for name, total := range map[string]int{"known": 5, "unknown": 0, "too few": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			a.input.Restore.Annotations = map[string]string{"plimsoll.io/progress-mode": "one-phase"}
			a.input.Restore.Spec.ExcludedResources = []string{"secrets"}
			if total > 0 {
				a.input.Backup.Status.Progress = &velerov1.BackupProgress{TotalItems: total}
			}
			a.backup(
				of("namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: `+a.id+`}}`),
				configMap(a.id, "a", ""), configMap(a.id, "b", ""),
				of("secrets", `{apiVersion: v1, kind: Secret, metadata: {namespace: `+a.id+`, name: s}}`),
				archived{"resources/endpoints/namespaces/" + a.id + "/damaged.json", ""},
			)
			e := a.engine()
			run := a.collect(e)
			if run.plan.TotalItems != total || len(run.plan.Resources) > 0 {
				t.Errorf("plan %+v", run.plan)
			}
			outcome, err := run.RestoreItems(t.Context(), a.report)
			if err != nil {
				t.Fatal(err)
			}
			want := Progress{Total: 5, Restored: 4, Skipped: 1, Estimate: true, Counts: Counts{Created: 3, Failed: 1}}
			if diff := cmp.Diff(want, outcome.Progress); diff != "" {
				t.Error(diff)
			}
			if first := a.reports[0]; first.Total != total && name != "too few" {
				t.Errorf("the first report is %+v, want a total of %d", first, total)
			}
			if got := resultsText(outcome); !strings.Contains(got, "damaged.json") {
				t.Errorf("the item that cannot be read is not mentioned: %q", got)
			}
		})
	}
}

// TestRestoreOrder looks at the order in which the API server gets things, several of a kind at a time.
func TestRestoreOrder(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	group := "order" + a.id + ".example.com"
	var files []archived
	for _, name := range []string{"a", "b", "c", "d"} {
		files = append(
			files, widget(group, "v2", a.id, name), configMap(a.id, name, ""),
			of("secrets", `{apiVersion: v1, kind: Secret, metadata: {namespace: `+a.id+`, name: `+name+`}}`),
			of("services", `{apiVersion: v1, kind: Service, metadata: {namespace: `+a.id+`, name: `+name+`}, spec: {clusterIP: None}}`),
			of("deployments.apps", `{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: `+a.id+`, name: `+name+`},
				spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`),
		)
	}
	a.backup(append(files, definition(group))...)
	a.run()
	var order []string
	for _, p := range a.reports[:len(a.reports)-1] {
		resource, _, _ := strings.Cut(p.Current, " ")
		order = append(order, resource)
	}
	want := []string{"customresourcedefinitions.apiextensions.k8s.io", "namespaces", "secrets", "configmaps", "services", "deployments.apps", "widgets." + group}
	if diff := cmp.Diff(want, slices.Compact(order)); diff != "" {
		t.Error(diff)
	}
}

// TestRestoreWhereSomethingIsDeleted waits for an object that is being deleted, and puts the restored one in its place.
func TestRestoreWhereSomethingIsDeleted(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.createDeleted("goes")
	a.backup(configMap(a.id, "goes", "new"))
	requests := a.watchRequests()
	gone := make(chan error, 1)
	go func() {
		if !requests.await(t.Context(), "GET /api/v1/namespaces/"+a.id+"/configmaps/goes", 2) {
			gone <- errors.New("it is not looked at twice")
			return
		}
		_, err := a.resource("configmaps").Namespace(a.id).Patch(t.Context(), "goes", types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
		gone <- err
	}()
	outcome := a.run()
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{a.id + "/goes(created)"}, outcome.Resources["v1/ConfigMap"]); diff != "" {
		t.Error(diff, resultsText(outcome))
	}
}

// TestRestoreWhereAClaimIsDeleted finds a claim that is being deleted, or is deleted while it is looked at. The one that takes
// its place gets its data as if there had been none.
func TestRestoreWhereAClaimIsDeleted(t *testing.T) {
	t.Parallel()
	for name, deletedAt := range map[string]int{"before": 0, "between two requests": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			a.createNamespace(a.id)
			a.create("persistentvolumeclaims", fmt.Sprintf(claimManifest, a.id, "volumeName: old"))
			a.backup(
				of("persistentvolumeclaims", strings.Replace(fmt.Sprintf(claimManifest, a.id, "volumeName: old-"+a.id), "finalizers: [example.com/keep]", "annotations: {velero.io/volume-snapshot-name: snap}", 1)),
				of("volumesnapshots.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {namespace: `+a.id+`, name: snap}, status: {boundVolumeSnapshotContentName: c}}`),
			)
			a.input.Restore.Spec.IncludedResources = []string{"persistentvolumeclaims"}
			a.input.VolumeInfos = []volumeinfo.BackupVolume{{PVName: "old-" + a.id, PVCNamespace: a.id, PVCName: "data", BackupMethod: volumeinfo.MethodCSISnapshot}}
			looks := 0
			a.config.REST = rest.CopyConfig(a.config.REST)
			a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					response, err := next.RoundTrip(r)
					if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/persistentvolumeclaims/data") {
						looks++
						a.endClaim(looks, deletedAt)
					}
					return response, err
				})
			})
			if deletedAt == 0 {
				a.endClaim(0, 0)
			}
			outcome := a.run()
			if diff := cmp.Diff([]string{a.id + "/data(created)"}, outcome.Resources["v1/PersistentVolumeClaim"]); diff != "" {
				t.Fatal(diff, resultsText(outcome))
			}
			claim := a.get("persistentvolumeclaims", a.id, "data")
			if volume, source := textOf(claim.Object, "spec", "volumeName"), textOf(claim.Object, "spec", "dataSource", "kind"); volume != "" || source != "VolumeSnapshot" {
				t.Errorf("the claim is for volume %q and made of %q, want a new one of its VolumeSnapshot", volume, source)
			}
		})
	}
}

// claimManifest is a claim that is held by a finalizer, with a namespace and a field of its spec to fill in.
const claimManifest = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {namespace: %s, name: data, finalizers: [example.com/keep]},
	spec: {%s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`

// endClaim deletes claim "data" after the look that deletedAt says, and lets it go two looks later.
func (a *attempt) endClaim(looks, deletedAt int) {
	a.tb.Helper()
	claims := a.resource("persistentvolumeclaims").Namespace(a.id)
	var err error
	switch looks {
	case deletedAt:
		err = claims.Delete(a.tb.Context(), "data", metav1.DeleteOptions{})
	case deletedAt + 2:
		_, err = claims.Patch(a.tb.Context(), "data", types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	}
	if err != nil {
		a.tb.Error(err)
	}
}

// TestRestoreWhereSomethingIsStuck finds objects whose deletion does not end. They fail, and only they.
func TestRestoreWhereSomethingIsStuck(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.createDeleted("a", "b")
	a.config.ResourceTimeout = time.Second
	a.backup(configMap(a.id, "a", "new"), configMap(a.id, "b", "new"), configMap(a.id, "c", "new"))
	outcome := a.run()
	if diff := cmp.Diff([]string{a.id + "/a(failed)", a.id + "/b(failed)", a.id + "/c(created)"}, outcome.Resources["v1/ConfigMap"]); diff != "" {
		t.Error(diff)
	}
	if got := resultsText(outcome); !strings.Contains(got, "error restoring configmaps/"+a.id+"/b: one of this name is being deleted") {
		t.Error(got)
	}
}

// createDeleted makes config maps that are being deleted, but held by a finalizer.
func (a *attempt) createDeleted(names ...string) {
	a.tb.Helper()
	a.createNamespace(a.id)
	for _, name := range names {
		a.create("configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: %s, name: %s, finalizers: [example.com/keep]}}`, a.id, name))
		if err := a.resource("configmaps").Namespace(a.id).Delete(a.tb.Context(), name, metav1.DeleteOptions{}); err != nil {
			a.tb.Fatal(err)
		}
	}
}

// TestRestoreStatus restores the status of kinds with and without a subresource for it, through conflicts.
func TestRestoreStatus(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	with, without := "with"+a.id+".example.com", "without"+a.id+".example.com"
	plain := definition(without)
	plain.content = strings.ReplaceAll(plain.content, `"subresources":{"status":{}}`, `"subresources":{}`)
	a.input.Restore.Spec.RestoreStatus = &velerov1.RestoreStatusSpec{IncludedResources: []string{"*"}, ExcludedResources: []string{"customresourcedefinitions"}}
	refused := widget(with, "v2", a.id, "refused")
	refused.content = strings.Replace(refused.content, `"metadata":{`, `"metadata":{"annotations":{"velero.io/restore-status":"false"},`, 1)
	a.backup(definition(with), plain, widget(with, "v2", a.id, "a"), widget(without, "v2", a.id, "b"), refused)
	// Another client changes the widget after it was created and before its status is written, twice.
	conflicts := 0
	a.config.REST = rest.CopyConfig(a.config.REST)
	a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/widgets/a/status") && conflicts < 2 {
				conflicts++
				patch := fmt.Sprintf(`{"spec": {"size": %d}}`, conflicts)
				if _, err := a.resource("widgets.v2."+with).Namespace(a.id).Patch(r.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			}
			return next.RoundTrip(r)
		})
	})
	outcome := a.run()
	if got := resultsText(outcome); got != "" || conflicts != 2 {
		t.Errorf("%d conflicts\n%s", conflicts, got)
	}
	for _, w := range []struct {
		group, name string
		want        bool
	}{{with, "a", true}, {without, "b", true}, {with, "refused", false}} {
		if ready, _, _ := unstructured.NestedBool(a.get("widgets.v2."+w.group, a.id, w.name).Object, "status", "ready"); ready != w.want {
			t.Errorf("status of %s is restored: %v, want %v", w.name, ready, w.want)
		}
	}
}

// TestRestoreUpdateRefused updates an object that may not be changed: a warning, and its labels are changed all the same.
func TestRestoreUpdateRefused(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.createNamespace(a.id)
	a.create("configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, immutable: true, data: {key: cluster}, metadata: {namespace: %s, name: a}}`, a.id))
	a.input.Restore.Spec.ExistingResourcePolicy = velerov1.PolicyTypeUpdate
	a.backup(configMap(a.id, "a", "backup"))
	outcome := a.run()
	if diff := cmp.Diff([]string{a.id + "/a(failed)"}, outcome.Resources["v1/ConfigMap"]); diff != "" {
		t.Error(diff)
	}
	if got := resultsText(outcome); !strings.HasPrefix(got, "warning "+a.id+": configmaps/"+a.id+"/a: it exists and could not be updated: ") || strings.Contains(got, "\n") {
		t.Error(got)
	}
	if a.get("configmaps", a.id, "a").GetLabels()[velerov1.RestoreNameLabel] != a.input.Restore.Name {
		t.Error("the object is not labelled")
	}
}

// TestRestoreDefinitions restores CustomResourceDefinitions over one that exists with fewer versions, and beside one that
// has the names already.
func TestRestoreDefinitions(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	grows, taken := "grows"+a.id+".example.com", "taken"+a.id+".example.com"
	first := a.copy()
	small := definition(grows)
	small.content = strings.Replace(small.content, `"name":"v1"`, `"name":"v0"`, 1)
	first.backup(small, definition(taken))
	first.run()
	other := definition(taken)
	other.path = strings.ReplaceAll(other.path, "widgets.", "gadgets.")
	other.content = strings.ReplaceAll(strings.ReplaceAll(other.content, "widgets", "gadgets"), `"singular":"widget"`, `"singular":"gadget"`)
	a.input.Restore.Spec.ExistingResourcePolicy = velerov1.PolicyTypeUpdate
	a.backup(definition(grows), other, widget(grows, "v1", a.id, "a"))
	outcome := a.run()
	want := map[string][]string{
		"apiextensions.k8s.io/v1/CustomResourceDefinition": {"gadgets." + taken + "(created)", "widgets." + grows + "(updated)"},
		"v1/Namespace":       {a.id + "(created)"},
		grows + "/v1/Widget": {a.id + "/a(created)"},
	}
	if diff := cmp.Diff(want, outcome.Resources); diff != "" {
		t.Error(diff)
	}
	if got := resultsText(outcome); !strings.Contains(got, "error : error restoring customresourcedefinitions.apiextensions.k8s.io/gadgets."+taken+": the API server has not established it: ") {
		t.Error(got)
	}
}

// TestUnreadableNamespaceHoldsBackNothing: what was in a namespace comes into a plain one, and that is an error.
func TestUnreadableNamespaceHoldsBackNothing(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", v1alpha1.ProgressModeOnePhase} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			a.input.Restore.Annotations = map[string]string{v1alpha1.AnnotationProgressMode: mode}
			a.backup(archived{"resources/namespaces/cluster/" + a.id + ".json", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + a.id},
				configMap(a.id, "one", "1"), configMap(a.id, "two", "2"))
			outcome := a.run()
			for _, name := range []string{"one", "two"} {
				if a.get("configmaps", a.id, name) == nil {
					t.Errorf("%s was not restored", name)
				}
			}
			if said := resultsText(outcome); !strings.Contains(said, "error : error restoring namespaces/"+a.id+": it was made without the labels") {
				t.Errorf("%+v\n%s", outcome.Progress.Counts, said)
			}
		})
	}
}
