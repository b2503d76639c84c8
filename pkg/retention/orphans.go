package retention

import (
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// The rules that keep a snapshot of which no record is known.
const (
	RuleYoung    = "Young"    // it is younger than OrphanAge
	RuleNoBackup = "NoBackup" // the repository does not know a Backup, so it may be one of 'volume backup' in another cluster
	RuleNeeded   = "Needed"   // a Backup needs it: no plan lists it
)

// OrphanAge is how old an orphan is at least. A Backup of another cluster is in the bucket when it has ended, and its snapshots are in the repository
// before: no Backup should run for a week.
const OrphanAge = 7 * 24 * time.Hour

// Needs says which snapshots in the repositories of a BackupStorageLocation something needs.
type Needs struct {
	Protection *Protection
	// Backups has the names of all Backups in the cluster and in the location's bucket.
	Backups map[string]bool
	// Stored has the snapshots that the lists of the Backups in the bucket name, and the Backup.
	Stored map[string]string
	// Running are the PodVolumeBackups that have not ended.
	Running []velerov1.PodVolumeBackup
	// All makes orphans also of snapshots of which the repository does not know the Backup.
	All bool
	Now time.Time

	stored map[string]string // Stored by shortID
}

// Of returns the rule that keeps a snapshot of a repository, and what there is to say about it. Empty: it is an orphan.
func (n *Needs) Of(repository v1alpha1.RepositoryKey, s *uploader.RepositorySnapshot) (rule, why string) {
	rule, why = n.Protection.Of(recordOf(repository, s))
	switch {
	case rule == RuleShared:
		return RuleNeeded, why
	case n.nameStored()[shortID(s.ID)] != "":
		return RuleNeeded, "Backup " + n.stored[shortID(s.ID)] + " in the bucket names it"
	case n.Backups[s.Backup]:
		return RuleNeeded, "it was made for Backup " + s.Backup + ", and there is one of that name"
	case s.Protected != "":
		return RuleAnother, s.Protected
	case s.Volume.Namespace != repository.VolumeNamespace:
		return RuleAnother, "it is of namespace " + s.Volume.Namespace
	case s.Backup == "" && !n.All:
		return RuleNoBackup, "the repository does not know for which Backup it was made, so another cluster may need it"
	case n.Now.Sub(s.Time) < OrphanAge:
		return RuleYoung, "a Backup of another cluster may not be in the bucket yet"
	}
	for i := range n.Running {
		if pod := &n.Running[i].Spec.Pod; pod.Namespace == s.Volume.Namespace && pod.Name == s.Volume.Pod {
			return RuleInUse, "PodVolumeBackup " + n.Running[i].Name + " of the pod has not ended"
		}
	}
	if harm := n.Protection.harmIn(repository); rule == "" && harm != nil {
		return RuleDamaged, harmText(harm)
	}
	return rule, why
}

func (n *Needs) nameStored() map[string]string {
	if n.stored == nil {
		n.stored = map[string]string{}
		for id, backup := range n.Stored {
			n.stored[shortID(id)] = backup
		}
	}
	return n.stored
}

// recordOf is what a record of the snapshot would be, for what protects records. No record has its name.
func recordOf(repository v1alpha1.RepositoryKey, s *uploader.RepositorySnapshot) *velerov1.PodVolumeBackup {
	return &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{Name: "/" + s.ID},
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Namespace: repository.VolumeNamespace, Name: s.Volume.Pod}, Volume: s.Volume.Name,
			BackupStorageLocation: repository.BackupStorageLocation, UploaderType: repository.Uploader,
		},
		Status: velerov1.PodVolumeBackupStatus{SnapshotID: s.ID},
	}
}

// OrphanRepository is a repository with all its snapshots.
type OrphanRepository struct {
	Key       v1alpha1.RepositoryKey
	Snapshots []uploader.RepositorySnapshot
	Needs     *Needs // of its location
}

// PlanOrphans says which of the selected snapshots nothing needs, and which of those that no Backup and no record names stay all the same. New backups
// explain none of them.
func PlanOrphans(repositories []OrphanRepository, selector *v1alpha1.PodVolumeSelector) *v1alpha1.RepositoryRetention {
	volumes := map[volume]*v1alpha1.RetentionVolume{}
	var wave []string
	for i := range repositories {
		r := &repositories[i]
		for j := range r.Snapshots {
			s := &r.Snapshots[j]
			record := recordOf(r.Key, s)
			rule, why := r.Needs.Of(r.Key, s)
			if rule == RuleNeeded || !selector.Selects(&record.Spec.Pod, record.Spec.Volume) {
				continue
			}
			v := volumes[volumeOf(record)]
			if v == nil {
				v = &v1alpha1.RetentionVolume{
					Namespace: r.Key.VolumeNamespace, Pod: s.Volume.Pod, Volume: s.Volume.Name, BackupStorageLocation: r.Key.BackupStorageLocation, Uploader: r.Key.Uploader,
				}
				volumes[volumeOf(record)] = v
			}
			planned := v1alpha1.RetentionSnapshot{SnapshotID: s.ID, Backup: s.Backup, BackupTimestamp: metav1.NewTime(s.Time), Result: v1alpha1.RetentionPending}
			if rule != "" {
				planned.Result, planned.Rules, planned.Message = v1alpha1.RetentionKept, []string{rule}, why
			} else {
				wave = append(wave, nameIn(v, &planned))
			}
			v.Snapshots = append(v.Snapshots, planned)
		}
	}
	plan := &v1alpha1.RepositoryRetention{Unexplained: int32(len(wave)), Wave: waveOf(wave)}
	for _, v := range volumes {
		slices.SortStableFunc(v.Snapshots, func(a, b v1alpha1.RetentionSnapshot) int { return b.BackupTimestamp.Compare(a.BackupTimestamp.Time) })
		plan.Volumes = append(plan.Volumes, *v)
	}
	slices.SortFunc(plan.Volumes, byVolume)
	return plan
}
