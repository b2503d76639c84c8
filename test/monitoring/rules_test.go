// Package monitoring tests what deploy/monitoring ships: the alerts with promtool and their runbooks, the dashboard, and
// both on what a real Prometheus has scraped from a real node agent and a real restore controller at work.
package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// runbooks is where an alert sends people.
const runbooks = "https://github.com/plimsoll-io/plimsoll/blob/main/docs/runbooks/"

type ruleGroup struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

type rule struct {
	Alert       string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// The components of deploy/, each with a PrometheusRule and a PodMonitor.
const (
	ofAgents     = "deploy/monitoring"
	ofController = "deploy/monitoring/restore-controller"
	ofRecords    = "deploy/monitoring/records"
	ofTasks      = "deploy/monitoring/repository-tasks"
)

// readRules returns the rules of components, which the operator hands to Prometheus as they are.
func readRules(t *testing.T, components ...string) []ruleGroup {
	t.Helper()
	var groups []ruleGroup
	for _, component := range components {
		var object struct {
			Spec struct {
				Groups []ruleGroup `json:"groups"`
			} `json:"spec"`
		}
		decode(t, inRepository(t, component+"/prometheusrule.yaml"), &object)
		if len(object.Spec.Groups) == 0 {
			t.Fatalf("the PrometheusRule of %s has no groups", component)
		}
		groups = append(groups, object.Spec.Groups...)
	}
	return groups
}

// allRules are those of all components: a cluster may have them together.
func allRules(t *testing.T) []ruleGroup {
	t.Helper()
	return readRules(t, ofAgents, ofController, ofRecords, ofTasks)
}

// alerts returns the rules that are alerts.
func alerts(groups []ruleGroup) []rule {
	var list []rule
	for _, group := range groups {
		for _, r := range group.Rules {
			if r.Alert != "" {
				list = append(list, r)
			}
		}
	}
	return list
}

// writeRules writes the rules as Prometheus and promtool read them.
func writeRules(t *testing.T, path string, groups []ruleGroup) {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{"groups": groups})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPromtoolAcceptsRules(t *testing.T) {
	t.Parallel()
	promtool := parts.Prometheus(t, "promtool")
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(t, rules, allRules(t))
	if out, err := exec.Command(promtool, "check", "rules", "--lint=all", "--lint-fatal", rules).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	promtool := parts.Prometheus(t, "promtool")
	dir := t.TempDir()
	for file, components := range map[string][]string{"rules.yaml": {ofAgents}, "restore_rules.yaml": {ofController, ofRecords}, "task_rules.yaml": {ofTasks}} {
		writeRules(t, filepath.Join(dir, file), readRules(t, components...))
	}
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	tests, err := filepath.Glob(filepath.Join(dir, "*alerts.yaml"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("there are no tests: %v", err)
	}
	if out, err := exec.Command(promtool, append([]string{"test", "rules"}, tests...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestEveryAlertIsTested(t *testing.T) {
	t.Parallel()
	type alertTests struct {
		Tests []struct {
			AlertRuleTest []struct {
				AlertName string `json:"alertname"`
				ExpAlerts []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	fires, isQuiet := map[string]bool{}, map[string]bool{}
	for _, name := range []string{"alerts.yaml", "restore_alerts.yaml", "task_alerts.yaml"} {
		var file alertTests
		decode(t, filepath.Join("testdata", name), &file)
		for _, test := range file.Tests {
			for _, c := range test.AlertRuleTest {
				if len(c.ExpAlerts) > 0 {
					fires[c.AlertName] = true
				} else {
					isQuiet[c.AlertName] = true
				}
			}
		}
	}
	for _, alert := range alerts(allRules(t)) {
		if !fires[alert.Alert] || !isQuiet[alert.Alert] {
			t.Errorf("testdata must show when %s fires and when it does not", alert.Alert)
		}
		delete(fires, alert.Alert)
	}
	for name := range fires { // promtool is silent about names that do not exist as long as nothing is expected of them
		t.Errorf("testdata tests %s, which is no alert", name)
	}
}

func TestEveryAlertIsExplained(t *testing.T) {
	t.Parallel()
	guide := readText(t, inRepository(t, "docs/monitoring.md"))
	pages, err := filepath.Glob(inRepository(t, "docs/runbooks/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range alerts(allRules(t)) {
		page := inRepository(t, "docs/runbooks/"+alert.Alert+".md")
		pages = slices.DeleteFunc(pages, func(p string) bool { return p == page })
		if severity := alert.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, severity) {
			t.Errorf("%s has severity %q", alert.Alert, severity)
		}
		if alert.Annotations["summary"] == "" || alert.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", alert.Alert)
		}
		if want := runbooks + alert.Alert + ".md"; alert.Annotations["runbook_url"] != want {
			t.Errorf("%s has runbook %q, want %s", alert.Alert, alert.Annotations["runbook_url"], want)
		}
		if row := "| [" + alert.Alert + "](runbooks/" + alert.Alert + ".md) | " + alert.Labels["severity"] + " |"; !strings.Contains(guide, row) {
			t.Errorf("docs/monitoring.md has no row %q", row)
		}
		text := readText(t, page)
		for _, heading := range []string{"# " + alert.Alert, "## Meaning", "## Impact", "## Diagnosis", "## What to do"} {
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(heading) + `$`).MatchString(text) {
				t.Errorf("%s has no heading %q", page, heading)
			}
		}
	}
	if len(pages) > 0 {
		t.Errorf("runbooks without an alert: %v", pages)
	}
}

// inRepository returns the path of a file of the repository.
func inRepository(t *testing.T, path string) string {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, path)
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// decode reads a YAML or JSON file.
func decode(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readText(t, path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
