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
		out   attemptResult
		err   error
		phase string
		ends  string
	}{
		"unreadable files": {attemptResult{errors: 5, message: "5 files: " + strings.Repeat(long+", ", 5)}, nil, PhaseCompleted, `directory "ü"/, `},
		"full disk":        {attemptResult{}, fmt.Errorf("%w: %s", uploader.ErrNoSpace, long), PhaseFailed, "; " + ReasonNoSpace.Remedy()},
		"no advice":        {attemptResult{}, errors.New(long + ": why"), PhaseFailed, `directory "ü"/: why`},
		"short":            {attemptResult{}, errors.New("short"), PhaseFailed, "failed: short"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &Agent{}
			a.cfg.setDefaults()
			op := a.newOperation(FromBackup(&velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{
				UID: "0ed4b9b0-5c7c-4a1d-9b0a-0c7f5d1f2e3a", ResourceVersion: "1234567890", Finalizers: []string{v1alpha1.FinalizerPodVolume, veleroFinalizer},
			}}))
			op.tracker.Begin(1)
			op.tracker.Report(progress.Reading{BytesDone: 1 << 40, TotalBytes: 1 << 41, TotalFinal: true, Errors: 5, LastError: long, CurrentItem: long})
			v := a.terminalStatusOf(t.Context(), op, test.out, test.err)
			p := v.patch(op.PodVolume)
			p.Metadata.UID, p.Metadata.ResourceVersion = op.Object.GetUID(), op.Object.GetResourceVersion()
			if v.phase != test.phase || !strings.HasSuffix(v.message, test.ends) || !utf8.ValidString(v.message) {
				t.Errorf("%s, %q", v.phase, v.message)
			}
			if n := len(encode(p)); n > maxWrite {
				t.Errorf("the write has %d bytes: %s", n, encode(p))
			}
		})
	}
}
