package describe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// agents looks for node agents that are missing, not ready, or in each other's way.
func (d *doctor) agents() {
	if d.unread(ReadPods, ReadDaemonSets) {
		return
	}
	sets := d.agentSets()
	if len(sets) == 0 {
		d.fail(checkAgents, "AgentsMissing", "there is no DaemonSet of Plimsoll's node agent in namespace "+d.in.Namespace,
			"install it: docs/install.md; or set --namespace to the namespace of the Backups", "")
	}
	byNode, theirs := map[string]int{}, map[string]bool{}
	for i := range d.in.Agents {
		pod := &d.in.Agents[i]
		switch {
		case ours(pod):
			byNode[pod.Spec.NodeName]++
			d.agentPod(pod)
		case isAgent(pod):
			theirs[pod.Spec.NodeName] = true
		}
	}
	for _, set := range sets {
		if missing := set.Status.DesiredNumberScheduled - set.Status.CurrentNumberScheduled; missing > 0 {
			d.fail(checkAgents, "AgentNotScheduled", fmt.Sprintf("DaemonSet %s has no pod on %s that should have one", set.Name, text.Count(int(missing), "node", "nodes")),
				fmt.Sprintf("read its Events: kubectl -n %s describe daemonset %s", d.in.Namespace, set.Name), "")
		}
	}
	for node := range theirs {
		if byNode[node] > 0 {
			d.fail(checkAgents, "TwoAgents", "Velero's node agent runs beside Plimsoll's, and either may take a volume", "remove Velero's: docs/install.md, Install, step 1", node)
		}
	}
	d.nodesWithoutAgent()
	d.passed(checkAgents, text.Count(len(byNode), "node agent is", "node agents are")+" ready, on each node with volumes to back up")
}

// agentSets are the DaemonSets of our node agents.
func (d *doctor) agentSets() (sets []*appsv1.DaemonSet) {
	for i := range d.in.DaemonSets {
		if set := &d.in.DaemonSets[i]; set.Spec.Template.Labels[nameLabel] == agentName {
			sets = append(sets, set)
		}
	}
	return sets
}

// agentPod looks at a pod, and at whether its agent answers.
func (d *doctor) agentPod(pod *corev1.Pod) {
	if !podReady(pod) {
		why := cmp.Or(waitingFor(pod), string(pod.Status.Phase), "no status")
		d.fail(checkAgents, "AgentNotReady", "the node agent is not ready: "+why,
			fmt.Sprintf("read its Events and log: kubectl -n %s describe pod %s; docs/troubleshooting.md, The agent does not start", pod.Namespace, pod.Name), pod.Spec.NodeName)
	}
	answer, asked := d.in.SelfChecks[pod.UID]
	switch {
	case !asked || answer.Check != nil || pod.Status.Phase != corev1.PodRunning:
	case asksForToken(answer):
		d.note(checkAgents, "AgentAsksForToken", "the node agent asks for a token (--metrics-auth), which the API server does not pass on: what it knows of its node and of the locations is not checked",
			"ask it directly, with a token: docs/kubectl.md, doctor, Agents that ask for a token", pod.Spec.NodeName)
	case apierrors.IsForbidden(answer.Err):
		d.notChecked(checkAgents, "you may not get pods/proxy, by which node agents answer: what they know of their nodes and locations is not checked",
			"use an account that may: docs/kubectl.md, Rights", "")
	case apierrors.IsNotFound(answer.Err):
		d.fail(checkVersions, "AgentOutdated", "the node agent has no self-check: it is of an earlier version, or not Plimsoll's", "upgrade it: docs/upgrade.md", pod.Spec.NodeName)
	default:
		d.notChecked(checkAgents, "the node agent does not answer: "+answer.Err.Error(),
			fmt.Sprintf("see whether the API server reaches its port, and its log: kubectl -n %s logs %s", pod.Namespace, pod.Name), pod.Spec.NodeName)
	}
}

// asksForToken reports whether an agent refuses to answer by way of the API server. Others of its findings tell whether it runs.
func asksForToken(answer SelfCheckAnswer) bool { return apierrors.IsUnauthorized(answer.Err) }

// waitingFor names what a pod's containers wait for, such as ImagePullBackOff.
func waitingFor(pod *corev1.Pod) string {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Reason != "" {
				return w.Reason
			}
		}
	}
	return ""
}

// nodesWithoutAgent looks for volumes of nodes that have no node agent.
func (d *doctor) nodesWithoutAgent() {
	volumes := d.plannedWithoutAgent()
	for i := range d.in.Backups {
		v := OfPodVolumeBackup(&d.in.Backups[i])
		if !v.Ended() && !slices.ContainsFunc(d.in.Agents, func(pod corev1.Pod) bool { return pod.Spec.NodeName == v.Node && isAgent(&pod) }) {
			volumes.add(v.Node, v.PodNamespace, v.Pod, v.Volume)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(volumes)) {
		d.fail(checkAgents, "NodeWithoutAgent", fmt.Sprintf("no node agent runs on a node with %s to back up", text.Count(len(volumes[node]), "volume", "volumes")),
			"let the DaemonSet run there: its nodeSelector, affinity and tolerations, and the node's taints", node)
	}
}

// isAgent reports whether a pod of Velero's namespace is a node agent, Plimsoll's or Velero's.
func isAgent(pod *corev1.Pod) bool {
	return ours(pod) || pod.Labels["name"] == nodeAgent || pod.Labels["role"] == nodeAgent
}

// volumesByNode are volumes of pods, by the names of their nodes.
type volumesByNode map[string]map[string]bool

func (v volumesByNode) add(node, namespace, pod, volume string) {
	if v[node] == nil {
		v[node] = map[string]bool{}
	}
	v[node][namespace+"/"+pod+"/"+volume] = true
}

// plannedWithoutAgent returns the volumes that a Backup by the server's settings, or one of a Schedule, asks for.
func (d *doctor) plannedWithoutAgent() volumesByNode {
	specs := []velerov1.BackupSpec{{}}
	for i := range d.in.Schedules {
		specs = append(specs, d.in.Schedules[i].Spec.Template)
	}
	volumes := volumesByNode{}
	for _, spec := range specs {
		in := d.in.BackupInput
		in.Spec = spec
		p, err := newPlanner(&in)
		if err != nil {
			continue // the server says that of its Schedule
		}
		pods := map[string]*corev1.Pod{}
		for i := range in.Pods {
			pods[in.Pods[i].Namespace+"/"+in.Pods[i].Name] = &in.Pods[i]
			p.pod(&in.Pods[i])
		}
		for _, v := range p.Volumes {
			pod := pods[v.Namespace+"/"+v.Pod]
			if v.Decision != DecisionCannot || pod.Status.Phase != corev1.PodRunning || p.agentHindrance(pod) == "" {
				continue
			}
			volumes.add(v.Node, v.Namespace, v.Pod, v.Volume)
		}
	}
	return volumes
}

// versions compares what runs with each other and with this program.
func (d *doctor) versions() {
	for _, set := range d.agentSets() {
		image := set.Spec.Template.Spec.Containers[0].Image
		for i := range d.in.Agents {
			pod := &d.in.Agents[i]
			if ours(pod) && ownedBy(pod, set) && pod.Spec.Containers[0].Image != image {
				d.warn(checkVersions, "AgentOutdated", fmt.Sprintf("the node agent runs image %s, its DaemonSet has %s", pod.Spec.Containers[0].Image, image),
					fmt.Sprintf("wait for the rollout, or delete the pod: kubectl -n %s rollout status daemonset/%s", d.in.Namespace, set.Name), pod.Spec.NodeName)
			}
		}
		for i := range d.in.Deployments {
			template := &d.in.Deployments[i].Spec.Template
			if name := template.Labels[nameLabel]; (name == restoreController || name == repositoryTasks || name == pluginRecords) && template.Spec.Containers[0].Image != image {
				d.warn(checkVersions, "VersionSkew", fmt.Sprintf("Deployment %s has image %s, the node agents %s", d.in.Deployments[i].Name, template.Spec.Containers[0].Image, image),
					"install all from one version: docs/upgrade.md", "")
			}
		}
	}
	seen := d.answers(func(pod *corev1.Pod, s *v1alpha1.SelfCheck) {
		if s.Versions.Agent != d.in.Version {
			d.warn(checkVersions, "VersionSkew", fmt.Sprintf("the node agent is of version %s, this plugin %s", s.Versions.Agent, d.in.Version),
				"use one version for all node agents and the plugin: docs/upgrade.md", pod.Spec.NodeName)
		}
	})
	if seen > 0 {
		d.passed(checkVersions, "node agents and this plugin are of version "+d.in.Version, ReadPods, ReadDaemonSets, ReadDeployments)
	}
}

func ownedBy(pod *corev1.Pod, set *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == set.UID })
}

// sandbox looks at what confines workers on each node.
func (d *doctor) sandbox() {
	seen := d.answers(func(pod *corev1.Pod, s *v1alpha1.SelfCheck) {
		const remedy = "use Linux 5.19 or later, with Landlock among the kernel's security modules: docs/security.md"
		switch s.Landlock {
		case 0:
			d.warn(checkSandbox, "LandlockMissing", "the kernel has no Landlock: workers are not confined to their volume", remedy, pod.Spec.NodeName)
		case 1:
			d.warn(checkSandbox, "LandlockOld", "the kernel's Landlock is too old for restores: only the workers of backups are confined", remedy, pod.Spec.NodeName)
		}
		if !s.MetadataGuard {
			d.warn(checkSandbox, "GuardMissing", "the metadata guard does not work: a restore sets owners and modes itself", "allow openat2 and seccomp's user notification: docs/security.md", pod.Spec.NodeName)
		}
	})
	if seen > 0 {
		d.passed(checkSandbox, "workers are confined on all nodes")
	}
}

// volumes looks at how the agents see the volumes of their nodes.
func (d *doctor) volumes() {
	const kubelet = "set the path of volume host-pods, or kubeletRoot of the chart, to kubelet's directory on the nodes: docs/install.md, Settings"
	for _, set := range d.agentSets() {
		for _, m := range set.Spec.Template.Spec.Containers[0].VolumeMounts {
			if m.Name == "host-pods" && (m.MountPropagation == nil || *m.MountPropagation == corev1.MountPropagationNone) {
				d.fail(checkVolumes, "MountNotPropagated", fmt.Sprintf("DaemonSet %s mounts kubelet's pods directory without mount propagation: volumes of pods that start later are empty", set.Name),
					"set mountPropagation: HostToContainer for volumeMount host-pods", "")
			}
		}
	}
	seen := d.answers(func(pod *corev1.Pod, s *v1alpha1.SelfCheck) {
		h := &s.HostPods
		switch {
		case !h.Readable:
			d.fail(checkVolumes, "PodsDirectoryMissing", "the node agent cannot read kubelet's pods directory", kubelet, pod.Spec.NodeName)
		case h.RunningPods > 0 && h.FoundPods == 0:
			d.fail(checkVolumes, "PodsDirectoryWrong", "the directory that the node agent has as kubelet's pods directory has none of the node's pods", kubelet, pod.Spec.NodeName)
		case h.RunningPods == 0:
			d.notChecked(checkVolumes, "the node agent sees no running pods of its node at the API server, so that its pods directory cannot be compared",
				"wait until the node agent is ready, and ask again", pod.Spec.NodeName)
		}
		if h.Propagation == "private" {
			d.fail(checkVolumes, "MountNotPropagated", "mounts of the host do not reach the node agent: volumes of pods that start later are empty",
				"set mountPropagation: HostToContainer for volumeMount host-pods; kubelet's directory has to be on a shared mount of the host (mount --make-rshared /)", pod.Spec.NodeName)
		}
	})
	if seen > 0 {
		d.passed(checkVolumes, "the node agents see the volumes of their nodes")
	}
}

const (
	clockOff    = time.Minute
	clockBroken = 10 * time.Minute // storages refuse requests whose time is 15 minutes off
)

func (d *doctor) clock() {
	seen := d.answers(func(pod *corev1.Pod, s *v1alpha1.SelfCheck) {
		if s.ClockAheadSeconds == nil {
			d.notChecked(checkClock, "the API server's answers to the node agent do not have its time", "compare the clocks by hand", pod.Spec.NodeName)
			return
		}
		ahead := time.Duration(*s.ClockAheadSeconds) * time.Second
		if ahead.Abs() <= clockOff {
			return
		}
		direction := "ahead of"
		if ahead < 0 {
			direction = "behind"
		}
		severity := v1alpha1.SeverityWarning
		if ahead.Abs() >= clockBroken {
			severity = v1alpha1.SeverityError
		}
		d.find(checkClock, severity, "ClockSkew", fmt.Sprintf("the node's clock is %s %s the API server's", ahead.Abs(), direction), "check NTP on the node; storages refuse requests whose time is far off", pod.Spec.NodeName)
	})
	if seen > 0 {
		d.passed(checkClock, "the clocks of nodes and API server agree")
	}
}

// scrapeInterval is more than Prometheus waits between scrapes with any usual setting.
const scrapeInterval = 10 * time.Minute

func (d *doctor) monitoring() {
	const remedy = "let Prometheus scrape the node agents, for the alerts: docs/monitoring.md"
	seen := d.answers(func(pod *corev1.Pod, s *v1alpha1.SelfCheck) {
		since := s.StartTime
		if s.LastScrape != nil {
			since = *s.LastScrape
		}
		switch {
		case d.at.Sub(since) > scrapeInterval && s.LastScrape != nil:
			d.warn(checkMonitoring, "NotScraped", "the metrics were not read in the last ten minutes", remedy, pod.Spec.NodeName)
		case s.LastScrape == nil && d.at.Sub(since) > scrapeInterval:
			d.warn(checkMonitoring, "NotScraped", "the metrics were never read since the node agent started", remedy, pod.Spec.NodeName)
		case s.LastScrape == nil:
			// A warning, because doctor is run right after an installation, and monitoring is optional.
			d.warn(checkMonitoring, "NotScraped", "the metrics were not read yet since the node agent started, less than ten minutes ago",
				remedy+"; if it does that, ask again after ten minutes", pod.Spec.NodeName)
		}
	})
	if seen > 0 {
		d.passed(checkMonitoring, "the metrics of all node agents are read")
	}
}

// locations looks at the BackupStorageLocations as the server and the node agents see them.
func (d *doctor) locations() {
	if d.unread(ReadLocations) {
		return
	}
	if len(d.in.Locations) == 0 {
		d.fail(checkLocations, "NoLocation", "there is no BackupStorageLocation in namespace "+d.in.Namespace, "create one: velero backup-location create, or docs/standalone.md", "")
	}
	for i := range d.in.Locations {
		l := &d.in.Locations[i]
		if l.Status.Phase != velerov1.BackupStorageLocationPhaseAvailable && (d.in.Server.Found || l.Status.Phase != "") {
			d.fail(checkLocations, "LocationUnavailable", fmt.Sprintf("BackupStorageLocation %s is %s: %s", l.Name, cmp.Or(string(l.Status.Phase), "not checked by the server yet"), cmp.Or(l.Status.Message, "no message")),
				"correct the location, its Secret or the network of the server", "")
		}
		_, problems := v1alpha1.LocationLimitOf(l.Annotations)
		for _, problem := range problems {
			d.warn(checkLocations, v1alpha1.EventLimitNotKept, fmt.Sprintf("the limit of BackupStorageLocation %s is not kept: %s", l.Name, problem),
				"correct its annotations: docs/node-agent.md, Limit a location", "")
		}
	}
	checked := map[string]bool{}
	seen := d.answers(func(pod *corev1.Pod, s *v1alpha1.SelfCheck) {
		for i := range s.Locations {
			checked[s.Locations[i].Location] = true
			d.location(pod, &s.Locations[i])
		}
	})
	expected := slices.ContainsFunc(slices.Collect(maps.Values(d.in.SelfChecks)), func(a SelfCheckAnswer) bool { return !asksForToken(a) })
	for i := range d.in.Locations {
		if name := d.in.Locations[i].Name; !checked[name] && expected {
			d.notChecked(checkLocations, "no node agent has checked BackupStorageLocation "+name, "see the findings about node agents", "")
		}
	}
	if seen > 0 {
		d.passed(checkLocations, fmt.Sprintf("the node agents reach %s, and repositories open", text.Count(len(d.in.Locations), "BackupStorageLocation", "BackupStorageLocations")))
	}
}

// location says what a node agent found.
func (d *doctor) location(pod *corev1.Pod, c *v1alpha1.LocationCheck) {
	what := fmt.Sprintf("BackupStorageLocation %s (%s", c.Location, cmp.Or(c.Uploader, "any uploader"))
	if c.Repository != "" {
		what += ", repository of namespace " + c.Repository
	}
	what += ")"
	cause := cmp.Or(c.Message, c.Cause, "the log of the node agent has the error")
	log := fmt.Sprintf("; the node agent's log has the whole error: kubectl -n %s logs %s", pod.Namespace, pod.Name)
	switch {
	case c.Outcome == v1alpha1.LocationNotChecked:
		d.notChecked(checkLocations, what+" was not checked: "+cause, "ask again", pod.Spec.NodeName)
	case c.Outcome == v1alpha1.LocationNoRepository && c.Repository != "":
		d.fail(checkLocations, string(v1alpha1.ReasonRepositoryNotFound), what+" has lost the repository that its BackupRepository calls ready", "check bucket and prefix of the BackupStorageLocation, and of restic the address in the BackupRepository", pod.Spec.NodeName)
	case c.Outcome == v1alpha1.LocationOpened || c.Outcome == v1alpha1.LocationNoRepository:
	case c.Reason == v1alpha1.ReasonWrongPassword:
		d.fail(checkLocations, string(c.Reason), what+": the password of Secret velero-repo-credentials does not open it", c.Reason.Remedy(), pod.Spec.NodeName)
	case c.Reason == v1alpha1.ReasonInvalidLocation:
		d.fail(checkLocations, string(c.Reason), what+" cannot be used: "+cause, c.Reason.Remedy()+log, "")
	default:
		d.fail(checkLocations, "LocationUnreachable", what+" cannot be used by the node agent: "+cause, "check the storage, and firewalls, NetworkPolicies, proxy and DNS of the node agents"+log, pod.Spec.NodeName)
	}
}
