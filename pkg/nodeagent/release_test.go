package nodeagent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

// TestReleaseOfRestoreWithoutNode: the CRDs of Velero 1.16 drop status.node of a restore, and its own agent does not wait for another one.
func TestReleaseOfRestoreWithoutNode(t *testing.T) {
	t.Parallel()
	a := &Agent{cfg: Config{Config: podvolume.Config{NodeName: "node-1", AbandonedAfter: 5 * time.Minute}}, observed: map[podvolume.Key]*observation{}}
	restore := podvolume.PodVolume{Object: &velerov1.PodVolumeRestore{ObjectMeta: metav1.ObjectMeta{
		Name: "restore", Labels: map[string]string{v1alpha1.LabelNode: v1alpha1.LabelValue("node-1")},
	}}}
	if delay := a.releaseDelay(restore); delay != 0 {
		t.Errorf("its own agent leaves it to others for %s", delay)
	}
}

// TestDeadlinesAreForgotten: what is known of Backups does not grow for ever, those that no server waits for included.
func TestDeadlinesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{deadlines: map[types.UID]knownDeadline{}}
		a.rememberDeadline("waited-for", &podvolume.Deadline{Local: time.Now().Add(4 * time.Hour)})
		for i := range 100 {
			a.rememberDeadline(types.UID(fmt.Sprint("no-server-", i)), nil)
		}
		<-time.After(2 * time.Hour)
		a.rememberDeadline("new", nil)
		if _, ok := a.deadlines["waited-for"]; len(a.deadlines) != 2 || !ok {
			t.Errorf("%d deadlines are kept", len(a.deadlines))
		}
		<-time.After(4 * time.Hour)
		a.rememberDeadline("newer", nil)
		if len(a.deadlines) != 1 {
			t.Errorf("%d deadlines are kept after all have passed", len(a.deadlines))
		}
	})
}
