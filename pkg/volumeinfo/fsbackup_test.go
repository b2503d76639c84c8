package volumeinfo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestPodVolumeBackup(t *testing.T) {
	t.Parallel()
	volume := func(change func(*BackupVolume)) *BackupVolume {
		v := &BackupVolume{
			PVCName: "data", PVCNamespace: "shop", PVName: "pv-1", BackupMethod: MethodPodVolumeBackup,
			PodVolume: &PodVolumeInfo{SnapshotHandle: "s1", Size: 4096, UploaderType: "kopia", VolumeName: "v", PodName: "web", PodNamespace: "shop", NodeName: "n1"},
		}
		change(v)
		return v
	}
	for name, test := range map[string]struct {
		change func(*BackupVolume)
		none   bool
		phase  velerov1.PodVolumeBackupPhase
	}{
		"completed":               {change: func(v *BackupVolume) { v.PodVolume.Phase, v.Result = "Completed", ResultSucceeded }, phase: "Completed"},
		"before Velero 1.14":      {change: func(*BackupVolume) {}, phase: "Completed"},
		"failed":                  {change: func(v *BackupVolume) { v.Result = ResultFailed }, phase: "Failed"},
		"failed in the end":       {change: func(v *BackupVolume) { v.Result, v.PodVolume.Phase = ResultFailed, "Completed" }, phase: "Failed"},
		"not done in time":        {change: func(v *BackupVolume) { v.PodVolume.Phase = "InProgress" }, phase: "InProgress"},
		"nothing about its end":   {change: func(v *BackupVolume) { v.PodVolume.SnapshotHandle = "" }},
		"empty":                   {change: func(v *BackupVolume) { v.PodVolume.SnapshotHandle, v.PodVolume.Phase = "", "Completed" }, phase: "Completed"},
		"skipped":                 {change: func(v *BackupVolume) { v.BackupMethod, v.Skipped = "", true }, none: true},
		"a CSI snapshot":          {change: func(v *BackupVolume) { v.BackupMethod = MethodCSISnapshot }, none: true},
		"no details":              {change: func(v *BackupVolume) { v.PodVolume = nil }, none: true},
		"no pod":                  {change: func(v *BackupVolume) { v.PodVolume.PodName = "" }, none: true},
		"no volume of the pod":    {change: func(v *BackupVolume) { v.PodVolume.VolumeName = "" }, none: true},
		"no namespace of the pod": {change: func(v *BackupVolume) { v.PodVolume.PodNamespace = "" }, phase: "Completed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := volume(test.change)
			got := v.PodVolumeBackup()
			if got == nil || test.none {
				if (got == nil) != test.none {
					t.Errorf("got %+v", got)
				}
				return
			}
			want := &velerov1.PodVolumeBackup{}
			want.Annotations = map[string]string{"velero.io/pvc-name": "data"}
			want.Spec = velerov1.PodVolumeBackupSpec{
				Pod: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web"}, Volume: "v", UploaderType: "kopia", Node: "n1",
			}
			want.Status.SnapshotID, want.Status.Phase = v.PodVolume.SnapshotHandle, test.phase
			want.Status.Progress.TotalBytes, want.Status.Progress.BytesDone = 4096, 4096
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
