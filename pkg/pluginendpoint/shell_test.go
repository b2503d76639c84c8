package pluginendpoint

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// TestShellExample runs examples/volume-plugin-shell, a plugin without a line of Go.
func TestShellExample(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("the example in shell is not tested: there is no curl here")
	}
	s := newSite(t)
	v := s.serve(nil)
	dir := t.TempDir()
	token, file := filepath.Join(dir, "token"), filepath.Join(dir, "disk")
	for path, content := range map[string]string{token: s.token + "\n", file: strings.Repeat("x", 1000)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	run := func(args ...string) (string, error) {
		said.Reset()
		cmd := exec.CommandContext(t.Context(), "../../examples/volume-plugin-shell/backup.sh", args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "ENDPOINT=" + v.url, "TOKEN_FILE=" + token}
		cmd.Stderr = io.MultiWriter(t.Output(), &said)
		output, err := cmd.Output()
		return strings.TrimSpace(string(output)), err
	}
	name, err := run("nightly", "pv-1", file, filepath.Join(dir, "snap-1"))
	if err != nil {
		t.Fatal(err)
	}
	if st := s.backup(name).Status; st.Phase != v1alpha1.PhaseCompleted || st.SnapshotID != "snap-1" || st.Progress.BytesDone != 1000 {
		t.Errorf("it is %+v", st)
	}
	copied := filepath.Join(dir, "refused")
	if _, err := run("", "pv-1", file, copied); err == nil || !strings.Contains(said.String(), "plugin, backup and volume must be set") {
		t.Errorf("a begin that is refused: %v, %s", err, said.String())
	}
	if _, err := os.Stat(copied); err == nil {
		t.Error("it is backed up although its begin was refused")
	}
	if _, err := run("nightly", "pv-2", file, filepath.Join(dir, "no", "such", "directory")); err == nil {
		t.Error("a copy that fails is none that the script notices")
	}
	failed := v.ask(http.MethodPost, backupsPath, `{"plugin": "example.io/shell", "backup": "nightly", "volume": "pv-2"}`, http.StatusOK)
	if before := s.backup(strings.TrimSuffix(failed.Name, "-2")).Status; before.Phase != v1alpha1.PhaseFailed {
		t.Errorf("it is %+v", before)
	}
}
