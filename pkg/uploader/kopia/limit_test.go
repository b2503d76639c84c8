package kopia

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// TestLowerLimitReachesTheWorker: a run has its share of the node's limit, or what its storage allows a run, if that is less.
func TestLowerLimitReachesTheWorker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options                           Options
		storage, wantUpload, wantDownload int64
	}{
		"none":          {},
		"the storage's": {storage: 2 << 20, wantUpload: 2 << 20, wantDownload: 2 << 20},
		"the lower one of each": {
			options: Options{UploadLimit: 4 << 20, DownloadLimit: 16 << 20, Slots: func() int { return 4 }}, storage: 2 << 20,
			wantUpload: 1 << 20, wantDownload: 2 << 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.options.TempDir = t.TempDir()
			u, err := New(test.options)
			if err != nil {
				t.Fatal(err)
			}
			r := run{repository: uploader.Repository{URL: t.TempDir(), MaxBytesPerSecond: test.storage}, request: protocol.Request{Operation: protocol.OpBackup}}
			if err := u.prepare(&workspace{dir: t.TempDir()}, &r); err != nil {
				t.Fatal(err)
			}
			if up, down := r.request.UploadLimit, r.request.DownloadLimit; up != test.wantUpload || down != test.wantDownload {
				t.Errorf("the worker may send %d and receive %d, want %d and %d", up, down, test.wantUpload, test.wantDownload)
			}
		})
	}
}
