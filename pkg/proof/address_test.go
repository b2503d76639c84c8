package proof_test

import (
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// tasksOf returns tasks with one result each.
func tasksOf(volumes ...v1alpha1.RepositoryTaskVolume) []v1alpha1.RepositoryTask {
	tasks := make([]v1alpha1.RepositoryTask, len(volumes))
	for i := range volumes {
		v := volumes[i]
		v.Namespace, v.Pod, v.Volume, v.BackupStorageLocation, v.Uploader = "shop", "db-0", "data", "near", "kopia"
		tasks[i].Status.Volumes = []v1alpha1.RepositoryTaskVolume{v}
	}
	return tasks
}

func foundAt(address string, on, backup int, result v1alpha1.VolumeResult, part int32) v1alpha1.RepositoryTaskVolume {
	v := v1alpha1.RepositoryTaskVolume{
		Address: address, Result: result, SamplePart: part, BackupTimestamp: new(metav1.NewTime(day(backup))), CompletionTimestamp: new(metav1.NewTime(day(on))),
	}
	if part > 0 {
		v.SampleParts = 3
	}
	return v
}

// TestAnotherAddress: a location was edited and leads to another bucket. What was found in the one before proves nothing of the one that is there now,
// nor does a proof there clear damage in the other one. Results of earlier versions have no address, and count for each.
func TestAnotherAddress(t *testing.T) {
	t.Parallel()
	const (
		verified, sampled, mismatched = v1alpha1.VolumeVerified, v1alpha1.VolumeSampled, v1alpha1.VolumeMismatched
		before, now, unknown          = "s3:https://s3/before/kopia/shop/", "s3:https://s3/now/kopia/shop/", ""
	)
	volume := proof.Volume{Namespace: "shop", Pod: "db-0", Name: "data", StorageLocation: "near", Uploader: "kopia"}
	for name, test := range map[string]struct {
		found    []v1alpha1.RepositoryTaskVolume
		verified int // a day; 0: never
		damaged  bool
		read     int
		next     int32 // part
	}{
		"samples of both":         {[]v1alpha1.RepositoryTaskVolume{foundAt(before, 2, 1, sampled, 1), foundAt(before, 3, 2, sampled, 2), foundAt(now, 4, 3, sampled, 3)}, 0, false, 1, 1},
		"samples of one":          {[]v1alpha1.RepositoryTaskVolume{foundAt(now, 2, 1, sampled, 1), foundAt(now, 3, 2, sampled, 2), foundAt(now, 4, 3, sampled, 3)}, 1, false, 3, 1},
		"samples without address": {[]v1alpha1.RepositoryTaskVolume{foundAt(unknown, 2, 1, sampled, 1), foundAt(unknown, 3, 2, sampled, 2), foundAt(now, 4, 3, sampled, 3)}, 1, false, 3, 1},
		"proven before":           {[]v1alpha1.RepositoryTaskVolume{foundAt(before, 2, 1, verified, 0), foundAt(now, 3, 2, v1alpha1.VolumeFailed, 0)}, 0, false, 0, 1},
		"proven by an old version": {
			[]v1alpha1.RepositoryTaskVolume{foundAt(unknown, 2, 1, verified, 0), foundAt(now, 3, 2, v1alpha1.VolumeFailed, 0)}, 2, false, 0, 1,
		},
		"proven in both":        {[]v1alpha1.RepositoryTaskVolume{foundAt(now, 2, 1, verified, 0), foundAt(before, 3, 2, verified, 0), foundAt(now, 4, 1, verified, 0)}, 4, false, 0, 2},
		"damage of the other":   {[]v1alpha1.RepositoryTaskVolume{foundAt(before, 2, 1, mismatched, 0), foundAt(now, 3, 2, verified, 0)}, 3, true, 0, 1},
		"damage of the same":    {[]v1alpha1.RepositoryTaskVolume{foundAt(now, 2, 1, mismatched, 0), foundAt(now, 3, 2, verified, 0)}, 3, false, 0, 1},
		"damage of an old one":  {[]v1alpha1.RepositoryTaskVolume{foundAt(unknown, 2, 1, mismatched, 0), foundAt(now, 3, 2, verified, 0)}, 3, false, 0, 1},
		"cleared where it was":  {[]v1alpha1.RepositoryTaskVolume{foundAt(before, 2, 1, mismatched, 0), foundAt(before, 3, 2, verified, 0), foundAt(now, 4, 3, verified, 0)}, 4, false, 0, 1},
		"it leads there again":  {[]v1alpha1.RepositoryTaskVolume{foundAt(now, 2, 1, verified, 0), foundAt(before, 3, 2, v1alpha1.VolumeFailed, 0), foundAt(now, 4, 3, v1alpha1.VolumeFailed, 0)}, 2, false, 0, 1},
		"without any addresses": {[]v1alpha1.RepositoryTaskVolume{foundAt(unknown, 2, 1, mismatched, 0), foundAt(unknown, 3, 2, verified, 0)}, 3, false, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tasks := tasksOf(test.found...)
			var want time.Time
			if test.verified > 0 {
				want = day(test.verified)
			}
			if p := proof.Of(tasks)[volume]; !p.Verified.Equal(want) || p.Damaged != test.damaged || p.PartsRead != test.read {
				t.Errorf("%+v, want verified %s, damaged %t, %d parts read", p, want, test.damaged, test.read)
			}
			if test.read == 0 {
				return
			}
			next := foundAt("", 0, 9, v1alpha1.VolumePending, 1)
			next.Namespace, next.Pod, next.Volume, next.BackupStorageLocation, next.Uploader = "shop", "db-0", "data", "near", "kopia"
			if part := proof.ResultsOf(tasks).NextPart(&next); part != test.next {
				t.Errorf("the next part is %d, want %d", part, test.next)
			}
		})
	}
}

// TestAnotherAddressOfTheRepository: that another volume, or the repository as a whole, was found elsewhere is known of all its volumes.
func TestAnotherAddressOfTheRepository(t *testing.T) {
	t.Parallel()
	volume := proof.Volume{Namespace: "shop", Pod: "db-0", Name: "data", StorageLocation: "near", Uploader: "kopia"}
	at := func(task v1alpha1.RepositoryTaskType, address string, on int, result v1alpha1.RepositoryResult) v1alpha1.RepositoryTask {
		checked := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: task}}
		checked.Status.Repositories = []v1alpha1.RepositoryTaskRepository{{
			BackupStorageLocation: "near", VolumeNamespace: "shop", Uploader: "kopia", Address: address, Result: result, CompletionTimestamp: new(metav1.NewTime(day(on))),
		}}
		return checked
	}
	newest := &velerov1.PodVolumeBackup{
		Spec:   velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "near", UploaderType: "kopia"},
		Status: velerov1.PodVolumeBackupStatus{SnapshotID: "aaaa", StartTimestamp: new(metav1.NewTime(day(1)))},
	}
	tasks := append(tasksOf(foundAt("before", 3, 1, v1alpha1.VolumeVerified, 0)), at(v1alpha1.TaskCheck, "before", 2, v1alpha1.RepositoryDamaged))
	if p := proof.FindingsOf(tasks, nil).Of(newest); p.Damaged || !p.Verified.Equal(day(3)) {
		t.Errorf("damage that a volume was read after: %+v", p)
	}
	tasks = append(tasks, at(v1alpha1.TaskUsage, "now", 4, v1alpha1.RepositoryMeasured))
	if p := proof.Of(tasks)[volume]; !p.Verified.IsZero() {
		t.Errorf("the location leads elsewhere, and the volume is proven still: %+v", p)
	}
	tasks = append(tasks, at(v1alpha1.TaskCheck, "now", 5, v1alpha1.RepositoryWhole), tasksOf(foundAt("now", 6, 1, v1alpha1.VolumeVerified, 0))[0])
	checks := proof.ChecksOf(tasks)[volume.Repository()]
	if p := proof.FindingsOf(tasks, nil).Of(newest); !p.Damaged || !p.Verified.Equal(day(6)) || !checks.Damaged() {
		t.Errorf("a check there clears damage of the other: %+v, %+v", p, checks)
	}
	if whole := checks.At("before").LastWhole(); !whole.IsZero() || !checks.At("now").LastWhole().Equal(day(5)) {
		t.Errorf("whole at %s", whole)
	}
	if found := new(metav1.NewTime(day(1))); checks.At("before").ProvenSince(found) || checks.At("now").ProvenSince(found) {
		t.Error("a check that reads no data has proven what is in the repository")
	}
}

// TestAddressOfAPlan: a task that was to remove orphans has the address of its plan, also if it has refused because the location leads elsewhere by now.
func TestAddressOfAPlan(t *testing.T) {
	t.Parallel()
	tasks := tasksOf(foundAt("/before", 2, 1, v1alpha1.VolumeVerified, 0), foundAt("/now", 3, 2, v1alpha1.VolumeFailed, 0))
	volume := proof.VolumeIn(&tasks[0].Status.Volumes[0])
	refused := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskForget, Orphans: v1alpha1.OrphansAll}}
	refused.Status.Repositories = []v1alpha1.RepositoryTaskRepository{{
		BackupStorageLocation: "near", VolumeNamespace: "shop", Uploader: "kopia", Result: v1alpha1.RepositoryFailed, Address: "/before", CompletionTimestamp: new(metav1.NewTime(day(4))),
	}}
	tasks = append(tasks, refused)
	if p := proof.Of(tasks)[volume]; !p.Verified.IsZero() {
		t.Errorf("what was proven at the address before counts again: %+v", p)
	}
}
