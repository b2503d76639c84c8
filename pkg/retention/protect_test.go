package retention

import (
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// madeAgain are records of two nights of a claim, and of the last two of one that was made again under its name.
func madeAgain() []velerov1.PodVolumeBackup {
	all := nights(4)
	for i := range 2 {
		all[i].Labels[velerov1.PVCUIDLabel] = "again"
	}
	return all
}

// foundDamage is a task that has found damage in the last backup of a claim before it was made again.
func foundDamage(name, claim string) v1alpha1.RepositoryTask {
	return v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{{
		Namespace: "shop", Pod: "db-0", Volume: "data", ClaimUID: claim, BackupStorageLocation: "default", Uploader: "kopia", PodVolumeBackup: "night-002",
		Result: v1alpha1.VolumeMismatched, BackupTimestamp: new(metav1.NewTime(now().AddDate(0, 0, -3))), CompletionTimestamp: new(metav1.NewTime(now().Add(-2 * time.Hour))),
	}}}}
}

// TestDamageOfClaimMadeAgain: damage keeps the backups of its claim, which no proof of the claim that has its names ends, and says how it ends. Those of
// the other claim are kept only where it is not known of which one the damage is.
func TestDamageOfClaimMadeAgain(t *testing.T) {
	t.Parallel()
	proven := foundDamage("proven", "again")
	v := &proven.Status.Volumes[0]
	v.Result, v.BackupTimestamp, v.CompletionTimestamp = v1alpha1.VolumeVerified, new(metav1.NewTime(now().Add(-time.Hour))), new(metav1.NewTime(now()))
	noted := func(r *Records) {
		r.Backups[2].Annotations = map[string]string{v1alpha1.AnnotationDamaged: "2026-02-27T00:00:00Z"}
	}
	const old, all = "night-002 night-003", "night-000 night-001 night-002 night-003"
	for name, test := range map[string]struct {
		change func(*Records)
		kept   string
		says   string
	}{
		"a task has found it": {
			func(r *Records) { r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", "claim")} }, old, "delete them, and RepositoryTask found",
		},
		"the other claim is proven": {
			func(r *Records) { r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", "claim"), proven} }, old,
			"damage was found in PodVolumeBackup night-002, and no backup of the claim with UID claim that is as new was proven since. If the backups of that claim are of no use any more, delete them, and RepositoryTask found",
		},
		"two tasks have": {
			func(r *Records) {
				r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", "claim"), foundDamage("again", "claim")}
			}, old, "delete them, and RepositoryTask found and 1 other that has found damage in them",
		},
		"it is noted":       {noted, old, "claim with UID claim that is as new was proven since. If the backups of that claim are of no use any more, delete them"},
		"noted, and a task": {func(r *Records) { noted(r); r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", "claim")} }, old, "and RepositoryTask found"},
		"pods of the old claim have other names": {func(r *Records) {
			r.Tasks, r.Backups[3].Spec.Pod.Name = []v1alpha1.RepositoryTask{foundDamage("found", "claim")}, "db-1"
		}, old, ""},
		"it is not known of which claim": {func(r *Records) { r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", "")} }, all, "no backup of the volume that is as new was proven since. If the backups of that volume are of no use any more, delete them, and RepositoryTask found"},
		"nor of which claim a backup is": {func(r *Records) {
			r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", "claim")}
			r.Backups[1].Labels = nil
		}, "night-001 " + old, ""},
		"nor, and its pod has another name": {func(r *Records) {
			r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", "")}
			r.Backups[1].Spec.Pod.Name = "db-1"
		}, all, ""},
		"nor, and the other claim was proven": {func(r *Records) { r.Tasks = []v1alpha1.RepositoryTask{foundDamage("found", ""), proven} }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			records := &Records{Backups: madeAgain()}
			test.change(records)
			protection := NewProtection(records)
			var kept []string
			for i := range records.Backups {
				rule, why := protection.Of(&records.Backups[i])
				if rule == RuleDamaged {
					kept = append(kept, records.Backups[i].Name)
					if !strings.Contains(why, test.says) {
						t.Errorf("%q does not say %q", why, test.says)
					}
				}
			}
			if !slices.Equal(kept, strings.Fields(test.kept)) {
				t.Errorf("%v are kept, want %s", kept, test.kept)
			}
		})
	}
}

// TestDamageOfOrphans: orphans of a namespace are kept while a backup in it is damaged, and it is said how that ends.
func TestDamageOfOrphans(t *testing.T) {
	t.Parallel()
	needs := &Needs{Protection: NewProtection(&Records{Tasks: []v1alpha1.RepositoryTask{foundDamage("found", "claim")}}), Now: now()}
	for namespace, want := range map[string]string{
		"shop": "damage was found in PodVolumeBackup night-002, and no backup of the claim with UID claim that is as new was proven since. If the backups of that claim are of no use any more, delete them, and RepositoryTask found",
		"bank": "",
	} {
		key := v1alpha1.RepositoryKey{BackupStorageLocation: "default", VolumeNamespace: namespace, Uploader: "restic"}
		s := uploader.RepositorySnapshot{ID: "1", Time: now().Add(-OrphanAge), Backup: "gone", Volume: uploader.SnapshotVolume{Namespace: namespace, Pod: "web-0", Name: "data"}}
		if _, got := needs.Of(key, &s); got != want {
			t.Errorf("%s: %q", namespace, got)
		}
	}
}
