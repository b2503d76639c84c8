package retention

import (
	"cmp"
	"fmt"
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
	harms    []*proof.Harm                          // damage in backups
	// harmed are the volumes with damage in a backup, with whichever uploader, and harmedNames those of which nobody knows the claim.
	harmed, harmedNames map[proof.Volume]*proof.Harm
	// harmedClaims are by the UIDs of the claims: the pods of a Deployment have other names each time.
	harmedClaims map[string]*proof.Harm
	damaged      func(*velerov1.PodVolumeBackup) bool
}

// shortID is the beginning of a snapshot's id. Velero names restic's snapshots by as much.
func shortID(id string) string { return id[:min(len(id), 8)] }

// NewProtection reads the records of a namespace.
func NewProtection(r *Records) *Protection {
	p := &Protection{
		named: map[string][]*velerov1.PodVolumeBackup{}, restored: map[string]string{}, read: map[string]string{},
		harms: proof.HarmIn(r.Tasks, r.Backups), damaged: r.DamagedRepository,
		harmed: map[proof.Volume]*proof.Harm{}, harmedNames: map[proof.Volume]*proof.Harm{}, harmedClaims: map[string]*proof.Harm{},
	}
	p.addHarms()
	for i := range r.Backups {
		pvb := &r.Backups[i]
		if h := p.harmedNames[proof.VolumeOf(pvb).WithAny()]; h != nil {
			addFirst(p.harmedClaims, pvb.Labels[velerov1.PVCUIDLabel], h)
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

// addHarms adds what damage is in: a claim that was made again has the names of the one before, whose damage is not in its backups.
func (p *Protection) addHarms() {
	for _, h := range p.harms {
		addFirst(p.harmed, h.Volume.WithAny(), h)
		if h.ClaimUID == "" {
			addFirst(p.harmedNames, h.Volume.WithAny(), h)
			continue
		}
		addFirst(p.harmedClaims, h.ClaimUID, h)
	}
}

// addFirst adds harm where none is known.
func addFirst[K comparable](known map[K]*proof.Harm, key K, h *proof.Harm) {
	if known[key] == nil {
		known[key] = h
	}
}

// harmOf returns the damage in a backup of what a PodVolumeBackup is of: of its claim, or by its names where one of the claims is not known. Nil: none.
func (p *Protection) harmOf(pvb *velerov1.PodVolumeBackup) *proof.Harm {
	claim, volume := pvb.Labels[velerov1.PVCUIDLabel], proof.VolumeOf(pvb).WithAny()
	if claim == "" {
		return p.harmed[volume]
	}
	return cmp.Or(p.harmedClaims[claim], p.harmedNames[volume])
}

// harmText says what damage was found, and how that ends.
func harmText(h *proof.Harm) string {
	return fmt.Sprintf("damage was found in PodVolumeBackup %s, and no backup of %s that is as new was proven since. %s", h.PodVolumeBackup, h.Source(), h.WayOut())
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
	harm := p.harmOf(pvb)
	switch {
	case pvb.Annotations[v1alpha1.AnnotationKeep] == "true":
		return RuleKeep, ""
	case harm != nil:
		return RuleDamaged, harmText(harm)
	case p.damaged != nil && p.damaged(pvb):
		return RuleDamaged, "a task has found damage in the repository"
	default:
		return "", ""
	}
}

// harmIn returns damage in a backup of a volume of the repository's namespace. A repository may not know the names of volumes. Nil: there is none.
func (p *Protection) harmIn(repository v1alpha1.RepositoryKey) *proof.Harm {
	for _, h := range p.harms {
		if h.Volume.Namespace == repository.VolumeNamespace && h.Volume.StorageLocation == repository.BackupStorageLocation {
			return h
		}
	}
	return nil
}
