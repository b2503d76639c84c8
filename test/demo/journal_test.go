package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// said returns a report as the agent writes it: equal numbers in both places.
func said(state progress.State, done, total int64) report {
	r := report{uid: "uid", label: "pod/volume", progress: progress.Snapshot{State: state, BytesDone: done, TotalBytes: total}}
	r.status.done, r.status.total = done, total
	r.phase = "InProgress"
	if state.Terminal() {
		r.phase = string(state)
	}
	return r
}

func TestJournal(t *testing.T) {
	t.Parallel()
	elsewhere := said(progress.StateTransferring, 5, 10)
	elsewhere.status.done = 6
	failed := said(progress.StateFailed, 5, 10)
	failed.message = "disk full"
	tests := map[string]struct {
		reports []report // one each six seconds
		want    string   // of the complaint
	}{
		"all well": {reports: []report{
			{uid: "uid"}, said(progress.StateTransferring, 4, 10), said(progress.StateFinishing, 9, 10), said(progress.StateCompleted, 10, 10),
		}},
		"empty":         {reports: []report{{uid: "uid"}, said(progress.StateCompleted, 0, 0)}},
		"failed":        {reports: []report{failed}, want: "pod/volume ended as Failed: disk full"},
		"falls":         {reports: []report{said(progress.StateTransferring, 4, 10), said(progress.StateTransferring, 3, 10)}, want: "fell from 4 to 3"},
		"more than all": {reports: []report{said(progress.StateTransferring, 11, 10)}, want: "11 of 10"},
		"all too early": {reports: []report{said(progress.StateFinishing, 10, 10)}, want: "all bytes are done, but is Finishing"},
		"two truths":    {reports: []report{elsewhere}, want: "6 of 10 bytes in status.progress and 5 of 10"},
		"after the end": {reports: []report{said(progress.StateCompleted, 10, 10), said(progress.StateCompleted, 10, 10)}, want: "changed after it had ended as Completed"},
		"stands still": {reports: []report{
			said(progress.StateScanning, 0, 10), {uid: "uid"}, {uid: "uid"}, {uid: "uid"}, {uid: "uid"}, said(progress.StateCompleted, 10, 10),
		}, want: "took 30s and reported no bytes before its end"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, at := newJournal(), time.Unix(0, 0)
			for i, r := range test.reports {
				r.resourceVersion = strconv.Itoa(i)
				j.note(at, r)
				j.note(at, r) // as a watch does that begins again
				at = at.Add(6 * time.Second)
			}
			err := j.failures()
			if test.want == "" && err != nil {
				t.Errorf("got %v, want no complaint", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestReportOf(t *testing.T) {
	t.Parallel()
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		v1alpha1.AnnotationProgress: `{"state":"Transferring","bytesDone":1048576,"totalBytes":4194304}`,
	}}}
	pvb.Spec.Pod.Name, pvb.Spec.Volume = "pod", "volume"
	pvb.Status.Phase = velerov1.PodVolumeBackupPhaseInProgress
	r, err := reportOf(pvb)
	if err != nil {
		t.Fatal(err)
	}
	if r.label != "pod/volume" || r.phase != "InProgress" || r.progress.BytesDone != 1<<20 || r.progress.TotalBytes != 4<<20 {
		t.Errorf("got %+v", r)
	}
	pvb.Annotations[v1alpha1.AnnotationProgress] = "{"
	if _, err := reportOf(pvb); err == nil {
		t.Error("a broken annotation is no error")
	}
}
