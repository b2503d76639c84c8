package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// stepsEach is the weight of one repository in the progress of a check.
const stepsEach = 1_000_000

// checkRepositories checks the repositories that are not done yet.
func (r *run) checkRepositories(ctx context.Context) error {
	return r.eachRepository(ctx, repositoryWork{"Checking", "checked", r.checkOnce, func(entry *v1alpha1.RepositoryTaskRepository) string {
		return text.Count(entry.Snapshots, "snapshot", "snapshots") + " checked"
	}})
}

// repositoryWork is what a type of task does with each repository as a whole.
type repositoryWork struct {
	doing string // as in "Checking"
	done  string // as in "checked"
	// once does it for repository i of n, and writes the result into entry. The error says why there is none.
	once func(ctx context.Context, i, n int, backups []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) error
	// found says in the Event of a repository that is well what was found.
	found func(entry *v1alpha1.RepositoryTaskRepository) string
}

// eachRepository does the work for the repositories that are not done yet, one after the other.
func (r *run) eachRepository(ctx context.Context, w repositoryWork) error {
	repositories, backups := r.repositoryEntries()
	for i := range repositories {
		if repositories[i].Result == v1alpha1.RepositoryPending && len(backups[i]) == 0 {
			fail(&repositories[i], v1alpha1.ReasonNotBackedUp, "the PodVolumeBackups in it were deleted before it was "+w.done)
		}
	}
	if len(repositories) == 0 {
		return refuse(v1alpha1.ReasonNoPodVolumes, "no selected volume of %s has a snapshot, so there is no repository to be %s", selectionOf(&r.object.Spec), w.done)
	}
	if err := r.beginWith(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Repositories = repositories }); err != nil {
		return err
	}
	r.log.Info("Task started", "repositories", len(repositories), "attempt", r.object.Status.Attempts+1)
	r.emitStarted("%s %s of %s", w.doing, text.Count(int64(len(repositories)), "repository", "repositories"), selectionOf(&r.object.Spec))
	defer r.reporting(ctx)()
	for i := range repositories {
		if repositories[i].Result != v1alpha1.RepositoryPending {
			continue
		}
		done, err := r.doRepository(ctx, w, i, len(repositories), backups[i], repositories[i])
		if err != nil {
			return err
		}
		if done.Result == v1alpha1.RepositoryPending { // it does not open
			continue
		}
		if err := r.noteRepository(ctx, &done); err != nil {
			return err
		}
		if err := r.writeRepository(ctx, i, done, w.found(&done)); err != nil {
			return err
		}
		r.releaseDone()
	}
	r.done = int64(len(repositories)) * stepsEach
	return nil
}

// repositoryEntries returns the entries of the repositories when the work begins, and the backups in each. What an earlier process has found stays.
func (r *run) repositoryEntries() ([]v1alpha1.RepositoryTaskRepository, [][]*velerov1.PodVolumeBackup) {
	repositories, backups := repositoriesOf(r.backups)
	for _, known := range r.object.Status.Repositories {
		at := slices.IndexFunc(repositories, func(x v1alpha1.RepositoryTaskRepository) bool { return sameRepository(&x, &known) })
		if at < 0 {
			at, repositories, backups = len(repositories), append(repositories, known), append(backups, nil)
		}
		repositories[at] = known
	}
	return repositories, backups
}

// repositoriesOf returns the repositories of volumes that were not empty, in a stable order, and the backups in each. A backup that has
// failed may have done so because its repository is damaged.
func repositoriesOf(backups []velerov1.PodVolumeBackup) ([]v1alpha1.RepositoryTaskRepository, [][]*velerov1.PodVolumeBackup) {
	var repositories []v1alpha1.RepositoryTaskRepository
	var in [][]*velerov1.PodVolumeBackup
	for i := range backups {
		pvb := &backups[i]
		repository := repositoryOf(pvb)
		if pvb.Status.SnapshotID == "" && pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted {
			continue
		}
		at := slices.IndexFunc(repositories, func(x v1alpha1.RepositoryTaskRepository) bool { return sameRepository(&x, &repository) })
		if at < 0 {
			at, repositories, in = len(repositories), append(repositories, repository), append(in, nil)
		}
		in[at] = append(in[at], pvb)
	}
	return repositories, in
}

// repositoryOf is the entry of the repository of a backup, which is not done yet.
func repositoryOf(pvb *velerov1.PodVolumeBackup) v1alpha1.RepositoryTaskRepository {
	return v1alpha1.RepositoryTaskRepository{
		BackupStorageLocation: pvb.Spec.BackupStorageLocation, VolumeNamespace: pvb.Spec.Pod.Namespace, Uploader: v1alpha1.UploaderName(pvb.Spec.UploaderType),
		Result: v1alpha1.RepositoryPending,
	}
}

func sameRepository(a, b *v1alpha1.RepositoryTaskRepository) bool {
	return proof.RepositoryIn(a) == proof.RepositoryIn(b)
}

// doRepository does the work for one repository. If a snapshot was lost meanwhile it has failed, whatever came after that. The error is that of
// ctx.
func (r *run) doRepository(ctx context.Context, w repositoryWork, i, n int, backups []*velerov1.PodVolumeBackup, entry v1alpha1.RepositoryTaskRepository) (v1alpha1.RepositoryTaskRepository, error) {
	entry, err := r.tryRepository(ctx, w, i, n, backups, entry)
	if err != nil {
		return entry, err
	}
	if entry.Result == v1alpha1.RepositoryFailed && len(r.others[i]) > 0 {
		entry.Message = messageOf(entry.Message + "; it is not known whether other snapshots were lost: check the repository")
	}
	noted := r.status().Repositories[i]
	if message := r.lost[i]; message != "" {
		setLost(&noted, message)
	}
	if hasLost(&noted) {
		said := ""
		if entry.Result == v1alpha1.RepositoryFailed {
			said = entry.Message
		}
		entry.Result, entry.Reason, entry.Message = noted.Result, noted.Reason, noted.Message
		fail(&entry, noted.Reason, said)
	}
	return entry, nil
}

// tryRepository does the work for one repository, and again after failures that may pass. The error is that of ctx.
func (r *run) tryRepository(ctx context.Context, w repositoryWork, i, n int, backups []*velerov1.PodVolumeBackup, entry v1alpha1.RepositoryTaskRepository) (v1alpha1.RepositoryTaskRepository, error) {
	if err := r.admit(ctx, like(&entry, backups)); err != nil {
		return r.leaveRepository(entry, err), nil
	}
	began := time.Now()
	for try := 1; ; {
		err := w.once(ctx, i, n, backups, &entry)
		if err == nil {
			if r.cures { // it has opened
				r.forgetOutage(proof.RepositoryIn(&entry))
			}
			return entry, nil
		}
		if ctx.Err() != nil {
			return entry, context.Cause(ctx)
		}
		reason, mayPass := classify(err)
		entry.Result, entry.Reason, entry.Message = v1alpha1.RepositoryFailed, reason, messageOf(err.Error())
		pause := r.cfg.RetryDelay
		switch {
		case reason == v1alpha1.ReasonRepositoryLocked && time.Since(began) < r.cfg.LockWait:
			pause = r.cfg.LockDelay
		case mayPass && try < r.cfg.Tries:
			try++
		default:
			// What was there before the tries only this run knows, so it leaves nothing to a later one that may have lost something.
			if err := r.learn(ctx, like(&entry, backups), reason); err != nil && len(r.others[i]) == 0 {
				return r.leaveRepository(entry, err), nil
			}
			return entry, nil
		}
		r.log.Warn("Repository was not done; trying again", "work", w.done, "location", entry.BackupStorageLocation, "namespace", entry.VolumeNamespace, "reason", reason, "after", pause, "error", err)
		r.tracker.Report(waiting(reason, entry.Message))
		if err := apiretry.Sleep(ctx, pause); err != nil {
			return entry, err
		}
	}
}

// leaveRepository leaves a repository that does not open for later, or makes it one that has failed if the task has waited long enough.
func (r *run) leaveRepository(entry v1alpha1.RepositoryTaskRepository, err error) v1alpha1.RepositoryTaskRepository {
	entry.Result, entry.Reason, entry.Message = v1alpha1.RepositoryPending, "", ""
	if !r.parks(err) {
		fail(&entry, v1alpha1.ReasonRepositoryUnavailable, err.Error())
	}
	return entry
}

// like returns a backup in a repository, or, if there is none any more, what leads to the repository all the same.
func like(entry *v1alpha1.RepositoryTaskRepository, backups []*velerov1.PodVolumeBackup) *velerov1.PodVolumeBackup {
	if len(backups) > 0 {
		return backups[0]
	}
	pvb := &velerov1.PodVolumeBackup{}
	pvb.Spec.BackupStorageLocation, pvb.Spec.UploaderType, pvb.Spec.Pod.Namespace = entry.BackupStorageLocation, entry.Uploader, entry.VolumeNamespace
	return pvb
}

// noteTimeout bounds the write of a loss while the process is told to end.
const noteTimeout = 10 * time.Second

// keepOthers remembers what was there before a try that has failed, until it was looked for: the next try sees a repository that never had more.
func (r *run) keepOthers(i int, others []string) {
	if len(others) > 0 {
		r.others[i] = others
	}
}

// noteLost writes at once that a repository has lost a snapshot: the next process sees a repository that never had it. Where that cannot be written, the
// result of the repository says it.
func (r *run) noteLost(ctx context.Context, i int, message string) {
	r.lost[i] = message
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) { setLost(&s.Repositories[i], message) })
	if err != nil {
		r.log.Warn("It could not be written that a snapshot is lost", "message", message, "error", err)
	}
}

// setLost makes hasLost true for a repository.
func setLost(entry *v1alpha1.RepositoryTaskRepository, message string) {
	entry.Result, entry.Reason, entry.Message = v1alpha1.RepositoryPending, v1alpha1.ReasonUnconfirmed, messageOf(message)
}

// hasLost reports whether noteLost has written that of a repository that is not done.
func hasLost(entry *v1alpha1.RepositoryTaskRepository) bool {
	return entry.Result == v1alpha1.RepositoryPending && entry.Reason == v1alpha1.ReasonUnconfirmed
}

// fail makes the entry one that has failed. That it has lost a snapshot stays its reason.
func fail(entry *v1alpha1.RepositoryTaskRepository, reason v1alpha1.Reason, message string) {
	if hasLost(entry) {
		reason, message = entry.Reason, strings.TrimSuffix(entry.Message+"; "+message, "; ")
	}
	entry.Result, entry.Reason, entry.Message = v1alpha1.RepositoryFailed, reason, messageOf(message)
}

// maxShown is how much of a message package progress shows.
const maxShown = 200

// waiting is the reading of a task that waits for its next try. Of a long error it has the end, too, which says why.
func waiting(reason v1alpha1.Reason, message string) progress.Reading {
	return progress.Reading{Stage: progress.StageWaiting, Reason: reason, Message: text.ShortenMiddle(message, maxShown)}
}

func messageOf(said string) string {
	return text.ShortenMiddle(text.Line(said, 4*maxMessage), maxMessage)
}

// noRepository is the message of a repository that nobody has made yet.
const noRepository = "there is no repository, and no backup in the cluster that needs one: none in it has completed"

// checkOnce checks a repository, and notes its address.
func (r *run) checkOnce(ctx context.Context, i, n int, backups []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) error {
	checker := r.cfg.Checkers[entry.Uploader]
	if checker == nil {
		return fmt.Errorf("repositories of %s cannot be checked as a whole: %w; 'kubectl plimsoll repository verify' proves each backup in them", entry.Uploader, uploader.ErrUnsupported)
	}
	repository, err := r.repositories.Of(ctx, backups[0])
	if err != nil {
		return err
	}
	entry.Address = shownAddress(&repository)
	sink := progress.SinkFunc(func(reading progress.Reading) { r.tracker.Report(inSteps(reading, i, n)) })
	return r.withRecorded(ctx, entry, backups, func(recorded []velerov1.PodVolumeBackup) error {
		req := uploader.CheckRequest{Repository: repository, ReadData: r.object.Spec.ReadData, Snapshots: snapshotsOf(recorded)}
		result, err := checker.Check(ctx, req, sink)
		if errors.Is(err, uploader.ErrRepositoryNotFound) && len(recorded) == 0 {
			fail(entry, v1alpha1.ReasonNotBackedUp, noRepository)
			return nil
		}
		if err != nil {
			return err
		}
		r.touched = result.TouchedSnapshots
		*entry = withCheck(*entry, &result)
		return nil
	})
}

// inSteps makes a reading of repository i of n one of the task. The time left is known in the last repository only: nobody knows
// how large the others are.
func inSteps(reading progress.Reading, i, n int) progress.Reading {
	done := 0.0
	if reading.TotalBytes > 0 {
		done = float64(reading.BytesDone) / float64(reading.TotalBytes)
	}
	reading.BytesDone, reading.TotalBytes = int64(i)*stepsEach+int64(done*stepsEach), int64(n)*stepsEach
	reading.TotalFinal = reading.TotalFinal && i == n-1
	if n > 1 && reading.CurrentItem != "" {
		reading.CurrentItem = fmt.Sprintf("repository %d of %d: %s", i+1, n, reading.CurrentItem)
	}
	if i > 0 && reading.Stage == progress.StageScanning {
		reading.Stage = progress.StageTransferring
	}
	return reading
}

// withCheck takes what was found into the entry of a repository.
func withCheck(entry v1alpha1.RepositoryTaskRepository, c *uploader.CheckResult) v1alpha1.RepositoryTaskRepository {
	entry.Looks, entry.Snapshots, entry.Packs = int32(min(c.Looks, 1000)), c.Snapshots, c.Packs
	setLocks(&entry, c.Locks, c.LockError)
	entry.Result, entry.Reason, entry.Message = v1alpha1.RepositoryWhole, "", messageOf(c.Note)
	if c.Damaged == 0 {
		return entry
	}
	entry.Result, entry.Reason = v1alpha1.RepositoryDamaged, v1alpha1.ReasonDamaged
	entry.Damaged, entry.DamagedPacks, entry.Unread = c.Damaged, c.DamagedPacks, c.Unread
	entry.TouchedSnapshots, entry.TouchedUnknown, entry.Remedies = c.Touched, messageOf(c.TouchError), c.Remedies
	entry.SnapshotIDs = c.TouchedSnapshots[:min(len(c.TouchedSnapshots), uploader.MaxExamples)]
	entry.Paths = nil
	for _, path := range c.TouchedPaths {
		entry.Paths = append(entry.Paths, text.Line(path, maxPath))
	}
	entry.Message = messageOf(damageMessage(c))
	if c.Note != "" {
		entry.Message = messageOf(damageMessage(c) + "; " + c.Note)
	}
	return entry
}

func damageMessage(c *uploader.CheckResult) string {
	said := text.Count(c.Damaged, "object is", "objects are") + " damaged or missing, such as " + c.LastError
	if c.Unread > 0 {
		said += fmt.Sprintf("; %d more could not be read", c.Unread)
	}
	switch {
	case c.TouchError != "" && c.Touched == 0:
		said += "; which snapshots need it is not known: " + c.TouchError
	case c.TouchError != "":
		said += fmt.Sprintf("; at least %s it: %s", text.Count(c.Touched, "snapshot needs", "snapshots need"), c.TouchError)
	case c.Touched == 0:
		said += "; no snapshot needs it"
	default:
		said += "; " + text.Count(c.Touched, "snapshot needs", "snapshots need") + " it"
	}
	return said
}

// writeRepository records what became of a repository. found is what was found if it is well.
func (r *run) writeRepository(ctx context.Context, i int, entry v1alpha1.RepositoryTaskRepository, found string) error {
	entry.CompletionTimestamp = new(metav1.NewTime(r.cfg.Now()))
	if err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) { s.Repositories[i], s.Reason = entry, "" }); err != nil {
		return fmt.Errorf("write the result of repository %s: %w", nameOf(&entry), err)
	}
	r.log.Info("Repository is done", "location", entry.BackupStorageLocation, "namespace", entry.VolumeNamespace, "result", entry.Result, "snapshots", entry.Snapshots, "packs", entry.Packs,
		"damaged", entry.Damaged, "message", entry.Message)
	kind, about := corev1.EventTypeNormal, found
	if entry.Result == v1alpha1.RepositoryDamaged || entry.Result == v1alpha1.RepositoryFailed {
		kind, about = corev1.EventTypeWarning, entry.Message
	}
	r.emit(kind, string(entry.Result), nameOf(&entry), "Repository %s: %s", nameOf(&entry), about)
	return nil
}

// nameOf names a repository for people.
func nameOf(entry *v1alpha1.RepositoryTaskRepository) string {
	return entry.BackupStorageLocation + "/" + entry.VolumeNamespace
}

// checkOutcome sums up a task that checks.
func checkOutcome(status *v1alpha1.RepositoryTaskStatus, note string) outcome {
	s := summarizeCheck(status.Repositories)
	s.note = note
	if s.damaged+s.failed > 0 {
		return outcome{false, s.reason, s.String()}
	}
	return outcome{true, v1alpha1.ReasonWhole, s.String()}
}

// checkSummary counts the results of the repositories.
type checkSummary struct {
	whole, damaged, failed int64
	snapshots, packs       int64
	reason                 v1alpha1.Reason
	example                *v1alpha1.RepositoryTaskRepository // the worst one
	note                   string
}

func summarizeCheck(repositories []v1alpha1.RepositoryTaskRepository) checkSummary {
	var s checkSummary
	for i := range repositories {
		entry := &repositories[i]
		s.snapshots, s.packs = s.snapshots+entry.Snapshots, s.packs+entry.Packs
		switch entry.Result {
		case v1alpha1.RepositoryWhole:
			s.whole++
		case v1alpha1.RepositoryDamaged:
			if s.damaged++; s.damaged == 1 {
				s.reason, s.example = entry.Reason, entry
			}
		case v1alpha1.RepositoryFailed, v1alpha1.RepositoryPending, // the following are no results of a check
			v1alpha1.RepositoryMeasured, v1alpha1.RepositoryForgotten, v1alpha1.RepositoryPlanned, v1alpha1.RepositoryPruned, v1alpha1.RepositoryRepaired:
			if s.failed++; s.example == nil {
				s.reason, s.example = entry.Reason, entry
			}
		}
	}
	return s
}

// String says what was found.
func (s *checkSummary) String() string {
	var said strings.Builder
	fmt.Fprintf(&said, "%s whole: %s checked", text.Count(s.whole, "repository is", "repositories are"), text.Count(s.snapshots, "snapshot", "snapshots"))
	if s.packs > 0 {
		fmt.Fprintf(&said, ", %s read", text.Count(s.packs, "pack", "packs"))
	}
	if s.damaged > 0 {
		fmt.Fprintf(&said, "; %d damaged", s.damaged)
	}
	if s.failed > 0 {
		fmt.Fprintf(&said, "; %d not checked", s.failed)
	}
	if s.note != "" {
		said.WriteString(". " + s.note)
	}
	if s.example != nil {
		fmt.Fprintf(&said, ". %s: %s", nameOf(s.example), s.example.Message)
	}
	return text.Line(said.String(), maxMessage)
}
