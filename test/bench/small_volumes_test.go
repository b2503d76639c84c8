//go:build bench

package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// TestSmallVolumes measures how long a volume of 10 MiB in 10 files takes to an S3 server on the same machine, one at a time, where 20 of them are there at
// once: from the moment at which they are until the last one is Completed, divided by 20. The repository and the node's cache exist before.
func TestSmallVolumes(t *testing.T) {
	const volumes = 20
	for _, uploader := range []string{rig.Kopia, rig.Restic} {
		server := s3.Start(t)
		f := rig.NewFixture(t)
		bucket := server.Bucket(t)
		f.Store = rig.Store{Dir: server.Dir(bucket)}
		f.Create(f.BucketLocation(velero.Location, server, bucket))
		a := f.Start("--concurrency=1", "--progress-interval=10s")
		var pods []*corev1.Pod
		for i := range volumes + 1 {
			pod := f.Pod("pod-"+strconv.Itoa(i), "data")
			fill(t, f.Volume(pod, "data"))
			pods = append(pods, pod)
		}
		first := f.NewBackup(pods[volumes], "data", uploader)
		f.Create(first)
		f.Complete(first)
		var backups []client.Object
		for _, pod := range pods[:volumes] {
			backups = append(backups, f.NewBackup(pod, "data", uploader))
		}
		backedUp, snapshots := move(f, backups)
		var restores []client.Object
		for i := range volumes {
			restores = append(restores, f.NewRestore(f.WaitingPod("restored-"+strconv.Itoa(i), "data"), "data", snapshots[i]))
		}
		restored, _ := move(f, restores)
		addSmallVolume(uploader, backup, backedUp/volumes)
		addSmallVolume(uploader, restore, restored/volumes)
		a.Stop()
	}
}

// addSmallVolume adds what a volume has taken to the table. Only kopia has a goal.
func addSmallVolume(uploader, step string, took time.Duration) {
	const goal = 400 * time.Millisecond
	what, measured := fmt.Sprintf("small volume, %s, %s", step, uploader), fmt.Sprintf("%d ms", took.Milliseconds())
	if uploader != rig.Kopia {
		addAgentRow(what, measured)
		return
	}
	addAgentGoal(what, measured, "400 ms", took <= goal)
}

// move creates objects, and returns how long it took until all of them were Completed.
func move(f *rig.Fixture, objects []client.Object) (time.Duration, []rig.Snapshot) {
	f.T.Helper()
	began := time.Now()
	for _, o := range objects {
		f.Create(o)
	}
	var snapshots []rig.Snapshot
	for _, o := range objects {
		end := f.Complete(o)
		if _, ok := o.(*velerov1.PodVolumeBackup); ok {
			snapshots = append(snapshots, rig.SnapshotOf(end))
		}
	}
	return time.Since(began), snapshots
}

// fill writes 10 files of 1 MiB.
func fill(t *testing.T, dir string) {
	t.Helper()
	content := make([]byte, 1<<20)
	for i := range 10 {
		_, _ = rand.Read(content) // it never fails
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%d", i)), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
