package restorecontroller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestVeleroServersAreSeen(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		container corev1.Container
		want      bool
	}{
		"installer":     {corev1.Container{Command: []string{"/velero"}, Args: []string{"server", "--uploader-type=kopia"}}, true},
		"one line":      {corev1.Container{Command: []string{"velero", "server"}}, true},
		"node agent":    {corev1.Container{Command: []string{"/velero"}, Args: []string{"node-agent", "server"}}, false},
		"ours":          {corev1.Container{Command: []string{"/usr/local/bin/restore-controller"}, Args: []string{"server"}}, false},
		"image's own":   {corev1.Container{Args: []string{"server"}}, false},
		"command alone": {corev1.Container{Command: []string{"/velero"}}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newNamespace(t)
			tc.container.Name, tc.container.Image = "main", "image"
			deployment := c.deploy("velero", tc.container)
			check := func(want bool, what string) {
				t.Helper()
				if err := CheckAlone(t.Context(), c.Client, c.Namespace); errors.Is(err, ErrBesideVelero) != want || (err != nil && !strings.Contains(err.Error(), what)) {
					t.Errorf("got %v, want %v", err, want)
				}
			}
			check(tc.want, `deployment "velero"`)
			c.Patch(deployment, `{"spec":{"replicas":0}}`)
			check(false, "")
			pod := &corev1.Pod{ObjectMeta: c.Meta("velero-0"), Spec: corev1.PodSpec{Containers: []corev1.Container{tc.container}}}
			c.Create(pod)
			check(tc.want, `pod "velero-0"`)
			pod.Status.Phase = corev1.PodSucceeded
			if err := c.Client.Status().Update(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			check(false, "")
		})
	}
}

// deploy creates a Deployment of a container.
func (c *cluster) deploy(name string, container corev1.Container) *appsv1.Deployment {
	c.t.Helper()
	labels := map[string]string{"a": "b"}
	deployment := &appsv1.Deployment{
		ObjectMeta: c.Meta(name),
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{container}}},
		},
	}
	c.Create(deployment)
	return deployment
}

// TestVeleroServerThatComesLater has a Velero server come into the namespace while one Restore runs and another one waits: the
// first ends as Failed and says why, the other is left to the server, and the controller ends.
func TestVeleroServerThatComesLater(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, step := range []v1alpha1.RestoreStep{v1alpha1.StepCollecting, v1alpha1.StepRestoring, v1alpha1.StepVolumes} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			ended := make(chan error, 1)
			c.ManagerEnded = func(err error) { ended <- err }
			e := withVolumes(c)
			switch block := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }; step {
			case v1alpha1.StepCollecting:
				e = &script{collect: func(ctx context.Context, _ restore.Input) (*restore.Plan, error) { return nil, block(ctx) }}
			case v1alpha1.StepRestoring:
				e = &script{run: func(ctx context.Context, _ *restore.Plan, _ func(restore.Progress)) (*restore.Outcome, error) {
					return nil, block(ctx)
				}}
			default: // the volumes block by themselves
			}
			restorable(c, e, func(cfg *Config) { cfg.AlonePeriod = 10 * time.Millisecond })
			first := c.newRestore("r1", nil)
			c.Create(first)
			testenv.EventuallyGet(c.Env, first, string(step), func(r *velerov1.Restore, err error) bool { return err == nil && progressOf(r).Step == step })
			second := c.newRestore("r2", nil)
			c.Create(second)
			c.deploy("velero", corev1.Container{Name: "velero", Image: "velero", Command: []string{"/velero"}, Args: []string{"server"}})
			c.ended(first)
			if s := first.Status; s.Phase != velerov1.RestorePhaseFailed || !strings.Contains(s.FailureReason, "a Velero server runs in this namespace") ||
				!strings.Contains(s.FailureReason, `deployment "velero"`) {
				t.Errorf("%+v", s)
			}
			if err := <-ended; !errors.Is(err, ErrBesideVelero) {
				t.Errorf("the controller ended with %v", err)
			}
			testenv.EventuallyGet(c.Env, second, "there", func(_ *velerov1.Restore, err error) bool { return err == nil })
			if isBegun(second) {
				t.Errorf("the Restore that waited: %+v", second.Status)
			}
		})
	}
}

// TestVeleroPodThatDoesNotGo has a pod of a Velero server that is being deleted, on a node that does not answer: a Restore says what
// it waits for, and goes on when the pod is gone.
func TestVeleroPodThatDoesNotGo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restorable(c, &script{}, nil)
	pod := &corev1.Pod{ObjectMeta: c.Meta("velero-0"), Spec: corev1.PodSpec{
		NodeName: "dead", Containers: []corev1.Container{{Name: "velero", Image: "velero", Command: []string{"/velero"}, Args: []string{"server"}}},
	}}
	c.Create(pod)
	c.Delete(pod) // kubelet would confirm it
	r := c.newRestore("r1", nil)
	c.Create(r)
	testenv.EventuallyGet(c.Env, r, "told what it waits for", func(r *velerov1.Restore, err error) bool { return err == nil && progressOf(r).Message != "" })
	for _, want := range []string{"not begun yet: ", `pod "velero-0" (being deleted since `, `node "dead"`, "a Velero server runs in this namespace"} {
		if message := progressOf(r).Message; !strings.Contains(message, want) {
			t.Errorf("no %q in %q", want, message)
		}
	}
	if isBegun(r) {
		t.Errorf("%+v", r.Status)
	}
	if err := c.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || progressOf(r).Message != "" {
		t.Errorf("%+v, %q", r.Status, progressOf(r).Message)
	}
}
