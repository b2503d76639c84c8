package velero_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// TestBackupOfACluster reads a backup of what a real API server has, as each version writes it.
func TestBackupOfACluster(t *testing.T) {
	t.Parallel()
	e := testenv.New(t, testenv.Options{})
	shop, disk := e.Meta("web"), "disk-"+e.Namespace
	e.Create(
		&corev1.ConfigMap{ObjectMeta: shop, Data: map[string]string{"key": "value"}},
		&rbacv1.Role{ObjectMeta: shop},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: disk}, Spec: volumeSpec()},
		&corev1.PersistentVolumeClaim{ObjectMeta: shop, Spec: claimSpec(disk)},
	)
	items, err := velero.Collect(t.Context(), e.Config, e.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []velero.Version{velero.V1_0, velero.V1_6, velero.V1_14, velero.V1_18} {
		t.Run(version.String(), func(t *testing.T) {
			t.Parallel()
			checkArchive(t, e.Namespace, version, items)
		})
	}
}

func checkArchive(t *testing.T, shop string, version velero.Version, items []velero.Item) {
	t.Helper()
	stored := velero.Stored{Version: version, Backup: &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "b1"}}, Items: items}
	files, err := stored.Files()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := backupstore.OpenArchive(t.Context(), "archive", bytes.NewReader(files["backups/b1/b1.tar.gz"]), backupstore.ArchiveOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	var got []string
	for item := range archive.Items() {
		object, err := archive.Object(item)
		if err != nil {
			t.Fatal(err)
		}
		if object.GetUID() == "" {
			t.Errorf("%s is not as the API server had it", item)
		}
		got = append(got, fmt.Sprintf("%s %s/%s", item.Resource, item.Namespace, item.Name))
	}
	got = slices.DeleteFunc(got, func(name string) bool {
		return name == "configmaps "+shop+"/kube-root-ca.crt" || name == "serviceaccounts "+shop+"/default"
	})
	want := []string{
		"configmaps " + shop + "/web", "namespaces /" + shop, "persistentvolumeclaims " + shop + "/web", "persistentvolumes /disk-" + shop,
		"roles.rbac.authorization.k8s.io " + shop + "/web",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	if preferred := archive.Resources()[0].PreferredVersion; (preferred == "v1") != (version > velero.V1_0) {
		t.Errorf("preferred version %q", preferred)
	}
	if _, there := files["backups/b1/b1-volumeinfo.json.gz"]; there != (version >= velero.V1_14) {
		t.Error("volumeinfo.json.gz is there only since 1.13")
	}
}

func volumeSpec() corev1.PersistentVolumeSpec {
	return corev1.PersistentVolumeSpec{
		Capacity: size(), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}},
	}
}

func claimSpec(volume string) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: size()},
	}
}

func size() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
}
