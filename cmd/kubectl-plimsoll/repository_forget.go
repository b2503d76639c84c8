package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// forgetTask is a RepositoryTask of type Forget that a command creates.
type forgetTask struct {
	newTask

	keep        keepFlags
	orphans     bool
	soleCluster bool
	location    string
	yes         bool
	acknowledge string
}

// forgetTTL is how long a task is kept where --ttl does not say.
const forgetTTL = 90 * 24 * time.Hour

func repositoryForgetCommand(c *connection) *cobra.Command {
	o := forgetTask{newTask: newTask{kind: v1alpha1.TaskForget}}
	cmd := &cobra.Command{
		Use:   "forget {--keep-...|--orphans} [--volume VOLUME] [--yes]",
		Short: "Forget backups of volumes that a policy does not keep, or snapshots that nothing needs",
		Long: `Show which backups a policy keeps and which not, and with --yes forget the latter: their snapshots in the repository and their
PodVolumeBackups. It is about those that belong to no Backup, as 'kubectl plimsoll volume backup' makes them; what a Backup of Velero
needs is never touched. The policy is for each claim in each repository, and for each volume of a pod without one. The newest
backup is always kept. The storage gets no smaller before 'kubectl plimsoll repository prune'.

With --orphans it is about snapshots of pod volumes that nothing needs: no PodVolumeBackup names them, the repository says of which Backup
they are, and neither the cluster nor the bucket has that Backup. They are left where a Backup was deleted without its snapshots. Those of the
last week are kept, and if a list in the bucket cannot be read nothing is forgotten. Each wave of them needs --acknowledge.

If more would be forgotten than new backups explain since the same policy was last applied, nothing is forgotten unless --acknowledge
names exactly this wave of deletions, as the command shows it without --yes. The exit code is 3 unless all that the policy
does not keep is gone, and a second look has shown that.`,
		Example: `  kubectl plimsoll repository forget --keep-daily 7 --keep-weekly 4
  kubectl plimsoll repository forget --keep-daily 7 --keep-weekly 4 --volume shop/db-0:data --yes
  kubectl plimsoll repository forget --keep-daily 7 --keep-weekly 4 --yes --acknowledge 3f0c5b1d2a947e86
  kubectl plimsoll repository forget --orphans`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			task, err := o.task(c.namespace)
			if err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			return o.run(cmd, api, task)
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	o.keep.addFlags(f)
	f.BoolVar(&o.orphans, "orphans", false, "in place of --keep-...: forget snapshots that no Backup and no PodVolumeBackup needs")
	f.BoolVar(&o.soleCluster, "sole-cluster", false, "with --orphans: no other cluster and no other namespace backs up into this bucket, so forget also snapshots whose repository does not know for which Backup they were made")
	f.StringVar(&o.volume, "volume", "", "only the backups of this volume: NAMESPACE/POD:VOLUME, NAMESPACE/POD or NAMESPACE")
	f.StringVar(&o.location, "location", "", "only the repositories in this BackupStorageLocation")
	f.BoolVar(&o.yes, "yes", false, "forget, instead of only showing what would be forgotten")
	f.StringVar(&o.acknowledge, "acknowledge", "", "with --yes: the wave of deletions that may be forgotten, as shown without --yes")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the RepositoryTask is created")
	f.DurationVar(&o.ttl, "ttl", forgetTTL, "keep the RepositoryTask this long after its end; the next one needs it to know which backups are new")
	return cmd
}

// task returns the RepositoryTask that the flags ask for. The error is one of usage.
func (o *forgetTask) task(namespace string) (*v1alpha1.RepositoryTask, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	policy, err := o.keep.policy()
	switch {
	case err != nil:
		return nil, err
	case policy == nil && !o.orphans:
		return nil, program.Misused(errors.New("name what to keep, such as --keep-daily 7, or give --orphans"))
	case policy != nil && o.orphans:
		return nil, program.Misused(errors.New("--orphans cannot be combined with what to keep"))
	case o.soleCluster && !o.orphans:
		return nil, program.Misused(errors.New("--sole-cluster needs --orphans"))
	case o.acknowledge != "" && !o.yes:
		return nil, program.Misused(errors.New("--acknowledge needs --yes"))
	case o.ttl <= 0:
		return nil, program.Misused(fmt.Errorf("--ttl=%s is not positive", o.ttl))
	case o.noWait && o.timeout > 0:
		return nil, program.Misused(errors.New("--no-wait cannot be combined with --timeout"))
	}
	task := &v1alpha1.RepositoryTask{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: describe.KindRepositoryTask},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "forget-"},
		Spec: v1alpha1.RepositoryTaskSpec{
			Type: v1alpha1.TaskForget, Keep: policy, Orphans: o.selection(), BackupStorageLocation: o.location, Apply: o.yes, Acknowledge: o.acknowledge, TTL: &metav1.Duration{Duration: o.ttl},
		},
	}
	task.Spec.Volume, err = parseVolumeSelector(o.volume)
	return task, err
}

func (o *forgetTask) selection() v1alpha1.OrphanSelection {
	switch {
	case o.soleCluster:
		return v1alpha1.OrphansAll
	case o.orphans:
		return v1alpha1.OrphansOfBackups
	default:
		return ""
	}
}

// printRetention prints what becomes of each snapshot, and why.
func printRetention(out io.Writer, task *v1alpha1.RepositoryTask) error {
	retention := task.Status.Retention
	if retention == nil {
		return nil // the error says why
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VOLUME\tLOCATION\tUPLOADER\tBEGAN\tSNAPSHOT\tBACKUP\tRESULT\tWHY")
	for i := range retention.Volumes {
		v := &retention.Volumes[i]
		for j := range v.Snapshots {
			s := &v.Snapshots[j]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", describe.Clean(v.Namespace+"/"+v.Pod+":"+v.Volume), describe.Clean(v.BackupStorageLocation), describe.Clean(v.Uploader),
				s.BackupTimestamp.UTC().Format(time.RFC3339), describe.Clean(s.SnapshotID[:min(len(s.SnapshotID), 8)]), describe.Clean(cmp.Or(s.PodVolumeBackup, s.Backup, notKnown)),
				retentionText(task.Spec.Apply, s.Result), describe.Clean(retentionReason(s)))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range retention.Volumes {
		if v := &retention.Volumes[i]; v.Shortened != "" {
			fmt.Fprintf(out, "%s: %s\n", describe.Clean(v.Namespace+"/"+v.Pod+":"+v.Volume), describe.Clean(v.Shortened))
		}
	}
	for i := range task.Status.Repositories {
		printRepository(out, &task.Status.Repositories[i])
	}
	for _, condition := range []string{v1alpha1.ConditionPlanned, v1alpha1.ConditionForgotten} {
		if c := meta.FindStatusCondition(task.Status.Conditions, condition); c != nil && c.Status == metav1.ConditionTrue {
			fmt.Fprintln(out, describe.Clean(c.Message))
		}
	}
	if !task.Spec.Apply && retention.Wave != "" && task.Status.Phase == v1alpha1.PhaseCompleted {
		confirm := "--yes"
		if retention.Unexplained > 0 {
			confirm += " --acknowledge " + describe.Clean(retention.Wave)
		}
		fmt.Fprintf(out, "The same command with %s forgets them.\n", confirm)
	}
	return nil
}

// retentionText is what the table calls a result.
func retentionText(apply bool, result v1alpha1.RetentionResult) string {
	switch {
	case result == v1alpha1.RetentionPending && apply:
		return "not forgotten"
	case result == v1alpha1.RetentionPending:
		return "would be forgotten"
	default:
		return strings.ToLower(describe.Clean(string(result)))
	}
}

// retentionReason names the rules that keep a snapshot, and what else there is to say.
func retentionReason(s *v1alpha1.RetentionSnapshot) string {
	why := strings.Join(s.Rules, ", ")
	switch {
	case why == "":
		why = s.Message
	case s.Message != "":
		why += ": " + s.Message
	}
	if why == "" {
		return notKnown
	}
	return why
}
