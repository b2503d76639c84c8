//go:build e2e

package e2e

import (
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// forgetOld keeps the last backup of a volume in the repository of each data path, of those that belong to no Backup, and proves what is left.
func (c *cluster) forgetOld(t *testing.T) {
	t.Helper()
	for _, uploader := range []string{restic, restic, kopia, kopia} {
		c.plimsoll(t, "volume", "backup", kubectlApp, disk, "--to", location, "--uploader", uploader)
	}
	forget := []string{"forget", "--keep-last", "1", "--volume", kubectlApp + ":" + disk}
	plan := c.repositoryTask(t, forget...).Status.Retention
	done := c.repositoryTask(t, append(forget, "--yes", "--acknowledge", plan.Wave)...).Status.Retention
	if len(done.Volumes) != len(plan.Volumes) {
		t.Fatalf("forgotten was of %+v, planned of %+v", done.Volumes, plan.Volumes)
	}
	left := map[string]bool{}
	for i, v := range done.Volumes {
		if len(v.Snapshots) < 2 || len(v.Snapshots) != len(plan.Volumes[i].Snapshots) {
			t.Errorf("%s has %+v, planned were %+v", v.Uploader, v.Snapshots, plan.Volumes[i].Snapshots)
		}
		for j, s := range v.Snapshots {
			pvb := &velerov1.PodVolumeBackup{}
			err := c.client.Get(t.Context(), client.ObjectKey{Namespace: veleroNamespace, Name: s.PodVolumeBackup}, pvb)
			switch {
			case j == 0 && s.Result == v1alpha1.RetentionKept && err == nil:
				left[v.Uploader] = strings.Contains(c.plimsoll(t, "repository", "verify", "--from", s.PodVolumeBackup), "1 pod volume verified")
			case j > 0 && s.Result == v1alpha1.RetentionForgotten && apierrors.IsNotFound(err):
			default:
				t.Errorf("%s, backup %d is %+v; its PodVolumeBackup: %v", v.Uploader, j, s, err)
			}
		}
	}
	if !left[restic] || !left[kopia] {
		t.Errorf("proven of what is left: %v", left)
	}
}
