package kopia_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestImportBesideMaintenance: an import finds the content that an earlier one has stored, which the maintenance of somebody else then marks
// as deleted. The snapshot that would lose it is not saved, and the next try writes the content again.
func TestImportBesideMaintenance(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	repository := initialized(t)
	u := newUploader(t, kopia.Options{})
	files := [][]byte{bytes.Repeat([]byte("0123456789abcdef"), mib/16), bytes.Repeat([]byte("fedcba9876543210"), mib/16)}
	imported := func(origin string, between func()) (uploader.ImportResult, error) {
		t.Helper()
		req := uploader.ImportRequest{Repository: repository, Source: "snapshot-pod-volume/kopia/shop/db-0/data", Origin: origin, TotalBytes: 2 * mib}
		return u.Import(t.Context(), req, func(_ context.Context, each func(uploader.Exported) error) (uploader.ExportResult, error) {
			for i, content := range files {
				entry := uploader.Entry{Path: []string{"a", "b"}[i], Mode: 0o600, Size: mib, ModTime: time.Unix(1, 0)}
				if err := each(uploader.Exported{Entry: entry, Content: bytes.NewReader(content)}); err != nil {
					return uploader.ExportResult{}, err
				}
				between()
			}
			return uploader.ExportResult{Time: time.Unix(2, 0)}, nil
		}, nil)
	}
	nothing := func() {}
	if _, err := imported("first", nothing); err != nil {
		t.Fatalf("%v\n%s", err, workerSaid(err))
	}
	deleted := false
	result, err := imported("second", func() {
		if !deleted { // the worker has the repository open: it has read most of the first file
			deleted = true
			deleteContents(t, repository)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "marked as deleted") {
		t.Errorf("a snapshot was saved whose content is deleted: %+v, %v", result, err)
	}
	if got, err := u.Imported(t.Context(), repository); err != nil || len(got) != 1 || got["first"] == "" {
		t.Errorf("%v, %v", got, err)
	}
	result, err = imported("second", nothing)
	if err != nil || result.SnapshotID == "" || result.BytesUploaded == 0 {
		t.Fatalf("%+v, %v\n%s", result, err, workerSaid(err))
	}
	if proof, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: result.SnapshotID}, nil); err != nil || !proof.Proven() {
		t.Errorf("%+v, %v", proof, err)
	}
}
