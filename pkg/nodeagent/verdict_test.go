package nodeagent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestLongMessages: whatever the files of a volume are called, a terminal write stays small and says what to do.
func TestLongMessages(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("directory \"ü\"/", 300)
	tests := map[string]struct {
		out   outcome
		err   error
		phase string
		ends  string
	}{
		"unreadable files": {outcome{errors: 5, message: "5 files: " + strings.Repeat(long+", ", 5)}, nil, phaseCompleted, `directory "ü"/, `},
		"full disk":        {outcome{}, fmt.Errorf("%w: %s", uploader.ErrNoSpace, long), phaseFailed, "; " + advice(ReasonNoSpace)},
		"no advice":        {outcome{}, errors.New(long + ": why"), phaseFailed, `directory "ü"/: why`},
		"short":            {outcome{}, errors.New("short"), phaseFailed, "failed: short"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &Agent{}
			a.cfg.setDefaults()
			op := a.newOperation(ofBackup(&velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{
				UID: "0ed4b9b0-5c7c-4a1d-9b0a-0c7f5d1f2e3a", ResourceVersion: "1234567890", Finalizers: []string{v1alpha1.FinalizerPodVolume, veleroFinalizer},
			}}))
			op.tracker.Begin(1)
			op.tracker.Report(progress.Reading{BytesDone: 1 << 40, TotalBytes: 1 << 41, TotalFinal: true, Errors: 5, LastError: long, CurrentItem: long})
			v := a.judge(t.Context(), op, test.out, test.err)
			p := v.patch(op.subject)
			p.Metadata.UID, p.Metadata.ResourceVersion = op.object.GetUID(), op.object.GetResourceVersion()
			if v.phase != test.phase || !strings.HasSuffix(v.message, test.ends) || !utf8.ValidString(v.message) {
				t.Errorf("%s, %q", v.phase, v.message)
			}
			if n := len(encode(p)); n > maxWrite {
				t.Errorf("the write has %d bytes: %s", n, encode(p))
			}
		})
	}
}
