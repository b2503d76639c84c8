package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

const (
	// podGrace is the terminationGracePeriodSeconds of the agent's pod.
	podGrace = 60 * time.Second
	// logTail is how much of an agent's log a failed case shows.
	logTail = 16 << 10
)

// Agent is a node agent, or another of our programs, as a process of its own. Each has its own directory for temporary files, as a
// restarted container has.
type Agent struct {
	t       testing.TB
	Cmd     *exec.Cmd
	Metrics string // host and port of its HTTP endpoints
	begins  string // what it logs when it begins to work
	logFile string
	temp    string
	ended   chan struct{}
	err     error // how it ended; to be read when ended is closed
}

// AgentOptions are what an agent is started with besides what all have.
type AgentOptions struct {
	Node   string              // default: the fixture's
	Restic string              // the program; default: the real one
	Cgroup string              // the directory of a cgroup to run in; default: the suite's own
	Flags  []string            // later ones win
	Loaded func(pid int) error // called before the program begins to run
}

// Start starts an agent that talks to the API server through the fixture's proxy.
func (f *Fixture) Start(flags ...string) *Agent {
	f.T.Helper()
	return f.StartWith(AgentOptions{Flags: flags})
}

// StartWith is Start with options.
func (f *Fixture) StartWith(o AgentOptions) *Agent {
	f.T.Helper()
	if o.Node == "" {
		o.Node = f.Node
	}
	if o.Restic == "" {
		o.Restic = parts.Restic(f.T, parts.DefaultRestic)
	}
	a := f.newAgent("Node agent starts")
	args := append([]string{
		"server", "--kubeconfig=" + testenv.Kubeconfig(f.T, f.API.Config()), "--host-pods-path=" + f.HostPods, "--restic-path=" + o.Restic,
		"--cache-dir=" + filepath.Join(f.Dir, "cache"), "--metrics-address=" + a.Metrics,
		"--progress-interval=200ms", "--retry-delay=1s",
	}, o.Flags...)
	a.Cmd = exec.Command(agentProgram, args...)
	if o.Cgroup != "" {
		join := `echo $$ >"$0/cgroup.procs" && exec "$@"`
		a.Cmd = exec.Command("/bin/sh", append([]string{"-c", join, o.Cgroup, agentProgram}, args...)...)
	}
	f.run(a, o.Loaded, "NODE_NAME="+o.Node)
	return a
}

// TasksPod is the name of the pod that the processes of StartTasks say they run in.
const TasksPod = "plimsoll-repository-tasks"

// StartTasks starts a process that does RepositoryTasks and answers FileRequests. With restConfig nil it talks to the API server through the
// fixture's proxy. Prepare must have built ./cmd/restore-controller.
func (f *Fixture) StartTasks(restConfig *rest.Config, flags ...string) *Agent {
	f.T.Helper()
	if restConfig == nil {
		restConfig = f.API.Config()
	}
	a := f.newAgent("Doing the RepositoryTasks")
	a.Cmd = exec.Command(filepath.Join(filepath.Dir(agentProgram), "restore-controller"), append([]string{
		"repository-tasks", "--kubeconfig=" + testenv.Kubeconfig(f.T, restConfig), "--restic-path=" + parts.Restic(f.T, parts.DefaultRestic),
		"--metrics-address=" + a.Metrics, "--progress-interval=200ms",
	}, flags...)...)
	f.run(a, nil, "POD_NAME="+TasksPod)
	return a
}

func (f *Fixture) newAgent(begins string) *Agent {
	f.T.Helper()
	name := fmt.Sprintf("agent-%d", len(f.Agents)+1)
	a := &Agent{
		t: f.T, Metrics: loopback.ForTest(f.T), begins: begins, ended: make(chan struct{}),
		logFile: filepath.Join(f.Dir, name+".log"), temp: filepath.Join(f.Dir, name+"-temp"),
	}
	if err := os.Mkdir(a.temp, 0o700); err != nil {
		f.T.Fatal(err)
	}
	f.Agents = append(f.Agents, a)
	return a
}

// run starts a's program, which ends with the test.
func (f *Fixture) run(a *Agent, loaded func(pid int) error, env ...string) {
	f.T.Helper()
	a.Cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.Dir, "TMPDIR=" + a.temp, "VELERO_NAMESPACE=" + f.Namespace}, env...)
	a.run(loaded)
	f.T.Cleanup(a.Stop)
}

func (a *Agent) run(loaded func(pid int) error) {
	a.t.Helper()
	log, err := os.Create(a.logFile)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	a.Cmd.Stdout, a.Cmd.Stderr = log, log
	a.Cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	begin := a.Cmd.Start
	if loaded != nil {
		begin = func() error { return a.startAfter(loaded) }
	}
	if err := begin(); err != nil {
		a.t.Fatal(err)
	}
	go func() {
		defer close(a.ended)
		a.err = a.Cmd.Wait()
	}()
}

// startAfter starts the agent as a debugger does, which holds it at its first instruction, until loaded has returned.
func (a *Agent) startAfter(loaded func(pid int) error) error {
	runtime.LockOSThread() // the thread is the debugger
	defer runtime.UnlockOSThread()
	a.Cmd.SysProcAttr.Ptrace = true
	if err := a.Cmd.Start(); err != nil {
		return err
	}
	pid := a.Cmd.Process.Pid
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		return fmt.Errorf("wait until the agent is loaded: %w", err)
	}
	if err := loaded(pid); err != nil {
		return err
	}
	return unix.PtraceDetach(pid)
}

// Kill ends the agent as the kernel does, and returns when it and its workers are gone.
func (a *Agent) Kill() {
	a.t.Helper()
	a.signal(unix.SIGKILL)
	<-a.ended
	if err := os.RemoveAll(a.temp); err != nil { // the next container does not have it
		a.t.Error(err)
	}
}

// Stop ends the agent as kubelet does, unless it has ended already. It must end well and in time.
func (a *Agent) Stop() {
	a.t.Helper()
	select {
	case <-a.ended:
		return
	default:
	}
	a.signal(unix.SIGTERM)
	select {
	case <-a.ended:
	case <-time.After(podGrace):
		a.t.Errorf("the agent did not end within %s of SIGTERM", podGrace)
		a.signal(unix.SIGKILL)
		<-a.ended
		return
	}
	if a.err != nil && strings.Contains(a.Log(), a.begins) { // before that it has nothing to end
		a.t.Errorf("the agent ended badly after SIGTERM: %v", a.err)
	}
	if left, err := os.ReadDir(a.temp); err != nil || len(left) > 0 {
		a.t.Errorf("the agent left temporary files: %v, %v", left, err)
	}
}

func (a *Agent) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.Cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		a.t.Fatal(err)
	}
}

// Running reports whether the agent has not ended.
func (a *Agent) Running() bool {
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// Log returns what the agent has written so far.
func (a *Agent) Log() string {
	a.t.Helper()
	text, err := os.ReadFile(a.logFile)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(text)
}

// Said waits until the agent's log has a text.
func (a *Agent) Said(text string) {
	a.t.Helper()
	testenv.Eventually(a.t, fmt.Sprintf("the agent says %q", text), func() bool { return strings.Contains(a.Log(), text) })
}

// catastrophe is what a Go program says of a bug, at the start of a line, and what controller-runtime says of one.
var catastrophe = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: )|Observed a panic`)

// checkLog looks for what must never happen, and shows the end of the log of a failed case.
func (a *Agent) checkLog() {
	a.t.Helper()
	text := a.Log()
	if at := catastrophe.FindStringIndex(text); at != nil {
		a.t.Errorf("the agent's log has:\n%s", text[at[0]:min(len(text), at[0]+4<<10)])
	}
	if a.t.Failed() {
		a.t.Logf("%s ends with:\n%s", filepath.Base(a.logFile), text[max(0, len(text)-logTail):])
	}
}

// Process is one that belongs to a case.
type Process struct {
	pid     string
	command string
}

// Processes returns the processes that have to do with a directory: by their arguments, environment or working directory.
// Ended ones that nobody has waited for yet do not count.
func Processes(tb testing.TB, dir string) []Process {
	tb.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		tb.Fatal(err)
	}
	var found []Process
	for _, entry := range entries {
		command, err := os.ReadFile(filepath.Join(entry, "cmdline"))
		if err != nil || len(command) == 0 {
			continue // it is gone, or about to be
		}
		environment, _ := os.ReadFile(filepath.Join(entry, "environ"))
		where, _ := os.Readlink(filepath.Join(entry, "cwd"))
		if bytes.Contains(command, []byte(dir)) || bytes.Contains(environment, []byte(dir)) || strings.HasPrefix(where, dir) {
			found = append(found, Process{filepath.Base(entry), string(bytes.ReplaceAll(command, []byte{0}, []byte{' '}))})
		}
	}
	return found
}

// Measures reports whether the agent has a metric with a label and a value.
func (a *Agent) Measures(name, label, value string) bool {
	a.t.Helper()
	response, err := http.Get("http://" + a.Metrics + "/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, label) && strings.HasSuffix(line, "} "+value+"\n") {
			return true
		}
	}
	return false
}

// Pauses returns the time from the end of each attempt of an operation to the beginning of the next, as the agent logs it:
// what others see of it comes late on a busy machine.
func (a *Agent) Pauses(operation string) []time.Duration {
	a.t.Helper()
	var pauses []time.Duration
	var failed time.Time
	for line := range strings.Lines(a.Log()) {
		if !strings.Contains(line, "name="+operation+" ") {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			a.t.Fatal(err)
		}
		switch {
		case strings.Contains(line, `msg="Attempt failed, trying again"`):
			failed = at
		case strings.Contains(line, `msg="Operation goes on"`):
			pauses = append(pauses, at.Sub(failed))
		}
	}
	return pauses
}
