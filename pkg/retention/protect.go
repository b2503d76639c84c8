package retention

import (
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// Protection says which snapshots are needed by something else than the policy.
type Protection struct {
	named    map[string][]*velerov1.PodVolumeBackup // by shortID of the snapshot
	restored map[string]string                      // the PodVolumeRestore that reads it, by shortID
	read     map[string]string                      // what else reads it, by the name of the PodVolumeBackup
	harmed   map[proof.Volume]bool                  // those with damage in a backup, with whichever uploader
	// harmedClaims are the UIDs of the claims of those: the pods of a Deployment have other names each time.
	harmedClaims map[string]bool
	damaged      func(*velerov1.PodVolumeBackup) bool
}

// shortID is the beginning of a snapshot's id. Velero names restic's snapshots by as much.
func shortID(id string) string { return id[:min(len(id), 8)] }

// NewProtection reads the records of a namespace.
func NewProtection(r *Records) *Protection {
	p := &Protection{
		named: map[string][]*velerov1.PodVolumeBackup{}, restored: map[string]string{}, read: map[string]string{},
		harmed: map[proof.Volume]bool{}, harmedClaims: map[string]bool{}, damaged: r.DamagedRepository,
	}
	for volume, found := range proof.Of(r.Tasks) {
		p.harmed[volume.WithAny()] = p.harmed[volume.WithAny()] || found.Damaged
	}
	for i := range r.Backups {
		pvb := &r.Backups[i]
		if proof.IsMarkedDamaged(pvb, r.Backups) {
			p.harmed[proof.VolumeOf(pvb).WithAny()] = true
		}
	}
	for i := range r.Backups {
		pvb := &r.Backups[i]
		if claim := pvb.Labels[velerov1.PVCUIDLabel]; claim != "" && p.harmed[proof.VolumeOf(pvb).WithAny()] {
			p.harmedClaims[claim] = true
		}
		if pvb.Status.SnapshotID != "" {
			p.named[shortID(pvb.Status.SnapshotID)] = append(p.named[shortID(pvb.Status.SnapshotID)], pvb)
		}
	}
	for i := range r.Restores {
		if pvr := &r.Restores[i]; !restoreHasEnded(pvr) {
			p.restored[shortID(strings.TrimPrefix(pvr.Spec.SnapshotID, v1alpha1.SnapshotIDPathsPrefix))] = pvr.Name
		}
	}
	for i := range r.Tasks {
		if task := &r.Tasks[i]; task.Spec.PodVolumeBackup != "" && !task.Status.Phase.Terminal() {
			p.read[task.Spec.PodVolumeBackup] = "RepositoryTask " + task.Name
		}
	}
	for i := range r.Files {
		p.addFiles(&r.Files[i])
	}
	return p
}

func (p *Protection) addFiles(f *v1alpha1.FileRequest) {
	p.read[f.Spec.PodVolumeBackup] = "FileRequest " + f.Name
	if f.Spec.Other != nil {
		p.read[f.Spec.Other.PodVolumeBackup] = "FileRequest " + f.Name
	}
}

func restoreHasEnded(pvr *velerov1.PodVolumeRestore) bool {
	switch pvr.Status.Phase {
	case velerov1.PodVolumeRestorePhaseCompleted, velerov1.PodVolumeRestorePhaseFailed, velerov1.PodVolumeRestorePhaseCanceled:
		return true
	default:
		return false
	}
}

// Of returns the rule that protects the snapshot of a PodVolumeBackup, and what there is to say about it. Empty: none does.
func (p *Protection) Of(pvb *velerov1.PodVolumeBackup) (rule, why string) {
	id := shortID(pvb.Status.SnapshotID)
	if reader := p.read[pvb.Name]; reader != "" {
		return RuleInUse, reader + " reads it"
	}
	if restore := p.restored[id]; restore != "" {
		return RuleInUse, "PodVolumeRestore " + restore + " has not ended"
	}
	for _, other := range p.named[id] {
		if other.Name != pvb.Name {
			return RuleShared, "PodVolumeBackup " + other.Name + " names the same snapshot"
		}
	}
	switch {
	case pvb.Annotations[v1alpha1.AnnotationKeep] == "true":
		return RuleKeep, ""
	case p.harmed[proof.VolumeOf(pvb).WithAny()], p.harmedClaims[pvb.Labels[velerov1.PVCUIDLabel]]:
		return RuleDamaged, "damage was found in a backup of the volume, and none that is as new was proven since"
	case p.damaged != nil && p.damaged(pvb):
		return RuleDamaged, "a task has found damage in the repository"
	default:
		return "", ""
	}
}

// isHarmed reports whether damage was found in a backup of a volume of the repository's namespace. A repository may not know the names of volumes.
func (p *Protection) isHarmed(repository v1alpha1.RepositoryKey) bool {
	for volume, harmed := range p.harmed {
		if harmed && volume.Namespace == repository.VolumeNamespace && volume.StorageLocation == repository.BackupStorageLocation {
			return true
		}
	}
	return false
}
