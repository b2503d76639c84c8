package retention

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// setWave names the wave of deletions of a plan, and counts those that new backups do not explain.
//
// Where the same policy was carried out before, each backup that is new since then pushes at most one other out of each rule. Whatever
// is more than that has another cause, such as a policy that nobody has applied to the volume before, a number too few in it, or old backups that no task
// has listed, such as those of another pod with the same claim. And where the new ones come so fast that the last ones reach back less than half as far as
// before, they explain nothing.
func setWave(plan *v1alpha1.RepositoryRetention, records *Records, policy *v1alpha1.RetentionPolicy) {
	before := newEarlier(records.Tasks, policy)
	byName := map[string]*velerov1.PodVolumeBackup{}
	for i := range records.Backups {
		byName[records.Backups[i].Name] = &records.Backups[i]
	}
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
			} else if before.isNew(byName[s.PodVolumeBackup]) {
				added++
			}
			if s.Result == v1alpha1.RetentionPending {
				if !before.approved[keyOf(s)] {
					removed++
				}
				wave = append(wave, nameIn(v, s))
			}
		}
		explained := 0
		if applied {
			explained = added * rules
		}
		if removed > 0 {
			v.Shortened = before.shortened(v)
		}
		if v.Shortened != "" {
			explained = 0
		}
		plan.Unexplained += int32(max(removed-explained, 0))
	}
	plan.Wave = waveOf(wave)
}

// nameIn names a snapshot among those of all repositories.
func nameIn(v *v1alpha1.RetentionVolume, s *v1alpha1.RetentionSnapshot) string {
	return strings.Join([]string{v.BackupStorageLocation, v.Namespace, v.Uploader, s.PodVolumeBackup, s.SnapshotID}, " ")
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

// reached is how far a rule has reached back.
type reached struct {
	rule string
	back time.Duration
}

// earlier is what tasks have seen that carried the same policy out, by the names of PodVolumeBackups and of their snapshots.
type earlier struct {
	seen     map[string]bool
	approved map[string]bool    // to be forgotten, which such a task has failed to do
	reached  map[volume]reached // since a wave of the volume was acknowledged
	listings map[volume][]listing
}

// listing is what a task has listed of a volume.
type listing struct {
	task   *v1alpha1.RepositoryTask
	newest time.Time // of the backups
}

func newEarlier(tasks []v1alpha1.RepositoryTask, policy *v1alpha1.RetentionPolicy) earlier {
	e := earlier{map[string]bool{}, map[string]bool{}, map[volume]reached{}, map[volume][]listing{}}
	tasks = slices.DeleteFunc(slices.Clone(tasks), func(t v1alpha1.RepositoryTask) bool {
		return !t.Spec.Apply || t.Status.Retention == nil || !equality.Semantic.DeepEqual(t.Spec.Keep, policy) || !wasLetBegin(&t)
	})
	slices.SortFunc(tasks, byEnd)
	for i := range tasks {
		t := &tasks[i]
		for k := range t.Status.Retention.Volumes {
			v := &t.Status.Retention.Volumes[k]
			if t.Spec.Acknowledge != "" && slices.ContainsFunc(v.Snapshots, wasToGo) { // what was acknowledged is what counts from then on
				delete(e.reached, volumeIn(v))
			}
			for _, rule := range numbered {
				if back := steadyReach(v, rule); back > e.reached[volumeIn(v)].back {
					e.reached[volumeIn(v)] = reached{rule, back}
				}
			}
			e.listings[volumeIn(v)] = append(e.listings[volumeIn(v)], listing{t, newestIn(v)})
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

// newestIn returns when the newest backup began that was not in the future.
func newestIn(v *v1alpha1.RetentionVolume) (newest time.Time) {
	for i := range v.Snapshots {
		if s := &v.Snapshots[i]; s.BackupTimestamp.After(newest) && !slices.Contains(s.Rules, RuleInFuture) {
			newest = s.BackupTimestamp.Time
		}
	}
	return newest
}

// isNew reports whether a backup that no task has listed was made since the last task that selects its pod and has listed its volume.
func (e *earlier) isNew(pvb *velerov1.PodVolumeBackup) bool {
	for _, last := range slices.Backward(e.listings[volumeOf(pvb)]) {
		if last.task.Spec.Volume.Selects(&pvb.Spec.Pod, pvb.Spec.Volume) {
			return last.isBefore(pvb)
		}
	}
	return false
}

// maxBehind is how far a node's clock may be behind.
const maxBehind = 4 * time.Hour

// isBefore reports whether a backup was made after the task. The API server says when the task and the record were created. A record that is older than
// the task may be of a backup that ran meanwhile, and one that is newer may be a copy of an old one: then it is of a time long before it was created, which
// the newest backup that the task has listed had reached.
func (l *listing) isBefore(pvb *velerov1.PodVolumeBackup) bool {
	created, ended, begun := pvb.CreationTimestamp.Time, pvb.Status.CompletionTimestamp, l.task.CreationTimestamp.Time
	if created.Before(begun) && (ended == nil || !ended.Add(maxSkew).After(begun)) {
		return false
	}
	at := proof.RecordedTime(pvb)
	return at.After(l.newest) || created.Sub(at) <= maxBehind
}

const (
	ruleLast   = "Last"
	ruleHourly = "Hourly"
)

// numbered are the rules that keep a number of backups, whatever their times: rule Last does, and rule Hourly where no two backups are of the same hour.
var numbered = []string{ruleLast, ruleHourly}

// minReach is how far back the rule must have reached for a shorter reach to count: what somebody tries out within a day is no history.
const minReach = 24 * time.Hour

// shortened says that the last backups would reach back less than half as far as they have since somebody last acknowledged a wave of the volume; empty:
// they do not. New backups that come faster than before push out others one by one, so that no single task would show that the history of a volume gets
// lost. Rules for days keep what they name all the same, and so do longer periods, but these leave little between them.
func (e *earlier) shortened(v *v1alpha1.RetentionVolume) string {
	before, now := e.reached[volumeIn(v)], reach(v, ruleLast, ruleHourly, "Daily", "Within")
	if before.back < minReach || now >= before.back/2 {
		return ""
	}
	return fmt.Sprintf("rule %s has reached back %s, and what is kept would reach back %s: backups come faster than before, or there was a long time without one",
		before.rule, duration.HumanDuration(before.back), duration.HumanDuration(now))
}

// reach returns how much older the oldest backup that one of the rules keeps is than the newest, at most.
func reach(v *v1alpha1.RetentionVolume, rules ...string) (longest time.Duration) {
	for _, rule := range rules {
		total := time.Duration(0)
		for _, gap := range gapsOf(v, rule) {
			total += gap
		}
		longest = max(longest, total)
	}
	return longest
}

// steadyReach is the reach of a rule whose longest gap counts only as long as the next one: a pause, such as a weekend without backups, is no history
// that gets lost when the backups from before it go.
func steadyReach(v *v1alpha1.RetentionVolume, rule string) (total time.Duration) {
	gaps := gapsOf(v, rule)
	slices.Sort(gaps)
	if n := len(gaps); n > 1 {
		gaps[n-1] = gaps[n-2]
	}
	for _, gap := range gaps {
		total += gap
	}
	return total
}

// gapsOf returns the times between neighbours of the backups that a rule keeps.
func gapsOf(v *v1alpha1.RetentionVolume, rule string) []time.Duration {
	var gaps []time.Duration
	var newer time.Time
	for i := range v.Snapshots { // the newest first
		s := &v.Snapshots[i]
		if !slices.Contains(s.Rules, rule) {
			continue
		}
		if !newer.IsZero() {
			gaps = append(gaps, newer.Sub(s.BackupTimestamp.Time))
		}
		newer = s.BackupTimestamp.Time
	}
	return gaps
}

// wasToGo reports whether a task had a snapshot in its wave.
func wasToGo(s v1alpha1.RetentionSnapshot) bool { return s.Result != v1alpha1.RetentionKept }

func volumeIn(v *v1alpha1.RetentionVolume) volume {
	of := volume{storageLocation: v.BackupStorageLocation, uploader: v.Uploader, namespace: v.Namespace, claim: v.ClaimUID}
	if of.claim == "" {
		of.pod, of.name = v.Pod, v.Volume
	}
	return of
}

// byEnd sorts tasks by their ends, which are whole seconds: of the same one, what somebody has acknowledged counts last.
func byEnd(a, b v1alpha1.RepositoryTask) int {
	return cmp.Or(endOf(&a).Compare(endOf(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(min(len(a.Spec.Acknowledge), 1), min(len(b.Spec.Acknowledge), 1)))
}

// endOf returns when a task has ended.
func endOf(t *v1alpha1.RepositoryTask) time.Time {
	if t.Status.CompletionTimestamp == nil {
		return t.CreationTimestamp.Time
	}
	return t.Status.CompletionTimestamp.Time
}

func keyOf(s *v1alpha1.RetentionSnapshot) string { return s.PodVolumeBackup + " " + s.SnapshotID }

// wasLetBegin reports whether new backups explained what the task was to forget, or somebody has acknowledged it. One that has failed in a
// repository that does not answer must not keep the next one from all the others.
func wasLetBegin(task *v1alpha1.RepositoryTask) bool {
	begun := slices.ContainsFunc(task.Status.Repositories, func(r v1alpha1.RepositoryTaskRepository) bool { return r.Result != v1alpha1.RepositoryPending })
	return task.Status.Phase == v1alpha1.PhaseCompleted || task.Status.Phase == v1alpha1.PhaseFailed && begun
}
