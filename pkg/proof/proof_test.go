package proof_test

import (
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

func day(n int) time.Time { return time.Date(2026, 11, n, 3, 0, 0, 0, time.UTC) }

func TestOf(t *testing.T) {
	t.Parallel()
	var tasks []v1alpha1.RepositoryTask
	task := func(on int, location string, result v1alpha1.VolumeResult) {
		v := v1alpha1.RepositoryTaskVolume{Namespace: "shop", Pod: "db-0", Volume: "data", StorageLocation: location, Result: result}
		if on > 0 {
			v.CompletionTimestamp = new(metav1.NewTime(day(on)))
		}
		tasks = append(tasks, v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{v}}})
	}
	// Tasks come in any order.
	task(5, "near", v1alpha1.VolumeMismatched)
	task(4, "near", v1alpha1.VolumeVerified)
	task(3, "near", v1alpha1.VolumeVerified)
	task(6, "near", v1alpha1.VolumeFailed)
	task(0, "near", v1alpha1.VolumePending)
	task(8, "far", v1alpha1.VolumeVerified)
	task(7, "far", v1alpha1.VolumeMismatched)
	task(9, "new", v1alpha1.VolumeFailed)
	got := proof.Of(tasks)
	for location, want := range map[string]proof.Proof{
		"near": {Tried: day(6), Verified: day(4), Found: day(5), Damaged: true},
		"far":  {Tried: day(8), Verified: day(8), Found: day(8)},
		"new":  {Tried: day(9)},
	} {
		if p := got[proof.Volume{Namespace: "shop", Pod: "db-0", Name: "data", StorageLocation: location}]; p != want {
			t.Errorf("%s: %+v, want %+v", location, p, want)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d volumes", len(got))
	}
}

func TestNewest(t *testing.T) {
	t.Parallel()
	backup := func(name, namespace, location string, on int, phase velerov1.PodVolumeBackupPhase) velerov1.PodVolumeBackup {
		return velerov1.PodVolumeBackup{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(day(1))},
			Spec:       velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: namespace, Name: "db-0"}, Volume: "data", BackupStorageLocation: location},
			Status:     velerov1.PodVolumeBackupStatus{Phase: phase, StartTimestamp: new(metav1.NewTime(day(on)))},
		}
	}
	completed := velerov1.PodVolumeBackupPhaseCompleted
	all := []velerov1.PodVolumeBackup{
		backup("shop-2", "shop", "near", 2, completed), backup("shop-3", "shop", "near", 3, completed), backup("shop-4", "shop", "near", 4, velerov1.PodVolumeBackupPhaseFailed),
		backup("shop-5", "shop", "near", 5, velerov1.PodVolumeBackupPhaseInProgress), backup("shop-1", "shop", "far", 1, completed), backup("bank-1", "bank", "near", 1, completed),
	}
	names := func(selector *v1alpha1.PodVolumeSelector) string {
		var names []string
		for _, b := range proof.Newest(all, selector) {
			names = append(names, b.Name)
		}
		return strings.Join(names, " ")
	}
	if got := names(nil); got != "bank-1 shop-1 shop-3" {
		t.Error(got)
	}
	if got := names(&v1alpha1.PodVolumeSelector{Namespace: "shop"}); got != "shop-1 shop-3" {
		t.Error(got)
	}
	undated := all[:1]
	undated[0].Status.StartTimestamp = nil
	if got := proof.BackupTime(&undated[0]); !got.Equal(day(1)) {
		t.Error(got)
	}
}
