package nodeagent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

// Who is not asked for a token is not told what the files of others are called.
func TestProgressEndpointShowsPaths(t *testing.T) {
	t.Parallel()
	for _, show := range []bool{false, true} {
		pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			v1alpha1.AnnotationProgress: `{"bytesDone":1,"totalBytes":2,"currentItem":"payroll.ods","errors":1,"lastError":"divorce.odt: no"}`,
		}}}
		a := &Agent{cfg: Config{ShowPaths: show}, operations: map[podvolume.Key]*podvolume.Operation{}}
		a.cfg.setDefaults()
		op := podvolume.NewOperation(&podvolume.Environment{Config: a.cfg.Config}, podvolume.FromBackup(pvb), func(error) {})
		a.operations[op.Key()] = op
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
