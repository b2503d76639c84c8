package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrBesideVelero comes from CheckAlone.
var ErrBesideVelero = errors.New("a Velero server runs in this namespace, and both would take the same Restores: " +
	"install the restore controller into a namespace of its own, or remove the server first")

// CheckAlone refuses, with ErrBesideVelero, a namespace in which a Velero server runs, or is about to.
func CheckAlone(ctx context.Context, api client.Reader, namespace string) error {
	var deployments appsv1.DeploymentList
	if err := api.List(ctx, &deployments, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("look for a Velero server: list the deployments of namespace %q: %w", namespace, err)
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if stopped := d.Spec.Replicas != nil && *d.Spec.Replicas == 0; !stopped && runsVelero(&d.Spec.Template.Spec) {
			return fmt.Errorf("namespace %q, deployment %q: %w", namespace, d.Name, ErrBesideVelero)
		}
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("look for a Velero server: list the pods of namespace %q: %w", namespace, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if ended := isOneOf(p.Status.Phase, corev1.PodSucceeded, corev1.PodFailed); !ended && runsVelero(&p.Spec) {
			return fmt.Errorf("namespace %q, pod %q: %w", namespace, p.Name, ErrBesideVelero)
		}
	}
	return nil
}

// runsVelero says whether a pod runs `velero server`, as Velero's installer and its chart write it. Its node agent runs
// `velero node-agent server`, which may be there.
func runsVelero(pod *corev1.PodSpec) bool {
	for i := range pod.Containers {
		line := slices.Concat(pod.Containers[i].Command, pod.Containers[i].Args)
		if len(line) > 1 && path.Base(line[0]) == "velero" && line[1] == "server" {
			return true
		}
	}
	return false
}
