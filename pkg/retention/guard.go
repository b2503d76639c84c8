package retention

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// guard names the wave of deletions of a plan, and counts those that new backups do not explain.
//
// Where the same policy was carried out before, each backup that is new since then pushes at most one other out of each rule. Whatever
// is more than that has another cause, such as a policy that nobody has applied to the volume before, or a number too few in it.
func guard(plan *v1alpha1.RepositoryRetention, tasks []v1alpha1.RepositoryTask, policy *v1alpha1.RetentionPolicy) {
	before := newEarlier(tasks, policy)
	rules := len(rulesOf(policy))
	if policy.Within != nil {
		rules++
	}
	var wave []string
	for i := range plan.Volumes {
		v := &plan.Volumes[i]
		applied, added, removed := false, 0, 0
		for j := range v.Snapshots {
			s := &v.Snapshots[j]
			if before.seen[keyOf(s)] {
				applied = true
			} else {
				added++
			}
			if s.Result == v1alpha1.RetentionPending {
				if !before.approved[keyOf(s)] {
					removed++
				}
				wave = append(wave, strings.Join([]string{v.BackupStorageLocation, v.Namespace, v.Uploader, s.PodVolumeBackup, s.SnapshotID}, " "))
			}
		}
		explained := 0
		if applied {
			explained = added * rules
		}
		plan.Unexplained += int32(max(removed-explained, 0))
	}
	plan.Wave = waveOf(wave)
}

// waveOf returns a name that no other set of snapshots has; empty for none.
func waveOf(wave []string) string {
	if len(wave) == 0 {
		return ""
	}
	slices.Sort(wave)
	sum := sha256.Sum256([]byte(strings.Join(wave, "\n")))
	return hex.EncodeToString(sum[:8])
}

// earlier is what tasks have seen that carried the same policy out, by the names of PodVolumeBackups and of their snapshots.
type earlier struct {
	seen     map[string]bool
	approved map[string]bool // to be forgotten, which such a task has failed to do
}

func newEarlier(tasks []v1alpha1.RepositoryTask, policy *v1alpha1.RetentionPolicy) earlier {
	e := earlier{map[string]bool{}, map[string]bool{}}
	for i := range tasks {
		t := &tasks[i]
		if !t.Spec.Apply || t.Status.Retention == nil || !equality.Semantic.DeepEqual(t.Spec.Keep, policy) || !wasLetBegin(t) {
			continue
		}
		for _, v := range t.Status.Retention.Volumes {
			for j := range v.Snapshots {
				s := &v.Snapshots[j]
				e.seen[keyOf(s)] = true
				if s.Result == v1alpha1.RetentionPending && t.Status.Phase == v1alpha1.PhaseFailed {
					e.approved[keyOf(s)] = true
				}
			}
		}
	}
	return e
}

func keyOf(s *v1alpha1.RetentionSnapshot) string { return s.PodVolumeBackup + " " + s.SnapshotID }

// wasLetBegin reports whether new backups explained what the task was to forget, or somebody has acknowledged it. One that has failed in a
// repository that does not answer must not keep the next one from all the others.
func wasLetBegin(task *v1alpha1.RepositoryTask) bool {
	begun := slices.ContainsFunc(task.Status.Repositories, func(r v1alpha1.RepositoryTaskRepository) bool { return r.Result != v1alpha1.RepositoryPending })
	return task.Status.Phase == v1alpha1.PhaseCompleted || task.Status.Phase == v1alpha1.PhaseFailed && begun
}
