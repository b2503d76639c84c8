package podvolume

import (
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

func TestIsDamaged(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2026, 11, 25, hour, 0, 0, 0, time.UTC) }
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
	} {
		if got := isDamaged(test.earlier); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
