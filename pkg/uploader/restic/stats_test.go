package restic

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

func TestStats(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lines []string
		want  int64
		err   error
	}{
		"0.14": {lines: []string{`{"total_size":10,"total_file_count":0,"snapshots_count":1}`}, want: 10},
		"0.19.0 prints its progress, too": {
			lines: []string{"[0:00] 100.00%  1 / 1 snapshots, 14 files, 1.537 GiB", "", `{"total_size":1650458627,"total_file_count":14,"snapshots_count":1}`, ""},
			want:  1650458627,
		},
		"an unknown snapshot is no error to restic": {lines: []string{`{"total_size":0,"snapshots_count":0}`}, err: uploader.ErrSnapshotNotFound},
		"text":    {lines: []string{"something"}, err: errNoStats},
		"nothing": {err: errNoStats},
	}
	u, _ := newFake(t, Options{})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var script []string
			for _, line := range test.lines {
				script = append(script, "out "+line)
			}
			repository := scripted(script...)
			var got int64
			err := u.inWorkspace(repository, func(w *workspace) (err error) {
				got, err = u.restoreSize(t.Context(), w, uploader.RestoreRequest{Repository: repository, SnapshotID: "12345678"})
				return err
			})
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("got %d, %v, want %d, %v", got, err, test.want, test.err)
			}
		})
	}
	for _, version := range parts.ResticVersions(t) {
		lines := readRecording(t, version, "restore-stats")
		if got, err := parseStats([]byte(*lines[len(lines)-2].Stdout), "12345678"); err != nil || got != source {
			t.Errorf("%s: got %d, %v", version, got, err)
		}
	}
}

// TestStatsBesideTheRestore: neither waits for the other to end, and a restore without its size is no success.
func TestStatsBesideTheRestore(t *testing.T) {
	t.Parallel()
	const (
		size     = `out {"total_size":10,"snapshots_count":1}`
		restored = `out {"message_type":"status","total_files":1,"total_bytes":7,"bytes_restored":7}`
	)
	tests := map[string]struct {
		restore, stats string
		known          int64 // what the caller knows
		onDisk         int64 // the size that the volume is held against
		want           string
	}{
		"stats ends after the restore has begun": {stats: "wait restore.json\n" + size, restore: restored, onDisk: 10},
		"stats ends before the restore does":     {stats: size, restore: "wait stats.json\n" + restored, onDisk: 10},
		"stats fails":                            {stats: "wait restore.json\nerr Fatal: no answer\nexit 1", restore: restored, want: "restic stats: Fatal: no answer (exit code 1)"},
		"stats says nothing":                     {stats: "out something", restore: restored, want: errNoStats.Error()},
		"stats says nothing, the caller knows":   {stats: "out something", restore: restored, known: 10},
		"the restore fails, stats hangs":         {stats: "hang", restore: "wait stats.json\nerr Fatal: bad\nexit 1", want: "restic restore: Fatal: bad (exit code 1)"},
		"both fail":                              {stats: "err Fatal: bad\nexit 1", restore: "wait stats.json\nerr Fatal: bad\nexit 1", want: "restic restore: Fatal: bad (exit code 1)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, _ := newFake(t, Options{})
			repository := scripted()
			repository.Env["SCRIPT_restore"], repository.Env["SCRIPT_stats"] = uploader.Secret(test.restore), uploader.Secret(test.stats)
			got, err := u.Restore(t.Context(), uploader.RestoreRequest{
				Repository: repository, Volume: volumeOf(t, 1), SnapshotID: "12345678", TotalBytes: test.known,
			}, progress.SinkFunc(func(r progress.Reading) {
				if r.TotalFinal && r.TotalBytes != 10 {
					t.Errorf("%+v has a final total that is not the snapshot's size", r)
				}
			}))
			switch {
			case test.want != "" && !strings.HasSuffix(fmt.Sprint(err), test.want) && !strings.Contains(fmt.Sprint(err), test.want+":"):
				t.Errorf("got %+v, %v, want %q", got, err, test.want)
			case test.want == "" && (err != nil || got.TotalBytes != 10 || got.SizesOnDisk != test.onDisk):
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
