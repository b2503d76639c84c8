// Package kopiaworker backs up and restores one volume, its working directory, with the kopia library. It is the other end of
// package kopia, in a process of its own, and the only package that links the library.
package kopiaworker

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// Main has to be called by main and by TestMain in every program that uses an Uploader, right after worker.Main. In a
// worker it does the work and does not return; in any other process it does nothing.
func Main() {
	if len(os.Args) < 1 || !slices.Equal(os.Args[1:], protocol.Args) {
		return
	}
	// Whatever a library prints must not come between our lines.
	stdout := os.Stdout
	os.Stdout = os.Stderr
	os.Exit(serve(os.Stdin, stdout)) //nolint:forbidigo // the main of the worker
}

// serve does what the request on stdin says, and returns the exit code.
func serve(stdin io.Reader, stdout io.Writer) int {
	j := &job{out: json.NewEncoder(stdout), in: gob.NewDecoder(stdin)}
	if err := j.in.Decode(&j.Request); err != nil {
		fmt.Fprintln(os.Stderr, "This is a part of the node agent and cannot be run by hand:", err)
		return 2
	}
	if j.Form != protocol.Form() {
		fmt.Fprintln(os.Stderr, "kopia-worker and the node agent are of different versions: take both from one image.")
		return 2
	}
	for name, value := range j.Env {
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintf(os.Stderr, "set environment variable %s: %v\n", name, err)
			return 2
		}
	}
	ctx, abort := context.WithCancel(j.withLog(context.Background())) //nolint:forbidigo // the main of the worker
	defer abort()
	stop, ask := context.WithCancel(ctx)
	defer ask()
	heedSignals(ask, abort)

	r, err := j.do(ctx, stop, abort)
	if err != nil {
		j.say(protocol.Message{Failure: failureOf(err, os.TempDir(), j.CacheDir)})
		return 1
	}
	j.say(protocol.Message{Result: &r})
	return 0
}

// heedSignals calls first at the first signal that asks to end, and second at the second one.
func heedSignals(first, second func()) {
	signal.Reset(os.Interrupt, syscall.SIGTERM) // the agent's program may have handlers of its own
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		first()
		<-signals
		second()
	}()
}

// job is the work of one worker.
type job struct {
	protocol.Request
	meter    meter
	complain lastLine     // of the library's log
	lastSaid lastLine     // the last of its other lines
	in       *gob.Decoder // of what follows the request

	mu  sync.Mutex
	out *json.Encoder
}

// do does the work. When stop ends it comes to an end in an orderly way, when ctx ends at once; abort ends ctx.
func (j *job) do(ctx, stop context.Context, abort func()) (protocol.Result, error) {
	j.meter.setLimits(j.UploadLimit, j.DownloadLimit)
	switch j.Operation {
	case protocol.OpBackup:
		return j.backup(ctx, stop, abort)
	case protocol.OpRestore:
		return j.restore(stop)
	case protocol.OpVerify:
		return j.verify(stop)
	case protocol.OpCheck:
		return j.check(stop)
	case protocol.OpList:
		return j.list(stop)
	case protocol.OpRead:
		return j.read(stop)
	case protocol.OpDiff:
		return j.diff(stop)
	case protocol.OpUsage:
		return j.usage(stop)
	case protocol.OpImport:
		return j.importSnapshot(stop)
	case protocol.OpImported:
		return j.imported(stop)
	case protocol.OpSnapshots:
		return j.describeSnapshots(stop)
	case protocol.OpMeasure:
		return j.measureOther(stop)
	case protocol.OpMaintain:
		return j.maintain(stop)
	case protocol.OpRepairIndex:
		return j.repairIndex(stop)
	case protocol.OpForget:
		return j.forget(stop)
	case protocol.OpInitialize:
		return protocol.Result{}, j.initialize(stop)
	case protocol.OpOpen:
		return protocol.Result{}, j.openOnly(stop)
	case protocol.OpClear:
		return protocol.Result{}, j.clearOther(stop)
	default:
		return protocol.Result{}, errors.New("unknown operation")
	}
}

// say writes one line to the agent. If the agent is gone the kernel ends this process.
func (j *job) say(m protocol.Message) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.out.Encode(m)
}

func (j *job) note(level slog.Level, text string) {
	j.say(protocol.Message{Note: &protocol.Note{Level: level, Text: protocol.Printable(text)}})
}

// reportOnTimer says how far the work is until the function that it returns is called. It is driven by a timer, so that
// the agent hears from a library that is silent.
func (j *job) reportOnTimer(read func() progress.Reading) (stop func()) {
	done := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		ticker := time.NewTicker(j.ProgressInterval)
		defer ticker.Stop()
		report := func() {
			reading := read()
			j.say(protocol.Message{Reading: &reading})
		}
		defer report()
		for {
			report()
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		reporter.Wait()
	}
}
