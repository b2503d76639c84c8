package live

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestWhereAgentsListen has what our manifests and Velero's say of it.
func TestWhereAgentsListen(t *testing.T) {
	t.Parallel()
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, "prometheus.io/"+key, value) }
	}
	for name, test := range map[string]struct {
		tune []func(*corev1.Pod)
		want string
	}{
		"says nothing":       {want: "agent:8085"},
		"annotated":          {[]func(*corev1.Pod){annotated("port", "9000")}, "agent:9000"},
		"annotated nonsense": {[]func(*corev1.Pod){annotated("port", "80/../secret")}, "agent:8085"},
		"a container's port": {[]func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: 7000}}
		}}, "agent:7000"},
		"TLS, as annotated": {[]func(*corev1.Pod){annotated("scheme", "https"), annotated("port", "9000")}, "https:agent:9000"},
		"TLS, as kubelet has": {[]func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Scheme: corev1.URISchemeHTTPS}}}
		}}, "https:agent:8085"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
		for _, tune := range test.tune {
			tune(pod)
		}
		if got := agentPodOf(pod).proxied; got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	object := progress.Snapshot{State: progress.StateTransferring, BytesDone: 3, CurrentItem: "file", LastError: "EIO", Errors: 1, Message: "network", Heartbeat: at(10)}
	for name, test := range map[string]struct {
		object, live, want progress.Snapshot
	}{
		"newer": {
			object,
			progress.Snapshot{State: progress.StateTransferring, BytesDone: 4, Errors: 2, Heartbeat: at(11)},
			progress.Snapshot{State: progress.StateTransferring, BytesDone: 4, Errors: 2, Heartbeat: at(11), CurrentItem: "file", LastError: "EIO", Message: "network"},
		},
		"in another state": {
			object,
			progress.Snapshot{State: progress.StateFinishing, BytesDone: 4, Heartbeat: at(11)},
			progress.Snapshot{State: progress.StateFinishing, BytesDone: 4, Heartbeat: at(11)},
		},
		"with names of files": {
			object,
			progress.Snapshot{State: progress.StateTransferring, Errors: 2, LastError: "EPERM", CurrentItem: "other", Message: "r", Heartbeat: at(11)},
			progress.Snapshot{State: progress.StateTransferring, Errors: 2, LastError: "EPERM", CurrentItem: "other", Message: "r", Heartbeat: at(11)},
		},
		"older":           {object, progress.Snapshot{State: progress.StateStalled, Heartbeat: at(9)}, object},
		"nothing":         {object, progress.Snapshot{}, object},
		"an end":          {object, progress.Snapshot{State: progress.StateFailed, Heartbeat: at(11)}, object},
		"after the end":   {progress.Snapshot{State: progress.StateCompleted}, progress.Snapshot{State: progress.StateFinishing, Heartbeat: at(11)}, progress.Snapshot{State: progress.StateCompleted}},
		"of Velero's own": {progress.Snapshot{State: progress.StateScanning}, progress.Snapshot{State: progress.StateWaiting, Heartbeat: at(11)}, progress.Snapshot{State: progress.StateWaiting, Heartbeat: at(11)}},
	} {
		v := describe.Volume{Progress: test.object}
		mergeReport(&v, agentReport{test.live, true})
		if diff := cmp.Diff(test.want, v.Progress); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// TestAnswersGetOld: an agent that is gone does not tell how far its volumes are this moment.
func TestAnswersGetOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &agents{patience: time.Second, answers: map[types.UID]answer{}}
		pod := agentPod{uid: "pod"}
		a.note(pod, map[types.UID]progress.Snapshot{"volume": {State: progress.StateTransferring, BytesDone: 5}}, nil)
		for _, test := range []struct {
			pause time.Duration
			want  describe.Source
		}{{time.Second, describe.SourceAgent}, {10 * time.Second, describe.SourceAnnotation}} {
			<-time.After(test.pause)
			a.note(pod, nil, errors.New("no route to host"))
			v := describe.Volume{UID: "volume"}
			mergeReport(&v, a.volumes(time.Now())["volume"])
			if v.Source != test.want || v.Progress.BytesDone != 5 {
				t.Errorf("after %s more: %+v, want source %s", test.pause, v, test.want)
			}
		}
	})
}
