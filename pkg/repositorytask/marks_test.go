package repositorytask

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestDamageOfARunningBackup: what is found in a backup whose Backup runs is noted on it when that has ended, and until then on the one before of the
// same claim, whose pod had another name. A process that ends meanwhile forgets nothing.
func TestDamageOfARunningBackup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := s.record(s.backup("before"), "restic", "shop", "web-1", "before", velerov1.PodVolumeBackupPhaseCompleted)
	running := s.backup("running")
	s.Patch(running, `{"status":{"phase":"InProgress"}}`)
	now := s.record(running, "restic", "shop", "web-2", "now", velerov1.PodVolumeBackupPhaseCompleted)
	first := s.record(running, "restic", "shop", "first", "first", velerov1.PodVolumeBackupPhaseCompleted)
	s.started(before, 1)
	s.started(now, 2)
	s.started(first, 2)
	for _, pvb := range []*velerov1.PodVolumeBackup{before, now} {
		s.Patch(pvb, `{"metadata":{"labels":{"`+velerov1.PVCUIDLabel+`":"claim"}}}`)
	}
	damaged := uploader.VerifyResult{Mismatched: 1}
	cfg := s.config()
	cfg.Verifiers = map[string]uploader.Verifier{"restic": looks{"before": {{Files: 1}}, "now": {damaged, damaged}, "first": {damaged, damaged}}}
	stop := s.start(cfg)
	task := s.ended(s.latest("latest", ""))
	if task.Status.Phase != v1alpha1.PhaseFailed || task.Annotations[v1alpha1.AnnotationOwesMarks] == "" {
		t.Fatalf("%v %+v", task.Annotations, task.Status)
	}
	stop()
	is := func(what string, want ...bool) {
		t.Helper()
		for i, pvb := range []*velerov1.PodVolumeBackup{before, now, first} {
			if _, damaged := s.marks(pvb); damaged != want[i] {
				t.Errorf("%s: %s is noted as damaged: %t", what, pvb.Name, damaged)
			}
		}
	}
	is("while the Backup runs", true, false, false)
	pay := func() bool {
		t.Helper()
		s.Get(task)
		done, err := s.controller(s.config(), s.Client).newRun(task).payMarks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if pay() {
		t.Error("nothing is owed while the Backup runs")
	}
	s.Patch(running, `{"status":{"phase":"Completed"}}`)
	if !pay() {
		t.Error("it is still owed after the Backup has ended")
	}
	is("after the Backup", true, true, true)
	if s.Get(task); task.Annotations[v1alpha1.AnnotationOwesMarks] != "" {
		t.Errorf("the task has %v", task.Annotations)
	}
}

// untilStuck knows some snapshots, and does not get any further with others.
type untilStuck struct {
	looks
	stuck
}

func (u untilStuck) Verify(ctx context.Context, req uploader.VerifyRequest, p progress.Sink) (uploader.VerifyResult, error) {
	if _, known := u.looks[req.SnapshotID]; known {
		return u.looks.Verify(ctx, req, p)
	}
	return u.stuck.Verify(ctx, req, p)
}

// TestOwedByAnotherProcess: what a process owes to a Backup that runs, the next one knows that goes on with the task.
func TestOwedByAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	running := s.backup("running")
	s.Patch(running, `{"status":{"phase":"WaitingForPluginOperations"}}`)
	first := s.record(running, "restic", "shop", "db-0", "first", velerov1.PodVolumeBackupPhaseCompleted)
	s.record(running, "restic", "shop", "db-1", "second", velerov1.PodVolumeBackupPhaseCompleted)
	damaged, begun := uploader.VerifyResult{Mismatched: 1}, make(chan struct{}, 1)
	cfg := s.config()
	cfg.Verifiers = map[string]uploader.Verifier{"restic": untilStuck{looks{"first": {damaged, damaged}}, stuck{begun}}}
	stop := s.start(cfg)
	task := s.latest("latest", "")
	s.Create(task)
	<-begun
	stop()
	cfg.Verifiers = map[string]uploader.Verifier{"restic": looks{"second": {{Files: 1}}}}
	stop = s.start(cfg)
	testenv.EventuallyGet(s.Env, task, "the end of the task", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
	stop()
	s.Patch(running, `{"status":{"phase":"Completed"}}`)
	s.Get(task)
	if done, err := s.controller(s.config(), s.Client).newRun(task).payMarks(t.Context()); err != nil || !done {
		t.Fatalf("done %t, %v", done, err)
	}
	if _, marked := s.marks(first); task.Annotations[v1alpha1.AnnotationOwesMarks] == "" || !marked {
		t.Errorf("the task has %v, and the first backup is noted as damaged: %t", task.Annotations, marked)
	}
}

// TestForgivenMarks: what was owed to a running Backup is not noted any more when all data was proven meanwhile, or a person has removed the task's note.
func TestForgivenMarks(t *testing.T) {
	t.Parallel()
	for name, forgive := range map[string]func(*site, *v1alpha1.RepositoryTask){
		"proven": func(s *site, _ *v1alpha1.RepositoryTask) { s.whole(time.Now()) },
		"by hand": func(s *site, task *v1alpha1.RepositoryTask) {
			s.Patch(task, `{"metadata":{"labels":{"`+v1alpha1.LabelDamaged+`":null}}}`)
		},
		"not": func(*site, *v1alpha1.RepositoryTask) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			backup := s.backup("night")
			pvb := s.record(backup, "restic", "shop", "db-0", "snapshot", velerov1.PodVolumeBackupPhaseCompleted)
			at := metav1.NewTime(time.Now().Add(-time.Hour))
			task := s.noted("found", v1alpha1.RepositoryTaskStatus{
				VolumeOperationStatus: v1alpha1.VolumeOperationStatus{Phase: v1alpha1.PhaseFailed, CompletionTimestamp: &at},
				Volumes: []v1alpha1.RepositoryTaskVolume{{
					Namespace: "shop", Pod: "db-0", Volume: "data", PodVolumeBackup: pvb.Name, BackupStorageLocation: "default", Uploader: "restic", SnapshotID: "snapshot", Result: v1alpha1.VolumeMismatched, Mismatched: 1, CompletionTimestamp: &at,
				}},
			})
			s.Patch(task, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationOwesMarks+`":"true"}}}`)
			forgive(s, task)
			s.Get(task)
			if done, err := s.controller(s.config(), s.Client).newRun(task).payMarks(t.Context()); err != nil || !done {
				t.Fatalf("done %t, %v", done, err)
			}
			if _, marked := s.marks(pvb); marked != (name == "not") {
				t.Errorf("noted as damaged: %t", marked)
			}
		})
	}
}

// TestRefusedMark: where an admission policy allows no note on a PodVolumeBackup, the task has its result all the same, and says so.
func TestRefusedMark(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	pvb := s.record(s.backup("nightly"), "restic", "shop", "db-0", "snapshot", velerov1.PodVolumeBackupPhaseCompleted)
	refusing := interceptor.NewClient(s.Client, interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "podvolumebackups"}, pvb.Name, errors.New("denied by a policy"))
		},
	})
	r := s.controller(s.config(), refusing).newRun(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("verify")})
	if err := r.markDamaged(t.Context(), pvb, time.Now()); err != nil || !strings.Contains(r.note, "could not be noted on PodVolumeBackup "+pvb.Name) || !strings.Contains(r.note, "denied by a policy") {
		t.Errorf("%v, %q", err, r.note)
	}
}
