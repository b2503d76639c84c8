//go:build chaos

package chaos

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// sabotage is what makes a run wrong, to see that the oracle is not blind.
type sabotage struct {
	volume func(dir string) error // changes a restored volume
	never  bool                   // no agent serves the node
	object string                 // a patch of the object that has ended
}

func (s sabotage) noAgent() bool { return s.never }

func (s sabotage) limit() time.Duration {
	if s.never {
		return 5 * time.Second
	}
	return limit
}

func (s sabotage) strike(r *run) {
	if s.volume != nil {
		if err := s.volume(r.volumes[restore].files()); err != nil {
			r.t.Logf("sabotage: %v", err)
		}
	}
	if s.object != "" {
		r.patch(s.object)
	}
}

// TestOracleSees: each wrong end of an operation is a violation.
func TestOracleSees(t *testing.T) {
	server := s3.Start(t)
	for name, tc := range map[string]struct {
		sabotage sabotage
		want     string
	}{
		"nothing wrong": {},
		"one byte": {sabotage{volume: func(dir string) error {
			path := filepath.Join(dir, "a file")
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content[50]++
			return errors.Join(os.WriteFile(path, content, 0), os.Chtimes(path, time.Time{}, info.ModTime()))
		}}, `"a file" differs`},
		"a lost file":     {sabotage{volume: func(dir string) error { return os.Remove(filepath.Join(dir, "a file")) }}, `1 paths are missing, and the objects count 0`},
		"a mode":          {sabotage{volume: func(dir string) error { return os.Chmod(filepath.Join(dir, "a file"), 0o777) }}, `"a file" has mode`},
		"a file too many": {sabotage{volume: func(dir string) error { return os.WriteFile(filepath.Join(dir, "x"), nil, 0o600) }}, `"x" should not be there`},
		"a note that stays": {sabotage{volume: func(dir string) error {
			return errors.Join(os.MkdirAll(filepath.Join(dir, ".velero", "other"), 0o755))
		}}, ".velero stays"},
		"bytes that fall":         {sabotage{object: `{"status":{"progress":{"bytesDone":1}}}`}, "bytes done fell"},
		"a write after the end":   {sabotage{object: `{"metadata":{"labels":{"x":"y"}}}`}, "written after its terminal write"},
		"an end that never comes": {sabotage{never: true}, "did not end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlan(1)
			p.uploader, p.store, p.source, p.target, p.backup, p.restore = rig.Restic, inDirectory, onDisk, onDisk, nil, nil
			p.volume = volumePlan{seed: 1, files: 10}
			rec := record(t, func(r *recorder) { play(r, p, server, tc.sabotage) })
			all := strings.Join(rec.said(), "\n")
			if tc.want == "" && all != "" {
				t.Errorf("violations of a run without faults:\n%s", all)
			}
			if !strings.Contains(all, tc.want) {
				t.Errorf("the oracle does not see it; it says %q, want %q", all, tc.want)
			}
		})
	}
}
