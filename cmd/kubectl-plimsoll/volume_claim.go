package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// helper has the options of the pod that mounts a claim during its restore.
type helper struct {
	image string
	user  int64
}

func (h *helper) addFlags(f *pflag.FlagSet) {
	f.StringVar(&h.image, "image", "", "with --into-claim or --to-claim: image of the pod, which must be one of the node agent (default: the node agent's)")
	f.Int64Var(&h.user, "run-as-user", 0, "with --into-claim or --to-claim: the user of the pod; one that is not root must be able to list the volume's top directory, "+
		"and is allowed in namespaces that refuse root")
}

// helperVolume is the name of the claim's volume in the helper's pod.
const helperVolume = "volume"

// tidyTimeout is how long the helper's pod has to take the agent's note out of the volume.
const tidyTimeout = 2 * time.Minute

// intoClaim restores into a claim, through a pod that waits for it as one does that a Velero server restores.
func (o *volumeRestore) intoClaim(cmd *cobra.Command, v *volumes, from snapshot) error {
	ctx := cmd.Context()
	claim, err := o.targetClaim(ctx, v, from)
	if err != nil {
		return cannot("restore into PersistentVolumeClaim %s: %w", describe.Clean(o.claim), err)
	}
	image, err := v.image(ctx, o.helper.image)
	if err != nil {
		return cannot("restore into PersistentVolumeClaim %s: %w", describe.Clean(o.claim), err)
	}
	if o.creates() {
		if err := o.create.create(cmd, v, claim); err != nil {
			return err
		}
	}
	pvr, pod, err := o.start(cmd, v, from, claim, image)
	if err != nil {
		if o.creates() {
			err = errors.Join(err, v.remove(ctx, claim))
		}
		return err
	}
	if o.noWait {
		fmt.Fprintf(cmd.ErrOrStderr(), "Delete it when the restore has ended: kubectl -n %s delete pod %s\n", pod.Namespace, pod.Name)
		return o.report(cmd, describe.OfPodVolumeRestore(pvr))
	}
	goesOn, err := o.finish(cmd, v, pvr, pod)
	if err != nil && o.creates() {
		o.create.sayLeft(cmd, claim, goesOn)
	}
	return err
}

// creates reports whether the command creates the claim that it restores into.
func (o *volumeRestore) creates() bool { return o.create.name != "" }

// targetClaim returns the claim that is restored into: one that is there and free, or one that is to be created.
func (o *volumeRestore) targetClaim(ctx context.Context, v *volumes, from snapshot) (*corev1.PersistentVolumeClaim, error) {
	if o.creates() {
		return o.create.plan(ctx, v, from)
	}
	return o.freeClaim(ctx, v)
}

// start creates the PodVolumeRestore and its pod, or neither.
func (o *volumeRestore) start(cmd *cobra.Command, v *volumes, from snapshot, claim *corev1.PersistentVolumeClaim, image image) (*velerov1.PodVolumeRestore, *corev1.Pod, error) {
	ctx := cmd.Context()
	// The pod must know whom it waits for, and that is the PodVolumeRestore: so that comes first, and the agents wait for the pod.
	name := "plimsoll-restore-" + rand.String(5)
	pvr := o.newPodVolumeRestore(v.namespace, corev1.ObjectReference{Kind: "Pod", Namespace: claim.Namespace, Name: name}, helperVolume, from)
	pvr.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
	if err := v.client.Create(ctx, pvr); err != nil {
		return nil, nil, fmt.Errorf("create the PodVolumeRestore: %w", err)
	}
	o.announce(cmd, o.format, "podvolumerestore", pvr.Name)
	pod := o.helper.pod(name, image, claim, pvr)
	if err := v.client.Create(ctx, pod); err != nil {
		if apierrors.IsForbidden(err) && o.helper.user == 0 {
			err = fmt.Errorf("%w; if root is not allowed, set --run-as-user to the user that owns the volume's files", err)
		}
		return nil, nil, errors.Join(fmt.Errorf("create the pod that mounts the claim: %w", err), v.remove(ctx, pvr))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "pod/%s created in namespace %s\n", pod.Name, pod.Namespace)
	return pvr, pod, nil
}

// finish waits for the restore and for the pod, and deletes the pod unless the restore goes on.
func (o *volumeRestore) finish(cmd *cobra.Command, v *volumes, pvr *velerov1.PodVolumeRestore, pod *corev1.Pod) (goesOn bool, _ error) {
	ctx := cmd.Context()
	ended, err := o.follow(cmd, v, pvr)
	switch {
	case ended.Ended() && err == nil:
		err = v.tidied(ctx, pod)
	case !ended.Ended() && !errors.Is(err, errGone) && (ctx.Err() == nil || !o.cancelOnInterrupt):
		fmt.Fprintf(cmd.ErrOrStderr(), "Delete its pod when it has ended: kubectl -n %s delete pod %s\n", pod.Namespace, pod.Name)
		return true, err
	}
	if removeErr := v.remove(ctx, pod); removeErr != nil {
		err = errors.Join(err, removeErr)
	}
	if reportErr := o.report(cmd, ended); err == nil {
		err = reportErr
	}
	return false, err
}

// freeClaim reads the claim. Its errors say that it cannot be restored into.
func (o *volumeRestore) freeClaim(ctx context.Context, v *volumes) (*corev1.PersistentVolumeClaim, error) {
	namespace, name, err := parseNamespaced(o.claim)
	if err != nil {
		return nil, err
	}
	claim := &corev1.PersistentVolumeClaim{}
	err = v.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, errors.New("it does not exist; --to-claim creates it")
	case err != nil:
		return nil, fmt.Errorf("get it: %w", err)
	case claim.Status.Phase == corev1.ClaimLost:
		return nil, fmt.Errorf("it is Lost: its PersistentVolume %s is gone", claim.Spec.VolumeName)
	case claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return nil, errors.New("it is a raw block volume; only file systems can be restored")
	case claim.DeletionTimestamp != nil:
		return nil, errors.New("it is being deleted")
	}
	var pods corev1.PodList
	if err := v.api.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the pods that may use it: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; mounts(pod, name) {
			return nil, fmt.Errorf("pod %s uses it: scale down its workload, and scale up again when the restore has ended", pod.Name)
		}
	}
	return claim, nil
}

// mounts reports whether a pod that has not ended uses the claim.
func mounts(pod *corev1.Pod, claim string) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed &&
		slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			name, ok := describe.ClaimOf(pod, &v)
			return ok && name == claim
		})
}

// image is one that has our programs. Nodes with a node agent have that one already.
type image struct {
	name    string
	secrets []corev1.LocalObjectReference // in the node agent's namespace
	agents  string                        // the namespace of the node agents that have the image; empty: it is not known which do
}

// image is the one that was asked for, or that of Plimsoll's node agent.
func (v *volumes) image(ctx context.Context, asked string) (image, error) {
	if asked != "" {
		return image{name: asked}, nil
	}
	for _, name := range []string{"node-agent", someNodes} {
		var agent appsv1.DaemonSet
		err := v.api.Get(ctx, client.ObjectKey{Namespace: v.namespace, Name: name}, &agent)
		if client.IgnoreNotFound(err) != nil {
			return image{}, fmt.Errorf("get DaemonSet %s in namespace %s for its image: %w; or set --image", name, v.namespace, err)
		}
		if template := &agent.Spec.Template; err == nil && oursIs(template.Labels) && len(template.Spec.Containers) > 0 {
			return image{template.Spec.Containers[0].Image, template.Spec.ImagePullSecrets, v.namespace}, nil
		}
	}
	return image{}, fmt.Errorf("namespace %s has no DaemonSet of Plimsoll's node agent, neither node-agent nor %s: set --image to an image of Plimsoll's node agent", v.namespace, someNodes)
}

// someNodes is the name of the DaemonSet of deploy/some-nodes, beside which Velero's own keeps the name node-agent.
const someNodes = "plimsoll-node-agent"

// pod is one that waits for the restore of the claim, and ends.
func (h *helper) pod(name string, image image, claim *corev1.PersistentVolumeClaim, pvr *velerov1.PodVolumeRestore) *corev1.Pod {
	container := corev1.Container{
		Image: image.name, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/usr/local/bin/node-agent"}, SecurityContext: h.securityContext(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	wait, end := container, container
	wait.Name, wait.Args = v1alpha1.ContainerRestoreWait, []string{v1alpha1.ContainerRestoreWait, string(pvr.UID)}
	wait.VolumeMounts = []corev1.VolumeMount{{Name: helperVolume, MountPath: "/restores/" + helperVolume}}
	end.Name, end.Args = "end", []string{"version"}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: claim.Namespace, Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": "plimsoll-restore", "app.kubernetes.io/part-of": "plimsoll"},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			NodeSelector:    map[string]string{corev1.LabelOSStable: "linux"},
			SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			InitContainers:  []corev1.Container{wait}, Containers: []corev1.Container{end},
			Volumes: []corev1.Volume{{Name: helperVolume, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}}},
		},
	}
	if claim.Spec.VolumeName != "" { // it may lie on a node that is kept for others
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	} else if image.agents != "" { // its volume is made where the pod is, and only a node with an agent can restore it
		pod.Spec.Affinity = besideAgents(image.agents)
	}
	return pod
}

// besideAgents lets a pod run only on nodes with a node agent of the namespace.
func besideAgents(namespace string) *corev1.Affinity {
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{agentLabel: agentName}}, Namespaces: []string{namespace}, TopologyKey: corev1.LabelHostname,
	}}}}
}

// securityContext lets the pod see the agent's note and remove it, whoever owns the volume.
func (h *helper) securityContext() *corev1.SecurityContext {
	s := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsUser: &h.user, RunAsNonRoot: new(h.user != 0),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if h.user == 0 {
		s.Capabilities.Add = []corev1.Capability{"DAC_OVERRIDE"}
	}
	return s
}

// tidied waits until the pod has taken the agent's note out of the volume.
func (v *volumes) tidied(ctx context.Context, pod *corev1.Pod) error {
	ctx, stop := context.WithTimeout(ctx, tidyTimeout)
	defer stop()
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	for {
		err := v.api.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if err == nil && pod.Status.Phase == corev1.PodSucceeded {
			return nil
		}
		if apierrors.IsNotFound(err) || err == nil && pod.Status.Phase == corev1.PodFailed || ctx.Err() != nil {
			return fmt.Errorf("the data is restored, but pod %s/%s failed (%s): remove the directory .velero from the volume", pod.Namespace, pod.Name, pod.Status.Phase)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
	}
}

// remove deletes what this command has created, also after an interruption.
func (v *volumes) remove(ctx context.Context, object client.Object) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer stop()
	err := v.client.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID())})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return nil
}
