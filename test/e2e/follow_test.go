//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// report is what a PodVolumeBackup or PodVolumeRestore says at one time.
type report struct {
	name, label, uploader string
	version               string // resourceVersion
	phase, message        string
	done, total           int64 // what Velero's CLI shows
	progress              progress.Snapshot
}

func (r report) ended() bool { return progress.State(r.phase).Terminal() }

// percent is that of the annotation.
func (r report) percent() int64 {
	if r.progress.TotalBytes == 0 {
		return 0
	}
	return r.progress.BytesDone * 100 / r.progress.TotalBytes
}

func reportOf(t *testing.T, object client.Object) report {
	t.Helper()
	r := report{name: object.GetName(), version: object.GetResourceVersion()}
	switch o := object.(type) {
	case *velerov1.PodVolumeBackup:
		r.label, r.uploader = "backup of "+o.Spec.Pod.Namespace+"/"+o.Spec.Pod.Name+"/"+o.Spec.Volume, o.Spec.UploaderType
		r.phase, r.message = string(o.Status.Phase), o.Status.Message
		r.done, r.total = o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	case *velerov1.PodVolumeRestore:
		r.label, r.uploader = "restore of "+o.Spec.Pod.Namespace+"/"+o.Spec.Pod.Name+"/"+o.Spec.Volume, o.Spec.UploaderType
		r.phase, r.message = string(o.Status.Phase), o.Status.Message
		r.done, r.total = o.Status.Progress.BytesDone, o.Status.Progress.TotalBytes
	}
	if text, ok := object.GetAnnotations()[v1alpha1.AnnotationProgress]; ok {
		if err := json.Unmarshal([]byte(text), &r.progress); err != nil {
			t.Errorf("annotation of %s: %v", r.label, err)
		}
	}
	return r
}

// volumeHistory is all that an object said.
type volumeHistory struct {
	object  client.Object             // as it was last
	backup  *velerov1.PodVolumeBackup // nil for a restore
	reports []report
}

func (v *volumeHistory) last() report { return v.reports[len(v.reports)-1] }

func (c *cluster) followBackups(t *testing.T, backup *velerov1.Backup, n int, then func(map[types.UID]*volumeHistory)) map[types.UID]*volumeHistory {
	t.Helper()
	return c.follow(t, &velerov1.PodVolumeBackupList{}, client.MatchingLabels{velerov1.BackupUIDLabel: string(backup.UID)}, n, then)
}

func (c *cluster) followRestores(t *testing.T, restore *velerov1.Restore, n int) map[types.UID]*volumeHistory {
	t.Helper()
	return c.follow(t, &velerov1.PodVolumeRestoreList{}, client.MatchingLabels{velerov1.RestoreUIDLabel: string(restore.UID)}, n, nil)
}

// follow watches until n objects have ended, and calls then after each of their changes.
func (c *cluster) follow(
	t *testing.T, list client.ObjectList, labels client.MatchingLabels, n int, then func(map[types.UID]*volumeHistory),
) map[types.UID]*volumeHistory {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	volumes := map[types.UID]*volumeHistory{}
	for countEnded(volumes) < n {
		// Without a resource version a watch begins with what is there. API servers end watches now and then.
		w, err := c.client.Watch(ctx, list, client.InNamespace(veleroNamespace), labels)
		if err != nil {
			t.Fatalf("watch %T: %v; %d of %d have ended: %s", list, err, countEnded(volumes), n, lastReports(volumes))
		}
		for event := range w.ResultChan() {
			note(t, volumes, event)
			if then != nil {
				then(volumes)
			}
			if countEnded(volumes) == n {
				break
			}
		}
		w.Stop()
	}
	return volumes
}

func lastReports(volumes map[types.UID]*volumeHistory) string {
	var text strings.Builder
	for _, v := range volumes {
		fmt.Fprintf(&text, "\n%+v", v.last())
	}
	return text.String()
}

func countEnded(volumes map[types.UID]*volumeHistory) int {
	n := 0
	for _, v := range volumes {
		if v.last().ended() {
			n++
		}
	}
	return n
}

// note adds what an event says to the history of its object.
func note(t *testing.T, volumes map[types.UID]*volumeHistory, event watch.Event) {
	t.Helper()
	object, ok := event.Object.(client.Object)
	if !ok || event.Type != watch.Added && event.Type != watch.Modified {
		t.Fatalf("unexpected event %s: %v", event.Type, apierrors.FromObject(event.Object))
	}
	v := volumes[object.GetUID()]
	if v == nil {
		v = &volumeHistory{}
		volumes[object.GetUID()] = v
	}
	v.object = object
	v.backup, _ = object.(*velerov1.PodVolumeBackup)
	if r := reportOf(t, object); len(v.reports) == 0 || v.last().version != r.version {
		v.reports = append(v.reports, r)
	}
}

// checkCompleted fails the test unless the volume has completed and has always told the truth.
func (v *volumeHistory) checkCompleted(t *testing.T) {
	t.Helper()
	last := v.last()
	if last.phase != string(progress.StateCompleted) || last.message != "" {
		t.Errorf("%s ended as %s: %s", last.label, last.phase, last.message)
	}
	if v.backup != nil && v.backup.Status.SnapshotID == "" {
		t.Errorf("%s has no snapshot", last.label)
	}
	var before report
	for _, r := range v.reports {
		if problem := r.problem(before); problem != "" {
			t.Errorf("%s %s\nbefore: %+v\nafter:  %+v", r.label, problem, before, r)
		}
		before = r
	}
	t.Logf("%s: %d reports, %d percentages on the way, %d bytes", last.label, len(v.reports), v.moves(), last.total)
}

// problem says what cannot be true of a report after the one before it.
func (r report) problem(before report) string {
	switch {
	case before.ended():
		return "was changed after its end"
	case r.progress.BytesDone < before.progress.BytesDone:
		return "has fewer bytes done than before"
	case r.progress.TotalFinal && before.progress.TotalFinal && r.percent() < before.percent():
		return "fell although its total was final"
	case r.total > 0 && (r.done != r.progress.BytesDone || r.total != r.progress.TotalBytes):
		return "says one thing in status.progress and another in the annotation"
	case r.total > 0 && r.done >= r.total && r.phase != string(progress.StateCompleted):
		return "says that all is done before it has completed"
	case r.phase == string(progress.StateCompleted) && r.done != r.total:
		return "has completed without all of its bytes"
	}
	return ""
}

// moves is how many percentages were seen between nothing and all.
func (v *volumeHistory) moves() int {
	seen := map[int64]bool{}
	for _, r := range v.reports {
		if percent := r.percent(); percent > 0 && percent < 100 && !r.ended() {
			seen[percent] = true
		}
	}
	return len(seen)
}

// checkUntouched fails the test if an object was written to after its end.
func (c *cluster) checkUntouched(t *testing.T, v *volumeHistory) {
	t.Helper()
	now := v.object.DeepCopyObject().(client.Object)
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(v.object), now); err != nil {
		t.Fatal(err)
	}
	if now.GetResourceVersion() != v.last().version {
		t.Errorf("%s was changed after its end", v.last().label)
	}
}
