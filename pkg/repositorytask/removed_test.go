package repositorytask

import (
	"context"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// removing is a data path before which a snapshot is removed that it is to read.
type removing struct {
	uploader.Verifier
	snapshot string
	remove   func()
}

func (v removing) Verify(ctx context.Context, req uploader.VerifyRequest, p progress.Sink) (uploader.VerifyResult, error) {
	if req.SnapshotID == v.snapshot {
		v.remove()
	}
	return v.Verifier.Verify(ctx, req, p)
}

// TestRemovedMeanwhile: what Velero, or a task, removes after it was selected is no loss, and what is lost without that is one.
func TestRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, remove := range map[string]func(*site, *velerov1.Backup, *velerov1.PodVolumeBackup){
		"deleted":     func(s *site, b *velerov1.Backup, pvb *velerov1.PodVolumeBackup) { s.Delete(b); s.Delete(pvb) },
		"Backup only": func(s *site, b *velerov1.Backup, _ *velerov1.PodVolumeBackup) { s.Delete(b) }, // the server of a test collects no garbage
		"being deleted": func(s *site, b *velerov1.Backup, _ *velerov1.PodVolumeBackup) {
			s.Patch(b, `{"status":{"phase":"Deleting"}}`)
		},
		"being forgotten": func(s *site, _ *velerov1.Backup, pvb *velerov1.PodVolumeBackup) {
			s.Patch(pvb, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationForgetting+`":"a task"}}}`)
		},
		"lost": func(*site, *velerov1.Backup, *velerov1.PodVolumeBackup) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository("restic", "shop")
			s.own("restic", "shop", "web-0", 1)
			gone, b := s.own("restic", "shop", "db-0", 1), s.backup("nightly")
			gone.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: b.Name, UID: b.UID}}
			s.update(gone)
			cfg := s.pruning()
			cfg.Verifiers["restic"] = removing{s.restic, gone.Status.SnapshotID, func() { s.lose(gone); remove(s, b, gone) }}
			s.start(cfg)
			task := s.ended(s.latest("verify", ""))
			lost := name == "lost"
			want := map[bool]v1alpha1.Reason{true: v1alpha1.ReasonSnapshotNotFound, false: v1alpha1.ReasonNotBackedUp}[lost]
			if v := task.Status.Volumes; task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != want || len(v) != 2 || v[0].Reason != want || v[1].Result != v1alpha1.VolumeVerified {
				t.Errorf("%+v", task.Status)
			}
			if found := proof.Of([]v1alpha1.RepositoryTask{*task})[proof.VolumeOf(gone)]; found.Damaged != lost {
				t.Errorf("%+v", found)
			}
			if name == "Backup only" {
				s.Delete(gone)
			}
			if got := s.ended(s.pruneTask("prune", true)).Status; (got.Phase != v1alpha1.PhaseCompleted) != lost {
				t.Errorf("%+v", got)
			}
		})
	}
}
