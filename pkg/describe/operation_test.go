package describe

import (
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestOwns has volumes of a Backup and of a Restore, and of earlier ones of the same names that were deleted.
func TestOwns(t *testing.T) {
	t.Parallel()
	ofBackup, ofRestore := backup(""), restore("")
	ofBackup.UID, ofRestore.UID = "second", "second"
	b, r := OfBackup(ofBackup), OfRestore(ofRestore)

	reference := func(kind, name string, uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "DaemonSet", Name: name, UID: "other"},
			{APIVersion: velerov1.SchemeGroupVersion.String(), Kind: kind, Name: name, UID: uid},
		}
	}
	backedUp := func(change func(*velerov1.PodVolumeBackup)) Volume {
		pvb := podVolumeBackup(progress.StateQueued)
		change(pvb)
		return OfPodVolumeBackup(pvb)
	}
	restored := func(change func(*velerov1.PodVolumeRestore)) Volume {
		pvr := podVolumeRestore()
		change(pvr)
		return OfPodVolumeRestore(pvr)
	}
	byPlugin := func(uid types.UID) Volume {
		record := &v1alpha1.VolumePluginBackup{Spec: v1alpha1.VolumePluginBackupSpec{Backup: "nightly"}}
		if uid != "" {
			record.OwnerReferences = reference("Backup", "nightly", uid)
		}
		return OfVolumePluginBackup(record)
	}
	late := pluginRestores()[0]
	late.Created = now
	early := late
	early.Created = now.Add(-time.Hour)
	for name, test := range map[string]struct {
		operation Operation
		volume    Volume
		want      bool
	}{
		"by name":           {b, backedUp(func(*velerov1.PodVolumeBackup) {}), true},
		"another name":      {b, backedUp(func(p *velerov1.PodVolumeBackup) { p.Labels[velerov1.BackupNameLabel] = "weekly" }), false},
		"reference":         {b, backedUp(func(p *velerov1.PodVolumeBackup) { p.OwnerReferences = reference("Backup", "nightly", "second") }), true},
		"earlier reference": {b, backedUp(func(p *velerov1.PodVolumeBackup) { p.OwnerReferences = reference("Backup", "nightly", "first") }), false},
		"label":             {b, backedUp(func(p *velerov1.PodVolumeBackup) { p.Labels[velerov1.BackupUIDLabel] = "second" }), true},
		"earlier label":     {b, backedUp(func(p *velerov1.PodVolumeBackup) { p.Labels[velerov1.BackupUIDLabel] = "first" }), false},
		"of no backup":      {b, backedUp(func(p *velerov1.PodVolumeBackup) { p.Labels = nil }), false},
		"a restore's":       {b, restored(func(*velerov1.PodVolumeRestore) {}), false},

		"restore, by name":           {r, restored(func(*velerov1.PodVolumeRestore) {}), true},
		"restore, earlier reference": {r, restored(func(p *velerov1.PodVolumeRestore) { p.OwnerReferences = reference("Restore", "shop", "first") }), false},
		"restore, earlier label":     {r, restored(func(p *velerov1.PodVolumeRestore) { p.Labels[velerov1.RestoreUIDLabel] = "first" }), false},

		"plugin, by name":         {b, byPlugin(""), true},
		"plugin, reference":       {b, byPlugin("second"), true},
		"plugin, earlier":         {b, byPlugin("first"), false},
		"plugin's restore":        {r, late, true},
		"plugin's, before it was": {r, early, false},
	} {
		if got := test.operation.Owns(&test.volume); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
