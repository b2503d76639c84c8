package repositorytask

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// yes is the value of labels and annotations that say one thing only.
const yes = "true"

// The notes on PodVolumeBackups go with these: who deletes the backup that was found damaged would have the next one reuse what is lost. So a task has a
// note of its own of the repositories in which it has found damage, as long as that stands.

// noteDamagedRepository notes on the task that it has found damage in a repository, by the names of all locations that lead there or may: backups through each
// reuse what is lost. The error is that the API server has not answered.
func (r *run) noteDamagedRepository(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) error {
	damaged := proof.RepositoryIn(entry)
	noted := v1alpha1.DamagedRepositories(r.object)
	if slices.Contains(noted, damaged) {
		return nil
	}
	locations, err := r.possibleLocationsOf(ctx, damaged)
	if err != nil {
		return err
	}
	for _, location := range locations {
		damaged.BackupStorageLocation = location
		if !slices.Contains(noted, damaged) {
			noted = append(noted, damaged)
		}
	}
	r.mu.Lock()
	r.stale = true // the write changes the version
	err = r.setDamagedRepositories(ctx, r.object, noted)
	r.mu.Unlock()
	if err == nil || ctx.Err() != nil || mayBeRepeated(err) {
		return err
	}
	r.log.Warn("It could not be noted on the task which repository is damaged", "error", err)
	r.addNote(fmt.Sprintf("It could not be noted which repository is damaged, so new backups are read back only as long as the damaged ones are there: %s", err))
	return nil
}

// setDamagedRepositories writes a task's note; none removes it. The error is that the API server has not answered, or has refused.
func (c *Controller) setDamagedRepositories(ctx context.Context, task *v1alpha1.RepositoryTask, damaged []v1alpha1.RepositoryKey) error {
	var note, label any
	if len(damaged) > 0 {
		encoded, err := json.Marshal(damaged)
		if err != nil {
			return fmt.Errorf("encode the damaged repositories of task %s: %w", task.Name, err)
		}
		note, label = string(encoded), yes
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": task.UID, "labels": map[string]any{v1alpha1.LabelDamaged: label}, "annotations": map[string]any{v1alpha1.AnnotationDamagedRepositories: note},
	}})
	if err != nil {
		return fmt.Errorf("encode the damaged repositories of task %s: %w", task.Name, err)
	}
	changed := task.DeepCopy()
	err = apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
		return c.client.Patch(ctx, changed, client.RawPatch(types.MergePatchType, patch))
	})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("note the damaged repositories on task %s: %w", task.Name, err)
	}
	task.Labels, task.Annotations = changed.Labels, changed.Annotations
	return nil
}

// reviewDamage takes from the notes of tasks what has been proven to be whole since.
func (c *Controller) reviewDamage(ctx context.Context) error {
	c.reviewing.Lock()
	defer c.reviewing.Unlock()
	var noted, all v1alpha1.RepositoryTaskList
	if err := c.api.List(ctx, &noted, client.InNamespace(c.cfg.Namespace), client.MatchingLabels{v1alpha1.LabelDamaged: yes}); err != nil {
		return fmt.Errorf("list the RepositoryTasks that have found damage: %w", err)
	}
	if len(noted.Items) == 0 {
		return nil
	}
	if err := c.api.List(ctx, &all, client.InNamespace(c.cfg.Namespace)); err != nil {
		return fmt.Errorf("list the RepositoryTasks: %w", err)
	}
	for i := range noted.Items {
		task := &noted.Items[i]
		if !task.Status.Phase.Terminal() {
			continue
		}
		before := v1alpha1.DamagedRepositories(task)
		left, err := c.standing(ctx, task, all.Items)
		if err != nil {
			return err
		}
		if len(left) == len(before) && len(left) > 0 {
			continue
		}
		err = c.setDamagedRepositories(ctx, task, left)
		if ctx.Err() != nil || mayBeRepeated(err) {
			return err
		}
		if err != nil { // as an admission policy may have it: new backups are read back for longer than they would have to
			c.cfg.Logger.Warn("A task's note of damaged repositories could not be changed", "task", task.Name, "error", err)
		}
	}
	return nil
}

// standing returns the repositories of a task's note in which the damage is there still.
func (c *Controller) standing(ctx context.Context, task *v1alpha1.RepositoryTask, all []v1alpha1.RepositoryTask) (left []v1alpha1.RepositoryKey, err error) {
	for _, repository := range v1alpha1.DamagedRepositories(task) {
		found := repository
		if !hasFoundDamage(task, repository) {
			if found, err = c.nameOfDamage(ctx, task, repository); err != nil {
				return nil, err
			}
		}
		if stands(task, found, all) {
			left = append(left, repository)
		}
	}
	return left, nil
}

// nameOfDamage returns the name by which a task has found damage in a repository that another location leads to; the same name if there is none.
func (c *Controller) nameOfDamage(ctx context.Context, task *v1alpha1.RepositoryTask, repository v1alpha1.RepositoryKey) (v1alpha1.RepositoryKey, error) {
	locations, err := c.newRun(task).locationsOf(ctx, repository)
	if err != nil {
		return repository, err
	}
	for _, location := range locations {
		other := repository
		other.BackupStorageLocation = location
		if hasFoundDamage(task, other) {
			return other, nil
		}
	}
	return repository, nil
}

// hasFoundDamage reports whether a task has found damage in a repository.
func hasFoundDamage(task *v1alpha1.RepositoryTask, in v1alpha1.RepositoryKey) bool {
	return slices.ContainsFunc(task.Status.Volumes, func(v v1alpha1.RepositoryTaskVolume) bool { return isDamageIn(&v, in) }) ||
		slices.ContainsFunc(task.Status.Repositories, func(entry v1alpha1.RepositoryTaskRepository) bool { return isDamaged(&entry, in) })
}

func isDamageIn(v *v1alpha1.RepositoryTaskVolume, in v1alpha1.RepositoryKey) bool {
	return repositoryOfVolume(v) == in && v.Result == v1alpha1.VolumeMismatched && proof.Damage(v)
}

func isDamaged(entry *v1alpha1.RepositoryTaskRepository, in v1alpha1.RepositoryKey) bool {
	return proof.RepositoryIn(entry) == in && entry.Result == v1alpha1.RepositoryDamaged
}

// stands reports whether damage that a task has found in a repository is there still, as far as all tasks know. What is lost may be reused by any volume of
// the repository, so a newer backup of one that is whole says nothing: only all data of the repository does, or the same snapshot.
func stands(task *v1alpha1.RepositoryTask, in v1alpha1.RepositoryKey, all []v1alpha1.RepositoryTask) bool {
	for i := range task.Status.Volumes {
		if v := &task.Status.Volumes[i]; isDamageIn(v, in) && volumeStands(v, all) {
			return true
		}
	}
	for i := range task.Status.Repositories {
		if entry := &task.Status.Repositories[i]; isDamaged(entry, in) && repositoryStands(entry, all) {
			return true
		}
	}
	// Without a result, an earlier process has ended between the note and the result, and the next one could not look again.
	return !hasFoundDamage(task, in) && !proof.ChecksOf(all)[in].ProvenSince(task.Status.CompletionTimestamp)
}

// volumeStands reports whether damage of a volume is there still.
func volumeStands(v *v1alpha1.RepositoryTaskVolume, all []v1alpha1.RepositoryTask) bool {
	inside := proof.InRepository(all, repositoryOfVolume(v), v.Address)
	checks := proof.ChecksOf(inside)[repositoryOfVolume(v)].At(v.Address)
	return !checks.ProvenSince(v.CompletionTimestamp) && !isProvenSince(v, inside)
}

// repositoryStands reports whether damage that a check has found in a repository is there still.
func repositoryStands(entry *v1alpha1.RepositoryTaskRepository, all []v1alpha1.RepositoryTask) bool {
	in := proof.RepositoryIn(entry)
	checks := proof.ChecksOf(proof.InRepository(all, in, entry.Address))[in].At(entry.Address)
	return !checks.ProvenSince(entry.CompletionTimestamp)
}

func repositoryOfVolume(v *v1alpha1.RepositoryTaskVolume) v1alpha1.RepositoryKey {
	return proof.VolumeIn(v).Repository()
}

// isProvenSince reports whether the snapshot in which damage was found was proven afterwards, as when lost objects were brought back.
func isProvenSince(damage *v1alpha1.RepositoryTaskVolume, all []v1alpha1.RepositoryTask) bool {
	for i := range all {
		for j := range all[i].Status.Volumes {
			v := &all[i].Status.Volumes[j]
			later := v.CompletionTimestamp != nil && damage.CompletionTimestamp != nil && v.CompletionTimestamp.After(damage.CompletionTimestamp.Time)
			same := v.SnapshotID == damage.SnapshotID && repositoryOfVolume(v) == repositoryOfVolume(damage) && proof.SameAddress(v.Address, damage.Address)
			if v.Result == v1alpha1.VolumeVerified && same && later {
				return true
			}
		}
	}
	return false
}
