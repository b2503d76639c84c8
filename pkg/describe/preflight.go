package describe

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// Decision says what a backup makes of a pod's volume.
type Decision string

// The decisions.
const (
	DecisionBackUp Decision = "fs-backup" // a node agent backs its files up
	DecisionLeave  Decision = "left out"  // nobody asks for its files; a snapshot may be taken of it all the same
	DecisionCannot Decision = "cannot"    // its files are asked for, and the backup will not have them
)

const (
	annotationIn  = velerov1.VolumesToBackupAnnotation
	annotationOut = velerov1.VolumesToExcludeAnnotation
	excludeLabel  = velerov1.ExcludeFromBackupLabel
)

// BackupInput is what there is to say what a backup will have.
type BackupInput struct {
	Namespace string              // with Velero's objects
	Spec      velerov1.BackupSpec // as somebody is about to ask for it
	Server    Server

	Namespaces   []corev1.Namespace
	Pods         []corev1.Pod // of the namespaces that are asked for, at least
	Claims       []corev1.PersistentVolumeClaim
	Persistent   []corev1.PersistentVolume
	Nodes        []corev1.Node
	Agents       []corev1.Pod // of the node agents
	Locations    []velerov1.BackupStorageLocation
	Repositories []velerov1.BackupRepository
	Volumes      []Volume // what the node agents have to do already
}

// Preflight is what a backup would have if it ran now.
type Preflight struct {
	At                       time.Time       `json:"at"`
	Uploader                 string          `json:"uploader"`
	StorageLocation          string          `json:"storageLocation"`
	DefaultVolumesToFSBackup bool            `json:"defaultVolumesToFsBackup"`
	Volumes                  []PlannedVolume `json:"volumes"`
	Nodes                    []PlannedNode   `json:"nodes"`              // those with volumes to back up
	Problems                 []string        `json:"problems,omitempty"` // for which the backup fails, or is PartiallyFailed
	Notes                    []string        `json:"notes,omitempty"`    // what people may not expect
}

// PlannedVolume is a volume of a pod of the backup, or one that a pod's annotation names.
type PlannedVolume struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Volume    string   `json:"volume"`
	Claim     string   `json:"claim,omitempty"`
	Node      string   `json:"node,omitempty"`
	Decision  Decision `json:"decision"`
	Reason    string   `json:"reason"`
	// OfObjects says that all there is in it comes from objects, which a backup has anyway: a Secret, a ConfigMap, a token.
	OfObjects bool `json:"ofObjects,omitempty"`
}

// PlannedNode is a node that has volumes to back up.
type PlannedNode struct {
	Name       string `json:"name"`
	Agent      string `json:"agent,omitempty"` // the pod; absent: none runs
	Ready      bool   `json:"ready"`
	ToBackUp   int    `json:"toBackUp"`   // volumes
	Unfinished int    `json:"unfinished"` // volumes that the agent has to back up or restore already
	Note       string `json:"note,omitempty"`
}

// OK reports whether the backup will have all that is asked for.
func (p *Preflight) OK() bool {
	return len(p.Problems) == 0 && !slices.ContainsFunc(p.Volumes, func(v PlannedVolume) bool { return v.Decision == DecisionCannot })
}

// PreflightBackup says what a backup will have, by the rules of Velero 1.18 (docs/contracts/velero-node-agent.md 2.1; item_backupper.go,
// volume_policy_helper.go and podvolume/backupper.go of that version). It reads nothing but its argument. The error says that a
// selector of the spec is not valid.
func PreflightBackup(at time.Time, in *BackupInput) (*Preflight, error) {
	p, err := newPlanner(in)
	if err != nil {
		return nil, err
	}
	p.At = at.UTC()
	p.checkServer()
	p.checkLocation()
	p.checkNamespaces()
	p.noteWhatIsNotEvaluated()
	pods := slices.Clone(in.Pods)
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range pods {
		p.pod(&pods[i])
	}
	p.planNodes()
	return &p.Preflight, nil
}

// planner makes a Preflight.
type planner struct {
	Preflight
	in         *BackupInput
	selectors  []labels.Selector // one of them must match; empty: all pods
	claims     map[types.NamespacedName]*corev1.PersistentVolumeClaim
	persistent map[string]*corev1.PersistentVolume
	nodes      map[string]*corev1.Node
	agents     map[string]*corev1.Pod // by node
	taken      map[types.NamespacedName]string
	namespaces map[string]*corev1.Namespace
}

func newPlanner(in *BackupInput) (*planner, error) {
	p := &planner{in: in, taken: map[types.NamespacedName]string{}}
	p.Uploader = in.Server.Uploader
	p.DefaultVolumesToFSBackup = in.Server.DefaultVolumesToFSBackup
	if asked := in.Spec.DefaultVolumesToFsBackup; asked != nil {
		p.DefaultVolumesToFSBackup = *asked
	}
	if old := in.Spec.DefaultVolumesToRestic; old != nil && *old { //nolint:staticcheck // schedules of old have it, and servers heed it
		p.DefaultVolumesToFSBackup = true
	}
	for _, selector := range append(slices.Clone(in.Spec.OrLabelSelectors), in.Spec.LabelSelector) {
		if selector == nil {
			continue
		}
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return nil, fmt.Errorf("read the label selector: %w", err)
		}
		p.selectors = append(p.selectors, s)
	}
	p.index()
	return p, nil
}

func (p *planner) index() {
	p.claims, p.persistent = map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, map[string]*corev1.PersistentVolume{}
	p.nodes, p.agents, p.namespaces = map[string]*corev1.Node{}, map[string]*corev1.Pod{}, map[string]*corev1.Namespace{}
	for i := range p.in.Claims {
		c := &p.in.Claims[i]
		p.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	for i := range p.in.Persistent {
		p.persistent[p.in.Persistent[i].Name] = &p.in.Persistent[i]
	}
	for i := range p.in.Nodes {
		p.nodes[p.in.Nodes[i].Name] = &p.in.Nodes[i]
	}
	for i := range p.in.Namespaces {
		p.namespaces[p.in.Namespaces[i].Name] = &p.in.Namespaces[i]
	}
	for i := range p.in.Agents {
		a := &p.in.Agents[i]
		if old := p.agents[a.Spec.NodeName]; !p.in.Server.finds(a) || old != nil && podReady(old) {
			continue
		}
		p.agents[a.Spec.NodeName] = a
	}
}

func (p *planner) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}

func (p *planner) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func (p *planner) checkServer() {
	s := p.in.Server
	if !s.Found {
		p.note("no Deployment of a Velero server was found in namespace %s: what it defaults to is not known, and nobody carries out Backups there", p.in.Namespace)
	}
	switch {
	case p.Uploader != uploaderRestic && p.Uploader != uploaderKopia:
		p.problem("the uploader %q is neither restic nor kopia", p.Uploader)
	case p.Uploader == uploaderRestic && s.atLeast(1, 17):
		p.problem("Velero %s makes no backups with restic, and does not start with --uploader-type=restic: use kopia, a server up to 1.16, or "+
			"kubectl plimsoll volume backup, which needs no server", s.Version)
	case p.Uploader == uploaderRestic && s.Found && s.Version == "":
		p.note("which version the Velero server is could not be told from its image: from 1.17 on none makes backups with restic")
	}
}

// checkLocation finds the location as the server does.
func (p *planner) checkLocation() {
	p.StorageLocation = p.in.Spec.StorageLocation
	if p.StorageLocation == "" {
		p.StorageLocation = cmp.Or(p.in.Server.DefaultLocation, "default")
		for i := range p.in.Locations {
			if p.in.Locations[i].Spec.Default {
				p.StorageLocation = p.in.Locations[i].Name
				break
			}
		}
	}
	i := slices.IndexFunc(p.in.Locations, func(l velerov1.BackupStorageLocation) bool { return l.Name == p.StorageLocation })
	if i < 0 {
		p.problem("BackupStorageLocation %s does not exist in namespace %s", p.StorageLocation, p.in.Namespace)
		return
	}
	l := &p.in.Locations[i]
	if l.Spec.AccessMode == velerov1.BackupStorageLocationAccessModeReadOnly {
		p.problem("BackupStorageLocation %s is read-only", l.Name)
	}
	switch {
	case l.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable:
	case !p.in.Server.Found && l.Status.Phase == "":
		p.note("nobody has checked yet whether BackupStorageLocation %s can be reached", l.Name)
	default:
		p.problem("BackupStorageLocation %s is %s: %s", l.Name, cmp.Or(l.Status.Phase, "not checked yet"), cmp.Or(l.Status.Message, "nothing more is known"))
	}
}

// checkNamespaces finds those that are asked for by name and are not there: Velero counts an error for each.
func (p *planner) checkNamespaces() {
	for _, name := range p.in.Spec.IncludedNamespaces {
		if p.namespaces[name] == nil && !strings.ContainsAny(name, wildcards) {
			p.problem("namespace %s is asked for and does not exist: the backup ends as PartiallyFailed", name)
		}
	}
}

func (p *planner) noteWhatIsNotEvaluated() {
	if r := p.in.Spec.ResourcePolicy; r != nil {
		p.note("the resource policies of %s %s are not evaluated here: they may back up or leave out more volumes than is said here", r.Kind, r.Name)
	}
	if v := p.in.Server.VolumePolicies; v != "" {
		p.note("the server's volume policies of ConfigMap %s are not evaluated here: they may back up or leave out more volumes than is said here", v)
	}
	s := &p.in.Spec
	for _, filter := range [][]string{
		s.IncludedResources, s.ExcludedResources, s.IncludedNamespaceScopedResources, s.ExcludedNamespaceScopedResources,
	} {
		if len(filter) > 0 && !slices.Equal(filter, []string{"*"}) {
			p.note("the resources to include and exclude are not evaluated here: only what is in pods of the backup is backed up")
			break
		}
	}
}

// notSelected says why the backup does not have a pod; empty: it does.
func (p *planner) notSelected(pod *corev1.Pod) string {
	spec := &p.in.Spec
	namespace := p.namespaces[pod.Namespace]
	switch {
	case len(spec.IncludedNamespaces) > 0 && !matchesAny(spec.IncludedNamespaces, pod.Namespace):
		return "its namespace is not included"
	case matchesAny(spec.ExcludedNamespaces, pod.Namespace):
		return "its namespace is excluded"
	case namespace != nil && namespace.Labels[excludeLabel] == "true":
		return "its namespace has the label " + excludeLabel + "=true"
	case pod.Labels[excludeLabel] == "true":
		return "the pod has the label " + excludeLabel + "=true"
	case len(p.selectors) > 0 && !slices.ContainsFunc(p.selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(pod.Labels)) }):
		return "the label selector does not match the pod"
	}
	return ""
}

// wildcards are what the names of namespaces cannot have, and Velero's patterns for them do.
const wildcards = "*?["

// matchesAny matches names with Velero's patterns, in which * stands for anything.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return pattern == name || ok && err == nil
	})
}

// planNodes lists the nodes of volumes that are to be backed up.
func (p *planner) planNodes() {
	planned := map[string]int{}
	for i := range p.Volumes {
		if p.Volumes[i].Decision == DecisionBackUp {
			planned[p.Volumes[i].Node]++
		}
	}
	unfinished := map[string]int{}
	for i := range p.in.Volumes {
		if v := &p.in.Volumes[i]; !v.Ended() {
			unfinished[v.Node]++
		}
	}
	p.Nodes = []PlannedNode{}
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		n := PlannedNode{Name: name, ToBackUp: planned[name], Unfinished: unfinished[name]}
		if agent := p.agents[name]; agent != nil {
			n.Agent, n.Ready = agent.Name, podReady(agent)
		}
		switch {
		case !n.Ready:
			n.Note = "the node agent is not ready: its volumes wait until it is"
		case n.Unfinished > 0:
			n.Note = "its volumes come after those that are unfinished"
		}
		p.Nodes = append(p.Nodes, n)
	}
	p.noteUnlimitedAgents()
}

// noteUnlimitedAgents says where an agent cannot know when to end a worker for its memory.
func (p *planner) noteUnlimitedAgents() {
	var nodes []string
	for i := range p.Nodes {
		if agent := p.agents[p.Nodes[i].Name]; agent != nil && !limitsMemory(agent) {
			nodes = append(nodes, p.Nodes[i].Name)
		}
	}
	if len(nodes) == 0 {
		return
	}
	where := nodes[0]
	if more := len(nodes) - 1; more > 0 {
		where += " and " + text.Count(more, "more node", "more nodes")
	}
	p.note("the node agent has no memory limit on %s: a huge volume may take all memory of its node", where)
}

// limitsMemory reports whether all containers of a pod have a memory limit.
func limitsMemory(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Resources.Limits.Memory().IsZero() })
}
