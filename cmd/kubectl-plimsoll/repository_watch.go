package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/screen"
)

// taskWait is how a command waits for a RepositoryTask, and prints its result.
type taskWait struct {
	output
	timeout time.Duration
}

func (w *taskWait) addFlags(cmd *cobra.Command) {
	w.addFlag(cmd)
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0, "stop waiting after this time with exit code 4; the task continues; 0: never")
}

func (w *taskWait) validate() error {
	if w.timeout < 0 {
		return program.Misused(fmt.Errorf("--timeout=%s is negative", w.timeout))
	}
	return w.output.validate()
}

func repositoryWatchCommand(c *connection) *cobra.Command {
	var w taskWait
	cmd := &cobra.Command{
		Use:     "watch NAME",
		Short:   "Watch a RepositoryTask until it has ended, and show its result",
		Example: "  kubectl plimsoll repository watch verify-nightly-x7k2p",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return program.Misused(errors.New("name one RepositoryTask"))
			}
			return w.validate()
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			task := &v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: args[0]}}
			if err := api.Get(cmd.Context(), client.ObjectKeyFromObject(task), task); err != nil {
				return explainTasksError("get RepositoryTask "+args[0], c.namespace, err)
			}
			return w.follow(cmd, api, task)
		},
	}
	w.addFlags(cmd)
	return cmd
}

// follow waits until the task has ended, writes its progress, and prints its result. The error has the exit code.
func (w *taskWait) follow(cmd *cobra.Command, api client.Reader, task *v1alpha1.RepositoryTask) error {
	ctx, stop := context.WithCancel(cmd.Context())
	if w.timeout > 0 {
		ctx, stop = context.WithTimeoutCause(cmd.Context(), w.timeout, errTimeout)
	}
	defer stop()
	lines := screen.NewLines(cmd.ErrOrStderr())
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	for {
		view := describe.View{At: time.Now()}
		err := api.Get(ctx, client.ObjectKeyFromObject(task), task)
		switch {
		case ctx.Err() != nil:
			return w.interrupted(ctx, task)
		case apierrors.IsNotFound(err):
			return &program.ExitError{Code: exitFailed, Err: fmt.Errorf("RepositoryTask %s: %w", task.Name, errGone)} // a Job must not create it again
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return fmt.Errorf("RepositoryTask %s continues, but you may not read its progress: %w", task.Name, err)
		case err != nil: // the task continues; wait until the API server answers again
			view.Notes = []string{"cannot read RepositoryTask " + task.Name + ": " + err.Error()}
		}
		if task.Status.Phase == "" && task.Status.Reason == "" && view.At.Sub(task.CreationTimestamp.Time) > notTakenUp {
			view.Notes = append(view.Notes, "not picked up yet: as many tasks run as may, or deployment plimsoll-repository-tasks does not (docs/repositories.md)")
		}
		view.Volumes = []describe.Volume{describe.OfRepositoryTask(task)}
		if err := lines.Print(&view); err != nil {
			return err
		}
		if task.Status.Phase.Terminal() {
			return w.ended(cmd.OutOrStdout(), task)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return w.interrupted(ctx, task)
		}
	}
}

// notTakenUp is how long a task waits before the command says why it may.
const notTakenUp = 15 * time.Second

func (w *taskWait) interrupted(ctx context.Context, task *v1alpha1.RepositoryTask) error {
	code, why := exitInterrupted, "interrupted"
	if errors.Is(context.Cause(ctx), errTimeout) {
		code, why = exitTimeout, fmt.Sprintf("--timeout %s has passed", w.timeout)
	}
	return &program.ExitError{Code: code, Err: fmt.Errorf("%s; RepositoryTask %s continues: 'kubectl plimsoll -n %s repository watch %s' follows it, "+
		"'kubectl -n %s delete repositorytask %s' ends it", why, task.Name, task.Namespace, task.Name, task.Namespace, task.Name)}
}

// ended prints the result, and returns an error unless all is proven.
func (w *taskWait) ended(out io.Writer, task *v1alpha1.RepositoryTask) error {
	if err := w.report(out, task); err != nil {
		return err
	}
	if task.Status.Phase == v1alpha1.PhaseCompleted {
		return nil
	}
	message := describe.Clean(task.Status.Message)
	if remedy := task.Status.Reason.Remedy(); remedy != "" {
		message += ". " + remedy
	}
	what := "not proven"
	switch {
	case task.Spec.Type == v1alpha1.TaskUsage:
		what = "not measured"
	case task.Spec.Type == v1alpha1.TaskForget:
		what = "not forgotten"
	case task.Spec.Type == v1alpha1.TaskPrune:
		what = "not pruned"
	case task.Spec.Type == v1alpha1.TaskMigrate:
		what = "not migrated"
	case (task.Spec.Type == v1alpha1.TaskCheck || task.Spec.Type == v1alpha1.TaskRepair) && task.Status.Reason == v1alpha1.ReasonDamaged:
		what = "not whole"
	case task.Spec.Type == v1alpha1.TaskRepair:
		what = "not repaired"
	case task.Spec.Type == v1alpha1.TaskCheck:
		what = "not checked"
	}
	return &program.ExitError{Code: exitFailed, Err: fmt.Errorf("%s (%s): %s", what, describe.Clean(string(task.Status.Reason)), message)}
}

// report prints the result of each volume.
func (w *taskWait) report(out io.Writer, task *v1alpha1.RepositoryTask) error {
	task.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: describe.KindRepositoryTask}
	task.ManagedFields = nil
	return w.print(out, task, func(out io.Writer) error {
		if task.Spec.Type == v1alpha1.TaskCheck {
			return printCheck(out, task)
		}
		if task.Spec.Type == v1alpha1.TaskUsage {
			return printUsage(out, task, time.Now())
		}
		if task.Spec.Type == v1alpha1.TaskForget {
			return printRetention(out, task)
		}
		if task.Spec.Type == v1alpha1.TaskPrune {
			return printPrune(out, task)
		}
		if task.Spec.Type == v1alpha1.TaskRepair {
			return printRepair(out, task)
		}
		if task.Spec.Type == v1alpha1.TaskMigrate {
			return printMigration(out, task)
		}
		if len(task.Status.Volumes) == 0 {
			return nil // the error says why
		}
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "VOLUME\tRESULT\tFILES\tSIZE\tMISMATCHED\tNOT COMPARED")
		for i := range task.Status.Volumes {
			v := &task.Status.Volumes[i]
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%d\t%d\n", describe.Clean(v.Namespace+"/"+v.Pod+":"+v.Volume), resultText(v), v.Files, describe.Bytes(v.Bytes), v.Mismatched, v.NotCompared)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for i := range task.Status.Volumes {
			printDamage(out, &task.Status.Volumes[i])
		}
		if c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionVerified); c != nil && c.Status != metav1.ConditionFalse {
			fmt.Fprintln(out, describe.Clean(c.Message))
		}
		return nil
	})
}

// resultText is what became of a volume, as in "Verified" or "Sampled 7/20".
func resultText(v *v1alpha1.RepositoryTaskVolume) string {
	text := describe.Clean(string(v.Result))
	if v.SampleParts > 0 {
		text += fmt.Sprintf(" %d/%d", v.SamplePart, v.SampleParts)
	}
	return text
}

// printDamage names the damaged files of a volume, and what its snapshot lacks.
func printDamage(out io.Writer, v *v1alpha1.RepositoryTaskVolume) {
	name := describe.Clean(v.Namespace + "/" + v.Pod + ":" + v.Volume)
	if v.Message != "" {
		fmt.Fprintf(out, "%s: %s\n", name, describe.Clean(v.Message))
	}
	for _, path := range v.Paths {
		fmt.Fprintf(out, "  %s\n", describe.Clean(path))
	}
	if v.Absent > 0 {
		fmt.Fprintf(out, "%s: the snapshot lacks %d that could not be read when it was made\n", name, v.Absent)
	}
}
