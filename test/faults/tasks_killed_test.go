//go:build faults

package faults

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestPruneIsKilled: between two writes to the storage nothing there changes, so that restic is killed at all the moments that there are.
func TestPruneIsKilled(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "process killed before %s of a prune, %s", moments[uploader], uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		b.agent.Stop()
		tasks := b.StartTasks(nil, alone)
		b.forget()
		tasks.Stop()
		restore := b.saveStore()
		killed := 0
		for n := int64(1); ; n = nextMoment(uploader, n) {
			restore()
			task := b.newTask(v1alpha1.TaskPrune)
			if !b.killedBefore(task, n) {
				break
			}
			killed++
			since := time.Now()
			tasks := b.StartTasks(nil, alone)
			b.goesOnPruning(task)
			r.recovered(since)
			b.completes(v1alpha1.TaskCheck)
			b.CheckLocks()
			tasks.Stop()
			if t.Failed() {
				t.Fatalf("it was killed before write %d", n)
			}
		}
		if killed < 4 {
			t.Errorf("it was killed at %d moments only", killed)
		}
		b.Start()
		b.restoreAndCompare(b.kept)
	})
}

// moments are the writes before which a process is killed.
var moments = map[string]string{rig.Restic: "each write", rig.Kopia: "writes 1, 2, 4, 8, ..."}

// nextMoment returns the next write before which a process is killed: each one of restic's, and of the many small ones of
// kopia fewer and fewer.
func nextMoment(uploader string, n int64) int64 {
	if uploader == rig.Kopia {
		return 2 * n
	}
	return n + 1
}

// killedBefore has a process work on a task, kills it before its n-th change of the storage, of a PodVolumeBackup or of the task's
// phase, and reports whether there was one. Otherwise the task is Completed.
func (b *bench) killedBefore(task *v1alpha1.RepositoryTask, n int64) bool {
	b.T.Helper()
	tasks := b.StartTasks(nil, alone)
	if task.Spec.Type == v1alpha1.TaskForget {
		task.Spec.Acknowledge = b.wave()
	}
	var changes atomic.Int64
	gate := testenv.NewGate()
	hold := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if changes.Add(1) == n {
			gate.Before(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
	held, heldWrite := b.Store.Proxy.On(isChange, hold), b.API.On(isChangeOfRecords, hold)
	defer func() { b.Store.Proxy.Heal(held); b.API.Heal(heldWrite) }()
	b.Create(task)
	b.awaitStatus(task, "killed or ended", func(s *v1alpha1.RepositoryTaskStatus) bool { return gate.Reached() || s.Phase.Terminal() })
	if !gate.Reached() {
		b.completed(task)
		tasks.Stop()
		return false
	}
	tasks.Kill()
	testenv.Eventually(b.T, "no worker survives its process", func() bool { return len(rig.Processes(b.T, b.Dir)) == 0 })
	b.Get(task)
	if task.Status.Phase != v1alpha1.PhaseInProgress {
		b.T.Errorf("it is in phase %q before anybody has resumed it", task.Status.Phase)
	}
	return true
}

// isChangeOfRecords reports whether a process changes or deletes a PodVolumeBackup, or ends a task.
func isChangeOfRecords(r *http.Request) bool {
	ofBackup := strings.Contains(r.URL.Path, "/podvolumebackups/")
	return rig.IsTerminalWrite(r) || ofBackup && (rig.IsWrite(r) || r.Method == http.MethodDelete)
}

// TestForgetIsKilled: no record claims a snapshot that is gone, and no snapshot is left that nobody knows.
func TestForgetIsKilled(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "process killed before %s of a forget, %s", moments[uploader], uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		b.agent.Stop()
		killed := 0
		for n := int64(1); ; n = nextMoment(uploader, n) {
			task := b.newTask(v1alpha1.TaskForget)
			if !b.killedBefore(task, n) {
				break
			}
			killed++
			since := time.Now()
			tasks := b.StartTasks(nil, alone)
			if status := b.completed(task); status.Attempts != 2 {
				t.Errorf("it was begun %d times", status.Attempts)
			}
			r.recovered(since)
			if u := b.completes(v1alpha1.TaskUsage).Repositories[0].Usage; u.Snapshots != 1 || u.UnknownSnapshots+u.MissingSnapshots != 0 {
				t.Errorf("%+v", u)
			}
			tasks.Stop()
			if t.Failed() {
				t.Fatalf("it was killed before write %d", n)
			}
			agent := b.Start()
			b.change() // the backup removes a lock that a dead process has left after its work
			b.old, b.kept = b.kept, b.backUpOwn()
			agent.Stop()
		}
		if killed < 3 {
			t.Errorf("it was killed at %d moments only", killed)
		}
		b.Start()
		b.StartTasks(nil, alone)
		b.whole()
		b.restoreAndCompare(b.kept)
	})
}

// goesOnPruning holds that the next process completes a prune. Of kopia's maintenance it cannot know that it was killed: it waits, and says for
// what.
func (b *bench) goesOnPruning(task *v1alpha1.RepositoryTask) {
	b.T.Helper()
	waits := func(s *v1alpha1.RepositoryTaskStatus) bool {
		return b.uploader == rig.Kopia && s.State == string(v1alpha1.StateWaiting) && strings.Contains(s.Message, "has not recorded its end")
	}
	status := b.awaitStatus(task, "ended, or waiting", func(s *v1alpha1.RepositoryTaskStatus) bool { return s.Phase.Terminal() || waits(s) })
	if !status.Phase.Terminal() {
		b.Delete(task)
		return
	}
	if status = b.completed(task); status.Attempts != 2 {
		b.T.Errorf("it was begun %d times", status.Attempts)
	}
	if p := status.Repositories[0].Prune; b.uploader == rig.Restic && (p == nil || p.FreedBytes == nil || *p.FreedBytes < taskBytes) {
		b.T.Errorf("what was freed counts from the first process on: %+v", p)
	}
}

func TestTaskProcessIsKilledAtTheEnd(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "process killed before and after the terminal write of a verification, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, false)
		for _, written := range []bool{false, true} {
			gate := testenv.NewGate()
			hold := gate.Before
			if written {
				hold = gate.After
			}
			held := b.API.On(rig.IsTerminalWrite, hold)
			tasks := b.StartTasks(nil, alone)
			task := b.newTask(v1alpha1.TaskVerify)
			b.Create(task)
			gate.Wait(t)
			tasks.Kill()
			b.API.Heal(held)
			b.Get(task)
			if task.Status.Phase.Terminal() != written {
				t.Errorf("it is in phase %q", task.Status.Phase)
			}
			verified := task.Status.Volumes[0]
			since := time.Now()
			next := b.StartTasks(nil, alone)
			status := b.completed(task)
			r.recovered(since)
			if v := status.Volumes[0]; v.Result != v1alpha1.VolumeVerified || !v.CompletionTimestamp.Equal(verified.CompletionTimestamp) {
				t.Errorf("the volume was done, and became %+v", v)
			}
			b.completes(v1alpha1.TaskVerify) // the next process works
			next.Stop()
		}
	})
}

// TestTwoTaskProcesses: of two processes one works, on one of two tasks. When it is killed, or loses the API server and with it the Lease,
// the other one takes over.
func TestTwoTaskProcesses(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(b *bench, first *rig.Agent){
		"killed":                      func(_ *bench, first *rig.Agent) { first.Kill() },
		"cut off from the API server": func(b *bench, _ *rig.Agent) { b.API.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRow(t, "two tasks at once, two processes, the first is %s, restic", name)
			t.Parallel()
			b := newBench(t, rig.Restic, true)
			b.agent.Stop()
			first := b.StartTasks(nil)
			b.forget()
			gate := testenv.NewGate()
			held := b.Store.Proxy.On(func(r *http.Request) bool { return rig.IsPut(r) && strings.Contains(r.URL.Path, "/index/") }, gate.Before)
			one, two := b.newTask(v1alpha1.TaskPrune), b.newTask(v1alpha1.TaskPrune)
			b.Create(one)
			gate.Wait(t)
			b.Create(two)
			second := b.StartTasks(b.Config)
			second.Said("Doing the RepositoryTasks")
			b.Get(two)
			if two.Status.Phase != "" || strings.Contains(second.Log(), "Task started") {
				t.Errorf("two tasks or processes work at once: %+v", two.Status)
			}

			lose(b, first)
			since := time.Now()
			testenv.Eventually(t, "the second process begins", func() bool { return strings.Contains(second.Log(), "Task started") })
			if first.Running() {
				t.Error("the first process works on while the second begins")
			}
			r.recovered(since)
			b.Store.Proxy.Heal(held)
			for _, task := range []*v1alpha1.RepositoryTask{one, two} { // the second process begins with either
				if status := b.completed(task); status.Repositories[0].Snapshots != 1 {
					t.Errorf("%+v", status)
				}
			}
			if left := rig.Size(t, filepath.Join(b.repository(), "data")); left > taskBytes*3/2 {
				t.Errorf("%d bytes are left of two backups with %d each, one of which is forgotten", left, taskBytes)
			}
			b.whole()
		})
	}
}
