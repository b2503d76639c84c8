package retention

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// now is the night of a Sunday.
func now() time.Time { return time.Date(2026, 3, 1, 4, 0, 0, 0, time.UTC) }

// record is one of 'volume backup' that began at a time.
func record(name string, at time.Time) velerov1.PodVolumeBackup {
	return velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at), Labels: map[string]string{velerov1.PVCUIDLabel: "claim"}},
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia",
			Tags: map[string]string{"ns": "shop", "pod": "db-0", "volume": "data"},
		},
		Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: "id-of-" + name, StartTimestamp: new(metav1.NewTime(at))},
	}
}

// nights are records of n nights, the last one first. Each has an id of its own from its first digits on.
func nights(n int) []velerov1.PodVolumeBackup {
	var all []velerov1.PodVolumeBackup
	for i := range n {
		pvb := record(fmt.Sprintf("night-%03d", i), now().Add(-time.Hour).AddDate(0, 0, -i))
		pvb.Status.SnapshotID = fmt.Sprintf("%08x", i)
		all = append(all, pvb)
	}
	return all
}

// results are the results of a plan by the names of the records, with the rules.
func results(plan *v1alpha1.RepositoryRetention) map[string]string {
	got := map[string]string{}
	for _, v := range plan.Volumes {
		for _, s := range v.Snapshots {
			got[s.PodVolumeBackup] = strings.TrimSpace(string(s.Result) + " " + strings.Join(s.Rules, " "))
		}
	}
	return got
}

func plan(records *Records, policy v1alpha1.RetentionPolicy) *v1alpha1.RepositoryRetention {
	return Plan(records, Request{Policy: &policy, Now: now()})
}

// TestPolicy: which nights of 100 each rule keeps, counted by hand. The newest is of Sunday, 1 March.
func TestPolicy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy v1alpha1.RetentionPolicy
		want   []int // days before the newest
	}{
		"last":    {v1alpha1.RetentionPolicy{Last: 3}, []int{0, 1, 2}},
		"daily":   {v1alpha1.RetentionPolicy{Daily: 2}, []int{0, 1}},
		"hourly":  {v1alpha1.RetentionPolicy{Hourly: 2}, []int{0, 1}}, // of the last hours that have one
		"weekly":  {v1alpha1.RetentionPolicy{Weekly: 3}, []int{0, 7, 14}},
		"monthly": {v1alpha1.RetentionPolicy{Monthly: 3}, []int{0, 1, 29}}, // 1 March, 28 February, 31 January
		"yearly":  {v1alpha1.RetentionPolicy{Yearly: 5}, []int{0, 60}},     // 31 December
		"within":  {v1alpha1.RetentionPolicy{Within: &metav1.Duration{Duration: 49 * time.Hour}}, []int{0, 1, 2}},
		"several": {v1alpha1.RetentionPolicy{Last: 1, Daily: 3, Weekly: 2, Monthly: 2}, []int{0, 1, 2, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := results(plan(&Records{Backups: nights(100)}, test.policy))
			for day := range 100 {
				result := got[fmt.Sprintf("night-%03d", day)]
				if strings.HasPrefix(result, "Kept ") != slices.Contains(test.want, day) {
					t.Errorf("day %d: %s", day, result)
				}
			}
		})
	}
	got := results(plan(&Records{Backups: nights(10)}, v1alpha1.RetentionPolicy{Last: 1, Daily: 3, Weekly: 2}))
	if got["night-000"] != "Kept Last Daily Weekly" || got["night-007"] != "Kept Weekly" || got["night-008"] != "Pending" {
		t.Errorf("%v", got)
	}
}

// TestVolumes: the policy is for each claim in each repository, and for the volume of each pod without one.
func TestVolumes(t *testing.T) {
	t.Parallel()
	var all []velerov1.PodVolumeBackup
	add := func(name string, change func(*velerov1.PodVolumeBackup)) {
		for i := range 2 {
			pvb := record(fmt.Sprintf("%s-%d", name, i), now().AddDate(0, 0, -i))
			pvb.Status.SnapshotID = fmt.Sprintf("%08x", len(all))
			change(&pvb)
			all = append(all, pvb)
		}
	}
	add("same", func(*velerov1.PodVolumeBackup) {})
	add("anew", func(pvb *velerov1.PodVolumeBackup) { pvb.Labels[velerov1.PVCUIDLabel] = "claim of the same name" })
	add("elsewhere", func(pvb *velerov1.PodVolumeBackup) { pvb.Spec.BackupStorageLocation = "second" })
	add("restic", func(pvb *velerov1.PodVolumeBackup) { pvb.Spec.UploaderType = "" })
	add("no-claim", func(pvb *velerov1.PodVolumeBackup) { pvb.Labels = nil })
	add("no-claim-1", func(pvb *velerov1.PodVolumeBackup) { pvb.Labels, pvb.Spec.Volume = nil, "other" })
	made := plan(&Records{Backups: all}, v1alpha1.RetentionPolicy{Last: 1})
	got := results(made)
	for name, result := range got {
		if want := map[bool]string{true: "Kept Last", false: "Pending"}[strings.HasSuffix(name, "-0")]; result != want {
			t.Errorf("%s: %s", name, result)
		}
	}
	if len(got) != 12 || len(made.Volumes) != 6 || made.Unexplained != 6 {
		t.Errorf("%d records of %d volumes, %d unexplained", len(got), len(made.Volumes), made.Unexplained)
	}
	selected := Plan(&Records{Backups: all}, Request{
		Policy: &v1alpha1.RetentionPolicy{Last: 1}, Volume: &v1alpha1.PodVolumeSelector{Namespace: "shop", Pod: "db-0", Volume: "other"}, StorageLocation: "default", Now: now(),
	})
	if got := results(selected); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// TestNotOurs: a record with any trace of a Backup, or that has not completed, is not looked at.
func TestNotOurs(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*velerov1.PodVolumeBackup){
		"owner":       func(pvb *velerov1.PodVolumeBackup) { pvb.OwnerReferences = []metav1.OwnerReference{{Kind: "Backup"}} },
		"label":       func(pvb *velerov1.PodVolumeBackup) { pvb.Labels[velerov1.BackupNameLabel] = "" },
		"UID":         func(pvb *velerov1.PodVolumeBackup) { pvb.Labels[velerov1.BackupUIDLabel] = "u" },
		"tag":         func(pvb *velerov1.PodVolumeBackup) { pvb.Spec.Tags["backup"] = "nightly" },
		"tag of UID":  func(pvb *velerov1.PodVolumeBackup) { pvb.Spec.Tags["backup-uid"] = "u" },
		"running":     func(pvb *velerov1.PodVolumeBackup) { pvb.Status.Phase = velerov1.PodVolumeBackupPhaseInProgress },
		"failed":      func(pvb *velerov1.PodVolumeBackup) { pvb.Status.Phase = velerov1.PodVolumeBackupPhaseFailed },
		"new":         func(pvb *velerov1.PodVolumeBackup) { pvb.Status.Phase = "" },
		"no snapshot": func(pvb *velerov1.PodVolumeBackup) { pvb.Status.SnapshotID = "" },
		"deleted":     func(pvb *velerov1.PodVolumeBackup) { pvb.DeletionTimestamp = new(metav1.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := nights(3)
			change(&all[1])
			got := results(plan(&Records{Backups: all}, v1alpha1.RetentionPolicy{Last: 1}))
			if _, has := got["night-001"]; has || len(got) != 2 || got["night-002"] != "Pending" {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestProtection: what something else needs is kept, with the reason, and the others go.
func TestProtection(t *testing.T) {
	t.Parallel()
	damage := v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{{
		Namespace: "shop", Pod: "db-0", Volume: "data", BackupStorageLocation: "default", Result: v1alpha1.VolumeMismatched, CompletionTimestamp: new(metav1.NewTime(now())),
	}}}}
	for name, test := range map[string]struct {
		change func(*Records)
		want   string // of the second night; the third and the fourth go
		all    string // of them, if not
	}{
		"nothing":  {func(*Records) {}, "Pending", ""},
		"keep":     {func(r *Records) { r.Backups[1].Annotations = map[string]string{v1alpha1.AnnotationKeep: "true"} }, "Kept Keep", ""},
		"not keep": {func(r *Records) { r.Backups[1].Annotations = map[string]string{v1alpha1.AnnotationKeep: "false"} }, "Pending", ""},
		"restore": {func(r *Records) {
			r.Restores = []velerov1.PodVolumeRestore{{Spec: velerov1.PodVolumeRestoreSpec{SnapshotID: "00000001aaaa"}}}
			r.Restores[0].Name = "r"
		}, "Kept InUse", ""},
		"restore of paths": {func(r *Records) {
			r.Restores = []velerov1.PodVolumeRestore{{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: velerov1.PodVolumeRestoreSpec{SnapshotID: v1alpha1.SnapshotIDPathsPrefix + "00000001aaaa"}}}
		}, "Kept InUse", ""},
		"ended restore": {func(r *Records) {
			r.Restores = []velerov1.PodVolumeRestore{{Spec: velerov1.PodVolumeRestoreSpec{SnapshotID: "00000001"}, Status: velerov1.PodVolumeRestoreStatus{Phase: velerov1.PodVolumeRestorePhaseCompleted}}}
		}, "Pending", ""},
		"task": {func(r *Records) {
			r.Tasks = []v1alpha1.RepositoryTask{{ObjectMeta: metav1.ObjectMeta{Name: "verify"}, Spec: v1alpha1.RepositoryTaskSpec{PodVolumeBackup: "night-001"}}}
		}, "Kept InUse", ""},
		"files": {func(r *Records) {
			r.Files = []v1alpha1.FileRequest{{ObjectMeta: metav1.ObjectMeta{Name: "f"}, Spec: v1alpha1.FileRequestSpec{Other: &v1alpha1.FileSelection{PodVolumeBackup: "night-001"}}}}
		}, "Kept InUse", ""},
		"a Backup's record of the same snapshot": {func(r *Records) {
			other := record("velero", now())
			other.OwnerReferences, other.Status.SnapshotID = []metav1.OwnerReference{{Kind: "Backup"}}, "00000001"+strings.Repeat("f", 56)
			r.Backups = append(r.Backups, other)
		}, "Kept Shared", ""},
		"a damaged backup of the volume": {func(r *Records) { r.Tasks = []v1alpha1.RepositoryTask{damage} }, "Kept Damaged", "Kept Damaged"},
		"and one of kopia": {func(r *Records) {
			r.Tasks = []v1alpha1.RepositoryTask{*damage.DeepCopy()}
			r.Tasks[0].Status.Volumes[0].Uploader = "kopia"
		}, "Kept Damaged", "Kept Damaged"},
		"a damaged backup of the claim in a pod of another name": {func(r *Records) {
			r.Tasks = []v1alpha1.RepositoryTask{*damage.DeepCopy()}
			r.Tasks[0].Status.Volumes[0].Pod = "db-0-anew"
			r.Backups[0].Spec.Pod.Name = "db-0-anew"
		}, "Kept Damaged", "Kept Damaged"},
		"damage is noted on a backup whose task is deleted": {func(r *Records) {
			r.Backups[2].Annotations = map[string]string{v1alpha1.AnnotationDamaged: "2026-11-25T00:00:00Z"}
		}, "Kept Damaged", "Kept Damaged"},
		"and a newer one was proven since": {func(r *Records) {
			r.Backups[2].Annotations = map[string]string{v1alpha1.AnnotationDamaged: "2026-11-25T00:00:00Z"}
			r.Backups[0].Annotations = map[string]string{v1alpha1.AnnotationVerified: "2026-11-25T00:00:01Z"}
		}, "Pending", ""},
		"a damaged repository": {func(r *Records) { r.DamagedRepository = func(*velerov1.PodVolumeBackup) bool { return true } }, "Kept Damaged", "Kept Damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			records := &Records{Backups: nights(4)}
			test.change(records)
			got := results(plan(records, v1alpha1.RetentionPolicy{Last: 1}))
			if test.all == "" {
				test.all = "Pending"
			}
			if got["night-001"] != test.want || got["night-002"] != test.all || got["night-003"] != test.all {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestClocks: a time in the future pushes nothing out, and the record that was created last stays, whatever its node's clock said.
func TestClocks(t *testing.T) {
	t.Parallel()
	all := nights(4)
	all[0].Status.StartTimestamp = new(metav1.NewTime(now().AddDate(10, 0, 0)))
	got := results(plan(&Records{Backups: all}, v1alpha1.RetentionPolicy{Within: &metav1.Duration{Duration: 25 * time.Hour}}))
	if got["night-000"] != "Kept InFuture" || got["night-001"] != "Kept Within" || got["night-002"] != "Kept Within" || got["night-003"] != "Pending" {
		t.Errorf("%v", got)
	}
	all = nights(4)
	all[0].Status.StartTimestamp = new(metav1.NewTime(time.Unix(0, 0)))
	got = results(plan(&Records{Backups: all}, v1alpha1.RetentionPolicy{Last: 1}))
	if got["night-000"] != "Kept Newest" || got["night-001"] != "Kept Last" || got["night-002"] != "Pending" {
		t.Errorf("%v", got)
	}
}

// TestNewestWhole: backups that lack files do not push out the last one that has all.
func TestNewestWhole(t *testing.T) {
	t.Parallel()
	all := nights(5)
	for i := range 3 {
		all[i].Annotations = map[string]string{v1alpha1.AnnotationProgress: `{"state":"Completed","errors":2}`}
	}
	all[1].Annotations[v1alpha1.AnnotationProgress] = `{"state":"Completed","reason":"VolumeBecameEmpty"}`
	all[2].Annotations[v1alpha1.AnnotationProgress] = `{"state":"Completed","reason":"VanishedFiles","vanished":400}`
	got := results(plan(&Records{Backups: all}, v1alpha1.RetentionPolicy{Last: 2}))
	if got["night-001"] != "Kept Last" || got["night-002"] != "Pending" || got["night-003"] != "Kept NewestWhole" || got["night-004"] != "Pending" {
		t.Errorf("%v", got)
	}
}

// TestInterrupted: what an earlier task has begun to forget may be gone, so it does not count among those that are kept.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	all := nights(4)
	all[1].Annotations = map[string]string{v1alpha1.AnnotationForgetting: "task"}
	got := results(plan(&Records{Backups: all}, v1alpha1.RetentionPolicy{Last: 2}))
	if got["night-001"] != "Kept Interrupted" || got["night-002"] != "Kept Last" || got["night-003"] != "Pending" {
		t.Errorf("%v", got)
	}
}

// TestGuard: new backups explain what goes where the same policy was carried out before, and nothing else does.
func TestGuard(t *testing.T) {
	t.Parallel()
	policy := v1alpha1.RetentionPolicy{Last: 3}
	before := plan(&Records{Backups: nights(10)[2:]}, policy)
	task := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Keep: &policy, Apply: true}, Status: v1alpha1.RepositoryTaskStatus{Retention: before}}
	task.Status.Phase = v1alpha1.PhaseCompleted
	ended := func(results ...v1alpha1.RepositoryResult) func(*v1alpha1.RepositoryTask) {
		return func(t *v1alpha1.RepositoryTask) {
			t.Status.Phase = v1alpha1.PhaseFailed
			for _, result := range results {
				t.Status.Repositories = append(t.Status.Repositories, v1alpha1.RepositoryTaskRepository{Result: result})
			}
			snapshots := t.Status.Retention.Volumes[0].Snapshots
			for i := range snapshots {
				if snapshots[i].Result == v1alpha1.RetentionPending && results[0] == v1alpha1.RepositoryForgotten {
					snapshots[i].Result = v1alpha1.RetentionForgotten
				}
			}
		}
	}
	for name, test := range map[string]struct {
		nights int
		change func(*v1alpha1.RepositoryTask)
		want   int32
	}{
		"as many as are new":       {5, func(*v1alpha1.RepositoryTask) {}, 0},
		"one more":                 {6, func(*v1alpha1.RepositoryTask) {}, 1},
		"another policy":           {5, func(t *v1alpha1.RepositoryTask) { t.Spec.Keep = &v1alpha1.RetentionPolicy{Last: 4} }, 2},
		"a task that has failed":   {5, func(t *v1alpha1.RepositoryTask) { t.Status.Phase = v1alpha1.PhaseFailed }, 2},
		"a task that only planned": {5, func(t *v1alpha1.RepositoryTask) { t.Spec.Apply = false }, 2},
		"another volume":           {5, func(t *v1alpha1.RepositoryTask) { t.Status.Retention = nil }, 2},
		"one that was refused":     {5, ended(v1alpha1.RepositoryPending), 2},
		"done, but for another":    {5, ended(v1alpha1.RepositoryForgotten, v1alpha1.RepositoryFailed), 0},
		"one more then":            {6, ended(v1alpha1.RepositoryForgotten, v1alpha1.RepositoryFailed), 1},
		"what it failed to do":     {10, ended(v1alpha1.RepositoryFailed), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			earlier := *task.DeepCopy()
			test.change(&earlier)
			got := plan(&Records{Backups: nights(test.nights), Tasks: []v1alpha1.RepositoryTask{earlier}}, policy)
			if got.Unexplained != test.want {
				t.Errorf("%d unexplained, want %d", got.Unexplained, test.want)
			}
		})
	}
}

// TestGuardOfUnlisted: what no task has listed explains something only if it was made since the last task that would have listed it, whatever its pod, its
// node's clock and the record's own age.
func TestGuardOfUnlisted(t *testing.T) {
	t.Parallel()
	policy := v1alpha1.RetentionPolicy{Daily: 7}
	begun := now().AddDate(0, 0, -1) // an hour after the second night
	selectors := map[string]*v1alpha1.PodVolumeSelector{"": nil, "db-0": {Namespace: "shop", Pod: "db-0"}, "db-1": {Namespace: "shop", Pod: "db-1"}}
	task := func(on time.Time, pod string, backups ...velerov1.PodVolumeBackup) v1alpha1.RepositoryTask {
		task := v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(on)}}
		task.Spec = v1alpha1.RepositoryTaskSpec{Keep: &policy, Apply: true, Volume: selectors[pod]}
		task.Status.Phase, task.Status.CompletionTimestamp = v1alpha1.PhaseCompleted, new(metav1.NewTime(on))
		task.Status.Retention = Plan(&Records{Backups: backups}, Request{Policy: &policy, Volume: task.Spec.Volume, Now: on})
		return task
	}
	all := nights(40)
	of := func(from, to int, change func(*velerov1.PodVolumeBackup)) (changed []velerov1.PodVolumeBackup) {
		for i := range all[from:to] {
			pvb := *all[from+i].DeepCopy()
			change(&pvb)
			changed = append(changed, pvb)
		}
		return changed
	}
	inDB1 := func(pvb *velerov1.PodVolumeBackup) { pvb.Spec.Pod.Name = "db-1" }
	copied := func(pvb *velerov1.PodVolumeBackup) { pvb.CreationTimestamp = metav1.NewTime(now().Add(-time.Minute)) }
	running := func(pvb *velerov1.PodVolumeBackup) { // while the task was
		pvb.CreationTimestamp = metav1.NewTime(begun.Add(-time.Minute))
		pvb.Status.StartTimestamp, pvb.Status.CompletionTimestamp = &pvb.CreationTimestamp, new(metav1.NewTime(begun.Add(time.Hour)))
	}
	behind := func(pvb *velerov1.PodVolumeBackup) {
		pvb.CreationTimestamp = metav1.NewTime(begun.Add(time.Minute))
		pvb.Status.StartTimestamp = new(metav1.NewTime(begun.Add(-2 * time.Hour)))
	}
	both := slices.Concat[[]velerov1.PodVolumeBackup]
	ahead := record("ahead", begun.AddDate(1, 0, 0))
	ahead.Status.SnapshotID = "ahead"
	for name, test := range map[string]struct {
		tasks []v1alpha1.RepositoryTask
		now   []velerov1.PodVolumeBackup
		want  int32
	}{
		"as many as are new":                     {[]v1alpha1.RepositoryTask{task(begun, "", all[1:8]...)}, all[:8], 0},
		"older ones in another pod":              {[]v1alpha1.RepositoryTask{task(begun, "db-0", all[1:8]...)}, both(all[1:8], of(8, 38, inDB1)), 30},
		"and a new one in the same":              {[]v1alpha1.RepositoryTask{task(begun, "db-0", all[1:8]...)}, both(all[:8], of(8, 38, inDB1)), 30},
		"newer than the task for that pod":       {[]v1alpha1.RepositoryTask{task(begun, "db-0", all[1:2]...), task(begun.AddDate(0, 0, -3), "db-1", of(4, 11, inDB1)...)}, of(2, 11, inDB1), 0},
		"older ones that nobody has listed":      {[]v1alpha1.RepositoryTask{task(begun, "", all[1:8]...)}, all[1:38], 30},
		"older ones whose records are copies":    {[]v1alpha1.RepositoryTask{task(begun, "", all[1:8]...)}, both(all[1:8], of(8, 38, copied)), 29},
		"new ones whose records are copies":      {[]v1alpha1.RepositoryTask{task(begun, "", all[1:8]...)}, both(of(0, 1, copied), all[1:8]), 0},
		"one that ran while the task did":        {[]v1alpha1.RepositoryTask{task(begun, "", all[2:9]...)}, both(of(0, 1, running), all[2:9]), 0},
		"one of a clock that is behind":          {[]v1alpha1.RepositoryTask{task(begun, "", all[1:8]...)}, both(of(0, 1, behind), all[1:8]), 0},
		"after one of a clock that was ahead":    {[]v1alpha1.RepositoryTask{task(begun, "", append(all[1:8:8], ahead)...)}, all[:8], 0},
		"of a volume that no task has ever seen": {[]v1alpha1.RepositoryTask{task(begun, "", of(1, 8, func(pvb *velerov1.PodVolumeBackup) { pvb.Labels = nil })...)}, all[:8], 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := plan(&Records{Backups: test.now, Tasks: test.tasks}, policy); got.Unexplained != test.want {
				t.Errorf("%d unexplained, want %d: %v", got.Unexplained, test.want, results(got))
			}
		})
	}
}

// TestShortened: backups that come faster than before explain nothing once the last ones reach back less than half as far as they have since an
// acknowledgement, and nothing else is kept of these days.
func TestShortened(t *testing.T) {
	t.Parallel()
	all := nights(12)
	kept := func(keep v1alpha1.RetentionPolicy, acknowledge string, day int, backups ...velerov1.PodVolumeBackup) v1alpha1.RepositoryTask {
		task := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Keep: &keep, Apply: true, Acknowledge: acknowledge}}
		task.Status.Phase, task.Status.CompletionTimestamp = v1alpha1.PhaseCompleted, new(metav1.NewTime(now().AddDate(0, 0, day)))
		task.Status.Retention = plan(&Records{Backups: backups}, keep)
		return task
	}
	hourly := func(n int) []velerov1.PodVolumeBackup { // since the last night but two
		var fast []velerov1.PodVolumeBackup
		for i := range n {
			fast = append(fast, record(fmt.Sprintf("fast-%d", i), now().AddDate(0, 0, -2).Add(time.Duration(i)*time.Hour)))
		}
		return fast
	}
	pinned := *all[10].DeepCopy()
	pinned.Annotations = map[string]string{v1alpha1.AnnotationKeep: "true"}
	last, weekly, daily := v1alpha1.RetentionPolicy{Last: 4}, v1alpha1.RetentionPolicy{Last: 4, Weekly: 2}, v1alpha1.RetentionPolicy{Last: 4, Daily: 4}
	days, hours, both := v1alpha1.RetentionPolicy{Daily: 2}, v1alpha1.RetentionPolicy{Hourly: 4}, v1alpha1.RetentionPolicy{Hourly: 4, Daily: 4}
	monday := now().AddDate(0, 0, -6).Truncate(24 * time.Hour)
	worked := []velerov1.PodVolumeBackup{record("friday", monday.Add(-54*time.Hour))} // every six hours, but not at the weekend
	for i := range 4 {
		worked = slices.Insert(worked, 0, record(fmt.Sprintf("monday-%d", i), monday.Add(time.Duration(i)*6*time.Hour)))
	}
	paused := slices.Concat(all[4:6], all[10:12])
	for name, test := range map[string]struct {
		policy v1alpha1.RetentionPolicy
		tasks  []v1alpha1.RepositoryTask
		now    []velerov1.PodVolumeBackup
		want   string
	}{
		"as fast as before":        {last, []v1alpha1.RepositoryTask{kept(last, "", -2, all[3:7]...)}, all[2:7], ""},
		"twice as fast":            {last, []v1alpha1.RepositoryTask{kept(last, "", -2, all[3:7]...)}, append(hourly(2), all[3:7]...), ""},
		"faster":                   {last, []v1alpha1.RepositoryTask{kept(last, "", -2, all[3:7]...)}, append(hourly(3), all[3:7]...), "Last"},
		"bit by bit":               {last, []v1alpha1.RepositoryTask{kept(last, "", -1, append(hourly(2), all[3:5]...)...), kept(last, "", -2, all[3:7]...)}, append(hourly(3), all[3:5]...), "Last"},
		"acknowledged meanwhile":   {last, []v1alpha1.RepositoryTask{kept(last, "wave", -1, append(hourly(2), all[3:6]...)...), kept(last, "", -2, all[3:7]...)}, append(hourly(3), all[3:5]...), ""},
		"of another volume":        {last, []v1alpha1.RepositoryTask{kept(last, "wave", -1, append(hourly(2), all[3:5]...)...), kept(last, "", -2, all[3:7]...)}, append(hourly(3), all[3:5]...), "Last"},
		"acknowledged at once":     {last, []v1alpha1.RepositoryTask{kept(last, "wave", -2, append(hourly(2), all[3:6]...)...), kept(last, "", -2, all[3:7]...)}, append(hourly(3), all[3:5]...), ""},
		"acknowledged before":      {last, []v1alpha1.RepositoryTask{kept(last, "", -1, all[3:7]...), kept(last, "wave", -2, all[5:9]...)}, append(hourly(3), all[3:7]...), "Last"},
		"another policy":           {last, []v1alpha1.RepositoryTask{kept(weekly, "", -2, all[3:7]...)}, append(hourly(3), all[3:7]...), ""},
		"weeks beside":             {weekly, []v1alpha1.RepositoryTask{kept(weekly, "", -2, all[3:12]...)}, append(hourly(3), all[3:12]...), "Last"},
		"days beside":              {daily, []v1alpha1.RepositoryTask{kept(daily, "", -2, all[3:12]...)}, append(hourly(3), all[3:12]...), ""},
		"hours of nights":          {hours, []v1alpha1.RepositoryTask{kept(hours, "", -2, all[3:7]...)}, append(hourly(3), all[3:7]...), "Hourly"},
		"days beside hours":        {both, []v1alpha1.RepositoryTask{kept(both, "", -2, all[3:12]...)}, append(hourly(3), all[3:12]...), ""},
		"after a weekend":          {last, []v1alpha1.RepositoryTask{kept(last, "", -2, worked[1:]...)}, worked, ""},
		"after a long pause":       {last, []v1alpha1.RepositoryTask{kept(last, "", -4, paused...)}, append(all[2:4:4], paused...), ""},
		"faster after a pause":     {last, []v1alpha1.RepositoryTask{kept(last, "", -2, append(all[3:5:5], all[9:11]...)...)}, append(hourly(3), append(all[3:5:5], all[9:11]...)...), "Last"},
		"the days move on":         {days, []v1alpha1.RepositoryTask{kept(days, "", -2, all[3:12]...)}, append(hourly(30), all[3:12]...), ""},
		"one that is pinned":       {last, []v1alpha1.RepositoryTask{kept(last, "", -2, append(all[3:7:7], pinned)...)}, append(hourly(3), append(all[3:7:7], pinned)...), "Last"},
		"nothing goes":             {last, []v1alpha1.RepositoryTask{kept(last, "", -2, all[3:7]...)}, hourly(4), ""},
		"tried out within an hour": {last, []v1alpha1.RepositoryTask{kept(last, "", -2, hourly(4)...)}, append(hourly(4), record("now", now().AddDate(0, 0, -2).Add(200*time.Minute))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := plan(&Records{Backups: test.now, Tasks: test.tasks}, test.policy)
			said := got.Volumes[0].Shortened
			if !strings.HasPrefix(said, strings.TrimSpace("rule "+test.want)) && test.want != "" || (said == "") != (test.want == "") {
				t.Errorf("%q, want %q", said, test.want)
			}
			pending := int32(0)
			for _, result := range results(got) {
				if result == string(v1alpha1.RetentionPending) {
					pending++
				}
			}
			if said != "" && (got.Unexplained != pending || pending == 0) {
				t.Errorf("%d of %d unexplained", got.Unexplained, pending)
			}
		})
	}
}

// TestWave: the name of a wave is that of exactly its snapshots.
func TestWave(t *testing.T) {
	t.Parallel()
	wave := func(n int, change func(*Records)) string {
		records := &Records{Backups: nights(n)}
		change(records)
		return plan(records, v1alpha1.RetentionPolicy{Last: 2}).Wave
	}
	same := func(*Records) {}
	first := wave(5, same)
	if first == "" || first != wave(5, func(r *Records) { slices.Reverse(r.Backups) }) || wave(2, same) != "" {
		t.Errorf("got %q", first)
	}
	for name, other := range map[string]string{
		"one more":         wave(6, same),
		"one less":         wave(4, same),
		"another snapshot": wave(5, func(r *Records) { r.Backups[4].Status.SnapshotID = "ffffffff" }),
		"another location": wave(5, func(r *Records) {
			for i := range r.Backups {
				r.Backups[i].Spec.BackupStorageLocation = "second"
			}
		}),
	} {
		if other == first {
			t.Errorf("%s: the same wave", name)
		}
	}
}
