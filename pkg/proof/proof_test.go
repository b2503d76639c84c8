package proof_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

func day(n int) time.Time { return time.Date(2026, 11, n, 3, 0, 0, 0, time.UTC) }

func TestOf(t *testing.T) {
	t.Parallel()
	type found struct {
		on, backup int // days of November; on 0: not done
		result     v1alpha1.VolumeResult
		reason     v1alpha1.Reason
	}
	const (
		verified, mismatched, failed = v1alpha1.VolumeVerified, v1alpha1.VolumeMismatched, v1alpha1.VolumeFailed
		gone                         = v1alpha1.ReasonSnapshotNotFound
	)
	for name, test := range map[string]struct {
		found []found // in any order
		want  proof.Proof
	}{
		"nothing":                       {[]found{{0, 1, v1alpha1.VolumePending, ""}}, proof.Proof{}},
		"proven":                        {[]found{{2, 1, verified, ""}, {5, 4, verified, ""}, {3, 1, verified, ""}}, proof.Proof{Tried: day(5), Verified: day(5)}},
		"damaged":                       {[]found{{2, 1, verified, ""}, {3, 1, mismatched, ""}}, proof.Proof{Tried: day(3), Verified: day(2), Damaged: true}},
		"an older backup is proven":     {[]found{{3, 2, mismatched, ""}, {4, 1, verified, ""}}, proof.Proof{Tried: day(4), Verified: day(4), Damaged: true}},
		"a newer backup is proven":      {[]found{{3, 2, mismatched, ""}, {4, 3, verified, ""}}, proof.Proof{Tried: day(4), Verified: day(4)}},
		"it is whole again":             {[]found{{4, 2, verified, ""}, {3, 2, mismatched, ""}}, proof.Proof{Tried: day(4), Verified: day(4)}},
		"an older one is damaged later": {[]found{{3, 2, verified, ""}, {4, 1, mismatched, ""}}, proof.Proof{Tried: day(4), Verified: day(3), Damaged: true}},
		"a newer one at once":           {[]found{{3, 2, mismatched, ""}, {3, 3, verified, ""}}, proof.Proof{Tried: day(3), Verified: day(3)}},
		"both at once":                  {[]found{{3, 2, verified, ""}, {3, 2, mismatched, ""}}, proof.Proof{Tried: day(3), Verified: day(3), Damaged: true}},
		"the snapshot is lost":          {[]found{{3, 2, verified, ""}, {4, 2, failed, gone}}, proof.Proof{Tried: day(4), Failed: true, Verified: day(3), Damaged: true}},
		"no answer":                     {[]found{{3, 2, verified, ""}, {4, 2, failed, v1alpha1.ReasonDataPath}}, proof.Proof{Tried: day(4), Failed: true, Verified: day(3)}},
		"an answer again":               {[]found{{5, 2, verified, ""}, {4, 2, failed, v1alpha1.ReasonDataPath}}, proof.Proof{Tried: day(5), Verified: day(5)}},
		"an answer of an old one":       {[]found{{4, 2, failed, v1alpha1.ReasonDataPath}, {5, 1, verified, ""}}, proof.Proof{Tried: day(5), Failed: true, Verified: day(5)}},
		"damage, then no answer":        {[]found{{3, 2, mismatched, ""}, {4, 2, failed, v1alpha1.ReasonDataPath}}, proof.Proof{Tried: day(4), Failed: true, Damaged: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tasks []v1alpha1.RepositoryTask
			task := func(location, uploader string, f found) {
				v := v1alpha1.RepositoryTaskVolume{
					Namespace: "shop", Pod: "db-0", Volume: "data", BackupStorageLocation: location, Uploader: uploader, Result: f.result, Reason: f.reason,
					BackupTimestamp: new(metav1.NewTime(day(f.backup))),
				}
				if f.on > 0 {
					v.CompletionTimestamp = new(metav1.NewTime(day(f.on)))
				}
				tasks = append(tasks, v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{v}}})
			}
			for _, f := range test.found {
				task("near", "", f)
			}
			task("far", "restic", found{9, 9, verified, ""}) // proves nothing of the other location
			task("near", "kopia", found{9, 9, verified, ""}) // nor of the other repository
			got := proof.Of(tasks)[proof.Volume{Namespace: "shop", Pod: "db-0", Name: "data", StorageLocation: "near", Uploader: "restic"}]
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreUnexported(proof.Proof{})); diff != "" { // TestOldBackupProvesNoNewerOne has these
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestClaimMadeAgain: what is read of a claim that has the names of another one ends no damage of that one's backups, and its samples count for themselves.
func TestClaimMadeAgain(t *testing.T) {
	t.Parallel()
	entry := func(claim string, on, backup int, result v1alpha1.VolumeResult, part int32) v1alpha1.RepositoryTask {
		v := v1alpha1.RepositoryTaskVolume{
			Namespace: "shop", Pod: "db-0", Volume: "data", ClaimUID: claim, BackupStorageLocation: "near", Uploader: "kopia", Result: result, SamplePart: part,
			BackupTimestamp: new(metav1.NewTime(day(backup))), CompletionTimestamp: new(metav1.NewTime(day(on))),
		}
		if part > 0 {
			v.SampleParts = 3
		}
		return v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{v}}}
	}
	const verified, sampled, mismatched = v1alpha1.VolumeVerified, v1alpha1.VolumeSampled, v1alpha1.VolumeMismatched
	for name, test := range map[string]struct {
		tasks       []v1alpha1.RepositoryTask
		damaged     bool
		read, parts int
		next        int32 // of claim b
	}{
		"the same claim":           {[]v1alpha1.RepositoryTask{entry("b", 2, 1, mismatched, 0), entry("b", 4, 3, verified, 0)}, false, 0, 0, 1},
		"a new one":                {[]v1alpha1.RepositoryTask{entry("a", 2, 1, mismatched, 0), entry("b", 4, 3, verified, 0)}, true, 0, 0, 1},
		"damage of one not known":  {[]v1alpha1.RepositoryTask{entry("", 2, 1, mismatched, 0), entry("b", 4, 3, verified, 0)}, false, 0, 0, 1},
		"proof of one not known":   {[]v1alpha1.RepositoryTask{entry("a", 2, 1, mismatched, 0), entry("", 4, 3, verified, 0)}, false, 0, 0, 1},
		"samples of the other one": {[]v1alpha1.RepositoryTask{entry("a", 2, 1, sampled, 1), entry("a", 3, 2, sampled, 2), entry("b", 5, 4, sampled, 3)}, false, 1, 3, 1},
		"of one not known":         {[]v1alpha1.RepositoryTask{entry("", 2, 1, sampled, 1), entry("", 3, 2, sampled, 2), entry("b", 5, 4, sampled, 3)}, false, 3, 3, 1},
		"of the other one only":    {[]v1alpha1.RepositoryTask{entry("a", 2, 1, sampled, 1), entry("b", 5, 4, verified, 0)}, false, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := entry("b", 6, 5, v1alpha1.VolumePending, 1).Status.Volumes[0]
			p := proof.Of(test.tasks)[proof.VolumeIn(&next)]
			if p.Damaged != test.damaged || p.PartsRead != test.read || p.Parts != test.parts {
				t.Errorf("%+v", p)
			}
			if got := proof.ResultsOf(test.tasks).NextPart(&next); got != test.next {
				t.Errorf("the next part is %d, want %d", got, test.next)
			}
		})
	}
}

func TestNewest(t *testing.T) {
	t.Parallel()
	backup := func(name, namespace, location string, on int, phase velerov1.PodVolumeBackupPhase) velerov1.PodVolumeBackup {
		return velerov1.PodVolumeBackup{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(day(on).Add(-time.Hour))},
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
	if got := proof.Since(all)[proof.Volume{Namespace: "shop", Pod: "db-0", Name: "data", StorageLocation: "near", Uploader: "restic"}]; !got.Equal(day(2)) {
		t.Error(got)
	}
	all[0].Status.StartTimestamp = new(metav1.NewTime(day(2).AddDate(1, 0, 0))) // by a clock that was a year ahead
	if got := names(&v1alpha1.PodVolumeSelector{Namespace: "shop"}); got != "shop-1 shop-3" {
		t.Error(got)
	}
	created := day(2).Add(-time.Hour)
	if got := proof.BackupTime(&all[0]); !got.Equal(created) {
		t.Error(got)
	}
	all[0].Status.StartTimestamp = nil
	if got := proof.BackupTime(&all[0]); !got.Equal(created) {
		t.Error(got)
	}
}

// TestClockBehind: a backup whose node's clock was behind is newer than one that was made before, so it is the newest one, and a proof of the other says
// nothing of it. Of records that a server has synced only the nodes' clocks are known: all of them are created at the end, in any order.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	made := func(name string, created, recorded time.Time, generation int64) velerov1.PodVolumeBackup {
		pvb := velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created), Generation: generation}}
		pvb.Status.Phase, pvb.Status.StartTimestamp = velerov1.PodVolumeBackupPhaseCompleted, new(metav1.NewTime(recorded))
		return pvb
	}
	result := func(on int, pvb *velerov1.PodVolumeBackup, result v1alpha1.VolumeResult) v1alpha1.RepositoryTaskVolume {
		return v1alpha1.RepositoryTaskVolume{Result: result, CompletionTimestamp: new(metav1.NewTime(day(on))), BackupTimestamp: new(metav1.NewTime(proof.BackupTime(pvb)))}
	}
	for name, behind := range map[string]time.Time{"hours": day(1).Add(-3 * time.Hour), "years": time.Unix(0, 0)} {
		old, late := made("old", day(1).Add(-time.Minute), day(1), 5), made("new", day(2), behind, 5)
		if newest := proof.Newest([]velerov1.PodVolumeBackup{old, late}, nil); newest[0].Name != "new" || !proof.BackupTime(&late).Equal(day(2)) {
			t.Errorf("%s: the newest is %s, and the new one of %s", name, newest[0].Name, proof.BackupTime(&late))
		}
		var task v1alpha1.RepositoryTask
		task.Status.Volumes = []v1alpha1.RepositoryTaskVolume{result(3, &late, v1alpha1.VolumeMismatched), result(4, &old, v1alpha1.VolumeVerified)}
		p := proof.Of([]v1alpha1.RepositoryTask{task})[proof.Volume{Uploader: "restic"}]
		if asOf := p.AsOf(proof.BackupTime(&late)); !p.Damaged || asOf.After(day(1)) {
			t.Errorf("%s: after a proof of the old one, damaged: %t, and proven as of %s", name, p.Damaged, asOf)
		}
		late.Annotations = map[string]string{v1alpha1.AnnotationDamaged: day(3).Format(time.RFC3339)}
		old.Annotations = map[string]string{v1alpha1.AnnotationVerified: day(4).Format(time.RFC3339)}
		if !proof.IsMarkedDamaged(&late, []velerov1.PodVolumeBackup{old, late}) {
			t.Errorf("%s: a proof of the old one has cleared the note of damage", name)
		}
	}
	synced := []velerov1.PodVolumeBackup{made("new", day(8), day(2), 1), made("old", day(8).Add(time.Second), day(1), 1)}
	if newest := proof.Newest(synced, nil); newest[0].Name != "new" || !proof.BackupTime(&newest[0]).Equal(day(2)) {
		t.Errorf("of synced ones, the newest is %s", newest[0].Name)
	}
}

// TestOldBackupProvesNoNewerOne: a verification of one and the same backup, repeated for ever, proves what the volume was then.
func TestOldBackupProvesNoNewerOne(t *testing.T) {
	t.Parallel()
	january := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	june, december := january.AddDate(0, 5, 0), january.AddDate(0, 11, 0)
	result := func(at, backup time.Time) v1alpha1.RepositoryTaskVolume {
		return v1alpha1.RepositoryTaskVolume{
			Namespace: "shop", Pod: "db-0", Volume: "data", Result: v1alpha1.VolumeVerified, CompletionTimestamp: new(metav1.NewTime(at)), BackupTimestamp: new(metav1.NewTime(backup)),
		}
	}
	for name, test := range map[string]struct {
		results []v1alpha1.RepositoryTaskVolume
		newest  time.Time
		want    time.Time
	}{
		"an old one, and there are newer ones": {[]v1alpha1.RepositoryTaskVolume{result(january.Add(time.Hour), january), result(june, january)}, june, january},
		"an old one that is the newest":        {[]v1alpha1.RepositoryTaskVolume{result(june, january)}, january, june},
		"a new one, and then an old one":       {[]v1alpha1.RepositoryTaskVolume{result(june, june.Add(-time.Hour)), result(june.Add(time.Hour), january)}, june, june.Add(-time.Hour)},
		"the newest, and an old one later":     {[]v1alpha1.RepositoryTaskVolume{result(june, june), result(december, january)}, june, june},
		"the newest that is left":              {[]v1alpha1.RepositoryTaskVolume{result(june, june), result(december, january)}, january, december},
		"none":                                 {nil, june, time.Time{}},
	} {
		task := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify}}
		task.Status.Volumes = test.results
		var p proof.Proof
		for _, found := range proof.Of([]v1alpha1.RepositoryTask{task}) {
			p = found
		}
		if got := p.AsOf(test.newest); !got.Equal(test.want) {
			t.Errorf("%s: proven as of %s, want %s", name, got, test.want)
		}
	}
}

// TestFailureOfANewerBackup: a read of an older backup does not end it, as long as the newer one is there.
func TestFailureOfANewerBackup(t *testing.T) {
	t.Parallel()
	result := func(on, backup int, result v1alpha1.VolumeResult) v1alpha1.RepositoryTaskVolume {
		return v1alpha1.RepositoryTaskVolume{Result: result, CompletionTimestamp: new(metav1.NewTime(day(on))), BackupTimestamp: new(metav1.NewTime(day(backup)))}
	}
	var task v1alpha1.RepositoryTask
	task.Status.Volumes = []v1alpha1.RepositoryTaskVolume{result(3, 2, v1alpha1.VolumeFailed), result(4, 1, v1alpha1.VolumeVerified)}
	p := proof.Of([]v1alpha1.RepositoryTask{task})[proof.Volume{Uploader: "restic"}]
	for newest, want := range map[int]bool{1: false, 2: true, 5: true} {
		if got := p.WithNewest(day(newest)).Failed; got != want {
			t.Errorf("while the newest is of day %d: %v, want %v", newest, got, want)
		}
	}
}
