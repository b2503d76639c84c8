//go:build faults

package faults

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// What else happens while a task is at work, and what is left of a repository that has lost something.

func TestTaskFindsADamagedPack(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "tasks in a repository with a damaged pack, then without it, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, false)
		b.StartTasks(nil)
		within, err := filepath.Rel(b.repository(), b.pack)
		if err != nil {
			t.Fatal(err)
		}
		_, undo, err := tree.FlipLargest(b.repository(), within)
		if err != nil {
			t.Fatal(err)
		}
		b.refuseDamage()
		if err := undo(); err != nil {
			t.Fatal(err)
		}
		b.whole() // which ends the damage for the tasks that follow

		away := filepath.Join(t.TempDir(), "pack")
		if err := os.Rename(b.pack, away); err != nil {
			t.Fatal(err)
		}
		if uploader == rig.Restic { // kopia's maintenance reads no packs: the next task has to know what a check has found
			b.fails(v1alpha1.TaskPrune, v1alpha1.ReasonDamaged, "1 pack is missing", b.packName(), "kubectl plimsoll repository check")
		}
		b.refuseDamage()
		if err := os.Rename(away, b.pack); err != nil {
			t.Fatal(err)
		}
		since := time.Now()
		b.whole()
		r.recovered(since)
		b.forget()
		b.completes(v1alpha1.TaskPrune)
		b.restoreAndCompare(b.kept)
	})
}

// packName is the pack's name in the repository: kopia cuts it into directories.
func (b *bench) packName() string {
	b.T.Helper()
	if b.uploader == rig.Restic {
		return filepath.Base(b.pack)
	}
	within, err := filepath.Rel(b.repository(), b.pack)
	if err != nil {
		b.T.Fatal(err)
	}
	return strings.TrimSuffix(strings.ReplaceAll(within, "/", ""), ".f")
}

// refuseDamage holds that the damage is found and named, and that nothing is forgotten or pruned then.
func (b *bench) refuseDamage() {
	b.T.Helper()
	before := b.files()
	if v := b.fails(v1alpha1.TaskVerify, v1alpha1.ReasonMismatched, "part-").Volumes[0]; v.Result != v1alpha1.VolumeMismatched || len(v.Paths) == 0 {
		b.T.Errorf("%+v", v)
	}
	pack := b.packName()
	if r := b.fails(v1alpha1.TaskCheck, v1alpha1.ReasonDamaged, pack).Repositories[0]; len(r.DamagedPacks) != 1 || r.DamagedPacks[0] != pack || r.TouchedSnapshots != 1 || len(r.Remedies) == 0 {
		b.T.Errorf("%+v", r)
	}
	b.fails(v1alpha1.TaskPrune, v1alpha1.ReasonDamaged, "nothing is pruned before")
	if wave := b.wave(); wave != "" {
		b.T.Errorf("backups of the damaged volume would be forgotten: wave %s", wave)
	}
	b.unchanged(before)
	// In objects a second is one moment, in which damage counts: what comes next must not end in it.
	ended := time.Now().Truncate(time.Second)
	testenv.Eventually(b.T, "the second of the damage is over", func() bool { return time.Now().Truncate(time.Second).After(ended) })
}

// isChange reports whether a store's client stores or removes something.
func isChange(r *http.Request) bool { return rig.IsPut(r) || r.Method == http.MethodDelete }

func TestPruneBesideABackup(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "prune begins while a backup runs, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		b.StartTasks(nil)
		b.forget()
		opened := make(chan struct{})
		held := b.Store.Proxy.On(isData, until(opened))
		b.change()
		running := b.newOwn()
		b.Create(running)
		testenv.Eventually(t, "the backup is storing", func() bool { return held.Hits.Load() > 0 })
		b.Store.Proxy.Heal(held) // for the prune's packs

		task := b.newTask(v1alpha1.TaskPrune)
		b.Create(task)
		if uploader == rig.Restic {
			b.awaitStatus(task, "waiting for the backup", func(s *v1alpha1.RepositoryTaskStatus) bool {
				return s.State == string(v1alpha1.StateWaiting) && strings.Contains(s.Message, "locked by PID ")
			})
		} else {
			b.completed(task)
		}
		since := time.Now()
		close(opened)
		if v := b.Complete(running); v.Snapshot.Attempt != 1 {
			t.Errorf("the backup took %d attempts", v.Snapshot.Attempt)
		}
		b.completed(task)
		r.recovered(since)
		b.Get(running)
		b.kept = running
		b.whole()
		b.restoreAndCompare(running)
	})
}

func TestBackupBesideAPrune(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "backup begins while a prune runs, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		b.StartTasks(nil)
		b.forget()
		var first atomic.Pointer[http.Request]
		opened := make(chan struct{})
		hold := until(opened)
		// The first change after restic's lock, which a backup must find, is the prune's.
		held := b.Store.Proxy.On(func(r *http.Request) bool {
			return isChange(r) && !strings.Contains(r.URL.Path, "/locks/") && first.CompareAndSwap(nil, r)
		}, hold)
		task := b.newTask(v1alpha1.TaskPrune)
		b.Create(task)
		testenv.Eventually(t, "the prune is at work", func() bool { return held.Hits.Load() > 0 })

		b.change()
		late := b.newOwn()
		b.Create(late)
		since := time.Now()
		if uploader == rig.Restic {
			b.Until(late, "waiting for the prune", func(v rig.Version) bool {
				return v.Snapshot.State == progress.StateWaiting && strings.Contains(v.Snapshot.Message, "locked exclusively by PID")
			})
		} else {
			b.Complete(late)
		}
		close(opened)
		b.completed(task)
		b.Complete(late)
		r.recovered(since)
		b.Get(late)
		b.kept = late
		b.whole()
		b.restoreAndCompare(late)
	})
}

// taskOutage is how long the bucket of a task is away.
const taskOutage = 5 * time.Second

func TestTaskLosesItsBucket(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "repository server unreachable for %s in a verification, a check and a prune, %s", taskOutage, uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		b.StartTasks(nil)
		b.forget()
		for kind, in := range map[v1alpha1.RepositoryTaskType]func(*http.Request) bool{
			v1alpha1.TaskVerify: fetchesData, v1alpha1.TaskCheck: fetchesData, v1alpha1.TaskPrune: isChange,
		} {
			gate := testenv.NewGate()
			held := b.Store.Proxy.On(in, gate.Before)
			task := b.newTask(kind)
			b.Create(task)
			gate.Wait(t)
			b.Store.Proxy.Down()
			b.Store.Proxy.Heal(held)
			<-time.After(taskOutage)
			b.Get(task)
			if task.Status.Phase != v1alpha1.PhaseInProgress {
				t.Errorf("%s was given up: %+v", task.Name, task.Status)
			}
			b.Store.Proxy.Up(t)
			since := time.Now()
			if status := b.completed(task); status.Attempts != 1 {
				t.Errorf("%s was begun %d times", task.Name, status.Attempts)
			}
			r.recovered(since)
		}
		b.whole()
		b.restoreAndCompare(b.kept)
	})
}
