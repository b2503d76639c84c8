package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// moveVariable makes this test binary move a volume, as the node agent does, and end: its value is a move.
const moveVariable = "PLIMSOLL_TEST_MOVE"

// move is one backup or, with a snapshot, one restore.
type move struct {
	Restic                    string // empty: kopia
	Repository, Dir, Snapshot string
}

// moved is what came of it.
type moved struct {
	Snapshot string
	Errors   int64
	Error    string
}

// runMove moves a volume in this process and prints what came of it.
func runMove(ctx context.Context, request string) error {
	var m move
	if err := json.Unmarshal([]byte(request), &m); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "move-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	u, err := newUploader(ctx, m.Restic, temp)
	if err != nil {
		return err
	}
	dir, err := os.Open(m.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	var result moved
	repository := uploader.Repository{URL: m.Repository, Password: resticrepo.Password}
	if m.Snapshot == "" {
		var stored uploader.BackupResult
		stored, err = u.Backup(ctx, uploader.BackupRequest{Repository: repository, Volume: dir}, nil)
		result.Snapshot, result.Errors = stored.SnapshotID, stored.Errors
	} else {
		_, err = u.Restore(ctx, uploader.RestoreRequest{Repository: repository, Volume: dir, SnapshotID: m.Snapshot}, nil)
	}
	if err != nil {
		result.Error = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// with moves the volume in a process that has the capabilities, and cannot get others.
func (m move) with(t *testing.T, capabilities []string) moved {
	t.Helper()
	request, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	set := []string{"-all"}
	for _, c := range capabilities {
		set = append(set, "+"+strings.ToLower(c))
	}
	cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set", strings.Join(set, ","), "--inh-caps", "-all", "--ambient-caps", "-all", "--no-new-privs", os.Args[0])
	cmd.Env = append(os.Environ(), moveVariable+"="+string(request))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var result moved
	if err = errors.Join(err, json.Unmarshal(out, &result)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return result
}

// TestCapabilities backs up and restores files of all kinds with the capabilities of the DaemonSet: nothing may be lost.
// With one of them less something must be.
func TestCapabilities(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	if _, err := exec.LookPath("setpriv"); err != nil || os.Geteuid() != 0 {
		t.Skipf("NOT TESTED: it takes root and setpriv to run with less capabilities (%v)", err)
	}
	capabilities := daemonSetCapabilities(t)
	if len(capabilities) == 0 {
		t.Fatal("the DaemonSet has no capabilities")
	}
	paths := []dataPath{newDataPath(t, defaultRestic), newDataPath(t, kopiaPath)}
	foreign := map[string]string{}
	for _, p := range paths {
		p.create(t)
		foreign[p.name] = t.TempDir()
		makeForeign(t, foreign[p.name], p.plain)
		t.Run("with all/"+p.name, func(t *testing.T) {
			t.Parallel()
			all := t.TempDir()
			if err := tree.Make(all, tree.Spec{Plain: p.plain}); err != nil {
				t.Fatal(err)
			}
			makeForeign(t, all, p.plain)
			if lost := p.roundTrip(t, all, capabilities); len(lost) > 0 {
				t.Errorf("with %v %d things are lost: %q", capabilities, len(lost), lost)
			}
			reader := move{Restic: p.program, Repository: p.repository.URL, Dir: foreign[p.name]}.with(t, []string{"DAC_READ_SEARCH"})
			if reader.Error != "" || reader.Errors > 0 {
				t.Errorf("a backup with no more than DAC_READ_SEARCH: %+v", reader)
			}
		})
	}
	for _, without := range capabilities {
		t.Run("without "+without, func(t *testing.T) {
			t.Parallel()
			others := slices.DeleteFunc(slices.Clone(capabilities), func(c string) bool { return c == without })
			for _, p := range paths { // one that needs it is enough
				if lost := p.roundTrip(t, foreign[p.name], others); len(lost) > 0 {
					t.Logf("%s loses %q", p.name, lost)
					return
				}
			}
			t.Error("nothing is lost")
		})
	}
}

// daemonSetCapabilities reads what deploy/ gives to the agent.
func daemonSetCapabilities(t *testing.T) []string {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "node-agent", "daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range set.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add {
		names = append(names, string(c))
	}
	return names
}

// somebody owns the files of a volume, and is not root.
const somebody = 12345

// makeForeign fills a volume with files that only their owner may touch, and with what only root can make.
func makeForeign(t *testing.T, dir string, plain bool) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, "foreign", name) }
	steps := []error{os.MkdirAll(at("private/deep"), 0o700)}
	for _, name := range []string{"private/file", "private/deep/file", "locked", "setuid", "capable"} {
		steps = append(steps, os.WriteFile(at(name), []byte(name), 0o600), os.Chown(at(name), somebody, somebody))
	}
	if !plain {
		// Version 2 of vfs_cap_data: may bind low ports.
		capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		steps = append(steps, unix.Setxattr(at("capable"), "security.capability", capability, 0),
			unix.Mknod(at("character"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
			unix.Mknod(at("block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	}
	steps = append(
		steps,
		os.Chmod(at("locked"), 0), os.Chmod(at("setuid"), 0o755|os.ModeSetuid|os.ModeSetgid),
		os.Chmod(at("private/deep"), 0), os.Chmod(at("private"), 0o700|os.ModeSetgid|os.ModeSticky),
		os.Chown(at("private/deep"), somebody, somebody), os.Chown(at("private"), somebody, somebody),
	)
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
}

// roundTrip backs a directory up and restores it, twice into the same directory as after a try that has not come to the
// end, all with the capabilities, and returns the first losses.
func (p dataPath) roundTrip(t *testing.T, dir string, capabilities []string) (lost []string) {
	t.Helper()
	m := move{Restic: p.program, Repository: p.repository.URL, Dir: dir}
	stored := m.with(t, capabilities)
	if stored.Error != "" || stored.Errors > 0 {
		lost = append(lost, fmt.Sprintf("backup: %d errors %s", stored.Errors, stored.Error))
	}
	if len(lost) > 0 || stored.Snapshot == "" {
		return lost
	}
	m.Dir, m.Snapshot = t.TempDir(), stored.Snapshot
	for range 2 {
		if result := m.with(t, capabilities); result.Error != "" {
			lost = append(lost, "restore: "+result.Error)
		}
		differences, err := tree.Compare(dir, m.Dir, tree.Options{Plain: p.plain})
		if err != nil {
			t.Fatal(err)
		}
		if lost = append(lost, differences...); len(lost) > 0 {
			return lost
		}
		if err := os.Remove(filepath.Join(m.Dir, "foreign", "private", "file")); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}
