package describe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// seeTasks is the page about RepositoryTasks.
const seeTasks = documentation + "docs/repositories.md"

// ExplainTask explains where a RepositoryTask is, or what it has found.
func ExplainTask(t *v1alpha1.RepositoryTask, events []Event, at time.Time) Explanation {
	v := OfRepositoryTask(t)
	s := &v.Progress
	e := Explanation{
		Kind: v.Kind, Namespace: v.Namespace, Name: v.Name, Subject: taskSubject(&t.Spec),
		State: string(s.State), Reason: t.Status.Reason, See: seeTasks, Events: events,
	}
	switch {
	case s.State == progress.StateCompleted:
		e.Why, e.See = completedText(&t.Spec), ""
	case s.State == progress.StateFailed:
		e.Why = failedText(t.Spec.Type) + ": " + v.Message
		if remedy := t.Status.Reason.Remedy(); remedy != "" {
			e.do(remedy)
		}
	case t.Status.Reason == v1alpha1.ReasonRepositoryBusy:
		e.Why = v.Message
		e.do(v1alpha1.ReasonRepositoryBusy.Remedy())
	case t.Status.Phase == "":
		e.Why = fmt.Sprintf("it was not picked up in the %s since it was made: as many tasks run as may, or deployment plimsoll-repository-tasks does not", Age(at, v.Created))
		e.do(fmt.Sprintf("'kubectl -n %s get repositorytasks' shows which are InProgress, 'kubectl -n %s get deployment plimsoll-repository-tasks' whether the deployment runs", v.Namespace, v.Namespace))
	case s.State == progress.StateWaiting && t.Status.Reason == v1alpha1.ReasonRepositoryUnavailable: // another task may run when its time has come
		e.Why = "it waits: " + v.Message
		e.do(v1alpha1.ReasonRepositoryUnavailable.Remedy())
	case v.Silent(at):
		e.Why = "nothing was heard of it for " + Age(at, s.Heartbeat) + "; the next pod of deployment plimsoll-repository-tasks begins it again"
		e.do(fmt.Sprintf("look at the deployment: 'kubectl -n %s get pods -l app.kubernetes.io/name=plimsoll-repository-tasks'", v.Namespace))
	case s.State == progress.StateWaiting:
		e.Why = "it waits: " + v.Message
	case s.State == progress.StateStalled:
		e.Why = "no work was seen for " + Age(at, s.LastWork())
		if v.Message != "" {
			e.fact("%s", v.Message)
		}
		e.do("look at the storage of the repository, and at the network to it")
	default:
		e.Why = workingText(t.Spec.Type, &v)
	}
	for i := range t.Status.Volumes {
		if x := &t.Status.Volumes[i]; !slices.Contains([]v1alpha1.VolumeResult{v1alpha1.VolumeVerified, v1alpha1.VolumeSampled, v1alpha1.VolumePending, v1alpha1.VolumePostponed, v1alpha1.VolumeMigrated, v1alpha1.VolumePlanned}, x.Result) {
			e.fact("%s/%s:%s is %s: %s", x.Namespace, x.Pod, x.Volume, x.Result, x.Message)
		}
	}
	for i := range t.Status.Backups {
		if b := &t.Status.Backups[i]; b.Result == v1alpha1.VolumeFailed {
			e.fact("Backup %s has no copy: %s", b.Backup, b.Message)
		}
	}
	for i := range t.Status.Repositories {
		e.addRepository(&t.Status.Repositories[i])
	}
	return e
}

// completedText says what a Completed task has done or found.
func completedText(spec *v1alpha1.RepositoryTaskSpec) string {
	switch {
	case spec.Type == v1alpha1.TaskCheck:
		return "every repository was checked, and is whole"
	case spec.Type == v1alpha1.TaskUsage:
		return "every repository was measured"
	case spec.Type == v1alpha1.TaskForget && spec.Apply:
		return "the snapshots that the policy does not keep are gone"
	case spec.Type == v1alpha1.TaskForget:
		return "it says what it would forget, and has changed nothing"
	case spec.Type == v1alpha1.TaskPrune && spec.Apply:
		return "what no snapshot needs is gone from every restic repository, as far as the limits allow, and kopia's maintenance has run"
	case spec.Type == v1alpha1.TaskPrune:
		return "it says what it would remove, and has changed nothing"
	case spec.Type == v1alpha1.TaskRepair && spec.Repair == v1alpha1.RepairUnlock:
		return "no repository has a stale lock"
	case spec.Type == v1alpha1.TaskRepair:
		return "the index of every repository was written again, and a check has found each whole"
	case spec.Type == v1alpha1.TaskMigrate && spec.DryRun:
		return "it says what a migration would copy; nothing was copied"
	case spec.Type == v1alpha1.TaskMigrate:
		return "every snapshot is in the kopia repository, each of its entries was compared, and every Backup has its copy"
	case spec.Sample > 0:
		return "of each kopia volume the part whose turn it was, and of the others every file was compared, and is what it should be"
	default:
		return "every file of every volume was compared, and is what it should be"
	}
}

// failedText says what a Failed task has not done or found.
func failedText(kind v1alpha1.RepositoryTaskType) string {
	switch kind {
	case v1alpha1.TaskCheck:
		return "not every repository is whole"
	case v1alpha1.TaskUsage:
		return "not every repository was measured"
	case v1alpha1.TaskForget:
		return "not all that the policy does not keep was forgotten"
	case v1alpha1.TaskPrune:
		return "not every repository was pruned"
	case v1alpha1.TaskRepair:
		return "not every repository was repaired"
	case v1alpha1.TaskMigrate:
		return "not everything was migrated"
	default:
		return "nothing, or not everything, is proven"
	}
}

// workingText says how far a task is.
func workingText(kind v1alpha1.RepositoryTaskType, v *Volume) string {
	s := &v.Progress
	rate := fmt.Sprintf("%s, %s, time left %s", v.done(), Rate(s.BytesPerSecond), ETA(s.ETASeconds))
	switch kind {
	case v1alpha1.TaskCheck:
		return fmt.Sprintf("it checks: %s, time left %s", PercentOf(v.Percent()), ETA(s.ETASeconds))
	case v1alpha1.TaskUsage:
		return "it measures: " + PercentOf(v.Percent())
	case v1alpha1.TaskForget:
		return "it forgets: " + PercentOf(v.Percent())
	case v1alpha1.TaskPrune:
		return fmt.Sprintf("it prunes: %s of the packs, time left %s", PercentOf(v.Percent()), ETA(s.ETASeconds))
	case v1alpha1.TaskRepair:
		return "it repairs: " + PercentOf(v.Percent())
	case v1alpha1.TaskMigrate:
		return "it copies and compares: " + rate
	default:
		return "it reads: " + rate
	}
}

// addRepository says what a check has found in a repository, and what a repair has done.
func (e *Explanation) addRepository(r *v1alpha1.RepositoryTaskRepository) {
	name := r.BackupStorageLocation + "/" + r.VolumeNamespace
	if r.Result == v1alpha1.RepositoryDamaged || r.Result == v1alpha1.RepositoryFailed {
		e.fact("repository %s is %s: %s", name, r.Result, r.Message)
	}
	for i := range r.TouchedBackups {
		e.fact("damage in repository %s touches %s", name, TouchedText(&r.TouchedBackups[i]))
	}
	if r.TouchedBackupsOmitted > 0 {
		e.fact("damage in repository %s touches %d more", name, r.TouchedBackupsOmitted)
	}
	if r.Result == v1alpha1.RepositoryRepaired {
		e.fact("repository %s: %s", name, r.Message)
	}
	for i := range r.Locks {
		e.fact("repository %s is %s", name, LockText(&r.Locks[i]))
	}
	for _, remedy := range r.Remedies {
		e.do(fmt.Sprintf("to repair repository %s: %s", name, remedy))
	}
}

// TouchedText names a backup that needs what is damaged, as in "nightly-1 of Backup nightly, shop/db-0:data, 2026-11-24T03:00:00Z, snapshot 315cb8b1".
func TouchedText(b *v1alpha1.TouchedBackup) string {
	if b.Volume == "" {
		return "a snapshot that no PodVolumeBackup names, " + b.SnapshotID
	}
	name := cmp.Or(b.PodVolumeBackup, "a volume without a PodVolumeBackup")
	if b.Backup != "" {
		name += " of Backup " + b.Backup
	}
	at := "time not known"
	if !b.BackupTimestamp.IsZero() {
		at = b.BackupTimestamp.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s, %s/%s:%s, %s, snapshot %s", name, b.Namespace, b.Pod, b.Volume, at, b.SnapshotID)
}

// renewal is how often restic renews a lock (docs/contracts/restic-kopia.md 4).
const renewal = 5 * time.Minute

// LockText says who holds a lock, and when it was renewed, as in "locked exclusively by PID 7 on node-b as root, renewed 2m before it was read at
// 2026-11-21T03:02:00Z".
func LockText(l *v1alpha1.RepositoryLock) string {
	how := "locked"
	if l.Exclusive {
		how = "locked exclusively"
	}
	holder := fmt.Sprintf("%s by PID %d on %s as %s", how, l.PID, l.Host, l.User)
	if l.Seen.IsZero() { // as of a controller that does not note it
		return holder + " since " + l.Since.UTC().Format(time.RFC3339) + staleText(l)
	}
	age, at := l.Seen.Sub(l.Since.Time), l.Seen.UTC().Format(time.RFC3339)
	if age < -time.Minute {
		return fmt.Sprintf("%s, read at %s; when it was renewed is not known: its owner's clock is ahead by %s or more", holder, at, Duration(-age))
	}
	return fmt.Sprintf("%s, renewed %s before it was read at %s%s", holder, Duration(age), at, staleText(l))
}

// staleText says what is wrong with a lock that is not renewed. One missed renewal is none: a storage may be slow.
func staleText(l *v1alpha1.RepositoryLock) string {
	switch {
	case l.Stale:
		return ", stale: restic takes its owner for gone"
	case !l.Seen.IsZero() && l.Seen.Sub(l.Since.Time) > 2*renewal:
		return ", although restic renews a lock every 5 minutes: its owner hangs, does not reach the storage or is gone, or its clock is behind"
	default:
		return ""
	}
}

// taskSubject names what a task works on.
func taskSubject(spec *v1alpha1.RepositoryTaskSpec) string {
	if spec.PodVolumeBackup != "" {
		return "PodVolumeBackup " + spec.PodVolumeBackup
	}
	if spec.Latest {
		return "the latest backups"
	}
	if spec.Type == v1alpha1.TaskForget {
		return "backups of volumes without a Backup"
	}
	if spec.All {
		return "all restic backups"
	}
	return "backup " + spec.Backup
}
