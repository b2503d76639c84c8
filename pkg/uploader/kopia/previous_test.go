package kopia_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestPreviousSnapshot: kopia takes files for unchanged by their names, sizes and times, so it must compare a volume only with a snapshot of that
// very volume; and with such a one it must, or each backup reads everything.
func TestPreviousSnapshot(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	repository, u := initialized(t), newUploader(t, kopia.Options{Parallel: 1})
	const files = 40
	for name, test := range map[string]struct {
		change func(*uploader.BackupRequest)
		reads  bool
	}{
		"the same volume":                             {change: func(*uploader.BackupRequest) {}},
		"the same volume, another backup's tags":      {change: func(r *uploader.BackupRequest) { r.Tags = map[string]string{"backup": "two"} }},
		"a parent under another source":               {change: func(r *uploader.BackupRequest) { r.Source = "/elsewhere" }},
		"a parent of a volume that is not identified": {change: func(r *uploader.BackupRequest) { r.VolumeID = "" }},
		"a parent that is gone, the same volume":      {change: func(r *uploader.BackupRequest) { r.Parent = goneSnapshot }},
		"a parent that is gone, another volume": {reads: true, change: func(r *uploader.BackupRequest) {
			r.Parent, r.VolumeID = goneSnapshot, "pod-2/data"
		}},
		"another volume under the same source":       {reads: true, change: func(r *uploader.BackupRequest) { r.Parent, r.VolumeID = "", "pod-2/data" }},
		"a parent of another volume":                 {reads: true, change: func(r *uploader.BackupRequest) { r.VolumeID = "pod-2/data" }},
		"a volume that is not identified, no parent": {reads: true, change: func(r *uploader.BackupRequest) { r.Parent, r.VolumeID = "", "" }},
		"the same volume without a parent":           {change: func(r *uploader.BackupRequest) { r.Parent = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := uploadertest.NewFailing(t, files)
			request := uploader.BackupRequest{
				Repository: repository, Volume: v.Root, VolumeID: "pod-1/data",
				Source: t.Name(), Tags: map[string]string{"backup": "one"},
			}
			request.Parent = backup(t, u, request, nil).SnapshotID
			test.change(&request)
			before := v.FS.Calls(faultfs.Open)
			backup(t, u, request, nil)
			if read, want := v.FS.Calls(faultfs.Open)-before, map[bool]int{true: files}[test.reads]; read != want {
				t.Errorf("%d files were read, want %d", read, want)
			}
		})
	}
}

// goneSnapshot has the form of a snapshot's id.
const goneSnapshot = "00000000000000000000000000000000"

// TestUnfinishedSnapshot: what an unfinished backup has stored of a volume is not read again, and not taken for that of another volume.
func TestUnfinishedSnapshot(t *testing.T) {
	t.Parallel()
	repository, u := initialized(t), newUploader(t, kopia.Options{Parallel: 1})
	for name, test := range map[string]struct {
		volumeID string
		all      bool
	}{
		"the same volume":            {volumeID: "pod-1/data"},
		"another volume":             {volumeID: "pod-2/data", all: true},
		"a volume of unknown origin": {all: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const files = 40
			v := uploadertest.NewFailing(t, files)
			request := uploader.BackupRequest{Repository: repository, Volume: v.Root, VolumeID: "pod-1/data", Source: t.Name()}
			v.FS.Inject(faultfs.Fault{Op: faultfs.Read, From: files / 2, Errno: syscall.EIO})
			if _, err := u.Backup(t.Context(), request, nil); !errors.Is(err, uploader.ErrVolumeIO) {
				t.Fatalf("got %v, want ErrVolumeIO", err)
			}
			v.FS.Clear()
			request.VolumeID = test.volumeID
			before := v.FS.Calls(faultfs.Open)
			backup(t, u, request, nil)
			if read := v.FS.Calls(faultfs.Open) - before; read == 0 || (read == files) != test.all {
				t.Errorf("%d of %d files were read, want all: %t", read, files, test.all)
			}
		})
	}
}
