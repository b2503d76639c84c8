package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	resticuploader "github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
)

const (
	// agentStopTimeout is how long the idle agent may take to end, on a busy machine.
	agentStopTimeout = 2 * time.Minute
	// initContainerTimeout is how long an init container may run after its volumes are restored. It looks for the done file each
	// second.
	initContainerTimeout = 2 * time.Minute
	// logTail is the number of bytes of the agent's log that are shown after a failure.
	logTail = 6 << 10
)

var errAgentEnded = errors.New("the node agent has ended")

// agent is the node agent as a process of its own.
type agent struct {
	cmd   *exec.Cmd
	log   string // a file
	temp  string // its directory for temporary files
	ended chan struct{}
	err   error // how it ended; to be read when ended is closed
}

// startAgent runs `node-agent server`. Only what it needs is in its environment.
func startAgent(o options, work, pods, kubeconfig string) (*agent, error) {
	a := &agent{log: filepath.Join(work, "node-agent.log"), temp: filepath.Join(work, "agent-temp"), ended: make(chan struct{})}
	if err := os.Mkdir(a.temp, 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	a.cmd = exec.Command(o.agent, "server", //nolint:noctx // stop ends it, with time to end its own processes
		"--kubeconfig="+kubeconfig, "--host-pods-path="+pods, "--restic-path="+o.restic,
		"--cache-dir="+filepath.Join(work, "cache"), "--metrics-address=127.0.0.1:0",
		"--concurrency=2", "--progress-interval=1s",
		"--allow-unmounted") // the demo plays kubelet without the right to mount
	a.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + work, "TMPDIR=" + a.temp, "NODE_NAME=" + nodeName, "VELERO_NAMESPACE=" + veleroNamespace,
	}
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = ownGroup()
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the node agent: %w", err)
	}
	go func() {
		defer close(a.ended)
		a.err = a.cmd.Wait()
	}()
	return a, nil
}

// resticVersion asks restic for its version: make takes the demo's restic from PATH, too.
func resticVersion(ctx context.Context, program string) (resticuploader.Version, error) {
	said, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return resticuploader.Version{}, fmt.Errorf("ask %s for its version: %w", program, err)
	}
	return resticuploader.ParseVersion(string(said))
}

// watch returns a context that ends when the agent does.
func (a *agent) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-a.ended:
			cancel(fmt.Errorf("%w before the demo stopped it: %v", errAgentEnded, a.cmd.ProcessState))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// stop ends the agent as kubelet does, and returns an error unless it ends in time, with exit code 0, and leaves no files.
func (a *agent) stop() error {
	select {
	case <-a.ended:
		return nil // watch has reported it
	default:
	}
	if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the node agent: %w", err)
	}
	select {
	case <-a.ended:
	case <-time.After(agentStopTimeout):
		err := fmt.Errorf("the node agent did not end within %s of SIGTERM", agentStopTimeout)
		err = errors.Join(err, a.cmd.Process.Kill())
		<-a.ended
		return err
	}
	if a.err != nil {
		return fmt.Errorf("the node agent failed: %w", a.err)
	}
	left, err := os.ReadDir(a.temp)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("the node agent left temporary files: %v", left)
	}
	return err
}

// tail returns the end of the agent's log.
func (a *agent) tail() string {
	text, err := os.ReadFile(a.log)
	if err != nil {
		return err.Error()
	}
	if len(text) > logTail {
		text = text[len(text)-logTail:]
		_, text, _ = bytes.Cut(text, []byte{'\n'})
	}
	return string(text)
}

// initContainer is `node-agent restore-wait` as a pod runs it.
type initContainer struct {
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // how it ended; to be read when ended is closed
}

// startInitContainer runs restore-wait over a directory of volumes until they are restored, or ctx ends. It calls next when the
// program has succeeded, as kubelet then starts the pod's containers.
func startInitContainer(ctx context.Context, program, restoreUID, volumes string, next func() error) (*initContainer, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &initContainer{cancel: cancel, ended: make(chan struct{})}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "restore-wait", restoreUID, "--restores-path", volumes)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start init container %s: %w", restoreWait, err)
	}
	go func() {
		defer close(c.ended)
		if err := cmd.Wait(); err != nil {
			c.err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out.Bytes()))
			return
		}
		c.err = next()
	}()
	return c, nil
}

// wait waits until it has ended and returns its error.
func (c *initContainer) wait(ctx context.Context) error {
	select {
	case <-c.ended:
		return c.err
	case <-time.After(initContainerTimeout):
		c.end()
		return fmt.Errorf("still waiting %s after the restore: %w", initContainerTimeout, c.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end ends it if it still runs. The receiver may be nil.
func (c *initContainer) end() {
	if c == nil {
		return
	}
	c.cancel()
	<-c.ended
}

// ownGroup gives a process its own process group, so that Ctrl-C reaches only the demo, which then ends the others. If the demo
// is killed, the kernel kills them too: Pdeathsig acts when the thread that started them ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
}

// leftRunning returns an error that names the processes whose command line names the directory.
func leftRunning(dir string) error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var left []error
	for _, file := range files {
		text, err := os.ReadFile(file)
		pid := filepath.Base(filepath.Dir(file))
		if err != nil || !bytes.Contains(text, []byte(dir)) || pid == strconv.Itoa(os.Getpid()) {
			continue // it has ended, or is not ours
		}
		left = append(left, fmt.Errorf("process %s still runs: %s", pid, strings.TrimSpace(string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))))
	}
	return errors.Join(left...)
}
