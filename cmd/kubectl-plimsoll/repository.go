package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
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
