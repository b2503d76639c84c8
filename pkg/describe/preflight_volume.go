package describe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

const (
	uploaderRestic = "restic"
	uploaderKopia  = "kopia"
)

// pod plans the volumes of a pod.
func (p *planner) pod(pod *corev1.Pod) {
	named, excluded := volumesIn(pod, annotationIn), volumesIn(pod, annotationOut)
	if why := p.notSelected(pod); why != "" {
		for _, name := range named {
			p.add(pod, PlannedVolume{Volume: name, Decision: DecisionLeave, Reason: "the annotation " + annotationIn + " asks for it, but " + why})
		}
		return
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		planned := PlannedVolume{Volume: v.Name, OfObjects: objectsIn(v) != ""}
		planned.Claim, _ = ClaimOf(pod, v)
		planned.Decision, planned.Reason = p.decide(pod, v, slices.Contains(named, v.Name), slices.Contains(excluded, v.Name))
		p.add(pod, planned)
	}
	p.checkNames(pod, named, excluded)
}

func (p *planner) add(pod *corev1.Pod, v PlannedVolume) {
	v.Namespace, v.Pod, v.Node = pod.Namespace, pod.Name, pod.Spec.NodeName
	p.Volumes = append(p.Volumes, v)
}

// volumesIn reads an annotation as Velero does: what is between commas is a name, spaces included.
func volumesIn(pod *corev1.Pod, annotation string) []string {
	text := pod.Annotations[annotation]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// checkNames finds names in annotations that no volume has.
func (p *planner) checkNames(pod *corev1.Pod, named, excluded []string) {
	has := func(name string) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	}
	hint := func(name string) string {
		if trimmed := strings.TrimSpace(name); trimmed != name && has(trimmed) {
			return fmt.Sprintf("; Velero takes the spaces around %q as part of the name", trimmed)
		}
		return ""
	}
	for _, name := range named {
		if !has(name) && !p.DefaultVolumesToFSBackup {
			p.add(pod, PlannedVolume{
				Volume: name, Decision: DecisionCannot, Reason: "the annotation " + annotationIn + " names it, but the pod has no such volume" + hint(name),
			})
		}
	}
	for _, name := range excluded {
		if !has(name) && p.DefaultVolumesToFSBackup {
			p.note("pod %s/%s: the annotation %s names %q, but the pod has no such volume%s", pod.Namespace, pod.Name, annotationOut, name, hint(name))
		}
	}
}

// decide says what becomes of a volume, and why. Velero looks in the same order.
func (p *planner) decide(pod *corev1.Pod, v *corev1.Volume, named, excluded bool) (Decision, string) {
	asked, by := p.asked(named, excluded)
	kind := leftOutKind(v)
	switch {
	case kind != "" && asked && named && !p.DefaultVolumesToFSBackup:
		return DecisionCannot, by + ", but Velero backs up no " + kind
	case !asked:
		return DecisionLeave, by
	case kind != "":
		return DecisionLeave, "Velero backs up no " + kind
	}
	claim := types.NamespacedName{Namespace: pod.Namespace}
	if v.PersistentVolumeClaim != nil {
		claim.Name = v.PersistentVolumeClaim.ClaimName
		if other := p.taken[claim]; other != "" {
			return DecisionLeave, fmt.Sprintf("PersistentVolumeClaim %s is backed up once, with pod %s", claim.Name, other)
		}
	}
	why, quiet := p.hindrance(pod, v)
	if why == "" {
		why = p.repositoryHindrance(pod.Namespace)
	}
	if why != "" {
		if quiet && !named {
			return DecisionLeave, why
		}
		return DecisionCannot, by + ", but " + why
	}
	if claim.Name != "" {
		p.taken[claim] = pod.Name
	}
	if agent := p.agents[pod.Spec.NodeName]; !podReady(agent) {
		by += fmt.Sprintf("; it waits until the node agent %s is ready", agent.Name)
	}
	return DecisionBackUp, by + p.lastTime(pod, v)
}

// lastTime says how much was backed up of a volume when it was last; empty: nobody knows.
func (p *planner) lastTime(pod *corev1.Pod, v *corev1.Volume) string {
	var last *Volume
	for i := range p.in.Volumes {
		b := &p.in.Volumes[i]
		if b.Kind == KindPodVolumeBackup && b.PodNamespace == pod.Namespace && b.Pod == pod.Name && b.Volume == v.Name &&
			b.Progress.State == progress.StateCompleted && (last == nil || last.Completed.Before(b.Completed)) {
			last = b
		}
	}
	switch {
	case last == nil:
		return ""
	case last.SnapshotID == "":
		return "; it was empty last time, which gives no snapshot"
	case last.Started.IsZero() || last.Completed.IsZero():
		return "; last time " + Bytes(last.Progress.BytesDone)
	default:
		return fmt.Sprintf("; last time %s in %s", Bytes(last.Progress.BytesDone), Duration(last.Completed.Sub(last.Started)))
	}
}

// asked reports whether the backup asks for the files of a volume, and by what.
func (p *planner) asked(named, excluded bool) (asked bool, by string) {
	switch {
	case p.DefaultVolumesToFSBackup && excluded:
		return false, "the annotation " + annotationOut + " excludes it"
	case p.DefaultVolumesToFSBackup:
		return true, "all volumes are asked for"
	case named:
		return true, "the annotation " + annotationIn + " asks for it"
	default:
		return false, "the annotation " + annotationIn + " does not name it"
	}
}

// leftOutKind names the kinds of volumes that Velero passes over.
func leftOutKind(v *corev1.Volume) string {
	if v.HostPath != nil {
		return "hostPath volumes"
	}
	if objects := objectsIn(v); objects != "" {
		return objects
	}
	if strings.HasPrefix(v.Name, "default-token") {
		return "volumes whose name begins with default-token"
	}
	return ""
}

// objectsIn names the kinds of volumes whose files come from objects.
func objectsIn(v *corev1.Volume) string {
	switch {
	case v.Secret != nil:
		return "secret volumes"
	case v.ConfigMap != nil:
		return "configMap volumes"
	case v.Projected != nil:
		return "projected volumes"
	case v.DownwardAPI != nil:
		return "downwardAPI volumes"
	}
	return ""
}

// hindrance says why a volume that is asked for cannot be backed up; empty: it can be. quiet ones are no failure where nobody
// has named the volume.
func (p *planner) hindrance(pod *corev1.Pod, v *corev1.Volume) (why string, quiet bool) {
	if why, quiet := podHindrance(pod); why != "" {
		return why, quiet
	}
	if why := p.agentHindrance(pod); why != "" {
		return why, false
	}
	if why, quiet := p.claimHindrance(pod, v); why != "" {
		return why, quiet
	}
	mounted, device := usedBy(pod, v.Name)
	switch {
	case device:
		return "it is a raw block volume, and only files can be backed up", true
	case !mounted:
		return "no container of the pod mounts it (init containers do not count)", true
	case v.Image != nil:
		return "it is an image volume, which the node agent cannot reach", false
	}
	return "", false
}

func podHindrance(pod *corev1.Pod) (why string, quiet bool) {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Sprintf("the pod has ended (%s)", pod.Status.Phase), true
	case pod.DeletionTimestamp != nil:
		return "the pod is being deleted", false
	case pod.Spec.NodeName == "":
		return "the pod has no node yet", false
	case pod.Status.Phase != corev1.PodRunning:
		return fmt.Sprintf("the pod does not run (%s)", cmp.Or(pod.Status.Phase, corev1.PodPending)), false
	}
	return "", false
}

// agentHindrance looks for a node agent as the server does: a pod that runs, ready or not.
func (p *planner) agentHindrance(pod *corev1.Pod) string {
	node := p.nodes[pod.Spec.NodeName]
	if windows(node) && p.in.Server.is(1, 16) {
		return fmt.Sprintf("node %s runs Windows, where Velero 1.16 backs up no files", node.Name)
	}
	if p.agents[pod.Spec.NodeName] != nil {
		return ""
	}
	why := "no node agent runs on node " + pod.Spec.NodeName
	switch {
	case windows(node):
		why += ", which runs Windows: Plimsoll's is for Linux"
	case virtual(node):
		why += ", which is a virtual one: no DaemonSet has pods there"
	}
	return why
}

func windows(node *corev1.Node) bool {
	return node != nil && node.Labels[corev1.LabelOSStable] == "windows"
}

// virtual knows the nodes of virtual kubelets and of AWS Fargate.
func virtual(node *corev1.Node) bool {
	return node != nil && (node.Labels["type"] == "virtual-kubelet" || node.Labels["eks.amazonaws.com/compute-type"] == "fargate" ||
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "virtual-kubelet.io/provider" }))
}

// repositoryHindrance looks at the namespace's BackupRepository. One that is not there is made.
func (p *planner) repositoryHindrance(namespace string) string {
	for i := range p.in.Repositories {
		r := &p.in.Repositories[i]
		l := r.Labels
		if l[velerov1.VolumeNamespaceLabel] == label.GetValidName(namespace) && l[velerov1.StorageLocationLabel] == label.GetValidName(p.StorageLocation) &&
			l[velerov1.RepositoryTypeLabel] == p.Uploader && r.Status.Phase == velerov1.BackupRepositoryPhaseNotReady {
			return fmt.Sprintf("BackupRepository %s is not ready: %s", r.Name, cmp.Or(r.Status.Message, "nothing more is known"))
		}
	}
	return ""
}

func (p *planner) claimHindrance(pod *corev1.Pod, v *corev1.Volume) (why string, quiet bool) {
	name, ok := ClaimOf(pod, v)
	if !ok {
		return "", false
	}
	claim := p.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
	switch {
	case claim == nil:
		return fmt.Sprintf("PersistentVolumeClaim %s does not exist", name), false
	case claim.Status.Phase == corev1.ClaimLost:
		return fmt.Sprintf("PersistentVolumeClaim %s is Lost: its PersistentVolume %s is gone", name, claim.Spec.VolumeName), false
	case claim.Spec.VolumeName == "":
		return fmt.Sprintf("PersistentVolumeClaim %s is not bound to a PersistentVolume", name), false
	}
	pv := p.persistent[claim.Spec.VolumeName]
	switch {
	case pv == nil:
		return fmt.Sprintf("PersistentVolume %s of PersistentVolumeClaim %s does not exist", claim.Spec.VolumeName, name), false
	case pv.Spec.HostPath != nil:
		return fmt.Sprintf("PersistentVolume %s is of type hostPath", pv.Name), true
	case pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return "it is a raw block volume, and only files can be backed up", true
	}
	return "", false
}

// ClaimOf names the PersistentVolumeClaim behind a pod's volume, and is false for a volume that has none.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) (string, bool) { return volume.ClaimName(pod.Name, v) }

// usedBy reports whether a container mounts a volume, and whether one has it as a device.
func usedBy(pod *corev1.Pod, name string) (mounted, device bool) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		mounted = mounted || slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
		device = device || slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == name })
	}
	return mounted, device
}

// podReady reports whether a pod runs and is ready.
func podReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// CannotBackUp says why the files of a pod's volume cannot be backed up, whoever asks for them; empty: they can be. Of the input
// it takes agents, nodes, and the volume's claim and PersistentVolume.
func CannotBackUp(in *BackupInput, pod *corev1.Pod, v *corev1.Volume) string {
	p := &planner{in: in}
	p.index()
	if kind := leftOutKind(v); kind != "" {
		return "node agents back up no " + kind
	}
	why, _ := p.hindrance(pod, v)
	return why
}
