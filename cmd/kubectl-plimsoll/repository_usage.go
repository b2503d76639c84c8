package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// usageTask is the measurement that a command shows, or creates.
type usageTask struct {
	newTask

	refresh bool
	maxAge  time.Duration
}

func repositoryUsageCommand(c *connection) *cobra.Command {
	o := usageTask{newTask: newTask{kind: v1alpha1.TaskUsage}}
	cmd := &cobra.Command{
		Use:   "usage [--backup NAME | --from PODVOLUMEBACKUP | --latest]",
		Short: "Show how large repositories and volumes are, how fast they grow, and when they were last proven",
		Long: `Show what the repositories of a backup's pod volumes hold and take in the storage: size and growth, deduplication and
compression, snapshots, and the last proof of each repository and volume. Without --backup and --from: all repositories that have a
completed backup. '-' is a number that is not known, and the text below the table says why.

The result of an earlier measurement is shown if it is not older than --max-age. Otherwise, and with --refresh, the command creates a
RepositoryTask, which a deployment in the cluster carries out, and waits until it has ended. It takes no lock and changes nothing in
the repository. The exit code is 3 unless every repository was measured. If interrupted, the task continues.`,
		Example: `  kubectl plimsoll repository usage
  kubectl plimsoll repository usage --volume shop --refresh -o json
  kubectl plimsoll repository usage --latest --schedule "0 6 * * *" | kubectl apply -f -`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.latest = o.latest || o.backup == "" && o.from == ""
			if o.maxAge <= 0 {
				return program.Misused(fmt.Errorf("--max-age=%s is not positive", o.maxAge))
			}
			if o.refresh || o.noWait || o.schedule != "" {
				return o.runE(c)(cmd, args)
			}
			return o.showOrMeasure(cmd, c)
		},
	}
	o.addTaskFlags(cmd, "repositories are measured", "measure only the repository of this volume")
	f := cmd.Flags()
	f.BoolVar(&o.latest, "latest", false, "measure all repositories that have a completed backup: the default")
	f.BoolVar(&o.refresh, "refresh", false, "measure now, whatever earlier measurements there are")
	f.DurationVar(&o.maxAge, "max-age", 24*time.Hour, "show an earlier measurement of the same volumes that is not older than this")
	o.addScheduleFlags(cmd, "--latest", "measuring")
	return cmd
}

// showOrMeasure shows the last measurement of the same volumes, unless it is too old or has failed.
func (o *usageTask) showOrMeasure(cmd *cobra.Command, c *connection) error {
	task, err := o.task(c.namespace)
	if err != nil {
		return err
	}
	api, err := c.client()
	if err != nil {
		return err
	}
	var tasks v1alpha1.RepositoryTaskList
	if err := api.List(cmd.Context(), &tasks, client.InNamespace(c.namespace)); err != nil {
		return explainTasksError("list the RepositoryTasks", c.namespace, err)
	}
	last := lastMeasurement(tasks.Items, task)
	if last == nil || last.Status.Phase != v1alpha1.PhaseCompleted || time.Since(last.Status.CompletionTimestamp.Time) > o.maxAge {
		return o.run(cmd, api, task)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Measured %s ago by RepositoryTask %s; --refresh measures again.\n", describe.Age(time.Now(), last.Status.CompletionTimestamp.Time), describe.Clean(last.Name))
	if o.format != formatTable { // the object as it is
		return o.report(cmd.OutOrStdout(), last)
	}
	if err := updateProofs(cmd.Context(), api, last, tasks.Items); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "CHECKED and PROVEN are those of then:", describe.Clean(err.Error()))
	}
	return o.report(cmd.OutOrStdout(), last)
}

// updateProofs replaces what was known of repositories and volumes at the end of a measurement by what is known now.
func updateProofs(ctx context.Context, api client.Reader, measured *v1alpha1.RepositoryTask, tasks []v1alpha1.RepositoryTask) error {
	var backups velerov1.PodVolumeBackupList
	if err := api.List(ctx, &backups, client.InNamespace(measured.Namespace)); err != nil {
		return fmt.Errorf("list the PodVolumeBackups of namespace %s: %w", measured.Namespace, err)
	}
	if err := correctSynced(ctx, api, measured.Namespace, backups.Items); err != nil {
		return err
	}
	findings := proof.FindingsOf(tasks, backups.Items)
	for i := range measured.Status.Repositories {
		if entry := &measured.Status.Repositories[i]; entry.Usage != nil {
			findings.Update(entry)
		}
	}
	return nil
}

// lastMeasurement returns the task that has ended last of those that measure the same as task; nil: there is none.
func lastMeasurement(tasks []v1alpha1.RepositoryTask, task *v1alpha1.RepositoryTask) *v1alpha1.RepositoryTask {
	var last *v1alpha1.RepositoryTask
	for i := range tasks {
		t := &tasks[i]
		want, have := task.Spec, t.Spec
		want.TTL, have.TTL = nil, nil
		if !t.Status.Phase.Terminal() || t.Status.CompletionTimestamp == nil || !equality.Semantic.DeepEqual(want, have) {
			continue
		}
		if last == nil || last.Status.CompletionTimestamp.Before(t.Status.CompletionTimestamp) {
			last = t
		}
	}
	return last
}

// printUsage prints what was measured of each repository and volume.
func printUsage(out io.Writer, task *v1alpha1.RepositoryTask, now time.Time) error {
	if len(task.Status.Repositories) == 0 {
		return nil // the error says why
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REPOSITORY\tUPLOADER\tRESULT\tSTORED\tGROWTH\tSNAPSHOTS\tOLDEST\tNEWEST\tLOGICAL\tDEDUPLICATION\tCOMPRESSION\tCHECKED")
	volumes := false
	for i := range task.Status.Repositories {
		r := &task.Status.Repositories[i]
		u := r.Usage
		if u == nil {
			fmt.Fprintf(table, "%s\t%s\t%s%s\n", nameOfRepository(r), describe.Clean(r.Uploader), describe.Clean(string(r.Result)), strings.Repeat("\t?", 9))
			continue
		}
		volumes = volumes || len(u.Volumes) > 0
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", nameOfRepository(r), describe.Clean(r.Uploader), describe.Clean(string(r.Result)),
			knownBytes(u.StoredBytes), knownGrowth(u.GrowthBytes), u.Snapshots, knownAge(now, u.OldestSnapshot), knownAge(now, u.NewestSnapshot), knownBytes(u.LogicalBytes),
			knownRatio(u.DeduplicationRatio()), knownRatio(u.CompressionRatio()), proven(now, u.CheckedTimestamp, u.Damaged))
	}
	if volumes {
		fmt.Fprintln(table, "\nVOLUME\tLOCATION\tUPLOADER\tSNAPSHOTS\tNEWEST\tSIZE\tGROWTH\tADDED\tLOGICAL\tPROVEN")
	}
	for i := range task.Status.Repositories {
		r := &task.Status.Repositories[i]
		if r.Usage == nil {
			continue
		}
		for j := range r.Usage.Volumes {
			v := &r.Usage.Volumes[j]
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", describe.Clean(v.Namespace+"/"+v.Pod+":"+v.Volume), describe.Clean(r.BackupStorageLocation), describe.Clean(r.Uploader),
				v.Snapshots, knownAge(now, v.NewestBackup), knownBytes(v.NewestBytes), knownGrowth(v.GrowthBytes), knownBytes(v.AddedBytes), knownBytes(v.LogicalBytes), proven(now, v.VerifiedTimestamp, v.Damaged))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range task.Status.Repositories {
		printUsageNotes(out, &task.Status.Repositories[i])
	}
	if c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionMeasured); c != nil && c.Status == metav1.ConditionTrue {
		fmt.Fprintln(out, describe.Clean(c.Message))
	}
	return nil
}

// printUsageNotes prints what the table has no room for.
func printUsageNotes(out io.Writer, r *v1alpha1.RepositoryTaskRepository) {
	printRepository(out, r)
	u, name := r.Usage, nameOfRepository(r)
	if u == nil {
		return
	}
	if u.PackBytes != nil {
		fmt.Fprintf(out, "%s: %s; packs of %s hold %s of data\n", name, text.Count(*u.StoredObjects, "object", "objects"), describe.Bytes(*u.PackBytes), describe.Bytes(u.DataBytes))
	}
	if u.GrowthBytes != nil && u.GrowthSince != nil {
		fmt.Fprintf(out, "%s: growth is that since %s\n", name, u.GrowthSince.UTC().Format(time.RFC3339))
	}
	if u.UnknownSnapshots > 0 {
		fmt.Fprintf(out, "%s: %s\n", name, text.Count(u.UnknownSnapshots, "snapshot is", "snapshots are")+" of no PodVolumeBackup in this namespace")
	}
	if u.UnfinishedSnapshots > 0 {
		fmt.Fprintf(out, "%s: %s of unfinished backups\n", name, text.Count(u.UnfinishedSnapshots, "more snapshot is", "more snapshots are"))
	}
	if u.MissingSnapshots > 0 {
		fmt.Fprintf(out, "%s: %s not there\n", name, text.Count(u.MissingSnapshots, "snapshot of a completed PodVolumeBackup is", "snapshots of completed PodVolumeBackups are"))
		for i := range u.Volumes {
			if v := &u.Volumes[i]; v.MissingSnapshots > 0 {
				fmt.Fprintf(out, "  %d of %s\n", v.MissingSnapshots, describe.Clean(v.Namespace+"/"+v.Pod+":"+v.Volume))
			}
		}
	}
	if u.OmittedVolumes > 0 {
		fmt.Fprintf(out, "%s: %s not shown\n", name, text.Count(int64(u.OmittedVolumes), "smaller volume is", "smaller volumes are"))
	}
	for _, why := range u.NotKnown {
		fmt.Fprintf(out, "%s: not known: %s\n", name, describe.Clean(why))
	}
}

const notKnown = "-"

func knownBytes(n *int64) string {
	if n == nil {
		return notKnown
	}
	return describe.Bytes(*n)
}

// knownGrowth has a sign.
func knownGrowth(n *int64) string {
	switch {
	case n == nil:
		return notKnown
	case *n < 0:
		return "-" + describe.Bytes(-*n)
	default:
		return "+" + describe.Bytes(*n)
	}
}

func knownAge(now time.Time, t *metav1.Time) string {
	if t == nil {
		return notKnown
	}
	return describe.Age(now, t.Time) + " ago"
}

func knownRatio(ratio float64, known bool) string {
	if !known {
		return notKnown
	}
	return strconv.FormatFloat(ratio, 'f', 2, 64)
}

// proven is when something was last proven, or that it is damaged.
func proven(now time.Time, t *metav1.Time, damaged bool) string {
	if damaged {
		return string(proofDamaged)
	}
	return knownAge(now, t)
}
