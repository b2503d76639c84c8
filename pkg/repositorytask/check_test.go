package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func (s *site) checkTask(name, backup string, readData bool) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskCheck, Backup: backup, ReadData: readData}}
}

// TestCheck checks the repositories of a backup of two namespaces, and again when one of them is damaged.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	shop := s.store(b, "restic", "shop", "web-0")
	bank := s.store(b, "restic", "bank", "db-0")
	second := s.record(b, "restic", "shop", "web-1", shop.Status.SnapshotID, shop.Status.Phase)
	other := s.backup("kopia")
	s.record(other, "kopia", "shop", "k-0", strings.Repeat("a", 32), shop.Status.Phase)
	cfg := s.config()
	cfg.Checkers = map[string]uploader.Checker{"restic": s.restic}
	s.start(cfg)

	good := s.ended(s.checkTask("good", "nightly", false)).Status
	condition := meta.FindStatusCondition(good.Conditions, v1alpha1.ConditionChecked)
	if good.Phase != v1alpha1.PhaseCompleted || condition == nil || condition.Status != metav1.ConditionTrue || condition.Reason != string(v1alpha1.ReasonWhole) || *good.Percent != 100 {
		t.Fatalf("%+v", good)
	}
	if good.Progress != (v1alpha1.VolumeOperationProgress{}) || len(good.Volumes) > 0 {
		t.Errorf("a check moves no bytes of volumes: %+v", good)
	}
	for i, namespace := range []string{"bank", "shop"} {
		if r := good.Repositories[i]; r.Result != v1alpha1.RepositoryWhole || r.VolumeNamespace != namespace || r.Snapshots != 1 || r.Looks != 1 || !strings.HasSuffix(r.Address, "/restic/"+namespace) {
			t.Errorf("%+v", r)
		}
	}
	if len(good.Repositories) != 2 {
		t.Errorf("%s and %s share a repository: %+v", shop.Name, second.Name, good.Repositories)
	}
	s.Eventually("the Event", func() bool {
		return strings.Contains(s.events("good"), "2 repositories are whole: 2 snapshots checked")
	})

	flip(t, filepath.Join(s.dir, "restic", "shop"), "data")
	bad := s.ended(s.checkTask("bad", "nightly", true)).Status
	condition = meta.FindStatusCondition(bad.Conditions, v1alpha1.ConditionChecked)
	if bad.Phase != v1alpha1.PhaseFailed || bad.Reason != v1alpha1.ReasonDamaged || condition.Status != metav1.ConditionFalse || !strings.Contains(bad.Message, "1 repository is whole") {
		t.Fatalf("%+v", bad)
	}
	if r := bad.Repositories[0]; r.Result != v1alpha1.RepositoryWhole || r.Packs == 0 {
		t.Errorf("%+v", r)
	}
	r := bad.Repositories[1]
	if r.Result != v1alpha1.RepositoryDamaged || r.Looks != 2 || r.Damaged != 1 || len(r.DamagedPacks) != 1 || r.TouchedSnapshots != 1 || r.SnapshotIDs[0] != shop.Status.SnapshotID ||
		r.TouchedUnknown != "" || len(r.Paths) == 0 || !strings.HasPrefix(r.Paths[0], "file-") || !strings.Contains(strings.Join(r.Remedies, ";"), "restic repair packs "+r.DamagedPacks[0]) {
		t.Errorf("%+v", r)
	}
	if want := []*velerov1.PodVolumeBackup{shop, second}; !namesTouched(&r, want) || r.TouchedBackupsOmitted != 0 {
		t.Errorf("not the touched backups: %+v, %d more", r.TouchedBackups, r.TouchedBackupsOmitted)
	}
	for pvb, want := range map[*velerov1.PodVolumeBackup]bool{shop: true, second: true, bank: false} {
		if _, damaged := s.marks(pvb); damaged != want {
			t.Errorf("%s is noted as damaged: %t", pvb.Name, damaged)
		}
	}
	s.Delete(shop)
	s.Delete(second)
	s.record(s.backup("later"), "restic", "shop", "web-0", "", velerov1.PodVolumeBackupPhaseFailed)
	unnamed := s.ended(s.checkTask("unnamed", "later", true)).Status.Repositories[0]
	if want := []v1alpha1.TouchedBackup{{SnapshotID: shop.Status.SnapshotID}}; unnamed.Result != v1alpha1.RepositoryDamaged || !slices.Equal(unnamed.TouchedBackups, want) {
		t.Errorf("a snapshot that nothing names: %+v", unnamed)
	}
	unsupported := s.ended(s.checkTask("kopia", "kopia", false)).Status
	if unsupported.Reason != v1alpha1.ReasonUnsupported || !strings.Contains(unsupported.Message, "repository verify") || unsupported.Repositories[0].Result != v1alpha1.RepositoryFailed {
		t.Errorf("%+v", unsupported)
	}
	invalid := s.task("invalid", "nightly")
	invalid.Spec.ReadData = true
	if err := s.Client.Create(t.Context(), invalid); !apierrors.IsInvalid(err) {
		t.Errorf("readData of a verification: got %v", err)
	}

	metrics := NewMetrics(client.NewNamespacedClient(s.Client, s.Namespace), s.Client, s.Namespace, func(err error) { t.Error(err) })
	want := `# HELP plimsoll_repository_damaged 1 if a check has found damaged or missing data in the repository, and none that looked as deep has found it whole since; else 0.
# TYPE plimsoll_repository_damaged gauge
plimsoll_repository_damaged{location="default",uploader="restic",volume_namespace="bank"} 0
plimsoll_repository_damaged{location="default",uploader="restic",volume_namespace="shop"} 1
`
	if err := testutil.CollectAndCompare(metrics, strings.NewReader(want), "plimsoll_repository_damaged"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(metrics, "plimsoll_repository_checked_timestamp_seconds"); n != 2 {
		t.Errorf("%d repositories were whole once", n)
	}
	if problems, err := testutil.CollectAndLint(metrics); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestCheckOfNoRepository: where the first backup of a namespace has failed before there was a repository, nothing is damaged. One that a backup needs is.
func TestCheckOfNoRepository(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"restic", "kopia"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.record(s.backup("first"), kind, "shop", "db-0", "", velerov1.PodVolumeBackupPhaseFailed)
			cfg := s.config()
			cfg.Checkers = map[string]uploader.Checker{"restic": s.restic, "kopia": s.kopia}
			cfg.Repairers = map[string]uploader.Repairer{"restic": s.restic, "kopia": s.kopia}
			s.start(cfg)
			see := func(task *v1alpha1.RepositoryTask, want v1alpha1.Reason, damaged bool) {
				t.Helper()
				task = s.ended(task)
				entry := task.Status.Repositories[0]
				if task.Status.Phase != v1alpha1.PhaseFailed || task.Status.Reason != want || entry.Result != v1alpha1.RepositoryFailed || entry.Reason != want {
					t.Errorf("%+v", task.Status)
				}
				if got := proof.ChecksOf([]v1alpha1.RepositoryTask{*task})[proof.RepositoryIn(&entry)].Damaged(); got != damaged {
					t.Errorf("%s: damaged is %t", task.Name, got)
				}
			}
			repair := s.repairTask("repair", v1alpha1.RepairIndex)
			repair.Spec.Backup = "first"
			see(repair, v1alpha1.ReasonNotBackedUp, false)
			see(s.checkTask("never", "first", true), v1alpha1.ReasonNotBackedUp, false)
			s.record(s.backup("second"), kind, "shop", "db-0", strings.Repeat("a", 32), velerov1.PodVolumeBackupPhaseCompleted)
			see(s.checkTask("gone", "first", true), v1alpha1.ReasonRepositoryNotFound, true)
		})
	}
}

// namesTouched reports whether the entry of a repository names just these backups, sorted by name.
func namesTouched(r *v1alpha1.RepositoryTaskRepository, backups []*velerov1.PodVolumeBackup) bool {
	named := slices.SortedFunc(slices.Values(r.TouchedBackups), func(a, b v1alpha1.TouchedBackup) int { return strings.Compare(a.PodVolumeBackup, b.PodVolumeBackup) })
	return slices.EqualFunc(named, backups, func(b v1alpha1.TouchedBackup, pvb *velerov1.PodVolumeBackup) bool {
		return b.PodVolumeBackup == pvb.Name && b.Backup == pvb.Labels[velerov1.BackupNameLabel] && b.Namespace == pvb.Spec.Pod.Namespace && b.Pod == pvb.Spec.Pod.Name &&
			b.Volume == pvb.Spec.Volume && b.SnapshotID == pvb.Status.SnapshotID && !b.BackupTimestamp.IsZero()
	})
}

// TestTouchedBackups: the newest come first, snapshots that nothing names last, and what has no room is counted.
func TestTouchedBackups(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.checkTask("check", "nightly", false)
	r := &run{Controller: s.controller(s.config(), s.Client), task: task, object: task}
	entry := v1alpha1.RepositoryTaskRepository{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic", TouchedSnapshots: 30}
	const completed = velerov1.PodVolumeBackupPhaseCompleted
	nobodys := &velerov1.Backup{ObjectMeta: s.Meta("own")}
	older, newer := s.record(nobodys, "restic", "shop", "web-0", "aaaa", completed), s.record(nobodys, "restic", "shop", "db-0", "bbbb", completed)
	s.record(nobodys, "restic", "shop", "whole-0", "dddd", completed)
	s.record(nobodys, "kopia", "shop", "other-0", "aaaa", completed)
	for pvb, age := range map[*velerov1.PodVolumeBackup]time.Duration{older: 2 * time.Hour, newer: time.Hour} {
		s.startedAt(pvb, time.Now().Add(-age))
	}
	unsynced := *newer.DeepCopy()
	unsynced.Name, unsynced.Status.Phase, unsynced.Status.SnapshotID, unsynced.Spec.Pod.Name = "listed", phaseUnsynced, "cccc", "x\nhostile"
	unsynced.Status.StartTimestamp = new(metav1.NewTime(time.Unix(1, 0)))
	r.backups = []velerov1.PodVolumeBackup{unsynced}
	r.touched = []string{"0000", "aaaa", "bbbb", "cccc"}
	if err := r.nameTouched(t.Context(), &entry); err != nil {
		t.Fatal(err)
	}
	got := entry.TouchedBackups
	if len(got) != 4 || got[0].PodVolumeBackup != newer.Name || got[0].Backup != "" || got[1].PodVolumeBackup != older.Name || got[2].PodVolumeBackup != "" || got[2].Pod != `x\nhostile` ||
		got[3] != (v1alpha1.TouchedBackup{SnapshotID: "0000"}) {
		t.Errorf("%+v", got)
	}
	if entry.TouchedBackupsOmitted != 26 {
		t.Errorf("%d of the snapshots whose ids are not known are missing", entry.TouchedBackupsOmitted)
	}
	for i := range 30 {
		r.touched = append(r.touched, fmt.Sprintf("ffff%d", i))
	}
	if err := r.nameTouched(t.Context(), &entry); err != nil || len(entry.TouchedBackups) != maxTouchedBackups || entry.TouchedBackupsOmitted != 14 {
		t.Errorf("%d named, %d more: %v", len(entry.TouchedBackups), entry.TouchedBackupsOmitted, err)
	}
}

// TestCheckLooksForAllSnapshots: a check of one backup does not end what is known of another one, whose snapshot is lost.
func TestCheckLooksForAllSnapshots(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lost, other := s.backup("lost"), s.backup("other")
	snapshot := s.store(other, "kopia", "shop", "db-0").Status.SnapshotID
	gone := s.record(lost, "kopia", "shop", "web-0", strings.Repeat("a", len(snapshot)), velerov1.PodVolumeBackupPhaseCompleted)
	cfg := s.config()
	cfg.Checkers = map[string]uploader.Checker{"kopia": s.kopia}
	s.start(cfg)
	for _, backup := range []string{"lost", "other"} {
		if status := s.ended(s.checkTask("check-"+backup, backup, false)).Status; status.Reason != v1alpha1.ReasonSnapshotNotFound {
			t.Errorf("check of %s: %+v", backup, status)
		}
	}
	s.Delete(gone)
	if status := s.ended(s.checkTask("without", "other", false)).Status; status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("without the record: %+v", status)
	}
}

// TestMarkTouched: damage that nobody knows where it lies is noted on the newest backup of each volume, and on none that a server may wait for.
func TestMarkTouched(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ended, running := s.backup("ended"), s.backup("running")
	s.Patch(running, `{"status":{"phase":"InProgress"}}`)
	const completed = velerov1.PodVolumeBackupPhaseCompleted
	older := s.backup("older")
	newest := map[*velerov1.PodVolumeBackup]bool{ // of those that have ended
		s.record(ended, "kopia", "shop", "web-0", "aa11", completed):                                   true,
		s.record(ended, "kopia", "shop", "web-1", "bb22", completed):                                   true,
		s.record(ended, "kopia", "shop", "web-2", "cc33", velerov1.PodVolumeBackupPhaseFailed):         false,
		s.record(ended, "kopia", "bank", "db-0", "dd44", completed):                                    false,
		s.record(ended, "restic", "shop", "old-0", "ee55", completed):                                  false,
		s.record(running, "kopia", "shop", "db-0", "ff66", completed):                                  false,
		s.record(older, "kopia", "shop", "db-0", "9977", completed):                                    true,
		s.record(&velerov1.Backup{ObjectMeta: s.Meta("own")}, "kopia", "shop", "own-0", "", completed): false,
	}
	r := &run{Controller: s.controller(s.config(), s.Client), object: &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("check")}}
	entry := v1alpha1.RepositoryTaskRepository{
		BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "kopia", Result: v1alpha1.RepositoryDamaged, TouchedSnapshots: 2,
	}
	check := func(what string, want func(pvb *velerov1.PodVolumeBackup) bool) {
		t.Helper()
		if err := r.markTouched(t.Context(), &entry, time.Now()); err != nil {
			t.Fatal(err)
		}
		for pvb := range newest {
			if _, damaged := s.marks(pvb); damaged != want(pvb) {
				t.Errorf("%s: %s is noted as damaged: %t", what, pvb.Name, damaged)
			}
		}
	}
	r.touched = []string{"bb22", "ff66"}
	check("all touched are known", func(pvb *velerov1.PodVolumeBackup) bool {
		return pvb.Status.SnapshotID == "bb22" || pvb.Status.SnapshotID == "9977" // of the volume whose touched backup a server still waits for
	})
	if !r.owesMarks {
		t.Error("nothing is owed to the backup that runs")
	}
	unnamed := []string{r.touched[0], "0000beef"}
	r.touched = r.touched[:1]
	check("more than are known", func(pvb *velerov1.PodVolumeBackup) bool { return newest[pvb] })
	for pvb := range newest {
		s.Patch(pvb, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":null},"labels":{"`+v1alpha1.LabelDamaged+`":null}}}`)
	}
	r.touched = unnamed
	check("one has no record", func(pvb *velerov1.PodVolumeBackup) bool { return newest[pvb] })
}

// TestCheckKopia checks a kopia repository, and again when it has lost bytes that its only snapshot needs.
func TestCheckKopia(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	shop := s.store(s.backup("nightly"), "kopia", "shop", "db-0")
	cfg := s.config()
	cfg.Checkers = map[string]uploader.Checker{"kopia": s.kopia}
	s.start(cfg)
	good := s.ended(s.checkTask("good", "nightly", true)).Status
	if good.Phase != v1alpha1.PhaseCompleted || *good.Percent != 100 {
		t.Fatalf("%+v", good)
	}
	if r := good.Repositories[0]; r.Result != v1alpha1.RepositoryWhole || r.Uploader != "kopia" || r.Snapshots != 1 || r.Packs == 0 || !strings.HasPrefix(r.Message, "kopia's maintenance belongs to default@default") {
		t.Errorf("%+v", r)
	}
	flip(t, filepath.Join(s.dir, "kopia", "shop"), "p")
	bad := s.ended(s.checkTask("bad", "nightly", true)).Status
	if bad.Phase != v1alpha1.PhaseFailed || bad.Reason != v1alpha1.ReasonDamaged {
		t.Fatalf("%+v", bad)
	}
	if r := bad.Repositories[0]; r.Result != v1alpha1.RepositoryDamaged || r.Looks != 2 || r.Damaged != 1 || len(r.DamagedPacks) != 1 || len(r.SnapshotIDs) != 1 || r.SnapshotIDs[0] != shop.Status.SnapshotID ||
		!namesTouched(&r, []*velerov1.PodVolumeBackup{shop}) || r.TouchedUnknown != "" || len(r.Paths) == 0 || !strings.Contains(strings.Join(r.Remedies, ";"), "kopia snapshot fix invalid-files") || !strings.Contains(r.Message, "maintenance") {
		t.Errorf("%+v", r)
	}
}

// oneByOne is a data path whose checks end when they are told to, or with their context.
type oneByOne struct {
	begun  chan string // addresses
	result chan error
}

func (o oneByOne) Check(ctx context.Context, req uploader.CheckRequest, p progress.Sink) (uploader.CheckResult, error) {
	p.Report(progress.Reading{Stage: progress.StageTransferring, BytesDone: 1, TotalBytes: 2, TotalFinal: true})
	o.begun <- filepath.Base(req.Repository.URL)
	select {
	case err := <-o.result:
		return uploader.CheckResult{Looks: 1, Snapshots: 1}, err
	case <-ctx.Done():
		return uploader.CheckResult{}, context.Cause(ctx)
	}
}

// TestCheckBegunAgain: repositories that were done stay done; an outage is tried again, and is no damage.
func TestCheckBegunAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	for _, namespace := range []string{"a", "b"} {
		s.record(b, "restic", namespace, namespace+"-0", "12345678", "Completed")
	}
	cfg := s.config()
	cfg.Tries = 2
	checker := oneByOne{make(chan string), make(chan error)}
	cfg.Checkers = map[string]uploader.Checker{"restic": checker}
	stop := s.start(cfg)
	task := s.checkTask("task", "nightly", false)
	s.Create(task)
	if first := <-checker.begun; first != "a" {
		t.Fatalf("began with %s", first)
	}
	testenv.EventuallyGet(s.Env, task, "the progress", func(t *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && t.Status.Percent != nil && *t.Status.Percent == 25 && t.Status.State == string(v1alpha1.StateTransferring)
	})
	checker.result <- nil
	<-checker.begun
	stop()
	s.Delete(&velerov1.PodVolumeBackup{ObjectMeta: s.Meta("nightly-a-0")}) // what was found in its repository stays
	s.storeBackup(b, s.recorded(b)...)
	s.start(cfg)
	if next := <-checker.begun; next != "b" {
		t.Errorf("begins again with %s", next)
	}
	outage := errors.New("dial tcp: connection refused")
	checker.result <- outage
	<-checker.begun
	checker.result <- outage
	done := testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() }).Status
	if done.Attempts != 2 || done.Phase != v1alpha1.PhaseFailed || done.Reason != v1alpha1.ReasonDataPath || len(done.Repositories) != 2 || done.Repositories[1].Result != v1alpha1.RepositoryWhole ||
		done.Repositories[0].Result != v1alpha1.RepositoryFailed || !strings.Contains(done.Message, "connection refused") || strings.Contains(done.Message, "damaged") {
		t.Errorf("%+v", done)
	}
}

// TestRepositoriesOf: a backup that has failed may have done so because its repository is damaged; that of an empty volume may have none.
func TestRepositoriesOf(t *testing.T) {
	t.Parallel()
	backup := func(namespace string, phase velerov1.PodVolumeBackupPhase, snapshot string) velerov1.PodVolumeBackup {
		var pvb velerov1.PodVolumeBackup
		pvb.Spec.Pod.Namespace, pvb.Status.Phase, pvb.Status.SnapshotID = namespace, phase, snapshot
		return pvb
	}
	repositories, in := repositoriesOf([]velerov1.PodVolumeBackup{
		backup("a", velerov1.PodVolumeBackupPhaseCompleted, "1"), backup("b", velerov1.PodVolumeBackupPhaseFailed, ""),
		backup("c", velerov1.PodVolumeBackupPhaseCompleted, ""), backup("a", velerov1.PodVolumeBackupPhaseCompleted, "2"),
	})
	if len(repositories) != 2 || repositories[0].VolumeNamespace != "a" || repositories[1].VolumeNamespace != "b" || len(in[0]) != 2 || len(in[1]) != 1 {
		t.Errorf("%+v", repositories)
	}
}

// TestShownInSteps: a task that moves no bytes of volumes shows what its data path counts, unless it waits.
func TestShownInSteps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		of      int
		reading progress.Reading
		want    string
	}{
		"one repository": {1, progress.Reading{Stage: progress.StageTransferring, BytesDone: 3, TotalBytes: 4, CurrentItem: "3 of 4 packs"}, "3 of 4 packs"},
		"of several":     {2, progress.Reading{Stage: progress.StageTransferring, BytesDone: 3, TotalBytes: 4, CurrentItem: "3 of 4 packs"}, "repository 1 of 2: 3 of 4 packs"},
		"it waits":       {2, progress.Reading{Stage: progress.StageWaiting, Message: "for a lock", CurrentItem: "3 of 4 packs"}, "for a lock"},
		"nothing yet":    {2, progress.Reading{Stage: progress.StageScanning}, ""},
	} {
		tracker := progress.NewTracker(progress.Options{})
		tracker.Begin(1)
		tracker.Report(inSteps(test.reading, 0, test.of))
		r, status, shown := &run{kind: kind{inSteps: true}}, v1alpha1.RepositoryTaskStatus{}, tracker.Snapshot()
		r.setProgress(&status, &shown)
		if status.Message != test.want || status.Progress != (v1alpha1.VolumeOperationProgress{}) || status.BytesPerSecond != 0 {
			t.Errorf("%s: %+v", name, status.VolumeOperationStatus)
		}
	}
}
