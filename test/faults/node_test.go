//go:build faults

package faults

import (
	"fmt"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

// TestTwoAgentsOnOneNode: the second one waits, says so, and takes over at once when the first is gone.
func TestTwoAgentsOnOneNode(t *testing.T) {
	r := newRow(t, "two agents on one node, the first one is killed")
	t.Parallel()
	f, source := largeVolume(t, restic)
	first := f.start(slowUpload)
	pvb := f.newBackup(source, "data", restic)
	f.create(pvb)
	f.until(pvb, "begun", func(v version) bool { return v.at(10) })
	second := f.start()
	second.said("Another node agent of this namespace serves this node")
	f.until(pvb, "half done", func(v version) bool { return v.at(50) })
	if v := last(f.history.of(pvb)); v.snapshot.Attempt != 1 || v.terminal() {
		t.Errorf("the second agent has touched what the first one works on: %v", v)
	}
	since := time.Now()
	first.kill()
	f.untilAfter(pvb, since, "taken over", func(v version) bool { return v.snapshot.Attempt == 2 })
	r.recovered(since)
	f.complete(pvb)
	f.restoreAndCompare(pvb)
}

// crowd is how many volumes are asked for at once.
const crowd = 200

// TestManyBackupsAtOnce: every one is served, and the API server is not bothered.
func TestManyBackupsAtOnce(t *testing.T) {
	newRow(t, "%d PodVolumeBackups at once on one node", crowd)
	t.Parallel()
	f := newFixture(t)
	f.useDirectory(t.TempDir())
	const perPod = 20
	var backups []*velerov1.PodVolumeBackup
	for p := range crowd / perPod {
		names := make([]string, perPod)
		for v := range perPod {
			names[v] = fmt.Sprintf("data-%d", v)
		}
		pod := f.pod(fmt.Sprintf("source-%d", p), names...)
		for _, name := range names {
			fillFiles(t, f.volume(pod, name), 32<<10)
			backups = append(backups, f.newBackup(pod, name, restic))
		}
	}
	f.start("--concurrency=4", "--progress-interval=10s")
	f.ready()
	begin := time.Now()
	for _, pvb := range backups {
		f.create(pvb)
	}
	for done := 0; done < crowd; {
		before := done
		await(t, fmt.Sprintf("more than %d are done", before), func() bool {
			done = 0
			for _, pvb := range backups {
				if last(f.history.of(pvb)).terminal() {
					done++
				}
			}
			return done > before
		})
	}
	writes := 0
	for _, pvb := range backups {
		f.complete(pvb)
		writes += f.api.sentTo(pvb.Name).all
	}
	// DESIGN.md 7; in the queue it is one write in a minute.
	if most := crowd * (int(time.Since(begin)/time.Minute) + 4); writes > most {
		t.Errorf("%d writes for %d volumes, want at most %d", writes, crowd, most)
	}
	f.restoreAndCompare(backups[crowd-1])
}
