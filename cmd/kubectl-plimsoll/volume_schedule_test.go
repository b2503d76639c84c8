package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// printed are the objects of volume backup --schedule.
type printed struct {
	account  corev1.ServiceAccount
	roles    []rbacv1.Role
	bindings []rbacv1.RoleBinding
	cronJob  batchv1.CronJob
}

// readPrinted refuses fields that the API does not have.
func readPrinted(t *testing.T, text string) printed {
	t.Helper()
	var p printed
	for document := range strings.SplitSeq(text, "---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		var err error
		switch kind.Kind {
		case "ServiceAccount":
			err = yaml.UnmarshalStrict([]byte(document), &p.account)
		case "Role":
			p.roles = append(p.roles, rbacv1.Role{})
			err = yaml.UnmarshalStrict([]byte(document), &p.roles[len(p.roles)-1])
		case "RoleBinding":
			p.bindings = append(p.bindings, rbacv1.RoleBinding{})
			err = yaml.UnmarshalStrict([]byte(document), &p.bindings[len(p.bindings)-1])
		case "CronJob":
			err = yaml.UnmarshalStrict([]byte(document), &p.cronJob)
		default:
			t.Fatalf("printed is a %q:\n%s", kind.Kind, document)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// TestVolumeSchedule applies what is printed, and makes the backup as the CronJob's pod would: with its rights and arguments.
// Then it does without each of the rights.
func TestVolumeSchedule(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startAgent(0)
	c.agentPod()
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	c.Create(shop)
	pod := c.sourceIn(shop.Name)
	out, errOut, code := c.run("volume", "backup", shop.Name+"/"+pod.Name, "data", "--schedule", "0 3 * * *")
	if code != 0 || !strings.Contains(errOut, "Nothing is created") {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	var made velerov1.PodVolumeBackupList
	if err := c.Client.List(t.Context(), &made, client.InNamespace(c.Namespace)); err != nil || len(made.Items) > 0 {
		t.Fatalf("created %d PodVolumeBackups, %v", len(made.Items), err)
	}
	p := readPrinted(t, out)
	job := p.cronJob.Spec.JobTemplate.Spec.Template.Spec
	if p.cronJob.Spec.Schedule != "0 3 * * *" || job.Containers[0].Image != "plimsoll:v0.1.0" || job.ServiceAccountName != p.account.Name ||
		len(job.ImagePullSecrets) != 1 || *p.cronJob.Spec.JobTemplate.Spec.ActiveDeadlineSeconds != 24*60*60 {
		t.Errorf("the CronJob is %+v", p.cronJob.Spec)
	}
	strict := client.WithFieldValidation(c.Client, metav1.FieldValidationStrict)
	if err := strict.Create(t.Context(), p.cronJob.DeepCopy(), client.DryRunAll); err != nil {
		t.Error(err)
	}
	strictest := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "strict-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	c.Create(strictest)
	if err := strict.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: strictest.Name, Name: "job"}, Spec: job}, client.DryRunAll); err != nil {
		t.Error(err)
	}
	if r := p.cronJob.Spec.JobTemplate.Spec; *r.BackoffLimit != maxRetries || !slices.Equal(r.PodFailurePolicy.Rules[0].OnExitCodes.Values, []int32{2, 3, 4}) {
		t.Errorf("the Job is %+v", r)
	}
	if env := job.Containers[0].Env; len(env) != 1 || env[0].Name != "PLIMSOLL_RUN_ID" || env[0].ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/controller-uid']" {
		t.Errorf("the environment is %+v", env)
	}
	args := argsOfJob(&p, "job-1")

	kubeconfig := c.grant(&p, "all", -1)
	var jobOut, jobErr bytes.Buffer
	if code := run(t.Context(), strings.NewReader(""), &jobOut, &jobErr, append([]string{"--kubeconfig", kubeconfig}, args...)); code != 0 {
		t.Fatalf("with all rights: code %d, %s%s", code, &jobOut, &jobErr)
	}
	rules := 0
	for i := range p.roles {
		rules += len(p.roles[i].Rules)
	}
	if rules != 6 {
		t.Errorf("%d rules", rules)
	}
	for without := range rules {
		t.Run(fmt.Sprintf("without rule %d", without), func(t *testing.T) {
			t.Parallel()
			kubeconfig := c.grant(&p, fmt.Sprintf("without-%d", without), without)
			var out, errOut bytes.Buffer
			code := run(t.Context(), strings.NewReader(""), &out, &errOut, append([]string{"--kubeconfig", kubeconfig}, args...))
			if code != 1 || !strings.Contains(errOut.String(), "forbidden") {
				t.Errorf("code %d, %s%s", code, &out, &errOut)
			}
		})
	}
}

// TestJobsOfUnknownImages: a pod of a version that does not know what another one has begun is alone, or a task that fails would be begun again and again.
func TestJobsOfUnknownImages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		own   string
		knows bool
	}{
		"plimsoll:v0.1.0": {"dev", true},
		"registry.example.com:5000/plimsoll/node-agent:0.2.1":                    {"v0.1.0", true},
		"registry.example.com/plimsoll:v1.0.0@sha256:" + strings.Repeat("a", 64): {"v0.1.0", true},
		"plimsoll:4532b36":                           {"4532b36", true},
		"plimsoll:v0.1.0-5-g4532b36":                 {"v0.1.0-5-g4532b36", true},
		"plimsoll:v0.1.0-rc.1":                       {"v0.1.0", false},
		"plimsoll:v0.0.9":                            {"v0.1.0", false},
		"plimsoll:b840b59":                           {"4532b36", false},
		"plimsoll:latest":                            {"v0.1.0", false},
		"plimsoll:dev":                               {"dev", false},
		"plimsoll:unknown":                           {"unknown", false},
		"plimsoll":                                   {"", false},
		"registry.example.com:5000/plimsoll":         {"v0.1.0", false},
		"plimsoll@sha256:" + strings.Repeat("a", 64): {"v0.1.0", false},
	} {
		if got := (image{name: name}).knowsRunID(test.own); got != test.knows {
			t.Errorf("plugin %s, image %s: %t", test.own, name, got)
		}
	}
	job := cronJob{image: image{name: "plimsoll:latest"}}
	spec := job.object().(*batchv1.CronJob).Spec.JobTemplate.Spec
	if *spec.BackoffLimit != 0 || spec.PodFailurePolicy != nil || len(spec.Template.Spec.Containers[0].Env) > 0 {
		t.Errorf("%+v", spec)
	}
	var said strings.Builder
	if job.warn(&said); !strings.Contains(said.String(), "A Job starts one pod only, also if that is lost: the tag of image plimsoll:latest does not say that it has version v0.1.0 or later") {
		t.Error(said.String())
	}
}

// argsOfJob are the arguments that the pod of a Job with this UID gets, and what it has in its environment.
func argsOfJob(p *printed, uid string) []string {
	return append(slices.Clone(p.cronJob.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args), "--run-id="+uid)
}

// TestVolumeBackupOfARun calls the command again as a second pod of a Job would: it follows what the first has created, also if that has
// ended, and another Job creates its own.
func TestVolumeBackupOfARun(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	pod, _ := c.source(true)
	backup := func(id string, flags ...string) (out, errOut string, code int) {
		return c.run(append([]string{"volume", "backup", c.Namespace + "/" + pod.Name, "data", "--run-id=" + id}, flags...)...)
	}
	made := func(want int) *velerov1.PodVolumeBackup {
		t.Helper()
		var list velerov1.PodVolumeBackupList
		if err := c.Client.List(t.Context(), &list, client.InNamespace(c.Namespace)); err != nil || len(list.Items) != want {
			t.Fatalf("%d PodVolumeBackups, want %d, %v", len(list.Items), want, err)
		}
		return &list.Items[0]
	}
	for range 2 {
		if _, errOut, code := backup("monday", "--no-wait"); code != 0 {
			t.Fatalf("code %d: %s", code, errOut)
		}
	}
	first := made(1)
	c.Change(first, func() { first.Status.Phase, first.Status.Message = velerov1.PodVolumeBackupPhaseFailed, "no space" })
	if _, errOut, code := backup("monday"); code != exitFailed || !strings.Contains(errOut, "of this run exists") || !strings.Contains(errOut, "no space") {
		t.Errorf("code %d: %s", code, errOut)
	}
	made(1)
	for i, other := range [][]string{{"monday", "--uploader=kopia"}, {"tuesday"}} {
		if _, errOut, code := backup(other[0], append(other[1:], "--no-wait")...); code != 0 {
			t.Errorf("%q: code %d: %s", other, code, errOut)
		}
		made(2 + i)
	}
}

// The pod of a Job has the id in its environment, which an older image takes no notice of.
func TestRunIDOfTheEnvironment(t *testing.T) {
	t.Setenv(runIDVariable, "job-1")
	if id := volumeBackupCommand(nil).Flags().Lookup("run-id").Value.String(); id != "job-1" {
		t.Errorf("the id is %q", id)
	}
}

// TestStaleStatus backs up to a location that was recorded as Unavailable when a server still ran, with a repository recorded as NotReady.
func TestStaleStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	pod, _ := c.source(true)
	c.Create(&velerov1.BackupStorageLocation{
		ObjectMeta: c.Meta("away"),
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: "aws", StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		},
		Status: velerov1.BackupStorageLocationStatus{Phase: velerov1.BackupStorageLocationPhaseUnavailable, Message: "no\x1b[2J bucket"},
	})
	repository := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "shop-away-restic", Labels: map[string]string{
			velerov1.VolumeNamespaceLabel: c.Namespace, velerov1.StorageLocationLabel: "away", velerov1.RepositoryTypeLabel: "restic",
		}},
		Spec:   velerov1.BackupRepositorySpec{VolumeNamespace: c.Namespace, BackupStorageLocation: "away", RepositoryType: "restic", MaintenanceFrequency: metav1.Duration{Duration: time.Hour}},
		Status: velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseNotReady, Message: "stale lock"},
	}
	c.Create(repository)
	for name, args := range map[string][]string{
		"backup":  {"backup", c.Namespace + "/" + pod.Name, "data", "--to=away", "--no-wait"},
		"restore": {"restore", c.Namespace + "/" + pod.Name, "data", "--from=" + strings.Repeat("a", 8), "--location=away", "--path=a", "--no-wait"},
	} {
		out, errOut, code := c.run(append([]string{"volume"}, args...)...)
		if code != 0 || !strings.Contains(out, " created") {
			t.Errorf("%s: code %d: %s%s", name, code, out, errOut)
		}
		for _, want := range []string{`away was last recorded as Unavailable: no\x1b[2J bucket.`, "shop-away-restic was last recorded as NotReady: stale lock."} {
			if !strings.Contains(errOut, want) {
				t.Errorf("%s does not say %q: %s", name, want, errOut)
			}
		}
	}
}

// sourceIn makes a running pod with a file in its claim in another namespace than Velero's.
func (c *cluster) sourceIn(namespace string) *corev1.Pod {
	c.t.Helper()
	other := *c
	other.Env = c.In(namespace)
	pod, _ := other.source(true)
	return pod
}

// grant makes a service account with the printed roles, but for one of their rules, and a kubeconfig for it. It waits until
// the API server knows them.
func (c *cluster) grant(p *printed, name string, without int) (kubeconfig string) {
	c.t.Helper()
	account := p.account.DeepCopy()
	account.Name = name
	c.Create(account)
	var rules []rbacv1.PolicyRule
	var namespaces []string
	n := 0
	for i := range p.roles {
		role, binding := p.roles[i].DeepCopy(), p.bindings[i].DeepCopy()
		role.Name, binding.Name, binding.RoleRef.Name, binding.Subjects[0].Name = name, name, name, name
		role.Rules = slices.DeleteFunc(role.Rules, func(rbacv1.PolicyRule) bool { n++; return n-1 == without })
		c.Create(role)
		c.Create(binding)
		for _, r := range role.Rules {
			rules, namespaces = append(rules, r), append(namespaces, role.Namespace)
		}
	}
	config := c.WithToken(client.ObjectKeyFromObject(account))
	as, err := client.New(config, client.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range rules {
		c.awaitRight(as, namespaces[i], &rules[i])
	}
	return testenv.Kubeconfig(c.t, config)
}

// awaitRight waits until the API server knows a right: it learns of roles a moment after they were made.
func (c *cluster) awaitRight(as client.Client, namespace string, rule *rbacv1.PolicyRule) {
	c.t.Helper()
	for _, what := range rule.Resources {
		attributes := &authorizationv1.ResourceAttributes{Namespace: namespace, Group: rule.APIGroups[0]}
		attributes.Resource, attributes.Subresource, _ = strings.Cut(what, "/")
		if len(rule.ResourceNames) > 0 {
			attributes.Name = rule.ResourceNames[0]
		}
		for _, attributes.Verb = range rule.Verbs {
			c.Eventually("the right to "+attributes.Verb+" "+what, func() bool {
				review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
				return as.Create(c.t.Context(), review) == nil && review.Status.Allowed
			})
		}
	}
}

// TestScheduleOfEphemeralVolume has a volume whose claim is made for its pod: the backup reads it like any other.
func TestScheduleOfEphemeralVolume(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	claim := c.claim("cache-0-data")
	c.runs(c.podWith("cache-0", claim, func(p *corev1.Pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim.Spec},
		}}
	}))
	out, errOut, code := c.run("volume", "backup", c.Namespace+"/cache-0", "data", "--schedule", "@daily")
	if code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	isClaim := func(r rbacv1.PolicyRule) bool {
		return slices.Equal(r.Resources, []string{"persistentvolumeclaims"}) && slices.Equal(r.ResourceNames, []string{claim.Name})
	}
	if p := readPrinted(t, out); !slices.ContainsFunc(p.roles[0].Rules, isClaim) {
		t.Errorf("the Role is %+v", p.roles)
	}
}

// TestBackupOfEphemeralVolume: the claim of an ephemeral volume has a label and a tag, so that backups of the next one of its name are not taken for its own.
func TestBackupOfEphemeralVolume(t *testing.T) {
	t.Parallel()
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "cache-0-data", UID: "first"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-0"}}
	vol := &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	made := newPodVolumeBackup("velero", pod, vol, &describe.BackupInput{Claims: []corev1.PersistentVolumeClaim{claim}})
	if made.Labels[velerov1.PVCUIDLabel] != "first" || made.Spec.Tags["pvc-uid"] != "first" || made.Annotations != nil {
		t.Errorf("%v, %v, %v", made.Labels, made.Annotations, made.Spec.Tags)
	}
	empty := &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	if made := newPodVolumeBackup("velero", pod, empty, &describe.BackupInput{}); made.Labels != nil || made.Spec.Tags["pvc-uid"] != "" {
		t.Errorf("without a claim: %v, %v", made.Labels, made.Spec.Tags)
	}
}

func TestScheduledNames(t *testing.T) {
	t.Parallel()
	name := func(target podVolume, location, uploader, schedule string) string {
		s := scheduled{volumeBackup: &volumeBackup{target: target, uploader: uploader, schedule: schedule}, namespace: "velero", location: location}
		return s.name()
	}
	data := podVolume{"shop", "db-0", "data"}
	seen := map[string]bool{}
	for _, test := range []struct {
		target             podVolume
		location, uploader string
	}{
		{data, "default", uploaderRestic},
		{data, "far", uploaderRestic},
		{data, "default", uploaderKopia},
		{podVolume{"bank", "db-0", "data"}, "default", uploaderRestic},
		{podVolume{"shop", "db", "0-data"}, "default", uploaderRestic},
		{podVolume{"shop", strings.Repeat("x", 63), "data"}, "default", uploaderRestic},
		{podVolume{"shop", strings.Repeat("x", 63), "log"}, "default", uploaderRestic},
	} {
		got := name(test.target, test.location, test.uploader, "0 3 * * *")
		if len(got) > maxCronJobName || seen[got] {
			t.Errorf("the name for %v is %q", test, got)
		}
		if other := name(test.target, test.location, test.uploader, "@daily"); other != got {
			t.Errorf("with another schedule %q is %q", got, other)
		}
		seen[got] = true
	}
}

// TestVolumeBackupKeeps backs up twice as the Job of a schedule with --keep would: the second time the first backup goes.
func TestVolumeBackupKeeps(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startAgent(0)
	c.agentPod()
	pod, _ := c.source(true)
	volume := []string{"volume", "backup", c.Namespace + "/" + pod.Name, "data", "--keep-last=1"}
	out, errOut, code := c.run(append(volume, "--schedule", "@daily")...)
	if code != 0 {
		t.Fatalf("code %d: %s", code, errOut)
	}
	p := readPrinted(t, out)
	kubeconfig := c.grant(&p, "keep", -1)
	job := func(id string) (out, errOut string, code int) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), strings.NewReader(""), &stdout, &stderr, append([]string{"--kubeconfig", kubeconfig}, argsOfJob(&p, id)...))
		return stdout.String(), stderr.String(), code
	}
	data, err := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Forgetters: map[string]uploader.Forgetter{"restic": data}, ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})
	if out, errOut, code := job("monday"); code != 0 || !strings.Contains(out, "kept    Last") {
		t.Fatalf("first: code %d: %s%s", code, out, errOut)
	}
	var first velerov1.PodVolumeBackupList
	if err := c.Client.List(t.Context(), &first, client.InNamespace(c.Namespace)); err != nil || len(first.Items) != 1 {
		t.Fatalf("%d backups, %v", len(first.Items), err)
	}
	if out, errOut, code := job("tuesday"); code != 0 || !strings.Contains(out, "1 snapshot forgotten, 1 kept, of 1 volume") {
		t.Fatalf("second: code %d: %s%s", code, out, errOut)
	}
	var left velerov1.PodVolumeBackupList
	if err := c.Client.List(t.Context(), &left, client.InNamespace(c.Namespace)); err != nil || len(left.Items) != 1 || left.Items[0].Name == first.Items[0].Name {
		t.Errorf("left are %d backups, %v", len(left.Items), err)
	}
	for _, flags := range [][]string{{"--no-wait"}, {"-o", "json"}, {"-o", "yaml"}, {"--keep-daily=-1"}, {"--keep-within=soon"}} {
		if _, errOut, code := c.run(append(volume, flags...)...); code != 2 {
			t.Errorf("%q: code %d: %s", flags, code, errOut)
		}
	}
}

// TestKeepArguments: what the CronJob's command gets is what the flags have said.
func TestKeepArguments(t *testing.T) {
	t.Parallel()
	want := []string{"--keep-last=1", "--keep-hourly=2", "--keep-daily=3", "--keep-weekly=4", "--keep-monthly=5", "--keep-yearly=6", "--keep-within=30d"}
	var k keepFlags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	k.addFlags(flags)
	if err := flags.Parse(want); err != nil {
		t.Fatal(err)
	}
	if got := k.args(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
