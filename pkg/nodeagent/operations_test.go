package nodeagent

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Who is not asked for a token is not told what the files of others are called.
func TestProgressEndpointShowsPaths(t *testing.T) {
	t.Parallel()
	for _, show := range []bool{false, true} {
		tracker := progress.NewTracker(progress.Options{StallAfter: time.Hour})
		tracker.Begin(1)
		tracker.Report(progress.Reading{
			Stage: progress.StageTransferring, BytesDone: 1, TotalBytes: 2, CurrentItem: "payroll.ods", Errors: 1, LastError: "divorce.odt: no",
		})
		op := &Operation{PodVolume: FromBackup(&velerov1.PodVolumeBackup{}), tracker: tracker}
		a := &Agent{cfg: Config{ShowPaths: show, Logger: slog.New(slog.DiscardHandler)}, operations: map[Key]*Operation{op.Key(): op}}
		rec := httptest.NewRecorder()
		a.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/progress", http.NoBody))
		for _, secret := range []string{"payroll", "divorce"} {
			if strings.Contains(rec.Body.String(), secret) != show {
				t.Errorf("ShowPaths=%v: %s", show, rec.Body)
			}
		}
		if !strings.Contains(rec.Body.String(), `"bytesDone":1`) {
			t.Errorf("got %s", rec.Body)
		}
	}
}
