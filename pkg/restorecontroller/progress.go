package restorecontroller

import (
	"context"
	"encoding/json"
	"reflect"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Progress is how far a Restore is.
type Progress = v1alpha1.RestoreProgress

// sumUp adds the progress of PodVolumeRestores.
func sumUp(volumes []velerov1.PodVolumeRestore) *v1alpha1.RestoreVolumes {
	if len(volumes) == 0 {
		return nil
	}
	sum := v1alpha1.RestoreVolumes{Phases: map[string]int{}}
	for i := range volumes {
		v := &volumes[i]
		done, total := max(v.Status.Progress.BytesDone, 0), v.Status.Progress.TotalBytes
		if total <= 0 {
			total = max(v.Spec.SnapshotSize, 0)
		}
		phase := v.Status.Phase
		if phase == "" {
			phase = velerov1.PodVolumeRestorePhaseNew
		}
		sum.Phases[string(phase)]++
		sum.TotalBytes += total
		sum.BytesDone += min(done, total)
	}
	return &sum
}

// expectVolumes makes the bytes of volumes count, at least so many, before the cache has the PodVolumeRestores: else percent would
// be near 100 when the first of them appears.
func expectVolumes(p *Progress, bytes int64) {
	sum := v1alpha1.RestoreVolumes{Phases: map[string]int{}}
	if p.Volumes != nil {
		sum = *p.Volumes
	}
	if bytes > sum.TotalBytes {
		sum.TotalBytes = bytes
		p.Volumes = &sum
	}
}

// addVolumes takes the sum of those that exist while there will be more.
func addVolumes(p *Progress, sum *v1alpha1.RestoreVolumes) {
	if sum == nil {
		return
	}
	if p.Volumes != nil {
		sum.TotalBytes = max(sum.TotalBytes, p.Volumes.TotalBytes)
	}
	p.Volumes = sum
}

// percent never says 100 before the end.
func percent(p *Progress) int {
	if p.Step == v1alpha1.StepCollecting || p.Step == v1alpha1.StepRestoring && p.Items.Total == 0 {
		return 0
	}
	percent := 99
	if p.Items.Total > 0 {
		percent = min(percent, 100*p.Items.Done()/p.Items.Total)
	}
	if p.Volumes != nil {
		percent = min(percent, volumePercent(p.Volumes))
	}
	return percent
}

// volumePercent is that of bytes, or of volumes where the number of bytes is not known.
func volumePercent(v *v1alpha1.RestoreVolumes) int {
	if v.TotalBytes > 0 {
		return int(100 * (float64(v.BytesDone) / float64(v.TotalBytes)))
	}
	ended, all := 0, 0
	for phase, n := range v.Phases {
		all += n
		if isOneOf(velerov1.PodVolumeRestorePhase(phase), velerov1.PodVolumeRestorePhaseCompleted, velerov1.PodVolumeRestorePhaseFailed, velerov1.PodVolumeRestorePhaseCanceled) {
			ended += n
		}
	}
	return 100 * ended / max(all, 1)
}

// reporter writes the newest Progress, at most once in each interval, and nothing where nothing has changed. Whoever calls
// update does not wait for it. It is safe for concurrent use.
type reporter struct {
	interval time.Duration
	write    func(context.Context, Progress) error
	changed  chan struct{}

	writing sync.Mutex // held during a write: nothing older is written after what is newer
	written Progress

	mu     sync.Mutex
	latest Progress
}

func newReporter(interval time.Duration, write func(context.Context, Progress) error) *reporter {
	return &reporter{interval: interval, write: write, changed: make(chan struct{}, 1)}
}

// update changes what is to be written.
func (r *reporter) update(change func(p *Progress)) {
	r.mu.Lock()
	change(&r.latest)
	r.latest.Percent = max(r.latest.Percent, percent(&r.latest))
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// now is the newest Progress.
func (r *reporter) now() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest
}

// run writes until ctx ends: the first Progress at once. The last one is for the caller to write, with the end.
func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-r.changed:
		case <-ctx.Done():
			return
		}
		if reflect.DeepEqual(r.now(), r.published()) {
			continue
		}
		if r.publish(func(p Progress) error { return r.write(ctx, p) }) != nil {
			r.update(func(*Progress) {}) // try again, with what is newest then
		}
		select {
		case <-time.After(r.interval):
		case <-ctx.Done():
			return
		}
	}
}

// publish has write write the newest Progress, and remembers what was written.
func (r *reporter) publish(write func(Progress) error) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	p := r.now()
	err := write(p)
	if err == nil {
		r.written = p
	}
	return err
}

// published is what was last written, by this process or, if it goes on with what another one has begun, by that.
func (r *reporter) published() Progress {
	r.writing.Lock()
	defer r.writing.Unlock()
	return r.written
}

// startFrom begins with what another process has written.
func (r *reporter) startFrom(p Progress) {
	r.writing.Lock()
	r.written = p
	r.writing.Unlock()
	r.update(func(latest *Progress) { *latest = p })
}

// progressPatch is a JSON merge patch of what says how far a Restore is. The uid refuses an object of the same name that was
// made since.
type progressPatch struct {
	Metadata struct {
		UID         types.UID         `json:"uid"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Status struct {
		Progress *velerov1.RestoreProgress `json:"progress,omitempty"`
	} `json:"status,omitzero"`
}

func newProgressPatch(uid types.UID, p Progress) progressPatch {
	var patch progressPatch
	patch.Metadata.UID = uid
	patch.Metadata.Annotations = map[string]string{v1alpha1.AnnotationProgress: encode(p)}
	patch.Status.Progress = statusProgress(p)
	return patch
}

// statusProgress is what the velero CLI shows. The CRD has no field for what filters leave out, and prunes one: where the total has
// those items, in one-phase mode, they count as done.
func statusProgress(p Progress) *velerov1.RestoreProgress {
	if p.DryRun || p.Items.Total == 0 {
		return nil
	}
	return &velerov1.RestoreProgress{TotalItems: p.Items.Total, ItemsRestored: p.Items.Done()}
}

const progressTimeout = 30 * time.Second

// writeProgress tells p on the Restore. That it fails costs nothing but freshness.
func (c *Controller) writeProgress(ctx context.Context, op *operation, p Progress) error {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	patch := newProgressPatch(op.uid, p)
	target := &velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: op.name.Namespace, Name: op.name.Name}}
	err := c.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, []byte(encode(patch))))
	if err != nil {
		op.log.Debug("Progress write was dropped", "error", err)
	}
	return err
}

// progressOf is what a Restore says of itself.
func progressOf(r *velerov1.Restore) Progress {
	var p Progress
	if json.Unmarshal([]byte(r.Annotations[v1alpha1.AnnotationProgress]), &p) != nil {
		return Progress{}
	}
	return p
}
