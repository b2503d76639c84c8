// Command demo backs up and restores volumes of real files with the node agent, against a real API server, and compares.
//
// The node agent, restic, etcd and kube-apiserver are real, each a process of its own. The demo plays the Velero server, which
// creates PodVolumeBackups and PodVolumeRestores, and kubelet, which makes the directories of volumes and reports the status of
// pods. `make demo` builds the programs and runs it; DEMO_SIZE scales the data.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/pkg/screen"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

func main() { os.Exit(start()) }

// start runs the demo with the options of the environment and returns the exit code.
func start() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills the demo during its clean-up

	ctrl.SetLogger(logr.Discard()) // envtest complains without one

	o, err := optionsFromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 2
	}
	began := time.Now()
	result, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	if built := os.Getenv("DEMO_BUILT"); built != "" { // by make
		fmt.Printf("building took %s, the demo %s\n", built, time.Since(began).Round(time.Second))
	}
	fmt.Println(result)
	return 0
}

func optionsFromEnvironment() (options, error) {
	o := options{
		dir:     os.TempDir(),
		console: screen.Console{In: os.Stdin, Out: os.Stdout, Environ: os.Environ()},
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
