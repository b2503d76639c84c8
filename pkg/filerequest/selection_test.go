package filerequest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// bucket is a location that lists one volume more than the cluster has, or cannot be read.
type bucket struct {
	noRepositories
	err error
}

func (b bucket) Unsynced(_ context.Context, backup string, known []velerov1.PodVolumeBackup, _ *v1alpha1.PodVolumeSelector) ([]velerov1.PodVolumeBackup, error) {
	if b.err != nil || backup != "nightly" || len(known) != 1 {
		return nil, b.err
	}
	return []velerov1.PodVolumeBackup{{ObjectMeta: metav1.ObjectMeta{Name: "unsynced"}, Status: velerov1.PodVolumeBackupStatus{SnapshotID: "2"}}}, nil
}

// TestUnsyncedVolumesAreSearched: what is searched are the volumes of the Backup, not those that a server has synced.
func TestUnsyncedVolumesAreSearched(t *testing.T) {
	t.Parallel()
	w := &world{Env: testenv.New(t, testenv.Options{})}
	w.Create(&velerov1.Backup{ObjectMeta: w.Meta("nightly"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted}})
	w.backup("nightly", "nightly", "db-0", "1")
	cfg := config(&oneFile{})
	cfg.Namespace, cfg.Repositories = w.Namespace, bucket{}
	c := &Controller{cfg: cfg, api: w.Client}
	selected, err := c.selectBackups(t.Context(), repositorytask.Selection{Backup: "nightly"})
	if err != nil || len(selected) != 2 {
		t.Errorf("%+v, %v", selected, err)
	}
	for range 2 { // a single one has nothing to do with a list, readable or not
		if selected, err = c.selectBackups(t.Context(), repositorytask.Selection{PodVolumeBackup: "nightly-db-0"}); err != nil || len(selected) != 1 {
			t.Errorf("%+v, %v", selected, err)
		}
		c.cfg.Repositories = bucket{err: errors.New("unreadable")}
	}
	if _, err := c.selectBackups(t.Context(), repositorytask.Selection{Backup: "nightly"}); err == nil {
		t.Error("a list that cannot be read went unsaid")
	}
	c.cfg.Repositories = bucket{err: fmt.Errorf("list the volumes: %w", repositorytask.ErrListMissing)}
	all, err := c.selectAll(t.Context(), &v1alpha1.FileRequestSpec{PodVolumeBackup: "nightly-db-0", Other: &v1alpha1.FileSelection{Backup: "nightly"}})
	if err != nil || len(all.backups) != 1 || len(all.others) != 1 || !errors.Is(all.listMissing, repositorytask.ErrListMissing) {
		t.Errorf("%+v, %v", all, err)
	}
}
