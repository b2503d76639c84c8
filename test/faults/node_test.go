//go:build faults

package faults

import (
	"fmt"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestTwoAgentsOnOneNode: the second one waits, says so, and takes over at once when the first is gone.
func TestTwoAgentsOnOneNode(t *testing.T) {
	r := newRow(t, "two agents on one node, the first one is killed")
	t.Parallel()
	f, source := largeVolume(t, rig.Restic)
	first := f.Start(slowUpload)
	pvb := f.NewBackup(source, "data", rig.Restic)
	f.Create(pvb)
	f.Until(pvb, "begun", func(v rig.Version) bool { return v.At(10) })
	second := f.Start()
	second.Said("Another node agent of this namespace serves this node")
	f.Until(pvb, "half done", func(v rig.Version) bool { return v.At(50) })
	if v := rig.Last(f.History.Of(pvb)); v.Snapshot.Attempt != 1 || v.Terminal() {
		t.Errorf("the second agent has touched what the first one works on: %v", v)
	}
	since := time.Now()
	first.Kill()
	f.UntilAfter(pvb, since, "taken over", func(v rig.Version) bool { return v.Snapshot.Attempt == 2 })
	r.recovered(since)
	f.Complete(pvb)
	f.restoreAndCompare(pvb)
}

// crowd is how many volumes are asked for at once.
const crowd = 200

// TestManyBackupsAtOnce: every one is served, and the API server is not bothered.
func TestManyBackupsAtOnce(t *testing.T) {
	newRow(t, "%d PodVolumeBackups at once on one node", crowd)
	t.Parallel()
	f := newFixture(t)
	f.UseDirectory(t.TempDir())
	const perPod = 20
	var backups []*velerov1.PodVolumeBackup
	for p := range crowd / perPod {
		names := make([]string, perPod)
		for v := range perPod {
			names[v] = fmt.Sprintf("data-%d", v)
		}
		pod := f.Pod(fmt.Sprintf("source-%d", p), names...)
		for _, name := range names {
			fillFiles(t, f.Volume(pod, name), 32<<10)
			backups = append(backups, f.NewBackup(pod, name, rig.Restic))
		}
	}
	f.Start("--concurrency=4", "--progress-interval=10s")
	f.ready()
	begin := time.Now()
	for _, pvb := range backups {
		f.Create(pvb)
	}
	for done := 0; done < crowd; {
		before := done
		testenv.Eventually(t, fmt.Sprintf("more than %d are done", before), func() bool {
			done = 0
			for _, pvb := range backups {
				if rig.Last(f.History.Of(pvb)).Terminal() {
					done++
				}
			}
			return done > before
		})
	}
	writes := 0
	for _, pvb := range backups {
		f.Complete(pvb)
		writes += f.API.SentTo(pvb.Name).All
	}
	// A claim, an end and a few reports of progress for each volume; in the queue one write in a minute.
	if most := crowd * (int(time.Since(begin)/time.Minute) + 4); writes > most {
		t.Errorf("%d writes for %d volumes, want at most %d", writes, crowd, most)
	}
	f.restoreAndCompare(backups[crowd-1])
}
