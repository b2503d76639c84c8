package repositorytask

import (
	"context"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// maxUsageRepositories is how many repositories the object of one task has room for, beside maxUsageVolumes: each has an entry of about
// 1 KiB, and the API server refuses objects of more than 1.5 MiB.
const maxUsageRepositories = 700

// measureRepositories measures the repositories that are not done yet.
func (r *run) measureRepositories(ctx context.Context) error {
	if repositories, _ := repositoriesOf(r.backups); len(repositories) > maxUsageRepositories {
		return refuse(v1alpha1.ReasonUnsupported, "%s are in %d repositories, and one task measures %d at most: select the volumes of one namespace", selectionOf(&r.object.Spec), len(repositories), maxUsageRepositories)
	}
	return r.eachRepository(ctx, repositoryWork{"Measuring", "measured", r.measureOnce, func(entry *v1alpha1.RepositoryTaskRepository) string {
		if entry.Usage == nil {
			return ""
		}
		return usageText(entry.Usage)
	}})
}

// measureOnce measures a repository, and notes its address.
//
// The PodVolumeBackups are listed before and after: a snapshot is missing only if both lists have its PodVolumeBackup, since a backup
// that is deleted loses its snapshot first, and one that ends has its snapshot first. What Velero deletes or a task forgets is not missing.
func (r *run) measureOnce(ctx context.Context, i, n int, backups []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) error {
	reader := r.cfg.UsageReaders[entry.Uploader]
	if reader == nil {
		return fmt.Errorf("repositories of %s cannot be measured: %w", entry.Uploader, uploader.ErrUnsupported)
	}
	repository, err := r.repositories.Of(ctx, backups[0])
	if err != nil {
		return err
	}
	entry.Address = shownAddress(&repository)
	before, err := r.backupsIn(ctx, entry)
	if err != nil {
		return err
	}
	sink := progress.SinkFunc(func(reading progress.Reading) { r.tracker.Report(inSteps(reading, i, n)) })
	result, err := reader.Usage(ctx, uploader.UsageRequest{Repository: repository, Size: recordedSizes(before)}, sink)
	if err != nil {
		return err
	}
	after, err := r.backupsIn(ctx, entry)
	if err != nil {
		return err
	}
	required, err := r.withoutRemoved(ctx, slices.Clone(after))
	if err != nil {
		return err
	}
	var tasks v1alpha1.RepositoryTaskList
	if err := r.api.List(ctx, &tasks, client.InNamespace(r.cfg.Namespace)); err != nil {
		return fmt.Errorf("list the RepositoryTasks: %w", err)
	}
	after = byOneName(after, entry.BackupStorageLocation)
	entry.Usage = usageOf(&result, after, inBoth(before, required))
	addHistory(entry, proof.InRepository(tasks.Items, proof.RepositoryIn(entry), entry.Address), after)
	trimVolumes(entry.Usage, r.roomForVolumes())
	entry.Result, entry.Reason, entry.Message = v1alpha1.RepositoryMeasured, "", ""
	setLocks(entry, result.Locks, result.LockError)
	return nil
}

// inBoth returns the names of the PodVolumeBackups that two lists have.
func inBoth(a, b []velerov1.PodVolumeBackup) map[string]bool {
	inA, both := map[string]bool{}, map[string]bool{}
	for i := range a {
		inA[a[i].Name] = true
	}
	for i := range b {
		both[b[i].Name] = inA[b[i].Name]
	}
	return both
}

// backupsIn lists the PodVolumeBackups of a repository that name a snapshot, by whichever location.
func (r *run) backupsIn(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) ([]velerov1.PodVolumeBackup, error) {
	locations, err := r.locationsOf(ctx, proof.RepositoryIn(entry))
	if err != nil {
		return nil, err
	}
	return r.backupsBy(ctx, entry, locations)
}

// backupsPossiblyIn is backupsIn with those of the locations that may lead to the repository, see possibleLocationsOf.
func (r *run) backupsPossiblyIn(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository) ([]velerov1.PodVolumeBackup, error) {
	locations, err := r.possibleLocationsOf(ctx, proof.RepositoryIn(entry))
	if err != nil {
		return nil, err
	}
	return r.backupsBy(ctx, entry, locations)
}

func (r *run) backupsBy(ctx context.Context, entry *v1alpha1.RepositoryTaskRepository, locations []string) ([]velerov1.PodVolumeBackup, error) {
	var all velerov1.PodVolumeBackupList
	if err := r.api.List(ctx, &all, client.InNamespace(r.cfg.Namespace)); err != nil {
		return nil, fmt.Errorf("list the PodVolumeBackups: %w", err)
	}
	if err := correctSynced(ctx, r.api, r.cfg.Namespace, all.Items); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.Items, func(pvb velerov1.PodVolumeBackup) bool {
		return pvb.Status.SnapshotID == "" || !isIn(&pvb, proof.RepositoryIn(entry), locations)
	}), nil
}

// maxUsageVolumes is how many volumes the object of one task has room for: each has an entry of up to 1.3 KiB.
const maxUsageVolumes = 500

// roomForVolumes is how many volumes the next repository may have.
func (r *run) roomForVolumes() int {
	room := maxUsageVolumes
	for _, entry := range r.status().Repositories {
		if entry.Usage != nil {
			room -= len(entry.Usage.Volumes)
		}
	}
	return max(room, 0)
}

// usageText says in a line what was measured.
func usageText(u *v1alpha1.RepositoryUsage) string {
	said := text.Count(u.Snapshots, "snapshot", "snapshots")
	if u.StoredBytes != nil {
		said += ", " + text.Bytes(*u.StoredBytes) + " stored"
	}
	return said
}

// usageOutcome sums up a task that measures.
func usageOutcome(status *v1alpha1.RepositoryTaskStatus, note string) outcome {
	var measured, failed, snapshots, missing, unknownStorage int64
	var stored int64
	var example *v1alpha1.RepositoryTaskRepository
	for i := range status.Repositories {
		entry := &status.Repositories[i]
		if entry.Result != v1alpha1.RepositoryMeasured || entry.Usage == nil {
			if failed++; example == nil {
				example = entry
			}
			continue
		}
		measured, snapshots, missing = measured+1, snapshots+entry.Usage.Snapshots, missing+entry.Usage.MissingSnapshots
		if entry.Usage.StoredBytes == nil {
			unknownStorage++
			continue
		}
		stored += *entry.Usage.StoredBytes
	}
	var said strings.Builder
	fmt.Fprintf(&said, "%s measured: %s", text.Count(measured, "repository", "repositories"), text.Count(snapshots, "snapshot", "snapshots"))
	if measured > unknownStorage {
		said.WriteString(", " + text.Bytes(stored) + " stored")
	}
	if unknownStorage > 0 {
		fmt.Fprintf(&said, "; what the storage of %s holds is not known", text.Count(unknownStorage, "repository", "repositories"))
	}
	if missing > 0 {
		fmt.Fprintf(&said, "; %s not there", text.Count(missing, "snapshot of a completed PodVolumeBackup is", "snapshots of completed PodVolumeBackups are"))
	}
	if failed > 0 {
		fmt.Fprintf(&said, "; %d not measured", failed)
	}
	if note != "" {
		said.WriteString(". " + note)
	}
	if example == nil {
		return outcome{true, v1alpha1.ReasonMeasured, text.Line(said.String(), maxMessage)}
	}
	fmt.Fprintf(&said, ". %s: %s", nameOf(example), example.Message)
	return outcome{false, example.Reason, text.Line(said.String(), maxMessage)}
}

// setLocks notes the locks of a repository.
func setLocks(entry *v1alpha1.RepositoryTaskRepository, locks []uploader.Lock, problem string) {
	entry.Locks, entry.LocksUnknown = nil, messageOf(problem)
	for _, l := range locks[:min(len(locks), uploader.MaxExamples)] {
		entry.Locks = append(entry.Locks, v1alpha1.RepositoryLock{
			Host: l.Host, User: l.User, PID: int64(l.PID), Exclusive: l.Exclusive, Since: metav1.NewTime(l.Since), Seen: new(metav1.NewTime(l.Seen)), Stale: l.Stale,
		})
	}
}
