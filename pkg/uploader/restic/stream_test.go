package restic

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func TestStreamOfBackup(t *testing.T) {
	t.Parallel()
	const all = `{"message_type":"status","percent_done":1,"total_files":2,"files_done":2,"total_bytes":10,"bytes_done":10}`
	tests := map[string]struct {
		lines []string
		want  progress.Reading
	}{
		"nothing known yet": {
			[]string{`{"message_type":"status","percent_done":0}`},
			progress.Reading{Stage: progress.StageScanning},
		},
		"scan goes on": {
			[]string{`{"message_type":"status","percent_done":0.5,"total_files":3,"files_done":1,"total_bytes":10,"bytes_done":5,"current_files":["/a","/b"]}`},
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 5, TotalBytes: 10, FilesDone: 1, FilesTotal: 3, CurrentItem: "/a"},
		},
		"remaining time proves that the scan has ended, for good": {
			[]string{`{"message_type":"status","seconds_remaining":7,"total_bytes":10,"bytes_done":5}`, `{"message_type":"status","total_bytes":10,"bytes_done":9}`},
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 9, TotalBytes: 10, TotalFinal: true},
		},
		"files that grow": {
			[]string{`{"message_type":"status","seconds_remaining":1399999999999,"percent_done":1.2,"total_bytes":10,"bytes_done":12,"current_files":["log"]}`},
			progress.Reading{Stage: progress.StageFinishing, BytesDone: 12, TotalBytes: 12, TotalFinal: true, CurrentItem: "log"},
		},
		"small volume, read before the remaining time is known": {
			[]string{all, all, all, all},
			progress.Reading{Stage: progress.StageFinishing, BytesDone: 10, TotalBytes: 10, FilesDone: 2, FilesTotal: 2},
		},
		"reading may just have caught up with the scan": {
			[]string{all, all},
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 10, TotalBytes: 10, FilesDone: 2, FilesTotal: 2},
		},
		"no scan": {
			[]string{`{"message_type":"status","percent_done":0,"files_done":1,"bytes_done":5}`},
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 5, FilesDone: 1},
		},
		"the end of the scan with -v in 0.14": {
			[]string{`{"message_type":"status","action":"scan_finished","item":"","duration":0.2,"data_size":4,"metadata_size":0,"total_files":1}`},
			progress.Reading{},
		},
		"unknown types, fields and broken lines": {
			[]string{`{"message_type":"verbose_status","total_bytes":1}`, `{"message_type":"new"}`, `[]`, `{"message_type":"status","total_by`, `text`, ``, `{"message_type":"status","bytes_done":-5}`, `{"message_type":"status","extra":{},"total_bytes":10,"bytes_done":1}`},
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 1, TotalBytes: 10},
		},
		"underflow": {
			[]string{`{"message_type":"status","total_bytes":10,"bytes_done":18446744073709551615}`},
			progress.Reading{Stage: progress.StageScanning, TotalBytes: 10},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var last progress.Reading
			s := newBackupStream(progress.SinkFunc(func(r progress.Reading) { last = r }), "/volume", volumeWith(t))
			for _, line := range test.lines {
				s.stdout([]byte(line))
			}
			if diff := cmp.Diff(test.want, last); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestStreamOfRestore(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		line  string
		total int64
		want  progress.Reading
	}{
		"skipped files count as done and belong to the total": {
			`{"message_type":"status","percent_done":0.5,"total_files":4,"files_restored":1,"files_skipped":2,"total_bytes":60,"bytes_restored":30,"bytes_skipped":40}`, 100,
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 70, TotalBytes: 100, TotalFinal: true, FilesDone: 3, FilesTotal: 6},
		},
		"all skipped": {
			`{"message_type":"status","percent_done":0,"files_skipped":2,"bytes_skipped":100}`, 100,
			progress.Reading{Stage: progress.StageFinishing, BytesDone: 99, TotalBytes: 100, TotalFinal: true, FilesDone: 2, FilesTotal: 2},
		},
		"the total grows in the first pass": {
			`{"message_type":"status","percent_done":0,"total_bytes":10}`, 100,
			progress.Reading{Stage: progress.StageTransferring, TotalBytes: 100, TotalFinal: true},
		},
		"a summary of everything proves nothing": {
			`{"message_type":"summary","total_files":1,"files_restored":1,"total_bytes":100,"bytes_restored":100}`, 100,
			progress.Reading{Stage: progress.StageFinishing, BytesDone: 99, TotalBytes: 100, TotalFinal: true, FilesDone: 1, FilesTotal: 1},
		},
		"restic's own total, once it writes": {
			`{"message_type":"status","total_bytes":10,"bytes_restored":4,"bytes_skipped":5}`, 0,
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 9, TotalBytes: 15, TotalFinal: true},
		},
		"it still grows in the first pass": {
			`{"message_type":"status","total_bytes":10}`, 0,
			progress.Reading{Stage: progress.StageTransferring, TotalBytes: 10},
		},
		"all that was compared so far is not all": {
			`{"message_type":"status","files_skipped":2,"bytes_skipped":100}`, 0,
			progress.Reading{Stage: progress.StageTransferring, BytesDone: 99, TotalBytes: 100, FilesDone: 2, FilesTotal: 2},
		},
		"all was there": {
			`{"message_type":"summary","files_skipped":2,"bytes_skipped":100}`, 0,
			progress.Reading{Stage: progress.StageFinishing, BytesDone: 99, TotalBytes: 100, TotalFinal: true, FilesDone: 2, FilesTotal: 2},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var last progress.Reading
			s := newRestoreStream(progress.SinkFunc(func(r progress.Reading) { last = r }), "/volume")
			if test.total > 0 {
				s.setTotal(test.total)
			}
			s.stdout([]byte(test.line))
			if diff := cmp.Diff(test.want, last); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestNamesAreFitToBeShown(t *testing.T) {
	t.Parallel()
	s := newBackupStream(progress.Discard, "/volume", volumeWith(t))
	s.stdout([]byte(`{"message_type":"status","total_bytes":10,"bytes_done":1,"current_files":["/volume/a\nb` + strings.Repeat(`\ufffd`, 4000) + `"]}`))
	if got := s.reading.CurrentItem; len(got) > 8*maxText || !strings.HasPrefix(got, `a\nb`) {
		t.Errorf("got %d bytes: %.80q", len(got), got)
	}
}

func TestFailedPathsAreBounded(t *testing.T) {
	t.Parallel()
	s := newBackupStream(progress.Discard, "/volume", volumeWith(t))
	for i := range 1000 {
		s.itemFailed(fmt.Sprintf("/volume/%d", i), "open /volume/x: permission denied")
	}
	if len(s.failed) != maxFailedPaths || s.reading.Errors != 1000 || s.failed[0] != "0" {
		t.Errorf("got %d paths, the first %q, of %d errors", len(s.failed), s.failed[0], s.reading.Errors)
	}
	if got := s.reading.LastError; got != "open x: permission denied" {
		t.Errorf("got %q, want no path of the host", got)
	}
}

// volumeWith makes a volume that has these files.
func volumeWith(tb testing.TB, names ...string) *os.Root {
	tb.Helper()
	root, err := os.OpenRoot(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = root.Close() })
	for _, name := range names {
		if err := root.WriteFile(name, nil, 0); err != nil {
			tb.Fatal(err)
		}
	}
	return root
}

// FuzzStream feeds any bytes, as lines of both streams, to both kinds of stream.
func FuzzStream(f *testing.F) {
	files, err := filepath.Glob("testdata/restic-*/*.jsonl")
	if err != nil || len(files) == 0 {
		f.Fatal("no recordings", err)
	}
	for _, file := range files {
		version := strings.TrimPrefix(filepath.Base(filepath.Dir(file)), "restic-")
		for _, line := range readRecording(f, version, strings.TrimSuffix(filepath.Base(file), ".jsonl")) {
			switch {
			case line.Stdout != nil:
				f.Add([]byte(*line.Stdout))
			case line.Stderr != nil:
				f.Add([]byte(*line.Stderr))
			}
		}
	}
	root := volumeWith(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		check := progress.SinkFunc(func(r progress.Reading) {
			if r.BytesDone < 0 || r.TotalBytes < 0 || r.FilesDone < 0 || r.FilesTotal < 0 || r.TotalBytes > 0 && r.BytesDone > r.TotalBytes {
				t.Errorf("nonsense: %+v", r)
			}
			if len(r.CurrentItem) > 8*maxText || len(r.LastError) > 8*maxText || strings.ContainsAny(r.LastError+r.CurrentItem, "\n\x1b") {
				t.Errorf("not fit to be shown: %+v", r)
			}
		})
		known := newRestoreStream(check, "/volume")
		known.setTotal(100)
		for _, s := range []*stream{newBackupStream(check, "/volume", root), newRestoreStream(check, "/volume"), known} {
			said := &stderr{itemFail: s.itemFailed, attribute: s.attributeUnread}
			for line := range strings.SplitSeq(string(input), "\n") {
				s.stdout([]byte(line))
				said.line([]byte(line))
			}
			_ = cause(Version{Minor: 16}, 1, said.fatal())
			if owner, ok := parseLockOwner(said.fatal()); ok {
				_ = owner.String()
			}
		}
	})
}

// BenchmarkDecode reports the cost of one status line, and what stays in memory after all of them: run it with
// -benchtime 10000000x for a stream of ten million lines.
func BenchmarkDecode(b *testing.B) {
	line := []byte(`{"message_type":"status","seconds_elapsed":11,"seconds_remaining":4,"percent_done":0.5,"total_files":8037,"files_done":4037,"total_bytes":2141545926,"bytes_done":1041545926,"current_files":["/data/some/file","/data/some/other file"]}`)
	s := newBackupStream(progress.Discard, "/volume", volumeWith(b))
	before := liveBytes()
	b.ReportAllocs()
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		s.stdout(line)
	}
	b.ReportMetric(float64(max(liveBytes()-before, 0)), "retained-B")
	runtime.KeepAlive(s)
}

// liveBytes is how much of the heap is in use.
func liveBytes() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestUnreadableDirectoryOfAnotherName: of a name that is no UTF-8 restic prints another one, which nobody finds in the volume. It may be a
// directory that holds everything.
func TestUnreadableDirectoryOfAnotherName(t *testing.T) {
	t.Parallel()
	s := newBackupStream(progress.Discard, "/volume", volumeWith(t, "file"))
	for _, item := range []string{"/volume/B\ufffdro", "/volume/B\ufffdro/data", "/volume/file"} {
		s.itemFailed(item, "open "+item+": permission denied")
	}
	if s.reading.Errors != 3 || s.dirs != 2 {
		t.Errorf("%d errors, %d directories", s.reading.Errors, s.dirs)
	}
}
