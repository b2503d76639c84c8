//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// backUpBySchedule makes a backup as `volume backup --schedule` does.
func (c *cluster) backUpBySchedule(t *testing.T, a *app) {
	t.Helper()
	c.runSchedule(t, c.plimsoll(t, "volume", "backup", a.namespace+"/"+a.name, disk, "--to", location, "--uploader", kopia, "--schedule", "0 3 1 1 *"))
	if listed := c.listed(t, a.namespace+"/"+a.name, disk, kopia); len(listed) != 2 {
		t.Errorf("volume list does not have the scheduled backup beside that of the Backup: %q", listed)
	}
}

// runSchedule applies what a command prints with --schedule, runs a Job of the CronJob, which must succeed, and deletes all of it: the
// program in the image finds the API server and its rights by itself.
func (c *cluster) runSchedule(t *testing.T, text string) {
	t.Helper()
	var cron batchv1.CronJob
	var made []*unstructured.Unstructured
	for document := range strings.SplitSeq(text, "---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		c.apply(t, object)
		made = append(made, object)
		if object.GetKind() == "CronJob" {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &cron); err != nil {
				t.Fatal(err)
			}
		}
	}
	job := &batchv1.Job{}
	job.Namespace, job.Name = cron.Namespace, "scheduled"
	c.kubectl(t, "create", "job", "--namespace", job.Namespace, job.Name, "--from=cronjob/"+cron.Name)
	eventually(t, "the CronJob's Job has ended", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(job), job)
		return err == nil && job.Status.Succeeded+job.Status.Failed > 0, err
	})
	if job.Status.Succeeded != 1 {
		var pods corev1.PodList
		if err := c.client.List(t.Context(), &pods, client.InNamespace(job.Namespace), client.MatchingLabels{"job-name": job.Name}); err != nil {
			t.Error(err)
		}
		for i := range pods.Items {
			t.Errorf("the Job's pod says: %s", lastWords(&pods.Items[i]))
		}
	}
	background := client.PropagationPolicy("Background")
	for _, object := range append([]*unstructured.Unstructured{asUnstructured(job)}, made...) { // with the CronJob its Jobs go by themselves, later
		if err := c.client.Delete(t.Context(), object, background); err != nil {
			t.Errorf("delete %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

func asUnstructured(job *batchv1.Job) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	object.SetNamespace(job.Namespace)
	object.SetName(job.Name)
	return object
}
