package repositorytask

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

func (s *site) migrating() Config {
	cfg := s.config()
	cfg.Exporter, cfg.Importer = s.restic, s.kopia
	return cfg
}

func (s *site) migration(name string) *v1alpha1.RepositoryTask {
	return &v1alpha1.RepositoryTask{ObjectMeta: s.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskMigrate, All: true}}
}

// nightly is a Backup as a Velero server leaves it in the cluster and in the bucket, with the restic snapshot of one volume.
type nightly struct {
	*velerov1.Backup

	pvb    *velerov1.PodVolumeBackup
	volume string // a copy of the volume as it was
}

// nightlyBackup backs a volume up with restic, hours after the first backup.
func (s *site) nightlyBackup(name, volume string, hours int) nightly {
	s.t.Helper()
	n := nightly{Backup: s.backup(name), volume: s.t.TempDir()}
	dir, err := os.Open(volume)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	stored, err := s.restic.Backup(s.t.Context(), uploader.BackupRequest{Repository: s.repository("restic", "shop"), Volume: dir}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	n.pvb = s.record(n.Backup, "restic", "shop", "db-0", stored.SnapshotID, velerov1.PodVolumeBackupPhaseCompleted)
	at := metav1.NewTime(time.Date(2026, 3, 1, hours, 0, 0, 0, time.UTC))
	n.pvb.Status.Progress.TotalBytes = stored.TotalBytes
	n.pvb.Annotations = map[string]string{"velero.io/pvc-name": "orders"}
	s.startedAt(n.pvb, at.Time) // as a server syncs it: what is written twice was made here
	s.storeBackup(n.Backup, n.pvb)
	restored, err := os.Open(n.volume)
	if err != nil {
		s.t.Fatal(err)
	}
	defer restored.Close()
	if _, err := s.restic.Restore(s.t.Context(), uploader.RestoreRequest{Repository: s.repository("restic", "shop"), Volume: restored, SnapshotID: stored.SnapshotID}, nil); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// storeBackup writes the files of a Backup into the bucket.
func (s *site) storeBackup(b *velerov1.Backup, pvbs ...*velerov1.PodVolumeBackup) {
	s.t.Helper()
	stored := velero.Stored{Version: velero.V1_14, Backup: b, VolumeSnapshots: []string{}}
	infos := []map[string]any{}
	for _, pvb := range pvbs {
		stored.PodVolumeBackups = append(stored.PodVolumeBackups, *pvb)
		infos = append(infos, map[string]any{"backupMethod": "PodVolumeBackup", "novelty": 1, "pvbInfo": map[string]any{"uploaderType": "restic", "snapshotHandle": pvb.Status.SnapshotID}})
	}
	stored.VolumeInfos = infos
	if err := stored.Write(s.dir); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) storeFile(backup, file string, value any) {
	s.t.Helper()
	content, err := json.Marshal(value)
	if err != nil {
		s.t.Fatal(err)
	}
	if strings.HasSuffix(file, ".gz") {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, _ = w.Write(content)
		_ = w.Close()
		content = packed.Bytes()
	}
	path := filepath.Join(s.dir, "backups", backup, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// stored reads a file of a Backup from the bucket.
func stored[T any](s *site, backup, file string) (value T) {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(s.dir, "backups", backup, file))
	if err != nil {
		s.t.Fatal(err)
	}
	if strings.HasSuffix(file, ".gz") {
		r, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			s.t.Fatal(err)
		}
		if content, err = io.ReadAll(r); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := json.Unmarshal(content, &value); err != nil {
		s.t.Fatal(err)
	}
	return value
}

// checkCopy compares the copy of a Backup in the bucket with the Backup, and what kopia restores of it with the volume.
func (s *site) checkCopy(n nightly) {
	s.t.Helper()
	name := n.Name + "-kopia"
	pvbs := stored[[]velerov1.PodVolumeBackup](s, name, name+"-podvolumebackups.json.gz")
	if len(pvbs) != 1 {
		s.t.Fatalf("%+v", pvbs)
	}
	pvb := pvbs[0]
	if pvb.Name == n.pvb.Name || !strings.HasPrefix(pvb.Name, name+"-") || pvb.Spec.UploaderType != "kopia" || pvb.Spec.RepoIdentifier != "" || pvb.Status.SnapshotID == n.pvb.Status.SnapshotID ||
		pvb.Labels[velerov1.BackupNameLabel] != name || len(pvb.OwnerReferences) != 1 || pvb.OwnerReferences[0].Name != name || pvb.OwnerReferences[0].UID != "" ||
		!pvb.Status.StartTimestamp.Equal(n.pvb.Status.StartTimestamp) || pvb.Spec.Pod != n.pvb.Spec.Pod || pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted {
		s.t.Errorf("%+v", pvb)
	}
	metadata := stored[velerov1.Backup](s, name, "velero-backup.json")
	if metadata.Name != name || metadata.Kind != "Backup" || metadata.UID != "" || metadata.Annotations[v1alpha1.AnnotationMigratedFrom] != n.Name || metadata.Status.Phase != velerov1.BackupPhaseCompleted {
		s.t.Errorf("%+v", metadata)
	}
	infos := stored[[]map[string]any](s, name, name+"-volumeinfo.json.gz")
	if want := map[string]any{"uploaderType": "kopia", "snapshotHandle": pvb.Status.SnapshotID}; len(infos) != 1 || infos[0]["novelty"] != 1.0 || !maps.Equal(infos[0]["pvbInfo"].(map[string]any), want) {
		s.t.Errorf("%+v", infos)
	}
	backups := filepath.Join(s.dir, "backups")
	files := contents(s.t, backups)
	if there := files[filepath.Join(backups, name, name+".tar.gz")]; there == "" || there != files[filepath.Join(backups, n.Name, n.Name+".tar.gz")] {
		s.t.Error("the copy has another archive")
	}
	path := s.t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	restored, err := s.kopia.Restore(s.t.Context(), uploader.RestoreRequest{Repository: s.repository("kopia", "shop"), Volume: dir, SnapshotID: pvb.Status.SnapshotID}, nil)
	if err != nil || restored.Errors > 0 {
		s.t.Fatalf("%+v, %v", restored, err)
	}
	if differences, err := tree.Compare(n.volume, path, tree.Options{Plain: true}); err != nil || len(differences) > 0 {
		s.t.Errorf("%s: %v\n%s", n.Name, err, strings.Join(differences, "\n"))
	}
}

// history backs a volume up three times, with changes, a deletion, a new name and a link in between.
func (s *site) history() []nightly {
	s.t.Helper()
	resticrepo.Create(s.t, s.repository("restic", "shop").URL)
	return s.nights(30_000)
}

// nights is history in a repository that is there. The second backup has a new file of so many bytes.
func (s *site) nights(size int) []nightly {
	s.t.Helper()
	volume := rareVolume(s.t)
	nights := []nightly{s.nightlyBackup("night-1", volume, 1)}
	content := make([]byte, size)
	_, _ = rand.Read(content)
	for _, err := range []error{os.WriteFile(filepath.Join(volume, "new file"), content, 0o640), os.RemoveAll(filepath.Join(volume, "small"))} {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	nights = append(nights, s.nightlyBackup("night-2", volume, 2))
	for _, err := range []error{
		os.Rename(filepath.Join(volume, "big"), filepath.Join(volume, "renamed")), os.Symlink("../new file", filepath.Join(volume, "links", "to the new file")),
		os.Chmod(filepath.Join(volume, "new file"), 0o600),
	} {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return append(nights, s.nightlyBackup("night-3", volume, 3))
}

func untouched(t *testing.T, s *site) map[string]string {
	t.Helper()
	all := contents(t, filepath.Join(s.dir, "restic"))
	maps.Copy(all, contents(t, filepath.Join(s.dir, "backups")))
	maps.DeleteFunc(all, func(path, _ string) bool { return strings.Contains(path, "-kopia/") })
	return all
}

// TestMigrate: the history of a volume comes into a new kopia repository, oldest first, each piece of data once, and each Backup gets a
// copy that leads there. A second migration finds that all is done. What was there before is not changed.
func TestMigrate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nights := s.history()
	before := untouched(t, s)
	s.start(s.migrating())

	plan := s.migration("plan")
	plan.Spec.DryRun = true
	planned := s.ended(plan).Status
	if meta.FindStatusCondition(planned.Conditions, v1alpha1.ConditionMigrated) != nil || !meta.IsStatusConditionTrue(planned.Conditions, v1alpha1.ConditionPlanned) ||
		!strings.Contains(planned.Conditions[0].Message, "3 Backups would be copied; 0 Backups have their copies") {
		t.Errorf("%+v", planned.Conditions)
	}
	if planned.Phase != v1alpha1.PhaseCompleted || len(planned.Volumes) != 3 || planned.Volumes[0].Result != v1alpha1.VolumePlanned || planned.Volumes[0].Bytes < 1<<20 {
		t.Errorf("%+v", planned)
	}
	if _, err := os.Stat(s.repository("kopia", "shop").URL); err == nil {
		t.Error("a dry run has made a repository")
	}

	status := s.ended(s.migration("first")).Status
	if status.Phase != v1alpha1.PhaseCompleted || len(status.Volumes) != 3 || *status.Percent != 100 {
		t.Fatalf("%+v", status)
	}
	for i, v := range status.Volumes {
		if v.Result != v1alpha1.VolumeMigrated || v.PodVolumeBackup != nights[i].pvb.Name || v.MigratedSnapshotID == "" || v.Mismatched != 0 || v.NotStored != 3 || v.Files == 0 {
			t.Errorf("%+v", v)
		}
		if i > 0 && v.UploadedBytes > status.Volumes[0].UploadedBytes/3 {
			t.Errorf("snapshot %d has sent %d bytes, the first one %d", i, v.UploadedBytes, status.Volumes[0].UploadedBytes)
		}
		s.checkCopy(nights[i])
	}
	for i, b := range status.Backups {
		if b.Result != v1alpha1.VolumeMigrated || b.Copy != fmt.Sprintf("night-%d-kopia", i+1) {
			t.Errorf("%+v", b)
		}
	}
	copies := contents(t, filepath.Join(s.dir, "backups"))

	again := s.ended(s.migration("second")).Status
	for i, v := range again.Volumes {
		if v.Result != v1alpha1.VolumeMigrated || v.UploadedBytes != 0 || v.MigratedSnapshotID != status.Volumes[i].MigratedSnapshotID {
			t.Errorf("%+v", v)
		}
	}
	if again.Phase != v1alpha1.PhaseCompleted || !maps.Equal(copies, contents(t, filepath.Join(s.dir, "backups"))) {
		t.Errorf("a second migration has changed something: %+v", again)
	}
	s.wantSnapshots(3)
	s.testPlanAfterLoss()
	if !maps.Equal(before, untouched(t, s)) {
		t.Error("the restic repository or a Backup has changed")
	}

	s.Delete(nights[0].pvb)
	gap := s.ended(s.migration("gap")).Status
	if gap.Phase != v1alpha1.PhaseFailed || gap.Reason != v1alpha1.ReasonPodVolumeBackupNotFound || !strings.Contains(gap.Message, "1 Backup has restic snapshots by the list in the location") ||
		!strings.HasSuffix(gap.Message, "such as night-1") {
		t.Errorf("a Backup without its records: %+v", gap)
	}
}

// TestPostponedSnapshots: a dry run that has room for some volumes of a Backup only plans its copy all the same; not for a volume that was not selected, was
// tried, or is of kopia.
func TestPostponedSnapshots(t *testing.T) {
	t.Parallel()
	of := func(name, uploader, pod string) velerov1.PodVolumeBackup {
		return velerov1.PodVolumeBackup{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: pod}, Volume: "data", UploaderType: uploader},
			Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: name},
		}
	}
	known := []velerov1.PodVolumeBackup{of("tried", "restic", "db-0"), of("left", "restic", "db-1"), of("kopia", "kopia", "db-2"), of("other", "restic", "other")}
	for name, test := range map[string]struct {
		snapshot  string
		dryRun    bool
		postponed int32
		want      bool
	}{
		"left": {"left", true, 1, true}, "nothing is left": {"left", true, 0, false}, "no plan": {"left", false, 1, false},
		"tried": {"tried", true, 1, false}, "of kopia": {"kopia", true, 1, false}, "without a record": {"unknown", true, 1, false},
	} {
		task := &v1alpha1.RepositoryTask{
			Spec:   v1alpha1.RepositoryTaskSpec{DryRun: test.dryRun},
			Status: v1alpha1.RepositoryTaskStatus{Postponed: test.postponed, Volumes: []v1alpha1.RepositoryTaskVolume{{PodVolumeBackup: "tried", Result: v1alpha1.VolumeFailed}}},
		}
		r := &run{object: task, task: task}
		pvb := of(test.snapshot, "restic", "db-1")
		if got := r.isPostponed(&pvb, known); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
		task.Spec.Volume = &v1alpha1.PodVolumeSelector{Namespace: "bank"}
		if r.isPostponed(&pvb, known) {
			t.Errorf("%s: it was not selected", name)
		}
	}
}

// testPlanAfterLoss: a dry run looks whether the Backups have their copies, and makes none.
func (s *site) testPlanAfterLoss() {
	s.t.Helper()
	lost := filepath.Join(s.dir, "backups", "night-2-kopia")
	if err := os.Rename(lost, lost+".lost"); err != nil {
		s.t.Fatal(err)
	}
	plan := s.migration("plan-after-loss")
	plan.Spec.DryRun = true
	planned := s.ended(plan).Status
	if want := []v1alpha1.VolumeResult{v1alpha1.VolumeMigrated, v1alpha1.VolumePlanned, v1alpha1.VolumeMigrated}; planned.Phase != v1alpha1.PhaseCompleted || len(planned.Backups) != 3 ||
		planned.Backups[0].Result != want[0] || planned.Backups[1].Result != want[1] || planned.Backups[2].Result != want[2] ||
		!strings.Contains(planned.Conditions[0].Message, "0 snapshots would be migrated, 0 B; 3 were before; 1 Backup would be copied; 2 Backups have their copies") {
		s.t.Errorf("%+v", planned)
	}
	if _, err := os.Stat(lost); err == nil {
		s.t.Error("a dry run has made a copy")
	}
	if err := os.Rename(lost+".lost", lost); err != nil {
		s.t.Fatal(err)
	}
}

// wantSnapshots looks for snapshots that are there twice, or unfinished.
func (s *site) wantSnapshots(n int) {
	s.t.Helper()
	usage, err := s.kopia.Usage(s.t.Context(), uploader.UsageRequest{Repository: s.repository("kopia", "shop")}, nil)
	if err != nil || len(usage.Snapshots) != n || usage.Unfinished != 0 {
		s.t.Errorf("%+v, %v; want %d snapshots", usage, err, n)
	}
	for i, snapshot := range usage.Snapshots {
		if i > 0 && !snapshot.Time.After(usage.Snapshots[i-1].Time) {
			s.t.Errorf("the snapshots do not have the times of the originals: %+v", usage.Snapshots)
		}
	}
}

// stopping is an Importer whose second import stops in the middle of the snapshot until its process ends.
type stopping struct {
	Importer

	imports atomic.Int32
	stopped chan struct{}
}

func (i *stopping) Import(ctx context.Context, req uploader.ImportRequest, export uploader.ExportFunc, p progress.Sink) (uploader.ImportResult, error) {
	if i.imports.Add(1) != 2 {
		return i.Importer.Import(ctx, req, export, p)
	}
	return i.Importer.Import(ctx, req, func(ctx context.Context, each func(uploader.Exported) error) (uploader.ExportResult, error) {
		entries := 0
		return export(ctx, func(e uploader.Exported) error {
			if entries++; entries == 20 {
				close(i.stopped)
				<-ctx.Done()
			}
			return each(e)
		})
	}, p)
}

// stoppedMigration begins a migration, and ends its process in the middle of the second of three snapshots.
func (s *site) stoppedMigration() (task *v1alpha1.RepositoryTask, nights []nightly) {
	nights = s.history()
	cfg := s.migrating()
	importer := &stopping{Importer: s.kopia, stopped: make(chan struct{})}
	cfg.Importer = importer
	stop := s.start(cfg)
	task = s.migration("task")
	s.Create(task)
	<-importer.stopped
	stop()
	return task, nights
}

// TestMigrateContinues: a migration whose process ends in the middle of the second of three snapshots is continued by the next one.
func TestMigrateContinues(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	task, nights := s.stoppedMigration()
	s.wantSnapshots(1)
	s.start(s.migrating())
	status := testenv.EventuallyGet(s.Env, task, "the end of the task", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() }).Status
	if status.Phase != v1alpha1.PhaseCompleted || status.Attempts != 2 {
		t.Errorf("%+v", status)
	}
	s.wantSnapshots(3)
	for _, n := range nights {
		s.checkCopy(n)
	}
}

// TestMigrateDeleted: a Backup that is deleted, with its records, before its copy is made has no copy, and the task says so.
func TestMigrateDeleted(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	task, nights := s.stoppedMigration()
	s.Delete(nights[0].pvb)
	s.Delete(nights[0].Backup)
	s.start(s.migrating())
	status := testenv.EventuallyGet(s.Env, task, "the end of the task", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() }).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonBackupNotFound || len(status.Backups) != 3 || status.Volumes[0].Result != v1alpha1.VolumeMigrated {
		t.Fatalf("%+v", status)
	}
	for _, b := range status.Backups {
		if gone := b.Backup == nights[0].Name; gone != (b.Result == v1alpha1.VolumeFailed) {
			t.Errorf("%+v", b)
		}
	}
}

// TestMigrateDamaged: a snapshot that cannot be read is named, leaves nothing, and its Backup has no copy. The others are migrated.
func TestMigrateDamaged(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	resticrepo.Create(t, s.repository("restic", "shop").URL)
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "good"), []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := s.nightlyBackup("good", volume, 1)
	if err := os.WriteFile(filepath.Join(volume, "large"), bytes.Repeat([]byte("0123456789abcdef\x00\xff"), 200_000), 0o600); err != nil {
		t.Fatal(err)
	}
	s.nightlyBackup("bad", volume, 2)
	flip(t, s.repository("restic", "shop").URL, "data/")
	s.start(s.migrating())
	status := s.ended(s.migration("task")).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonMismatched || len(status.Volumes) != 2 {
		t.Fatalf("%+v", status)
	}
	if v := status.Volumes[1]; v.Result != v1alpha1.VolumeMismatched || v.MigratedSnapshotID != "" || !strings.Contains(v.Message, "large") {
		t.Errorf("%+v", v)
	}
	if b := status.Backups; len(b) != 2 || b[0].Result != v1alpha1.VolumeFailed || b[0].Reason != v1alpha1.ReasonNotMigrated || b[1].Result != v1alpha1.VolumeMigrated {
		t.Errorf("%+v", b)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "backups", "bad-kopia")); err == nil {
		t.Error("a backup with a damaged volume has a copy")
	}
	s.checkCopy(good)
	s.wantSnapshots(1)
}

// TestMigrateRefuses: nothing is written where the password is wrong, the location is read-only, or a Backup must not be copied.
func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	s := newSite(t)
	resticrepo.Create(t, s.repository("restic", "shop").URL)
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := s.nightlyBackup("night", volume, 1)
	before := untouched(t, s)
	s.start(s.migrating())

	location := s.DirectoryLocation("default", s.dir)
	testenv.EventuallyGet(s.Env, location, "the location", func(_ *velerov1.BackupStorageLocation, err error) bool { return err == nil })
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	if err := s.Client.Update(t.Context(), location); err != nil {
		t.Fatal(err)
	}
	status := s.ended(s.migration("read-only")).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonInvalidLocation || !strings.Contains(status.Message, "read-only") {
		t.Errorf("%+v", status)
	}
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadWrite
	if err := s.Client.Update(t.Context(), location); err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(s.repository("kopia", "shop").URL); err == nil {
		t.Error("a refused migration has made a repository")
	}

	// Another volume of the backup, which nobody migrates, and then a snapshot of another kind.
	other := n.pvb.DeepCopy()
	other.Name, other.Spec.Volume, other.Status.SnapshotID = "other", "other", "0123456789abcdef"
	s.storeBackup(n.Backup, n.pvb, other)
	status = s.ended(s.migration("part")).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonNotMigrated || status.Volumes[0].Result != v1alpha1.VolumeMigrated {
		t.Errorf("%+v", status)
	}
	s.wantUncopied(status)
	s.storeBackup(n.Backup, n.pvb)
	s.storeFile("night", "night-volumesnapshots.json.gz", []map[string]any{{"spec": map[string]any{"backupName": "night"}, "status": map[string]any{"providerSnapshotID": "snap-1"}}})
	status = s.ended(s.migration("native")).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonUnsupported || !strings.Contains(status.Message, "volume snapshots") {
		t.Errorf("%+v", status)
	}
	s.wantUncopied(status)
	plan := s.migration("native-plan")
	plan.Spec.DryRun = true
	s.wantUncopied(s.ended(plan).Status)
	s.storeBackup(n.Backup, n.pvb)
	for name, test := range map[string]struct {
		spoil  func() error
		reason v1alpha1.Reason
		text   string
	}{
		"damaged": {func() error {
			return os.WriteFile(filepath.Join(s.dir, "backups", "night", "night-podvolumebackups.json.gz"), []byte("no list"), 0o600)
		}, v1alpha1.ReasonBackupDamaged, "night-podvolumebackups.json.gz: damaged"},
		"missing": {func() error {
			return os.Remove(filepath.Join(s.dir, "backups", "night", "velero-backup.json"))
		}, v1alpha1.ReasonBackupDamaged, "velero-backup.json: does not exist"},
		"without items": {func() error {
			return os.Remove(filepath.Join(s.dir, "backups", "night", "night.tar.gz"))
		}, v1alpha1.ReasonBackupDamaged, "night.tar.gz: does not exist"},
		"cut off": {func() error {
			return os.Truncate(filepath.Join(s.dir, "backups", "night", "night.tar.gz"), 60)
		}, v1alpha1.ReasonBackupDamaged, "night.tar.gz: damaged"},
		"lacking": {func() error {
			s.storeBackup(n.Backup)
			return nil
		}, v1alpha1.ReasonBackupDamaged, "lacks 1 volume"},
		"failed": {func() error {
			failed := n.DeepCopy()
			failed.Status.Phase = velerov1.BackupPhaseFailed
			s.storeBackup(failed, n.pvb)
			return nil
		}, v1alpha1.ReasonUnsupported, "in phase Failed"},
	} {
		if err := test.spoil(); err != nil {
			t.Fatal(err)
		}
		status = s.ended(s.migration(strings.ReplaceAll(name, " ", "-"))).Status
		if status.Phase != v1alpha1.PhaseFailed || status.Reason != test.reason || !strings.Contains(status.Message, test.text) {
			t.Errorf("%s: %+v", name, status)
		}
		s.storeBackup(n.Backup, n.pvb)
	}
	foreign := s.backup("night-kopia")
	s.storeBackup(foreign)
	status = s.ended(s.migration("foreign")).Status
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonUnsupported || !strings.Contains(status.Message, "no copy of") {
		t.Errorf("%+v", status)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "backups", "night-kopia")); err != nil {
		t.Fatal(err)
	}
	s.Delete(foreign)
	for _, name := range []string{"well", "mended"} { // what a copy has lost is written again
		if status = s.ended(s.migration(name)).Status; status.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("%+v", status)
		}
		if err := os.Remove(filepath.Join(s.dir, "backups", "night-kopia", "night-kopia.tar.gz")); err != nil {
			t.Errorf("after migration %s: %v", name, err)
		}
	}
	if now := untouched(t, s); !slices.Equal(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(now))) {
		t.Error("the restic repository or a Backup has other files than before")
	}
}

// wantUncopied: the one snapshot was migrated, its Backup has no copy, and the task says how to restore it all the same.
func (s *site) wantUncopied(status v1alpha1.RepositoryTaskStatus) {
	s.t.Helper()
	if len(status.Volumes) != 1 || len(status.Backups) != 1 || status.Backups[0].UncopiedSnapshots != 1 || !strings.Contains(status.Message, "; 1 snapshots of those, which no Velero server restores out of kopia") {
		s.t.Fatalf("%+v", status)
	}
	v := &status.Volumes[0]
	for _, want := range []string{"Backup night has no copy", "--into-claim shop/CLAIM --from " + v.MigratedSnapshotID + " --uploader kopia --source-namespace shop --location default"} {
		if !strings.Contains(v.Message, want) || v.MigratedSnapshotID == "" || strings.Count(v.Message, want) != 1 {
			s.t.Errorf("%+v, want %s", v, want)
		}
	}
}

// TestMigrateWrongPassword: nothing is copied, and nothing made.
func TestMigrateWrongPassword(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	resticrepo.Create(t, s.repository("restic", "shop").URL)
	s.storeInto(s.backup("night"), "restic", "shop", "db-0")
	if err := s.kopia.Initialize(t.Context(), uploader.Repository{URL: s.repository("kopia", "shop").URL, Password: "another one"}); err != nil {
		t.Fatal(err)
	}
	s.start(s.migrating())
	if status := s.ended(s.migration("task")).Status; status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonWrongPassword || status.Volumes[0].Result != v1alpha1.VolumeFailed {
		t.Errorf("%+v", status)
	}
}

// TestMigrateWrongPasswordMakesNothing: a kopia repository that was made with a password that does not open restic's could not be opened with the right
// one.
func TestMigrateWrongPasswordMakesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	resticrepo.Create(t, s.repository("restic", "shop").URL)
	s.storeInto(s.backup("night"), "restic", "shop", "db-0")
	s.Delete(&corev1.Secret{ObjectMeta: s.Meta("velero-repo-credentials")})
	s.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": "another one"})
	s.start(s.migrating())
	if status := s.ended(s.migration("task")).Status; status.Phase != v1alpha1.PhaseFailed || status.Reason != v1alpha1.ReasonWrongPassword {
		t.Errorf("%+v", status)
	}
	if made, err := os.ReadDir(s.repository("kopia", "shop").URL); err == nil && len(made) > 0 {
		t.Errorf("a kopia repository was made: %v", made)
	}
}
