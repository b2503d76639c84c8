package monitoring

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

const (
	kilobytes = 1 << 10
	megabytes = 1 << 20
)

// agentFlags make what takes minutes take seconds.
var agentFlags = []string{
	"--concurrency=4", "--upload-limit=16777216", "--download-limit=4194304", "--progress-interval=1s", "--stall-after=5s",
	"--retry-delay=1s", "--max-attempts=4",
}

// TestRealData has a Prometheus scrape an agent that backs up and restores, hangs and fails, and looks whether the
// dashboard has something to show and whether the alerts see what happens.
func TestRealData(t *testing.T) {
	t.Parallel()
	parts.Prometheus(t, "promtool")
	parts.Prometheus(t, "prometheus")
	n := newNode(t)
	s := startPrometheus(t, hastened(readRules(t, ofAgents)), scraped{job, n.address, map[string]string{
		"namespace": namespace, "pod": "node-agent-a", "container": "node-agent", "node": nodeName,
	}})
	n.startAgent(agentFlags...)

	n.work(s)
	checkDashboard(t, s)
	awaitAlerts(t, s, "PlimsollVolumeStalled", "PlimsollVolumeMissesDeadline", "PlimsollBackupFailed", "PlimsollBackupPartial", "PlimsollRestoreFailed")
	checkLabels(t, s)
	checkMetrics(t, n)

	for range 2 {
		var started []sample
		testenv.Eventually(t, "the agent was scraped", func() bool {
			started = s.query(t, "process_start_time_seconds")
			return len(started) == 1
		})
		n.killAgent()
		awaitAlerts(t, s, "PlimsollAgentDown", "PlimsollMetricsAbsent")
		n.startAgent(agentFlags...)
		testenv.Eventually(t, "the agent is scraped again", func() bool {
			now := s.query(t, "process_start_time_seconds and on (job, instance) plimsoll_build_info")
			return len(now) == 1 && now[0].value != started[0].value
		})
	}
	awaitAlerts(t, s, "PlimsollAgentRestarts")
	testenv.Eventually(t, "the agent goes on with a volume", func() bool { return s.numbers(t, `plimsoll_operations{state="running"} > 0`) > 0 })
	n.refuseWrites()
	awaitAlerts(t, s, "PlimsollStatusWritesFail")
	checkSelectors(t, s, readRules(t, ofAgents), 25)
}

// hastened makes alerts of rules fire after seconds instead of minutes and hours.
func hastened(groups []ruleGroup) []ruleGroup {
	faster := strings.NewReplacer("> 900", "> 5", "> 1800", "> 5", "[15m]", "[20s]", "[30m]", "[20s]", "offset 30m", "offset 20s")
	for _, group := range groups {
		for i := range group.Rules {
			group.Rules[i].For = ""
			group.Rules[i].Expr = faster.Replace(group.Rules[i].Expr)
		}
	}
	return groups
}

// work has the agent do all that there is to see: what it leaves behind is one volume of each uploader that is backed up,
// one that is restored, one that hangs, and a queue.
func (n *node) work(s *server) {
	n.t.Helper()
	stored := n.pod("stored")
	n.file(stored, "big", 24*megabytes, 0o644)
	small := n.pod("small")
	n.file(small, "file", 100*kilobytes, 0o644)
	partial := n.pod("partial")
	n.file(partial, "readable", 10*kilobytes, 0o644)
	n.file(partial, "secret", 10*kilobytes, 0o000)

	// The first event of all counters with a reason comes before the first scrape of them, as it does after each update.
	ended := []*velerov1.PodVolumeBackup{n.backUp(small, "data", restic), n.backUp(small, "data", kopia), n.backUp(partial, "data", restic)}
	for _, pvb := range ended {
		n.awaitBackup(pvb, velerov1.PodVolumeBackupPhaseCompleted)
	}
	n.awaitBackup(n.backUp(small, "host", restic), velerov1.PodVolumeBackupPhaseFailed)
	for _, uploader := range []string{restic, kopia} {
		n.awaitRestore(n.restoreInto(n.pod("restored-"+uploader), uploader, snapshotOf(ended, uploader)), velerov1.PodVolumeRestorePhaseCompleted)
	}
	n.awaitRestore(n.restoreInto(n.pod("unknown"), restic, "0123456789abcdef"), velerov1.PodVolumeRestorePhaseFailed)
	big := n.backUp(stored, "data", kopia)
	n.awaitBackup(big, velerov1.PodVolumeBackupPhaseCompleted)

	hangs := n.slowPod("hangs")
	n.backUp(hangs, "data", restic)
	n.backUp(n.slowPod("slow-restic"), "data", restic)
	n.backUp(n.slowPod("slow-kopia"), "data", kopia)
	n.restoreInto(n.pod("slow-restore"), kopia, big.Status.SnapshotID)
	testenv.Eventually(n.t, "four volumes run, and the bytes of one that is to hang have begun to move", func() bool {
		return s.numbers(n.t, `sum(plimsoll_operations{state="running"}) == 4`) == 1 &&
			s.numbers(n.t, `plimsoll_volume_done_bytes{pod_name="hangs"} > 0`) == 1
	})
	n.freeze(hangs)
	n.backUp(n.slowPod("queued"), "data", kopia)
}

// slowPod makes a pod whose volume takes minutes at the agent's limit.
func (n *node) slowPod(name string) *corev1.Pod {
	n.t.Helper()
	pod := n.pod(name)
	for i := range 64 {
		n.file(pod, fmt.Sprintf("file%d", i), 4*megabytes, 0o644)
	}
	return pod
}

func snapshotOf(backups []*velerov1.PodVolumeBackup, uploader string) string {
	i := slices.IndexFunc(backups, func(pvb *velerov1.PodVolumeBackup) bool { return pvb.Spec.UploaderType == uploader })
	return backups[i].Status.SnapshotID
}

// awaitAlerts waits until all of the alerts have fired.
func awaitAlerts(t *testing.T, s *server, names ...string) {
	t.Helper()
	missing := slices.Clone(names)
	testenv.Eventually(t, strings.Join(names, ", ")+" fire", func() bool {
		firing := s.firing(t)
		missing = slices.DeleteFunc(missing, func(name string) bool { return len(firing[name]) > 0 })
		return len(missing) == 0
	})
}

// elsewhere are queries about what other exporters measure: there is no kubelet here, and TestDashboardOfUsage looks at those about
// repositories.
var elsewhere = regexp.MustCompile(`container_memory|kube_pod_|kubelet_|plimsoll_repository_|plimsoll_backup_`)

// checkDashboard waits until every query of the dashboard has brought numbers, as Grafana would ask it.
func checkDashboard(t *testing.T, s *server) {
	t.Helper()
	variables := strings.NewReplacer("$node", ".*", "$namespace", ".*", "$__rate_interval", "1m", "$__interval", "1m", "$__range_s", "600", "$__range", "10m")
	pending := map[string]string{}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			if !elsewhere.MatchString(q.Expr) {
				pending[p.Title+" "+q.RefID] = variables.Replace(q.Expr)
			}
		}
	}
	if len(pending) < 30 {
		t.Fatalf("the dashboard has only %d queries", len(pending))
	}
	for name, expr := range pending {
		s.query(t, expr) // fails if it cannot be evaluated
		if strings.Contains(expr, "$") {
			t.Errorf("query %q has a variable that the test does not know: %s", name, expr)
		}
	}
	defer func() {
		for name, expr := range pending {
			t.Errorf("query %q has brought no number: %s", name, expr)
		}
	}()
	testenv.Eventually(t, "every query of the dashboard brings numbers", func() bool {
		for name, expr := range pending {
			if s.numbers(t, expr) > 0 {
				delete(pending, name)
			}
		}
		return len(pending) == 0
	})
	definition := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		parts := definition.FindStringSubmatch(v.Definition)
		if parts == nil || len(s.values(t, parts[2], parts[1])) == 0 {
			t.Errorf("variable %q has no values: %s", v.Name, v.Definition)
		}
	}
}

// checkLabels looks whether the words of an alert name what they are about. Volumes that are only slow may be stalled too,
// at times.
func checkLabels(t *testing.T, s *server) {
	t.Helper()
	hangs := regexp.MustCompile(`backup of volume data of pod shop/hangs on node ` + nodeName + ` \(restic\)`)
	testenv.Eventually(t, "PlimsollVolumeStalled names the volume that hangs", func() bool {
		return slices.ContainsFunc(s.firing(t)["PlimsollVolumeStalled"], func(a alert) bool {
			return hangs.MatchString(a.Annotations["description"])
		})
	})
	for _, failed := range s.firing(t)["PlimsollBackupFailed"] {
		if failed.Labels["reason"] != "UnsupportedVolume" || failed.Labels["node"] != nodeName || failed.Labels["namespace"] != namespace {
			t.Errorf("PlimsollBackupFailed has labels %v", failed.Labels)
		}
	}
}

// veleroMetric are Velero's names, which break the rules, and its users have dashboards for them.
var veleroMetric = regexp.MustCompile(`^podVolume_`)

// checkMetrics has promtool look at what the agent serves.
func checkMetrics(t *testing.T, n *node) {
	t.Helper()
	response, err := http.Get("http://" + n.address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("plimsoll_operation_duration_seconds_bucket{")) {
		t.Error("the agent serves no histogram of durations")
	}
	check := exec.Command(parts.Prometheus(t, "promtool"), "check", "metrics")
	check.Stdin = bytes.NewReader(text)
	out, err := check.CombinedOutput()
	if err == nil {
		t.Error("promtool does not mind Velero's names any more: this test need not leave them out")
	}
	for line := range strings.Lines(string(out)) {
		if !veleroMetric.MatchString(line) {
			t.Error(strings.TrimSpace(line))
		}
	}
}

var (
	// selectors of an expression: a metric's name, and what its labels must be.
	selector = regexp.MustCompile(`(?:plimsoll[_:]|process_|up\b)[\w:]*(?:\{[^}]*\})?`)
	value    = regexp.MustCompile(`=~?"[^"]*"`)
)

// unprovoked are selectors of what does not happen here. Their series must exist with other values of the same labels.
var unprovoked = []string{`{reason="OutOfMemory"}`, `{operation="restore",result="partial"}`, `{landlock=~"0|1"}`, `state="Finishing"`}

// checkSelectors looks whether all that the alerts look at has been there. There are least selectors or more.
func checkSelectors(t *testing.T, s *server, groups []ruleGroup, least int) {
	t.Helper()
	found := 0
	for _, group := range groups {
		for _, r := range group.Rules {
			for _, sel := range selector.FindAllString(r.Expr, -1) {
				found++
				if sel == "plimsoll_restore_volume_done_bytes" {
					continue // no node agent restores volumes here; pkg/restorecontroller tests it
				}
				exact := sel
				if slices.ContainsFunc(unprovoked, func(u string) bool { return strings.Contains(sel, u) }) {
					exact = value.ReplaceAllString(sel, `!=""`)
				}
				if s.series(t, exact) == 0 {
					t.Errorf("%s%s looks at %s, which nobody has seen", r.Alert, r.Record, exact)
				}
			}
		}
	}
	if found < least {
		t.Errorf("found only %d selectors in the rules", found)
	}
}
