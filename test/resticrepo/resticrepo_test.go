package resticrepo

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestCreate: each restic opens the repository, stores something in it and finds nothing wrong.
func TestCreate(t *testing.T) {
	t.Parallel()
	for _, version := range parts.ResticVersions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "repository")
			Create(t, dir)
			run := func(stdin string, args ...string) {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), parts.Restic(t, version), append([]string{"--no-cache"}, args...)...)
				cmd.Env = []string{"RESTIC_REPOSITORY=" + dir, "RESTIC_PASSWORD=" + Password}
				cmd.Stdin = strings.NewReader(stdin)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("restic %v: %v\n%s", args, err, out)
				}
			}
			run("some bytes", "backup", "--stdin")
			run("", "check", "--read-data")
		})
	}
}
