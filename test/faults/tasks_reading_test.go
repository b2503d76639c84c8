//go:build faults

package faults

import (
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestReadingTaskIsKilled: the process is killed while it waits for data. Nothing is proven then, and the next process reads it.
func TestReadingTaskIsKilled(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "process killed while a verification and a check read, %s", uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		for _, kind := range []v1alpha1.RepositoryTaskType{v1alpha1.TaskVerify, v1alpha1.TaskCheck} {
			gate := testenv.NewGate()
			held := b.Store.Proxy.On(fetchesData, gate.Before)
			tasks := b.StartTasks(nil, alone)
			task := b.newTask(kind)
			b.Create(task)
			gate.Wait(t)
			tasks.Kill()
			testenv.Eventually(t, "no worker survives its process", func() bool { return !b.hasWorker() })
			b.Store.Proxy.Heal(held)
			b.Get(task)
			b.provesNothing(task)

			since := time.Now()
			next := b.StartTasks(nil, alone)
			if status := b.completed(task); status.Attempts != 2 {
				t.Errorf("%s was begun %d times", task.Name, status.Attempts)
			}
			r.recovered(since)
			next.Stop()
		}
		b.StartTasks(nil, alone)
		b.completes(v1alpha1.TaskPrune) // the locks of dead readers block it: it removes them
		b.whole()
	})
}

// hasWorker reports whether anything but the agent runs.
func (b *bench) hasWorker() bool {
	b.T.Helper()
	agents := 0
	if b.agent.Running() {
		agents = 1
	}
	return len(rig.Processes(b.T, b.Dir)) > agents
}

// provesNothing holds that a task that has not ended says of no volume and no repository how it is.
func (b *bench) provesNothing(task *v1alpha1.RepositoryTask) {
	b.T.Helper()
	if task.Status.Phase != v1alpha1.PhaseInProgress || len(task.Status.Conditions) > 0 {
		b.T.Errorf("%s has not ended, and says %+v", task.Name, task.Status)
	}
	for _, v := range task.Status.Volumes {
		if v.Result != v1alpha1.VolumePending && v.Result != "" {
			b.T.Errorf("%s has not read the volume, and says %+v", task.Name, v)
		}
	}
	for _, r := range task.Status.Repositories {
		if r.Result != v1alpha1.RepositoryPending && r.Result != "" || r.Usage != nil {
			b.T.Errorf("%s has not read the repository, and says %+v", task.Name, r)
		}
	}
}
