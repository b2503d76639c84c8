package main

import (
	"encoding/json"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// TestRepositoryVerifyRestoreTo creates tasks that restore, of a class by its name or of that of the claims, and refuses what would leave volumes
// behind. pkg/repositorytask has the tests of what such a task does.
func TestRepositoryVerifyRestoreTo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	retain := corev1.PersistentVolumeReclaimRetain
	fast, slow, kept := "fast-"+c.Namespace, "slow-"+c.Namespace, "kept-"+c.Namespace
	for _, name := range []string{fast, slow} {
		c.Create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com"})
	}
	c.Create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: kept}, Provisioner: "example.com", ReclaimPolicy: &retain})
	for claim, class := range map[string]string{"data-db-0": fast, "data-db-1": fast, "data-web-0": slow} {
		c.Create(&corev1.PersistentVolumeClaim{ObjectMeta: c.Meta(claim), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}})
	}
	backup := func(pod, claim string) {
		pvb := &velerov1.PodVolumeBackup{
			ObjectMeta: c.Meta(pod + "-1"), Spec: velerov1.PodVolumeBackupSpec{
				Pod: corev1.ObjectReference{Kind: "Pod", Namespace: c.Namespace, Name: pod}, Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia", Node: "n",
			},
			Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: strings.Repeat("a", 32)},
		}
		pvb.Labels, pvb.Annotations = map[string]string{velerov1.BackupNameLabel: "nightly"}, map[string]string{pvcNameAnnotation: claim}
		c.Create(pvb)
	}
	for pod, claim := range map[string]string{"db-0": "data-db-0", "db-1": "data-db-1", "web-0": "data-web-0", "gone-0": "data-gone-0", "bare-0": ""} {
		backup(pod, claim)
	}
	c.Create(&velerov1.Backup{ObjectMeta: c.Meta("nightly"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted}})

	for name, test := range map[string]struct {
		args  []string
		class string
		size  string
	}{
		"a class":            {[]string{"--backup", "nightly", "--restore-to", fast}, fast, ""},
		"a class and a size": {[]string{"--backup", "nightly", "--restore-to", fast, "--restore-size", "50Gi"}, fast, "50Gi"},
		"of one claim":       {[]string{"--from", "web-0-1", "--restore-to", "same"}, slow, ""},
		"of a backup's":      {[]string{"--backup", "nightly", "--volume", c.Namespace + "/db-0", "--restore-to=same"}, fast, ""},
		"of the latest":      {[]string{"--latest", "--volume", c.Namespace + "/db-1", "--restore-to=same"}, fast, ""},
	} {
		out, errOut, code := c.run(append([]string{"repository", "verify", "--no-wait", "-o", "json"}, test.args...)...)
		var task v1alpha1.RepositoryTask
		if err := json.Unmarshal([]byte(out), &task); err != nil || code != 0 {
			t.Errorf("%s: code %d, %v: %s%s", name, code, err, out, errOut)
			continue
		}
		target := task.Spec.RestoreTo
		if target == nil || target.StorageClassName != test.class || (target.Storage == nil) != (test.size == "") || target.Storage != nil && target.Storage.String() != test.size {
			t.Errorf("%s: %+v", name, target)
		}
	}
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no class of that name": {[]string{"--backup", "nightly", "--restore-to", "none"}, 1, `no StorageClass "none"`},
		"a class that retains":  {[]string{"--backup", "nightly", "--restore-to", kept}, 1, "reclaimPolicy Retain"},
		"several classes":       {[]string{"--backup", "nightly", "--restore-to", "same"}, 1, "name a StorageClass"},
		"a claim that is gone":  {[]string{"--from", "gone-0-1", "--restore-to", "same"}, 1, `"data-gone-0" not found`},
		"no claim":              {[]string{"--from", "bare-0-1", "--restore-to", "same"}, 1, "had no PersistentVolumeClaim"},
		"an empty class":        {[]string{"--backup", "nightly", "--restore-to="}, 2, "--restore-to is empty"},
		"a size alone":          {[]string{"--backup", "nightly", "--restore-size", "1Gi"}, 2, "--restore-size needs --restore-to"},
		"a strange size":        {[]string{"--backup", "nightly", "--restore-to", fast, "--restore-size", "much"}, 2, "is not a size"},
	} {
		if _, errOut, code := c.run(append([]string{"repository", "verify", "--no-wait"}, test.args...)...); code != test.code || !strings.Contains(errOut, test.want) {
			t.Errorf("%s: code %d: %s", name, code, errOut)
		}
	}
	if _, errOut, code := c.run("repository", "verify", "--latest", "--restore-to", "same", "--schedule", "0 5 * * 6"); code != 2 || !strings.Contains(errOut, "name a StorageClass") {
		t.Errorf("same on a schedule: code %d: %s", code, errOut)
	}
	out, errOut, code := c.run("repository", "verify", "--latest", "--restore-to", fast, "--restore-size", "2Gi", "--schedule", "0 5 * * 6", "--image", "plimsoll:test")
	if code != 0 || !strings.Contains(errOut, "A Job starts one pod only") || !strings.Contains(out, "backoffLimit: 0") || !strings.Contains(out, "name: plimsoll-verify-latest-restore\n") || !strings.Contains(out, "- --restore-to="+fast+"\n") || !strings.Contains(out, "- --restore-size=2Gi\n") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
}
