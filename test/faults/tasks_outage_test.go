//go:build faults

package faults

import (
	"net/http"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestUsageAndForgetLoseTheirBucket: no size is published that nobody has measured, and no record goes before its snapshot.
func TestUsageAndForgetLoseTheirBucket(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "repository server unreachable for %s in a measurement and a forget, %s", taskOutage, uploader)
		t.Parallel()
		b := newBench(t, uploader, true)
		b.StartTasks(nil)
		usage, forget := b.newTask(v1alpha1.TaskUsage), b.newTask(v1alpha1.TaskForget)
		forget.Spec.Acknowledge = b.wave()
		for _, lost := range []struct {
			task *v1alpha1.RepositoryTask
			in   func(*http.Request) bool
		}{{usage, func(*http.Request) bool { return true }}, {forget, isChange}} {
			gate := testenv.NewGate()
			held := b.Store.Proxy.On(lost.in, gate.Before)
			b.Create(lost.task)
			gate.Wait(t)
			b.Store.Proxy.Down()
			b.Store.Proxy.Heal(held)
			<-time.After(taskOutage)
			b.Get(lost.task)
			b.provesNothing(lost.task)
			b.Get(b.old) // which fails if it is gone
			b.Store.Proxy.Up(t)
			since := time.Now()
			b.completed(lost.task)
			r.recovered(since)
		}
		b.Get(usage)
		if u := usage.Status.Repositories[0].Usage; u == nil || u.Snapshots != 2 || u.UnknownSnapshots+u.MissingSnapshots != 0 {
			t.Errorf("measured after the outage: %+v", u)
		}
		if u := b.completes(v1alpha1.TaskUsage).Repositories[0].Usage; u.Snapshots != 1 || u.UnknownSnapshots+u.MissingSnapshots != 0 {
			t.Errorf("measured after the forget: %+v", u)
		}
		b.whole()
		b.restoreAndCompare(b.kept)
	})
}
