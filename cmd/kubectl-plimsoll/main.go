// Command kubectl-plimsoll shows how far backups and restores are, and starts those of single volumes: `kubectl plimsoll`.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// Set by the Makefile.
var (
	version = "dev"
	commit  = "unknown"
)

func main() {
	ctrl.SetLogger(logr.Discard()) // errors are returned; what libraries say would be written into the screen
	klog.SetLogger(logr.Discard())
	os.Exit(run(ctrl.SetupSignalHandler(), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}

// run executes a command line and returns the exit code: 0, or what docs/kubectl.md says of the error.
func run(ctx context.Context, in io.Reader, out, errOut io.Writer, args []string) int {
	root := newRoot()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(cleaned{errOut})
	return program.Run(ctx, root, args)
}

// cleaned lets through what steers no terminal: errors repeat what the cluster and its storage say.
type cleaned struct{ io.Writer }

func (c cleaned) Write(b []byte) (int, error) {
	lines := strings.Split(string(b), "\n")
	for i := range lines {
		lines[i] = describe.Clean(lines[i])
	}
	if _, err := io.WriteString(c.Writer, strings.Join(lines, "\n")); err != nil {
		return 0, err
	}
	return len(b), nil
}

func newRoot() *cobra.Command {
	var c connection
	root := program.Command("kubectl-plimsoll", "Shows how far backups and restores are",
		dashboardCommand(&c),
		describeCommand(&c),
		doctorCommand(&c),
		explainCommand(&c),
		preflightCommand(&c),
		repositoryCommand(&c),
		topCommand(&c),
		versionCommand(),
		volumeCommand(&c),
		watchCommand(&c),
	)
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl plimsoll"}
	c.addFlags(root.PersistentFlags())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this plugin",
		Example: "  kubectl plimsoll version",
		Args:    program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "kubectl-plimsoll %s, commit %s\n", version, commit)
			return err
		},
	}
}
