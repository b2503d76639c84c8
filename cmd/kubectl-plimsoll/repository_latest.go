package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
)

// validateLatest checks the flags that go with --latest. The error is one of usage.
func (o *newTask) validateLatest() error {
	switch {
	case o.latest && (o.backup != "" || o.from != ""):
		return program.Misused(errors.New("--latest cannot be combined with --backup or --from"))
	case !o.latest && (o.maxBytes != "" || o.maxTime != 0 || o.schedule != ""):
		return program.Misused(errors.New("--max-bytes, --max-duration and --schedule need --latest"))
	case o.maxTime < 0:
		return program.Misused(fmt.Errorf("--max-duration=%s is not positive", o.maxTime))
	case o.schedule == "" && o.image != "":
		return program.Misused(errors.New("--image needs --schedule"))
	case o.schedule != "" && (o.noWait || o.format == formatJSON):
		return program.Misused(errors.New("--schedule prints YAML, and cannot be combined with --no-wait"))
	case o.schedule != "" && o.runID != os.Getenv(runIDVariable):
		return program.Misused(errors.New("--schedule cannot be combined with --run-id: each Job has its own"))
	}
	if o.maxBytes != "" {
		if q, err := resource.ParseQuantity(o.maxBytes); err != nil || q.Sign() <= 0 {
			return program.Misused(fmt.Errorf("--max-bytes=%s is not a size such as 200Gi", o.maxBytes))
		}
	}
	return checkSchedule(o.schedule)
}

// printSchedule prints a CronJob that creates such a task again and again, and fails unless it has completed. suffix tells its name from
// those of other schedules of the command, and flags are the command's own.
func (o *newTask) printSchedule(cmd *cobra.Command, api client.Reader, task *v1alpha1.RepositoryTask, suffix string, flags ...string) error {
	image, err := o.tasksImage(cmd.Context(), api, task.Namespace)
	if err != nil {
		return err
	}
	command := strings.ToLower(string(o.kind))
	args := append([]string{"repository", command, "--namespace=" + task.Namespace, "--ttl=" + o.ttl.String()}, flags...)
	name := "plimsoll-" + command + suffix
	if o.volume != "" {
		args = append(args, "--volume="+o.volume)
		sum := sha256.Sum256([]byte(o.volume)) // the schedule of another volume must not replace this one
		name += "-" + hex.EncodeToString(sum[:4])
	}
	if o.maxBytes != "" {
		args = append(args, "--max-bytes="+o.maxBytes)
	}
	if o.maxTime > 0 {
		args = append(args, "--max-duration="+o.maxTime.String())
	}
	if o.sample != "" {
		args = append(args, "--sample="+o.sample)
		name += "-sample" // beside the one that reads all
	}
	if o.readData {
		args = append(args, "--read-data")
		name += "-read-data" // beside the one that reads only lists and directories
	}
	if o.restore.class != "" {
		args = append(args, "--restore-to="+o.restore.class)
		name += "-restore" // beside the one that only reads
	}
	if o.restore.size != "" {
		args = append(args, "--restore-size="+o.restore.size)
	}
	job := cronJob{namespace: task.Namespace, name: name, schedule: o.schedule, image: image, args: args, timeout: o.timeout}
	rights := []rbacv1.PolicyRule{rule(v1alpha1.GroupVersion.Group, "repositorytasks", nil, "create", "get")}
	fmt.Fprintln(cmd.ErrOrStderr(), "Nothing is created.")
	job.warn(cmd.ErrOrStderr())
	return printObjects(cmd.OutOrStdout(), append(append(job.account(), job.role(job.namespace, rights)...), job.object()))
}

// tasksImage returns the image that was asked for, or that of the Deployment which does the tasks.
func (o *newTask) tasksImage(ctx context.Context, api client.Reader, namespace string) (image, error) {
	if o.image != "" {
		return image{name: o.image}, nil
	}
	var tasks appsv1.Deployment
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "plimsoll-repository-tasks"}, &tasks); err != nil {
		return image{}, fmt.Errorf("get Deployment plimsoll-repository-tasks in namespace %s for its image: %w; install deploy/repository-tasks (docs/repositories.md), or set --image", namespace, err)
	}
	pod := &tasks.Spec.Template.Spec
	if len(pod.Containers) == 0 {
		return image{}, fmt.Errorf("the Deployment plimsoll-repository-tasks in namespace %s has no container: set --image", namespace)
	}
	return image{name: pod.Containers[0].Image, secrets: pod.ImagePullSecrets}, nil
}
