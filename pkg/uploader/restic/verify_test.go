package restic

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestVerify damages the largest pack of a repository in each way that a storage can. The files before it are compared.
func TestVerify(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		volume := volumeOf(t, 6<<20)
		dir := volume.Name()
		err := errors.Join(
			os.Mkdir(filepath.Join(dir, "below"), 0o755), os.Symlink("file", filepath.Join(dir, "link")), os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "below", "hard")),
			os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600), syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var last progress.Reading
		request := uploader.VerifyRequest{Repository: repository, SnapshotID: stored.SnapshotID}
		result, err := u.Verify(t.Context(), request, progress.SinkFunc(func(r progress.Reading) { last = r }))
		if err != nil || !result.Proven() || result.Files != 3 || result.Bytes != 12<<20 {
			t.Fatalf("got %+v, %v", result, err)
		}
		if last.TotalBytes != 12<<20 || last.BytesDone != last.TotalBytes-1 {
			t.Errorf("the last reading is %+v", last)
		}
		noLocks(t, repository)

		pack := largestPack(t, repository)
		whole, err := os.ReadFile(pack)
		if err != nil {
			t.Fatal(err)
		}
		damages := map[string]func() error{
			"changed": func() error {
				changed := append([]byte{}, whole...)
				changed[len(changed)/2] ^= 0xff
				return os.WriteFile(pack, changed, 0o600)
			},
		}
		if version != "0.14.0" && version != "0.16.4" { // these try for a minute before they say it
			damages["missing"] = func() error { return os.Remove(pack) }
			damages["cut off"] = func() error { return os.WriteFile(pack, whole[:100], 0o600) }
		}
		for name, do := range damages {
			if err := errors.Join(os.RemoveAll(pack), os.WriteFile(pack, whole, 0o600), do()); err != nil {
				t.Fatal(err)
			}
			result, err := u.Verify(t.Context(), request, nil)
			if err != nil || result.Proven() || !strings.HasSuffix(strings.Join(result.FailedPaths, " "), "hard") || result.Files+result.NotCompared+result.Mismatched != 3 {
				t.Errorf("%s: got %+v, %v", name, result, err)
			}
		}
		request.SnapshotID = strings.Repeat("0", 64)
		if _, err := u.Verify(t.Context(), request, nil); !errors.Is(err, uploader.ErrSnapshotNotFound) {
			t.Errorf("got %v, want ErrSnapshotNotFound", err)
		}
	})
}

func largestPack(t *testing.T, repository uploader.Repository) (path string) {
	t.Helper()
	var size int64
	err := filepath.WalkDir(filepath.Join(repository.URL, "data"), func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > size {
			path, size = at, info.Size()
		}
		return err
	})
	if err != nil || path == "" {
		t.Fatalf("no pack: %v", err)
	}
	return path
}

// TestVerifyCountsWhatIsListed: restic ls of a large snapshot takes hours, in which no byte is compared.
func TestVerifyCountsWhatIsListed(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	repository := scripted()
	repository.Env["SCRIPT_ls"] = uploader.Secret(`out {"id":"1234567890abcdef","struct_type":"snapshot"}` + strings.Repeat("\n"+`out {"path":"/a","type":"dir"}`, 100))
	repository.Env["SCRIPT_dump"] = "exit 0"
	var steps int64
	_, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: "1234567890abcdef"}, progress.SinkFunc(func(r progress.Reading) {
		if r.Stage == progress.StageScanning {
			steps = r.Steps
		}
	}))
	if steps < 100 {
		t.Errorf("%d steps in a list of 100 entries, %v", steps, err)
	}
}

// TestVerifyTellsDamageFromOutage: what restic says when the storage does not answer is no damage, and nothing is proven.
func TestVerifyTellsDamageFromOutage(t *testing.T) {
	t.Parallel()
	const list = `out {"id":"1234567890abcdef","struct_type":"snapshot"}` + "\n" + `out {"path":"/a","type":"file","size":5}`
	for name, test := range map[string]struct {
		list, dump, cat string
		mismatched      int64
		err             bool
	}{
		"outage":             {list, "err Fatal: cannot dump file: dial tcp: lookup minio: no such host\nexit 1", "", 0, true},
		"damage":             {list, "err Fatal: cannot dump file: ciphertext verification failed\nexit 1", "", 1, false},
		"everything is gone": {list, "err Fatal: cannot dump file: no such file or directory\nexit 1", "err Fatal: unable to open config file\nexit 1", 0, true},
		"cut off":            {list, "err Fatal: cannot dump file: ReadFull(<data/f99b83a98b>): EOF\nexit 2", "", 1, false},
		"wrong size":         {list, "err Fatal: cannot dump file: archive/tar: missed writing 3 bytes\nexit 1", "", 1, false},
		"nothing was dumped": {list, "exit 0", "", 1, false},
		"no archive":         {list, "out hello", "", 0, true},
		"no snapshot":        {"exit 0", "exit 0", "", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, _ := newFake(t, Options{})
			repository := scripted()
			repository.Env["SCRIPT_ls"], repository.Env["SCRIPT_dump"], repository.Env["SCRIPT_cat"] = uploader.Secret(test.list), uploader.Secret(test.dump), uploader.Secret(test.cat)
			result, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: "1234567890abcdef"}, nil)
			if (err != nil) != test.err || result.Mismatched != test.mismatched || err == nil && result.Proven() {
				t.Errorf("got %+v, %v", result, err)
			}
		})
	}
}
