package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestRepositoryLatest: what has never been proven is shown, the CronJob's command proves it with the rights that are printed with
// it, and damage is shown from then on.
func TestRepositoryLatest(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	data, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	c.storeWithKopia(data)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Verifiers: map[string]uploader.Verifier{"kopia": data}, ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})
	proofs := func(code int, args ...string) []volumeProof {
		t.Helper()
		out, errOut, got := c.run(append([]string{"repository", "proofs", "-o", "json"}, args...)...)
		var shown []volumeProof
		if err := json.Unmarshal([]byte(out), &shown); err != nil || got != code {
			t.Fatalf("code %d, %v: %s%s", got, err, out, errOut)
		}
		return shown
	}
	if p := proofs(exitFailed); len(p) != 1 || p[0].State != proofMissing || p[0].Verified != nil || p[0].PodVolumeBackup != "nightly-1" || p[0].Volume != "shop/db-0:data" {
		t.Errorf("before: %+v", p)
	}

	if _, errOut, code := c.run("repository", "verify", "--latest", "--schedule", "@daily"); code != 1 || !strings.Contains(errOut, "install deploy/repository-tasks") {
		t.Errorf("without the Deployment: code %d, %s", code, errOut)
	}
	c.Create(c.tasksDeployment("registry.example.com/plimsoll:v1.0.0"))
	out, errOut, code := c.run("repository", "verify", "--latest", "--schedule", "0 5 * * *", "--max-bytes", "1Gi", "--max-duration", "4h", "--volume", "shop")
	if code != 0 || errOut != "Nothing is created.\n" {
		t.Fatalf("code %d: %s", code, errOut)
	}
	p := readPrinted(t, out)
	job := p.cronJob.Spec.JobTemplate.Spec.Template.Spec
	if p.cronJob.Spec.Schedule != "0 5 * * *" || job.Containers[0].Image != "registry.example.com/plimsoll:v1.0.0" || !strings.HasPrefix(p.cronJob.Name, "plimsoll-verify-latest-") {
		t.Errorf("the CronJob is %+v", p.cronJob)
	}
	if err := client.WithFieldValidation(c.Client, metav1.FieldValidationStrict).Create(t.Context(), p.cronJob.DeepCopy(), client.DryRunAll); err != nil {
		t.Error(err)
	}
	if r := p.cronJob.Spec.JobTemplate.Spec; *r.BackoffLimit != maxRetries || r.PodFailurePolicy == nil || len(job.Containers[0].Env) != 1 {
		t.Errorf("a Job whose pod is lost does not start another one, or that does not know what the first has created: %+v", r)
	}
	kubeconfig := c.grant(&p, "verify", -1)
	for range 2 { // the second pod of a Job
		var jobOut, jobErr bytes.Buffer
		if code := run(t.Context(), strings.NewReader(""), &jobOut, &jobErr, append([]string{"--kubeconfig", kubeconfig}, argsOfJob(&p, "job-1")...)); code != 0 {
			t.Fatalf("the CronJob's command: code %d, %s%s", code, &jobOut, &jobErr)
		}
	}
	if names := c.taskNames(); len(names) != 1 || !strings.HasPrefix(names[0], "verify-latest-") {
		t.Errorf("two pods of a Job have created %q", names)
	}
	if p := proofs(0); p[0].State != proofProven || p[0].Verified == nil || time.Since(*p[0].Verified) > time.Hour {
		t.Errorf("after: %+v", p)
	}
	if out, _, code := c.run("repository", "proofs", "--within", "1ns"); code != exitFailed || !strings.Contains(out, "shop/db-0:data  default   Old") {
		t.Errorf("--within: code %d, %s", code, out)
	}
	c.losePacks("shop")
	out, errOut, code = c.run("repository", "verify", "--latest")
	if code != exitFailed || !strings.Contains(errOut, "not proven (Mismatched)") {
		t.Errorf("damaged: code %d, %s%s", code, out, errOut)
	}
	if p := proofs(exitFailed); p[0].State != proofDamaged || p[0].Verified == nil {
		t.Errorf("damaged: %+v", p)
	}
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"two subjects":      {[]string{"verify", "--latest", "--backup", "nightly"}, 2, "--latest cannot be combined"},
		"bytes of a backup": {[]string{"verify", "--backup", "nightly", "--max-bytes", "1Gi"}, 2, "need --latest"},
		"time of a backup":  {[]string{"verify", "--backup", "nightly", "--max-duration", "1h"}, 2, "need --latest"},
		"no time":           {[]string{"verify", "--latest", "--max-duration", "-1h"}, 2, "is not positive"},
		"strange size":      {[]string{"verify", "--latest", "--max-bytes", "much"}, 2, "is not a size"},
		"no size":           {[]string{"verify", "--latest", "--max-bytes", "0"}, 2, "is not a size"},
		"strange schedule":  {[]string{"verify", "--latest", "--schedule", "daily"}, 2, "want five fields"},
		"schedule and JSON": {[]string{"verify", "--latest", "--schedule", "@daily", "-o", "json"}, 2, "--schedule prints YAML"},
		"image only":        {[]string{"verify", "--latest", "--image", "x"}, 2, "--image needs --schedule"},
		"proofs of nobody":  {[]string{"proofs", "--volume", "nobody"}, exitFailed, "nothing is proven: no completed PodVolumeBackup"},
		"proofs of no time": {[]string{"proofs", "--within", "0"}, 2, "is not positive"},
		"verify of nobody's": {
			[]string{"verify", "--latest", "--volume", "nobody"},
			exitFailed,
			"not proven (NoPodVolumes): namespace " + c.Namespace + " has no completed PodVolumeBackup of volume nobody/*:*. 'kubectl -n velero get podvolumebackups -L velero.io/backup-name' lists",
		},
	} {
		if _, errOut, code := c.run(append([]string{"repository"}, test.args...)...); code != test.code || !strings.Contains(errOut, test.want) {
			t.Errorf("%s: code %d: %s", name, code, errOut)
		}
	}
}

// taskNames returns the names of the RepositoryTasks.
func (c *cluster) taskNames() (names []string) {
	c.t.Helper()
	var tasks v1alpha1.RepositoryTaskList
	if err := c.Client.List(c.t.Context(), &tasks, client.InNamespace(c.Namespace)); err != nil {
		c.t.Fatal(err)
	}
	for i := range tasks.Items {
		names = append(names, tasks.Items[i].Name)
	}
	return names
}

// TestTaskOfARun calls commands as the pods of Jobs do: they follow the task that an earlier pod has created. Another Job, and other flags, have their own.
// A task that somebody deletes is not created again: no pod follows after that exit code.
func TestTaskOfARun(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i, args := range [][]string{
		{"verify", "--latest", "--run-id=monday"},
		{"verify", "--latest", "--run-id=tuesday"},
		{"verify", "--latest", "--run-id=monday", "--sample=5%"},
		{"check", "--latest", "--run-id=monday"},
		{"prune", "--yes", "--run-id=monday"},
		{"usage", "--latest", "--refresh", "--run-id=monday"},
	} {
		for range 2 {
			if _, errOut, code := c.run(append([]string{"repository"}, append(args, "--no-wait")...)...); code != 0 {
				t.Fatalf("%q: code %d: %s", args, code, errOut)
			}
		}
		if names := c.taskNames(); len(names) != i+1 {
			t.Errorf("%q: %q", args, names)
		}
	}
	if _, errOut, code := c.run("repository", "verify", "--latest", "--schedule=@daily", "--run-id=x"); code != exitMisused || !strings.Contains(errOut, "cannot be combined with --run-id") {
		t.Errorf("code %d: %s", code, errOut)
	}
	ended := make(chan string, 1)
	go func() {
		_, errOut, code := c.run("repository", "repair", "--index", "--latest")
		ended <- fmt.Sprintf("code %d: %s", code, errOut)
	}()
	task := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta("")}
	c.Eventually("the task", func() bool {
		names := c.taskNames()
		i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "repair-") })
		if i >= 0 {
			task.Name = names[i]
		}
		return i >= 0
	})
	c.Delete(task)
	if got := <-ended; !strings.HasPrefix(got, "code 3: ") || !strings.Contains(got, errGone.Error()) {
		t.Errorf("deleted: %s", got)
	}
}

func (c *cluster) tasksDeployment(image string) *appsv1.Deployment {
	labels := map[string]string{"app": "x"}
	return &appsv1.Deployment{ObjectMeta: c.Meta("plimsoll-repository-tasks"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "tasks", Image: image}}},
		},
	}}
}

func TestProofState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	o := repositoryProofs{within: 24 * time.Hour}
	for name, test := range map[string]struct {
		proof proof.Proof
		empty bool
		want  proofState
	}{
		"never tried":               {want: proofMissing},
		"tried in vain":             {proof: proof.Proof{Tried: now, Failed: true}, want: proofFailed},
		"out of reach since":        {proof: proof.Proof{Tried: now, Failed: true, Verified: now.Add(-time.Hour)}, want: proofFailed},
		"proven":                    {proof: proof.Proof{Verified: now.Add(-time.Hour)}, want: proofProven},
		"long ago":                  {proof: proof.Proof{Verified: now.Add(-25 * time.Hour)}, want: proofOld},
		"damaged after it":          {proof: proof.Proof{Verified: now.Add(-time.Hour), Damaged: true}, want: proofDamaged},
		"empty now":                 {empty: true, want: proofEmpty},
		"empty now, damaged before": {proof: proof.Proof{Damaged: true}, empty: true, want: proofDamaged},
	} {
		if got := o.state(&test.proof, test.empty, now); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// TestProofsKnowChecks: damage that a check has found in the repository of the newest backup is shown, whatever was found later in that of the other
// uploader, until the volume is proven.
func TestProofsKnowChecks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	at := func(minutes int) *metav1.Time {
		return new(metav1.NewTime(time.Now().Add(time.Duration(minutes-60) * time.Minute)))
	}
	backup := func(pod, path string) *velerov1.PodVolumeBackup {
		return &velerov1.PodVolumeBackup{
			ObjectMeta: c.Meta(pod),
			Spec:       velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: pod}, Volume: "data", BackupStorageLocation: "default", UploaderType: path},
			Status:     velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: "aa11", StartTimestamp: at(0)},
		}
	}
	ended := func(kind v1alpha1.RepositoryTaskType, minutes int) *v1alpha1.RepositoryTask {
		task := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(strings.ToLower(string(kind)) + "-" + strconv.Itoa(minutes)), Spec: v1alpha1.RepositoryTaskSpec{Type: kind, Latest: true}}
		task.Status.Phase, task.Status.CompletionTimestamp = v1alpha1.PhaseCompleted, at(minutes)
		return task
	}
	create := func(task *v1alpha1.RepositoryTask) {
		t.Helper()
		status := task.Status
		c.Create(task)
		task.Status = status
		if err := c.Client.Status().Update(t.Context(), task); err != nil {
			t.Fatal(err)
		}
	}
	verified := func(minutes int, pod, path string) {
		task := ended(v1alpha1.TaskVerify, minutes)
		task.Status.Volumes = []v1alpha1.RepositoryTaskVolume{{
			PodVolumeBackup: pod, Namespace: "shop", Pod: pod, Volume: "data", BackupStorageLocation: "default", Uploader: path,
			Result: v1alpha1.VolumeVerified, BackupTimestamp: at(0), CompletionTimestamp: at(minutes),
		}}
		create(task)
	}
	checked := func(minutes int, path string, result v1alpha1.RepositoryResult) {
		task := ended(v1alpha1.TaskCheck, minutes)
		task.Status.Repositories = []v1alpha1.RepositoryTaskRepository{{
			BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: path, Result: result, CompletionTimestamp: at(minutes),
		}}
		create(task)
	}
	states := func(want ...proofState) {
		t.Helper()
		out, errOut, _ := c.run("repository", "proofs", "-o", "json")
		var shown []volumeProof
		if err := json.Unmarshal([]byte(out), &shown); err != nil {
			t.Fatal(err, out, errOut)
		}
		var got []proofState
		for _, p := range shown {
			got = append(got, p.State)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the volumes of db-0 and web-0 are %v, want %v", got, want)
		}
	}
	c.Create(backup("db-0", "kopia"))
	web := backup("web-0", "restic")
	c.Create(web)
	verified(1, "db-0", "kopia")
	verified(2, "web-0", "restic")
	states(proofProven, proofProven)
	checked(3, "restic", v1alpha1.RepositoryDamaged)
	states(proofProven, proofDamaged)
	checked(4, "kopia", v1alpha1.RepositoryWhole)
	states(proofProven, proofDamaged)
	checked(5, "kopia", v1alpha1.RepositoryDamaged)
	verified(6, "web-0", "restic")
	states(proofDamaged, proofProven)
	checked(7, "kopia", v1alpha1.RepositoryWhole)
	states(proofProven, proofProven)
	c.Patch(web, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":"`+at(8).UTC().Format(time.RFC3339)+`"}}}`)
	states(proofProven, proofDamaged)
}
