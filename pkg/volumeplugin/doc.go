// Package volumeplugin lets plugins for Velero's volume snapshots say how far they are, in VolumePluginBackups and
// VolumePluginRestores (package api/v1alpha1) that look the same for every plugin.
//
// A Recorder begins Operations. An Operation takes the numbers at any rate, and writes them every ten seconds at most:
//
//	recorder := volumeplugin.New(ctx, volumeplugin.Options{Plugin: "example.io/disks"})
//	op := recorder.BeginBackup(volumeplugin.BackupRequest{Backup: "nightly", Volume: "pv-1"})
//	op.SetID("snap-1")
//	op.Update(done, total)
//	op.Complete()
//
// A plugin that cannot be changed is wrapped: Wrap makes a VolumeSnapshotter that reports, of any that does not.
//
// What is written is true: bytes done never fall, never pass the total, and reach it only with success; the start and the
// end are never left out; nothing follows the end. An operation that another process of the plugin has begun goes on.
//
// What is not guaranteed is that anything is written at all. No method returns an error or waits for longer than
// Options.FlushTimeout: without the CRDs, without the rights or without an API server a snapshot is made all the same, and
// the log says once what is missing.
package volumeplugin
