package restic

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

const (
	statsSays100  = `out {"total_size":100,"snapshots_count":1}`
	statsSays0    = `out {"total_size":0,"snapshots_count":0}`
	restoredAll   = `out {"message_type":"summary","total_bytes":100,"bytes_restored":100}`
	saysNothing   = "out restoring <Snapshot>" // as restic 0.14
	knownByCaller = 130                        // Velero's number counts hard links once for each link
)

// TestTotalOfARestore: whatever becomes of restic stats, the restore goes on, and claims no size that is not known.
func TestTotalOfARestore(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		stats, restore string
		total, onDisk  int64
	}{
		"stats beside":            {"wait restore.json\n" + statsSays100, restoredAll, 100, 100},
		"both at once":            {statsSays100, "wait stats.json\n" + restoredAll, 100, 100},
		"stats fails":             {"err Fatal: bad\nexit 1", restoredAll, 100, 100},
		"stats is killed":         {"kill", restoredAll, 100, 100},
		"stats hangs":             {"hang", restoredAll, 100, 100},
		"stats knows no snapshot": {statsSays0, restoredAll, 100, 100},
		"restore says nothing":    {statsSays100, saysNothing, 100, 100},
		"stats only alone":        {"kill\nnext\n" + statsSays100, saysNothing, 100, 100},
		"nobody knows":            {"exit 1", saysNothing, knownByCaller, 0},
		"a restore with an error": {statsSays100, restoredAll + "\n" + `err {"message_type":"error","error":{"message":"no"},"during":"restore","item":"/x"}` + "\nerr Fatal: There were 1 errors\nexit 1", 100, 0},
	}
	u, _ := newFake(t, Options{})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := scripted()
			repository.URL += strings.ReplaceAll(name, " ", "-") // with a cache of its own
			repository.Env["SCRIPT_stats"], repository.Env["SCRIPT_restore"] = uploader.Secret(test.stats), uploader.Secret(test.restore)
			var seen uploadertest.Recorder
			got, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: volumeOf(t, 1), SnapshotID: "12345678", TotalBytes: knownByCaller}, &seen)
			if err != nil || got.TotalBytes != test.total || got.SizesOnDisk != test.onDisk {
				t.Errorf("got %+v, %v, want %d bytes, %d on disk", got, err, test.total, test.onDisk)
			}
			if last := seen.Last(); last.TotalBytes != test.total || last.BytesDone != test.total {
				t.Errorf("the last reading is %+v", last)
			}
		})
	}
}

// TestDownloadLimitOfARestore: together restic stats and the restore would exceed the limit, so one comes after the other.
func TestDownloadLimitOfARestore(t *testing.T) {
	t.Parallel()
	for whose, limits := range map[string]struct{ node, storage int64 }{"the node's": {node: 1 << 20}, "the storage's": {storage: 1 << 20}} {
		t.Run(whose, func(t *testing.T) {
			t.Parallel()
			u, calls := newFake(t, Options{DownloadLimit: limits.node})
			repository := scripted()
			repository.MaxBytesPerSecond = limits.storage
			repository.Env["SCRIPT_stats"], repository.Env["SCRIPT_restore"] = statsSays100, restoredAll
			known := false
			got, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: volumeOf(t, 1), SnapshotID: "12345678"}, progress.SinkFunc(func(r progress.Reading) {
				if known || !r.TotalFinal {
					return
				}
				known = true
				if begun, err := filepath.Glob(filepath.Join(calls, "*", "restore.json")); err != nil || len(begun) > 0 {
					t.Errorf("the restore runs already: %v, %v", begun, err)
				}
			}))
			if err != nil || got.SizesOnDisk != 100 || !known {
				t.Errorf("got %+v, %v, a total known: %v", got, err, known)
			}
		})
	}
}

// TestEndOfARestoreEndsStats: neither a restore that fails nor one that is canceled leaves restic stats behind, or waits for it.
func TestEndOfARestoreEndsStats(t *testing.T) {
	t.Parallel()
	u, calls := newFake(t, Options{})
	enough := errors.New("that is enough")
	for name, restore := range map[string]string{"failed": "wait stats.json\nexit 11", "canceled": "wait stats.json\nout " + `{"message_type":"status","files_restored":7,"total_files":7}` + "\nhang"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := scripted()
			repository.URL += name
			repository.Env["SCRIPT_stats"], repository.Env["SCRIPT_restore"] = "hang", uploader.Secret(restore)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			_, err := u.Restore(ctx, uploader.RestoreRequest{Repository: repository, Volume: volumeOf(t, 1), SnapshotID: "12345678"}, progress.SinkFunc(func(r progress.Reading) {
				if r.FilesDone == 7 {
					cancel(enough)
				}
			}))
			if want := map[string]error{"failed": uploader.ErrRepositoryLocked, "canceled": enough}[name]; !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			begun, err := filepath.Glob(filepath.Join(calls, "*", "stats.json"))
			if err != nil || len(begun) == 0 {
				t.Errorf("restic stats did not run: %v", err)
			}
		})
	}
}

// TestSizeOfOneSnapshot: from the first byte on, and at the end also of a restore that finds everything there, restic's own total is
// what restic stats says of a volume with hard links, holes and special files.
func TestSizeOfOneSnapshot(t *testing.T) {
	parts.Slow(t)
	eachVersion(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{ProgressInterval: 20 * time.Millisecond})
		if !u.version.reportsRestore() {
			return // restic 0.14 says nothing of a restore: TestTotalOfARestore has that
		}
		source := t.TempDir()
		if err := tree.Make(source, tree.Spec{Bytes: 64 << 20, Seed: 5}); err != nil {
			t.Fatal(err)
		}
		repository := initialized(t, u, 0)
		snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: open(t, source)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		req := uploader.RestoreRequest{Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: snapshot.SnapshotID}
		err = u.inWorkspace(repository, func(w *workspace) error {
			want, err := u.restoreSize(t.Context(), w, req, true)
			for _, state := range []string{"empty", "full"} {
				out := newRestoreStream(progress.Discard, pathOf(req.Volume))
				_, clearErr := u.clear(t.Context(), w, req, out.step)
				err = errors.Join(err, clearErr, u.run(t.Context(), w, invocation{
					command: "restore", args: u.restoreArgs(req), volume: req.Volume, mode: worker.Write, stdout: func(line []byte) {
						out.stdout(line)
						if total, ok := out.planned(); ok && total != want {
							t.Errorf("into an %s volume: %d bytes, restic stats says %d: %s", state, total, want, line)
						}
					},
				}))
				if _, ok := out.planned(); !ok {
					t.Errorf("into an %s volume: no total", state)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestRestorePastADeadLock: restic stats, which needs no lock, is not in the way of removing it.
func TestRestorePastADeadLock(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1<<20)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		holdLock(t, parts.Restic(t, version), repository.URL, repository.Password.Reveal())()
		result, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, t.TempDir()), SnapshotID: snapshot.SnapshotID}, nil)
		if err != nil || result.SizesOnDisk != 1<<20 {
			t.Errorf("got %+v, %v", result, err)
		}
		noLocks(t, repository)
	})
}
