package uploadertest

import (
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// UsageSubject is a data path whose Usage is compared with what lies in a directory.
type UsageSubject struct {
	Data interface {
		uploader.Uploader
		uploader.UsageReader
	}
	Repository uploader.Repository // an empty one
	Dir        string              // where the files of its storage lie
	Object     func(path string) bool
	Pack       func(path string) bool // relative to Dir
	NoRawBytes bool                   // the data path does not know sizes before compression
}

// What RunUsage backs up: a file of random bytes twice, and one that can be compressed.
const (
	randomBytes     = 3 << 20
	repetitiveBytes = 2_000_000
	uniqueBytes     = randomBytes + repetitiveBytes
	volumeBytes     = uniqueBytes + randomBytes
)

// overhead is how much directories, records and encryption may take in these tests.
const overhead = 64 << 10

// RunUsage backs a volume up twice, and compares what Usage says with the volume and with the files of the repository.
func RunUsage(t *testing.T, s UsageSubject) {
	t.Helper()
	ids := s.backUpTwice(t)
	before := storedFiles(t, s.Dir)
	var seen Recorder
	got, err := s.Data.Usage(t.Context(), uploader.UsageRequest{Repository: s.Repository}, &seen)
	if err != nil {
		t.Fatal(err)
	}
	if after := storedFiles(t, s.Dir); len(after) != len(before) {
		t.Errorf("the repository had %d files, and now has %d", len(before), len(after))
	}
	if len(got.Snapshots) != 2 || got.Unfinished != 0 {
		t.Fatalf("%d snapshots, %d unfinished", len(got.Snapshots), got.Unfinished)
	}
	for i, snapshot := range got.Snapshots {
		if !strings.HasPrefix(snapshot.ID, ids[i]) || snapshot.Bytes == nil || *snapshot.Bytes != volumeBytes || snapshot.Time.IsZero() {
			t.Errorf("snapshot %d is %s of %v bytes at %s, want %s of %d", i, snapshot.ID, snapshot.Bytes, snapshot.Time, ids[i], int64(volumeBytes))
		}
	}
	var want uploader.StorageSize
	for path, size := range before {
		if s.Object(path) {
			want.Add(size, s.Pack(path))
		}
	}
	if got.Storage == nil || *got.Storage != want || want.Packs == 0 {
		t.Errorf("the storage has %+v, want %+v", got.Storage, want)
	}
	if got.DataBytes < randomBytes || got.DataBytes > want.PackBytes || got.DataBytes < want.PackBytes-overhead || got.Pieces < 3 {
		t.Errorf("%d pieces with %d bytes, in packs with %d", got.Pieces, got.DataBytes, want.PackBytes)
	}
	switch {
	case s.NoRawBytes:
		if got.RawBytes != nil || len(got.NotKnown) != 1 {
			t.Errorf("the size before compression is %v; not known: %q", got.RawBytes, got.NotKnown)
		}
	case got.RawBytes == nil || *got.RawBytes < uniqueBytes || *got.RawBytes > uniqueBytes+overhead || len(got.NotKnown) > 0:
		t.Errorf("the size before compression is %v, want about %d; not known: %q", got.RawBytes, int64(uniqueBytes), got.NotKnown)
	}
}

// backUpTwice returns the snapshots' ids.
func (s *UsageSubject) backUpTwice(t *testing.T) (ids []string) {
	t.Helper()
	dir := t.TempDir()
	content := make([]byte, randomBytes)
	_, _ = rand.Read(content)
	for name, content := range map[string][]byte{"random": content, "same": content, "repetitive": []byte(strings.Repeat("abc\n", repetitiveBytes/4))} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	volume, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer volume.Close()
	for range 2 {
		stored, err := s.Data.Backup(t.Context(), uploader.BackupRequest{Repository: s.Repository, Volume: volume, Source: dir}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, stored.SnapshotID)
	}
	return ids
}

// storedFiles returns the sizes of the files in a directory.
func storedFiles(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		files[strings.TrimPrefix(path, dir+"/")] = info.Size()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
