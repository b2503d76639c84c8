package repositorytask

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// maxRetained is how many snapshots the object of one task has room for: each has an entry of about 300 bytes, and the API server refuses
// objects of more than 1.5 MiB.
const maxRetained = 3000

// forgetSnapshots plans what is to be forgotten, and does it if the task asks for that. The plan is made once: a process that begins
// the task again carries out what is left of it.
func (r *run) forgetSnapshots(ctx context.Context) error {
	spec := &r.object.Spec
	var plan *v1alpha1.RepositoryRetention
	err := r.planning(ctx, func() (err error) {
		plan, err = r.claimedPlan(ctx)
		return err
	})
	if err != nil {
		return err
	}
	repositories := r.repositoriesIn(plan)
	if err := r.beginWith(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Retention, s.Repositories = plan, repositories }); err != nil {
		return err
	}
	pending := pendingIn(plan)
	r.log.Info("Task started", "volumes", len(plan.Volumes), "forget", pending, "wave", plan.Wave, "apply", spec.Apply, "attempt", r.object.Status.Attempts+1)
	if !spec.Apply {
		return nil
	}
	if err := acknowledged(spec, plan); err != nil {
		return err
	}
	r.emitStarted("Forgetting %s of %s", text.Count(pending, "snapshot", "snapshots"), text.Count(len(plan.Volumes), "volume", "volumes"))
	defer r.reporting(ctx)()
	work := repositoryWork{"Forgetting", "done", r.forgetOnce, func(entry *v1alpha1.RepositoryTaskRepository) string {
		return text.Count(entry.Snapshots, "snapshot", "snapshots") + " forgotten"
	}}
	for i := range repositories {
		if repositories[i].Result != v1alpha1.RepositoryPending {
			continue
		}
		done, err := r.doRepository(ctx, work, i, len(repositories), nil, repositories[i])
		if err != nil {
			return err
		}
		if done.Result == v1alpha1.RepositoryPending { // it does not open
			continue
		}
		if err := r.writeRepository(ctx, i, done, work.found(&done)); err != nil {
			return err
		}
	}
	r.done = int64(len(repositories)) * stepsEach
	return nil
}

// claimedPlan returns the plan, and makes it once. One that is carried out is made when no other task works on its repositories: what these find, and
// what they remove, it must know. The error is a *busyError, a *RefusedError, or the API server's.
func (r *run) claimedPlan(ctx context.Context) (*v1alpha1.RepositoryRetention, error) {
	for {
		plan := r.object.Status.Retention
		if plan == nil {
			var err error
			if plan, err = r.planForget(ctx); err != nil {
				return nil, err
			}
		}
		needs := pendingRepositories(r.repositoriesIn(plan))
		if !r.object.Spec.Apply || r.has(needs) {
			return plan, nil
		}
		if err := r.claim(ctx, needs); err != nil {
			return nil, err
		}
	}
}

func (r *run) planForget(ctx context.Context) (*v1alpha1.RepositoryRetention, error) {
	spec := &r.object.Spec
	switch {
	case spec.Orphans != "":
		return r.planOrphans(ctx)
	case spec.Keep == nil:
		return nil, refuse(v1alpha1.ReasonUnsupported, "a task of type Forget needs a policy, spec.keep, or spec.orphans")
	default:
		return r.planRetention(ctx)
	}
}

// planRetention reads what there is and makes the plan.
func (r *run) planRetention(ctx context.Context) (*v1alpha1.RepositoryRetention, error) {
	records, err := r.records(ctx)
	if err != nil {
		return nil, err
	}
	spec := &r.object.Spec
	plan := retention.Plan(records, retention.Request{Policy: spec.Keep, Volume: spec.Volume, StorageLocation: spec.BackupStorageLocation, Now: r.cfg.Now()})
	n := 0
	for i := range plan.Volumes {
		n += len(plan.Volumes[i].Snapshots)
	}
	switch {
	case n == 0:
		return nil, refuse(v1alpha1.ReasonNoPodVolumes, "namespace %s has no such completed PodVolumeBackup that belongs to no Backup: Velero's server looks after those of Backups", r.cfg.Namespace)
	case n > maxRetained:
		return nil, refuseTooMany(n)
	}
	return plan, nil
}

func refuseTooMany(n int) error {
	return refuse(v1alpha1.ReasonUnsupported, "the volumes have %d backups, and one task looks at %d at most: select the volumes of one namespace or pod", n, maxRetained)
}

// records reads all that may need a snapshot, past the cache.
func (r *run) records(ctx context.Context) (*retention.Records, error) {
	var backups velerov1.PodVolumeBackupList
	var restores velerov1.PodVolumeRestoreList
	var tasks v1alpha1.RepositoryTaskList
	var files v1alpha1.FileRequestList
	for _, list := range []client.ObjectList{&backups, &restores, &tasks, &files} {
		if err := r.api.List(ctx, list, client.InNamespace(r.cfg.Namespace)); err != nil {
			return nil, fmt.Errorf("list what needs snapshots: %w", err)
		}
	}
	if err := correctSynced(ctx, r.api, r.cfg.Namespace, backups.Items); err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(tasks.Items, func(t v1alpha1.RepositoryTask) bool { return t.UID == r.object.UID })
	damaged, err := r.damage(ctx, backups.Items, others)
	if err != nil {
		return nil, err
	}
	return &retention.Records{Backups: backups.Items, Restores: restores.Items, Tasks: others, Files: files.Items, DamagedRepository: damaged}, nil
}

// repositoriesIn returns the repositories of the plan in which something is to be done, in its order. What an earlier process has done
// stays.
func (r *run) repositoriesIn(plan *v1alpha1.RepositoryRetention) []v1alpha1.RepositoryTaskRepository {
	repositories := slices.Clone(r.object.Status.Repositories)
	if len(repositories) > 0 || !r.object.Spec.Apply {
		return repositories
	}
	for i := range plan.Volumes {
		v := &plan.Volumes[i]
		if !slices.ContainsFunc(v.Snapshots, func(s v1alpha1.RetentionSnapshot) bool { return isOpen(&s) }) {
			continue
		}
		repository := v1alpha1.RepositoryTaskRepository{
			BackupStorageLocation: v.BackupStorageLocation, VolumeNamespace: v.Namespace, Uploader: v.Uploader, Result: v1alpha1.RepositoryPending,
		}
		repository.Address = r.planned[proof.RepositoryIn(&repository)]
		if !slices.ContainsFunc(repositories, func(x v1alpha1.RepositoryTaskRepository) bool { return sameRepository(&x, &repository) }) {
			repositories = append(repositories, repository)
		}
	}
	return repositories
}

// isOpen reports whether a snapshot is to be removed, or an earlier task may have removed it.
func isOpen(s *v1alpha1.RetentionSnapshot) bool {
	return s.Result == v1alpha1.RetentionPending || isInterrupted(s)
}

func isInterrupted(s *v1alpha1.RetentionSnapshot) bool {
	return s.Result == v1alpha1.RetentionKept && slices.Equal(s.Rules, []string{retention.RuleInterrupted}) && s.Message == ""
}

func pendingIn(plan *v1alpha1.RepositoryRetention) (n int64) {
	for i := range plan.Volumes {
		for j := range plan.Volumes[i].Snapshots {
			if plan.Volumes[i].Snapshots[j].Result == v1alpha1.RetentionPending {
				n++
			}
		}
	}
	return n
}

// acknowledged refuses a wave of deletions that new backups do not explain and nobody has acknowledged, and any other than the one that
// was acknowledged.
func acknowledged(spec *v1alpha1.RepositoryTaskSpec, plan *v1alpha1.RepositoryRetention) error {
	switch {
	case spec.Acknowledge == "" && plan.Unexplained == 0, spec.Acknowledge == plan.Wave:
		return nil
	case spec.Acknowledge == "" && spec.Orphans != "":
		return refuse(v1alpha1.ReasonNotAcknowledged, "nothing was forgotten: of %s nothing is known that needs them. If the plan is right, acknowledge wave %s",
			text.Count(int64(plan.Unexplained), "snapshot", "snapshots"), plan.Wave)
	case spec.Acknowledge == "":
		return refuse(v1alpha1.ReasonNotAcknowledged, "nothing was forgotten: %s to be forgotten that new backups do not explain since this policy was last applied%s. If the plan is right, acknowledge wave %s",
			text.Count(int64(plan.Unexplained), "snapshot is", "snapshots are"), shortenedIn(plan), plan.Wave)
	case plan.Wave == "":
		return refuse(v1alpha1.ReasonNotAcknowledged, "nothing was forgotten: wave %s was acknowledged, and there is nothing to forget now", spec.Acknowledge)
	default:
		return refuse(v1alpha1.ReasonNotAcknowledged, "nothing was forgotten: wave %s was acknowledged, and what would be forgotten now is another one, %s", spec.Acknowledge, plan.Wave)
	}
}

// shortenedIn names the first volume whose history would get shortened.
func shortenedIn(plan *v1alpha1.RepositoryRetention) string {
	i := slices.IndexFunc(plan.Volumes, func(v v1alpha1.RetentionVolume) bool { return v.Shortened != "" })
	if i < 0 {
		return ""
	}
	v := &plan.Volumes[i]
	return fmt.Sprintf(" (%s/%s:%s: %s)", v.Namespace, v.Pod, v.Volume, v.Shortened)
}

// forgetOutcome sums up a task that forgets.
func forgetOutcome(apply bool) func(*v1alpha1.RepositoryTaskStatus, string) outcome {
	return func(status *v1alpha1.RepositoryTaskStatus, note string) outcome {
		s := summarizeRetention(status)
		s.note = note
		if s.failed+s.failedRepositories > 0 {
			return outcome{false, s.reason, s.String(apply)}
		}
		if !apply {
			return outcome{true, v1alpha1.ReasonPlanned, s.String(apply)}
		}
		return outcome{true, v1alpha1.ReasonForgotten, s.String(apply)}
	}
}

// retentionSummary counts what became of snapshots.
type retentionSummary struct {
	kept, pending, forgotten, failed int64
	volumes                          int
	failedRepositories               int64
	reason                           v1alpha1.Reason
	example                          string
	wave, note                       string
}

func summarizeRetention(status *v1alpha1.RepositoryTaskStatus) retentionSummary {
	s := retentionSummary{reason: v1alpha1.ReasonSnapshotNotFound}
	for i := range status.Repositories {
		if entry := &status.Repositories[i]; entry.Result == v1alpha1.RepositoryFailed {
			if s.failedRepositories++; s.failedRepositories == 1 {
				s.reason, s.example = entry.Reason, nameOf(entry)+": "+entry.Message
			}
		}
	}
	if status.Retention == nil {
		return s
	}
	s.volumes, s.wave = len(status.Retention.Volumes), status.Retention.Wave
	for i := range status.Retention.Volumes {
		for j := range status.Retention.Volumes[i].Snapshots {
			s.add(&status.Retention.Volumes[i].Snapshots[j])
		}
	}
	return s
}

func (s *retentionSummary) add(snapshot *v1alpha1.RetentionSnapshot) {
	switch snapshot.Result {
	case v1alpha1.RetentionKept:
		s.kept++
	case v1alpha1.RetentionPending:
		s.pending++
	case v1alpha1.RetentionForgotten:
		s.forgotten++
	case v1alpha1.RetentionFailed:
		if s.failed++; s.example == "" {
			s.example = cmp.Or(snapshot.PodVolumeBackup, "snapshot "+snapshot.SnapshotID) + ": " + snapshot.Message
		}
	}
}

// String says what became of them.
func (s *retentionSummary) String(apply bool) string {
	var said strings.Builder
	fmt.Fprintf(&said, "%s forgotten, %d kept, of %s", text.Count(s.forgotten, "snapshot", "snapshots"), s.kept, text.Count(s.volumes, "volume", "volumes"))
	if !apply {
		said.Reset()
		fmt.Fprintf(&said, "%s would be forgotten, %d kept, of %s; nothing was changed", text.Count(s.pending, "snapshot", "snapshots"), s.kept, text.Count(s.volumes, "volume", "volumes"))
		if s.wave != "" {
			said.WriteString(". This is wave " + s.wave)
		}
	} else if s.pending > 0 {
		fmt.Fprintf(&said, "; %d not forgotten", s.pending)
	}
	if s.failed > 0 {
		fmt.Fprintf(&said, "; %d not known", s.failed)
	}
	for _, other := range []string{s.example, s.note} {
		if other != "" {
			said.WriteString(". " + other)
		}
	}
	return text.Line(said.String(), maxMessage)
}
