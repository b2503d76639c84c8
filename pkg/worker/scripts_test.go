package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// scripts is what this test binary does as a child process, by its first argument.
var scripts = map[string]func(args []string) int{
	"script-signals":  reportSignals,
	"script-leave":    leaveBehind,
	"script-hold":     hold,
	"script-longline": writeLongLine,
	"script-agent":    runAgent,
	"script-beside":   runBeside,
	"script-try":      tryAccess,
	"script-memory":   printMemory,
	"script-restore":  restoreEverything,
	"script-hog":      hogMemory,
	"script-grow":     growSlowly,
	"script-keep":     keepMemory,
	"script-two":      runTwoWorkers,
	"script-yield":    runYieldingWorker,

	"script-metadata":    changeMetadata,
	"script-directories": useDirectories,
	"script-nonsense":    passNonsense,
	"script-forever":     changeForever,
}

// reportSignals writes each signal that it gets and ends when it has got those that its arguments name, with code 130. Two
// that are sent shortly after each other may come in any order.
func reportSignals(args []string) int {
	got := make(chan os.Signal, 10)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("ready")
	for s := range got {
		fmt.Println(s)
		if args = slices.DeleteFunc(args, func(name string) bool { return name == s.String() }); len(args) == 0 {
			return 130
		}
	}
	return 0
}

// leaveBehind starts a process that keeps its stdin and stdout, in a process group of its own if "escaped", and ends.
func leaveBehind(args []string) int {
	cmd := &exec.Cmd{Path: self, Args: []string{"test", "script-hold"}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: args[0] == "escaped"}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("left", cmd.Process.Pid)
	return 0
}

// hold lives until it is killed.
func hold([]string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("pid " + strconv.Itoa(os.Getpid()))
	for {
		syscall.Pause()
	}
}

// writeLongLine writes a line of so many bytes, torn into many writes, between two short ones.
func writeLongLine(args []string) int {
	n, _ := strconv.Atoi(args[0])
	fmt.Println("before")
	w := bufio.NewWriterSize(os.Stdout, 1000)
	for range n {
		w.WriteByte('x')
	}
	w.WriteString("\nafter")
	w.Flush()
	return 0
}

// runBeside runs a worker in a directory, which it opens, and another one elsewhere. It waits for a line before each.
func runBeside(args []string) int {
	ctx := context.Background() //nolint:forbidigo // the main function of a process
	dir, err := os.Open(args[0])
	elsewhere, otherErr := os.Open("/")
	if err := errors.Join(err, otherErr); err != nil {
		fmt.Println(err)
		return 1
	}
	input := bufio.NewScanner(os.Stdin)
	fmt.Println("opened")
	input.Scan()
	entered := make(chan error, 1)
	go func() {
		entered <- Run(ctx, Command{Path: "/bin/true", Dir: dir, Logger: discard})
	}()
	input.Scan()
	runtime.GC() // waits for all threads that run, such as one that waits in fork for the child
	if err := Run(ctx, Command{Path: "/bin/true", Dir: elsewhere, Logger: discard}); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("free")
	if err := <-entered; err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("entered")
	return 0
}

// runAgent runs one worker, as the agent does, and passes its output and Run's error on. With "cgroup=DIR" as its first
// argument it enters that cgroup before, with "mount=DIR" it mounts a file system there, with "listened" somebody
// listens to its system calls already.
func runAgent(args []string) int {
	if dir, ok := strings.CutPrefix(args[0], "cgroup="); ok {
		if err := enterCgroup(dir); err != nil {
			fmt.Println(err)
			return 1
		}
		args = args[1:]
	}
	if dir, ok := strings.CutPrefix(args[0], "mount="); ok {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			fmt.Println(err)
			return 1
		}
		args = args[1:]
	}
	logger := discard
	if args[0] == "listened" {
		logger, args = slog.New(slog.NewTextHandler(os.Stdout, nil)), args[1:]
		runtime.LockOSThread() // and the worker is started from this thread
		if _, err := installFilter([]unix.SockFilter{{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW}}); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	dir, err := os.Open(".")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // the main function of a process
	defer cancel()
	err = Run(ctx, Command{
		Path:   args[0],
		Args:   args[1:],
		Dir:    dir,
		Access: Access{ReadOnly: bin, Volume: Write},
		Stdout: func(line []byte) {
			fmt.Printf("%s\n", line)
			if string(line) == "cancel" {
				cancel()
			}
		},
		Logger: logger,
	})
	fmt.Println("error:", err)
	return 0
}

// tryAccess does to each path what the word before it says, and writes how it went.
func tryAccess(args []string) int {
	for i := 0; i+1 < len(args); i += 2 {
		fmt.Println(args[i], filepath.Base(args[i+1])+":", outcome(try(args[i], args[i+1])))
	}
	return 0
}

func try(what, path string) error {
	switch what {
	case "read":
		_, err := os.ReadFile(path)
		return err
	case "list":
		_, err := os.ReadDir(path)
		return err
	case "write":
		return os.WriteFile(path, []byte("x"), 0o600)
	case "append":
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			f.Close()
		}
		return err
	case "remove":
		return os.Remove(path)
	case "execute":
		return exec.Command(path).Run()
	}
	return fmt.Errorf("no such attempt: %s", what)
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, syscall.EACCES):
		return "denied"
	}
	return err.Error()
}

// restoreEverything makes all that a restore makes in its working directory, and writes what it could not do.
func restoreEverything([]string) int {
	root := os.Geteuid() == 0
	steps := []struct {
		what string
		do   func() error
	}{
		{"mkdir", func() error { return os.MkdirAll("a/b", 0o700) }},
		{"write", func() error { return os.WriteFile("a/file", []byte("data"), 0o600) }},
		{"fallocate", func() error {
			f, err := os.OpenFile("a/file", os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			return unix.Fallocate(int(f.Fd()), 0, 0, 1<<16)
		}},
		{"truncate", func() error { return os.Truncate("a/file", 2) }},
		{"hard link to another directory", func() error { return os.Link("a/file", "a/b/link") }},
		{"rename to another directory", func() error { return os.Rename("a/b/link", "moved") }},
		{"symlink", func() error { return os.Symlink("/etc/shadow", "a/symlink") }},
		{"fifo", func() error { return unix.Mkfifo("a/fifo", 0o600) }},
		{"socket", func() error { return unix.Mknod("a/socket", unix.S_IFSOCK|0o600, 0) }},
		{"character device", func() error {
			if !root {
				return nil
			}
			return unix.Mknod("a/null", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		}},
		{"block device", func() error {
			if !root {
				return nil
			}
			return unix.Mknod("a/loop", unix.S_IFBLK|0o600, int(unix.Mkdev(7, 99)))
		}},
		{"chown", func() error { return os.Lchown("a/symlink", os.Getuid(), os.Getgid()) }},
		{"times", func() error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, "a/symlink", make([]unix.Timespec, 2), unix.AT_SYMLINK_NOFOLLOW)
		}},
		{"extended attribute", func() error {
			err := unix.Setxattr("a/file", "user.test", []byte("1"), 0)
			if errors.Is(err, syscall.EOPNOTSUPP) { // tmpfs before Linux 6.6
				return nil
			}
			return err
		}},
		{"chmod", func() error { return os.Chmod("a/file", 0o4755) }},
		{"remove", func() error { return os.RemoveAll("a") }},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			fmt.Printf("%s: %s\n", step.what, outcome(err))
		}
	}
	return 0
}

// printMemory prints the limit that this program's runtime keeps within.
func printMemory([]string) int {
	fmt.Println(debug.SetMemoryLimit(-1))
	return 0
}

// hogMemory takes so many bytes.
func hogMemory(args []string) int {
	n, _ := strconv.Atoi(args[0])
	data := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		data[i] = 1
	}
	fmt.Println("took it all")
	runtime.KeepAlive(data)
	return 0
}

func enterCgroup(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

// growSlowly takes the bytes of its first argument at once, and then 40 MiB a second up to those of the second.
func growSlowly(args []string) int {
	n, _ := strconv.Atoi(args[0])
	end, _ := strconv.Atoi(args[1])
	take(n)
	const step = 4 << 20
	for range time.Tick(100 * time.Millisecond) {
		if n += step; n > end {
			break
		}
		take(step)
	}
	fmt.Println("took it all")
	return 0
}

// take takes so many bytes for good. The race detector does not see them: it would take several times as many.
func take(n int) {
	if _, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
		panic(err)
	}
}

// keepMemory keeps so many bytes until it is interrupted.
func keepMemory(args []string) int {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT)
	n, _ := strconv.Atoi(args[0])
	take(n)
	fmt.Println("ready")
	<-interrupted
	return 0
}

// runTwoWorkers enters the cgroup that its first argument names, runs a worker that keeps 40 MiB and another that grows to the
// bytes of the second argument, and writes how they end.
func runTwoWorkers(args []string) int {
	return runBesideKeeper(args[0], 40<<20, "small", Command{Args: []string{"script-grow", strconv.Itoa(256 << 20), args[1]}}, "large")
}

// runYieldingWorker does the same with one that keeps 290 MiB and a smaller one that yields.
func runYieldingWorker(args []string) int {
	return runBesideKeeper(args[0], 290<<20, "large", Command{Args: []string{"script-grow", strconv.Itoa(16 << 20), args[1]}, Yields: true}, "small")
}

func runBesideKeeper(cgroup string, keep int, keeper string, other Command, name string) int {
	if err := enterCgroup(cgroup); err != nil {
		fmt.Println(err)
		return 1
	}
	dir, err := os.Open(".")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx, interrupt := context.WithCancel(context.Background()) //nolint:forbidigo // the main function of a process
	defer interrupt()
	ready, kept := make(chan struct{}), make(chan error)
	other.Path, other.Dir, other.Access, other.Logger = self, dir, Access{ReadOnly: bin}, discard
	go func() {
		c := other
		c.Args, c.Yields, c.Stdout = []string{"script-keep", strconv.Itoa(keep)}, false, func([]byte) { close(ready) }
		kept <- Run(ctx, c)
	}()
	<-ready
	fmt.Println(name+":", Run(context.Background(), other)) //nolint:forbidigo // the main function of a process
	interrupt()
	fmt.Println(keeper+":", <-kept)
	return 0
}
