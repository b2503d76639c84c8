package nodeagent

import (
	"path/filepath"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestSelfCheckOpensWhatARestoreReads: the location was edited, and the BackupRepository of a Velero server names the place before. Restores read that, so
// a repository in the other place shows nothing.
func TestSelfCheckOpensWhatARestoreReads(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		isRecorded bool // the repository is where the BackupRepository says; else where the location leads
		want       v1alpha1.LocationOutcome
	}{
		"in the place before": {true, v1alpha1.LocationOpened},
		"in the new place":    {false, v1alpha1.LocationNoRepository},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			recorded, derived := filepath.Join(t.TempDir(), "shop"), filepath.Join(c.repos, "restic", "shop")
			r := &velerov1.BackupRepository{ObjectMeta: c.Meta("shop-default-restic"), Spec: velerov1.BackupRepositorySpec{
				VolumeNamespace: "shop", BackupStorageLocation: "default", RepositoryType: "restic", ResticIdentifier: recorded, MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
			}, Status: velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseReady}}
			r.Labels = map[string]string{velerov1.VolumeNamespaceLabel: "shop", velerov1.StorageLocationLabel: "default", velerov1.RepositoryTypeLabel: "restic"}
			c.Create(r)
			resticrepo.Create(t, map[bool]string{true: recorded, false: derived}[test.isRecorded])
			agent, _ := c.startAgent(newRestic(t), nil)
			checks := agent.SelfCheck(t.Context(), []string{"default"}, "restic").Locations
			if len(checks) != 1 || checks[0].Outcome != test.want || checks[0].Repository != "shop" {
				t.Errorf("%+v", checks)
			}
		})
	}
}
