package restic

import (
	"errors"
	"testing"

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
				got, err = u.restoreSize(t.Context(), w, uploader.RestoreRequest{Repository: repository, SnapshotID: "12345678"}, false)
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
