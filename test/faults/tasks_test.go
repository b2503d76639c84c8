//go:build faults

package faults

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// What goes wrong around RepositoryTasks. Whatever it is, a task says it with its reason and its condition, it proves nothing that it has
// not seen, and afterwards the repository is whole and what it is to keep can be restored.

// bench is a repository with an old and a new backup of a volume, which belong to no Backup, and a process that does tasks.
type bench struct {
	*fixture

	uploader string
	source   *corev1.Pod
	old      *velerov1.PodVolumeBackup // of the volume as it was before
	kept     *velerov1.PodVolumeBackup
	pack     string // the file with the data of the new one
	agent    *rig.Agent
	changes  byte // of the volume's content
}

// alone lets a process begin at once after another one was killed, whose Lease has not expired.
const alone = "--leader-elect=false"

// newBench makes a bench in a directory, or in a bucket behind a proxy.
func newBench(t *testing.T, uploader string, bucket bool) *bench {
	t.Helper()
	b := &bench{fixture: newFixture(t), uploader: uploader}
	if bucket {
		server := s3.Start(t)
		b.UseBucket(server, server.Bucket(t))
	} else {
		b.UseDirectory(t.TempDir())
	}
	if uploader == rig.Restic {
		resticrepo.Create(t, b.repository()) // each task starts restic many times
	}
	b.agent = b.Start()
	b.source = b.Pod("source", "data")
	fillFiles(t, b.Volume(b.source, "data"), taskBytes)
	b.old = b.backUpOwn()
	before := b.files()
	b.change()
	b.kept = b.backUpOwn()
	for path := range b.files() {
		if before[path] == "" && (b.pack == "" || rig.Size(t, path) > rig.Size(t, b.pack)) {
			b.pack = path
		}
	}
	return b
}

// taskBytes is the size of each backup of a bench.
const taskBytes = 4 << 20

// repository is where the files of the repository lie in the end.
func (b *bench) repository() string {
	return filepath.Join(b.Store.Dir, b.uploader, b.Namespace)
}

// change gives the volume other content, of which no piece is in an earlier backup.
func (b *bench) change() {
	b.T.Helper()
	b.changes++
	dir := b.Volume(b.source, "data")
	files, err := filepath.Glob(filepath.Join(dir, "part-*"))
	if err != nil || len(files) == 0 {
		b.T.Fatal(files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			b.T.Fatal(err)
		}
		for i := range content {
			content[i] += 2*b.changes - 1
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			b.T.Fatal(err)
		}
	}
}

// newOwn returns a PodVolumeBackup of the volume that belongs to no Backup, as 'kubectl plimsoll volume backup' makes it.
func (b *bench) newOwn() *velerov1.PodVolumeBackup {
	pvb := b.NewBackup(b.source, "data", b.uploader)
	pvb.GenerateName, pvb.OwnerReferences, pvb.Labels = "own-", nil, nil
	delete(pvb.Spec.Tags, "backup")
	delete(pvb.Spec.Tags, "backup-uid")
	return pvb
}

func (b *bench) backUpOwn() *velerov1.PodVolumeBackup {
	b.T.Helper()
	pvb := b.newOwn()
	b.Create(pvb)
	b.Complete(pvb)
	b.Get(pvb)
	return pvb
}

// newTask returns a task about the repository, or the newest backup, as far as its type goes.
func (b *bench) newTask(kind v1alpha1.RepositoryTaskType) *v1alpha1.RepositoryTask {
	task := &v1alpha1.RepositoryTask{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, GenerateName: strings.ToLower(string(kind)) + "-"}}
	task.Spec.Type = kind
	switch kind {
	case v1alpha1.TaskForget:
		task.Spec.Keep, task.Spec.Apply = &v1alpha1.RetentionPolicy{Last: 1}, true
	case v1alpha1.TaskPrune:
		task.Spec.Latest, task.Spec.Apply = true, true
		if task.Spec.MaxUnused = "0"; b.uploader == rig.Kopia {
			task.Spec.MaxUnused, task.Spec.Full = "", true
		}
	case v1alpha1.TaskCheck:
		task.Spec.PodVolumeBackup, task.Spec.ReadData = b.kept.Name, true
	case v1alpha1.TaskRepair:
		task.Spec.PodVolumeBackup, task.Spec.Repair = b.kept.Name, v1alpha1.RepairIndex
	default:
		task.Spec.PodVolumeBackup = b.kept.Name
	}
	return task
}

// awaitTask waits for the end of a task.
func (b *bench) awaitTask(task *v1alpha1.RepositoryTask) v1alpha1.RepositoryTaskStatus {
	b.T.Helper()
	return b.awaitStatus(task, "ended", func(s *v1alpha1.RepositoryTaskStatus) bool { return s.Phase.Terminal() })
}

func (b *bench) awaitStatus(task *v1alpha1.RepositoryTask, what string, is func(*v1alpha1.RepositoryTaskStatus) bool) v1alpha1.RepositoryTaskStatus {
	b.T.Helper()
	return testenv.EventuallyGet(b.Env, task, what, func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && is(&t.Status) }).Status
}

// completes creates a task, which must be Completed.
func (b *bench) completes(kind v1alpha1.RepositoryTaskType) v1alpha1.RepositoryTaskStatus {
	b.T.Helper()
	task := b.newTask(kind)
	b.Create(task)
	return b.completed(task)
}

// completed waits for the end of a task, which must be Completed, with a condition that is True.
func (b *bench) completed(task *v1alpha1.RepositoryTask) v1alpha1.RepositoryTaskStatus {
	b.T.Helper()
	status := b.awaitTask(task)
	if status.Phase != v1alpha1.PhaseCompleted || len(status.Conditions) != 1 || status.Conditions[0].Status != metav1.ConditionTrue {
		b.T.Errorf("%s ended as %s: %s: %s; %+v", task.Name, status.Phase, status.Reason, status.Message, status)
	}
	return status
}

// fails creates a task, which must fail with a reason and a message that the condition and the Event have, too.
func (b *bench) fails(kind v1alpha1.RepositoryTaskType, reason v1alpha1.Reason, says ...string) v1alpha1.RepositoryTaskStatus {
	b.T.Helper()
	task := b.newTask(kind)
	if kind == v1alpha1.TaskForget {
		task.Spec.Acknowledge = b.wave()
	}
	b.Create(task)
	return b.failed(task, reason, says...)
}

func (b *bench) failed(task *v1alpha1.RepositoryTask, reason v1alpha1.Reason, says ...string) v1alpha1.RepositoryTaskStatus {
	b.T.Helper()
	status := b.awaitTask(task)
	if status.Phase != v1alpha1.PhaseFailed || status.Reason != reason || len(status.Conditions) != 1 {
		b.T.Errorf("%s ended as %s: %s: %s; %+v", task.Name, status.Phase, status.Reason, status.Message, status)
		return status
	}
	if c := status.Conditions[0]; c.Status != metav1.ConditionFalse || c.Reason != string(reason) || c.Message != status.Message {
		b.T.Errorf("%s: the condition is %+v, and the message %q", task.Name, c, status.Message)
	}
	for _, text := range says {
		if !strings.Contains(status.Message, text) {
			b.T.Errorf("%s does not say %q: %s", task.Name, text, status.Message)
		}
	}
	b.Eventually("an Event that says what the message says", func() bool {
		var events eventsv1.EventList
		if err := b.Client.List(b.Context(), &events, client.InNamespace(b.Namespace)); err != nil {
			b.T.Fatal(err)
		}
		return slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool { return e.Regarding.UID == task.UID && e.Note == status.Message })
	})
	return status
}

// wave returns the wave of deletions that forgets the old backup.
func (b *bench) wave() string {
	b.T.Helper()
	plan := b.newTask(v1alpha1.TaskForget)
	plan.Spec.Apply = false
	b.Create(plan)
	return b.completed(plan).Retention.Wave
}

// forget has the old backup forgotten, so that there is something to prune.
func (b *bench) forget() {
	b.T.Helper()
	task := b.newTask(v1alpha1.TaskForget)
	task.Spec.Acknowledge = b.wave()
	b.Create(task)
	b.completed(task)
}

// whole holds that the repository is whole, that the new backup is proven, and that no task claims damage.
func (b *bench) whole() {
	b.T.Helper()
	if r := b.completes(v1alpha1.TaskCheck).Repositories[0]; r.Result != v1alpha1.RepositoryWhole || r.Snapshots < 1 {
		b.T.Errorf("%+v", r)
	}
	if v := b.completes(v1alpha1.TaskVerify).Volumes[0]; v.Result != v1alpha1.VolumeVerified || v.Bytes != taskBytes {
		b.T.Errorf("%+v", v)
	}
}

// files returns the sizes and hashes of the repository's files, but for kopia's logs.
func (b *bench) files() map[string]string {
	b.T.Helper()
	files := map[string]string{}
	for _, path := range b.glob("*", "*/*", "*/*/*") {
		content, err := os.ReadFile(path)
		if info, statErr := os.Stat(path); statErr != nil || info.IsDir() || strings.HasPrefix(filepath.Base(path), "_log_") {
			continue
		}
		if err != nil {
			b.T.Fatal(err)
		}
		files[path] = fmt.Sprintf("%d %x", len(content), sha256.Sum256(content))
	}
	return files
}

func (b *bench) glob(patterns ...string) []string {
	b.T.Helper()
	var paths []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(b.repository(), pattern))
		if err != nil {
			b.T.Fatal(err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// unchanged holds that nothing in the repository has changed.
func (b *bench) unchanged(before map[string]string) {
	b.T.Helper()
	after := b.files()
	for path, content := range before {
		if after[path] != content {
			b.T.Errorf("%s has changed: %q is now %q", path, content, after[path])
		}
	}
	maps.DeleteFunc(after, func(path, _ string) bool { return before[path] != "" })
	if len(after) > 0 {
		b.T.Errorf("there are new files: %v", after)
	}
}

// saveStore copies the repository, and returns a function that brings it back as it was.
func (b *bench) saveStore() (restore func()) {
	b.T.Helper()
	saved := b.T.TempDir()
	copyTo := func(from, to string) {
		b.T.Helper()
		if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
			b.T.Fatalf("copy the repository: %v\n%s", err, out)
		}
	}
	copyTo(b.repository(), saved)
	return func() {
		b.T.Helper()
		if err := os.RemoveAll(b.repository()); err != nil {
			b.T.Fatal(err)
		}
		if err := os.Mkdir(b.repository(), 0o700); err != nil {
			b.T.Fatal(err)
		}
		copyTo(saved, b.repository())
	}
}

// eachUploader runs a row for each data path.
func eachUploader(t *testing.T, run func(t *testing.T, uploader string)) {
	t.Helper()
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) { run(t, uploader) })
	}
}

func TestTaskWithAWrongPassword(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "tasks with a wrong password, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, false)
		b.StartTasks(nil)
		before := b.files()
		secret := &corev1.Secret{ObjectMeta: b.Meta("velero-repo-credentials")}
		b.Patch(secret, `{"stringData":{"repository-password":"wrong"}}`)
		for _, kind := range []v1alpha1.RepositoryTaskType{v1alpha1.TaskVerify, v1alpha1.TaskCheck, v1alpha1.TaskUsage, v1alpha1.TaskForget, v1alpha1.TaskPrune, v1alpha1.TaskRepair} {
			status := b.fails(kind, v1alpha1.ReasonWrongPassword, "wrong repository password")
			for _, v := range status.Volumes {
				if v.Result != v1alpha1.VolumeFailed || v.Mismatched != 0 {
					t.Errorf("%s: %+v", kind, v)
				}
			}
			for _, r := range status.Repositories {
				if r.Result != v1alpha1.RepositoryFailed || r.Damaged != 0 || r.Prune != nil {
					t.Errorf("%s: %+v", kind, r)
				}
			}
		}
		b.unchanged(before)
		b.Get(b.old)
		if b.old.Annotations[v1alpha1.AnnotationForgetting] != "" {
			t.Error("the backup is marked as being forgotten, and its snapshot was not even looked for")
		}
		b.Patch(secret, `{"stringData":{"repository-password":"`+rig.Password+`"}}`)
		since := time.Now()
		b.whole()
		r.recovered(since)
		b.restoreAndCompare(b.kept)
	})
}

func TestTaskInAReadOnlyLocation(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "tasks in a location that is ReadOnly, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, false)
		b.StartTasks(nil)
		before := b.files()
		location := &velerov1.BackupStorageLocation{ObjectMeta: b.Meta(velero.Location)}
		b.Patch(location, `{"spec":{"accessMode":"ReadOnly"}}`)
		b.whole()
		b.completes(v1alpha1.TaskUsage)
		for _, kind := range []v1alpha1.RepositoryTaskType{v1alpha1.TaskForget, v1alpha1.TaskPrune, v1alpha1.TaskRepair} {
			b.fails(kind, v1alpha1.ReasonUnsupported, "the BackupStorageLocation is read-only")
		}
		b.unchanged(before)
		b.restoreAndCompare(b.kept)
		b.Patch(location, `{"spec":{"accessMode":"ReadWrite"}}`)
		since := time.Now()
		b.forget()
		b.completes(v1alpha1.TaskPrune)
		r.recovered(since)
		b.whole()
	})
}

// TestStorageRefusesWrites: the task says what the storage answers, and goes on by itself when that changes.
func TestStorageRefusesWrites(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "storage refuses the writes of a forget, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		b.StartTasks(nil)
		task := b.newTask(v1alpha1.TaskForget)
		task.Spec.Acknowledge = b.wave()
		before := b.files()
		refused := b.Store.Proxy.On(isChange, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>")
		})
		b.Create(task)
		status := b.awaitStatus(task, "waiting", func(s *v1alpha1.RepositoryTaskStatus) bool {
			return s.Phase.Terminal() || s.State == string(v1alpha1.StateWaiting) && s.Message != ""
		})
		if status.Phase.Terminal() || !strings.Contains(status.Message, "Access Denied") {
			t.Errorf("%+v", status)
		}
		b.unchanged(before)
		b.Store.Proxy.Heal(refused)
		since := time.Now()
		b.completed(task)
		r.recovered(since)
		b.completes(v1alpha1.TaskVerify)
		b.restoreAndCompare(b.kept)
	})
}
