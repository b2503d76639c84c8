package main

import (
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// TestVolumeLatest restores the newest backup of a claim and of a pod's volume, among others that are not.
func TestVolumeLatest(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.claim("data-db-0")
	pod, _ := c.waitingPod() // of claim data-db-1
	begin := time.Now().Add(-time.Hour)
	backup := func(name string, minute int, change func(*velerov1.PodVolumeBackup)) {
		b := &velerov1.PodVolumeBackup{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Annotations: map[string]string{pvcNameAnnotation: "data-db-0"}},
			Spec: velerov1.PodVolumeBackupSpec{
				Node: c.node.Name, Pod: corev1.ObjectReference{Namespace: c.Namespace, Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: uploaderRestic,
			},
			Status: velerov1.PodVolumeBackupStatus{
				Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: "id-of-" + name, CompletionTimestamp: new(metav1.NewTime(begin.Add(time.Duration(minute) * time.Minute))),
			},
		}
		if change != nil {
			change(b)
		}
		c.Create(b)
	}
	ofPod := func(b *velerov1.PodVolumeBackup) { b.Annotations, b.Spec.Pod.Name = nil, pod.Name }
	backup("a-newest", 20, func(b *velerov1.PodVolumeBackup) {
		b.Annotations[v1alpha1.AnnotationProgress], b.Status.Message = `{"state": "Completed", "errors": 3}`, "saved without 3 files"
	})
	backup("z-older", 10, nil)
	backup("with-kopia", 5, func(b *velerov1.PodVolumeBackup) { b.Spec.UploaderType = uploaderKopia })
	backup("of-shop", 15, func(b *velerov1.PodVolumeBackup) { b.Spec.Pod.Namespace = "shop" })
	backup("failed", 30, func(b *velerov1.PodVolumeBackup) { b.Status.Phase = velerov1.PodVolumeBackupPhaseFailed })
	backup("running", 0, func(b *velerov1.PodVolumeBackup) {
		b.Status = velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseInProgress}
	})
	backup("of-another-claim", 40, func(b *velerov1.PodVolumeBackup) { b.Annotations[pvcNameAnnotation] = "data-db-7" })
	backup("of-the-pod", 25, ofPod)
	backup("of-the-pod-older", 24, ofPod)
	backup("of-another-volume", 50, func(b *velerov1.PodVolumeBackup) { ofPod(b); b.Spec.Volume = "logs" })

	backup("damaged", 60, func(b *velerov1.PodVolumeBackup) {
		b.Annotations = map[string]string{pvcNameAnnotation: "data-db-8", v1alpha1.AnnotationDamaged: "2026-11-25T03:00:00Z"}
	})
	c.claim("data-db-8")
	if _, errOut, code := c.run("volume", "restore", "--from", "latest", "--no-wait", "--into-claim", c.Namespace+"/data-db-8", "--image", "agent"); code == 0 ||
		!strings.Contains(errOut, "PodVolumeBackup damaged is damaged, or its repository, as was found at 2026-11-25T03:00:00Z") {
		t.Errorf("of a damaged backup: exit code %d: %s", code, errOut)
	}
	if out, _, _ := c.run("volume", "list"); !strings.Contains(out, "Completed, damaged") {
		t.Errorf("the list says %s", out)
	}

	intoClaim := []string{"--into-claim", c.Namespace + "/data-db-0", "--image", "agent"}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{c.Namespace + "/" + pod.Name, "data"}, "of-the-pod"},
		{append(intoClaim, "--uploader", uploaderKopia), "with-kopia"},
		{append(intoClaim, "--source-namespace", "shop"), "of-shop"},
		{intoClaim, "a-newest"},
	} {
		out, errOut, code := c.run(append([]string{"volume", "restore", "--from", "latest", "--no-wait"}, test.args...)...)
		if code != 0 || !strings.Contains(errOut, "The newest is PodVolumeBackup "+test.want+", ") {
			t.Errorf("%q: exit code %d, want %s: %s%s", test.args, code, test.want, out, errOut)
			continue
		}
		if lacks := strings.Contains(errOut, "it lacks files: saved without 3 files"); lacks != (test.want == "a-newest") {
			t.Errorf("%q: of a backup that lacks files, or of one that does not, it says %s", test.args, errOut)
		}
		var made velerov1.PodVolumeRestoreList
		if err := c.Client.List(t.Context(), &made, client.InNamespace(c.Namespace)); err != nil || len(made.Items) != 1 {
			t.Fatalf("%q: %d PodVolumeRestores, %v", test.args, len(made.Items), err)
		}
		if got := made.Items[0].Spec.SnapshotID; got != "id-of-"+test.want {
			t.Errorf("%q: restores %s, want that of %s", test.args, got, test.want)
		}
		for _, gone := range []client.Object{&velerov1.PodVolumeRestore{}, &corev1.Pod{}} { // so that the claim is free again
			if err := c.Client.DeleteAllOf(t.Context(), gone, client.InNamespace(c.Namespace), client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestBackupsThatLackFiles has what the list and a restore say of them.
func TestBackupsThatLackFiles(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		phase         velerov1.PodVolumeBackupPhase
		told, message string
		listed        string
		remark        string
	}{
		"whole":          {velerov1.PodVolumeBackupPhaseCompleted, `{"state": "Completed"}`, "", "Completed", ""},
		"one file":       {velerov1.PodVolumeBackupPhaseCompleted, `{"state": "Completed", "errors": 1}`, "without a", "Completed, 1 error", "PodVolumeBackup b has completed, but it lacks files: without a"},
		"no message":     {velerov1.PodVolumeBackupPhaseCompleted, `{"state": "Completed", "errors": 2}`, "", "Completed, 2 errors", "PodVolumeBackup b has completed, but it lacks files: 2 could not be read"},
		"only a message": {velerov1.PodVolumeBackupPhaseCompleted, "", "odd", "Completed, with a message", "PodVolumeBackup b has completed, and says: odd"},
		"failed":         {velerov1.PodVolumeBackupPhaseFailed, "", "no room", "Failed", "PodVolumeBackup b is Failed, and its snapshot may be incomplete: no room"},
	} {
		b := &velerov1.PodVolumeBackup{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: map[string]string{v1alpha1.AnnotationProgress: test.told}},
			Status:     velerov1.PodVolumeBackupStatus{Phase: test.phase, Message: test.message},
		}
		if got := remarkOn(b); got != test.remark {
			t.Errorf("%s: a restore says %q, want %q", name, got, test.remark)
		}
		var list strings.Builder
		if err := printStored(&list, []storedVolume{{Volume: describe.OfPodVolumeBackup(b)}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(list.String(), "  "+test.listed+"  ") {
			t.Errorf("%s: listed is %s", name, list.String())
		}
	}
}
