// Command demo backs up and restores volumes of real files with the node agent, against a real API server, and compares.
//
// It plays the parts that are not there: the Velero server that makes PodVolumeBackups and PodVolumeRestores, and kubelet
// that makes the directories of volumes and reports what pods do. The node agent, restic, etcd and kube-apiserver are the
// real ones, each as a process of its own. `make demo` builds them and runs it; DEMO_SIZE scales the data.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

func main() { os.Exit(start()) }

// start runs the demo as the environment says and returns the exit code.
func start() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the clean-up

	ctrl.SetLogger(logr.Discard()) // of envtest; without one it complains

	o, err := optionsFromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 2
	}
	result, err := run(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	fmt.Println(result)
	return 0
}

func optionsFromEnvironment() (options, error) {
	o := options{
		dir:      os.TempDir(),
		terminal: term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("TERM") != "dumb",
		color:    os.Getenv("NO_COLOR") == "",
	}
	var err error
	if o.bytes, err = parseSize(cmp.Or(os.Getenv("DEMO_SIZE"), "1GiB")); err != nil {
		return o, fmt.Errorf("DEMO_SIZE: %w", err)
	}
	if o.agent, err = parts.FindNodeAgent(); err != nil {
		return o, err
	}
	o.restic, err = parts.FindRestic(parts.DefaultRestic)
	return o, err
}
