package backupstore_test

import (
	"errors"
	"io"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// FuzzDocuments reads the same bytes as each file of a backup: as they are, and packed.
func FuzzDocuments(f *testing.F) {
	for _, g := range goldens {
		f.Add([]byte(g.metadata), true)
		for _, content := range g.files {
			f.Add([]byte(content), true)
			f.Add(pack(content), false)
		}
	}
	f.Add([]byte("5\r\n\x1f\x8b\x08\x00\x00\r\n0\r\n\r\n"), false)
	f.Add([]byte(`[{"metadata":[]}]`), true)
	f.Fuzz(func(t *testing.T, data []byte, packed bool) {
		p := inDirectory(t)
		p.put(t, "backups/nightly/velero-backup.json", data)
		b := backup(t, p)
		if metadata, err := b.Metadata(t.Context()); err == nil && (metadata.Typed.Name != "nightly" || metadata.Content.GetName() != "nightly") {
			t.Errorf("metadata of %q and %q", metadata.Typed.Name, metadata.Content.GetName())
		} else if err != nil && !isOnly(err, backupstore.ErrDamaged) {
			t.Errorf("metadata: %v", err)
		}
		if packed {
			data = pack(string(data))
		}
		for file, read := range readers(t, b) {
			p.put(t, "backups/nightly/nightly"+file, data)
			if got, err := read(); err != nil && (got != 0 || !isOnly(err, backupstore.ErrDamaged)) {
				t.Errorf("%s: got %v, %v", file, got, err)
			}
		}
		p.put(t, "backups/nightly/nightly-logs.gz", data)
		r, err := b.OpenLog(t.Context())
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			err = errors.Join(err, r.Close())
		}
		if err != nil && !isOnly(err, backupstore.ErrDamaged) {
			t.Errorf("log: %v", err)
		}
	})
}
