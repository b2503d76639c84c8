package worker

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// shimArg is the first argument of a program that is to become a worker. It changes with what the shim is handed: an agent and a worker-exec of
// different versions must fail, and not run a worker in another directory than its volume.
const shimArg = "worker-exec-2"

// self is the running program, also when its file was replaced.
const self = "/proc/self/exe"

// shim is the program that Run starts to become the worker.
var shim = self //nolint:gochecknoglobals // main sets it before the first Run

// UseShim has Run start the program at an absolute path, whose main calls Main, and not the running program: a small one starts sooner. It must not
// be called beside Run.
func UseShim(path string) { shim = path }

// yieldedNice is how much higher the nice value of a worker that yields is: it gets a tenth of what another one gets. With the highest value it would
// stand still on a busy node, and somebody may wait for it in the end.
const yieldedNice = 10

// The shim's file descriptors besides the three that the worker keeps.
const (
	requestFD = 3 + iota // a memfd with a request
	failureFD            // a pipe for a failure; execve closes it
	dirFD                // the working directory
	guardFD              // a socket to the guard, if the worker has one
)

// request is what the shim is to become. It travels as gob because JSON would change bytes that are not UTF-8, which
// passwords and paths may have.
type request struct {
	Path    string
	Args    []string
	Env     []string
	Dir     string // the name of the working directory, for errors
	Access  Access
	Guarded bool // there is a guardFD
	Yields  bool
}

// failure is why the shim could not become the worker.
type failure struct {
	Message string
	Errno   syscall.Errno // 0 if the reason was no system call
}

func (f *failure) Error() string { return f.Message }

// Unwrap makes errors.Is work with fs.ErrNotExist and the like.
func (f *failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// Main has to be the first call of main and of TestMain in every program that uses Run. In a process that Run has
// started it turns the process into the worker and does not return; in any other it does nothing.
func Main() {
	if !isShim(os.Args) {
		return
	}
	report(becomeWorker())
	os.Exit(126) //nolint:forbidigo // this process is not the agent and main must not go on
}

func isShim(args []string) bool { return len(args) > 1 && args[1] == shimArg }

// becomeWorker returns only if it failed.
func becomeWorker() error {
	unix.CloseOnExec(requestFD)
	unix.CloseOnExec(failureFD)
	unix.CloseOnExec(dirFD)
	unix.CloseOnExec(guardFD)
	// Whatever the agent itself was given by its parent is not the worker's either: an open file is beyond Landlock. Kernels
	// before 5.11 cannot do it.
	_ = unix.CloseRange(guardFD+1, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)

	var r request
	if err := gob.NewDecoder(os.NewFile(requestFD, "request")).Decode(&r); err != nil {
		return fmt.Errorf("read the request of worker.Run: %w", err)
	}
	// The kernel then takes the worker first and the agent last. Raising it needs no privilege; where /proc is read-only
	// the worker runs without.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	heedInterrupt()
	dieWithAgent()
	if r.Yields {
		lowerPriority()
	}
	// Not exec.Cmd.Dir: between clone and execve the agent can start no other process (syscall.ForkLock), nor collect garbage, and a volume that
	// hangs does not let a process in.
	if err := unix.Fchdir(dirFD); err != nil {
		return fmt.Errorf("in directory %s: %w", r.Dir, err)
	}
	if err := confine(r.Path, r.Access); err != nil {
		return fmt.Errorf("confine %s: %w", filepath.Base(r.Path), err)
	}
	if r.Guarded {
		guardSelf()
	}
	err := syscall.Exec(r.Path, append([]string{r.Path}, r.Args...), r.Env)
	return fmt.Errorf("execute %s: %w", r.Path, err)
}

// dieWithAgent asks for the worker's Pdeathsig once more, on the thread that will call execve. It is the thread's, not the
// process's: fork has asked for it on the first thread, which execve ends if another one calls it, and a busy machine's
// scheduler moves main to another one. Until then the first thread's ends them all, so there is no gap.
func dieWithAgent() {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) // fails only for what is no signal
}

// lowerPriority lowers the priority of this thread, which becomes the worker's first, and by that of all that it makes. It is always allowed.
func lowerPriority() {
	if inverted, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil { // the system call returns 20 less the nice value
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 20-inverted+yieldedNice)
	}
}

// heedInterrupt undoes that SIGINT is ignored, which an agent started in the background of a shell script inherits and
// would hand on. A signal with a handler falls back to its default in execve, one that is ignored does not.
func heedInterrupt() {
	if signal.Ignored(syscall.SIGINT) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	}
}

// report tells Run why there is no worker.
func report(err error) {
	f := failure{Message: err.Error()}
	errors.As(err, &f.Errno)
	if gob.NewEncoder(os.NewFile(failureFD, "failure")).Encode(f) != nil {
		fmt.Fprintln(os.Stderr, err) // somebody called the shim by hand
	}
}

// sendRequest returns a file to be read by the shim. A memfd takes any size without a writer that waits for its reader.
func sendRequest(r request) (*os.File, error) {
	fd, err := unix.MemfdCreate("worker-request", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "worker-request")
	if err := gob.NewEncoder(f).Encode(r); err != nil {
		_ = f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// receiveFailure returns what the shim reported, nil if it became the worker. All writers of r must have ended or
// executed another program.
func receiveFailure(r io.Reader) error {
	var f failure
	switch err := gob.NewDecoder(r).Decode(&f); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("read the shim's report: %w", err)
	}
	return &f
}
