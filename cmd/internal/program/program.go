// Package program has the common parts of our programs: commands, exit codes, logging, the connection to the API server, HTTP.
package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// UsageError is an error in arguments or flags: exit code 2.
type UsageError struct{ error }

// Misused returns err as a UsageError.
func Misused(err error) error { return UsageError{err} }

// Command returns the command of a program with subcommands.
func Command(name, short string, subcommands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           name,
		Short:         short,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UsageError{fmt.Errorf("unknown command %q; %s --help lists the commands", args[0], name)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(subcommands...)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{err} })
	return root
}

// ExitError is an error with an exit code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// Run executes a command, prints its error, and returns the exit code: 0, 1 for an error, 2 for a UsageError, the Code of an
// ExitError.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(root.ErrOrStderr(), "%s: %v\n", root.DisplayName(), err)
	if usage := (UsageError{}); errors.As(err, &usage) {
		return 2
	}
	if exit := (&ExitError{}); errors.As(err, &exit) {
		return exit.Code
	}
	return 1
}

// NoArguments is cobra.NoArgs as a UsageError.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return UsageError{fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])}
	}
	return nil
}

// LogLevel is a slog.Level that also goes by the names that Velero's flag takes: trace, warning, fatal and panic.
type LogLevel slog.Level

// UnmarshalText reads a level's name in any case.
func (l *LogLevel) UnmarshalText(text []byte) error {
	switch strings.ToLower(string(text)) {
	case "trace", "debug":
		*l = LogLevel(slog.LevelDebug)
	case "info":
		*l = LogLevel(slog.LevelInfo)
	case "warn", "warning":
		*l = LogLevel(slog.LevelWarn)
	case "error", "fatal", "panic":
		*l = LogLevel(slog.LevelError)
	default:
		return fmt.Errorf("%q is not debug, info, warning or error", text)
	}
	return nil
}

// MarshalText writes the level's name, for the help.
func (l LogLevel) MarshalText() ([]byte, error) {
	return []byte(strings.ToLower(slog.Level(l).String())), nil
}

// Log has the options of the log.
type Log struct {
	Level  LogLevel
	Format string
}

// AddFlags adds --log-level and --log-format.
func (l *Log) AddFlags(cmd *cobra.Command) {
	l.Level = LogLevel(slog.LevelInfo)
	cmd.Flags().TextVar(&l.Level, "log-level", l.Level, "log messages of this level and above: debug, info, warning or error")
	cmd.Flags().StringVar(&l.Format, "log-format", "text", "format of the log: text or json")
}

// Validate checks the format; the flag's type checks the level.
func (l *Log) Validate() error {
	if l.Format != "text" && l.Format != "json" {
		return fmt.Errorf("--log-format=%s is neither text nor json", l.Format)
	}
	return nil
}

// NewLogger returns a logger that writes to stderr, and sets it as the logger of controller-runtime and klog.
func (l *Log) NewLogger() *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.Level(l.Level)}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, options)
	if l.Format == "json" {
		handler = slog.NewJSONHandler(os.Stderr, options)
	}
	bridge := logr.FromSlogHandler(handler)
	ctrl.SetLogger(bridge)
	klog.SetLogger(bridge)
	return slog.New(handler)
}

// RESTConfig returns the connection to the API server from the kubeconfig file or, if that is empty, from KUBECONFIG or the
// pod's service account.
func RESTConfig(kubeconfig, userAgent string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig: %w", err)
	}
	cfg.UserAgent = userAgent
	return cfg, nil
}
