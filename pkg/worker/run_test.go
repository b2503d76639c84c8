package worker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

func TestRunDeliversOutput(t *testing.T) {
	t.Parallel()
	c, r := shell(t, `echo one; printf 'two\nthree\n\nfo'; printf 'ur\r\n'; echo error >&2; printf 'no newline'`)
	var stderr recorder
	c.Stderr = stderr.line
	if diff := cmp.Diff([]string{"one", "two", "three", "", "four\r", "no newline"}, runOK(t, c, r)); diff != "" {
		t.Errorf("stdout (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"error"}, stderr.lines); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
}

func TestRunDropsLongLines(t *testing.T) {
	t.Parallel()
	c, r := command(t, self, "script-longline", strconv.Itoa(MaxLine+1))
	if diff := cmp.Diff([]string{"before", "after"}, runOK(t, c, r)); diff != "" {
		t.Errorf("stdout (-want +got):\n%s", diff)
	}
	c, r = command(t, self, "script-longline", strconv.Itoa(MaxLine))
	if got := runOK(t, c, r); len(got) != 3 || len(got[1]) != MaxLine {
		t.Errorf("got %d lines, want 3 with one of MaxLine", len(got))
	}
}

func TestRunDiscardsOutput(t *testing.T) {
	t.Parallel()
	c, _ := shell(t, "i=0; while [ $i -lt 20000 ]; do echo 0123456789; echo 0123456789 >&2; i=$((i+1)); done")
	c.Stdout = nil
	if err := Run(t.Context(), c); err != nil { // more than a pipe holds: a pipe that nobody reads would stop it
		t.Error(err)
	}
}

// TestRunGate: a worker whose line is refused gets no further than to its next line but one, however short the lines are.
func TestRunGate(t *testing.T) {
	t.Parallel()
	c, r := shell(t, `echo $$; echo bad; echo next; : > one; echo last; : > two; echo end`)
	c.Access.Volume = Write
	refused := errors.New("refused")
	var pid string
	c.Gate = func(line []byte) error {
		if string(line) == "bad" {
			waitUntilIdle(t, pid, filepath.Join(c.Dir.Name(), "one"))
			return refused
		}
		if pid == "" {
			pid = string(line)
		}
		return nil
	}
	if err := Run(t.Context(), c); !errors.Is(err, refused) || !slices.Equal(r.lines, []string{pid}) {
		t.Errorf("%v, after %q", err, r.lines)
	}
	if _, err := os.Stat(filepath.Join(c.Dir.Name(), "two")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the worker went on: %v", err)
	}
	c, r = shell(t, "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; printf end")
	c.Gate = func([]byte) error { return nil }
	if got := runOK(t, c, r); len(got) != 2001 || got[1999] != "1999" || got[2000] != "end" {
		t.Errorf("%d lines pass", len(got))
	}
}

// waitUntilIdle waits until a process has made a file, and then has ended or waits.
func waitUntilIdle(t *testing.T, pid, file string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case <-timeout:
			t.Error("waited in vain")
			return
		case <-tick.C:
		}
		stat, _ := os.ReadFile("/proc/" + pid + "/stat")
		_, state, _ := strings.Cut(string(stat), ") ")
		if _, err := os.Stat(file); err == nil && (strings.HasPrefix(state, "S") || strings.HasPrefix(state, "Z")) {
			return
		}
	}
}

func TestRunExit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		script string
		want   *ExitError
	}{
		{"success", "exit 0", nil},
		{"code", "exit 3", &ExitError{Program: "sh", Code: 3}},
		{"largest code", "exit 255", &ExitError{Program: "sh", Code: 255}},
		{"stderr", `printf '\033[31mFatal: \001bad\033[0m\n' >&2; exit 1`, &ExitError{Program: "sh", Code: 1, Stderr: "Fatal: bad"}},
		{"signal", "kill -TERM $$", &ExitError{Program: "sh", Code: -1, Signal: syscall.SIGTERM}},
		{"killed by somebody", "kill -KILL $$", &ExitError{Program: "sh", Code: -1, Signal: syscall.SIGKILL}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := shell(t, tt.script)
			var got *ExitError
			if err := Run(t.Context(), c); err != nil && !errors.As(err, &got) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("exit (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRunBesideAVolumeThatHangs: a worker that enters a volume which does not answer holds up neither another worker of the agent nor its garbage
// collector.
func TestRunBesideAVolumeThatHangs(t *testing.T) {
	t.Parallel()
	volume, dir, _ := faultfs.ForTest(t)
	agent := exec.CommandContext(t.Context(), executable(t), "script-beside", dir)
	input, inErr := agent.StdinPipe()
	output, outErr := agent.StdoutPipe()
	if err := errors.Join(inErr, outErr, agent.Start()); err != nil {
		t.Fatal(err)
	}
	says := bufio.NewScanner(output)
	expect := func(want string) {
		t.Helper()
		if !says.Scan() || says.Text() != want {
			t.Errorf("the agent says %q, want %q", says.Text(), want)
		}
	}
	goOn := func() {
		if _, err := input.Write([]byte("\n")); err != nil {
			t.Error(err)
		}
	}
	expect("opened")
	volume.Inject(faultfs.Fault{Op: faultfs.Stat, Hang: true})
	goOn()
	for changed := volume.Changed(); volume.Hanging() == 0; changed = volume.Changed() {
		<-changed
	}
	held := time.AfterFunc(patience, volume.Clear)
	goOn()
	expect("free")
	if !held.Stop() {
		t.Errorf("no other worker has started for %s", patience)
	}
	volume.Clear()
	expect("entered")
	if err := agent.Wait(); err != nil {
		t.Error(err)
	}
}

// TestRunWithAnotherVersionsShim: an older worker-exec would not enter the volume, and an older agent hands no directory over.
func TestRunWithAnotherVersionsShim(t *testing.T) {
	t.Parallel()
	if isShim([]string{"worker-exec", "worker-exec", "restic"}) || !isShim([]string{"worker-exec", shimArg, "restic"}) {
		t.Error("the shim of this version does what an agent of the first asks for")
	}
}

func TestRunCannotStart(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(c *Command)
		want   error  // nil: any
		text   string // a part of the message
	}{
		{"no such program", func(c *Command) { c.Path = "/nowhere/restic" }, fs.ErrNotExist, "start restic: execute /nowhere/restic"},
		{"not executable", func(c *Command) { c.Path = "/etc/passwd" }, fs.ErrPermission, "start passwd"},
		{"relative program", func(c *Command) { c.Path = "sh" }, nil, `path "sh" is not absolute`},
		{"relative access", func(c *Command) { c.Access.ReadWrite = []string{"cache"} }, nil, `path "cache" is not absolute`},
		{"no directory", func(c *Command) { c.Dir = nil }, nil, "no working directory"},
		{"not a directory", func(c *Command) {
			c.Dir = openDir(t, "/etc/passwd")
		}, syscall.ENOTDIR, "in directory /etc/passwd"},
		{"NUL in the environment", func(c *Command) { c.Env = []string{"A=\x00"} }, syscall.EINVAL, "start true"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := command(t, "/bin/true")
			tt.change(&c)
			err := Run(t.Context(), c)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Run = %v, want %v with %q", err, tt.want, tt.text)
			}
			if exit := (*ExitError)(nil); errors.As(err, &exit) {
				t.Errorf("Run = %v, an ExitError although nothing ran", err)
			}
		})
	}
}

func TestRunAfterContextEnded(t *testing.T) {
	t.Parallel()
	cause := errors.New("the object was deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	c, r := shell(t, "echo ran")
	if err := Run(ctx, c); !errors.Is(err, cause) || len(r.lines) > 0 {
		t.Errorf("Run = %v, output %q; want the cause and no output", err, r.lines)
	}
}

func TestRunEndsWorker(t *testing.T) {
	t.Parallel()
	short, long := time.Millisecond, time.Hour
	deleted := errors.New("the object was deleted")
	tests := []struct {
		name   string
		obeys  string // the signals after which the worker ends
		grace  Grace
		cause  error
		signal os.Signal // that it dies of
		code   int
		heard  []string // nil: it may be killed before it has heard anything
	}{
		{"on interrupt", "interrupt", Grace{long, long, short}, deleted, nil, 130, []string{"ready", "interrupt"}},
		{"on terminate", "interrupt terminated", Grace{short, long, long}, deleted, nil, 130, []string{"ready", "interrupt", "terminated"}},
		{"that nobody wants", "interrupt terminated", Grace{long, long, short}, fmt.Errorf("%w: %w", deleted, ErrAbandoned), nil, 130, []string{"ready", "interrupt", "terminated"}},
		{"that obeys nothing", "nothing", Grace{short, short, long}, deleted, syscall.SIGKILL, -1, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, r := command(t, self, append([]string{"script-signals"}, strings.Fields(tt.obeys)...)...)
			c.Grace = tt.grace
			ctx, cancel := context.WithCancelCause(t.Context())
			r.events = map[string]func(){"ready": func() { cancel(tt.cause) }}
			exit, err := exitError(ctx, t, c)
			if !errors.Is(err, tt.cause) {
				t.Errorf("Run = %v, want it to wrap the cause", err)
			}
			if exit.Code != tt.code || exit.Signal != tt.signal || exit.OutOfMemory {
				t.Errorf("exit = %+v, want code %d, signal %v", exit, tt.code, tt.signal)
			}
			// A signal may get there after the next one when the graces are short; that each was sent is what counts.
			slices.Sort(r.lines[1:])
			if diff := cmp.Diff(tt.heard, r.lines); diff != "" && tt.heard != nil {
				t.Errorf("heard (-want +got):\n%s", diff)
			}
		})
	}
}

// A worker that is ready when it is told to end has done its work.
func TestRunSuccessAfterContextEnded(t *testing.T) {
	t.Parallel()
	c, r := shell(t, `trap 'exit 0' INT; echo ready; while :; do sleep 1; done`)
	c.Grace.Interrupt = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	r.events = map[string]func(){"ready": cancel}
	if err := Run(ctx, c); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

// A script starts programs in the background with SIGINT ignored. The worker heeds it all the same.
func TestRunInterruptsUnderAgentThatIgnoresIt(t *testing.T) {
	t.Parallel()
	agent := agentCommand(t, "/bin/sh", "-c", "echo cancel; exec sleep 1000")
	agent.Args = append([]string{"sh", "-c", `trap '' INT; exec "$@"`, "sh", agent.Path}, agent.Args[1:]...)
	agent.Path = "/bin/sh"
	out, err := agent.CombinedOutput()
	if want := "cancel\nerror: context canceled: sh: ended by signal: interrupt\n"; err != nil || string(out) != want {
		t.Errorf("agent: %v, %q, want %q", err, out, want)
	}
}

func TestRunDoesNotWaitForStrays(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"in the group", "escaped"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c, r := command(t, self, "script-leave", kind)
			c.Access.Volume = Write                                      // with a guard, whose filter the escaped process keeps
			c.Stdin = strings.NewReader(strings.Repeat("secret\n", 1e5)) // more than a pipe holds, and nobody reads it
			lines := runOK(t, c, r)
			var pid int // the process that is left may have written a line, too
			if !slices.ContainsFunc(lines, func(line string) bool { n, _ := fmt.Sscanf(line, "left %d", &pid); return n == 1 }) {
				t.Fatalf("output %q", lines)
			}
			if kind == "escaped" {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Errorf("the escaped process is not there: %v", err)
				}
			}
			awaitGone(t, pid)
		})
	}
}

// agentCommand returns a process that runs a worker in an empty directory.
func agentCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), executable(t), append([]string{"script-agent"}, args...)...)
	cmd.Dir = t.TempDir()
	return cmd
}

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// awaitGone fails the test if the process is still there after minutes.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, syscall.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("process %d lives on (poll: %d, %v)", pid, n, err)
		}
		return
	}
}

func TestWorkerDiesWithAgent(t *testing.T) {
	t.Parallel()
	// The worker ignores SIGINT and SIGTERM and writes nothing, so neither they nor SIGPIPE can end it.
	agent := agentCommand(t, self, "script-hold")
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "pid %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the worker is not there: %v", err)
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pid)
	if err := agent.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("agent ended with %v", err)
	}
}

func TestWorkerEnvironment(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{nil, {"A=1", "A=2", "B=\xff\n", "odd", "PASSWORD= x "}} {
		c, r := command(t, "/bin/cat", "/proc/self/environ")
		c.Env = env
		want := slices.Concat(env, raceEnv())
		got := strings.FieldsFunc(strings.Join(runOK(t, c, r), "\n"), func(r rune) bool { return r == 0 })
		if !slices.Equal(got, want) {
			t.Errorf("environment = %q, want %q", got, want)
		}
	}
}

func TestWorkerArguments(t *testing.T) {
	t.Parallel()
	want := []string{"/bin/cat", "/proc/self/cmdline", "--", "/dev/null"}
	c, r := command(t, want[0], want[1:]...)
	if got := strings.Join(runOK(t, c, r), "\n"); got != strings.Join(want, "\x00")+"\x00" {
		t.Errorf("arguments = %q, want %q", got, want)
	}
}

// A worker that yields has a lower priority than the agent; another one has the agent's.
func TestWorkerPriority(t *testing.T) {
	t.Parallel()
	agents, err := exec.CommandContext(t.Context(), "nice").Output()
	if err != nil {
		t.Fatal(err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(agents)))
	if err != nil {
		t.Fatal(err)
	}
	for yields, want := range map[bool]int{false: own, true: min(own+10, 19)} {
		c, r := shell(t, "nice")
		c.Yields = yields
		if got := runOK(t, c, r); !slices.Equal(got, []string{strconv.Itoa(want)}) {
			t.Errorf("yields %v: nice prints %q, want %d", yields, got, want)
		}
	}
}

func TestWorkerStdin(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("secret\n", 100_000) // more than a pipe holds
	c, r := command(t, "/bin/cat")
	c.Stdin = strings.NewReader(secret)
	if got := strings.Join(runOK(t, c, r), "\n") + "\n"; got != secret {
		t.Errorf("got %d bytes of stdin, want %d", len(got), len(secret))
	}

	c, r = command(t, "/bin/cat")
	if got := runOK(t, c, r); len(got) > 0 {
		t.Errorf("stdin = %q, want none", got)
	}

	c, _ = command(t, "/bin/true")
	c.Stdin = strings.NewReader(secret) // not read: no error
	if err := Run(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// What the kernel says about a worker, seen from outside.
func TestWorkerProcess(t *testing.T) {
	t.Parallel()
	leaked, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // without O_CLOEXEC, as an agent's parent may leave one
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)

	// It must not open files of its own meanwhile, as a program does that begins. So the shell itself waits.
	c, r := shell(t, `echo $$; read line`)
	stdin, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer w.Close()
	c.Stdin = stdin
	ctx, cancel := context.WithCancel(t.Context())
	var fds []string
	var group int
	var oom []byte
	c.Stdout = func(line []byte) {
		r.line(line)
		proc := "/proc/" + string(line)
		entries, _ := os.ReadDir(proc + "/fd")
		for _, e := range entries {
			fds = append(fds, e.Name())
		}
		pid, _ := strconv.Atoi(string(line))
		group, _ = syscall.Getpgid(pid)
		oom, _ = os.ReadFile(proc + "/oom_score_adj")
		cancel()
	}
	exit, _ := exitError(ctx, t, c)
	if exit.Signal != syscall.SIGINT {
		t.Errorf("ended by %v, want SIGINT", exit.Signal)
	}
	if diff := cmp.Diff([]string{"0", "1", "2"}, fds); diff != "" {
		t.Errorf("open files (-want +got):\n%s", diff)
	}
	if got := strconv.Itoa(group); got != r.lines[0] {
		t.Errorf("process group %s, want the worker's own, %s", got, r.lines[0])
	}
	if got := string(bytes.TrimSpace(oom)); got != "1000" {
		t.Errorf("oom_score_adj = %s, want 1000", got)
	}
}

func TestWorkerDirectoryIsTheOpenedOne(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	volume := filepath.Join(parent, "volume")
	for name, content := range map[string]string{"volume": "right", "other": "wrong"} {
		if err := errors.Join(os.Mkdir(filepath.Join(parent, name), 0o700),
			os.WriteFile(filepath.Join(parent, name, "file"), []byte(content+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	c, r := command(t, "/bin/cat", "file")
	c.Dir = openDir(t, volume)
	if err := errors.Join(os.Rename(volume, filepath.Join(parent, "moved")), os.Symlink("other", volume)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"right"}, runOK(t, c, r)); diff != "" {
		t.Errorf("file in the working directory (-want +got):\n%s", diff)
	}
}

func TestDrainTakesWhatIsLeft(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close() // open until the end, as in a process left behind
	want := bytes.Repeat([]byte("x"), 60_000)
	if _, err := w.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	drain(r, &got)
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got %d bytes of %d", got.Len(), len(want))
	}
}

func TestRunIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			c, r := shell(t, fmt.Sprintf("echo %d", i))
			if got := runOK(t, c, r); !slices.Equal(got, []string{strconv.Itoa(i)}) {
				t.Errorf("output %q", got)
			}
		})
	}
}

func BenchmarkRun(b *testing.B) {
	c, _ := command(b, "/bin/true")
	c.Logger = discard
	for b.Loop() {
		if err := Run(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
