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
)

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
	moving := flag.Duration("moving", time.Minute, "count for this long while all volumes move")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	var results []result
	for text := range strings.SplitSeq(*numbers, ",") {
		agents, err := strconv.Atoi(text)
		if err != nil || agents < 1 {
			return fmt.Errorf("--agents=%s: %q is no number of agents", *numbers, text)
		}
		fmt.Fprintf(os.Stderr, "%s: %d agents with %d volumes each\n", time.Now().UTC().Format(time.TimeOnly), agents, volumes)
		r, err := measure(ctx, agents, *moving)
		if err != nil {
			return fmt.Errorf("%d agents: %w", agents, err)
		}
		results = append(results, r)
	}
	return printTable(results)
}

// measure runs agents on a control plane of their own.
func measure(ctx context.Context, agents int, moving time.Duration) (r result, err error) {
	c, err := startCluster(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	f, err := c.startFleet(ctx, agents)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()

	r.agents = agents
	before := f.received()
	begin := time.Now()
	if err := f.createVolumes(ctx); err != nil {
		return r, err
	}
	if err := f.untilMoving(ctx); err != nil {
		return r, err
	}
	r.claim, r.claimBytes = time.Since(begin), spread(f.received(), before)

	if err := wait(ctx, 2*progressInterval); err != nil { // until the moves between watches are over
		return r, err
	}
	if err := r.countMoving(ctx, f, moving); err != nil {
		return r, err
	}

	before, begin = f.received(), time.Now()
	if err := f.end(ctx); err != nil {
		return r, err
	}
	r.end, r.endBytes = time.Since(begin), spread(f.received(), before)
	return r, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
