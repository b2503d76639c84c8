package kopia_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// program is kopia's own program, connected to a repository in the file system as Velero connects to it.
type program struct {
	path, home string
	password   string
}

func connect(tb testing.TB, repository uploader.Repository) program {
	tb.Helper()
	p := program{path: parts.Kopia(tb), home: tb.TempDir(), password: strings.TrimSpace(repository.Password.Reveal())}
	p.run(tb, "repository", "connect", "filesystem", "--path", repository.URL,
		"--override-username", "default", "--override-hostname", "default")
	return p
}

// run runs the program and returns its stdout.
func (p program) run(tb testing.TB, args ...string) []byte {
	tb.Helper()
	output, err := p.command(tb.Context(), args...).Output()
	if err != nil {
		tb.Fatalf("kopia %v: %v\n%s", args, err, output)
	}
	return output
}

func (p program) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(args, "--config-file", filepath.Join(p.home, "repository.config"), "--log-dir", filepath.Join(p.home, "log"))
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = []string{"HOME=" + p.home, "KOPIA_PASSWORD=" + p.password, "KOPIA_CHECK_FOR_UPDATES=false", "PATH=/usr/bin:/bin"}
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

func (p program) decode(t *testing.T, into any, args ...string) {
	t.Helper()
	output := p.run(t, append(args, "--json")...)
	if err := json.Unmarshal(output, into); err != nil {
		t.Fatalf("kopia %v says %s: %v", args, output, err)
	}
}

// TestProgramReadsOurs: kopia's own program restores what we have stored, finds it whole, and sees in the repository
// what Velero would have written.
func TestProgramReadsOurs(t *testing.T) {
	parts.Slow(t) // it needs kopia's program
	t.Parallel()
	repository := initialized(t)
	volume := t.TempDir()
	if err := tree.Make(volume, tree.Spec{Plain: true, Bytes: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	const source = "snapshot-pod-volume/kopia/shop/web-0/data"
	tags := map[string]string{"snapshot-requester": "snapshot-pod-volume", "snapshot-uploader": "kopia"}
	ours := backup(t, newUploader(t, kopia.Options{}), uploader.BackupRequest{
		Repository: repository, Volume: open(t, volume), Source: source, Tags: tags,
	}, nil)

	p := connect(t, repository)
	var snapshots []struct {
		ID          string
		Description string
		Source      struct{ Host, UserName, Path string }
		Tags        map[string]string
		Pins        []string
		Incomplete  string
	}
	p.decode(t, &snapshots, "snapshot", "list", "--all")
	if len(snapshots) != 1 {
		t.Fatalf("%d snapshots, want one: %+v", len(snapshots), snapshots)
	}
	s := snapshots[0]
	if s.ID != ours.SnapshotID || s.Description != "Kopia Uploader" || s.Incomplete != "" ||
		s.Source.Host != "default" || s.Source.UserName != "default" || s.Source.Path != source {
		t.Errorf("got %+v, want snapshot %s as Velero files it", s, ours.SnapshotID)
	}
	if diff := cmp.Diff(tags, s.Tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"velero-pin"}, s.Pins); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
	checkPolicy(t, p, source)
	checkMaintenance(t, p)
	checkMarker(t, repository)

	p.run(t, "snapshot", "verify", "--verify-files-percent", "100")
	target := t.TempDir()
	p.run(t, "snapshot", "restore", ours.SnapshotID, target)
	differences, err := tree.Compare(volume, target, tree.Options{Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		// That kopia's own program does not restore the times of directories, nor those of links exactly, is known.
		if !strings.Contains(d, "was modified") {
			t.Error(d)
		}
	}
}

func checkPolicy(t *testing.T, p program, source string) {
	t.Helper()
	var policy struct {
		Retention   map[string]any
		Compression struct{ CompressorName string }
		Scheduling  struct{ Manual bool }
		Upload      struct{ ParallelUploadAboveSize int64 }
	}
	p.decode(t, &policy, "policy", "show", "default@default:"+source)
	for _, keep := range []string{"keepLatest", "keepHourly", "keepDaily", "keepWeekly", "keepMonthly", "keepAnnual"} {
		if policy.Retention[keep] != float64(1<<31-1) {
			t.Errorf("%s is %v", keep, policy.Retention[keep])
		}
	}
	if policy.Compression.CompressorName != "none" || !policy.Scheduling.Manual || policy.Upload.ParallelUploadAboveSize != 2<<30 {
		t.Errorf("the policy is %+v", policy)
	}
}

func checkMaintenance(t *testing.T, p program) {
	t.Helper()
	var maintenance struct {
		Owner       string
		Quick, Full struct{ Enabled bool }
	}
	p.decode(t, &maintenance, "maintenance", "info")
	if maintenance.Owner != "default@default" || !maintenance.Quick.Enabled || !maintenance.Full.Enabled {
		t.Errorf("maintenance is %+v, want Velero's", maintenance)
	}
}

// checkMarker: Velero's server from 1.18 on writes the marker when it has completed the repository.
func checkMarker(t *testing.T, repository uploader.Repository) {
	t.Helper()
	markers, err := filepath.Glob(filepath.Join(repository.URL, "udmrepo*"))
	if err != nil || len(markers) > 0 {
		t.Errorf("%v, %v", markers, err)
	}
}

// TestWeReadThePrograms: we restore what kopia's own program has stored in a repository of its own, and continue it.
func TestWeReadThePrograms(t *testing.T) {
	parts.Slow(t) // it needs kopia's program
	t.Parallel()
	volume := t.TempDir()
	if err := tree.Make(volume, tree.Spec{Plain: true, Bytes: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	repository := newAddress(t)
	if err := os.Mkdir(repository.URL, 0o700); err != nil {
		t.Fatal(err)
	}
	p := program{path: parts.Kopia(t), home: t.TempDir(), password: strings.TrimSpace(repository.Password.Reveal())}
	p.run(t, "repository", "create", "filesystem", "--path", repository.URL, "--override-username", "default", "--override-hostname", "default")
	var snapshot struct{ ID string }
	p.decode(t, &snapshot, "snapshot", "create", volume)

	u := newUploader(t, kopia.Options{})
	target := t.TempDir()
	restore(t, u, uploader.RestoreRequest{Repository: repository, Volume: open(t, target), SnapshotID: snapshot.ID})
	differences, err := tree.Compare(volume, target, tree.Options{Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
	again := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: open(t, volume)}, nil)
	if again.BytesUploaded > 1<<20 {
		t.Errorf("sent %d bytes that were there", again.BytesUploaded)
	}
	if err := u.Initialize(t.Context(), repository); err != nil {
		t.Errorf("initialize what the program has made: %v", err)
	}
}
