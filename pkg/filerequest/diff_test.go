package filerequest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// urls are repositories by their locations' names.
type urls struct {
	noRepositories
	of map[string]string
}

func (u urls) Of(_ context.Context, pvb *velerov1.PodVolumeBackup) (uploader.Repository, error) {
	return uploader.Repository{URL: u.of[pvb.Name]}, nil
}

// TestDiff: backups of one repository are compared, and others are not, with the reason.
func TestDiff(t *testing.T) {
	t.Parallel()
	backup := func(name, snapshot string, mutate func(*velerov1.PodVolumeBackup)) velerov1.PodVolumeBackup {
		pvb := velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: snapshot}}
		pvb.Spec.UploaderType, pvb.Spec.BackupStorageLocation, pvb.Spec.Pod.Namespace = "restic", "default", "shop"
		if mutate != nil {
			mutate(&pvb)
		}
		return pvb
	}
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&oneFile{})
		cfg.Repositories = urls{of: map[string]string{"moved": "s3:elsewhere"}}
		s, client := pipe(t, cfg)
		spec := v1alpha1.FileRequestSpec{TokenHash: protocol.HashToken("t")}
		from := []velerov1.PodVolumeBackup{backup("from", "1", nil)}
		if !s.begin(t.Context(), &v1alpha1.FileRequest{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "2"}, Spec: spec}, from, []velerov1.PodVolumeBackup{
			backup("to", "1234", nil), backup("lost", "damaged", nil), backup("empty", "", nil), backup("moved", "2", nil),
			backup("failed", "", func(p *velerov1.PodVolumeBackup) { p.Status.Phase = velerov1.PodVolumeBackupPhaseFailed }),
			backup("kopia", "2", func(p *velerov1.PodVolumeBackup) { p.Spec.UploaderType = "restic-of-another-kind" }),
			backup("located", "2", func(p *velerov1.PodVolumeBackup) { p.Spec.BackupStorageLocation = "far" }),
			backup("named", "2", func(p *velerov1.PodVolumeBackup) { p.Spec.Pod.Namespace = "bank" }),
		}) {
			t.Fatal("no session")
		}
		ask := func(to string) (string, protocol.End) {
			status, body, end, err := ask(t.Context(), client, "pod", "d", "t", protocol.Diff, protocol.Query{PodVolumeBackup: "from", Other: to})
			if err != nil || status != http.StatusOK || len(s.workers) != 0 {
				t.Errorf("%s: %d, %v, %d workers", to, status, err, len(s.workers))
			}
			return body, end
		}
		body, end := ask("to")
		var change protocol.Change
		if err := json.Unmarshal([]byte(body), &change); err != nil || !end.Complete || change.From.Size != 1 || change.To.Size != 4 || strings.Join(change.Differs, " ") != "content size owner" {
			t.Errorf("%s: %v, %+v", body, err, end)
		}
		for to, want := range map[string]string{
			"lost": "a directory is lost", "empty": "the newer backup: the volume was empty", "failed": "its backup is Failed", "none": "not one of those",
			"located": "from is one in location default, and located one in location far", "named": "of a pod in namespace bank", "moved": "moved in s3:elsewhere",
			"kopia": "not supported",
		} {
			if body, end := ask(to); end.Complete || !strings.Contains(end.Error, want) {
				t.Errorf("%s: %+v: %s", to, end, body)
			}
		}
	})
	kopia, restic := backup("a", "1", func(p *velerov1.PodVolumeBackup) { p.Spec.UploaderType = "kopia" }), backup("b", "1", func(p *velerov1.PodVolumeBackup) { p.Spec.UploaderType = "" })
	if err := checkSameRepository(&kopia, &restic); err == nil || !strings.Contains(err.Error(), "a is one by uploader kopia, and b one by uploader restic") {
		t.Errorf("two uploaders: %v", err)
	}
	if err := errors.Join(checkSameRepository(&kopia, &kopia), checkSameRepository(&restic, &restic)); err != nil {
		t.Error(err)
	}
}
