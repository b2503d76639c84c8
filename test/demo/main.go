// Command demo backs up and restores volumes of real files with the node agent, against a real API server, and compares.
//
//	demo                     on this machine
//	demo cluster FLAGS       in a cluster
//	demo clean -kubeconfig   removes what an earlier one has left in a cluster
//
// On this machine, the node agent, restic, etcd and kube-apiserver are real, each a process of its own. The demo plays the Velero
// server, which creates PodVolumeBackups and PodVolumeRestores, and kubelet, which makes the directories of volumes and reports the
// status of pods. In a cluster it plays the Velero server only. `make demo` builds the programs and runs it; DEMO_SIZE scales the data.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
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

// The data of a demo without DEMO_SIZE. Nodes of a cluster have other things to do.
const localSize, clusterSize = "1GiB", "100MiB"

func main() { os.Exit(start(context.Background(), os.Args[1:])) }

// start runs what the arguments ask for and returns the exit code.
func start(ctx context.Context, args []string) int {
	ctrl.SetLogger(logr.Discard()) // envtest complains without one
	began := time.Now()
	var result fmt.Stringer
	var err error
	switch {
	case len(args) == 0:
		result, err = onThisMachine(ctx)
	case args[0] == "cluster" || args[0] == "clean":
		result, err = inCluster(ctx, args[0], args[1:])
	default:
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
		defer stop()
		if err := inPod(ctx, args[0], args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			_ = os.WriteFile(terminationLog, []byte(err.Error()), 0o600) // the pod's log has it, too
			return 1
		}
		return 0
	}
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

func onThisMachine(ctx context.Context) (fmt.Stringer, error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills the demo during its clean-up
	o := options{dir: os.TempDir(), console: console()}
	var err error
	if o.bytes, err = sizeFromEnvironment(localSize); err != nil {
		return nil, err
	}
	if o.agent, err = parts.FindNodeAgent(); err != nil {
		return nil, err
	}
	if o.restic, err = parts.FindDemoRestic(); err != nil {
		return nil, err
	}
	return run(ctx, o)
}

// cleaned is the result of a demo that was only removed.
type cleaned struct{}

func (cleaned) String() string { return "demo: nothing is left in the cluster" }

func inCluster(ctx context.Context, command string, args []string) (fmt.Stringer, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM)
	o := clusterOptions{console: console(), signals: signals}
	flags := flag.NewFlagSet("demo "+command, flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the address of the cluster and the rights of an administrator")
	flags.StringVar(&o.image, "image", "localhost/plimsoll/demo:dev", "image of all pods, as make bin/image/demo.tar makes it")
	flags.StringVar(&o.kubelet, "kubelet", "/var/lib/kubelet", "directory of kubelet on the nodes")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if o.kubeconfig == "" || flags.NArg() > 0 {
		return nil, errors.New("name the cluster: make demo KUBECONFIG=FILE")
	}
	var err error
	if o.bytes, err = sizeFromEnvironment(clusterSize); err != nil {
		return nil, err
	}
	if command == "clean" {
		return cleaned{}, clean(ctx, o)
	}
	return runInCluster(ctx, o)
}

func console() screen.Console {
	return screen.Console{In: os.Stdin, Out: os.Stdout, Environ: os.Environ()}
}

func sizeFromEnvironment(usual string) (int64, error) {
	bytes, err := parseSize(cmp.Or(os.Getenv("DEMO_SIZE"), usual))
	if err != nil {
		return 0, fmt.Errorf("DEMO_SIZE: %w", err)
	}
	return bytes, nil
}
