package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// shell is a bash in which the blocks of a guide run one after the other, as in the reader's terminal: what one sets the next one
// has, and a command that fails does not keep the others from running.
type shell struct {
	cmd     *exec.Cmd
	scripts string // a directory, with the commands and outputs of all runs
	runs    int
	stdin   io.WriteCloser
	said    chan string // lines: "failed ..." for each command that fails, "end" after each run
}

// prologue has bash report each command that fails, in functions, too, to descriptor 3.
const prologue = `set -o errtrace
trap 'printf "failed with %s: %s\n" "$?" "${BASH_COMMAND%%$'"'\n'"'*}" >&3' ERR
before() { :; }
after() { :; }
`

func startShell(ctx context.Context, dir string) (*shell, error) {
	scripts, err := os.MkdirTemp("", "plimsoll-guides-")
	if err != nil {
		return nil, err
	}
	reports, reporter, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "bash")
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = dir, os.Stderr, []*os.File{reporter}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start bash: %w", err)
	}
	s := &shell{cmd: cmd, scripts: scripts, stdin: stdin, said: make(chan string)}
	go func() {
		defer close(s.said)
		defer reports.Close()
		for lines := bufio.NewScanner(reports); lines.Scan(); {
			s.said <- lines.Text()
		}
	}()
	if _, err := io.WriteString(stdin, prologue); err != nil {
		return nil, errors.Join(err, reporter.Close())
	}
	return s, reporter.Close()
}

// run runs commands, and returns what they print and which of them failed.
func (s *shell) run(ctx context.Context, commands string) (output string, failed []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, blockLimit, fmt.Errorf("the commands take longer than %s", blockLimit))
	defer cancel()
	s.runs++
	script := filepath.Join(s.scripts, fmt.Sprintf("%03d.sh", s.runs))
	// The last line is for a command that fails as the last one: it would be reported a second time, as the end of the script.
	if err := os.WriteFile(script, []byte(commands+"\n:\n"), 0o600); err != nil {
		return "", nil, err
	}
	if _, err := fmt.Fprintf(s.stdin, ". %[1]s </dev/null >%[1]s.out 2>&1\necho end >&3\n", script); err != nil {
		return "", nil, fmt.Errorf("bash takes no more commands: %w", err)
	}
	for {
		select {
		case line, open := <-s.said:
			if !open {
				return "", failed, errors.New("bash has ended")
			}
			if line == "end" {
				text, err := os.ReadFile(script + ".out")
				return tidy(string(text)), failed, err
			}
			failed = append(failed, line)
		case <-ctx.Done():
			text, err := os.ReadFile(script + ".out")
			return tidy(string(text)), failed, errors.Join(context.Cause(ctx), err)
		}
	}
}

// close ends bash, and all that it has started in the background.
func (s *shell) close() {
	syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
	for range s.said {
		continue
	}
	s.cmd.Wait()            //nolint:errcheck // it was killed
	os.RemoveAll(s.scripts) //nolint:errcheck // what is left is small, and in /tmp
}

// tidy returns text as a page can have it: without spaces at the ends of lines, and without empty lines at its end.
func tidy(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \r")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
