package repositorytask

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func (s *site) latest(name, maxBytes string) *v1alpha1.RepositoryTask {
	task := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Latest: true}}
	if maxBytes != "" {
		task.Spec.MaxBytes = new(resource.MustParse(maxBytes))
	}
	return task
}

// started says on which day of a month a volume was backed up.
func (s *site) started(pvb *velerov1.PodVolumeBackup, day int) {
	s.t.Helper()
	s.startedAt(pvb, time.Date(2026, 11, day, 0, 0, 0, 0, time.UTC))
}

// startedAt makes the record anew as a server syncs it, with its status: of one that is changed here, the time of its creation counts.
func (s *site) startedAt(pvb *velerov1.PodVolumeBackup, at time.Time) {
	s.t.Helper()
	s.Delete(pvb)
	pvb.UID, pvb.ResourceVersion = "", ""
	pvb.Status.StartTimestamp = new(metav1.NewTime(at))
	s.Create(pvb)
}

// clock returns a clock that is a minute later each time that it is asked: timestamps have whole seconds, and what is found within one has no order.
func clock() func() time.Time {
	now := time.Now().Add(-24 * time.Hour)
	return func() time.Time {
		now = now.Add(time.Minute)
		return now
	}
}

// TestLatest: the newest backup of each volume is proven, and where there is not enough room for all, each has its turn.
func TestLatest(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	old, newer := s.backup("old"), s.backup("new")
	s.started(s.record(old, "restic", "shop", "db-0", "11111111", velerov1.PodVolumeBackupPhaseCompleted), 1) // not in the repository
	s.started(s.store(newer, "restic", "shop", "db-0"), 2)
	s.started(s.store(old, "restic", "bank", "vault-0"), 1)
	s.started(s.record(newer, "restic", "bank", "vault-0", "", velerov1.PodVolumeBackupPhaseFailed), 2)
	cfg := s.config()
	cfg.Now = clock()
	s.start(cfg)
	names := func(task *v1alpha1.RepositoryTask) string {
		t.Helper()
		if task.Status.Phase != v1alpha1.PhaseCompleted {
			t.Fatalf("%s: %+v", task.Name, task.Status)
		}
		var all []string
		for _, v := range task.Status.Volumes {
			all = append(all, v.Namespace+":"+v.PodVolumeBackup+"@"+v.BackupStorageLocation)
		}
		return strings.Join(all, " ")
	}
	const bank, shop = "bank:old-vault-0@default", "shop:new-db-0@default"
	if got := names(s.ended(s.latest("all", ""))); got != bank+" "+shop {
		t.Errorf("all: %s", got)
	}
	first := s.ended(s.latest("first", "1Mi"))
	second := s.ended(s.latest("second", "4Mi"))
	third := s.ended(s.latest("third", "4Mi"))
	if names(first) == names(second) || names(first) != names(third) || first.Status.Postponed != 1 {
		t.Errorf("%s (%d postponed), then %s, then %s", names(first), first.Status.Postponed, names(second), names(third))
	}
	if got := names(s.ended(s.latest("both", "6Mi"))); got != bank+" "+shop {
		t.Errorf("both: %s", got)
	}
	brief := s.latest("brief", "")
	brief.Spec.MaxDuration = &metav1.Duration{Duration: time.Nanosecond}
	got := s.ended(brief).Status
	if v := got.Volumes; got.Phase != v1alpha1.PhaseCompleted || len(v) != 2 || v[0].Result != v1alpha1.VolumeVerified || v[1].Result != v1alpha1.VolumePostponed || v[1].CompletionTimestamp != nil || got.Postponed != 1 ||
		!strings.Contains(got.Conditions[0].Message, "1 volume is left to later tasks") {
		t.Errorf("%+v", got)
	}
	last := s.latest("last", "")
	last.Spec.MaxDuration = &metav1.Duration{Duration: time.Nanosecond}
	if other := s.ended(last).Status.Volumes; other[0].PodVolumeBackup != got.Volumes[1].PodVolumeBackup {
		t.Errorf("%s was postponed, and then came %s", got.Volumes[1].PodVolumeBackup, other[0].PodVolumeBackup)
	}
	s.Eventually("the Event", func() bool {
		return strings.Contains(s.events("first"), "1 pod volume verified: 3 files, 3.0 MiB compared; 1 volume is left to later tasks")
	})
	for name, spec := range map[string]v1alpha1.RepositoryTaskSpec{
		"and a backup":        {Latest: true, Backup: "new"},
		"a time without it":   {Backup: "new", MaxDuration: &metav1.Duration{Duration: time.Hour}},
		"maxBytes without it": {Backup: "new", MaxBytes: new(resource.MustParse("1Gi"))},
	} {
		spec.Type = v1alpha1.TaskVerify
		if err := s.Client.Create(t.Context(), &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("invalid"), Spec: spec}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	none := s.latest("none", "")
	none.Spec.Volume = &v1alpha1.PodVolumeSelector{Namespace: "nobody"}
	if got := s.ended(none).Status; got.Reason != v1alpha1.ReasonNoPodVolumes || !strings.Contains(got.Message, "nobody/*:*") {
		t.Errorf("none: %+v", got)
	}
}

// TestLatestRepositories: a measurement and a prune are of all repositories that have backups of the volumes, also of those that volumes have left for the
// other data path, and where the newest backup is of an empty volume. A check is of those that the newest backups are in.
func TestLatestRepositories(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	old, newer := s.backup("old"), s.backup("new")
	s.started(s.store(old, "restic", "shop", "db-0"), 1)
	s.started(s.store(newer, "kopia", "shop", "db-0"), 2)
	s.started(s.store(old, "restic", "bank", "vault-0"), 1)
	s.started(s.record(newer, "restic", "bank", "vault-0", "", velerov1.PodVolumeBackupPhaseCompleted), 2)
	cfg := s.measuring()
	cfg.Pruners = map[string]uploader.Pruner{"restic": s.restic, "kopia": s.kopia}
	cfg.Checkers = map[string]uploader.Checker{"restic": s.restic, "kopia": s.kopia}
	s.start(cfg)
	check := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("check"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskCheck, Latest: true}}
	for task, want := range map[*v1alpha1.RepositoryTask]string{
		s.usageTask("usage"):        "kopia/shop restic/bank restic/shop",
		s.pruneTask("prune", false): "kopia/shop restic/bank restic/shop",
		check:                       "kopia/shop",
	} {
		status := s.ended(task).Status
		var got []string
		for i := range status.Repositories {
			got = append(got, status.Repositories[i].Uploader+"/"+status.Repositories[i].VolumeNamespace)
		}
		slices.Sort(got)
		if status.Phase != v1alpha1.PhaseCompleted || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s: %+v", task.Name, got, want, status)
		}
	}
}

// TestLatestBegunAgain: a task whose process ended goes on with the backups that it had selected, not with what is newer.
func TestLatestBegunAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("one")
	s.record(b, "kopia", "shop", "db-0", "11111111", velerov1.PodVolumeBackupPhaseCompleted)
	s.record(b, "kopia", "shop", "db-1", "22222222", velerov1.PodVolumeBackupPhaseCompleted)
	begun := make(chan struct{}, 4)
	cfg := s.config()
	cfg.Verifiers = map[string]uploader.Verifier{"kopia": stuck{begun}}
	stop := s.start(cfg)
	task := s.latest("task", "1Mi")
	s.Create(task)
	<-begun
	before := testenv.EventuallyGet(s.Env, task, "the selection", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && len(t.Status.Volumes) == 1 })
	stop()
	selected := &velerov1.PodVolumeBackup{ObjectMeta: s.Meta(before.Status.Volumes[0].PodVolumeBackup)}
	if err := s.Client.Delete(t.Context(), selected); err != nil {
		t.Fatal(err)
	}
	s.record(s.backup("two"), "kopia", "shop", "db-0", "33333333", velerov1.PodVolumeBackupPhaseCompleted)
	s.start(cfg)
	after := testenv.EventuallyGet(s.Env, task, "the end", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() })
	v := after.Status.Volumes
	if after.Status.Phase != v1alpha1.PhaseFailed || len(v) != 1 || v[0].PodVolumeBackup != selected.Name || v[0].Reason != v1alpha1.ReasonNotBackedUp ||
		!strings.Contains(v[0].Message, "Deleted") || after.Status.Postponed != 1 {
		t.Errorf("%+v", after.Status)
	}
}

func TestWithinBudget(t *testing.T) {
	t.Parallel()
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	backup := func(pod string, bytes int64) velerov1.PodVolumeBackup {
		pvb := velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: pod}}
		pvb.Spec.Pod.Name, pvb.Status.Progress.TotalBytes, pvb.Status.SnapshotID = pod, bytes, "snapshot"
		return pvb
	}
	empty := backup("empty", 0)
	empty.Status.SnapshotID = ""
	all := []velerov1.PodVolumeBackup{backup("a", 10), backup("b", 10), backup("big", 100), backup("d", 10)}
	for name, test := range map[string]struct {
		all      []velerov1.PodVolumeBackup
		maxBytes int64
		since    map[string]int // day of the first backup
		tried    map[string]int // day of the last try
		want     string
	}{
		"none was ever tried":         {all, 10, map[string]int{"a": 3, "b": 2, "big": 1, "d": 4}, nil, "big"},
		"the longest not tried":       {all, 20, nil, map[string]int{"a": 7, "b": 6, "big": 9, "d": 8}, "a b"},
		"a big one waits for its day": {all, 20, nil, map[string]int{"a": 7, "b": 6, "big": 7, "d": 8}, "a b"},
		"the big one's day":           {all, 20, nil, map[string]int{"a": 7, "b": 8, "big": 6, "d": 9}, "big"},
		"a new volume queues up":      {all, 20, map[string]int{"d": 9}, map[string]int{"a": 7, "b": 6, "big": 8}, "a b"},
		"no room but for one":         {all, 0, nil, map[string]int{"a": 7, "b": 6, "big": 8, "d": 9}, "b"},
		"room for all":                {all, 130, nil, nil, "a b big d"},
		"an empty one takes no turn":  {append([]velerov1.PodVolumeBackup{empty}, all[2]), 20, nil, map[string]int{"big": 8}, "big empty"},
		"only empty ones":             {[]velerov1.PodVolumeBackup{empty}, 20, nil, nil, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := queue{proofs: map[proof.Volume]proof.Proof{}, since: map[proof.Volume]time.Time{}}
			for pod, on := range test.since {
				q.since[proof.Volume{Pod: pod, Uploader: uploaderRestic}] = day(on)
			}
			for pod, on := range test.tried {
				q.proofs[proof.Volume{Pod: pod, Uploader: uploaderRestic}] = proof.Proof{Tried: day(on)}
			}
			turn, postponed := q.withinBudget(test.all, test.maxBytes)
			var got []string
			for i := range turn {
				got = append(got, turn[i].Name)
			}
			if strings.Join(got, " ") != test.want || postponed != len(test.all)-len(turn) {
				t.Errorf("got %s, %d postponed, want %s", got, postponed, test.want)
			}
		})
	}
	many := make([]velerov1.PodVolumeBackup, maxVolumes+2)
	for i := range many {
		many[i] = backup(strconv.Itoa(i), 1)
	}
	if turn, postponed := (&queue{}).withinBudget(append(many, empty), math.MaxInt64); len(turn) != maxVolumes || postponed != 2 {
		t.Errorf("%d volumes, %d postponed", len(turn), postponed)
	}
}

// TestSampleWithinBudget: of what kopia has stored a sample costs its part, of what restic has the whole volume.
func TestSampleWithinBudget(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.backup("nightly")
	s.store(b, "kopia", "shop", "db-0")
	s.storeInto(b, "kopia", "shop", "db-1")
	s.storeInto(b, "kopia", "shop", "db-2")
	s.store(b, "restic", "shop", "web-0")
	s.start(s.config())
	sample := s.latest("sample", "3Mi") // each volume has 3 MiB
	sample.Spec.Sample = 50
	status := s.ended(sample).Status
	if status.Phase != v1alpha1.PhaseCompleted || len(status.Volumes) != 2 || status.Postponed != 2 || status.Volumes[0].Pod != "db-0" || status.Volumes[1].Pod != "db-1" {
		t.Errorf("a sample of half of each volume: %+v", status)
	}
	if status := s.ended(s.latest("whole", "3Mi")).Status; len(status.Volumes) != 1 || status.Postponed != 3 {
		t.Errorf("all of each volume: %+v", status)
	}
	for name, test := range map[string]struct {
		uploader     string
		percent      int32
		bytes, reads int64
	}{
		"all":             {"kopia", 0, 1000, 1000},
		"a part":          {"kopia", 5, 1000, 50},
		"rounded up":      {"kopia", 33, 1001, 251},
		"less than parts": {"kopia", 1, 7, 1},
		"restic":          {"restic", 5, 1000, 1000},
		"an old record":   {"", 5, 1000, 1000},
		"empty":           {"kopia", 5, 0, 0},
		"no size":         {"kopia", 5, -1, 0},
		"no overflow":     {"kopia", 1, math.MaxInt64, math.MaxInt64/100 + 1},
	} {
		pvb := velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: test.uploader}}
		pvb.Status.Progress.TotalBytes = test.bytes
		if got := (&queue{sample: test.percent}).bytesOf(&pvb); got != test.reads {
			t.Errorf("%s: %d bytes, want %d", name, got, test.reads)
		}
	}
}

// TestEveryVolumeHasItsTurn plays a schedule with new volumes each night, a big one and an empty one.
func TestEveryVolumeHasItsTurn(t *testing.T) {
	t.Parallel()
	q := queue{proofs: map[proof.Volume]proof.Proof{}, since: map[proof.Volume]time.Time{}}
	var all []velerov1.PodVolumeBackup
	add := func(night int, pod string, bytes int64, snapshot string) {
		pvb := velerov1.PodVolumeBackup{}
		pvb.Spec.Pod.Name, pvb.Status.Progress.TotalBytes, pvb.Status.SnapshotID = pod, bytes, snapshot
		all = append(all, pvb)
		q.since[proof.VolumeOf(&pvb)] = time.Unix(int64(night), 0)
	}
	add(0, "big", 1000, "snapshot")
	add(0, "empty", 0, "")
	for i := range 20 {
		add(0, fmt.Sprintf("steady-%d", i), 10, "snapshot")
	}
	lastTurn := map[string]int{}
	for night := 1; night <= 200; night++ {
		add(night, fmt.Sprintf("new-%d", night), 30, "snapshot") // one more each night, which room for three of ten can keep up with
		turn, _ := q.withinBudget(all, 100)
		for i := range turn {
			lastTurn[turn[i].Spec.Pod.Name] = night
			q.proofs[proof.VolumeOf(&turn[i])] = proof.Proof{Tried: time.Unix(int64(night), 0)}
		}
	}
	for i := range all {
		if v := proof.VolumeOf(&all[i]); max(lastTurn[v.Pod], int(q.since[v].Unix())) < 100 {
			t.Errorf("%s had its last turn on night %d of 200", v.Pod, lastTurn[v.Pod])
		}
	}
}

// TestMigrationsMakeRoom: snapshots that were tried and cannot be migrated do not keep the others from their turn.
func TestMigrationsMakeRoom(t *testing.T) {
	t.Parallel()
	var all []velerov1.PodVolumeBackup
	failed := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskMigrate, All: true}}
	for i := range 2*maxVolumes + 5 {
		pvb := velerov1.PodVolumeBackup{}
		pvb.Name = fmt.Sprintf("%04d", i)
		all = append(all, pvb)
	}
	try := func(turn []velerov1.PodVolumeBackup, on int) {
		for i := range turn {
			failed.Status.Volumes = append(failed.Status.Volumes, v1alpha1.RepositoryTaskVolume{
				PodVolumeBackup: turn[i].Name, Result: v1alpha1.VolumeFailed, CompletionTimestamp: new(metav1.NewTime(time.Unix(int64(on), 0))),
			})
		}
	}
	for on, want := range [][2]string{{"0000", "0299"}, {"0300", "0599"}, {"0000", "0604"}} {
		turn := firstUntried(slices.Clone(all), []v1alpha1.RepositoryTask{failed})
		if len(turn) != maxVolumes || turn[0].Name != want[0] || turn[maxVolumes-1].Name != want[1] {
			t.Errorf("task %d: %d, from %s to %s", on, len(turn), turn[0].Name, turn[len(turn)-1].Name)
		}
		try(turn, on+1)
	}
}
