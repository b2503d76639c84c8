package proof

import (
	"slices"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

func TestIsMarkedDamaged(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2026, 11, 25, hour, 0, 0, 0, time.UTC) }
	of := func(pod, claim, uploader string, pvb velerov1.PodVolumeBackup) velerov1.PodVolumeBackup {
		pvb.Spec.Pod.Name, pvb.Spec.UploaderType, pvb.Labels = pod, uploader, map[string]string{velerov1.PVCUIDLabel: claim}
		return pvb
	}
	backup := func(begun int, annotation string, found int) velerov1.PodVolumeBackup {
		pvb := velerov1.PodVolumeBackup{Status: velerov1.PodVolumeBackupStatus{StartTimestamp: new(metav1.NewTime(at(begun)))}}
		if annotation != "" {
			pvb.Annotations = map[string]string{annotation: at(found).Format(time.RFC3339)}
		}
		return pvb
	}
	const damaged, verified = v1alpha1.AnnotationDamaged, v1alpha1.AnnotationVerified
	for name, test := range map[string]struct {
		earlier []velerov1.PodVolumeBackup
		want    bool
	}{
		"none":                               {nil, false},
		"nobody has looked":                  {[]velerov1.PodVolumeBackup{backup(1, "", 0)}, false},
		"proven":                             {[]velerov1.PodVolumeBackup{backup(1, verified, 3)}, false},
		"damaged":                            {[]velerov1.PodVolumeBackup{backup(1, damaged, 3), backup(2, "", 0)}, true},
		"a newer one is proven after that":   {[]velerov1.PodVolumeBackup{backup(1, damaged, 3), backup(2, verified, 4)}, false},
		"a newer one was proven before that": {[]velerov1.PodVolumeBackup{backup(1, damaged, 3), backup(2, verified, 2)}, true},
		"both in one second":                 {[]velerov1.PodVolumeBackup{backup(1, damaged, 3), backup(2, verified, 3)}, true},
		"an older one is proven after that":  {[]velerov1.PodVolumeBackup{backup(1, verified, 4), backup(2, damaged, 3)}, true},
		"proven, and damaged again":          {[]velerov1.PodVolumeBackup{backup(1, damaged, 3), backup(2, verified, 4), backup(3, damaged, 5)}, true},
		"a proof without a time": {[]velerov1.PodVolumeBackup{backup(1, damaged, 3), {
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{verified: "yes"}}, Status: velerov1.PodVolumeBackupStatus{StartTimestamp: new(metav1.NewTime(at(2)))},
		}}, true},
		"another volume's is proven after that": {[]velerov1.PodVolumeBackup{backup(1, damaged, 3), of("other", "", "", backup(2, verified, 4))}, true},
		"the claim's in another pod is":         {[]velerov1.PodVolumeBackup{of("a", "claim", "kopia", backup(1, damaged, 3)), of("b", "claim", "kopia", backup(2, verified, 4))}, false},
		"that of a new claim of the names is":   {[]velerov1.PodVolumeBackup{of("a", "claim", "kopia", backup(1, damaged, 3)), of("a", "again", "kopia", backup(2, verified, 4))}, true},
		"one of the names without a claim is":   {[]velerov1.PodVolumeBackup{of("a", "claim", "kopia", backup(1, damaged, 3)), of("a", "", "kopia", backup(2, verified, 4))}, false},
		"the claim's is, of another uploader":   {[]velerov1.PodVolumeBackup{of("a", "claim", "kopia", backup(1, damaged, 3)), of("a", "claim", "restic", backup(2, verified, 4))}, true},
	} {
		if got := slices.ContainsFunc(test.earlier, func(pvb velerov1.PodVolumeBackup) bool { return IsMarkedDamaged(&pvb, test.earlier) }); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
