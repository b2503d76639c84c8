package podvolume

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-io/plimsoll/test/testenv"
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

// What the API server does not have any more must not stay in what was read: a finalizer would come back with the next patch.
func TestFreshObjectHasNothingOfTheOldOne(t *testing.T) {
	t.Parallel()
	e := testenv.New(t, testenv.Options{})
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: e.Meta("b")}
	pvb.Finalizers, pvb.Annotations = []string{"example.com/theirs"}, map[string]string{"example.com/note": "old"}
	e.Create(pvb)
	op := newOperation(FromBackup(pvb.DeepCopy()), func(env *Environment) { env.API = e.Client })
	e.Patch(pvb, `{"metadata":{"finalizers":null,"annotations":null}}`)
	fresh, err := op.getFresh(t.Context())
	if err != nil || len(fresh.Object.GetFinalizers()) > 0 || len(fresh.Object.GetAnnotations()) > 0 {
		t.Errorf("finalizers %v, annotations %v, error %v", fresh.Object.GetFinalizers(), fresh.Object.GetAnnotations(), err)
	}
}
