package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// checkSchedule refuses what is no schedule at a glance; the API server knows better. An empty one is none.
func checkSchedule(schedule string) error {
	if schedule == "" || strings.HasPrefix(schedule, "@") || len(strings.Fields(schedule)) == 5 {
		return nil
	}
	return program.Misused(fmt.Errorf("--schedule=%q: want five fields, as in \"0 3 * * *\"", schedule))
}

// printSchedule prints what makes the backup again and again. It takes the backup as it would be made now for what it has found.
func (o *volumeBackup) printSchedule(cmd *cobra.Command, v *volumes, p prepared) error {
	image, err := v.image(cmd.Context(), o.image)
	if err != nil {
		return err
	}
	s := scheduled{
		volumeBackup: o, command: [2]string{cmd.Parent().Name(), cmd.Name()}, namespace: v.namespace, image: image,
		location: p.pvb.Spec.BackupStorageLocation, claim: p.claim,
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "This backs up volume %s of a pod that is always called %s/%s, as pods of StatefulSets are. Nothing is created.\n",
		describe.Clean(o.target.volume), describe.Clean(o.target.namespace), describe.Clean(o.target.pod))
	return printObjects(cmd.OutOrStdout(), s.objects())
}

// printObjects leaves out what only the cluster writes.
func printObjects(w io.Writer, objects []client.Object) error {
	for i, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		unstructured.RemoveNestedField(fields, "status")
		unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
		text, err := yaml.Marshal(fields)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// scheduled is a backup that a CronJob makes.
type scheduled struct {
	*volumeBackup
	command   [2]string // volume backup
	namespace string    // of Velero's objects
	image     image
	location  string
	claim     string // empty: the volume has none
}

// jobTimeout is how long a Job waits for its backup where --timeout does not say. The backup itself goes on.
const jobTimeout = 24 * time.Hour

// maxCronJobName is what Kubernetes allows, since the names of Jobs are made of it.
const maxCronJobName = 52

// name is the same for the same volume that is backed up to the same place, and another one for another: the objects of two
// schedules must not replace each other. A new schedule for the same replaces the old one.
func (s *scheduled) name() string {
	what := []string{s.target.namespace, s.target.pod, s.target.volume, s.namespace, s.location, s.uploader}
	sum := sha256.Sum256([]byte(strings.Join(what, "/")))
	name := "plimsoll-backup-" + s.target.pod + "-" + s.target.volume
	return strings.TrimRight(name[:min(len(name), maxCronJobName-9)], "-.") + "-" + hex.EncodeToString(sum[:4])
}

// objects are a CronJob and the rights that volume backup uses, without that to read PersistentVolumes, which belong to the cluster.
func (s *scheduled) objects() []client.Object {
	account := s.meta(s.namespace)
	velero := []rbacv1.PolicyRule{
		rule("", "pods", nil, "list"),
		rule("velero.io", "backupstoragelocations", []string{s.location}, "get"),
		rule("velero.io", "backuprepositories", nil, "list"),
		rule("velero.io", "podvolumebackups", nil, "create", "get"),
	}
	app := []rbacv1.PolicyRule{rule("", "pods", []string{s.target.pod}, "get")}
	if s.claim != "" {
		app = append(app, rule("", "persistentvolumeclaims", []string{s.claim}, "get"))
	}
	objects := []client.Object{&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: account}}
	if s.target.namespace == s.namespace {
		objects = append(objects, s.role(s.namespace, append(velero, app...))...)
	} else {
		objects = append(append(objects, s.role(s.namespace, velero)...), s.role(s.target.namespace, app)...)
	}
	return append(objects, s.cronJob())
}

func rule(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}

func (s *scheduled) meta(namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: s.name(), Labels: map[string]string{"app.kubernetes.io/part-of": "plimsoll"}}
}

func (s *scheduled) role(namespace string, rules []rbacv1.PolicyRule) []client.Object {
	version := rbacv1.SchemeGroupVersion.String()
	return []client.Object{
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "Role"}, ObjectMeta: s.meta(namespace), Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "RoleBinding"}, ObjectMeta: s.meta(namespace),
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: s.name()},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: s.name()}},
		},
	}
}

// args are those of the command line in the CronJob.
func (s *scheduled) args() []string {
	return []string{
		s.command[0], s.command[1], s.target.namespace + "/" + s.target.pod, s.target.volume,
		"--to=" + s.location, "--uploader=" + s.uploader, "--namespace=" + s.namespace,
	}
}

func (s *scheduled) cronJob() client.Object {
	return &batchv1.CronJob{
		TypeMeta: metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob"}, ObjectMeta: s.meta(s.namespace),
		Spec: batchv1.CronJobSpec{
			Schedule: s.schedule, ConcurrencyPolicy: batchv1.ForbidConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				BackoffLimit: new(int32(0)), // the node agent tries again itself; a second Job would be a second backup
				// A Job that waits forever for a missing agent would block later ones.
				ActiveDeadlineSeconds: new(int64(cmp.Or(s.timeout, jobTimeout) / time.Second)),
				Template:              corev1.PodTemplateSpec{Spec: s.podSpec()},
			}},
		},
	}
}

func (s *scheduled) podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		ServiceAccountName: s.name(), RestartPolicy: corev1.RestartPolicyNever, ImagePullSecrets: s.image.secrets,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "kubectl-plimsoll", Image: s.image.name, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/usr/local/bin/kubectl-plimsoll"}, Args: s.args(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}
