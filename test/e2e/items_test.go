//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restorecontroller"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	items      = "e2e-items" // the namespace, the Backup and the Restore
	configMaps = 300         // so many that their restore can be watched
)

// testItems backs up a namespace with all that an application consists of, deletes it, and restores it with the restore
// controller, driven by Velero's own CLI.
func (c *cluster) testItems(t *testing.T) {
	s := c.startShop(t)
	stored := c.backUpShop(t, s)
	c.deleteShop(t, s)
	c.upload(t, stored)
	c.installRestoreController(t)
	c.awaitSynced(t, stored)
	c.makeLocalVolume(t, s.db) // nobody provisions local volumes
	c.makeLocalVolume(t, s.spare)

	c.velero(t, "restore", "create", items, "--from-backup", items, "--write-sparse-files")
	restore, seen := c.followRestore(t, items)
	checkFollowed(t, restore, seen)
	c.checkShop(t, s)
	c.checkCLI(t)
	c.checkPlugin(t, s)
	c.checkVolumeInfo(t, s)
}

// shop is the application.
type shop struct {
	web, db *app // the pods' volumes
	// Two more volumes of the web pod, of which the backup has no data: one that goes with its claim, and one that stays.
	cache, archive *app
	spare          *app // what the cache gets when it is restored
}

func (c *cluster) newShop() *shop {
	return &shop{
		web:     &app{namespace: items, name: "web", node: c.nodes[0], uploader: restic, volumes: []string{disk}, bytes: 80 << 20, seed: 5000},
		db:      &app{namespace: items, name: "db", node: c.nodes[1], uploader: kopia, volumes: []string{local}, bytes: 80 << 20, seed: 6000},
		cache:   &app{namespace: items, name: "cache", node: c.nodes[0]},
		archive: &app{namespace: items, name: "archive", node: c.nodes[0]},
		spare:   &app{namespace: items, name: "spare", node: c.nodes[0]},
	}
}

// volumeName is that of the PersistentVolume that makeLocalVolume makes.
func (a *app) volumeName() string { return a.namespace + "-" + a.name }

func shopMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: items, Name: name, Labels: map[string]string{"app": name}}
}

var widgets = metav1.GroupVersionKind{Group: "e2e.plimsoll.io", Version: "v1", Kind: "Widget"}

// startShop makes the application and waits until it runs.
func (c *cluster) startShop(t *testing.T) *shop {
	t.Helper()
	s := c.newShop()
	c.createNamespace(t, items)
	c.createWidget(t)
	c.create(t, &corev1.ServiceAccount{ObjectMeta: shopMeta("web")})
	c.create(t, &rbacv1.Role{ObjectMeta: shopMeta("web"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}})
	c.create(t, &rbacv1.RoleBinding{
		ObjectMeta: shopMeta("web"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "web"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: items, Name: "web"}},
	})
	c.create(t, &corev1.Secret{ObjectMeta: shopMeta("web"), StringData: map[string]string{"token": "secret"}})
	for i := range configMaps {
		c.create(t, &corev1.ConfigMap{ObjectMeta: shopMeta(fmt.Sprintf("settings-%03d", i)), Data: map[string]string{"number": strconv.Itoa(i)}})
	}
	c.create(t, &corev1.Service{ObjectMeta: shopMeta("web"), Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
	}})
	template := c.shopTemplate(s.web)
	template.Spec.ServiceAccountName = "web"
	for _, a := range []*app{s.cache, s.archive} {
		c.create(t, c.makeLocalVolume(t, a))
		template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: a.name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: a.name},
		}})
	}
	goesWithItsClaim := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`))
	if err := c.client.Patch(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.cache.volumeName()}}, goesWithItsClaim); err != nil {
		t.Fatal(err)
	}
	c.create(t, &appsv1.Deployment{ObjectMeta: shopMeta("web"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template,
	}})
	claim := c.makeLocalVolume(t, s.db)
	claim.ObjectMeta, claim.Spec.VolumeName = metav1.ObjectMeta{Name: local}, ""
	c.create(t, &appsv1.StatefulSet{ObjectMeta: shopMeta("db"), Spec: appsv1.StatefulSetSpec{
		ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: c.shopTemplate(s.db),
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claim},
	}})
	for _, a := range []*app{s.web, s.db} {
		a.pod = c.awaitShopPod(t, a)
	}
	s.db.claim = &corev1.PersistentVolumeClaim{}
	if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: items, Name: local + "-" + s.db.pod.Name}, s.db.claim); err != nil {
		t.Fatal(err)
	}
	return s
}

// createWidget makes a definition and an object of it.
func (c *cluster) createWidget(t *testing.T) {
	t.Helper()
	c.create(t, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + widgets.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: widgets.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: widgets.Kind, ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: widgets.Version, Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)},
				},
			}},
		},
	})
	c.apply(t, widget())
}

func widget() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": widgets.Group + "/" + widgets.Version, "kind": widgets.Kind,
		"metadata": map[string]any{"namespace": items, "name": "web"}, "spec": map[string]any{"color": "blue"},
	}}
}

// shopTemplate is a pod that fills its volumes if they are empty, says what it found, and looks at all that is in them
// before it runs.
func (c *cluster) shopTemplate(a *app) corev1.PodTemplateSpec {
	spec := corev1.PodSpec{
		Affinity: onlyOn(a.node), TerminationGracePeriodSeconds: new(int64(5)),
		Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		InitContainers: []corev1.Container{
			c.container(a, "fill", a.treeArgs("fill")), c.container(a, "verify", a.treeArgs("verify", "/scratch")),
		},
		Containers: []corev1.Container{c.container(a, "app", []string{"sleep"})},
	}
	if a.volumes[0] == disk { // the other one comes from the claim's template
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: disk, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"app": a.name},
			Annotations: map[string]string{"backup.velero.io/backup-volumes-excludes": "scratch,cache,archive"},
		},
		Spec: spec,
	}
}

// awaitShopPod waits until the pod of a workload runs.
func (c *cluster) awaitShopPod(t *testing.T, a *app) *corev1.Pod {
	t.Helper()
	var running *corev1.Pod
	eventually(t, "a pod of "+a.name+" is ready", func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		if err := c.client.List(ctx, &pods, client.InNamespace(a.namespace), client.MatchingLabels{"app": a.name}); err != nil {
			return false, err
		}
		if len(pods.Items) != 1 {
			return false, fmt.Errorf("there are %d", len(pods.Items))
		}
		running = &pods.Items[0]
		for _, condition := range running.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, fmt.Errorf("%s, %s", running.Status.Phase, lastWords(running))
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods = append(c.pods, running.UID)
	return running
}

// backUpShop backs up the volumes with the node agent and the items as Velero does.
func (c *cluster) backUpShop(t *testing.T, s *shop) velero.Stored {
	t.Helper()
	backup := c.beginBackup(t, items)
	for _, a := range []*app{s.web, s.db} {
		c.requestBackups(t, backup, a)
	}
	volumes := c.followBackups(t, backup, 2, nil)
	stored := velero.Stored{Version: velero.V1_14}
	for _, v := range volumes {
		v.checkCompleted(t)
		stored.PodVolumeBackups = append(stored.PodVolumeBackups, *v.object.(*velerov1.PodVolumeBackup))
	}
	c.endBackup(t, backup)
	stored.Backup = backup
	volumeInfos := []volumeinfo.BackupVolume{{
		PVCNamespace: items, PVCName: s.db.claim.Name, PVName: s.db.claim.Spec.VolumeName, BackupMethod: volumeinfo.MethodPodVolumeBackup,
		PV: &volumeinfo.PVInfo{ReclaimPolicy: "Retain", Labels: ownLabels},
	}}
	for a, policy := range map[*app]string{s.cache: "Delete", s.archive: "Retain"} {
		volumeInfos = append(volumeInfos, volumeinfo.BackupVolume{
			PVCNamespace: items, PVCName: a.name, PVName: a.volumeName(), Skipped: true, SkippedReason: "not satisfied the criteria for fs-backup",
			PV: &volumeinfo.PVInfo{ReclaimPolicy: policy, Labels: ownLabels},
		})
	}
	stored.VolumeInfos = volumeInfos
	config, err := clientcmd.BuildConfigFromFlags("", c.config)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	if stored.Items, err = velero.Collect(t.Context(), config, items); err != nil {
		t.Fatal(err)
	}
	return stored
}

// deleteShop deletes all that the backup has, and what the cluster knows of the backup.
func (c *cluster) deleteShop(t *testing.T, s *shop) {
	t.Helper()
	c.delete(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: items}})
	c.awaitGone(t, []string{items})
	for _, a := range []*app{s.db, s.cache, s.archive} {
		c.delete(t, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: a.volumeName()}})
		if a != s.archive { // whose storage stays
			c.onNode(t, a.node, "remove", path.Join(nodeDirInPod, ownNamespace, a.volumeName()))
		}
	}
	c.delete(t, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets." + widgets.Group}})
	c.forgetOperations(t) // what the other tests have left would be taken for what a controller has left that was restarted
}

// upload puts the backup into the bucket.
func (c *cluster) upload(t *testing.T, stored velero.Stored) {
	t.Helper()
	files, err := stored.Files()
	if err != nil {
		t.Fatal(err)
	}
	s3 := c.storage(t)
	for key, content := range files {
		if _, err := s3.PutObject(t.Context(), bucket, path.Join("e2e", key), bytes.NewReader(content), int64(len(content)), minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// storage is a client of the S3 server.
func (c *cluster) storage(t *testing.T) *minio.Client {
	t.Helper()
	server, err := url.Parse(c.s3)
	if err != nil {
		t.Fatal(err)
	}
	s3, err := minio.New(server.Host, &minio.Options{Creds: credentials.NewStaticV4(s3Key, s3Secret, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return s3
}

func (c *cluster) installRestoreController(t *testing.T) {
	t.Helper()
	for _, object := range c.manifests(t, "restore-controller") {
		c.apply(t, object)
	}
	eventually(t, "the restore controller is ready", func(ctx context.Context) (bool, error) {
		var deployment appsv1.Deployment
		err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: "restore-controller"}, &deployment)
		return err == nil && deployment.Status.ReadyReplicas == 1, err
	})
}

// awaitSynced waits until the controller has brought the backup from the bucket.
func (c *cluster) awaitSynced(t *testing.T, stored velero.Stored) {
	t.Helper()
	eventually(t, "the backup is there", func(ctx context.Context) (bool, error) {
		var backup velerov1.Backup
		if err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: items}, &backup); err != nil {
			return false, err
		}
		var volumes velerov1.PodVolumeBackupList
		err := c.client.List(ctx, &volumes, client.InNamespace(veleroNamespace), client.MatchingLabels{velerov1.BackupUIDLabel: string(backup.UID)})
		return err == nil && len(volumes.Items) == len(stored.PodVolumeBackups), fmt.Errorf("%d PodVolumeBackups, %w", len(volumes.Items), err)
	})
}

// velero runs Velero's CLI and returns what it prints.
func (c *cluster) velero(t *testing.T, args ...string) string {
	t.Helper()
	return c.runVelero(t, parts.Velero(t), args...)
}

// runVelero runs the commands of one version of Velero's program.
func (c *cluster) runVelero(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--kubeconfig", c.config, "--namespace", veleroNamespace}, args...)...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("velero %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// followRestore watches the Restore until its end, and returns all that it said of its progress.
func (c *cluster) followRestore(t *testing.T, name string) (*velerov1.Restore, []restorecontroller.Progress) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := c.client.Watch(ctx, &velerov1.RestoreList{}, client.InNamespace(veleroNamespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var seen []restorecontroller.Progress
	for event := range events.ResultChan() {
		restore, ok := event.Object.(*velerov1.Restore)
		if !ok {
			t.Fatalf("the watch says %v", event.Object)
		}
		var p restorecontroller.Progress
		if text, ok := restore.Annotations[v1alpha1.AnnotationProgress]; ok {
			if err := json.Unmarshal([]byte(text), &p); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			seen = append(seen, p)
		}
		if restore.Status.CompletionTimestamp != nil {
			return restore, seen
		}
	}
	t.Fatalf("the Restore has not ended; it said last: %+v", seen[max(0, len(seen)-1):])
	return nil, nil
}

// checkFollowed holds that the Restore has ended well, and that its items and its bytes were seen to move.
func checkFollowed(t *testing.T, restore *velerov1.Restore, seen []restorecontroller.Progress) {
	t.Helper()
	status := restore.Status
	if status.Phase != velerov1.RestorePhaseCompleted || status.Errors > 0 {
		t.Errorf("the Restore is %s with %d errors and %d warnings: %s", status.Phase, status.Errors, status.Warnings, status.FailureReason)
	}
	if p := status.Progress; p == nil || p.ItemsRestored != p.TotalItems || p.TotalItems < configMaps {
		t.Errorf("its progress is %+v", p)
	}
	restored, bytes := map[int]bool{}, map[int64]bool{}
	percent := 0
	for _, p := range seen {
		if p.Items.Restored > p.Items.Total || p.Percent < percent {
			t.Errorf("%d of %d items, %d %% after %d %%", p.Items.Restored, p.Items.Total, p.Percent, percent)
		}
		percent = p.Percent
		restored[p.Items.Restored] = true
		if v := p.Volumes; v != nil {
			bytes[v.BytesDone] = true
			if p.Percent == 100 && v.BytesDone < v.TotalBytes {
				t.Errorf("100 %% while %d of %d bytes are there", v.BytesDone, v.TotalBytes)
			}
		}
	}
	t.Logf("%d writes of progress, %d numbers of items, %d of bytes, at the end %+v", len(seen), len(restored), len(bytes), seen[max(0, len(seen)-1):])
	if len(restored) < 4 || len(bytes) < 4 || percent != 100 {
		t.Errorf("progress was not seen to move: %d numbers of items and %d of bytes, %d %% at the end", len(restored), len(bytes), percent)
	}
}

// checkShop holds that the application runs again, on the data that it had.
func (c *cluster) checkShop(t *testing.T, s *shop) {
	t.Helper()
	for _, a := range []*app{s.web, s.db} {
		c.checkRestoredPod(t, a)
	}
	for i := range configMaps {
		var settings corev1.ConfigMap
		err := c.client.Get(t.Context(), types.NamespacedName{Namespace: items, Name: fmt.Sprintf("settings-%03d", i)}, &settings)
		if err != nil || settings.Data["number"] != strconv.Itoa(i) || settings.Labels[velerov1.RestoreNameLabel] != items {
			t.Fatalf("ConfigMap %d: %v %v", i, err, settings.Data)
		}
	}
	var secret corev1.Secret
	var service corev1.Service
	var binding rbacv1.RoleBinding
	for _, object := range []client.Object{&secret, &service, &binding, &rbacv1.Role{}, &corev1.ServiceAccount{}} {
		if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: items, Name: "web"}, object); err != nil {
			t.Error(err)
		}
	}
	if string(secret.Data["token"]) != "secret" || len(service.Spec.Ports) != 1 || len(binding.Subjects) != 1 {
		t.Errorf("restored were %v, %v, %v", secret.Data, service.Spec, binding.Subjects)
	}
	now := widget()
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
		t.Fatal(err)
	}
	if color, _, _ := unstructured.NestedString(now.Object, "spec", "color"); color != "blue" {
		t.Errorf("the Widget is %v", now.Object)
	}
}

// checkRestoredPod waits until the pod runs again, whose init container "verify" has compared what "fill" has found.
func (c *cluster) checkRestoredPod(t *testing.T, a *app) {
	t.Helper()
	pod := c.awaitShopPod(t, a)
	if pod.UID == a.pod.UID {
		t.Errorf("%s is the pod of before", pod.Name)
	}
	if said := lastWords(pod); !strings.Contains(said, "found /volumes/"+a.volumes[0]) || strings.Contains(said, "made") || strings.Contains(said, "left") {
		t.Errorf("pod %s did not find its data, and nothing else: %q", pod.Name, said)
	}
}

// restartPod kills a restored pod, its sandbox included, as the start of its node does: kubelet runs all init containers again.
// restore-wait must find what it waits for, and what comes after it must not.
func (c *cluster) restartPod(t *testing.T, a *app) {
	t.Helper()
	before := c.awaitShopPod(t, a)
	if init := before.Status.InitContainerStatuses; len(init) == 0 || init[0].Name != "restore-wait" {
		t.Fatalf("pod %s/%s does not begin with restore-wait: %+v", before.Namespace, before.Name, init)
	}
	c.onNode(t, a.node, "reboot", string(before.UID))
	eventually(t, "kubelet has run the init container again", func(ctx context.Context) (bool, error) {
		var pod corev1.Pod
		err := c.client.Get(ctx, client.ObjectKeyFromObject(before), &pod)
		if err != nil || len(pod.Status.InitContainerStatuses) == 0 {
			return false, err
		}
		init := pod.Status.InitContainerStatuses[0]
		return init.ContainerID != before.Status.InitContainerStatuses[0].ContainerID && init.State.Terminated != nil, fmt.Errorf("%+v", init.State)
	})
	c.checkRestoredPod(t, a)
}

// checkCLI asks Velero's CLI about the restore.
func (c *cluster) checkCLI(t *testing.T) {
	t.Helper()
	described := c.velero(t, "restore", "describe", items, "--details")
	for _, want := range []string{
		"Completed", "Items restored:", items + "/db-0: local (size: ", ": disk (size: ", "v1/ConfigMap:", items + "/settings-000(created)",
	} {
		if !strings.Contains(described, want) {
			t.Errorf("velero restore describe does not say %q:\n%s", want, described)
		}
	}
	if strings.Contains(described, "error getting") {
		t.Errorf("velero restore describe cannot read all:\n%s", described)
	}
	if log := c.velero(t, "restore", "logs", items); !strings.Contains(log, "settings-000") {
		t.Errorf("velero restore logs does not name the items:\n%.4000s", log)
	}
	if list := c.velero(t, "backup", "describe", items); !strings.Contains(list, "Completed") {
		t.Errorf("velero backup describe says:\n%s", list)
	}
}

// checkPlugin asks our plugin about the restore, which gets the list of volumes as Velero's CLI does.
func (c *cluster) checkPlugin(t *testing.T, s *shop) {
	t.Helper()
	described := c.plimsoll(t, "describe", "restore", items)
	for _, want := range []string{
		"Completed", s.db.claim.Name, "PodVolumeRestore", "cache", "provisioned empty", "archive", "kept: it leads to the storage",
	} {
		if !strings.Contains(described, want) {
			t.Errorf("kubectl plimsoll describe does not say %q:\n%s", want, described)
		}
	}
}

// checkVolumeInfo reads what the bucket says of the volumes.
func (c *cluster) checkVolumeInfo(t *testing.T, s *shop) {
	t.Helper()
	object, err := c.storage(t).GetObject(t.Context(), bucket, path.Join("e2e", "restores", items, items+"-volumeinfo.json.gz"), minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer object.Close()
	unpacked, err := gzip.NewReader(object)
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := volumeinfo.DecodeRestore(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]volumeinfo.RestoredVolume{}
	for _, v := range volumes {
		got[v.Typed.PVCName] = v.Typed
		checkSchema(t, v.Content)
	}
	for claim, a := range map[string]*app{"": s.web, s.db.claim.Name: s.db} {
		v := got[claim]
		if v.RestoreMethod != volumeinfo.MethodPodVolumeRestore || v.PodVolume == nil || v.PodVolume.UploaderType != a.uploader ||
			v.PodVolume.Size < a.bytes || v.Result != volumeinfo.ResultSucceeded || (v.PVName == "") != (claim == "") {
			t.Errorf("the volume of %s is told as %+v", a.name, v)
		}
	}
	for claim, want := range map[string]volumeinfo.RestoredVolume{
		"cache":   {Outcome: volumeinfo.OutcomeEmpty, PVName: s.spare.volumeName()},
		"archive": {Outcome: volumeinfo.OutcomeKept, PVName: s.archive.volumeName()},
	} {
		if v := got[claim]; v.Outcome != want.Outcome || v.PVName != want.PVName || v.RestoreMethod != "" || v.Reason == "" {
			t.Errorf("the volume of %s is told as %+v", claim, v)
		}
	}
	var archive corev1.PersistentVolume
	if err := c.client.Get(t.Context(), types.NamespacedName{Name: s.archive.volumeName()}, &archive); err != nil {
		t.Fatal(err)
	}
	if archive.Spec.Local == nil || path.Base(archive.Spec.Local.Path) != s.archive.volumeName() {
		t.Errorf("the volume that was kept leads to %+v", archive.Spec.PersistentVolumeSource)
	}
}

// veleroKeys are what Velero 1.18 writes of a restored volume (docs/contracts/velero-restore.md 4.1). Our own begin with
// "plimsoll", or are those that Velero has in the list of a backup.
var veleroKeys = map[string][]string{
	"": {
		"pvcName", "pvcNamespace", "pvName", "restoreMethod", "snapshotDataMoved", "pvrInfo",
		"startTimestamp", "completionTimestamp", "result", "plimsollOutcome", "plimsollReason",
	},
	"pvrInfo": {"snapshotHandle", "size", "incrementalSize", "uploaderType", "volumeName", "podName", "podNamespace", "nodeName", "Phase"},
}

// checkSchema holds that an entry has Velero's keys, in Velero's casing, with the details that its CLI expects.
func checkSchema(t *testing.T, entry map[string]any) {
	t.Helper()
	if _, ok := entry["snapshotDataMoved"].(bool); !ok {
		t.Errorf("an entry does not say whether data was moved: %v", entry)
	}
	details, _ := entry["pvrInfo"].(map[string]any)
	if (entry["restoreMethod"] == volumeinfo.MethodPodVolumeRestore) != (details != nil) {
		t.Errorf("an entry's method and its details are not of one kind: %v", entry)
	}
	for level, object := range map[string]map[string]any{"": entry, "pvrInfo": details} {
		for key := range object {
			if !slices.Contains(veleroKeys[level], key) {
				t.Errorf("an entry has a key that Velero does not know, %q: %v", key, entry)
			}
		}
	}
}
