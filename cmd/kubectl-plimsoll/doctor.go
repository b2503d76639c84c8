package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/live"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

const (
	doctorReadTimeout  = 15 * time.Second // of one list, and of one right
	doctorAgentTimeout = 45 * time.Second // of one node agent, which itself needs at most 40 s
)

func doctorCommand(c *connection) *cobra.Command {
	var o output
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation, and say what to do",
		Long: `Checks the installation: node agents, versions, the server, the init container of restored pods, what does RepositoryTasks and
keeps plugins' records, rights, and, as the node agents see them, BackupStorageLocations and repositories, volumes, clocks, what confines workers, and whether the metrics are read.

The command changes nothing. What it cannot check is a finding of its own. It prints no secrets.

The exit code is 0 if there are no errors and everything could be checked. Warnings do not change it, nor do node agents with
--metrics-auth, which do not answer: a finding of severity info says that what only they know was not checked.`,
		Example: `  kubectl plimsoll doctor
  kubectl plimsoll doctor -o json | jq '.findings[] | select(.severity == "error")'`,
		Args: program.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if timeout <= 0 {
				return program.Misused(fmt.Errorf("--timeout=%s is not positive", timeout))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			in, err := examine(ctx, c)
			if err != nil {
				return err
			}
			d := describe.Diagnose(time.Now(), in)
			if err := o.print(cmd.OutOrStdout(), d, func(w io.Writer) error { return describe.PrintDiagnosis(w, &d) }); err != nil {
				return err
			}
			switch d.Result {
			case v1alpha1.SeverityError:
				return errors.New("the installation has errors")
			case v1alpha1.SeverityUnknown:
				return errors.New("not everything could be checked")
			default:
				return nil
			}
		},
	}
	o.addFlag(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "leave out what has not been checked after this long")
	return cmd
}

// examine reads all that a diagnosis is made of. Its error means that there is no connection at all.
func examine(ctx context.Context, c *connection) (*describe.Installation, error) {
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	in := &describe.Installation{Version: version}
	in.Namespace = c.namespace
	e := examination{api: api, in: in}
	e.readObjects(ctx)
	if len(in.Unread) == e.reads { // not even one: it is the connection
		return nil, in.Unread[0].Err
	}
	e.askRights(ctx)
	e.askAgents(ctx, config)
	return in, nil
}

// examination fills an Installation.
type examination struct {
	api   client.Client
	in    *describe.Installation
	reads int
}

func (e *examination) readObjects(ctx context.Context) {
	in := e.in
	var helpers corev1.ConfigMapList
	here := client.InNamespace(in.Namespace)
	into(ctx, e, "Namespaces", &corev1.NamespaceList{}, func(l *corev1.NamespaceList) { in.Namespaces = l.Items })
	into(ctx, e, describe.ReadPods, &corev1.PodList{}, func(l *corev1.PodList) { in.Pods = l.Items })
	into(ctx, e, "PersistentVolumeClaims", &corev1.PersistentVolumeClaimList{}, func(l *corev1.PersistentVolumeClaimList) { in.Claims = l.Items })
	into(ctx, e, "PersistentVolumes", &corev1.PersistentVolumeList{}, func(l *corev1.PersistentVolumeList) { in.Persistent = l.Items })
	into(ctx, e, describe.ReadNodes, &corev1.NodeList{}, func(l *corev1.NodeList) { in.Nodes = l.Items })
	into(ctx, e, describe.ReadDaemonSets, &appsv1.DaemonSetList{}, func(l *appsv1.DaemonSetList) { in.DaemonSets = l.Items }, here)
	into(ctx, e, describe.ReadDeployments, &appsv1.DeploymentList{}, func(l *appsv1.DeploymentList) { in.Deployments = l.Items }, here)
	into(ctx, e, describe.ReadLocations, &velerov1.BackupStorageLocationList{}, func(l *velerov1.BackupStorageLocationList) { in.Locations = l.Items }, here)
	into(ctx, e, "BackupRepositories", &velerov1.BackupRepositoryList{}, func(l *velerov1.BackupRepositoryList) { in.Repositories = l.Items }, here)
	into(ctx, e, "Schedules", &velerov1.ScheduleList{}, func(l *velerov1.ScheduleList) { in.Schedules = l.Items }, here)
	into(ctx, e, "PodVolumeBackups", &velerov1.PodVolumeBackupList{}, func(l *velerov1.PodVolumeBackupList) { in.Backups = l.Items }, here)
	into(ctx, e, describe.ReadHelpers, &helpers, func(l *corev1.ConfigMapList) { in.Helpers = l.Items }, here,
		client.HasLabels{"velero.io/plugin-config"}, client.MatchingLabels{"velero.io/pod-volume-restore": "RestoreItemAction"})
	for i := range in.Pods {
		if in.Pods[i].Namespace == in.Namespace {
			in.Agents = append(in.Agents, in.Pods[i])
		}
	}
	in.Server = describe.OfServer(nil)
	for i := range in.Deployments {
		if in.Deployments[i].Name == "velero" {
			in.Server = describe.OfServer(&in.Deployments[i])
		}
	}
}

// into lists objects in a time of its own, or notes why they cannot be read.
func into[L client.ObjectList](ctx context.Context, e *examination, what string, list L, take func(L), options ...client.ListOption) {
	ctx, cancel := context.WithTimeout(ctx, doctorReadTimeout)
	defer cancel()
	e.reads++
	if err := e.api.List(ctx, list, options...); err != nil {
		e.in.Unread = append(e.in.Unread, describe.Unread{What: what, Err: err})
		return
	}
	take(list)
}

// askRights asks the API server for the rights of the service accounts. If it does not say one, it is not asked for others.
func (e *examination) askRights(ctx context.Context) {
	accounts := e.in.ServiceAccounts()
	for _, account := range slices.Sorted(maps.Keys(accounts)) {
		for _, right := range accounts[account] {
			answer := describe.RightAnswer{Account: account, Right: right}
			answer.Allowed, answer.Err = e.may(ctx, account, right)
			e.in.Rights = append(e.in.Rights, answer)
			if answer.Err != nil {
				return
			}
		}
	}
}

func (e *examination) may(ctx context.Context, account string, right authorizationv1.ResourceAttributes) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorReadTimeout)
	defer cancel()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + e.in.Namespace + ":" + account,
		Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + e.in.Namespace, "system:authenticated"},
		ResourceAttributes: &right,
	}}
	err := e.api.Create(ctx, review)
	return review.Status.Allowed, err
}

// askAgents asks Plimsoll's node agents for their self-checks, with as many locations as they take.
func (e *examination) askAgents(ctx context.Context, config *rest.Config) {
	var agents []corev1.Pod
	for i := range e.in.Agents {
		if e.in.Agents[i].Labels["app.kubernetes.io/name"] == "plimsoll-node-agent" {
			agents = append(agents, e.in.Agents[i])
		}
	}
	var locations []string
	for i := range e.in.Locations {
		locations = append(locations, e.in.Locations[i].Name)
	}
	answers, err := live.SelfChecks(ctx, config, e.in.Namespace, agents, live.SelfCheckQuery{
		Locations: locations[:min(len(locations), askedLocations)], Uploader: e.in.Server.Uploader, Patience: doctorAgentTimeout,
	})
	if err != nil {
		e.in.Unread = append(e.in.Unread, describe.Unread{What: "the node agents' self-checks", Err: err})
	}
	e.in.SelfChecks = answers
}

// askedLocations is how many a node agent takes in one request.
const askedLocations = 16
