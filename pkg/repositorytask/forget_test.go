package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/kopiarepo"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

func (s *site) forgetting() Config {
	cfg := s.config()
	cfg.Forgetters = map[string]uploader.Forgetter{"restic": s.restic, "kopia": s.kopia}
	return cfg
}

func (s *site) forgetTask(name string, last int32, acknowledge string) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{
		Type: v1alpha1.TaskForget, Keep: &v1alpha1.RetentionPolicy{Last: last}, Apply: true, Acknowledge: acknowledge,
	}}
}

// newRepository makes an empty repository.
func (s *site) newRepository(kind, namespace string) {
	s.t.Helper()
	repository := s.repository(kind, namespace)
	dir, local := repository.Local()
	if !local {
		if err := s.kopia.Initialize(s.t.Context(), repository); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if kind == "restic" {
		resticrepo.Create(s.t, dir)
	} else {
		kopiarepo.Create(s.t, dir)
	}
}

// own backs a volume up as 'volume backup' and the node agent do, so many days ago.
func (s *site) own(kind, namespace, pod string, days int) *velerov1.PodVolumeBackup {
	s.t.Helper()
	tags := map[string]string{"ns": namespace, "pod": pod, "volume": "data"}
	sent, source := tags, ""
	if kind == "kopia" {
		sent, source = map[string]string{"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": "kopia"}, "snapshot-pod-volume/kopia/"+namespace+"/"+pod+"/data"
	}
	volume := s.t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "file"), fmt.Appendf(nil, "%s %s %s %d", kind, namespace, pod, days), 0o600); err != nil {
		s.t.Fatal(err)
	}
	dir, err := os.Open(volume)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	var data uploader.Uploader = s.kopia
	if kind == "restic" {
		data = s.restic
	}
	stored, err := data.Backup(s.t.Context(), uploader.BackupRequest{Repository: s.repository(kind, namespace), Volume: dir, Source: source, Tags: sent}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: s.Meta(fmt.Sprintf("%s-%s-%d", kind, pod, days)),
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod}, Volume: "data", BackupStorageLocation: "default", UploaderType: kind, Node: "n", Tags: tags,
			RepoIdentifier: map[bool]string{true: s.repository(kind, namespace).URL}[kind == "restic"],
		},
		Status: velerov1.PodVolumeBackupStatus{
			Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: stored.SnapshotID, StartTimestamp: new(metav1.NewTime(time.Now().AddDate(0, 0, -days))),
		},
	}
	s.Create(pvb)
	return pvb
}

// snapshots returns how many snapshots a repository has.
func (s *site) snapshots(kind, namespace string) int {
	s.t.Helper()
	var reader uploader.UsageReader = s.kopia
	if kind == "restic" {
		reader = s.restic
	}
	usage, err := reader.Usage(s.t.Context(), uploader.UsageRequest{Repository: s.repository(kind, namespace)}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return len(usage.Snapshots)
}

// records returns the names of the PodVolumeBackups, and those that are marked.
func (s *site) records() (names, marked []string) {
	s.t.Helper()
	var list velerov1.PodVolumeBackupList
	if err := s.Client.List(s.t.Context(), &list, client.InNamespace(s.Namespace)); err != nil {
		s.t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
		if list.Items[i].Annotations[v1alpha1.AnnotationForgetting] != "" {
			marked = append(marked, list.Items[i].Name)
		}
	}
	return names, marked
}

// becomes returns what became of a snapshot.
func becomes(task *v1alpha1.RepositoryTask, record string) v1alpha1.RetentionSnapshot {
	for _, v := range task.Status.Retention.Volumes {
		for _, s := range v.Snapshots {
			if s.PodVolumeBackup == record {
				return s
			}
		}
	}
	return v1alpha1.RetentionSnapshot{}
}

// TestForget: a plan changes nothing, a wave stops without its acknowledgement, and then what goes and what stays is what the plan said,
// with both data paths and beside a Backup. After that, each new backup explains one that goes.
func TestForget(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	for _, kind := range []string{"restic", "kopia"} {
		s.newRepository(kind, "shop")
		for _, days := range []int{3, 2, 1} {
			s.own(kind, "shop", kind+"-0", days)
		}
		s.storeInto(b, kind, "shop", kind+"-velero")
	}
	s.start(s.forgetting())

	plan := s.forgetTask("plan", 1, "")
	plan.Spec.Apply = false
	plan = s.ended(plan)
	condition := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionPlanned)
	wave := plan.Status.Retention.Wave
	if plan.Status.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Reason != string(v1alpha1.ReasonPlanned) || len(wave) != 16 || plan.Status.Retention.Unexplained != 4 ||
		condition.Message != "4 snapshots would be forgotten, 2 kept, of 2 volumes; nothing was changed. This is wave "+wave {
		t.Fatalf("%+v", plan.Status)
	}
	untouched := func(when string) {
		t.Helper()
		names, marked := s.records()
		if len(names) != 8 || len(marked) > 0 || s.snapshots("restic", "shop") != 4 || s.snapshots("kopia", "shop") != 4 {
			t.Fatalf("%s: %v, %v", when, names, marked)
		}
	}
	untouched("after a plan")
	for name, acknowledge := range map[string]string{"none": "", "another": "0123456789abcdef"} {
		stopped := s.ended(s.forgetTask("stopped-"+name, 1, acknowledge))
		if stopped.Status.Phase != v1alpha1.PhaseFailed || stopped.Status.Reason != v1alpha1.ReasonNotAcknowledged || !strings.Contains(stopped.Status.Message, wave) || becomes(stopped, "kopia-kopia-0-2").Result != v1alpha1.RetentionPending {
			t.Errorf("%s: %+v", name, stopped.Status)
		}
	}
	untouched("without an acknowledgement")

	// Two at once: the second one has nothing left of the wave.
	second := s.forgetTask("second", 1, wave)
	first := s.forgetTask("first", 1, wave)
	s.Create(second)
	first = s.ended(first)
	if err := s.untilEnded(second); err != nil {
		t.Fatal(err)
	}
	if first.Status.Phase == second.Status.Phase {
		t.Errorf("%+v and %+v", first.Status, second.Status)
	}
	done, late := first, second
	if second.Status.Phase == v1alpha1.PhaseCompleted {
		done, late = second, first
	}
	condition = meta.FindStatusCondition(done.Status.Conditions, v1alpha1.ConditionForgotten)
	if condition == nil || condition.Status != metav1.ConditionTrue || condition.Message != "4 snapshots forgotten, 2 kept, of 2 volumes" || *done.Status.Percent != 100 {
		t.Errorf("%+v", done.Status)
	}
	if late.Status.Reason != v1alpha1.ReasonNotAcknowledged || !strings.Contains(late.Status.Message, "there is nothing to forget now") {
		t.Errorf("%+v", late.Status)
	}
	for _, kind := range []string{"restic", "kopia"} {
		if n := s.snapshots(kind, "shop"); n != 2 {
			t.Errorf("%s has %d snapshots", kind, n)
		}
		if kept := becomes(done, kind+"-"+kind+"-0-1"); kept.Result != v1alpha1.RetentionKept || kept.Rules[0] != "Last" {
			t.Errorf("%+v", kept)
		}
		if gone := becomes(done, kind+"-"+kind+"-0-3"); gone.Result != v1alpha1.RetentionForgotten {
			t.Errorf("%+v", gone)
		}
	}
	if names, marked := s.records(); len(names) != 4 || len(marked) > 0 {
		t.Errorf("%v, %v", names, marked)
	}
	for _, r := range done.Status.Repositories {
		if r.Result != v1alpha1.RepositoryForgotten || r.Snapshots != 2 {
			t.Errorf("%+v", r)
		}
	}
	if proven := s.ended(s.task("proof", "nightly")); proven.Status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("the Backup: %+v", proven.Status)
	}

	s.own("restic", "shop", "restic-0", 0)
	steady := s.ended(s.forgetTask("steady", 1, ""))
	if steady.Status.Phase != v1alpha1.PhaseCompleted || becomes(steady, "restic-restic-0-1").Result != v1alpha1.RetentionForgotten || s.snapshots("restic", "shop") != 2 {
		t.Errorf("%+v", steady.Status)
	}
}

// untilEnded waits for the end of a task.
func (s *site) untilEnded(task *v1alpha1.RepositoryTask) error {
	var err error
	s.Eventually("the end of "+task.Name, func() bool {
		err = s.Client.Get(s.t.Context(), client.ObjectKeyFromObject(task), task)
		return err == nil && task.Status.Phase.Terminal()
	})
	return err
}

// TestForgetSpec: the API server refuses tasks that make no sense.
func TestForgetSpec(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, change := range map[string]func(*v1alpha1.RepositoryTaskSpec){
		"no policy":    func(spec *v1alpha1.RepositoryTaskSpec) { spec.Keep = nil },
		"empty policy": func(spec *v1alpha1.RepositoryTaskSpec) { spec.Keep = &v1alpha1.RetentionPolicy{} },
		"negative":     func(spec *v1alpha1.RepositoryTaskSpec) { spec.Keep.Last = -1 },
		"no time":      func(spec *v1alpha1.RepositoryTaskSpec) { spec.Keep.Within = &metav1.Duration{} },
		"a Backup":     func(spec *v1alpha1.RepositoryTaskSpec) { spec.Backup = "nightly" },
		"latest":       func(spec *v1alpha1.RepositoryTaskSpec) { spec.Latest = true },
		"policy of verify": func(spec *v1alpha1.RepositoryTaskSpec) {
			spec.Type, spec.Latest, spec.Apply = v1alpha1.TaskVerify, true, false
		},
	} {
		task := s.forgetTask("invalid", 1, "")
		change(&task.Spec)
		if err := s.Client.Create(t.Context(), task); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	s.start(s.forgetting())
	within := s.forgetTask("within", 0, "")
	within.Spec.Keep = &v1alpha1.RetentionPolicy{Within: &metav1.Duration{Duration: 30 * 24 * time.Hour}}
	if got := s.ended(within); got.Status.Reason != v1alpha1.ReasonNoPodVolumes {
		t.Errorf("%+v", got.Status)
	}
}

// interrupting is a data path that does something before or after it removes snapshots.
type interrupting struct {
	uploader.Forgetter
	before, after func(ctx context.Context, look bool)
}

func (f interrupting) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	look := len(req.Snapshots) > 0 && req.Snapshots[0].Look
	if f.before != nil {
		f.before(ctx, look)
	}
	result, err := f.Forgetter.Forget(ctx, req, p)
	if f.after != nil {
		f.after(ctx, look)
	}
	if ctx.Err() != nil {
		return uploader.ForgetResult{}, ctx.Err()
	}
	return result, err
}

// TestForgetKilled: a process that ends before or after the snapshots are removed leaves marked records, and the next one ends the task
// as if nothing had happened.
func TestForgetKilled(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for name, left := range map[string]int{"before": 3, "after": 1} {
		for _, kind := range []string{"restic", "kopia"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.newRepository(kind, "shop")
				for _, days := range []int{2, 1, 0} {
					s.own(kind, "shop", "db-0", days)
				}
				reached := make(chan struct{})
				kill := func(ctx context.Context, look bool) {
					if !look {
						close(reached)
						<-ctx.Done()
					}
				}
				cfg := s.forgetting()
				f := interrupting{Forgetter: cfg.Forgetters[kind]}
				if name == "before" {
					f.before = kill
				} else {
					f.after = kill
				}
				cfg.Forgetters = map[string]uploader.Forgetter{kind: f}
				stop := s.start(cfg)
				task := s.forgetTask("task", 1, "")
				task.Spec.Acknowledge = s.waveOf(task)
				s.Create(task)
				<-reached
				stop()
				if names, marked := s.records(); len(names) != 3 || len(marked) != 2 || s.snapshots(kind, "shop") != left {
					t.Fatalf("%v, %v", names, marked)
				}
				s.start(s.forgetting())
				if err := s.untilEnded(task); err != nil {
					t.Fatal(err)
				}
				if task.Status.Phase != v1alpha1.PhaseCompleted || task.Status.Attempts != 2 || becomes(task, kind+"-db-0-2").Result != v1alpha1.RetentionForgotten {
					t.Errorf("%+v", task.Status)
				}
				if names, marked := s.records(); len(names) != 1 || len(marked) > 0 || s.snapshots(kind, "shop") != 1 {
					t.Errorf("%v, %v", names, marked)
				}
			})
		}
	}
}

// losing is a data path that says that another snapshot was lost, and whose process then ends.
type losing struct {
	uploader.Forgetter
	reached chan struct{}
}

func (f losing) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	result, err := f.Forgetter.Forget(ctx, req, p)
	if !req.Snapshots[0].Look {
		result.Lost = []string{"12345678"}
		close(f.reached)
		<-ctx.Done()
	}
	return result, err
}

// TestLossIsKept: that a snapshot was lost is what the task ends with, also if another process ends it.
func TestLossIsKept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	for _, days := range []int{2, 1, 0} {
		s.own("restic", "shop", "db-0", days)
	}
	cfg := s.forgetting()
	f := losing{cfg.Forgetters["restic"], make(chan struct{})}
	cfg.Forgetters = map[string]uploader.Forgetter{"restic": f}
	stop := s.start(cfg)
	task := s.forgetTask("task", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	s.Create(task)
	<-f.reached
	stop()
	s.start(s.forgetting())
	if err := s.untilEnded(task); err != nil {
		t.Fatal(err)
	}
	if status := task.Status; status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonUnconfirmed || !strings.Contains(status.Message, "snapshot 12345678, which was not to be forgotten") {
		t.Errorf("%+v", task.Status)
	}
	if names, marked := s.records(); len(names) != 1 || len(marked) > 0 {
		t.Errorf("%v, %v", names, marked)
	}
}

// TestForgetShortened: backups come three times as fast as before, as when somebody changes a schedule, and each of them pushes one out of the policy. No night
// shows that the history gets lost, until it is less than half as long: then the task stops, and goes on with the acknowledgement of exactly its wave.
func TestForgetShortened(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	for _, kind := range []string{"restic", "kopia"} {
		s.newRepository(kind, "shop")
		for _, days := range []int{12, 11, 10, 9} {
			s.own(kind, "shop", "db-0", days)
		}
	}
	s.start(s.forgetting())
	policy := func(name, acknowledge string) *v1alpha1.RepositoryTask { return s.forgetTask(name, 4, acknowledge) }
	if first := s.ended(policy("first", "")); first.Status.Phase != v1alpha1.PhaseCompleted {
		t.Fatalf("%+v", first.Status)
	}
	both := func(hours int) {
		t.Helper()
		for _, kind := range []string{"restic", "kopia"} {
			pvb := s.own(kind, "shop", "db-0", hours)
			pvb.Status.StartTimestamp = new(metav1.NewTime(time.Now().Add(-time.Duration(hours) * time.Hour)))
			s.update(pvb)
		}
	}
	for i, hours := range []int{208, 200} { // 9 days ago are 216 hours
		both(hours)
		if task := s.ended(policy(fmt.Sprint("explained-", i), "")); task.Status.Phase != v1alpha1.PhaseCompleted || task.Status.Retention.Unexplained != 0 {
			t.Fatalf("after %d hours: %+v", hours, task.Status)
		}
	}
	both(192)
	stopped := s.ended(policy("stopped", ""))
	wave := stopped.Status.Retention.Wave
	if stopped.Status.Phase != v1alpha1.PhaseFailed || stopped.Status.Reason != v1alpha1.ReasonNotAcknowledged || stopped.Status.Retention.Unexplained != 2 ||
		!strings.Contains(stopped.Status.Message, "shop/db-0:data: rule Last has reached back 3d, and what is kept would reach back 24h: backups come faster") || !strings.Contains(stopped.Status.Message, wave) {
		t.Fatalf("%+v", stopped.Status)
	}
	for _, v := range stopped.Status.Retention.Volumes {
		if !strings.HasPrefix(v.Shortened, "rule Last has reached back 3d") {
			t.Errorf("%s: shortened: %q", v.Uploader, v.Shortened)
		}
	}
	if s.snapshots("restic", "shop") != 5 || s.snapshots("kopia", "shop") != 5 {
		t.Error("snapshots are gone without an acknowledgement")
	}
	both(184)
	if other := s.ended(policy("another-wave", wave)); other.Status.Reason != v1alpha1.ReasonNotAcknowledged || !strings.Contains(other.Status.Message, "is another one") {
		t.Errorf("%+v", other.Status)
	}
	if task := s.ended(policy("acknowledged", s.waveOf(policy("plan", "")))); task.Status.Phase != v1alpha1.PhaseCompleted || s.snapshots("restic", "shop") != 4 || s.snapshots("kopia", "shop") != 4 {
		t.Errorf("%+v", task.Status)
	}
	both(176)
	if task := s.ended(policy("as-fast-as-then", "")); task.Status.Phase != v1alpha1.PhaseCompleted || task.Status.Retention.Unexplained != 0 {
		t.Errorf("%+v", task.Status)
	}
}

// waveOf returns what a task would have to acknowledge.
func (s *site) waveOf(task *v1alpha1.RepositoryTask) string {
	s.t.Helper()
	r := &run{Controller: s.controller(s.config(), s.Client), object: task}
	plan, err := r.planRetention(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return plan.Wave
}

// TestForgetInterrupted: marks of a task that is gone. A snapshot that is there stays, with its record; the record of one that is gone is
// deleted.
func TestForgetInterrupted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	for _, days := range []int{3, 2, 1, 0} {
		pvb := s.own("restic", "shop", "db-0", days)
		if days == 1 || days == 2 {
			pvb.Annotations = map[string]string{v1alpha1.AnnotationForgetting: "of another task"}
			s.update(pvb)
		}
		if days == 2 {
			if _, err := s.restic.Forget(t.Context(), uploader.ForgetRequest{Repository: s.repository("restic", "shop"), Snapshots: []uploader.ForgetSnapshot{{
				ID: pvb.Status.SnapshotID, Volume: uploader.SnapshotVolume{Namespace: "shop", Pod: "db-0", Name: "data"},
			}}}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.start(s.forgetting())
	task := s.ended(s.forgetTask("task", 2, ""))
	if task.Status.Phase != v1alpha1.PhaseCompleted || task.Status.Retention.Wave != "" {
		t.Errorf("%+v", task.Status)
	}
	if there := becomes(task, "restic-db-0-1"); there.Result != v1alpha1.RetentionKept || !strings.Contains(there.Message, "the next task decides") {
		t.Errorf("%+v", there)
	}
	if gone := becomes(task, "restic-db-0-2"); gone.Result != v1alpha1.RetentionForgotten {
		t.Errorf("%+v", gone)
	}
	if names, marked := s.records(); len(names) != 3 || len(marked) > 0 || s.snapshots("restic", "shop") != 3 {
		t.Errorf("%v, %v", names, marked)
	}
}

// lose removes a snapshot from its repository, and leaves its PodVolumeBackup.
func (s *site) lose(pvb *velerov1.PodVolumeBackup) {
	s.t.Helper()
	var data uploader.Forgetter = s.kopia
	if pvb.Spec.UploaderType == "restic" {
		data = s.restic
	}
	result, err := data.Forget(s.t.Context(), uploader.ForgetRequest{Repository: s.repository(pvb.Spec.UploaderType, pvb.Spec.Pod.Namespace), Snapshots: []uploader.ForgetSnapshot{{
		ID: pvb.Status.SnapshotID, Volume: uploader.SnapshotVolume{Namespace: pvb.Spec.Pod.Namespace, Pod: pvb.Spec.Pod.Name, Name: pvb.Spec.Volume},
	}}}, nil)
	if err != nil || result.Snapshots[0].State != uploader.ForgetRemoved {
		s.t.Fatal(result, err)
	}
}

// TestForgetKeptIsLost: where the snapshot that the policy keeps is gone, the older ones of its volume are all that is left, and stay.
func TestForgetKeptIsLost(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, kind := range []string{"restic", "kopia"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository(kind, "shop")
			for _, days := range []int{2, 1} {
				s.own(kind, "shop", "db-0", days)
				s.own(kind, "shop", "web-0", days)
			}
			s.lose(s.own(kind, "shop", "db-0", 0))
			s.start(s.forgetting())
			task := s.forgetTask("task", 1, "")
			task.Spec.Acknowledge = s.waveOf(task)
			task = s.ended(task)
			if task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != v1alpha1.ReasonSnapshotNotFound ||
				!strings.Contains(task.Status.Message, kind+"-db-0-0: the repository does not have the snapshot, which is to be kept") {
				t.Errorf("%+v", task.Status)
			}
			if lost := becomes(task, kind+"-db-0-0"); lost.Result != v1alpha1.RetentionFailed {
				t.Errorf("%+v", lost)
			}
			for _, days := range []string{"2", "1"} {
				left := becomes(task, kind+"-db-0-"+days)
				if left.Result != v1alpha1.RetentionKept || !slices.Equal(left.Rules, []string{retention.RuleLost}) || !strings.Contains(left.Message, kind+"-db-0-0") {
					t.Errorf("%+v", left)
				}
			}
			if gone := becomes(task, kind+"-web-0-2"); gone.Result != v1alpha1.RetentionForgotten {
				t.Errorf("of another volume: %+v", gone)
			}
			if names, marked := s.records(); len(names) != 4 || len(marked) > 0 || s.snapshots(kind, "shop") != 3 {
				t.Errorf("%v, %v", names, marked)
			}
		})
	}
}

// TestForgetNeeded: what begins to need a snapshot after the plan keeps it.
func TestForgetNeeded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("kopia", "shop")
	changed := s.own("kopia", "shop", "db-0", 5)
	ids := map[int]string{}
	for _, days := range []int{3, 2, 1, 0} {
		ids[days] = s.own("kopia", "shop", "db-0", days).Status.SnapshotID
	}
	cfg := s.forgetting()
	cfg.Forgetters["kopia"] = interrupting{Forgetter: s.kopia, before: func(_ context.Context, look bool) {
		if !look {
			return
		}
		s.Create(&velerov1.PodVolumeRestore{ObjectMeta: s.Meta("restore"), Spec: velerov1.PodVolumeRestoreSpec{ //nolint:contextcheck // the test's call, not the data path's
			Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia", SnapshotID: ids[1], SourceNamespace: "shop",
		}})
		changed.Labels = map[string]string{velerov1.BackupNameLabel: "adopted"}
		s.update(changed) //nolint:contextcheck // the test's call, not the data path's
	}}
	s.start(cfg)
	task := s.forgetTask("task", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	task = s.ended(task)
	for record, want := range map[string]string{"kopia-db-0-1": "PodVolumeRestore restore has not ended", "kopia-db-0-5": "changed or deleted meanwhile"} {
		if kept := becomes(task, record); kept.Result != v1alpha1.RetentionKept || !strings.Contains(kept.Message, want) {
			t.Errorf("%+v", kept)
		}
	}
	if task.Status.Phase != v1alpha1.PhaseCompleted || becomes(task, "kopia-db-0-2").Result != v1alpha1.RetentionForgotten {
		t.Errorf("%+v", task.Status)
	}
	if names, marked := s.records(); len(names) != 3 || len(marked) > 0 || s.snapshots("kopia", "shop") != 3 {
		t.Errorf("%v, %v", names, marked)
	}
}

// TestForgetKeptAfterTheMark: who asks for a marked record to be kept, or gives it to a Backup, before its snapshot is removed is heard.
func TestForgetKeptAfterTheMark(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("kopia", "shop")
	for _, days := range []int{3, 2, 1, 0} {
		s.own("kopia", "shop", "db-0", days)
	}
	late := map[string]string{
		"kopia-db-0-3": `{"metadata":{"annotations":{"` + v1alpha1.AnnotationKeep + `":"true"}}}`,
		"kopia-db-0-2": `{"metadata":{"labels":{"` + velerov1.BackupNameLabel + `":"adopted"}}}`,
	}
	marking := interceptor.NewClient(s.Client, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, o, patch, opts...)
			if change := late[o.GetName()]; change != "" {
				delete(late, o.GetName())
				return errors.Join(err, c.Patch(ctx, &velerov1.PodVolumeBackup{ObjectMeta: s.Meta(o.GetName())}, client.RawPatch(types.MergePatchType, []byte(change))))
			}
			return err
		},
	})
	c := s.controller(s.forgetting(), marking)
	c.repositories, c.events = NewRepositories(s.Client, s.Namespace), &events.FakeRecorder{}
	task := s.forgetTask("task", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	s.Create(task)
	if err := c.newRun(task).executeAndRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Get(task)
	for record, rule := range map[string]string{"kopia-db-0-3": retention.RuleKeep, "kopia-db-0-2": retention.RuleAnother} {
		if kept := becomes(task, record); kept.Result != v1alpha1.RetentionKept || !slices.Equal(kept.Rules, []string{rule}) {
			t.Errorf("%+v", kept)
		}
	}
	if names, marked := s.records(); len(names) != 3 || len(marked) > 0 || s.snapshots("kopia", "shop") != 3 || becomes(task, "kopia-db-0-1").Result != v1alpha1.RetentionForgotten {
		t.Errorf("%v, %v: %+v", names, marked, task.Status)
	}
}

// TestForgetMarkWithoutAnAnswer: a mark whose answer was lost is one all the same, and one that is not needed is removed from a record that changes meanwhile.
func TestForgetMarkWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("kopia", "shop")
	for _, days := range []int{3, 2, 1, 0} {
		s.own("kopia", "shop", "db-0", days)
	}
	cutOff := map[string]bool{"kopia-db-0-3": true, "kopia-db-0-2": true}
	change := func(ctx context.Context, c client.Client, name, change string) error {
		return c.Patch(ctx, &velerov1.PodVolumeBackup{ObjectMeta: s.Meta(name)}, client.RawPatch(types.MergePatchType, []byte(change)))
	}
	marking := interceptor.NewClient(s.Client, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			name, data := o.GetName(), ""
			if name == "kopia-db-0-2" {
				raw, err := patch.Data(o)
				if data = string(raw); err != nil {
					return err
				}
			}
			if strings.Contains(data, `"`+v1alpha1.AnnotationForgetting+`":null`) {
				if err := change(ctx, c, name, `{"metadata":{"labels":{"team":"shop"}}}`); err != nil {
					return err
				}
			}
			err := c.Patch(ctx, o, patch, opts...)
			if !cutOff[name] {
				return err
			}
			cutOff[name] = false
			if name == "kopia-db-0-2" {
				err = errors.Join(err, change(ctx, c, name, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationKeep+`":"true"}}}`))
			}
			return errors.Join(err, &url.Error{Op: "Patch", URL: "https://kubernetes", Err: io.EOF})
		},
	})
	c := s.controller(s.forgetting(), marking)
	c.repositories, c.events = NewRepositories(s.Client, s.Namespace), &events.FakeRecorder{}
	task := s.forgetTask("task", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	s.Create(task)
	if err := c.newRun(task).executeAndRecord(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Get(task)
	if kept := becomes(task, "kopia-db-0-2"); kept.Result != v1alpha1.RetentionKept || !slices.Equal(kept.Rules, []string{retention.RuleKeep}) {
		t.Errorf("%+v", kept)
	}
	for _, record := range []string{"kopia-db-0-3", "kopia-db-0-1"} {
		if gone := becomes(task, record); gone.Result != v1alpha1.RetentionForgotten {
			t.Errorf("%+v", gone)
		}
	}
	if names, marked := s.records(); len(names) != 2 || len(marked) > 0 || s.snapshots("kopia", "shop") != 2 {
		t.Errorf("%v, %v: %+v", names, marked, task.Status)
	}
}

// TestForgetFails: nothing is forgotten or marked where the repository cannot be opened or must not be changed, and a snapshot that nobody
// has removed is not taken for a forgotten one.
func TestForgetFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.newRepository("restic", "shop")
	for _, days := range []int{2, 1, 0} {
		s.own("restic", "shop", "db-0", days)
	}
	cfg := s.forgetting()
	cfg.Tries, cfg.LockWait = 1, time.Nanosecond
	broken := errors.New("dial tcp: connection refused")
	var after error // of the removal
	cfg.Forgetters["restic"] = failing{s.restic, &after}
	s.start(cfg)
	expect := func(name string, reason v1alpha1.Reason, says string) {
		t.Helper()
		task := s.forgetTask(name, 1, "")
		task.Spec.Acknowledge = s.waveOf(task)
		task = s.ended(task)
		if task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != reason || !strings.Contains(task.Status.Message, says) || !strings.Contains(task.Status.Message, "0 snapshots forgotten, 1 kept, of 1 volume; 2 not forgotten") {
			t.Errorf("%s: %+v", name, task.Status)
		}
		if names, marked := s.records(); len(names) != 3 || len(marked) > 0 {
			t.Errorf("%s: %v, %v", name, names, marked)
		}
	}
	after = broken
	expect("outage", v1alpha1.ReasonDataPath, "connection refused")
	after = &uploader.LockedError{Owner: "locked by PID 7 on somewhere", Err: fmt.Errorf("%w by PID 7 on somewhere", uploader.ErrRepositoryLocked)}
	expect("locked", v1alpha1.ReasonRepositoryLocked, "PID 7 on somewhere")
	after = nil

	var location velerov1.BackupStorageLocation
	if err := s.Client.Get(t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: "default"}, &location); err != nil {
		t.Fatal(err)
	}
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	if err := s.Client.Update(t.Context(), &location); err != nil {
		t.Fatal(err)
	}
	expect("read-only", v1alpha1.ReasonUnsupported, "is read-only")
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadWrite
	if err := s.Client.Update(t.Context(), &location); err != nil {
		t.Fatal(err)
	}
	s.Delete(&corev1.Secret{ObjectMeta: s.Meta("velero-repo-credentials")})
	s.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": "another"})
	expect("password", v1alpha1.ReasonWrongPassword, "wrong password")
	s.Delete(&corev1.Secret{ObjectMeta: s.Meta("velero-repo-credentials")})
	s.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": resticrepo.Password})
	if n := s.snapshots("restic", "shop"); n != 3 {
		t.Errorf("%d snapshots are left", n)
	}

	if err := os.RemoveAll(filepath.Join(s.repository("restic", "shop").URL, "snapshots")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.repository("restic", "shop").URL, "snapshots"), 0o700); err != nil {
		t.Fatal(err)
	}
	task := s.forgetTask("lost", 1, "")
	task.Spec.Acknowledge = s.waveOf(task)
	task = s.ended(task)
	if task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != v1alpha1.ReasonSnapshotNotFound || !strings.Contains(becomes(task, "restic-db-0-2").Message, "no task has removed it") {
		t.Errorf("%+v", task.Status)
	}
	if names, marked := s.records(); len(names) != 3 || len(marked) > 0 {
		t.Errorf("%v, %v", names, marked)
	}
}

// failing is a data path whose removals fail while err is set.
type failing struct {
	uploader.Forgetter
	err *error
}

func (f failing) Forget(ctx context.Context, req uploader.ForgetRequest, p progress.Sink) (uploader.ForgetResult, error) {
	if !req.Snapshots[0].Look && *f.err != nil {
		return uploader.ForgetResult{}, *f.err
	}
	return f.Forgetter.Forget(ctx, req, p)
}
