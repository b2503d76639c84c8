package volumeplugin_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

// A plugin that knows its own progress reports it in five lines.
func Example() {
	ctx, cluster := context.Background(), memory()
	recorder := volumeplugin.New(ctx, volumeplugin.Options{Plugin: "example.io/disks", Client: cluster, Namespace: "velero"})
	defer recorder.Close(ctx)

	op := recorder.BeginBackup(volumeplugin.BackupRequest{Backup: "nightly", Volume: "pv-1"})
	op.SetID("snap-1")
	op.Update(512<<20, 1<<30)
	show(ctx, cluster)
	op.Complete()
	show(ctx, cluster)
	// Output:
	// nightly pv-1 snap-1: InProgress, 536870912 of 1073741824 bytes
	// nightly pv-1 snap-1: Completed, 1073741824 of 1073741824 bytes
}

// A plugin that knows nothing of progress is wrapped, and its storage is asked.
func ExampleWrap() {
	ctx, cluster := context.Background(), memory()
	recorder := volumeplugin.New(ctx, volumeplugin.Options{Plugin: "example.io/disks", Client: cluster, Namespace: "velero"})
	defer recorder.Close(ctx)

	existing := &cloud{name: "1"} // a VolumeSnapshotter
	stored := func(_ context.Context, _ string) (done, total int64, err error) {
		return 1 << 30, 1 << 30, nil // what the API of the storage says about the snapshot
	}
	plugin := volumeplugin.Wrap(existing, recorder, volumeplugin.WrapOptions{Backups: stored, Wait: 5 * time.Minute})

	id, err := plugin.CreateSnapshot("vol-1", "", map[string]string{"velero.io/backup": "nightly", "velero.io/pv": "pv-1"})
	fmt.Println(id, err)
	show(ctx, cluster)
	// Output:
	// snap/1 <nil>
	// nightly pv-1 snap/1: Completed, 1073741824 of 1073741824 bytes
}

// What failed says why, and keeps its numbers.
func ExampleOperation_Fail() {
	ctx, cluster := context.Background(), memory()
	recorder := volumeplugin.New(ctx, volumeplugin.Options{Plugin: "example.io/disks", Client: cluster, Namespace: "velero"})
	defer recorder.Close(ctx)

	op := recorder.BeginBackup(volumeplugin.BackupRequest{Backup: "nightly", Volume: "pv-1", SnapshotID: "snap-1"})
	op.Update(512<<20, 1<<30)
	op.Fail("the disk was detached")
	op.Complete() // too late: the end is the end
	show(ctx, cluster)
	// Output:
	// nightly pv-1 snap-1: Failed, 536870912 of 1073741824 bytes: the disk was detached
}

// memory is a cluster for the examples; without Options.Client a Recorder finds the one that it runs in.
func memory() client.Client {
	scheme := runtime.NewScheme()
	if err := volumeplugin.AddToScheme(scheme); err != nil {
		log.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.VolumePluginBackup{}).Build()
}

// show prints the one VolumePluginBackup as soon as it says what was reported last.
func show(ctx context.Context, cluster client.Client) {
	for {
		list := &v1alpha1.VolumePluginBackupList{}
		if err := cluster.List(ctx, list); err != nil {
			log.Fatal(err)
		}
		for _, b := range list.Items {
			s := b.Status
			if s.Progress.BytesDone == 0 {
				continue
			}
			fmt.Printf("%s %s %s: %s, %d of %d bytes", b.Spec.Backup, b.Spec.Volume, s.SnapshotID, s.Phase, s.Progress.BytesDone, s.Progress.TotalBytes)
			if s.Message != "" {
				fmt.Print(": ", s.Message)
			}
			fmt.Println()
			return
		}
	}
}
