package describe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// The checks of a Diagnosis, in their order.
const (
	checkReading    = "reading"
	checkAgents     = "agents"
	checkVersions   = "versions"
	checkServer     = "server"
	checkHelper     = "restore-helper"
	checkTasks      = "tasks"
	checkRecords    = "records"
	checkRights     = "rights"
	checkLocations  = "locations"
	checkSandbox    = "sandbox"
	checkVolumes    = "volumes"
	checkClock      = "clock"
	checkMonitoring = "monitoring"
)

// reasonOK is the reason of a check that finds nothing; reasonNotChecked that of one which could not be made.
const (
	reasonOK         = "OK"
	reasonNotChecked = "NotChecked"
)

// Labels of our pods.
const (
	nameLabel         = "app.kubernetes.io/name"
	agentName         = "plimsoll-node-agent"
	restoreController = "plimsoll-restore-controller"
	repositoryTasks   = "plimsoll-repository-tasks"
	pluginRecords     = "plimsoll-records"
)

// Installation is what a Diagnosis is made of.
type Installation struct {
	BackupInput // its Spec is not used

	Version     string // of this program
	DaemonSets  []appsv1.DaemonSet
	Deployments []appsv1.Deployment
	Schedules   []velerov1.Schedule
	Backups     []velerov1.PodVolumeBackup
	Helpers     []corev1.ConfigMap // those that configure the init container of restored pods
	SelfChecks  map[types.UID]SelfCheckAnswer
	Rights      []RightAnswer
	Unread      []Unread
}

// SelfCheckAnswer is what the node agent of a pod says.
type SelfCheckAnswer struct {
	Check *v1alpha1.SelfCheck // nil: see Err
	Err   error
}

// Unread is something that could not be read.
type Unread struct {
	What string // such as Pods
	Err  error
}

// Diagnose makes the findings of all checks. What could not be read is a finding, too, and never counts as healthy.
func Diagnose(at time.Time, in *Installation) v1alpha1.Diagnosis {
	d := &doctor{in: in, at: at}
	for _, u := range in.Unread {
		d.find(checkReading, v1alpha1.SeverityUnknown, reasonNotChecked, fmt.Sprintf("%s cannot be read, and what they tell is not checked: %v", u.What, u.Err),
			"use an account with the rights that docs/kubectl.md lists for doctor", "")
	}
	d.agents()
	d.versions()
	d.server()
	d.helper()
	d.tasks()
	d.records()
	d.rights()
	d.locations()
	d.sandbox()
	d.volumes()
	d.clock()
	d.monitoring()
	result := v1alpha1.SeverityOK
	for i := range d.findings {
		f := &d.findings[i]
		slices.Sort(f.Nodes)
		f.Nodes = slices.Compact(f.Nodes)
		if slices.Index(severities, f.Severity) < slices.Index(severities, result) {
			result = f.Severity
		}
	}
	return v1alpha1.Diagnosis{At: at.UTC(), Namespace: in.Namespace, Result: result, Findings: d.findings}
}

// severities begin with the worst.
var severities = []v1alpha1.Severity{v1alpha1.SeverityError, v1alpha1.SeverityUnknown, v1alpha1.SeverityWarning, v1alpha1.SeverityInfo, v1alpha1.SeverityOK}

// doctor collects findings.
type doctor struct {
	in       *Installation
	at       time.Time
	findings []v1alpha1.Finding
}

// find adds a finding, or the node to the same finding of other nodes.
func (d *doctor) find(check string, severity v1alpha1.Severity, reason, message, remedy, node string) {
	i := slices.IndexFunc(d.findings, func(f v1alpha1.Finding) bool {
		return f.Check == check && f.Severity == severity && f.Reason == reason && f.Message == message && f.Remedy == remedy
	})
	if i < 0 {
		i = len(d.findings)
		d.findings = append(d.findings, v1alpha1.Finding{Check: check, Severity: severity, Reason: reason, Message: message, Remedy: remedy})
	}
	if node != "" {
		d.findings[i].Nodes = append(d.findings[i].Nodes, node)
	}
}

func (d *doctor) fail(check, reason, message, remedy, node string) {
	d.find(check, v1alpha1.SeverityError, reason, message, remedy, node)
}

func (d *doctor) warn(check, reason, message, remedy, node string) {
	d.find(check, v1alpha1.SeverityWarning, reason, message, remedy, node)
}

func (d *doctor) note(check, reason, message, remedy, node string) {
	d.find(check, v1alpha1.SeverityInfo, reason, message, remedy, node)
}

func (d *doctor) notChecked(check, message, remedy, node string) {
	d.find(check, v1alpha1.SeverityUnknown, reasonNotChecked, message, remedy, node)
}

// passed adds the finding that a check is in order. It adds nothing if the check has a finding already, or if one of the kinds of
// objects that it needs could not be read.
func (d *doctor) passed(check, message string, needs ...string) {
	if d.unread(needs...) || slices.ContainsFunc(d.findings, func(f v1alpha1.Finding) bool { return f.Check == check }) {
		return
	}
	d.find(check, v1alpha1.SeverityOK, reasonOK, message, "", "")
}

// unread reports whether one of these kinds of objects could not be read.
func (d *doctor) unread(whats ...string) bool {
	return slices.ContainsFunc(d.in.Unread, func(u Unread) bool { return slices.Contains(whats, u.What) })
}

// The kinds of objects in Unread.
const (
	ReadPods        = "Pods"
	ReadDaemonSets  = "DaemonSets"
	ReadDeployments = "Deployments"
	ReadHelpers     = "ConfigMaps"
	ReadNodes       = "Nodes"
	ReadLocations   = "BackupStorageLocations"
)

// ours reports whether a pod is one of Plimsoll's node agents.
func ours(pod *corev1.Pod) bool { return pod.Labels[nameLabel] == agentName }

// answers calls look for each answer of a node agent, in the order of the nodes.
func (d *doctor) answers(look func(pod *corev1.Pod, s *v1alpha1.SelfCheck)) (n int) {
	for i := range d.in.Agents {
		pod := &d.in.Agents[i]
		if answer := d.in.SelfChecks[pod.UID]; ours(pod) && answer.Check != nil {
			n++
			look(pod, answer.Check)
		}
	}
	return n
}

// PrintDiagnosis writes a Diagnosis for people, the worst findings first.
func PrintDiagnosis(w io.Writer, d *v1alpha1.Diagnosis) error {
	sorted := slices.Clone(d.Findings)
	slices.SortStableFunc(sorted, func(a, b v1alpha1.Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
	n := map[v1alpha1.Severity]int{}
	for i := range sorted {
		f := &sorted[i]
		n[f.Severity]++
		message := Clean(f.Message)
		if len(f.Nodes) > 0 {
			message += " (" + nodesText(f.Nodes) + ")"
		}
		fmt.Fprintf(w, "%-8s %-15s %s\n", f.Severity, f.Check, message)
		if f.Remedy != "" {
			fmt.Fprintf(w, "%-8s %-15s do: %s\n", "", "", Clean(f.Remedy))
		}
	}
	notes := ""
	if n[v1alpha1.SeverityInfo] > 0 {
		notes = ", " + text.Count(n[v1alpha1.SeverityInfo], "note", "notes")
	}
	_, err := fmt.Fprintf(w, "\n%s, %s, %s%s\n", text.Count(n[v1alpha1.SeverityError], "error", "errors"),
		text.Count(n[v1alpha1.SeverityWarning], "warning", "warnings"), text.Count(n[v1alpha1.SeverityUnknown], "check could not be made", "checks could not be made"), notes)
	return err
}

// shownNodes is how many nodes of a finding people see; JSON has all.
const shownNodes = 3

func nodesText(nodes []string) string {
	shown := Clean(strings.Join(nodes[:min(len(nodes), shownNodes)], ", "))
	if more := len(nodes) - shownNodes; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	if len(nodes) > 1 {
		return "nodes " + shown
	}
	return "node " + shown
}
