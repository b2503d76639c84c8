package podvolume

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestLongMessages: whatever the files of a volume are called, a terminal write stays small and says what to do.
func TestLongMessages(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("directory \"ü\"/", 300)
	notUTF8 := strings.Repeat(`\xfe`, 255) // as it is printed
	tests := map[string]struct {
		result    attemptResult
		err       error
		phase     string
		ends      string
		lastError string
	}{
		"unreadable files": {attemptResult{errors: 5, message: "5 files: " + strings.Repeat(long+", ", 5)}, nil, PhaseCompleted, `directory "ü"/, `, long},
		"odd names": {attemptResult{
			errors: 6, message: "6 files: " + notUTF8[:200] + " and 1 more", snapshotID: "e17a99d5c45122b47d59b72fbffcaff4",
			path: "/var/lib/kubelet/pods/0ed4b9b0-5c7c-4a1d-9b0a-0c7f5d1f2e3a/volumes/kubernetes.io~csi/pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427/mount",
		}, nil, PhaseCompleted, " and 1 more", notUTF8},
		"full disk": {attemptResult{}, fmt.Errorf("%w: %s", uploader.ErrNoSpace, long), PhaseFailed, "; " + v1alpha1.ReasonNoSpace.Remedy(), long},
		"no advice": {attemptResult{}, errors.New(long + ": why"), PhaseFailed, `directory "ü"/: why`, long},
		"short":     {attemptResult{}, errors.New("short"), PhaseFailed, "failed: short", long},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			op := newOperation(FromBackup(&velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{Node: "node-1.example.com"}}), nil)
			claimed := FromBackup(&velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{Node: "node-1.example.com"}, ObjectMeta: metav1.ObjectMeta{
				UID: "0ed4b9b0-5c7c-4a1d-9b0a-0c7f5d1f2e3a", ResourceVersion: "1234567890", Finalizers: []string{v1alpha1.FinalizerPodVolume, veleroFinalizer},
				Labels: map[string]string{v1alpha1.LabelNode: "node-1.example.com"},
			}})
			op.tracker.Begin(1)
			op.tracker.Report(progress.Reading{BytesDone: 1 << 40, TotalBytes: 1 << 41, TotalFinal: true, Errors: 5, LastError: test.lastError, CurrentItem: long})
			status := op.terminalStatusOf(t.Context(), t.Context(), test.result, test.err)
			p := status.patch(claimed)
			p.Metadata.UID, p.Metadata.ResourceVersion = claimed.Object.GetUID(), claimed.Object.GetResourceVersion()
			if status.phase != test.phase || !strings.HasSuffix(status.message, test.ends) || !utf8.ValidString(status.message) {
				t.Errorf("%s, %q", status.phase, status.message)
			}
			if n := len(encode(p)); n > maxWrite {
				t.Errorf("the write has %d bytes: %s", n, encode(p))
			}
		})
	}
}

// TestMinimalWriteKeepsMarks: CRDs say nothing of annotations, and a mark of damage holds for all later backups of the repository.
func TestMinimalWriteKeepsMarks(t *testing.T) {
	t.Parallel()
	pv := FromBackup(&velerov1.PodVolumeBackup{})
	damaged := terminalStatus{phase: PhaseFailed, reason: v1alpha1.ReasonReusedDamage, ended: time.Now()}
	if p := damaged.minimalPatch(pv); p.Metadata.Annotations[v1alpha1.AnnotationDamaged] != damaged.completionTimestamp() || p.Metadata.Labels[v1alpha1.LabelDamaged] == nil {
		t.Errorf("a damaged one is written as %s", encode(p))
	}
	verified := terminalStatus{phase: PhaseCompleted, ended: time.Now(), result: attemptResult{snapshotID: "1234abcd", verified: time.Unix(1000, 0)}}
	p := verified.minimalPatch(pv)
	if p.Metadata.Annotations[v1alpha1.AnnotationVerified] != "1970-01-01T00:16:40Z" {
		t.Errorf("a verified one is written as %s", encode(p))
	}
	if _, ok := p.Metadata.Annotations[v1alpha1.AnnotationProgress]; ok {
		t.Errorf("the annotation that the API server may refuse is written again: %s", encode(p))
	}
	if _, ok := p.Status["progress"]; ok || len(p.Status) != 4 {
		t.Errorf("more than the required fields: %s", encode(p))
	}
}

func TestCanceledBecomesFailedWhereTheCRDDoesNotKnowIt(t *testing.T) {
	t.Parallel()
	e := testenv.New(t, testenv.Options{Velero: "1.16.2"})
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: e.Meta("b")}
	e.Create(pvb)
	op := newOperation(FromBackup(pvb), func(env *Environment) { env.Client, env.API = e.Client, e.Client })
	status := terminalStatus{phase: PhaseCanceled, message: "canceled", snapshot: op.tracker.End(progress.StateCanceled, v1alpha1.ReasonCanceled, "canceled"), ended: time.Now()}
	status, err := op.writeTerminalStatus(t.Context(), status)
	if err != nil || status.phase != PhaseFailed {
		t.Fatalf("got %+v, %v", status, err)
	}
	e.Get(pvb)
	if end := FromBackup(pvb); end.Phase != PhaseFailed || end.LastSnapshot().State != progress.StateFailed {
		t.Errorf("ended as %+v", pvb.Status)
	}
}
