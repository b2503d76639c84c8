package describe

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmware-tanzu/velero/pkg/util/results"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Description is all that is known of one Backup or Restore. As JSON it is what `describe -o json` prints.
type Description struct {
	At          time.Time `json:"at"`
	Operation   Operation `json:"operation"`
	ItemPercent *int      `json:"itemPercent,omitempty"` // absent: not known yet

	Totals  Totals            `json:"totals"` // of Volumes and PluginVolumes
	Volumes []DescribedVolume `json:"volumes"`
	// PluginVolumes are those of volume snapshotter plugins. Plugins do not know for which Restore they work: those of a
	// Restore are the ones of its Backup that were begun after it.
	PluginVolumes []DescribedVolume `json:"pluginVolumes,omitempty"`

	// Records are the list of volumes that is stored with the backup or restore.
	Records []Record `json:"volumeInfo,omitempty"`
	// Results are the errors and warnings that are stored with it.
	Results *Results `json:"results,omitempty"`

	Notes []string `json:"notes,omitempty"` // what could not be found out, and why
}

// DescribedVolume is a Volume with its percentage.
type DescribedVolume struct {
	Volume
	Percent *int `json:"percent,omitempty"` // absent: not known yet
}

// Results are what went wrong with the items of a backup or restore, as Velero stores it.
type Results struct {
	Errors   results.Result `json:"errors,omitzero"`
	Warnings results.Result `json:"warnings,omitzero"`
}

// Describe puts together what a View of one operation has.
func Describe(v *View) *Description {
	var volumes, ofPlugins []Volume
	for i := range v.Volumes {
		if v.Volumes[i].OfPlugin() {
			ofPlugins = append(ofPlugins, v.Volumes[i])
		} else {
			volumes = append(volumes, v.Volumes[i])
		}
	}
	d := &Description{At: v.At, Operation: *v.Operation, Totals: Sum(v.Volumes), Volumes: described(volumes, v.At), PluginVolumes: described(ofPlugins, v.At), Notes: v.Notes}
	if share, known := v.Operation.Items.Share(); known {
		d.ItemPercent = &share
	}
	return d
}

// OfPlugin reports whether a volume snapshotter plugin moves the bytes, and no node agent.
func (v *Volume) OfPlugin() bool {
	return v.Kind == KindVolumePluginBackup || v.Kind == KindVolumePluginRestore
}

func described(volumes []Volume, now time.Time) []DescribedVolume {
	sorted := slices.Clone(volumes)
	Sort(sorted, now)
	all := make([]DescribedVolume, 0, len(sorted))
	for _, v := range sorted {
		d := DescribedVolume{Volume: v}
		if share, known := v.Percent(); known {
			d.Percent = &share
		}
		all = append(all, d)
	}
	return all
}

// HasStored reports whether the list of volumes and the results may be in the backup store already. They are stored when all
// items were tried.
func (o *Operation) HasStored() bool {
	switch o.Phase {
	case "New", "Queued", "ReadyToStart", "FailedValidation":
		return false
	case "InProgress":
		return o.Items.Step == v1alpha1.StepVolumes
	default:
		return true
	}
}

// How long an agent that works is quiet at most (docs/node-agent.md): it writes each minute about a volume that has a slot, and
// every ten minutes about one that waits without: for a slot, its pod, its repository or a place at its location. Of a task that waits for a repository something is written with each try, every ten
// minutes.
const (
	silence        = 2 * time.Minute
	waitingSilence = 11 * time.Minute
)

// Silent reports whether the agent that looks after the volume has not written for so long that it is gone or does not reach
// the API server. It is false without the annotation of our agent.
func (v *Volume) Silent(now time.Time) bool {
	p := &v.Progress
	if v.Ended() || p.Heartbeat.IsZero() || p.Reason == v1alpha1.ReasonRepositoryBusy { // a task that waits for another one writes no heartbeat
		return false
	}
	limit := silence
	if p.QueuePosition > 0 || v.waitsForPod() || v.waitsForStorage() || v.Kind == KindRepositoryTask && p.State == progress.StateWaiting {
		limit = waitingSilence
	}
	return now.Sub(p.Heartbeat) > limit
}

// waitsForPod reports whether a restore's pod does not run its init container yet, or, after a start of the node, not again.
// The latter cannot be told from a restore that waits for a lock, which is written each minute.
func (v *Volume) waitsForPod() bool {
	return v.Kind == KindPodVolumeRestore && (!v.claimed() || v.Progress.State == progress.StateWaiting)
}

// waitsForStorage reports whether the volume waits, without a slot, until its repository opens or its location has a free place.
func (v *Volume) waitsForStorage() bool {
	reason := v.Progress.Reason
	return v.Progress.State == progress.StateWaiting && (reason == v1alpha1.ReasonRepositoryUnavailable || reason == v1alpha1.ReasonLocationBusy)
}

// DropStale forgets the rate and the time left of a volume that is silent: they were those of the moment in which they were
// told, and would be shown, and added to those of others, as if they were those of now.
func (v *Volume) DropStale(now time.Time) {
	if v.Silent(now) {
		v.Progress.BytesPerSecond, v.Progress.ETASeconds = 0, nil
	}
}

// subject names the volume as people look for it: of a pod, or the PersistentVolume.
func (v *Volume) subject() string {
	if v.Pod == "" {
		return cmp.Or(v.Volume, v.Name)
	}
	return "volume " + v.Volume + " of pod " + v.PodNamespace + "/" + v.Pod
}
