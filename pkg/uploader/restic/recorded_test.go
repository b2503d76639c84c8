package restic

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

var update = flag.Bool("update", false, "record what the versions of restic print into testdata")

// recorded is one line of a recording; the last one has the exit code.
type recorded struct {
	Stdout *string `json:"stdout,omitempty"`
	Stderr *string `json:"stderr,omitempty"`
	Exit   *int    `json:"exit,omitempty"`
}

// outcome is what this package makes of a run of restic.
type outcome struct {
	Cause      error
	Snapshot   bool // the summary names one
	TotalBytes int64
	Done       int64
	Final      bool
	Errors     int64
	Reason     bool // the last error says why
	Failed     []string
	Malformed  int64
}

// source is the size of the volume of the recordings.
const source = 3_000_010

func TestRecordings(t *testing.T) {
	t.Parallel()
	tests := map[string]func(v Version) outcome{
		"backup": func(Version) outcome {
			return outcome{Snapshot: true, TotalBytes: source, Done: source, Final: true}
		},
		// restic 0.14 gives the line about the finished scan the type of a status line.
		"backup-verbose": func(Version) outcome {
			return outcome{Snapshot: true, TotalBytes: source, Done: source, Final: true}
		},
		"backup-partial": func(v Version) outcome {
			return outcome{
				Snapshot: true, TotalBytes: 10, Done: 10, Final: true, Errors: 2,
				Reason: v.atLeast(17) || !v.atLeast(15), Failed: []string{`new\nline`, "secret"},
			}
		},
		"backup-empty":       func(Version) outcome { return outcome{Cause: errEmpty} },
		"backup-parent-gone": func(Version) outcome { return outcome{Cause: uploader.ErrSnapshotNotFound} },
		"wrong-password":     func(Version) outcome { return outcome{Cause: uploader.ErrWrongPassword} },
		"no-repository":      func(Version) outcome { return outcome{Cause: uploader.ErrRepositoryNotFound} },
		"unknown-snapshot":   func(Version) outcome { return outcome{Cause: uploader.ErrSnapshotNotFound} },
		// 0.14 and 0.16 say "unable to open config file" of this, too.
		"unreachable": func(Version) outcome { return outcome{} },
		"locked":      func(Version) outcome { return outcome{Cause: uploader.ErrRepositoryLocked} },
		"restore": func(v Version) outcome {
			if !v.reportsRestore() {
				return outcome{Malformed: 1}
			}
			return outcome{TotalBytes: source, Done: source - 1, Final: true}
		},
		// From 0.17 on the total lacks what is there already.
		"restore-again": func(v Version) outcome {
			if !v.reportsRestore() {
				return outcome{Malformed: 1}
			}
			return outcome{TotalBytes: source, Done: source - 1, Final: true}
		},
	}
	for _, version := range parts.ResticVersions(t) {
		if *update {
			record(t, version)
		}
		v, err := ParseVersion("restic " + version)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range tests {
			if name == "unreachable" && v.atLeast(17) {
				continue // it would try for 15 minutes
			}
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				got, id := replay(t, v, name)
				if length := map[bool]int{true: 64, false: 8}[v.atLeast(16)]; got.Snapshot && len(id) != length {
					t.Errorf("snapshot id %q does not have %d characters", id, length)
				}
				if diff := cmp.Diff(want(v), got, cmp.Comparer(errors.Is)); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		}
	}
}

// replay feeds a recording to the code that reads restic's output.
func replay(t *testing.T, v Version, name string) (outcome, string) {
	t.Helper()
	out := newBackupStream(progress.Discard, "/tmp/recording/unreadable", volumeWith(t, "secret", "new\nline"))
	if strings.HasPrefix(name, "restore") {
		out = newRestoreStream(progress.Discard, "/tmp/recording/target")
	}
	said := &stderr{itemFail: out.itemFailed}
	var exit int
	for _, line := range readRecording(t, v.String(), name) {
		switch {
		case line.Stdout != nil:
			out.stdout([]byte(*line.Stdout))
		case line.Stderr != nil:
			said.line([]byte(*line.Stderr))
		default:
			exit = *line.Exit
		}
	}
	got := outcome{Errors: out.reading.Errors, Failed: out.failed, Malformed: out.malformed}
	got.Reason = strings.Contains(out.reading.LastError, "permission denied")
	var id string
	if out.summary != nil && (exit == 0 || exit == exitPartial) {
		id = out.summary.snapshotID
		got.Snapshot = id != ""
		out.finish(out.summary.bytes, out.summary.added)
	}
	if exit != 0 && exit != exitPartial {
		got.Cause = cause(v, exit, said.fatal())
	}
	got.TotalBytes, got.Done, got.Final = out.reading.TotalBytes, out.reading.BytesDone, out.reading.TotalFinal
	return got, id
}

func recording(version, name string) string {
	return filepath.Join("testdata", "restic-"+version, name+".jsonl")
}

func readRecording(tb testing.TB, version, name string) []recorded {
	tb.Helper()
	content, err := os.ReadFile(recording(version, name))
	if err != nil {
		tb.Fatalf("%v: record it with -update", err)
	}
	var lines []recorded
	for text := range bytes.Lines(content) {
		var line recorded
		if err := json.Unmarshal(text, &line); err != nil {
			tb.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

// record runs a version of restic, as root and unconfined, and writes down what it prints.
func record(t *testing.T, version string) {
	t.Helper()
	r := &recordings{t: t, version: version, dir: t.TempDir(), password: "static-passw0rd"}
	volume := r.volume()
	repository := filepath.Join(r.dir, "repository")
	r.run("", volume, "init", "-r", repository)
	limit := []string{"--limit-upload", "1500", "--limit-download", "1500", "-r", repository}
	r.run("backup", volume, append(limit, "backup", ".", "--json", "--host", "velero")...)
	r.run("backup-verbose", volume, append(limit, "backup", ".", "--json", "--host", "velero", "--verbose=2", "--force")...)
	id := strings.TrimSpace(r.run("", volume, "-r", repository, "list", "snapshots", "--quiet"))[:8]
	target := r.mkdir("target")
	r.run("restore", target, append(limit, "restore", id, "--json", "--target", ".")...)
	r.run("restore-again", target, append(limit, "restore", id, "--json", "--target", ".")...)
	r.run("restore-stats", target, "-r", repository, "stats", "--json", id)
	r.run("backup-empty", r.mkdir("empty"), "-r", repository, "backup", ".", "--json")
	r.run("backup-parent-gone", volume, "-r", repository, "backup", ".", "--json", "--parent", "deadbeef")
	r.run("no-repository", volume, "-r", filepath.Join(r.dir, "nothing"), "backup", ".", "--json")
	if v, _ := ParseVersion("restic " + version); !v.atLeast(17) { // later ones try for 15 minutes
		r.run("unreachable", volume, "-r", "rest:http://127.0.0.1:1/x", "-o", "rest.connections=1", "backup", ".", "--json")
	}
	r.run("unknown-snapshot", target, "-r", repository, "restore", "deadbeef", "--json", "--target", ".")
	unreadable := r.mkdir("unreadable")
	for name, mode := range map[string]os.FileMode{"good": 0o600, "secret": 0, "new\nline": 0} {
		if err := os.WriteFile(filepath.Join(unreadable, name), []byte("some bytes"), mode); err != nil {
			t.Fatal(err)
		}
	}
	r.wrapper = []string{"setpriv", "--bounding-set=-dac_override,-dac_read_search"}
	r.run("backup-partial", unreadable, "-r", repository, "backup", ".", "--json")
	r.wrapper = nil
	release := holdLock(t, parts.Restic(t, version), repository, r.password)
	r.run("locked", volume, "-r", repository, "backup", ".", "--json")
	release()
	r.password = "another"
	r.run("wrong-password", volume, "-r", repository, "backup", ".", "--json")
}

type recordings struct {
	t                      *testing.T
	version, dir, password string
	wrapper                []string
}

func (r *recordings) mkdir(name string) string {
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	return dir
}

func (r *recordings) volume() string {
	dir := r.mkdir("volume")
	for name, size := range map[string]int{"a": 1_000_000, "b": 2_000_000, "c": 10, "d": 0} {
		content := make([]byte, size)
		state := uint32(size)
		for i := range content {
			state = state*1664525 + 1013904223
			content[i] = byte(state >> 24)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return dir
}

// run runs restic in a directory and records it if name is not empty. It returns stdout.
func (r *recordings) run(name, dir string, args ...string) string {
	r.t.Helper()
	command := append(append([]string{}, r.wrapper...), append([]string{parts.Restic(r.t, r.version)}, args...)...)
	c := exec.CommandContext(r.t.Context(), command[0], command[1:]...)
	c.Dir = dir
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"), "RESTIC_PASSWORD=" + r.password, "RESTIC_PROGRESS_FPS=4",
		"RESTIC_CACHE_DIR=" + r.dir + "/cache", "TMPDIR=" + r.dir,
	}
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || name == "" && err != nil {
		r.t.Fatalf("%v: %v: %s", command, err, &stderr)
	}
	if name != "" {
		r.write(name, stdout.String(), stderr.String(), c.ProcessState.ExitCode())
	}
	return stdout.String()
}

func (r *recordings) write(name, stdout, stderr string, exit int) {
	var content bytes.Buffer
	encoder := json.NewEncoder(&content)
	clean := func(text string) string {
		return strings.ReplaceAll(text, r.dir, "/tmp/recording")
	}
	emit := func(line recorded) {
		if err := encoder.Encode(line); err != nil {
			r.t.Fatal(err)
		}
	}
	for s := bufio.NewScanner(strings.NewReader(clean(stdout))); s.Scan(); {
		text := s.Text()
		emit(recorded{Stdout: &text})
	}
	for s := bufio.NewScanner(strings.NewReader(clean(stderr))); s.Scan(); {
		text := s.Text()
		emit(recorded{Stderr: &text})
	}
	emit(recorded{Exit: &exit})
	path := recording(r.version, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, content.Bytes(), 0o600); err != nil {
		r.t.Fatal(err)
	}
}
