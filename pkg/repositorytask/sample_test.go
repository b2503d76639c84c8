package repositorytask

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func (s *site) sample(name, backup string, percent int32) *v1alpha1.RepositoryTask {
	task := s.task(name, backup)
	task.Spec.Sample = percent
	return task
}

func (s *site) tasks() []v1alpha1.RepositoryTask {
	s.t.Helper()
	var tasks v1alpha1.RepositoryTaskList
	if err := s.Client.List(s.Context(), &tasks, client.InNamespace(s.Namespace)); err != nil {
		s.t.Fatal(err)
	}
	return tasks.Items
}

// TestSample: two tasks read a half of a kopia volume each, and only both together prove it. restic's volume is proven by each.
func TestSample(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	db := s.store(b, "kopia", "shop", "db-0")
	s.store(b, "restic", "shop", "web-0")
	cfg := s.config()
	s.start(cfg)
	metrics := NewMetrics(client.NewNamespacedClient(s.Client, s.Namespace), s.Client, s.Namespace, func(err error) { t.Error(err) })
	ratio := func(want string) {
		t.Helper()
		const name = "plimsoll_backup_sampled_ratio"
		want = "# HELP " + name + " Which share of the parts of the volume's content in the location was read and is what it should be, 0 to 1; absent if no task has sampled it.\n# TYPE " +
			name + " gauge\n" + name + `{location="default",pod_name="db-0",pod_namespace="shop",volume="data"} ` + want + "\n"
		if err := testutil.CollectAndCompare(metrics, strings.NewReader(want), name); err != nil {
			t.Error(err)
		}
	}
	halves := make([]*v1alpha1.RepositoryTask, 2)
	var bytes int64
	for i, name := range []string{"first", "second"} {
		halves[i] = s.ended(s.sample(name, "nightly", 50))
		status := &halves[i].Status
		c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionVerified)
		if status.Phase != v1alpha1.PhaseCompleted || status.Reason != "" || c == nil || c.Status != metav1.ConditionUnknown || c.Reason != string(v1alpha1.ReasonSampled) {
			t.Fatalf("%s: %+v", name, status)
		}
		for _, want := range []string{"1 pod volume verified: 3 files, 3.0 MiB compared; 1 pod volume sampled: part ", map[int]string{0: "part 1 of 2", 1: "part 2 of 2"}[i]} {
			if !strings.Contains(c.Message, want) {
				t.Errorf("%s: %s", name, c.Message)
			}
		}
		kopia, restic := status.Volumes[0], status.Volumes[1]
		if kopia.Result != v1alpha1.VolumeSampled || kopia.SamplePart != int32(i)+1 || kopia.SampleParts != 2 || kopia.Files != 3 {
			t.Errorf("%s: %+v", name, kopia)
		}
		if restic.Result != v1alpha1.VolumeVerified || restic.SampleParts != 0 || restic.Bytes != 3<<20 {
			t.Errorf("%s: %+v", name, restic)
		}
		bytes += kopia.Bytes
		ratio([]string{"0.5", "1"}[i])
		if p := proof.Of(s.tasks())[proof.VolumeOf(db)]; p.PartsRead != i+1 || p.Parts != 2 || p.Verified.IsZero() != (i == 0) {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if bytes != 3<<20 {
		t.Errorf("both have read %d bytes", bytes)
	}
	if p := proof.Of(s.tasks())[proof.VolumeOf(db)]; !p.Verified.Equal(halves[0].Status.Volumes[0].BackupTimestamp.Time) {
		t.Errorf("%+v", p)
	}
	if verified, damaged := s.marks(db); verified || damaged {
		t.Errorf("noted: verified %t, damaged %t", verified, damaged)
	}
	s.Eventually("the Event", func() bool { return strings.Contains(s.events("first"), "Volume shop/db-0:data: part 1 of 2, ") })

	evidence := func(task *v1alpha1.RepositoryTask) bool {
		t.Helper()
		needed, err := s.controller(cfg, s.Client).isEvidence(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		return needed
	}
	if !evidence(halves[0]) || !evidence(halves[1]) {
		t.Error("a task may go that alone has read its part")
	}
	if third := s.ended(s.sample("third", "nightly", 50)); third.Status.Volumes[0].SamplePart != 1 || evidence(halves[0]) {
		t.Errorf("part 1 was read again, and the first task is needed: %v; %+v", evidence(halves[0]), third.Status)
	}
	for name, spec := range map[string]v1alpha1.RepositoryTaskSpec{
		"a check":             {Type: v1alpha1.TaskCheck, Backup: "nightly", Sample: 5},
		"and a restore":       {Type: v1alpha1.TaskVerify, Backup: "nightly", Sample: 5, RestoreTo: &v1alpha1.RestoreTarget{}},
		"more than the half":  {Type: v1alpha1.TaskVerify, Backup: "nightly", Sample: 51},
		"less than something": {Type: v1alpha1.TaskVerify, Backup: "nightly", Sample: -1},
	} {
		if err := s.Client.Create(t.Context(), &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("invalid"), Spec: spec}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestSampleOfDamage: one of two tasks finds the damage, whichever part it is in, and what the other one finds does not hide it.
func TestSampleOfDamage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	db := s.store(s.backup("nightly"), "kopia", "shop", "db-0")
	flip(t, filepath.Join(s.dir, "kopia", "shop"), "p")
	s.start(s.config())
	found := map[v1alpha1.VolumeResult]*v1alpha1.RepositoryTask{}
	for _, name := range []string{"first", "second"} {
		task := s.ended(s.sample(name, "nightly", 50))
		found[task.Status.Volumes[0].Result] = task
	}
	bad, good := found[v1alpha1.VolumeMismatched], found[v1alpha1.VolumeSampled]
	if bad == nil || good == nil {
		t.Fatalf("found %v", found)
	}
	if v := bad.Status.Volumes[0]; bad.Status.Phase != v1alpha1.PhaseFailed || bad.Status.Reason != v1alpha1.ReasonMismatched || v.SampleParts != 2 || v.SamplePart == good.Status.Volumes[0].SamplePart {
		t.Errorf("%+v", bad.Status)
	}
	if p := proof.Of(s.tasks())[proof.VolumeOf(db)]; !p.Damaged || p.PartsRead != 1 || !p.Verified.IsZero() {
		t.Errorf("%+v", p)
	}
	if verified, damaged := s.marks(db); verified || !damaged {
		t.Errorf("noted: verified %t, damaged %t", verified, damaged)
	}
}

// TestSampleBegunAgain: a task whose process ended goes on with the part that it had chosen.
func TestSampleBegunAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "kopia", "shop", "db-0")
	cfg := s.config()
	hangs := stuck{make(chan struct{})}
	cfg.Verifiers = map[string]uploader.Verifier{"kopia": hangs}
	stop := s.start(cfg)
	task := s.sample("task", "nightly", 50)
	s.Create(task)
	<-hangs.begun
	stop()
	s.Get(task)
	v := *task.Status.Volumes[0].DeepCopy()
	if v.SamplePart != 1 || v.SampleParts != 2 {
		t.Fatalf("%+v", v)
	}
	v.Result, v.CompletionTimestamp = v1alpha1.VolumeSampled, new(metav1.Now())
	other := s.sample("other", "nightly", 50)
	s.Create(other)
	s.Change(other, func() {
		other.Status.Phase, other.Status.Volumes = v1alpha1.PhaseCompleted, []v1alpha1.RepositoryTaskVolume{v}
	})
	if next := proof.ResultsOf(s.tasks()).NextPart(&v); next != 2 {
		t.Fatalf("another task would read part %d", next)
	}
	s.start(s.config())
	task = testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
	if v := task.Status.Volumes[0]; v.Result != v1alpha1.VolumeSampled || v.SamplePart != 1 || task.Status.Attempts != 2 {
		t.Errorf("%+v", task.Status)
	}
}
