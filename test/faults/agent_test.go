//go:build faults

package faults

import (
	"bytes"
	"errors"
	"fmt"
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

	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

const (
	// podGrace is the terminationGracePeriodSeconds of the agent's pod.
	podGrace = 60 * time.Second
	// logTail is how much of an agent's log a failed case shows.
	logTail = 16 << 10
)

// agent is a node agent as a process of its own. Each has its own directory for temporary files, as a restarted
// container has.
type agent struct {
	t       *testing.T
	cmd     *exec.Cmd
	metrics string // host and port of its HTTP endpoints
	logFile string
	temp    string
	ended   chan struct{}
	err     error // how it ended; to be read when ended is closed
}

// agentOptions are what an agent is started with besides what all have.
type agentOptions struct {
	node   string              // default: the fixture's
	restic string              // the program; default: the real one
	cgroup string              // the directory of a cgroup to run in; default: the suite's own
	flags  []string            // later ones win
	loaded func(pid int) error // called before the program begins to run
}

// start starts an agent that talks to the API server through the fixture's proxy.
func (f *fixture) start(flags ...string) *agent {
	f.t.Helper()
	return f.startWith(agentOptions{flags: flags})
}

func (f *fixture) startWith(o agentOptions) *agent {
	f.t.Helper()
	if o.node == "" {
		o.node = f.node
	}
	if o.restic == "" {
		o.restic = parts.Restic(f.t, parts.DefaultRestic)
	}
	name := fmt.Sprintf("agent-%d", len(f.agents)+1)
	a := &agent{
		t: f.t, metrics: loopback.ForTest(f.t), ended: make(chan struct{}),
		logFile: filepath.Join(f.dir, name+".log"), temp: filepath.Join(f.dir, name+"-temp"),
	}
	if err := os.Mkdir(a.temp, 0o700); err != nil {
		f.t.Fatal(err)
	}
	args := append([]string{
		"server", "--kubeconfig=" + f.api.kubeconfig, "--host-pods-path=" + f.hostPods, "--restic-path=" + o.restic,
		"--cache-dir=" + filepath.Join(f.dir, "cache"), "--metrics-address=" + a.metrics,
		"--progress-interval=200ms", "--retry-delay=1s",
	}, o.flags...)
	a.cmd = exec.Command(suite.agent, args...)
	if o.cgroup != "" {
		join := `echo $$ >"$0/cgroup.procs" && exec "$@"`
		a.cmd = exec.Command("/bin/sh", append([]string{"-c", join, o.cgroup, suite.agent}, args...)...)
	}
	a.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + f.dir, "TMPDIR=" + a.temp, "NODE_NAME=" + o.node, "VELERO_NAMESPACE=" + f.ns,
	}
	a.run(o.loaded)
	f.agents = append(f.agents, a)
	f.t.Cleanup(a.stop)
	return a
}

func (a *agent) run(loaded func(pid int) error) {
	a.t.Helper()
	log, err := os.Create(a.logFile)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	begin := a.cmd.Start
	if loaded != nil {
		begin = func() error { return a.startAfter(loaded) }
	}
	if err := begin(); err != nil {
		a.t.Fatal(err)
	}
	go func() {
		defer close(a.ended)
		a.err = a.cmd.Wait()
	}()
}

// startAfter starts the agent as a debugger does, which holds it at its first instruction, until loaded has returned.
func (a *agent) startAfter(loaded func(pid int) error) error {
	runtime.LockOSThread() // the thread is the debugger
	defer runtime.UnlockOSThread()
	a.cmd.SysProcAttr.Ptrace = true
	if err := a.cmd.Start(); err != nil {
		return err
	}
	pid := a.cmd.Process.Pid
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		return fmt.Errorf("wait until the agent is loaded: %w", err)
	}
	if err := loaded(pid); err != nil {
		return err
	}
	return unix.PtraceDetach(pid)
}

// kill ends the agent as the kernel does, and returns when it and its workers are gone.
func (a *agent) kill() {
	a.t.Helper()
	a.signal(unix.SIGKILL)
	<-a.ended
	if err := os.RemoveAll(a.temp); err != nil { // the next container does not have it
		a.t.Error(err)
	}
}

// stop ends the agent as kubelet does, unless it has ended already. It must end well and in time.
func (a *agent) stop() {
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
	if a.err != nil {
		a.t.Errorf("the agent ended badly after SIGTERM: %v", a.err)
	}
	if left, err := os.ReadDir(a.temp); err != nil || len(left) > 0 {
		a.t.Errorf("the agent left temporary files: %v, %v", left, err)
	}
}

func (a *agent) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		a.t.Fatal(err)
	}
}

// running says whether the agent has not ended.
func (a *agent) running() bool {
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// log returns what the agent has written so far.
func (a *agent) log() string {
	a.t.Helper()
	text, err := os.ReadFile(a.logFile)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(text)
}

// said waits until the agent's log has a text.
func (a *agent) said(text string) {
	a.t.Helper()
	await(a.t, fmt.Sprintf("the agent says %q", text), func() bool { return strings.Contains(a.log(), text) })
}

// catastrophe is what a Go program says of a bug, at the start of a line, and what controller-runtime says of one.
var catastrophe = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: )|Observed a panic`)

// checkLog looks for what must never happen, and shows the end of the log of a failed case.
func (a *agent) checkLog() {
	a.t.Helper()
	text := a.log()
	if at := catastrophe.FindStringIndex(text); at != nil {
		a.t.Errorf("the agent's log has:\n%s", text[at[0]:min(len(text), at[0]+4<<10)])
	}
	if a.t.Failed() {
		a.t.Logf("%s ends with:\n%s", filepath.Base(a.logFile), text[max(0, len(text)-logTail):])
	}
}

// process is one that belongs to a case.
type process struct {
	pid     string
	command string
}

// processes returns the processes that have to do with a directory: by their arguments, environment or working directory.
// Ended ones that nobody has waited for yet do not count.
func processes(t *testing.T, dir string) []process {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []process
	for _, entry := range entries {
		command, err := os.ReadFile(filepath.Join(entry, "cmdline"))
		if err != nil || len(command) == 0 {
			continue // it is gone, or about to be
		}
		environment, _ := os.ReadFile(filepath.Join(entry, "environ"))
		where, _ := os.Readlink(filepath.Join(entry, "cwd"))
		if bytes.Contains(command, []byte(dir)) || bytes.Contains(environment, []byte(dir)) || strings.HasPrefix(where, dir) {
			found = append(found, process{filepath.Base(entry), string(bytes.ReplaceAll(command, []byte{0}, []byte{' '}))})
		}
	}
	return found
}
