package proof

import (
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// Harm is damage that was found in a backup of a claim, or of a volume whose claim is not known, and that no proof of one that is as new has ended.
type Harm struct {
	Volume          Volume
	ClaimUID        string // empty: not known
	PodVolumeBackup string
	Tasks           []string // that have found it; none: it is only noted on the PodVolumeBackup
}

// HarmIn returns the harm that tasks have found, and what is noted on backups.
func HarmIn(tasks []v1alpha1.RepositoryTask, backups []velerov1.PodVolumeBackup) []*Harm {
	var all []*Harm
	results := ResultsOf(tasks)
	for i := range tasks {
		for j := range tasks[i].Status.Volumes {
			v := &tasks[i].Status.Volumes[j]
			if known := results[VolumeIn(v)]; !isDamagedStill(v, known) || !slices.Contains(known, v) {
				continue
			}
			var h *Harm
			all, h = addHarm(all, Harm{Volume: VolumeIn(v), ClaimUID: v.ClaimUID, PodVolumeBackup: v.PodVolumeBackup})
			if !slices.Contains(h.Tasks, tasks[i].Name) {
				h.Tasks = append(h.Tasks, tasks[i].Name)
			}
		}
	}
	for i := range backups {
		if pvb := &backups[i]; IsMarkedDamaged(pvb, backups) {
			all, _ = addHarm(all, Harm{Volume: VolumeOf(pvb), ClaimUID: pvb.Labels[velerov1.PVCUIDLabel], PodVolumeBackup: pvb.Name})
		}
	}
	return all
}

// addHarm adds harm, and returns it, or what is known already of the same volume and claim.
func addHarm(all []*Harm, harm Harm) ([]*Harm, *Harm) {
	for _, h := range all {
		if h.Volume == harm.Volume && h.ClaimUID == harm.ClaimUID {
			return all, h
		}
	}
	return append(all, &harm), &harm
}

// isDamagedStill reports whether a result is damage that none of the volume's results clears.
func isDamagedStill(damage *v1alpha1.RepositoryTaskVolume, all []*v1alpha1.RepositoryTaskVolume) bool {
	return Damage(damage) && !slices.ContainsFunc(all, func(other *v1alpha1.RepositoryTaskVolume) bool { return clears(other, damage) })
}

// Source names what was backed up, for the end of a sentence.
func (h *Harm) Source() string {
	if h.ClaimUID == "" {
		return "the volume"
	}
	return "the claim with UID " + h.ClaimUID
}

// WayOut says how harm ends that no proof will: a claim that was deleted gets no new backup.
func (h *Harm) WayOut() string {
	said := "If the backups of that claim are of no use any more, delete them"
	if h.ClaimUID == "" {
		said = "If the backups of that volume are of no use any more, delete them"
	}
	if len(h.Tasks) == 0 {
		return said
	}
	said += ", and RepositoryTask " + h.Tasks[0]
	if more := len(h.Tasks) - 1; more > 0 {
		said += " and " + text.Count(more, "other that has found damage in them", "others that have found damage in them")
	}
	return said
}
