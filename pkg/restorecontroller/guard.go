package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrBesideVelero comes from CheckAlone.
var ErrBesideVelero = errors.New("a Velero server runs in this namespace, and both would take the same Restores: " +
	"install the restore controller into a namespace of its own, or remove the server first")

// CheckAlone refuses, with ErrBesideVelero, a namespace in which a Velero server runs, or is about to.
func CheckAlone(ctx context.Context, api client.Reader, namespace string) error {
	if err := checkDeployments(ctx, api, namespace); err != nil {
		return err
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("look for a Velero server: list the pods of namespace %q: %w", namespace, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if ended := isOneOf(p.Status.Phase, corev1.PodSucceeded, corev1.PodFailed); !ended && runsVelero(&p.Spec) {
			return fmt.Errorf("namespace %q, pod %q%s: %w", namespace, p.Name, deletedSince(p), ErrBesideVelero)
		}
	}
	return nil
}

// deletedSince tells people of a pod that is being deleted. On a node that does not answer it stays until it is deleted by force.
func deletedSince(pod *corev1.Pod) string {
	if pod.DeletionTimestamp.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (being deleted since %s; if its node %q is gone, delete the pod with --force)", pod.DeletionTimestamp.UTC().Format(time.RFC3339), pod.Spec.NodeName)
}

// checkDeployments is the part of CheckAlone that costs the same on any number of nodes, each of which has a pod of the agent here.
func checkDeployments(ctx context.Context, api client.Reader, namespace string) error {
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
	return nil
}

// watchForVeleroServer looks for a Velero server as long as the controller works, and returns ErrBesideVelero when there is one, or
// errStopped when ctx has ended: a server may be installed, or brought up by what a restore has restored, at any time.
func (c *Controller) watchForVeleroServer(ctx context.Context) error {
	ticker := time.NewTicker(c.cfg.AlonePeriod)
	defer ticker.Stop()
	for {
		err := checkDeployments(ctx, c.api, c.cfg.Namespace)
		switch {
		case errors.Is(err, ErrBesideVelero):
			return err
		case err != nil && ctx.Err() == nil:
			c.cfg.Logger.Warn("Cannot look for a Velero server; retrying", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errStopped
		}
	}
}

// runsVelero reports whether a pod runs `velero server`, as Velero's installer and its chart write it. Its node agent runs
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
