package podvolume

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A claim that does not land leaves the slot to others.
func TestClaimThatDoesNotLand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fault := apierrors.NewInternalError(errors.New("a webhook fails"))
		op := newOperation(FromBackup(&velerov1.PodVolumeBackup{}), func(env *Environment) { env.API = &answers{errs: []error{fault}} })
		begin := time.Now()
		err := op.claim(t.Context())
		if !isUnanswered(err) || !isFault(err) || time.Since(begin) != claimTimeout {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}
