package nodeagent

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// TestBackupAfterDamage: a task has found a backup of a claim damaged. A new backup takes over what is lost, and is not Completed for it, however many whole
// ones came between. Once the damaged ones are gone, none is read back any more.
func TestBackupAfterDamage(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for data, packs := range map[string]string{"restic": "data", "kopia": "p"} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			c.startAgent(nil, func(cfg *Config) {
				cfg.Uploaders = map[string]uploader.Uploader{"restic": c.newRestic(t), "kopia": c.newKopia(t)}
				cfg.Partial = 100 // for testSameNames
			})
			pod := c.pod("source", "data")
			file := filepath.Join(c.dir(pod, "data"), "file")
			write(t, file, incompressible(1))
			backupOf := func(claim string) podvolume.PodVolume {
				pvb := c.newBackup(pod, "data")
				if pvb.Spec.UploaderType = data; claim != "" {
					pvb.Labels[velerov1.PVCUIDLabel] = claim
				}
				c.Create(pvb)
				return c.end(pvb)
			}
			backup := func() podvolume.PodVolume { return backupOf("claim") }
			verified := func(pv podvolume.PodVolume) bool {
				return pv.Object.GetAnnotations()[v1alpha1.AnnotationVerified] != ""
			}

			first := backup()
			if first.Phase != podvolume.PhaseCompleted || verified(first) {
				t.Fatalf("the first backup is %s", describe([]podvolume.PodVolume{first}))
			}
			if _, _, err := tree.FlipLargest(filepath.Join(c.repos, data, c.Namespace), packs); err != nil {
				t.Fatal(err)
			}
			task := c.foundDamage(data)
			c.Delete(first.Object) // of what was found only the task knows
			second := backup()
			if status := second.Object.(*velerov1.PodVolumeBackup).Status; second.Phase != podvolume.PhaseFailed || status.SnapshotID != "" ||
				!strings.Contains(status.Message, "1 file of the new snapshot cannot be restored") || annotated(t, second).Reason != v1alpha1.ReasonReusedDamage {
				t.Errorf("with what is lost a backup is %+v", status)
			}

			c.Delete(task)
			if after := backup(); after.Phase != podvolume.PhaseFailed { // the second one has a note
				t.Errorf("without the task it is %s", describe([]podvolume.PodVolume{after}))
			}

			for _, claim := range []string{"restored", ""} { // restored into another claim, or into a volume without one
				if other := backupOf(claim); other.Phase != podvolume.PhaseFailed || annotated(t, other).Reason != v1alpha1.ReasonReusedDamage {
					t.Errorf("of claim %q it is %s", claim, describe([]podvolume.PodVolume{other}))
				}
			}

			write(t, file, incompressible(2))
			third := backup()
			if third.Phase != podvolume.PhaseCompleted || !verified(third) || !strings.Contains(third.Message, "read back") || third.TotalBytes != 1<<20 {
				t.Errorf("without it, it is %s", describe([]podvolume.PodVolume{third}))
			}
			write(t, file, incompressible(1)) // somebody brings the file back from elsewhere: the index still has its content
			if back := backup(); back.Phase != podvolume.PhaseFailed || annotated(t, back).Reason != v1alpha1.ReasonReusedDamage {
				t.Errorf("with what is lost once more, it is %s", describe([]podvolume.PodVolume{back}))
			}
			write(t, file, incompressible(3))
			var damaged velerov1.PodVolumeBackupList
			if err := c.Client.List(t.Context(), &damaged, client.InNamespace(c.Namespace), client.MatchingLabels{v1alpha1.LabelDamaged: "true"}); err != nil || len(damaged.Items) < 3 {
				t.Fatalf("%d backups are marked as damaged, %v", len(damaged.Items), err)
			}
			for i := range damaged.Items {
				c.Delete(&damaged.Items[i])
			}
			if data == "restic" {
				c.testOldRecord(backup, pod)
			}
			if data == "kopia" {
				c.testSameNames(backup, pod)
			}
			if last := backup(); last.Phase != podvolume.PhaseCompleted || verified(last) {
				t.Errorf("after the damaged ones are gone, it is %s", describe([]podvolume.PodVolume{last}))
			}
		})
	}
}

// testOldRecord: restic's records from before Velero 1.10 name no uploader.
func (c *cluster) testOldRecord(backup func() podvolume.PodVolume, pod *corev1.Pod) {
	c.t.Helper()
	old := c.newBackup(pod, "data")
	old.Name, old.Spec.UploaderType, old.Spec.Node, old.Status.Phase = "old", "", "another", velerov1.PodVolumeBackupPhaseCompleted
	old.Labels = map[string]string{v1alpha1.LabelDamaged: "true"}
	c.Create(old)
	if again := backup(); again.Object.GetAnnotations()[v1alpha1.AnnotationVerified] == "" {
		c.t.Errorf("beside a damaged record without an uploader it is not read back: %s", describe([]podvolume.PodVolume{again}))
	}
	c.Delete(old)
}

// testSameNames: kopia stores two names that are no UTF-8 as the same one, of which a restore writes one and fails. Read back, that is whole, and not proven.
func (c *cluster) testSameNames(backup func() podvolume.PodVolume, pod *corev1.Pod) {
	c.t.Helper()
	task := c.foundDamage("kopia")
	defer c.Delete(task)
	for _, name := range []string{"x\xff", "x\xfe"} {
		file := filepath.Join(c.dir(pod, "data"), name)
		write(c.t, file, name)
		defer os.Remove(file)
	}
	last := backup()
	if last.Phase != podvolume.PhaseCompleted || last.Object.GetAnnotations()[v1alpha1.AnnotationVerified] != "" || !strings.Contains(last.Message, "1 entry has the name of another one in the snapshot") {
		c.t.Errorf("of two names that become one, it is %s: %s", describe([]podvolume.PodVolume{last}), last.Message)
	}
}

// foundDamage makes a task that has found damage in the cluster's repository of a data path, and in others.
func (c *cluster) foundDamage(data string) *v1alpha1.RepositoryTask {
	c.t.Helper()
	task := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta("verify"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Latest: true}}
	task.Labels = map[string]string{v1alpha1.LabelDamaged: "true"}
	task.Annotations = map[string]string{v1alpha1.AnnotationDamagedRepositories: `[{"backupStorageLocation":"other","volumeNamespace":"` + c.Namespace + `","uploader":"` + data + `"},` +
		`{"backupStorageLocation":"default","volumeNamespace":"` + c.Namespace + `","uploader":"` + data + `"}]`}
	c.Create(task)
	return task
}

// incompressible returns 1 MiB that no other seed gives.
func incompressible(seed byte) string {
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(content) // never fails
	return string(content)
}
