package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// forgetting is the work on the snapshots of one repository that are open.
//
// A record must not claim a snapshot that is gone, and no snapshot may be left that nobody knows. So the record is marked first, then the
// snapshot is removed and looked for, and then the record is deleted. Whoever begins again after a kill at any moment finds the
// mark, and goes on; of a record without it nothing was removed.
type forgetting struct {
	*run

	at         int // among the task's repositories
	entry      *v1alpha1.RepositoryTaskRepository
	forgetter  uploader.Forgetter
	repository uploader.Repository
	sink       progress.Sink
	open       []*openSnapshot
	kept       []*openSnapshot // what is to stay of the volumes of which something is to go, or may be gone
}

// openSnapshot is a snapshot of the plan, and its record.
type openSnapshot struct {
	v1alpha1.RetentionSnapshot

	volume, at int                       // where it stands in the plan
	record     *velerov1.PodVolumeBackup // nil: it was deleted, or the snapshot is an orphan
	marked     bool
}

// forgetOnce does what is open in a repository, and writes what became of each snapshot.
func (r *run) forgetOnce(ctx context.Context, i, n int, _ []*velerov1.PodVolumeBackup, entry *v1alpha1.RepositoryTaskRepository) error {
	f := &forgetting{run: r, at: i, entry: entry, forgetter: r.cfg.Forgetters[entry.Uploader]}
	f.sink = progress.SinkFunc(func(reading progress.Reading) { r.tracker.Report(inSteps(reading, i, n)) })
	if f.forgetter == nil {
		return fmt.Errorf("snapshots of %s cannot be forgotten: %w", entry.Uploader, uploader.ErrUnsupported)
	}
	err := f.readOpen(ctx)
	if err == nil {
		err = f.forgetOpen(ctx)
	}
	return errors.Join(err, f.writeResults(ctx))
}

// readOpen reads the snapshots that are open, and their records.
func (f *forgetting) readOpen(ctx context.Context) error {
	records, err := f.records(ctx)
	if err != nil {
		return err
	}
	byName := map[string]*velerov1.PodVolumeBackup{}
	for i := range records.Backups {
		byName[records.Backups[i].Name] = &records.Backups[i]
	}
	plan := f.status().Retention
	for i := range plan.Volumes {
		v := &plan.Volumes[i]
		if v.BackupStorageLocation != f.entry.BackupStorageLocation || v.Namespace != f.entry.VolumeNamespace || v.Uploader != f.entry.Uploader {
			continue
		}
		someGo := slices.ContainsFunc(v.Snapshots, func(s v1alpha1.RetentionSnapshot) bool { return isOpen(&s) })
		for j := range v.Snapshots {
			s := &openSnapshot{RetentionSnapshot: v.Snapshots[j], volume: i, at: j, record: byName[v.Snapshots[j].PodVolumeBackup]}
			if !isOpen(&s.RetentionSnapshot) {
				if someGo && isKept(&s.RetentionSnapshot) {
					f.kept = append(f.kept, s)
				}
				continue
			}
			if s.record != nil {
				s.marked = s.record.Annotations[v1alpha1.AnnotationForgetting] != ""
			}
			f.open = append(f.open, s)
		}
	}
	return nil
}

// isKept reports whether the plan keeps a snapshot that the repository must have then. Of one that an earlier try has refused that is not known.
func isKept(s *v1alpha1.RetentionSnapshot) bool {
	return s.Result == v1alpha1.RetentionKept && !slices.Contains(s.Rules, retention.RuleAnother)
}

// forgetOpen looks which of the open snapshots are there, marks their records, and removes them.
func (f *forgetting) forgetOpen(ctx context.Context) error {
	var err error
	if f.repository, err = f.address(ctx); err != nil {
		return err
	}
	if f.object.Spec.Orphans == "" { // else it stays that of the plan
		f.entry.Address = shownAddress(&f.repository)
	}
	if f.repository.ReadOnly {
		return fmt.Errorf("the BackupStorageLocation is read-only, so nothing in it is forgotten: %w", uploader.ErrUnsupported)
	}
	if err := f.lookForOthers(ctx); err != nil {
		return err
	}
	if f.object.Spec.Orphans != "" {
		return f.removeOrphans(ctx)
	}
	if err := f.lookForOpen(ctx); err != nil {
		return err
	}
	if err := f.markAll(ctx); err != nil {
		return err
	}
	if err := f.keepNeeded(ctx); err != nil {
		return err
	}
	if err := f.remove(ctx); err != nil {
		if ctx.Err() == nil {
			f.unmarkPresent(ctx)
		}
		return err
	}
	return nil
}

// address returns the repository of the records, or, if all are deleted, of the plan.
func (f *forgetting) address(ctx context.Context) (uploader.Repository, error) {
	var records []*velerov1.PodVolumeBackup
	for _, s := range f.open {
		if s.record != nil {
			records = append(records, s.record)
		}
	}
	return f.repositories.Of(ctx, like(f.entry, records))
}

// What has become of a record that the plan names.
const (
	deletedMeanwhile = "its PodVolumeBackup was deleted meanwhile, and not by this task: the snapshot is left in the repository"
	changedMeanwhile = "its PodVolumeBackup was changed meanwhile"
	keptIsUnnamed    = "its PodVolumeBackup, which is to be kept, was deleted or changed meanwhile, so nothing of the volume is forgotten: the next task makes a new plan"
	bothAreLost      = "the repository does not have the snapshot, nor that of PodVolumeBackup %s, which is to be kept, so it is not known whether a task has removed it: the location may lead to another bucket, or to an older copy. Its PodVolumeBackup stays with the mark; the next task of type Forget looks again"
	keptIsLost       = "the repository does not have the snapshot, which is to be kept, so nothing of the volume is forgotten: 'kubectl plimsoll repository check' says more. If it is given up, delete this PodVolumeBackup"
)

// lookForOthers looks for what was there before a try that has failed after it had begun to remove snapshots.
func (f *forgetting) lookForOthers(ctx context.Context) error {
	others := f.others[f.at]
	if len(others) == 0 {
		return nil
	}
	req := uploader.ForgetRequest{Repository: f.repository}
	for _, id := range others {
		req.Snapshots = append(req.Snapshots, uploader.ForgetSnapshot{ID: id, Look: true})
	}
	result, err := f.forgetter.Forget(ctx, req, f.sink)
	if err != nil {
		return err
	}
	lost := slices.IndexFunc(result.Snapshots, func(o uploader.ForgetOutcome) bool { return o.State == uploader.ForgetNotFound })
	if lost >= 0 {
		f.noteLostSnapshot(ctx, others[lost])
	}
	delete(f.others, f.at)
	return nil
}

func (f *forgetting) noteLostSnapshot(ctx context.Context, id string) {
	f.noteLost(ctx, f.at, fmt.Sprintf("snapshot %s, which was not to be forgotten, was there before and is not there now. Velero's server may have deleted its Backup meanwhile; otherwise check the repository at once", id))
}

// lookForOpen finds out which of the open snapshots are there, with the repository's password and without any change. Records of snapshots that this or an
// earlier task has removed are deleted, unless the volume lacks one that is to be kept: then this may be another repository than the one that the task
// worked on.
func (f *forgetting) lookForOpen(ctx context.Context) error {
	outcomes, err := f.forget(ctx, slices.Concat(f.open, f.kept), true)
	if err != nil {
		return err
	}
	lacking := f.lacking(outcomes[len(f.open):])
	for i, s := range f.open {
		there := outcomes[i].State != uploader.ForgetNotFound
		switch {
		case outcomes[i].State == uploader.ForgetRefused:
			s.keep(retention.RuleAnother, outcomes[i].Why)
		case s.record == nil && there:
			s.fail(deletedMeanwhile)
		case s.record == nil:
			s.Result, s.Rules, s.Message = v1alpha1.RetentionForgotten, nil, ""
		case !there && s.marked && lacking[s.volume] != "":
			s.fail(fmt.Sprintf(bothAreLost, lacking[s.volume]))
		case !there && s.marked:
			if err := f.deleteRecord(ctx, s); err != nil {
				return err
			}
		case !there:
			s.fail("the repository does not have the snapshot, and no task has removed it: 'kubectl plimsoll repository verify' says more")
		case isInterrupted(&s.RetentionSnapshot):
			if err := f.unmark(ctx, s); err != nil {
				return err
			}
			s.Message = "an earlier task has begun to forget it, and it is there: the next task decides by its policy"
		}
	}
	return f.lookAtKept(ctx, outcomes[len(f.open):])
}

// lacking returns the PodVolumeBackup of a snapshot that is to be kept and is not there, by volume.
func (f *forgetting) lacking(outcomes []uploader.ForgetOutcome) map[int]string {
	lacking := map[int]string{}
	for i, s := range f.kept {
		if outcomes[i].State != uploader.ForgetPresent && lacking[s.volume] == "" {
			lacking[s.volume] = s.PodVolumeBackup
		}
	}
	return lacking
}

// lookAtKept keeps all snapshots of a volume that lacks one of those that are to be kept: what was to go may be all that is left of it. outcomes is nil
// where only the records were read again.
func (f *forgetting) lookAtKept(ctx context.Context, outcomes []uploader.ForgetOutcome) error {
	lacks := map[int]string{} // why the volume's others stay
	for i, s := range f.kept {
		why := ""
		switch {
		case s.Result != v1alpha1.RetentionKept: // known since the first look
		case s.lacksRecord():
			s.fail(keptIsUnnamed)
			why = "PodVolumeBackup " + s.PodVolumeBackup + " is to be kept, and was deleted or changed meanwhile"
		case outcomes != nil && outcomes[i].State != uploader.ForgetPresent:
			s.fail(strings.TrimPrefix(outcomes[i].Why+": "+keptIsLost, ": "))
			why = "the snapshot of PodVolumeBackup " + s.PodVolumeBackup + " is to be kept, and the repository does not have it"
		}
		if lacks[s.volume] == "" {
			lacks[s.volume] = why
		}
	}
	for _, s := range f.open {
		why := lacks[s.volume]
		if why == "" || s.Result != v1alpha1.RetentionPending {
			continue
		}
		if s.marked {
			if err := f.unmark(ctx, s); err != nil {
				return err
			}
		}
		s.keep(retention.RuleLost, why)
	}
	return nil
}

// lacksRecord reports whether the record of a snapshot that is to be kept does not name it any more, or may soon be deleted.
func (s *openSnapshot) lacksRecord() bool {
	return s.record == nil || s.record.Status.SnapshotID != s.SnapshotID || s.record.Annotations[v1alpha1.AnnotationForgetting] != "" || !retention.IsCandidate(s.record)
}

// keepNeeded reads again what needs snapshots, and the records themselves: what has begun after the marks does not take a marked record, who asks
// for a record to be kept while many are marked is heard, and where a record that is to be kept was deleted meanwhile the volume's others stay.
func (f *forgetting) keepNeeded(ctx context.Context) error {
	records, err := f.records(ctx)
	if err != nil {
		return err
	}
	protection := retention.NewProtection(records)
	for _, s := range f.open {
		if s.Result != v1alpha1.RetentionPending {
			continue
		}
		fresh := sameRecord(records, s.record)
		if fresh == nil {
			s.fail(deletedMeanwhile)
			continue
		}
		s.record = fresh
		rule, why := protection.Of(s.record)
		if s.record.Status.SnapshotID != s.SnapshotID || !retention.IsCandidate(s.record) {
			rule, why = retention.RuleAnother, changedMeanwhile
		}
		if rule != "" {
			if err := f.unmark(ctx, s); err != nil {
				return err
			}
			s.keep(rule, why)
		}
	}
	for _, s := range f.kept {
		if s.record != nil {
			s.record = sameRecord(records, s.record)
		}
	}
	return f.lookAtKept(ctx, nil)
}

// sameRecord returns a record as it is by now, but no other of its name; nil: it was deleted.
func sameRecord(now *retention.Records, record *velerov1.PodVolumeBackup) *velerov1.PodVolumeBackup {
	i := slices.IndexFunc(now.Backups, func(pvb velerov1.PodVolumeBackup) bool { return pvb.UID == record.UID })
	if i < 0 {
		return nil
	}
	return &now.Backups[i]
}

// remove removes the snapshots, and the records of those that are gone.
func (f *forgetting) remove(ctx context.Context) error {
	var pending []*openSnapshot
	for _, s := range f.open {
		if s.Result == v1alpha1.RetentionPending {
			pending = append(pending, s)
		}
	}
	if len(pending) == 0 {
		return nil
	}
	outcomes, err := f.forget(ctx, pending, false)
	if err != nil {
		return err
	}
	for i, s := range pending {
		switch outcomes[i].State {
		case uploader.ForgetRemoved, uploader.ForgetNotFound: // it was there when the record was marked
			err = f.deleteRecord(ctx, s)
		case uploader.ForgetRefused, uploader.ForgetPresent:
			s.keep(retention.RuleAnother, outcomes[i].Why)
			if s.record != nil {
				err = f.unmark(ctx, s)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget has the data path remove snapshots, or only look for them.
func (f *forgetting) forget(ctx context.Context, snapshots []*openSnapshot, look bool) ([]uploader.ForgetOutcome, error) {
	req := uploader.ForgetRequest{Repository: f.repository}
	for _, s := range snapshots {
		wanted := uploader.ForgetSnapshot{ID: s.SnapshotID, Look: look, Orphan: f.object.Spec.Orphans != ""}
		if pvb := s.record; pvb != nil {
			wanted.Volume = uploader.SnapshotVolume{
				Namespace: pvb.Spec.Pod.Namespace, Pod: pvb.Spec.Pod.Name, PodUID: string(pvb.Spec.Pod.UID), Name: pvb.Spec.Volume, Claim: pvb.Annotations[claimAnnotation],
			}
		}
		req.Snapshots = append(req.Snapshots, wanted)
	}
	result, err := f.forgetter.Forget(ctx, req, f.sink)
	if err != nil {
		f.keepOthers(f.at, result.Others)
		return nil, err
	}
	if !look && len(result.Lost) > 0 {
		f.noteLostSnapshot(ctx, result.Lost[0])
	}
	return result.Snapshots, nil
}

// claimAnnotation names the claim of a PodVolumeBackup (docs/contracts/velero-node-agent.md 1.5).
const claimAnnotation = "velero.io/pvc-name"

// deleteRecord deletes the record of a snapshot that is gone, but no other of its name. An orphan has none.
func (f *forgetting) deleteRecord(ctx context.Context, s *openSnapshot) error {
	if s.record == nil {
		s.Result, s.Rules, s.Message = v1alpha1.RetentionForgotten, nil, ""
		return nil
	}
	err := apiretry.Policy{Retry: mayBeRepeated}.Do(ctx, func() error {
		return client.IgnoreNotFound(f.client.Delete(ctx, s.record, client.Preconditions{UID: &s.record.UID}))
	})
	if err != nil {
		return fmt.Errorf("delete PodVolumeBackup %s, whose snapshot is gone: %w", s.PodVolumeBackup, err)
	}
	s.Result, s.Rules, s.Message = v1alpha1.RetentionForgotten, nil, ""
	return nil
}

func (s *openSnapshot) keep(rule, why string) {
	s.Result, s.Rules, s.Message = v1alpha1.RetentionKept, []string{rule}, messageOf(why)
}

func (s *openSnapshot) fail(why string) {
	s.Result, s.Message = v1alpha1.RetentionFailed, messageOf(why)
}

// writeResults writes what became of the snapshots, also of those that were done before an error.
func (f *forgetting) writeResults(ctx context.Context) error {
	if len(f.open) > 0 { // else an earlier process has written them
		err := f.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) {
			for _, x := range slices.Concat(f.open, f.kept) {
				s.Retention.Volumes[x.volume].Snapshots[x.at] = x.RetentionSnapshot
			}
		})
		if err != nil {
			return fmt.Errorf("write what became of the snapshots: %w", err)
		}
	}
	f.entry.Snapshots = 0
	f.entry.Result, f.entry.Reason, f.entry.Message = v1alpha1.RepositoryForgotten, "", ""
	for _, volume := range f.status().Retention.Volumes {
		if volume.BackupStorageLocation != f.entry.BackupStorageLocation || volume.Namespace != f.entry.VolumeNamespace || volume.Uploader != f.entry.Uploader {
			continue
		}
		for _, s := range volume.Snapshots {
			if s.Result == v1alpha1.RetentionForgotten {
				f.entry.Snapshots++
			}
		}
	}
	return nil
}
