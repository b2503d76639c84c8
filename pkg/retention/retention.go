// Package retention says which snapshots of volumes a policy keeps, which it does not, and which must stay whatever the policy says.
// It changes nothing.
//
// A policy is about the PodVolumeBackups that belong to no Backup, as 'kubectl plimsoll volume backup' makes them. Whatever is in doubt is
// kept: a record with any trace of a Backup is not looked at, and a snapshot that two records name stays. Orphans are snapshots without a record.
package retention

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// The rules that keep a snapshot whatever the policy says. The others have the names of the policy's fields.
const (
	RuleNewest      = "Newest"      // of its volume, by when the record was created
	RuleNewestWhole = "NewestWhole" // the newest one whose backup has read all files
	RuleKeep        = "Keep"        // annotation v1alpha1.AnnotationKeep
	RuleInFuture    = "InFuture"    // a clock was wrong: it counts for no other rule
	RuleInUse       = "InUse"       // a restore or another task reads it
	RuleShared      = "Shared"      // another record names the same snapshot
	RuleDamaged     = "Damaged"     // damage was found in the volume's backups or its repository, so others may be all that is left
	RuleInterrupted = "Interrupted" // an earlier task has begun to forget it: it counts for no other rule
	RuleAnother     = "Another"     // the snapshot in the repository is of another volume than the record names
	RuleLost        = "Lost"        // one that is to be kept of the volume is gone, or its record is, so this one may be all that is left
)

// Records are the objects of a namespace that say what is needed.
type Records struct {
	Backups  []velerov1.PodVolumeBackup
	Restores []velerov1.PodVolumeRestore
	Tasks    []v1alpha1.RepositoryTask // without the one that asks
	Files    []v1alpha1.FileRequest
	// DamagedRepository reports whether damage was found in the repository of a PodVolumeBackup.
	DamagedRepository func(*velerov1.PodVolumeBackup) bool
}

// Request is what a task of type Forget asks for.
type Request struct {
	Policy          *v1alpha1.RetentionPolicy
	Volume          *v1alpha1.PodVolumeSelector // nil: all
	StorageLocation string                      // empty: all
	Now             time.Time
}

// BelongsToNone reports whether a PodVolumeBackup has no trace of a Velero Backup, nor of any other owner. Velero's are owned by
// their Backup, and have its name as a label and as a tag: a record that has lost one of these is still not taken for one without.
func BelongsToNone(pvb *velerov1.PodVolumeBackup) bool {
	if len(pvb.OwnerReferences) > 0 {
		return false
	}
	for _, label := range []string{velerov1.BackupNameLabel, velerov1.BackupUIDLabel} {
		if _, has := pvb.Labels[label]; has {
			return false
		}
	}
	for tag := range pvb.Spec.Tags {
		if strings.HasPrefix(tag, "backup") { // backup, backup-uid
			return false
		}
	}
	return true
}

// volume is what the policy is for.
type volume struct {
	storageLocation, uploader, namespace string
	claim                                string // the UID of the claim
	pod, name                            string // without a claim
}

func volumeOf(pvb *velerov1.PodVolumeBackup) volume {
	v := volume{storageLocation: pvb.Spec.BackupStorageLocation, uploader: v1alpha1.UploaderName(pvb.Spec.UploaderType), namespace: pvb.Spec.Pod.Namespace}
	if v.claim = pvb.Labels[velerov1.PVCUIDLabel]; v.claim == "" {
		v.pod, v.name = pvb.Spec.Pod.Name, pvb.Spec.Volume
	}
	return v
}

// Plan says what becomes of each snapshot of the selected records, and which wave of deletions that is.
func Plan(records *Records, req Request) *v1alpha1.RepositoryRetention {
	volumes := map[volume][]*velerov1.PodVolumeBackup{}
	for i := range records.Backups {
		pvb := &records.Backups[i]
		if IsCandidate(pvb) && req.Volume.Selects(&pvb.Spec.Pod, pvb.Spec.Volume) && (req.StorageLocation == "" || req.StorageLocation == pvb.Spec.BackupStorageLocation) {
			volumes[volumeOf(pvb)] = append(volumes[volumeOf(pvb)], pvb)
		}
	}
	protection := NewProtection(records)
	plan := &v1alpha1.RepositoryRetention{}
	for _, backups := range volumes {
		plan.Volumes = append(plan.Volumes, planVolume(backups, protection, req))
	}
	slices.SortFunc(plan.Volumes, byVolume)
	setWave(plan, records, req.Policy)
	return plan
}

func byVolume(a, b v1alpha1.RetentionVolume) int {
	return cmp.Or(cmp.Compare(a.BackupStorageLocation, b.BackupStorageLocation), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Uploader, b.Uploader),
		cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume), cmp.Compare(a.ClaimUID, b.ClaimUID))
}

// IsCandidate reports whether a policy may be for the record: it belongs to no Backup, has completed, and names a snapshot.
func IsCandidate(pvb *velerov1.PodVolumeBackup) bool {
	return BelongsToNone(pvb) && pvb.DeletionTimestamp == nil && pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && pvb.Status.SnapshotID != ""
}

// maxSkew is how far clocks may differ.
const maxSkew = 10 * time.Minute

// planVolume says what becomes of each snapshot of a volume.
func planVolume(backups []*velerov1.PodVolumeBackup, protection *Protection, req Request) v1alpha1.RetentionVolume {
	slices.SortFunc(backups, func(a, b *velerov1.PodVolumeBackup) int {
		return cmp.Or(proof.RecordedTime(b).Compare(proof.RecordedTime(a)), cmp.Compare(a.Name, b.Name))
	})
	newest := backups[0]
	v := v1alpha1.RetentionVolume{
		Namespace: newest.Spec.Pod.Namespace, Pod: newest.Spec.Pod.Name, Volume: newest.Spec.Volume, ClaimUID: newest.Labels[velerov1.PVCUIDLabel],
		BackupStorageLocation: newest.Spec.BackupStorageLocation, Uploader: v1alpha1.UploaderName(newest.Spec.UploaderType),
	}
	var counted []*velerov1.PodVolumeBackup
	rules := map[string][]string{}
	for _, pvb := range backups {
		switch {
		case proof.RecordedTime(pvb).After(req.Now.Add(maxSkew)):
			rules[pvb.Name] = []string{RuleInFuture}
		case pvb.Annotations[v1alpha1.AnnotationForgetting] != "":
			rules[pvb.Name] = []string{RuleInterrupted}
		default:
			counted = append(counted, pvb)
		}
	}
	for i, by := range kept(counted, req.Policy) {
		rules[counted[i].Name] = by
	}
	keepNewest(counted, rules)
	for _, pvb := range backups {
		s := v1alpha1.RetentionSnapshot{
			PodVolumeBackup: pvb.Name, SnapshotID: pvb.Status.SnapshotID, BackupTimestamp: metav1.NewTime(proof.RecordedTime(pvb)), Result: v1alpha1.RetentionPending,
			Rules: rules[pvb.Name],
		}
		if rule, why := protection.Of(pvb); rule != "" && !slices.Contains(s.Rules, RuleInterrupted) { // that one is only looked for
			s.Rules, s.Message = append(s.Rules, rule), why
		}
		if len(s.Rules) > 0 {
			s.Result = v1alpha1.RetentionKept
		}
		v.Snapshots = append(v.Snapshots, s)
	}
	return v
}

// keepNewest keeps the record that was created last, since the times of backups are those of the clocks of nodes, and the newest backup
// that lacks no files.
func keepNewest(backups []*velerov1.PodVolumeBackup, rules map[string][]string) {
	if len(backups) == 0 {
		return
	}
	created := slices.MaxFunc(backups, func(a, b *velerov1.PodVolumeBackup) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	if len(rules[created.Name]) == 0 {
		rules[created.Name] = []string{RuleNewest}
	}
	if whole := slices.IndexFunc(backups, isWhole); whole >= 0 && len(rules[backups[whole].Name]) == 0 {
		rules[backups[whole].Name] = []string{RuleNewestWhole}
	}
}

// isWhole reports whether a backup has read all files, as far as its agent says it: none was unreadable, not many vanished meanwhile, and it is not
// without data where an earlier one has some.
func isWhole(pvb *velerov1.PodVolumeBackup) bool {
	var said v1alpha1.VolumeProgress
	err := json.Unmarshal([]byte(cmp.Or(pvb.Annotations[v1alpha1.AnnotationProgress], "{}")), &said)
	return err == nil && said.Errors == 0 && said.Reason != v1alpha1.ReasonVanishedFiles && said.Reason != v1alpha1.ReasonVolumeBecameEmpty
}

// kept returns the rules of the policy that keep each backup. The newest comes first.
func kept(backups []*velerov1.PodVolumeBackup, p *v1alpha1.RetentionPolicy) [][]string {
	rules := make([][]string, len(backups))
	for _, rule := range rulesOf(p) {
		last, n := "", int32(0)
		for i, pvb := range backups {
			period := rule.period(i, proof.RecordedTime(pvb).UTC())
			if period == last {
				continue
			}
			if last, n = period, n+1; n > rule.count {
				break
			}
			rules[i] = append(rules[i], rule.name)
		}
	}
	if p.Within == nil {
		return rules
	}
	for i, pvb := range backups {
		if proof.RecordedTime(backups[0]).Sub(proof.RecordedTime(pvb)) <= p.Within.Duration {
			rules[i] = append(rules[i], "Within")
		}
	}
	return rules
}

// rule keeps the newest backup of each of the last count periods that have one.
type rule struct {
	name   string
	count  int32
	period func(i int, at time.Time) string
}

// rulesOf returns the rules that count.
func rulesOf(p *v1alpha1.RetentionPolicy) []rule {
	by := func(layout string) func(int, time.Time) string {
		return func(_ int, at time.Time) string { return at.Format(layout) }
	}
	all := []rule{
		{ruleLast, p.Last, func(i int, _ time.Time) string { return strconv.Itoa(i) }},
		{ruleHourly, p.Hourly, by("2006-01-02 15")},
		{"Daily", p.Daily, by(time.DateOnly)},
		{"Weekly", p.Weekly, func(_ int, at time.Time) string {
			year, week := at.ISOWeek()
			return fmt.Sprint(year, " ", week)
		}},
		{"Monthly", p.Monthly, by("2006-01")},
		{"Yearly", p.Yearly, by("2006")},
	}
	return slices.DeleteFunc(all, func(r rule) bool { return r.count <= 0 })
}
