package restic

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// restoreSeconds is about how long the slow restore takes.
const restoreSeconds = 10

// restic 0.14 says nothing of its restores, and allocates a file's full size with its first blob. What the readings say
// of a slow one is held against what the kernel counts of restic's write calls, before and after they were taken: at ten
// points, within 5 % of the total. RESTORE_MIB=2048 makes it a file of 2 GiB.
func TestMeterTellsTheTruthOfASlowRestore(t *testing.T) {
	t.Parallel()
	size := int64(256 << 20)
	if mib, err := strconv.ParseInt(os.Getenv("RESTORE_MIB"), 10, 64); err == nil {
		size = mib << 20
	}
	u := newUploader(t, "0.14.0", Options{DownloadLimit: size / restoreSeconds})
	repository := initialized(t, u, 0)
	snapshot, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: bigVolume(t, size)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	target := open(t, t.TempDir())
	meter, err := volume.NewMeter(t.Context(), target, nil)
	if err != nil {
		t.Fatal(err)
	}
	var readings, points int
	ended := make(chan error, 1)
	go func() {
		request := uploader.RestoreRequest{Repository: repository, Volume: target, SnapshotID: snapshot.SnapshotID}
		var before, last int64 // when the last reading was told, after which this one was taken, and what it was
		_, err := u.Restore(t.Context(), request, progress.SinkFunc(func(r progress.Reading) {
			after := writtenIn(t, target.Name())
			isMeasured := r.BytesDone != last // else it counts other work, such as attributes
			if last = r.BytesDone; isMeasured && r.BytesDone > 0 && r.BytesDone < size-1 && after > 0 {
				readings++
				checkTruth(t, "reading", r.BytesDone, before, after, size)
			}
			before = after
		}))
		ended <- err
	}()
	for point := int64(1); point <= 10; point++ {
		var before int64
		waitFor(t, fmt.Sprintf("point %d, or the end", point), func() bool {
			before = writtenIn(t, target.Name())
			return before >= point*size/11 || len(ended) > 0
		})
		got, err := meter.Written(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if after := writtenIn(t, target.Name()); before > 0 && after > 0 { // it runs still
			points++
			checkTruth(t, fmt.Sprintf("point %d", point), got, before, after, size)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if readings == 0 || points == 0 {
		t.Errorf("%d readings and %d points while it ran", readings, points)
	}
}

// checkTruth allows for 5 % of the total, since what restic had written when it was measured lay between two numbers.
func checkTruth(t *testing.T, what string, got, before, after, size int64) {
	t.Helper()
	if got < before-size/20 || got > after+size/20 {
		t.Errorf("%s: %d bytes, restic has written %d to %d, of %d", what, got, before, after, size)
	}
}

// writtenIn returns how many bytes the process whose working directory is dir has handed to write calls, 0 if there is none.
func writtenIn(t *testing.T, dir string) int64 {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range processes {
		if at, err := os.Readlink(link); err != nil || at != dir {
			continue
		}
		counters, err := os.ReadFile(filepath.Join(filepath.Dir(link), "io"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(counters)) {
			var n int64
			if _, err := fmt.Sscanf(line, "wchar: %d", &n); err == nil {
				return n
			}
		}
	}
	return 0
}

// bigVolume makes a volume with one file that does not compress.
func bigVolume(t *testing.T, size int64) *os.File {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{1}), size); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}
