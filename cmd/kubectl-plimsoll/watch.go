package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/live"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/screen"
)

// Exit codes, from docs/kubectl.md.
const (
	exitMisused     = 2 // of a program.UsageError
	exitFailed      = 3
	exitTimeout     = 4
	exitInterrupted = 130 // the convention of shells for SIGINT
)

// watch is the command of that name.
type watch struct {
	connection *connection
	selection  live.Selection
	plain      bool
	wait       bool
	timeout    time.Duration
}

func watchCommand(c *connection) *cobra.Command {
	w := watch{connection: c}
	cmd := &cobra.Command{
		Use:   "watch [backup|restore NAME]",
		Short: "Watch the volumes of a backup, of a restore or of all until they are done",
		Long: `Shows a live screen of the volumes that are backed up and restored: progress, rate and time left of each. Stalled volumes
come first.

With a NAME the command exits when the backup or restore has ended, with code 3 if it did not complete. Without a terminal it
writes a line for each change.

Keys: arrows, j, k, page up and page down scroll; q quits.`,
		Example: `  kubectl plimsoll watch
  kubectl plimsoll watch backup nightly
  kubectl plimsoll watch restore nightly-1 --wait --timeout 2h`,
		ValidArgsFunction: completeReferences(c, describe.KindBackup, describe.KindRestore),
		Args: func(_ *cobra.Command, args []string) error {
			var err error
			w.selection, err = selectionOf(args)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return w.run(cmd) },
	}
	f := cmd.Flags()
	f.BoolVar(&w.plain, "plain", false, "write a line for each change, as without a terminal")
	f.BoolVar(&w.wait, "wait", false, "write only one line, at the end")
	f.DurationVar(&w.timeout, "timeout", 0, "give up after this time with exit code 4; 0: never")
	return cmd
}

// selectionOf reads arguments that name a backup or a restore, or none.
func selectionOf(args []string) (live.Selection, error) {
	if len(args) == 0 {
		return live.Selection{}, nil
	}
	of, err := parseReference(args)
	if err == nil && of.kind != describe.KindBackup && of.kind != describe.KindRestore {
		err = program.Misused(fmt.Errorf("%s is neither backup nor restore; without a name, the command shows all volumes", of.kind))
	}
	return live.Selection{Kind: of.kind, Name: of.name}, err
}

func (w *watch) run(cmd *cobra.Command) error {
	switch {
	case w.wait && w.selection.Name == "":
		return program.Misused(errors.New("--wait needs backup NAME or restore NAME"))
	case w.timeout < 0:
		return program.Misused(fmt.Errorf("--timeout=%s is negative", w.timeout))
	}
	ctx, cancel := w.limited(cmd.Context())
	defer cancel()
	options, err := w.connection.follow(w.selection)
	if err != nil {
		return err
	}
	views := func(ctx context.Context) iter.Seq2[describe.View, error] { return live.Follow(ctx, options) }
	last, err := w.show(ctx, cmd, views)
	return w.result(cmd.OutOrStdout(), &last, err)
}

// errTimeout is the cause of an end by --timeout.
var errTimeout = errors.New("--timeout has passed")

func (w *watch) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, w.timeout, errTimeout)
}

// follow has what live needs of a connection.
func (c *connection) follow(s live.Selection) (live.Options, error) {
	config, err := c.config()
	if err != nil {
		return live.Options{}, err
	}
	scheme, err := newScheme()
	if err != nil {
		return live.Options{}, err
	}
	return live.Options{Config: config, Scheme: scheme, Namespace: c.namespace, Selection: s}, nil
}

// show shows views until the operation has ended, and returns the last one.
func (w *watch) show(ctx context.Context, cmd *cobra.Command, views screen.Views) (describe.View, error) {
	console := screen.Console{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Environ: os.Environ(), Plain: w.plain}
	if w.wait {
		console.Out = io.Discard
	}
	return console.Watch(ctx, views, untilEnded())
}

// lateness is how long after the end of an operation the ends of its volumes may arrive: they come by different watches.
const lateness = 5 * time.Second

// untilEnded returns a function that reports whether a View is the last one: the operation has ended, and its volumes have
// ended too or lateness has passed.
func untilEnded() func(*describe.View) bool {
	var since time.Time
	return func(v *describe.View) bool {
		if v.Operation == nil || v.Operation.Verdict() == describe.VerdictRunning {
			return false
		}
		if since.IsZero() {
			since = v.At
		}
		totals := describe.Sum(v.Volumes)
		return totals.Ended() == totals.Volumes || v.At.Sub(since) >= lateness
	}
}

// result returns nil if the operation has completed, otherwise an error with the exit code.
func (w *watch) result(out io.Writer, last *describe.View, err error) error {
	switch {
	case errors.Is(err, screen.ErrQuit):
		return nil
	case errors.Is(err, screen.ErrInterrupted), errors.Is(err, context.Canceled):
		return &program.ExitError{Code: exitInterrupted, Err: errors.New("interrupted; backups and restores continue")}
	case errors.Is(err, errTimeout):
		return &program.ExitError{Code: exitTimeout, Err: w.overdue(last)}
	case err != nil:
		return err
	}
	if w.wait {
		fmt.Fprintln(out, screen.Summary(last))
	}
	o := last.Operation
	switch verdict := o.Verdict(); verdict {
	case describe.VerdictCompleted:
		return nil
	case describe.VerdictDeleting:
		return fmt.Errorf("%s %s is being deleted, and its result is no longer known; 'kubectl plimsoll explain %s %s' shows the progress of the deletion",
			o.Kind, o.Name, strings.ToLower(o.Kind), o.Name)
	default:
		return &program.ExitError{Code: exitFailed, Err: fmt.Errorf("%s %s has ended as %s", o.Kind, o.Name, verdict)}
	}
}

func (w *watch) overdue(last *describe.View) error {
	if last.Operation == nil {
		return fmt.Errorf("--timeout %s has passed", w.timeout)
	}
	return fmt.Errorf("--timeout %s has passed: %s", w.timeout, screen.Summary(last))
}
