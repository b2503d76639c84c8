package monitoring

import (
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// job is the name that the alerts know the agents' scrape job by.
const job = "plimsoll-node-agent"

// server is a real Prometheus that scrapes and evaluates each second.
type server struct {
	url string
}

// scraped is a pod that Prometheus scrapes.
type scraped struct {
	job, address string
	labels       map[string]string
}

// startPrometheus starts a Prometheus that scrapes pods as the PodMonitors have the operator do it.
func startPrometheus(t *testing.T, rules []ruleGroup, pods ...scraped) *server {
	t.Helper()
	path := parts.Prometheus(t, "prometheus")
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "rules.yaml"), rules)
	var jobs []map[string]any
	for _, pod := range pods {
		jobs = append(jobs, map[string]any{
			"job_name": pod.job, "static_configs": []map[string]any{{"targets": []string{pod.address}, "labels": pod.labels}},
		})
	}
	config, err := yaml.Marshal(map[string]any{
		"global": map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": []string{"rules.yaml"}, "scrape_configs": jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yaml"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	address := loopback.ForTest(t)
	cmd := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	run(t, cmd, filepath.Join(dir, "prometheus.log"), unix.SIGTERM)
	s := &server{url: "http://" + address}
	testenv.Eventually(t, "Prometheus is ready", func() bool {
		response, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return s
}

// get asks Prometheus' HTTP API.
func (s *server) get(t *testing.T, path string, query url.Values, data any) {
	t.Helper()
	response, err := http.Get(s.url + path + "?" + query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer := struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   any    `json:"data"`
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if answer.Status != "success" {
		t.Fatalf("%s %v: %s", path, query, answer.Error)
	}
}

// sample is a series with its value now.
type sample struct {
	labels map[string]string
	value  float64
}

// query evaluates an expression.
func (s *server) query(t *testing.T, expr string) []sample {
	t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
		} `json:"result"`
	}
	s.get(t, "/api/v1/query", url.Values{"query": {expr}}, &data)
	list := make([]sample, len(data.Result))
	for i, r := range data.Result {
		value, err := strconv.ParseFloat(r.Value[1].(string), 64)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		list[i] = sample{r.Metric, value}
	}
	return list
}

// numbers counts the series of an expression that have a number.
func (s *server) numbers(t *testing.T, expr string) int {
	t.Helper()
	n := 0
	for _, sample := range s.query(t, expr) {
		if !math.IsNaN(sample.value) {
			n++
		}
	}
	return n
}

// series counts the series that a selector has found since the start.
func (s *server) series(t *testing.T, selector string) int {
	t.Helper()
	var data []map[string]string
	s.get(t, "/api/v1/series", url.Values{"match[]": {selector}}, &data)
	return len(data)
}

// values returns the values of a label in the series of a metric.
func (s *server) values(t *testing.T, label, metric string) []string {
	t.Helper()
	var data []string
	s.get(t, "/api/v1/label/"+label+"/values", url.Values{"match[]": {metric}}, &data)
	return data
}

// firing returns the alerts that fire, by name: one rule may fire for several volumes.
func (s *server) firing(t *testing.T) map[string][]alert {
	t.Helper()
	var data struct {
		Alerts []alert `json:"alerts"`
	}
	s.get(t, "/api/v1/alerts", nil, &data)
	list := map[string][]alert{}
	for _, a := range data.Alerts {
		if a.State == "firing" {
			name := a.Labels["alertname"]
			list[name] = append(list[name], a)
		}
	}
	return list
}

type alert struct {
	State       string            `json:"state"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// run starts a program that ends with the test, at the latest.
func run(t *testing.T, cmd *exec.Cmd, logFile string, end syscall.Signal) (ended <-chan struct{}) {
	t.Helper()
	log, err := os.Create(logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the signal that ends it is no news
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(end) // it may have ended
		<-done
		if t.Failed() {
			text := readText(t, logFile)
			t.Logf("%s ends with:\n%s", filepath.Base(logFile), text[max(0, len(text)-8<<10):])
		}
	})
	return done
}
