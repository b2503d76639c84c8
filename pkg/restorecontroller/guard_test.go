package restorecontroller

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			labels := map[string]string{"a": "b"}
			deployment := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "velero"},
				Spec: appsv1.DeploymentSpec{
					Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{tc.container}}},
				},
			}
			c.create(deployment)
			check := func(want bool, what string) {
				t.Helper()
				if err := CheckAlone(t.Context(), c.client, c.ns); errors.Is(err, ErrBesideVelero) != want || (err != nil && !strings.Contains(err.Error(), what)) {
					t.Errorf("got %v, want %v", err, want)
				}
			}
			check(tc.want, `deployment "velero"`)
			c.patch(deployment, `{"spec":{"replicas":0}}`)
			check(false, "")
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "velero-0"}, Spec: corev1.PodSpec{Containers: []corev1.Container{tc.container}}}
			c.create(pod)
			check(tc.want, `pod "velero-0"`)
			pod.Status.Phase = corev1.PodSucceeded
			if err := c.client.Status().Update(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			check(false, "")
		})
	}
}
