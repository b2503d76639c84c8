package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/screen"
)

func repositoryCommand(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "repository",
		Short: "Prove that backups can be restored; check, measure and repair repositories; forget backups and prune; migrate restic to kopia; list, find, compare and get files",
		Args:  program.NoArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(repositoryVerifyCommand(c), repositoryCheckCommand(c), repositoryRepairCommand(c), repositoryUsageCommand(c), repositoryForgetCommand(c), repositoryPruneCommand(c), repositoryMigrateCommand(c), repositoryWatchCommand(c), repositoryProofsCommand(c),
		repositoryLsCommand(c), repositoryFindCommand(c), repositoryDiffCommand(c), repositoryGetCommand(c))
	return cmd
}

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

// newTask is the RepositoryTask that a command creates and waits for.
type newTask struct {
	taskWait
	kind     v1alpha1.RepositoryTaskType
	backup   string
	from     string
	latest   bool
	all      bool
	dryRun   bool
	maxBytes string
	maxTime  time.Duration
	volume   string
	sample   string
	noWait   bool
	readData bool
	restore  restoreTo
	ttl      time.Duration
	schedule string
	image    string
	runID    string // empty: each call creates a RepositoryTask
}

// addTaskFlags adds the flags of all tasks. done is what becomes of the volumes, as in "verified".
func (o *newTask) addTaskFlags(cmd *cobra.Command, done, only string) {
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.backup, "backup", "", "the Velero Backup whose "+done)
	f.StringVar(&o.from, "from", "", "a PodVolumeBackup in place of a Backup, such as one of 'kubectl plimsoll volume backup'")
	f.StringVar(&o.volume, "volume", "", only+": NAMESPACE/POD:VOLUME, NAMESPACE/POD or NAMESPACE")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the RepositoryTask is created")
	f.DurationVar(&o.ttl, "ttl", 90*24*time.Hour, "keep the RepositoryTask, and its metric, this long after its end")
}

// addScheduleFlags adds the flags of tasks that a CronJob may create. with is what --schedule needs, and instead of what it prints one.
func (o *newTask) addScheduleFlags(cmd *cobra.Command, with, instead string) {
	f := cmd.Flags()
	f.StringVar(&o.schedule, "schedule", "", "with "+with+": print a CronJob with this schedule instead of "+instead)
	f.StringVar(&o.image, "image", "", "the image of the CronJob; default: that of Deployment plimsoll-repository-tasks")
	f.StringVar(&o.runID, "run-id", os.Getenv(runIDVariable), "follow the RepositoryTask that an earlier call with the same id has created, if there is one (default: the variable "+runIDVariable+", in which a CronJob gives each Job its own)")
}

// runE creates the task.
func (o *newTask) runE(c *connection) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		o.restore.given = cmd.Flags().Changed("restore-to")
		task, err := o.task(c.namespace)
		if err != nil {
			return err
		}
		api, err := c.client()
		if err != nil {
			return err
		}
		if err := o.restore.apply(cmd.Context(), api, task); err != nil {
			return err
		}
		if o.schedule != "" {
			flags := []string{"--latest"}
			if o.kind == v1alpha1.TaskUsage {
				flags = append(flags, "--refresh")
			}
			return o.printSchedule(cmd, api, task, "-latest", flags...)
		}
		return o.run(cmd, api, task)
	}
}

func repositoryVerifyCommand(c *connection) *cobra.Command {
	o := newTask{kind: v1alpha1.TaskVerify}
	cmd := &cobra.Command{
		Use:   "verify (--backup NAME | --from PODVOLUMEBACKUP | --latest)",
		Short: "Prove that the volumes of a backup can be restored",
		Long: `Read every file of a backup's pod volumes out of the repository, and compare it with the repository's records: the hash of
each piece, and the size of each file. Nothing is restored, and nothing in the repository is changed.

With --restore-to it restores each volume, one at a time, into a PersistentVolumeClaim of that StorageClass in Velero's namespace, with
the node agent, compares every file, and deletes the claim. That needs deploy/repository-tasks-restore, and takes storage for a while.

The command creates a RepositoryTask, which a deployment in the cluster carries out, and waits until it has ended. The exit
code is 3 if a file is damaged or missing, or if a volume could not be verified. If interrupted, the task continues.

With --sample 5% it reads a twentieth of the content of each volume that kopia has backed up, and makes sure that the repository lists the
rest: each task another twentieth, until all was read. The exit code is 0 if nothing is damaged, which proves only what was read. What
restic has backed up is read in whole.

With --latest it verifies the newest backup of each volume, and with --max-bytes only as many as have room: those that were not
tried for the longest time. With --schedule it creates nothing, but prints a CronJob that does so, with a ServiceAccount and its
rights; then each volume has its turn. 'kubectl plimsoll repository proofs' shows what was proven when.`,
		Example: `  kubectl plimsoll repository verify --backup nightly
  kubectl plimsoll repository verify --backup nightly --volume shop/db-0:data -o json
  kubectl plimsoll repository verify --from db-0-data-x7k2p
  kubectl plimsoll repository verify --backup nightly --restore-to standard
  kubectl plimsoll repository verify --latest --sample 5% --schedule "0 5 * * *" | kubectl apply -f -
  kubectl plimsoll repository verify --latest --max-bytes 200Gi --schedule "0 5 * * *" | kubectl apply -f -`,
		Args: program.NoArguments,
		RunE: o.runE(c),
	}
	o.addTaskFlags(cmd, "volumes are verified", "verify only this volume")
	f := cmd.Flags()
	f.BoolVar(&o.latest, "latest", false, "verify the newest completed backup of each volume in each location, whatever Backup it belongs to")
	f.StringVar(&o.maxBytes, "max-bytes", "", "with --latest: verify only as many volumes as have this size together, such as 200Gi, but at least one; with --sample the parts that are read count")
	f.DurationVar(&o.maxTime, "max-duration", 0, "with --latest: begin with no further volume after this time, such as 4h")
	o.addScheduleFlags(cmd, "--latest", "verifying")
	f.StringVar(&o.sample, "sample", "", "read only about this percentage of the content of each kopia volume, such as 5%: the part that was not read for the longest time")
	o.restore.addFlags(cmd)
	return cmd
}

// task returns the RepositoryTask that the flags ask for. The error is one of usage.
func (o *newTask) task(namespace string) (*v1alpha1.RepositoryTask, error) {
	if err := errors.Join(o.validate(), o.validateLatest(), o.restore.validate(o.schedule)); err != nil {
		return nil, err
	}
	switch {
	case o.backup == "" && o.from == "" && !o.latest && !o.all:
		return nil, program.Misused(errors.New("--backup NAME, --from PODVOLUMEBACKUP or --latest is missing"))
	case o.from != "" && (o.backup != "" || o.volume != ""):
		return nil, program.Misused(errors.New("--from cannot be combined with --backup or --volume"))
	case o.ttl <= 0:
		return nil, program.Misused(fmt.Errorf("--ttl=%s is not positive", o.ttl))
	case o.noWait && o.timeout > 0:
		return nil, program.Misused(errors.New("--no-wait cannot be combined with --timeout"))
	}
	task := &v1alpha1.RepositoryTask{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: describe.KindRepositoryTask},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: strings.ToLower(string(o.kind)) + "-" + o.backup + o.from + "-"},
		Spec: v1alpha1.RepositoryTaskSpec{
			Type: o.kind, Backup: o.backup, PodVolumeBackup: o.from, Latest: o.latest, All: o.all, DryRun: o.dryRun, ReadData: o.readData, TTL: &metav1.Duration{Duration: o.ttl},
		},
	}
	if o.latest {
		task.GenerateName = strings.ToLower(string(o.kind)) + "-latest-"
	}
	if o.all {
		task.GenerateName = strings.ToLower(string(o.kind)) + "-all-"
	}
	if o.maxBytes != "" {
		task.Spec.MaxBytes = new(resource.MustParse(o.maxBytes)) // validated
	}
	if o.maxTime > 0 {
		task.Spec.MaxDuration = &metav1.Duration{Duration: o.maxTime}
	}
	var err error
	if task.Spec.Sample, err = o.samplePercent(); err != nil {
		return nil, err
	}
	task.Spec.Volume, err = parseVolumeSelector(o.volume)
	return task, err
}

// parseVolumeSelector takes NAMESPACE/POD:VOLUME, of which the last parts may be missing. The error is one of usage.
func parseVolumeSelector(text string) (*v1alpha1.PodVolumeSelector, error) {
	if text == "" {
		return nil, nil
	}
	rest, volume, hasVolume := strings.Cut(text, ":")
	namespace, pod, hasPod := strings.Cut(rest, "/")
	if namespace == "" || hasPod && pod == "" || hasVolume && (volume == "" || !hasPod) || strings.Contains(pod+volume, "/") {
		return nil, program.Misused(fmt.Errorf("--volume=%s is not NAMESPACE/POD:VOLUME, NAMESPACE/POD or NAMESPACE", text))
	}
	return &v1alpha1.PodVolumeSelector{Namespace: namespace, Pod: pod, Volume: volume}, nil
}

func (o *newTask) run(cmd *cobra.Command, api client.Client, task *v1alpha1.RepositoryTask) error {
	if err := o.create(cmd, api, task); err != nil {
		return err
	}
	if o.noWait {
		if o.format == formatTable {
			return nil
		}
		return o.report(cmd.OutOrStdout(), task)
	}
	return o.follow(cmd, api, task)
}

// create creates the task. With --run-id it takes the one that an earlier try of the same run has created.
func (o *newTask) create(cmd *cobra.Command, api client.Client, task *v1alpha1.RepositoryTask) error {
	if o.runID != "" {
		if err := nameTaskByRun(task, o.runID); err != nil {
			return err
		}
	}
	err := api.Create(cmd.Context(), task)
	switch {
	case o.runID != "" && apierrors.IsAlreadyExists(err):
		fmt.Fprintf(cmd.ErrOrStderr(), "RepositoryTask %s of this run exists.\n", describe.Clean(task.Name))
		if err := api.Get(cmd.Context(), client.ObjectKeyFromObject(task), task); err != nil {
			return explainTasksError("read the RepositoryTask of this run", task.Namespace, err)
		}
		return nil
	case err != nil:
		return explainTasksError("create the RepositoryTask", task.Namespace, err)
	}
	out := cmd.OutOrStdout()
	if o.format != formatTable {
		out = cmd.ErrOrStderr()
	}
	fmt.Fprintf(out, "repositorytask.plimsoll.io/%s created\n", describe.Clean(task.Name))
	return nil
}

// nameTaskByRun gives a task a name that another run, and one that asks for something else, does not have.
func nameTaskByRun(task *v1alpha1.RepositoryTask, run string) error {
	spec, err := json.Marshal(task.Spec)
	if err != nil {
		return fmt.Errorf("encode the RepositoryTask: %w", err)
	}
	task.Name, task.GenerateName = nameOfRun(task.GenerateName, run, string(spec)), ""
	return nil
}

// nameOfRun is a name for the object that a run creates about something.
func nameOfRun(prefix string, what ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(what, "/")))
	suffix := "-" + hex.EncodeToString(sum[:8])
	return strings.TrimRight(prefix[:min(len(prefix), validation.DNS1123LabelMaxLength-len(suffix))], "-.") + suffix
}

// explainTasksError is explainMissing for RepositoryTasks.
func explainTasksError(doing, namespace string, err error) error {
	return explainMissing(doing, "RepositoryTasks", namespace, err)
}

// explainMissing tells a cluster without the CRD of kind, and one without the namespace, from any other error, which it wraps.
func explainMissing(doing, kind, namespace string, err error) error {
	status, _ := errors.AsType[*apierrors.StatusError](err)
	switch {
	case meta.IsNoMatchError(err): // what client-go says of it names neither the cause nor a remedy, and is left out
		return fmt.Errorf("this cluster does not have the CRD of %s: install deploy/crds, and deploy/repository-tasks in namespace %s (docs/repositories.md)", kind, namespace)
	case apierrors.IsNotFound(err) && status != nil && status.ErrStatus.Details != nil && status.ErrStatus.Details.Kind == "namespaces":
		return fmt.Errorf("this cluster has no namespace %s: set --namespace to that of the Backups", namespace)
	}
	return fmt.Errorf("%s: %w", doing, err)
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
