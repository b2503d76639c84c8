// Command scale measures how the cost of node agents grows with their number: `make bench-scale`. It runs many agents in one process, with
// the watches and writes of the real ones and a data path that moves nothing, against a real kube-apiserver and etcd, and
// prints one table. docs/scale.md explains the columns.
//
// Each agent has 4 volumes, and moves all of them at the same time. A run has three phases: the volumes are created and claimed; they move for
// a while, in which everything is counted; they end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// options are what the agents and their volumes are like in all columns of the table.
type options struct {
	moving   time.Duration // how long is counted
	interval time.Duration // of the writes of progress
	labelled bool          // each volume has its node's label when it is created
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	numbers := flag.String("agents", "10,100,1000", "measure with each of these numbers of agents, separated by commas")
	var o options
	flag.DurationVar(&o.moving, "moving", time.Minute, "count for this long while all volumes move")
	flag.DurationVar(&o.interval, "progress-interval", progress.DefaultInterval, "the agents' flag of the same name")
	flag.BoolVar(&o.labelled, "labelled", false, "create each volume with its node's label, as an admission policy can do it, so that it goes to its own agent only")
	flag.Parse()
	if o.interval <= 0 || o.moving < o.interval {
		return fmt.Errorf("--moving=%s must be at least as long as --progress-interval=%s, and that positive", o.moving, o.interval)
	}
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	var results []result
	for text := range strings.SplitSeq(*numbers, ",") {
		agents, err := strconv.Atoi(text)
		if err != nil || agents < 1 {
			return fmt.Errorf("--agents=%s: %q is no number of agents", *numbers, text)
		}
		say(fmt.Sprintf("%d agents with %d volumes each", agents, volumes))
		r, err := measure(ctx, agents, o)
		if err != nil {
			return fmt.Errorf("%d agents: %w", agents, err)
		}
		results = append(results, r)
	}
	return printTable(results, o)
}

// measure runs agents on a control plane of their own.
func measure(ctx context.Context, agents int, o options) (r result, err error) {
	c, err := startCluster(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	f, err := c.startFleet(ctx, agents, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	say("all agents watch")

	r.agents = agents
	if r.claiming, err = f.count(ctx, func() error { return f.begin(ctx) }); err != nil {
		return r, err
	}
	say("all volumes move")
	if err := wait(ctx, 2*progress.DefaultInterval); err != nil { // until the moves between watches are over
		return r, err
	}
	if r.moving, err = f.count(ctx, func() error { return wait(ctx, o.moving) }); err != nil {
		return r, err
	}
	say("the volumes end")
	r.ending, err = f.count(ctx, func() error { return f.end(ctx) })
	return r, err
}

// say shows how far a run is, which can take many minutes.
func say(text string) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", time.Now().UTC().Format(time.TimeOnly), text)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
