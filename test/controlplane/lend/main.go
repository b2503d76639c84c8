// Command lend runs a command whose processes can borrow one control plane, which ends with the command: see controlplane.Lender.
// Its exit code is the command's.
//
//	lend bin/gotestsum -- ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

func main() {
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lend:", err)
	}
	os.Exit(code)
}

// run returns when the command and the control plane have ended. When ctx ends it interrupts the command, as a terminal does.
func run(ctx context.Context, args []string) (code int, err error) {
	if len(args) == 0 {
		return 2, errors.New("usage: lend COMMAND [ARGUMENT...]")
	}
	lender, err := controlplane.Lend() //nolint:contextcheck // it has none: Stop ends it
	if err != nil {
		return 1, err
	}
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Env = append(os.Environ(), lender.Environment())
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	err = command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), lender.Stop()
	}
	if err = errors.Join(err, lender.Stop()); err != nil {
		return 1, err
	}
	return 0, nil
}
