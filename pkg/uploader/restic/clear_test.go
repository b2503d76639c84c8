package restic

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// TestRestoreCountsWhatItLooksAt: what an earlier attempt has left may be millions of files, and the agent ends what does not move.
func TestRestoreCountsWhatItLooksAt(t *testing.T) {
	t.Parallel()
	const files = 50
	dir := t.TempDir()
	for i := range files {
		if err := os.Symlink("nowhere", filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	u, _ := newFake(t, Options{})
	listed := `out {"id":"1234567890abcdef","struct_type":"snapshot"}` + strings.Repeat("\n"+`out {"path":"/other","type":"file"}`, 30)
	repository := scripted()
	repository.Env["SCRIPT_ls"], repository.Env["SCRIPT_restore"] = uploader.Secret(listed), "exit 1"
	var steps int64
	_, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, dir), SnapshotID: "1234567890abcdef"},
		progress.SinkFunc(func(r progress.Reading) {
			steps = r.Steps
			if r.BytesDone > 0 || r.FilesDone > 0 {
				t.Errorf("%+v before anything was restored", r)
			}
		}))
	if err == nil || steps < files+30 {
		t.Errorf("%d steps for %d entries and a list of 30, %v", steps, files, err)
	}
}

// TestRestoreIntoAnEmptyVolume: what the agent itself has put there is no reason to list the snapshot, as restic before 0.17 needs it where there are files.
func TestRestoreIntoAnEmptyVolume(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]bool{"own/draft": false, "other/own/draft": true, "owner": true} {
		dir := t.TempDir()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		o := &obstacles{all: true, own: "own", step: func() {}}
		if err := o.find(t.Context(), open(t, dir)); err != nil || o.found != found {
			t.Errorf("%s: found %v, %v", name, o.found, err)
		}
	}
}

// TestRestoreTakesNoMemoryForNames: whoever writes into a volume decides how many names a directory has. A whole list of these takes
// 10 MB at least.
func TestRestoreTakesNoMemoryForNames(t *testing.T) { //nolint:paralleltest // it measures the heap
	parts.Slow(t)
	const entries = 200_000
	at, err := os.MkdirTemp("/dev/shm", "volume") //nolint:usetesting // a file system in memory
	if err != nil {
		at = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(at) })
	dir := open(t, at)
	for i := range entries {
		if err := unix.Mknodat(int(dir.Fd()), fmt.Sprintf("a-name-of-some-length-%d", i), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most, seen := live(), int64(0), 0
	o := &obstacles{step: func() {
		if seen++; seen%(entries/5) == 1 {
			most = max(most, live()-before)
		}
	}}
	if err := o.find(t.Context(), dir); err != nil || o.found || seen != entries || most > 1<<20 {
		t.Errorf("%d of %d entries with %d bytes of memory, found %v, %v", seen, entries, most, o.found, err)
	}
}

// A restore removes what an earlier try, or somebody else, has left in its way, and nothing else.
func TestClear(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u, repository, source := newUploader(t, version, Options{}), newRepository(t), t.TempDir()
		if err := tree.Make(source, tree.Spec{}); err != nil {
			t.Fatal(err)
		}
		odd := "dir \xff\xfe"
		if err := os.Mkdir(filepath.Join(source, odd), 0o755); err != nil {
			t.Fatal(err)
		}
		// A removal of hard links that was killed leaves one of them, which has no other name any more.
		target, outside := t.TempDir(), t.TempDir()
		if err := os.Mkdir(filepath.Join(target, "hard"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(target, "hard", "second"), []byte("left"), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, dir := range map[string]string{ // restic prints the same of each caf
			"caf\xe9": source, "caf\xe8": target, "caf\ufffd": target, "first \ufffd": source, "second \ufffd": target, `\ufffd`: source,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(filepath.Join(source, "first \ufffd"), filepath.Join(source, "second \ufffd")); err != nil {
			t.Fatal(err)
		}
		volume, err := os.Open(source)
		if err != nil {
			t.Fatal(err)
		}
		defer volume.Close()
		snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
		if err != nil {
			t.Fatal(err)
		}

		for _, name := range []string{"links", "odd", odd, "zeros", "unrelated", `\ufffd`, "first \xff"} {
			if err := os.Symlink(outside, filepath.Join(target, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(target, "-rf"), 0o600); err != nil {
			t.Fatal(err)
		}
		into, err := os.Open(target)
		if err != nil {
			t.Fatal(err)
		}
		defer into.Close()
		for range 2 { // the second time it finds its own links
			if _, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: into, SnapshotID: snapshot.SnapshotID}, nil); err != nil {
				t.Fatal(err)
			}
			differences, err := tree.Compare(source, target, tree.Options{})
			if want := []string{`"caf\xe8" should not be there`, `"caf�" should not be there`, `"first \xff" should not be there`, `"unrelated" should not be there`}; err != nil || !slices.Equal(differences, want) {
				t.Errorf("what the snapshot does not have must stay, and nothing else may differ: %v %q", err, differences)
			}
		}
		if made, err := os.ReadDir(outside); err != nil || len(made) > 0 {
			t.Errorf("outside was made: %v, %v", made, err)
		}
	})
}
