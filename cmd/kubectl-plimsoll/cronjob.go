package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// cronJob is a command of this plugin that a CronJob runs, with a ServiceAccount of its own.
type cronJob struct {
	namespace string // of Velero's objects
	name      string // of all its objects, at most maxCronJobName long
	schedule  string
	image     image
	args      []string      // of the plugin
	timeout   time.Duration // of a Job; 0: jobTimeout
}

// runIDVariable is the variable of the container with the id of its Job. It is no flag, which an older image would not know.
const runIDVariable = "PLIMSOLL_RUN_ID"

// firstWithRunID is the first version whose commands know runIDVariable.
const firstWithRunID = "v0.1.0"

// knowsRunID reports whether the commands in an image know runIDVariable: by its tag it is of this plugin's version, or a release from firstWithRunID on.
// Of any other tag, and of a digest alone, nobody knows.
func (i image) knowsRunID(own string) bool {
	name, _, _ := strings.Cut(i.name[strings.LastIndexByte(i.name, '/')+1:], "@")
	_, tag, _ := strings.Cut(name, ":")
	if tag == own && !slices.Contains([]string{"", "dev", "unknown"}, own) { // else the build has set no version
		return true
	}
	of, err := utilversion.ParseSemantic(tag)
	return err == nil && of.AtLeast(utilversion.MustParseSemantic(firstWithRunID))
}

// maxRetries is how often a Job starts another pod, in about half an hour with Kubernetes' backoff: as long as an upgrade of the API server, a
// restart of the backed up pod or the loss of a node may take.
const maxRetries = 8

// jobTimeout is how long a Job waits where --timeout does not say. What it waits for goes on.
const jobTimeout = 24 * time.Hour

// maxCronJobName is what Kubernetes allows, since the names of Jobs are made of it.
const maxCronJobName = 52

// checkSchedule refuses what is no schedule at a glance; the API server knows better. An empty one is none.
func checkSchedule(schedule string) error {
	if schedule == "" || strings.HasPrefix(schedule, "@") || len(strings.Fields(schedule)) == 5 {
		return nil
	}
	return program.Misused(fmt.Errorf("--schedule=%q: want five fields, as in \"0 3 * * *\"", schedule))
}

func (j *cronJob) meta(namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: j.name, Labels: map[string]string{"app.kubernetes.io/part-of": "plimsoll"}}
}

func (j *cronJob) account() []client.Object {
	return []client.Object{&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: j.meta(j.namespace)}}
}

func (j *cronJob) role(namespace string, rules []rbacv1.PolicyRule) []client.Object {
	version := rbacv1.SchemeGroupVersion.String()
	return []client.Object{
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "Role"}, ObjectMeta: j.meta(namespace), Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "RoleBinding"}, ObjectMeta: j.meta(namespace),
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: j.name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: j.namespace, Name: j.name}},
		},
	}
}

func rule(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}

func (j *cronJob) object() client.Object {
	cronJob := &batchv1.CronJob{
		TypeMeta: metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob"}, ObjectMeta: j.meta(j.namespace),
		Spec: batchv1.CronJobSpec{
			Schedule: j.schedule, ConcurrencyPolicy: batchv1.ForbidConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				// A Job that waits forever for a missing agent would block later ones.
				ActiveDeadlineSeconds: new(int64(cmp.Or(j.timeout, jobTimeout) / time.Second)),
				Template:              corev1.PodTemplateSpec{Spec: j.podSpec()},
			}},
		},
	}
	job := &cronJob.Spec.JobTemplate.Spec
	if j.image.knowsRunID(version) {
		retry(job)
	} else { // a second pod would begin what the first has begun
		job.BackoffLimit = new(int32(0))
	}
	return cronJob
}

// warn says what a Job of the image lacks.
func (j *cronJob) warn(w io.Writer) {
	if !j.image.knowsRunID(version) {
		fmt.Fprintf(w, "A Job starts one pod only, also if that is lost: the tag of image %s does not say that it has version %s or later, in which a second pod goes on with what the first has begun.\n",
			describe.Clean(j.image.name), firstWithRunID)
	}
}

// retry lets a Job start pods until one has seen the end of what it waits for: that has been tried again in the cluster. The commands know runIDVariable, so
// that a second pod goes on with what the first has created.
func retry(job *batchv1.JobSpec) {
	job.BackoffLimit = new(int32(maxRetries))
	job.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action: batchv1.PodFailurePolicyActionFailJob,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{exitMisused, exitFailed, exitTimeout},
		},
	}}}
	container := &job.Template.Spec.Containers[0]
	container.Env = append(container.Env, corev1.EnvVar{Name: runIDVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.ControllerUidLabel + "']"},
	}})
}

func (j *cronJob) podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		ServiceAccountName: j.name, RestartPolicy: corev1.RestartPolicyNever, ImagePullSecrets: j.image.secrets,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "kubectl-plimsoll", Image: j.image.name, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/usr/local/bin/kubectl-plimsoll"}, Args: j.args,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
			}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
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
