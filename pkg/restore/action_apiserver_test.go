package restore

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// inNamespaces gives a restore a namespace of its own for Velero's objects and maps namespace "shop" to another.
func (a *attempt) inNamespaces() (velero, shop string) {
	a.tb.Helper()
	velero, shop = "velero-"+a.id, "shop-"+a.id
	a.createNamespace(velero)
	a.input.Restore.Namespace = velero
	a.input.Restore.Spec.NamespaceMapping = map[string]string{"shop": shop}
	a.input.Backup.Spec.StorageLocation = "default"
	a.config.HelperImage = "example.test/node-agent:1"
	return velero, shop
}

// oldItems are objects as a backup of a busy cluster of some years ago has them: the API server refuses each of them as it is.
func oldItems(id string) []archived {
	return []archived{
		of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u1, resourceVersion: '1', ownerReferences: [
				{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: u0, controller: true}]}, spec: {
			nodeName: gone, priority: 1000, priorityClassName: high-`+id+`, serviceAccountName: web,
			runtimeClassName: vm-`+id+`, overhead: {memory: 1Mi},
			volumes: [{name: data, persistentVolumeClaim: {claimName: data}}, {name: web-token-x7k2p, secret: {secretName: web-token-x7k2p}}, {name: cache, emptyDir: {}}],
			initContainers: [{name: restic-wait, image: old, args: [u], volumeMounts: [{name: data, mountPath: /restores/data}]}],
			containers: [{name: a, image: a.test/a, volumeMounts: [{name: data, mountPath: /data}, {name: web-token-x7k2p, mountPath: /t}]}],
			ephemeralContainers: [{name: debug, image: d}]}, status: {phase: Running}}`),
		of("priorityclasses.scheduling.k8s.io", `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high-`+id+`}, value: 2000}`),
		of("runtimeclasses.node.k8s.io", `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: vm-`+id+`}, handler: vm, overhead: {podFixed: {memory: 2Mi}}}`),
		of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, uid: u2, annotations: {
				pv.kubernetes.io/bind-completed: 'yes', volume.kubernetes.io/selected-node: gone}},
			spec: {volumeName: pv-`+id+`, accessModes: [ReadWriteOnce], storageClassName: old, resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}`),
		of("persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-`+id+`, uid: u3}, spec: {
			accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /gone}, persistentVolumeReclaimPolicy: Retain,
			claimRef: {kind: PersistentVolumeClaim, name: data, namespace: shop, uid: u2, resourceVersion: '7'}}, status: {phase: Bound}}`),
		of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: kept, namespace: shop, uid: u4},
			spec: {volumeName: kept-`+id+`, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}`),
		of("persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: kept-`+id+`, uid: u5}, spec: {
			accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /kept}, persistentVolumeReclaimPolicy: Retain,
			claimRef: {kind: PersistentVolumeClaim, name: kept, namespace: shop, uid: u4, resourceVersion: '7'}}, status: {phase: Bound}}`),
		of("services", `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {type: NodePort, clusterIP: 203.0.113.9,
			clusterIPs: [203.0.113.9], selector: {app: web}, ports: [{port: 80, protocol: TCP, nodePort: 40080}]}, status: {loadBalancer: {}}}`),
		of("serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: shop, uid: u6}, secrets: [{name: web-token-x7k2p}, {name: mine}]}`),
		of("secrets", `{apiVersion: v1, kind: Secret, metadata: {name: web-token-x7k2p, namespace: shop, annotations: {
			kubernetes.io/service-account.name: web, kubernetes.io/service-account.uid: u6}}, type: kubernetes.io/service-account-token, data: {token: YQ==}}`),
		of("secrets", `{apiVersion: v1, kind: Secret, metadata: {name: web-token-mine1, namespace: shop, annotations: {
			kubernetes.io/service-account.name: web, kubernetes.io/service-account.uid: u6}}, type: kubernetes.io/service-account-token, data: {token: YQ==}}`),
		of("secrets", `{apiVersion: v1, kind: Secret, metadata: {name: ci, namespace: shop, annotations: {
			kubernetes.io/service-account.name: web, kubernetes.io/service-account.uid: u6}}, type: kubernetes.io/service-account-token, data: {token: YQ==}}`),
		of("jobs.batch", `{apiVersion: batch/v1, kind: Job, metadata: {name: once, namespace: shop, uid: u7, labels: {controller-uid: u7}}, spec: {
			selector: {matchLabels: {controller-uid: u7}}, template: {metadata: {labels: {controller-uid: u7, job-name: once}}, spec: {
				restartPolicy: Never, containers: [{name: a, image: a}]}}}, status: {active: 1}}`),
		of("validatingwebhookconfigurations.admissionregistration.k8s.io", `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration,
			metadata: {name: hook-`+id+`}, webhooks: [{name: a.example.test, sideEffects: Unknown, admissionReviewVersions: [v1], failurePolicy: Ignore,
				rules: [{apiGroups: [example.test], apiVersions: [v1], resources: [nothing], operations: [CREATE]}], clientConfig: {url: "https://hook.example.test"}}]}`),
		of("customresourcedefinitions.apiextensions.k8s.io", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
			metadata: {name: gadgets.c`+id+`.test}, spec: {group: c`+id+`.test, scope: Namespaced, preserveUnknownFields: true,
				names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList},
				versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`),
		of("rolebindings.rbac.authorization.k8s.io", `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: web, namespace: shop},
			roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: web}, subjects: [{kind: ServiceAccount, name: web, namespace: shop}]}`),
	}
}

// TestRestoredItemsAreAccepted restores what the API server would refuse as the backup has it, and a pod's volume.
func TestRestoredItemsAreAccepted(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	velero, shop := a.inNamespaces()
	a.backup(oldItems(a.id)...)
	record := podVolumeBackup("data", "data", "s1")
	record.Spec.UploaderType = "" // restic, before Velero 1.10
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{record}
	a.input.Restore.Spec.UploaderConfig = &velerov1.UploaderConfigForRestore{WriteSparseFiles: new(true)}
	a.create("backuprepositories.v1.velero.io", `{apiVersion: velero.io/v1, kind: BackupRepository, metadata: {name: shop-default-restic, namespace: `+velero+`, labels: {
			velero.io/volume-namespace: shop, velero.io/storage-location: default, velero.io/repository-type: restic}},
		spec: {volumeNamespace: shop, backupStorageLocation: default, repositoryType: restic, resticIdentifier: "s3:s3.test/bucket/restic/shop", maintenanceFrequency: 1h}}`)
	var bytes atomic.Int64
	a.input.ReportVolumes = func(more int64) { bytes.Add(more) }

	outcome := a.run()
	if outcome.Progress.Counts.Failed > 0 || !outcome.Results.Errors.IsEmpty() || bytes.Load() != 4096 {
		t.Fatalf("%+v, %d bytes in volumes\n%s", outcome.Progress.Counts, bytes.Load(), resultsText(outcome))
	}
	if diff := cmp.Diff([]string{"warning " + shop + ": pods/web: its ephemeral containers are not restored, because no pod can be created with any: debug"},
		strings.Split(resultsText(outcome), "\n"), cmpopts.AcyclicTransformer("place", func(s string) string {
			_, after, _ := strings.Cut(s, "its ") // how the engine names the item is its own affair
			return after
		})); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}

	pod := a.get("pods", shop, "web")
	if node := textOf(pod.Object, "spec", "nodeName"); node != "" || numberOf(pod.Object, "spec", "priority") != 2000 {
		t.Errorf("pod is on node %q with priority %v", node, pod.Object["spec"])
	}
	if overhead := textOf(pod.Object, "spec", "overhead", "memory"); overhead != "2Mi" {
		t.Errorf("pod has overhead %s, want that of its RuntimeClass", overhead)
	}
	var containers []string
	for container := range objectsOf(pod.Object, "spec", "initContainers") {
		containers = append(containers, textOf(container, "name")+" "+textOf(container, "image"))
	}
	if diff := cmp.Diff([]string{"restore-wait example.test/node-agent:1"}, containers); diff != "" {
		t.Errorf("init containers (-want +got):\n%s", diff)
	}
	claim := a.get("persistentvolumeclaims", shop, "data")
	if volume := textOf(claim.Object, "spec", "volumeName"); volume != "" || a.get("persistentvolumes", "", "pv-"+a.id) != nil {
		t.Errorf("claim asks for the old volume %q, or that was restored", volume)
	}
	if kept := a.get("persistentvolumes", "", "kept-"+a.id); textOf(kept.Object, "spec", "claimRef", "namespace") != shop || textOf(kept.Object, "spec", "claimRef", "uid") != "" {
		t.Errorf("kept volume is for %v", kept.Object["spec"])
	}
	if secret := a.get("secrets", shop, "web-token-x7k2p"); secret != nil {
		t.Error("the generated token was restored")
	}
	if secret := a.get("secrets", shop, "web-token-mine1"); secret == nil || textOf(secret.Object, "data", "token") != "" {
		t.Errorf("a token that somebody has made is not restored, or has its old content: %v", secret)
	}
	a.checkPodVolumeRestore(outcome, pod, claim)
}

// checkPodVolumeRestore compares with what Velero makes, field by field (docs/contracts/velero-node-agent.md 2.2).
func (a *attempt) checkPodVolumeRestore(outcome *Outcome, pod, claim *unstructured.Unstructured) {
	a.tb.Helper()
	want := []velerov1.PodVolumeRestore{{
		TypeMeta: metav1.TypeMeta{APIVersion: "velero.io/v1", Kind: "PodVolumeRestore"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: a.input.Restore.Namespace, GenerateName: a.input.Restore.Name + "-",
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "velero.io/v1", Kind: "Restore", Name: a.input.Restore.Name, UID: a.input.Restore.UID, Controller: new(true),
			}},
			Labels: map[string]string{
				"velero.io/restore-name": a.input.Restore.Name, "velero.io/restore-uid": string(a.input.Restore.UID),
				"velero.io/pod-uid": string(pod.GetUID()), "velero.io/pvc-uid": string(claim.GetUID()),
			},
		},
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod:    corev1.ObjectReference{Kind: "Pod", Namespace: pod.GetNamespace(), Name: "web", UID: pod.GetUID()},
			Volume: "data", SnapshotID: "s1", SnapshotSize: 4096, BackupStorageLocation: "default", SourceNamespace: "shop",
			UploaderType: "restic", RepoIdentifier: "s3:s3.test/bucket/restic/shop", UploaderSettings: map[string]string{"WriteSparseFiles": "true"},
		},
	}}
	ignore := cmpopts.IgnoreFields(metav1.ObjectMeta{}, "Name", "UID", "ResourceVersion", "Generation", "CreationTimestamp", "ManagedFields")
	if diff := cmp.Diff(want, a.podVolumeRestores(), ignore); diff != "" {
		a.tb.Errorf("PodVolumeRestores in the cluster (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, outcome.PodVolumes, ignore); diff != "" {
		a.tb.Errorf("PodVolumeRestores in the outcome (-want +got):\n%s", diff)
	}
}

// podVolumeRestores are those of the restore in the cluster.
func (a *attempt) podVolumeRestores() []velerov1.PodVolumeRestore {
	a.tb.Helper()
	list, err := a.cluster.Resource(podVolumeRestores).Namespace(a.input.Restore.Namespace).List(a.tb.Context(), metav1.ListOptions{})
	if err != nil {
		a.tb.Fatal(err)
	}
	var made []velerov1.PodVolumeRestore
	for i := range list.Items {
		pvr, err := decodePodVolumeRestore(&list.Items[i])
		if err != nil {
			a.tb.Fatal(err)
		}
		made = append(made, *pvr)
	}
	return made
}

// loseAnswers performs each request, and loses the answers to creations of a resource as long as there are any to lose.
type loseAnswers struct {
	next     http.RoundTripper
	resource string
	left     *atomic.Int32
}

// loseAnswer loses the first answer to a creation of a resource, and returns how many more there are to lose: less than 0 once it was asked for.
func (a *attempt) loseAnswer(resource string) *atomic.Int32 {
	left := &atomic.Int32{}
	left.Store(1)
	a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper { return loseAnswers{next, resource, left} })
	return left
}

func (l loseAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if err == nil && request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/"+l.resource) && l.left.Add(-1) >= 0 {
		_ = response.Body.Close()
		return nil, errors.New("connection lost")
	}
	return response, err
}

// TestLostAnswerMakesNoSecondPodVolumeRestore: two of them would write the same volume.
func TestLostAnswerMakesNoSecondPodVolumeRestore(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.backup(of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
		volumes: [{name: data, emptyDir: {}}, {name: logs, emptyDir: {}}], containers: [{name: a, image: a}]}}`))
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "s1"), podVolumeBackup("logs", "", "s2")}
	left := a.loseAnswer("podvolumerestores")
	outcome := a.run()
	if !outcome.Results.Errors.IsEmpty() || left.Load() >= 0 {
		t.Errorf("%d answers not lost; %s", left.Load(), resultsText(outcome))
	}
	var volumes []string
	for _, pvr := range a.podVolumeRestores() {
		volumes = append(volumes, pvr.Spec.Pod.Namespace+"/"+pvr.Spec.Volume)
	}
	slices.Sort(volumes)
	if diff := cmp.Diff([]string{shop + "/data", shop + "/logs"}, volumes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestLostAnswerOfACreation: what this restore has made is created, also where the API server then refuses another one, and not for the reason that it exists.
func TestLostAnswerOfACreation(t *testing.T) {
	t.Parallel()
	for name, hasQuota := range map[string]bool{"it exists": false, "a quota is used up": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			a.createNamespace(shop)
			if hasQuota {
				a.create("resourcequotas", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: one, namespace: `+shop+`}, spec: {hard: {pods: "1"}}}`)
				a.setStatus("resourcequotas", shop, "one", `{hard: {pods: "1"}, used: {pods: "0"}}`)
			}
			a.backup(of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, image: a}]}}`))
			a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "s1")}
			left := a.loseAnswer("pods")
			outcome := a.run()
			if said := resultsText(outcome); left.Load() >= 0 || said != "" {
				t.Errorf("%d answers not lost; %s", left.Load(), said)
			}
			if diff := cmp.Diff(Counts{Created: 1, Unchanged: 1}, outcome.Progress.Counts); diff != "" {
				t.Error(diff)
			}
			if made := a.podVolumeRestores(); len(made) != 1 || made[0].Spec.SnapshotID != "s1" {
				t.Errorf("nobody restores the pod's volume: %+v", made)
			}
		})
	}
}

// TestLostAnswerOfANamespace: a namespace that this restore has made plain, since that of the backup cannot be read, is an error, and counts as created. One
// that somebody else has made meanwhile does not.
func TestLostAnswerOfANamespace(t *testing.T) {
	t.Parallel()
	for name, isOurs := range map[string]bool{"ours": true, "another's": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			if !isOurs {
				a.createNamespace(a.id)
			}
			a.backup(archived{"resources/namespaces/cluster/" + a.id + ".json", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + a.id}, configMap(a.id, "one", "1"))
			left := a.loseAnswer("namespaces")
			outcome := a.run()
			want := Counts{Created: 2}
			if !isOurs {
				want = Counts{Created: 1, Unchanged: 1}
			}
			if diff := cmp.Diff(want, outcome.Progress.Counts); left.Load() >= 0 || diff != "" {
				t.Errorf("%d answers not lost; %s", left.Load(), diff)
			}
			if said := resultsText(outcome); strings.Contains(said, "namespaces/"+a.id+": it was made without the labels") != isOurs {
				t.Error(said)
			}
		})
	}
}

// TestPodWaitsForAnEarlierRestore has pods that an earlier Restore has created: of those whose volumes the backup has there is a
// warning, and nobody is asked to restore them while the other one may.
func TestPodWaitsForAnEarlierRestore(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createNamespace(shop)
	pod := func(namespace, name, more string) string {
		return `{apiVersion: v1, kind: Pod, metadata: {name: ` + name + `, namespace: ` + namespace + `}, spec: {
			volumes: [{name: data, emptyDir: {}}], containers: [{name: a, image: a}]` + more + `}}`
	}
	const wait = `, initContainers: [{name: restore-wait, image: a, args: [earlier]}]`
	a.create("pods", pod(shop, "web", wait))
	a.create("pods", pod(shop, "plain", wait))
	a.backup(of("pods", pod("shop", "web", "")), of("pods", pod("shop", "plain", "")))
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "s1")} // of pod web
	got := resultsText(a.run())
	const warning = "its volumes are not restored by this Restore: it waits for those of an earlier one"
	if strings.Count(got, warning) != 1 || !strings.Contains(got, "pods/"+shop+"/web: "+warning) {
		t.Error(got)
	}
	if made := a.podVolumeRestores(); len(made) > 0 {
		t.Errorf("made %v", made)
	}
}

// TestExistingPodKeepsItsVolumes: a warning names the data that is not restored, also where the pod is as in the backup.
func TestExistingPodKeepsItsVolumes(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createNamespace(shop)
	pod := func(namespace, name, more string) string {
		return `{apiVersion: v1, kind: Pod, metadata: {name: ` + name + `, namespace: ` + namespace + `}, spec: {
			volumes: [{name: data, emptyDir: {}}, {name: logs, emptyDir: {}}], containers: [{name: a, image: a}]` + more + `}}`
	}
	a.create("pods", pod(shop, "web", ""))
	a.create("pods", pod(shop, "plain", ""))
	a.backup(of("pods", pod("shop", "web", ", hostname: x")), of("pods", pod("shop", "plain", "")))
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("logs", "", "s2"), podVolumeBackup("data", "", "s1")} // of pod web
	outcome := a.run()
	got := resultsText(outcome)
	const warning = "the data of its volumes is not restored, because the pod exists: data, logs. To restore it, delete the pod"
	if strings.Count(got, "the data of its volumes") != 1 || !strings.Contains(got, "pods/"+shop+"/web: "+warning) || !outcome.Results.Errors.IsEmpty() {
		t.Error(got)
	}
}

// TestExistingClaimWhoseBackupFailed: the pod is made anew, with a claim that keeps what it has.
func TestExistingClaimWhoseBackupFailed(t *testing.T) {
	t.Parallel()
	failed := podVolumeBackup("v", "data", "")
	failed.Status.Phase, failed.Status.Message = velerov1.PodVolumeBackupPhaseFailed, "no space"
	emptied := podVolumeBackup("v", "data", "")
	emptied.Status.Message = "volume was empty so no snapshot was taken; the volume has no data, and in its backup of nightly-1 it had 2.0 GiB"
	const keeps = `its volume "v" is the claim "data", which exists and keeps what it has, not the data of the backup: `
	for name, test := range map[string]struct {
		records []velerov1.PodVolumeBackup
		info    volumeinfo.BackupVolume
		exists  bool
		policy  string // of the backup's PersistentVolume; Delete if empty
		same    bool   // the claim that exists has that PersistentVolume
		without bool   // the backup does not have it
		exclude []string
		want    string // the error
		warning string
	}{
		"failed":         {records: []velerov1.PodVolumeBackup{failed}, exists: true, want: keeps + "its backup Failed (PodVolumeBackup nightly-v): no space"},
		"without record": {info: volumeinfo.BackupVolume{BackupMethod: volumeinfo.MethodPodVolumeBackup}, exists: true, want: keeps + "the backup says that restic or kopia has stored it"},
		"could not be backed up": {
			info:   volumeinfo.BackupVolume{Skipped: true, SkippedReason: podVolumeProblem + "shop/web: pod is not running;"},
			exists: true, want: keeps + "Velero could not back it up (" + podVolumeProblem + "shop/web: pod is not running)",
		},
		"was empty":       {records: []velerov1.PodVolumeBackup{podVolumeBackup("v", "data", "")}, exists: true},
		"had data before": {records: []velerov1.PodVolumeBackup{emptied}, exists: true, warning: keeps + "its backup Completed (PodVolumeBackup nightly-v): " + emptied.Status.Message},
		"failed, and no data is asked for": {
			records: []velerov1.PodVolumeBackup{failed}, exists: true, exclude: []string{"persistentvolumes"},
			warning: keeps + "its backup Failed (PodVolumeBackup nightly-v): no space",
		},
		"could not be backed up, and has the same volume": {
			info:   volumeinfo.BackupVolume{Skipped: true, SkippedReason: podVolumeProblem + "shop/web: pod is not running;"},
			exists: true, policy: "Retain", same: true, warning: keeps + "Velero could not back it up (" + podVolumeProblem + "shop/web: pod is not running)",
		},
		"could not be backed up, and has the same volume, which is not in the backup": {
			info:   volumeinfo.BackupVolume{Skipped: true, SkippedReason: podVolumeProblem + "shop/web: pod is not running;"},
			exists: true, same: true, without: true, warning: keeps + "Velero could not back it up (" + podVolumeProblem + "shop/web: pod is not running)",
		},
		"could not be backed up, and has another volume": {
			info:   volumeinfo.BackupVolume{Skipped: true, SkippedReason: podVolumeProblem + "shop/web: pod is not running;"},
			exists: true, policy: "Retain", want: keeps + "Velero could not back it up (" + podVolumeProblem + "shop/web: pod is not running)",
		},
		"left out by a user":  {info: volumeinfo.BackupVolume{Skipped: true, SkippedReason: "podvolume: opted out"}, exists: true},
		"of a claim made now": {records: []velerov1.PodVolumeBackup{failed}, want: "its new volume stays empty: its backup Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			a.createNamespace(shop)
			claim := func(namespace, volume string) string {
				return `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: ` + namespace + `},
					spec: {volumeName: ` + volume + `, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
			}
			policy, has := "Delete", "new-"+a.id
			if test.policy != "" {
				policy = test.policy
			}
			if test.same {
				has = "pv-" + a.id
			}
			if test.exists {
				a.create("persistentvolumeclaims", claim(shop, has))
			}
			volumes := []archived{of("persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-`+a.id+`}, spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi},
					hostPath: {path: /kept}, persistentVolumeReclaimPolicy: `+policy+`, claimRef: {kind: PersistentVolumeClaim, name: data, namespace: shop}}}`)}
			if test.without {
				volumes = nil
			}
			a.backup(append(
				volumes, of("persistentvolumeclaims", claim("shop", "pv-"+a.id)),
				of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a, image: a}],
					volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]}}`),
			)...)
			a.input.PodVolumeBackups, a.input.Restore.Spec.ExcludedResources = test.records, test.exclude
			if test.info.BackupMethod != "" || test.info.Skipped {
				test.info.PVName, test.info.PVCName, test.info.PVCNamespace = "pv-"+a.id, "data", "shop"
				a.input.VolumeInfos = []volumeinfo.BackupVolume{test.info}
			} else {
				a.input.VolumeInfos = []volumeinfo.BackupVolume{{PVName: "pv-" + a.id, BackupMethod: volumeinfo.MethodPodVolumeBackup}}
			}
			outcome := a.run()
			said := map[string][]string{}
			for line := range strings.SplitSeq(resultsText(outcome), "\n") {
				kind, text, _ := strings.Cut(line, " ")
				if kind == "error" || strings.Contains(text, keeps) {
					said[kind] = append(said[kind], text)
				}
			}
			for kind, want := range map[string]string{"error": test.want, "warning": test.warning} {
				if got := said[kind]; want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
					t.Errorf("want one %s %q, got %q", kind, want, got)
				}
			}
		})
	}
}

// TestAnnotatedPod: Velero 1.0 noted snapshots on the pods, and there is no server that says where the repository is.
func TestAnnotatedPod(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	a.inNamespaces()
	a.backup(of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, annotations: {snapshot.velero.io/data: s1}},
		spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, image: a}]}}`))
	outcome := a.run()
	made := a.podVolumeRestores()
	if len(made) != 1 {
		t.Fatalf("%d PodVolumeRestores\n%s", len(made), resultsText(outcome))
	}
	got := []string{made[0].Spec.SnapshotID, made[0].Spec.UploaderType, made[0].Spec.RepoIdentifier, made[0].Spec.SourceNamespace, made[0].Spec.Volume}
	if diff := cmp.Diff([]string{"s1", "restic", "", "shop", "data"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestVolumeWithoutItsClaim: the pod is there, its volume is not restored, and that is an error.
func TestVolumeWithoutItsClaim(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.backup(of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
		volumes: [{name: data, persistentVolumeClaim: {claimName: missing}}], containers: [{name: a, image: a}]}}`))
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("data", "missing", "s1")}
	outcome := a.run()
	if want := `restore volume "data" of pod ` + shop + `/web: get its claim`; !strings.Contains(resultsText(outcome), want) {
		t.Errorf("results have no %q:\n%s", want, resultsText(outcome))
	}
}

// TestClaimThatWasThereIsFilled: what somebody made since the backup is overwritten, and that is said.
func TestClaimThatWasThereIsFilled(t *testing.T) {
	t.Parallel()
	for _, policy := range []velerov1.PolicyType{velerov1.PolicyTypeNone, velerov1.PolicyTypeUpdate} {
		t.Run("policy "+string(policy), func(t *testing.T) {
			t.Parallel()
			warning := `its volume "a" is the claim "old", which was there before`
			if said := fillOldClaim(t, policy, time.Hour); !strings.Contains(said, warning) {
				t.Errorf("no warning:\n%s", said)
			}
			if said := fillOldClaim(t, policy, 0); strings.Contains(said, warning) {
				t.Errorf("a claim that is as young as the restore is not warned of:\n%s", said)
			}
		})
	}
}

// fillOldClaim restores a pod whose claim was made a time before the restore began, and returns the results. The API server
// dates what it makes, so it is the restore that is late.
func fillOldClaim(t *testing.T, policy velerov1.PolicyType, before time.Duration) string {
	t.Helper()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createNamespace(shop)
	claim := func(namespace, label string) string {
		return `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: old, namespace: ` + namespace + `, labels: {from: ` + label + `}},
			spec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
	}
	a.create("persistentvolumeclaims", claim(shop, "cluster"))
	began := metav1.NewTime(time.Now().Add(before))
	a.input.Restore.Status.StartTimestamp = &began
	a.input.Restore.Spec.ExistingResourcePolicy = policy
	a.backup(
		of("persistentvolumeclaims", claim("shop", "backup")),
		of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a, image: a}],
			volumes: [{name: a, persistentVolumeClaim: {claimName: old}}]}}`),
	)
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("a", "old", "s1")}
	return resultsText(a.run())
}

// snapshotCRD is a CRD of the CSI snapshotter, without its schema.
func snapshotCRD(plural, kind, scope string) string {
	return `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ` + plural + `.snapshot.storage.k8s.io, annotations: {
			api-approved.kubernetes.io: unapproved}}, spec: {group: snapshot.storage.k8s.io, scope: ` + scope + `,
		names: {plural: ` + plural + `, singular: ` + strings.ToLower(kind) + `, kind: ` + kind + `, listKind: ` + kind + `List},
		versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`
}

// TestCSISnapshotIsRestored brings a claim back from a CSI snapshot, with all that this takes, though the Restore names the
// claims only.
func TestCSISnapshotIsRestored(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.input.Restore.UID = types.UID("uid-" + a.id)
	a.input.Restore.Spec.IncludedResources = []string{"persistentvolumeclaims", "volumesnapshotclasses", "customresourcedefinitions"}
	a.input.VolumeInfos = []volumeinfo.BackupVolume{{PVName: "pv-" + a.id, PVCName: "data", PVCNamespace: "shop", BackupMethod: volumeinfo.MethodCSISnapshot}}
	a.backup(
		of("customresourcedefinitions.apiextensions.k8s.io", snapshotCRD("volumesnapshots", "VolumeSnapshot", "Namespaced")),
		of("customresourcedefinitions.apiextensions.k8s.io", snapshotCRD("volumesnapshotcontents", "VolumeSnapshotContent", "Cluster")),
		of("customresourcedefinitions.apiextensions.k8s.io", snapshotCRD("volumesnapshotclasses", "VolumeSnapshotClass", "Cluster")),
		of("volumesnapshotclasses.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotClass,
			metadata: {name: class-`+a.id+`}, driver: driver-`+a.id+`, deletionPolicy: Delete}`),
		of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, annotations: {velero.io/volume-snapshot-name: vs-1}},
			spec: {volumeName: pv-`+a.id+`, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}`),
		of("volumesnapshots.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: vs-1, namespace: shop},
			spec: {volumeSnapshotClassName: old, source: {persistentVolumeClaimName: data}}, status: {boundVolumeSnapshotContentName: content-1}}`),
		of("volumesnapshotcontents.snapshot.storage.k8s.io", `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: content-1},
			spec: {driver: driver-`+a.id+`, deletionPolicy: Delete, volumeSnapshotClassName: old, source: {volumeHandle: vol-1},
				volumeSnapshotRef: {kind: VolumeSnapshot, name: vs-1, namespace: shop, uid: u}}, status: {snapshotHandle: snap-1, restoreSize: 2147483648}}`),
	)
	for _, plural := range []string{"volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"} {
		a.deleteAtEnd("customresourcedefinitions.v1.apiextensions.k8s.io", plural+".snapshot.storage.k8s.io")
	}
	outcome := a.run()
	if outcome.Progress.Counts.Failed > 0 {
		t.Fatalf("%+v\n%s", outcome.Progress.Counts, resultsText(outcome))
	}
	claim := a.get("persistentvolumeclaims", shop, "data")
	name := textOf(claim.Object, "spec", "dataSource", "name")
	snapshot := a.get("volumesnapshots.v1.snapshot.storage.k8s.io", shop, name)
	content := a.get("volumesnapshotcontents.v1.snapshot.storage.k8s.io", "", name)
	if name == "" || snapshot == nil || content == nil {
		t.Fatalf("claim is made of snapshot %q: %v, with content %v\n%s", name, snapshot, content, resultsText(outcome))
	}
	want := map[string]any{
		"driver": "driver-" + a.id, "deletionPolicy": "Retain", "volumeSnapshotClassName": "class-" + a.id,
		"source":            map[string]any{"snapshotHandle": "snap-1"},
		"volumeSnapshotRef": map[string]any{"kind": "VolumeSnapshot", "name": name, "namespace": shop},
	}
	if diff := cmp.Diff(want, content.Object["spec"]); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
	if size := textOf(claim.Object, "spec", "resources", "requests", "storage"); size != "2Gi" {
		t.Errorf("claim asks for %s, but its snapshot takes 2Gi", size)
	}
}

// TestStorageClassIsChanged has a class that exists, of a claim, a volume and a StatefulSet.
func TestStorageClassIsChanged(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.create("storageclasses.v1.storage.k8s.io", `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: new-`+a.id+`}, provisioner: p}`)
	a.input.StorageClasses = map[string]string{"old": "new-" + a.id}
	a.backup(
		of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop},
			spec: {storageClassName: old, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`),
		of("statefulsets.apps", `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop}, spec: {serviceName: db, selector: {matchLabels: {a: b}},
			template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a}]}},
			volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: old, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}`),
	)
	outcome := a.run()
	if class := textOf(a.get("persistentvolumeclaims", shop, "data").Object, "spec", "storageClassName"); class != "new-"+a.id {
		t.Errorf("claim has class %q\n%s", class, resultsText(outcome))
	}
	for template := range objectsOf(a.get("statefulsets.v1.apps", shop, "db").Object, "spec", "volumeClaimTemplates") {
		if class := textOf(template, "spec", "storageClassName"); class != "new-"+a.id {
			t.Errorf("StatefulSet's template has class %q", class)
		}
	}
}

// TestExistingClaimKeepsItsVolume: nothing is said about a volume that the restore does not touch.
func TestExistingClaimKeepsItsVolume(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createNamespace(shop)
	a.create("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: `+shop+`},
		spec: {volumeName: pv-`+a.id+`, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
	a.backup(
		of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop},
			spec: {volumeName: pv-`+a.id+`, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`),
		of("persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-`+a.id+`}, spec: {persistentVolumeReclaimPolicy: Delete,
			claimRef: {name: data, namespace: shop}}}`),
	)
	if outcome := a.run(); strings.Contains(resultsText(outcome), "new volume is empty") || !outcome.Results.Errors.IsEmpty() {
		t.Error(resultsText(outcome))
	}
}

// TestExistingClaimIsNotMadeOfASnapshot: that a claim keeps what it has is said where the data of the backup is in a snapshot, even if it is
// the claim of the backup.
func TestExistingClaimIsNotMadeOfASnapshot(t *testing.T) {
	t.Parallel()
	for name, moved := range map[string]bool{"of a CSI driver": false, "whose data was moved": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			a.createOriginal(shop)
			a.input.VolumeInfos = a.listedVolumes(volumeinfo.MethodCSISnapshot, "data")
			a.input.VolumeInfos[0].SnapshotDataMoved = moved
			a.backup(a.claimOfBackup("data", "velero.io/volume-snapshot-name: vs-1"))
			want := "warning " + shop + ": persistentvolumeclaims/" + shop + "/data: it exists and keeps what it has, not the data of the backup"
			if said := resultsText(a.run()); !strings.Contains(said, want) {
				t.Errorf("no %q in:\n%s", want, said)
			}
		})
	}
}

// TestUpdateKeepsTheBindingOfAClaim: a claim that waits for a volume to be made is not made to wait for that of the backup.
func TestUpdateKeepsTheBindingOfAClaim(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createNamespace(shop)
	a.input.Restore.Spec.ExistingResourcePolicy = velerov1.PolicyTypeUpdate
	a.create("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: `+shop+`, annotations: {volume.kubernetes.io/selected-node: n1}},
		spec: {storageClassName: fast, accessModes: [ReadWriteOnce], volumeMode: Filesystem, resources: {requests: {storage: 1Gi}}}}`)
	a.backup(of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, labels: {team: a}, annotations: {pv.kubernetes.io/bind-completed: "yes"}},
		spec: {volumeName: gone-`+a.id+`, storageClassName: fast, accessModes: [ReadWriteOnce], volumeMode: Filesystem, resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}`))
	outcome := a.run()
	claim := a.get("persistentvolumeclaims", shop, "data")
	if volume, node := textOf(claim.Object, "spec", "volumeName"), claim.GetAnnotations()[selectedNode]; volume != "" || node != "n1" {
		t.Errorf("it waits for volume %q, with node %q\n%s", volume, node, resultsText(outcome))
	}
	if claim.GetLabels()["team"] != "a" || outcome.Progress.Counts.Updated != 1 || len(claim.GetAnnotations()) != 1 {
		t.Errorf("%+v: %v\n%s", outcome.Progress.Counts, claim.Object["metadata"], resultsText(outcome))
	}
}

// TestVolumeWithoutItsDataIsAnError: the claim is there, and the Restore does not end as Completed.
func TestVolumeWithoutItsDataIsAnError(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.backup(of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop},
		spec: {volumeName: pv-`+a.id+`, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`))
	a.input.VolumeInfos = []volumeinfo.BackupVolume{{
		PVName: "pv-" + a.id, PVCName: "data", PVCNamespace: "shop", BackupMethod: volumeinfo.MethodCSISnapshot, SnapshotDataMoved: true,
	}}
	outcome := a.run()
	want := "error " + shop + ": error restoring persistentvolumeclaims/" + shop + `/data: volume "pv-` + a.id + `": its new volume is empty: the data was moved`
	if said := resultsText(outcome); !strings.HasPrefix(said, want) || strings.Contains(said, "\n") {
		t.Errorf("want %q, got:\n%s", want, said)
	}
	if a.get("persistentvolumeclaims", shop, "data") == nil || outcome.Progress.Counts.Created != 2 || len(outcome.Unfilled) != 1 {
		t.Errorf("%+v, unfilled are %+v", outcome.Progress.Counts, outcome.Unfilled)
	}
}

// TestClaimWaitsForItsVolume restores a claim whose PersistentVolume the backup has, but no data: it is said if the claim does
// not get that.
func TestClaimWaitsForItsVolume(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		leaveOut bool
		present  string // claimRef of the PersistentVolume that exists; none does if empty
		want     string
		outcome  volumeinfo.Outcome
	}{
		"restored":                {outcome: volumeinfo.OutcomeKept},
		"left out":                {leaveOut: true, want: "which is not in the cluster and was not restored", outcome: volumeinfo.OutcomeWaiting},
		"there, of nobody":        {present: `null`, outcome: volumeinfo.OutcomeKept},
		"there, for it":           {present: `{namespace: SHOP, name: data}`, outcome: volumeinfo.OutcomeKept},
		"there, of another claim": {present: `{namespace: elsewhere, name: data, uid: u}`, want: "which belongs to claim elsewhere/data", outcome: volumeinfo.OutcomeWaiting},
		"there, of an old claim":  {present: `{namespace: SHOP, name: data, uid: u}`, want: "take spec.claimRef.uid away", outcome: volumeinfo.OutcomeWaiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			volume := func(claimRef string) string {
				return `{apiVersion: v1, kind: PersistentVolume, metadata: {name: pv-` + a.id + `}, spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi},
					hostPath: {path: /x}, persistentVolumeReclaimPolicy: Retain, claimRef: ` + strings.ReplaceAll(claimRef, "SHOP", shop) + `}}`
			}
			if test.leaveOut {
				a.input.Restore.Spec.ExcludedResources = []string{"persistentvolumes"}
			}
			if test.present != "" {
				a.create("persistentvolumes", volume(test.present))
			}
			a.backup(of("persistentvolumes", volume(`{namespace: shop, name: data, uid: u4}`)),
				of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, status: {phase: Bound},
					spec: {volumeName: pv-`+a.id+`, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`))
			outcome := a.run()
			said := resultsText(outcome)
			if strings.Contains(said, "it waits for PersistentVolume") != (test.want != "") || !strings.Contains(said, test.want) {
				t.Errorf("want %q in:\n%s", test.want, said)
			}
			if len(outcome.Unfilled) != 1 || outcome.Unfilled[0].Outcome != test.outcome {
				t.Errorf("want %s: %+v", test.outcome, outcome.Unfilled)
			}
		})
	}
}

// bind plays the parts of provisioner and binder for a claim.
func (a *attempt) bind(namespace, claim, volume string) {
	a.tb.Helper()
	a.create("persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: `+volume+`, labels: {zone: here}}, spec: {
		accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /x}, persistentVolumeReclaimPolicy: Delete,
		claimRef: {kind: PersistentVolumeClaim, name: `+claim+`, namespace: `+namespace+`}}}`)
	a.setStatus("persistentvolumes", "", volume, `{phase: Bound}`)
	object := a.get("persistentvolumeclaims", namespace, claim)
	if err := unstructured.SetNestedField(object.Object, volume, "spec", "volumeName"); err != nil {
		a.tb.Fatal(err)
	}
	if _, err := a.resource("persistentvolumeclaims").Namespace(namespace).Update(a.tb.Context(), object, metav1.UpdateOptions{}); err != nil {
		a.tb.Fatal(err)
	}
	a.setStatus("persistentvolumeclaims", namespace, claim, `{phase: Bound}`)
}

func (a *attempt) setStatus(resource, namespace, name, status string) {
	a.tb.Helper()
	object := a.get(resource, namespace, name)
	object.Object["status"] = decodeItem(a.tb, status).Object
	if _, err := a.resource(resource).Namespace(namespace).UpdateStatus(a.tb.Context(), object, metav1.UpdateOptions{}); err != nil {
		a.tb.Fatal(err)
	}
}

// TestFinalize lets volumes get what the old ones had, and says so of each that does not.
func TestFinalize(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.create("storageclasses.v1.storage.k8s.io", `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: late-`+a.id+`}, provisioner: p, volumeBindingMode: WaitForFirstConsumer}`)
	claim := func(name, class string) archived {
		return of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: `+name+`, namespace: shop},
			spec: {volumeName: old-`+name+`-`+a.id+`, storageClassName: `+class+`, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
	}
	a.backup(claim("bound", "fast"), claim("late", "late-"+a.id), claim("wrong", "fast"), claim("unfilled", "fast"), claim("filled", "fast"))
	for _, name := range []string{"bound", "late", "wrong", "missing"} {
		a.input.VolumeInfos = append(a.input.VolumeInfos, volumeinfo.BackupVolume{
			PVName: "old-" + name + "-" + a.id, PVCName: name, PVCNamespace: "shop", BackupMethod: volumeinfo.MethodPodVolumeBackup,
			PV: &volumeinfo.PVInfo{ReclaimPolicy: "Retain", Labels: map[string]string{
				"team": "web", "zone": "there", "topology.kubernetes.io/zone": "there", "failure-domain.beta.kubernetes.io/region": "there",
			}},
		})
		record := podVolumeBackup("v-"+name, name, "")
		a.input.PodVolumeBackups = append(a.input.PodVolumeBackups, record)
	}
	a.input.VolumeInfos[2].PV.ReclaimPolicy = "Forget"
	// Of the last claim nothing was created; there is nothing to say.
	a.input.PodVolumeBackups = append(a.input.PodVolumeBackups,
		podVolumeBackup("v", "unfilled", "s1"), podVolumeBackup("w", "filled", "s2"), podVolumeBackup("x", "missing", "s3"))

	e := a.engine()
	run := a.collect(e)
	outcome, err := run.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	a.bind(shop, "bound", "new-"+a.id)
	a.bind(shop, "wrong", "wrong-"+a.id)
	filled := velerov1.PodVolumeRestore{}
	filled.Labels = map[string]string{velerov1.PVCUIDLabel: string(a.get("persistentvolumeclaims", shop, "filled").GetUID())}
	outcome.Results, outcome.PodVolumes = backupstore.Results{}, []velerov1.PodVolumeRestore{filled}
	if err := run.Finalize(t.Context(), outcome); err != nil {
		t.Fatal(err)
	}

	volume := &corev1.PersistentVolume{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.get("persistentvolumes", "", "new-"+a.id).Object, volume); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"team": "web", "zone": "here"}, volume.Labels); diff != "" || volume.Spec.PersistentVolumeReclaimPolicy != "Retain" {
		t.Errorf("volume has policy %s and labels (-want +got):\n%s", volume.Spec.PersistentVolumeReclaimPolicy, diff)
	}
	lines := strings.Split(resultsText(outcome), "\n")
	want := []string{
		"error " + shop + ": persistentvolumeclaims/unfilled: its new volume is empty: it would be filled through pod web",
		"error " + shop + ": persistentvolumeclaims/wrong: reclaim policy and labels of its old volume: patch volume wrong-" + a.id,
		"warning " + shop + ": persistentvolumeclaims/late: reclaim policy and labels of its old volume: its storage class waits until a pod that uses it is scheduled, and no pod uses it",
	}
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("results (-want +got):\n%s", cmp.Diff(want, lines))
	}
}

// TestFinalizeDoesNotWaitForEver has a claim that nobody binds.
func TestFinalizeDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.backup(of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: never, namespace: shop},
		spec: {volumeName: old, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`))
	a.input.VolumeInfos = []volumeinfo.BackupVolume{{
		PVName: "old", PVCName: "never", PVCNamespace: "shop", BackupMethod: volumeinfo.MethodPodVolumeBackup, PV: &volumeinfo.PVInfo{ReclaimPolicy: "Retain"},
	}}
	e := a.engine()
	run := a.collect(e)
	outcome, err := run.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	e.config.ResourceTimeout = time.Millisecond
	if err := run.Finalize(t.Context(), outcome); err != nil {
		t.Fatal(err)
	}
	if want := "error " + shop + ": persistentvolumeclaims/never: reclaim policy and labels of its old volume: not done within 1ms"; !strings.Contains(resultsText(outcome), want) {
		t.Errorf("no %q in:\n%s", want, resultsText(outcome))
	}

	e.config.ResourceTimeout = time.Hour
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errUnreachable)
	outcome.Results = backupstore.Results{}
	if err := run.Finalize(ctx, outcome); !errors.Is(err, errUnreachable) || resultsText(outcome) != "" {
		t.Errorf("canceled: got %v and\n%s", err, resultsText(outcome))
	}
}

// refusePods refuses the first pods as an API server does that has not noticed a PriorityClass yet, and counts requests.
type refusePods struct {
	next     http.RoundTripper
	left     *atomic.Int32
	requests *atomic.Int32
}

func (r refusePods) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodPost || !strings.HasSuffix(request.URL.Path, "/pods") {
		return r.next.RoundTrip(request)
	}
	r.requests.Add(1)
	if r.left.Add(-1) < 0 {
		return r.next.RoundTrip(request)
	}
	return &http.Response{
		StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,
			"message":"pods \"web\" is forbidden: no PriorityClass with name high was found"}`)),
	}, nil
}

// TestPriorityClassThatIsNew: that the API server does not know it yet costs no pod, and that there is none no time.
func TestPriorityClassThatIsNew(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		class    bool
		requests int32
		failed   int
	}{{"it exists", true, 3, 0}, {"it does not", false, 1, 1}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			a.inNamespaces()
			files := []archived{of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
				priorityClassName: high-`+a.id+`, containers: [{name: a, image: a}]}}`)}
			if test.class {
				a.create("priorityclasses.v1.scheduling.k8s.io", `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high-`+a.id+`}, value: 2000}`)
			}
			a.backup(files...)
			left, requests := &atomic.Int32{}, &atomic.Int32{}
			left.Store(2)
			a.config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusePods{next, left, requests} })
			outcome := a.run()
			// The real API server may need a moment, too.
			if outcome.Progress.Counts.Failed != test.failed || requests.Load() < test.requests || !test.class && requests.Load() != test.requests {
				t.Errorf("%d requests, %+v\n%s", requests.Load(), outcome.Progress.Counts, resultsText(outcome))
			}
		})
	}
}

// TestNativeSnapshotIsNotFaked: the old disk, which has gone on since the backup, is not taken for the snapshot.
func TestNativeSnapshotIsNotFaked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		keep bool
		want string
	}{
		{"by default", false, "it waits for PersistentVolume"},
		{"asked for", true, "as it is now, not the data of the backup"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			volume := "pv-" + a.id
			if test.keep {
				a.input.Restore.Annotations = map[string]string{v1alpha1.AnnotationKeepNativeVolumes: "true"}
			}
			a.input.NativeSnapshots = []backupstore.NativeSnapshot{{Spec: backupstore.NativeSnapshotSpec{PersistentVolumeName: volume}}}
			a.backup(
				of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, status: {phase: Bound},
					spec: {volumeName: `+volume+`, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`),
				of("persistentvolumes", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: `+volume+`}, spec: {accessModes: [ReadWriteOnce],
					capacity: {storage: 1Gi}, hostPath: {path: /x}, persistentVolumeReclaimPolicy: Delete, claimRef: {name: data, namespace: shop}}}`),
			)
			outcome := a.run()
			if restored := a.get("persistentvolumes", "", volume) != nil; restored != test.keep || outcome.Results.Errors.IsEmpty() != test.keep {
				t.Errorf("volume restored: %t\n%s", restored, resultsText(outcome))
			}
			if asked := textOf(a.get("persistentvolumeclaims", shop, "data").Object, "spec", "volumeName"); asked != volume || !strings.Contains(resultsText(outcome), test.want) {
				t.Errorf("claim asks for volume %q\n%s", asked, resultsText(outcome))
			}
		})
	}
}
