//go:build faults

package faults

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// What goes wrong while 'kubectl plimsoll repository get' brings a file, or a directory, of a backup. What has its name in the end is whole;
// until then nothing has it.

// library is a backup of a volume with a large file, and a directory of somebody who gets it.
type library struct {
	*bench

	kubeconfig string
	dest       string
}

const (
	// hugeFile is of several pieces. In an archive of the volume it comes behind the files of a bench.
	hugeFile  = "rest.img"
	hugeBytes = 16 << 20
	// servingSpeed is how many bytes come from the storage in a second, so that there is a middle.
	servingSpeed = 4 << 20
)

// served are the paths that are got: of a file, and of the volume's top directory.
var served = []string{hugeFile, ""}

// newLibrary makes a library in a directory, or in a bucket behind a proxy. Nobody serves it yet.
func newLibrary(t *testing.T, uploader string, bucket bool) *library {
	t.Helper()
	b := newBench(t, uploader, bucket)
	content := make([]byte, hugeBytes)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content) // never fails
	if err := os.WriteFile(filepath.Join(b.Volume(b.source, "data"), hugeFile), content, 0o600); err != nil {
		t.Fatal(err)
	}
	b.kept = b.backUpOwn()
	b.agent.Stop()
	b.PodOfThisProcess(rig.TasksPod)
	return &library{b, testenv.Kubeconfig(t, b.Config), t.TempDir()}
}

// getting is a 'repository get' that runs.
type getting struct {
	t     testing.TB
	cmd   *exec.Cmd
	said  bytes.Buffer // to be read when ended is closed, as is err
	ended chan struct{}
	err   error
}

// get begins to get a path of the volume.
func (l *library) get(path string) *getting {
	l.T.Helper()
	g := &getting{t: l.T, ended: make(chan struct{})}
	g.cmd = exec.Command(filepath.Join(filepath.Dir(rig.AgentProgram()), "kubectl-plimsoll"),
		"--kubeconfig", l.kubeconfig, "--namespace", l.Namespace, "repository", "get", "--from", l.kept.Name, "-o", l.dest, path)
	g.cmd.Env = []string{"HOME=" + l.T.TempDir()}
	g.cmd.Stdout, g.cmd.Stderr = &g.said, &g.said
	if err := g.cmd.Start(); err != nil {
		l.T.Fatal(err)
	}
	go func() {
		defer close(g.ended)
		g.err = g.cmd.Wait()
	}()
	l.T.Cleanup(func() {
		_ = g.cmd.Process.Kill() // it may have ended
		<-g.ended
	})
	return g
}

func (g *getting) hasEnded() bool {
	select {
	case <-g.ended:
		return true
	default:
		return false
	}
}

// await waits for the end of the command, and returns its exit code and what it has said.
func (g *getting) await() (code int, said string) {
	g.t.Helper()
	testenv.Eventually(g.t, "the end of repository get", g.hasEnded)
	exit := &exec.ExitError{}
	if g.err != nil && !errors.As(g.err, &exit) {
		g.t.Fatal(g.err)
	}
	return g.cmd.ProcessState.ExitCode(), g.said.String()
}

// target is the name that a path of the volume has here.
func (l *library) target(path string) string {
	if path == "" {
		return filepath.Join(l.dest, "data")
	}
	return filepath.Join(l.dest, path)
}

// midway waits until some of the large file has come.
func (l *library) midway(g *getting) {
	l.T.Helper()
	testenv.Eventually(l.T, "the middle of what is got", func() bool { return rig.Size(l.T, l.dest) > taskBytes*3/2 || g.hasEnded() })
	if g.hasEnded() {
		l.T.Fatalf("it had no middle: %s", g.said.String())
	}
}

// refused holds that the command fails and says why, and that nothing has the name of what it was to get.
func (l *library) refused(g *getting, path string, says ...string) {
	l.T.Helper()
	code, said := g.await()
	if code == 0 {
		l.T.Errorf("%q was got: %s", path, said)
	}
	for _, text := range says {
		if !strings.Contains(said, text) {
			l.T.Errorf("of %q it does not say %q: %s", path, text, said)
		}
	}
	l.absent(path)
}

// absent holds that nothing has the name of what is to be got.
func (l *library) absent(path string) {
	l.T.Helper()
	if _, err := os.Lstat(l.target(path)); !errors.Is(err, os.ErrNotExist) {
		l.T.Errorf("%q is there: %v", path, err)
	}
}

// arrives holds that the command ends well, that what it has got is what is in the volume, and that nothing else is left. It removes that.
func (l *library) arrives(g *getting, path string) {
	l.T.Helper()
	if code, said := g.await(); code != 0 || !strings.Contains(said, "checksum verified") {
		l.T.Fatalf("%q was not got: code %d: %s", path, code, said)
	}
	if out, err := exec.Command("diff", "-r", filepath.Join(l.Volume(l.source, "data"), path), l.target(path)).CombinedOutput(); err != nil {
		l.T.Errorf("%q is not what was backed up: %v\n%.1000s", path, err, out)
	}
	if left := names(l.T, l.dest); len(left) != 1 {
		l.T.Errorf("left behind: %q", left)
	}
	if err := os.RemoveAll(l.target(path)); err != nil {
		l.T.Fatal(err)
	}
}

// gets gets a path of the volume.
func (l *library) gets(path string) {
	l.T.Helper()
	l.arrives(l.get(path), path)
}

// closed holds that no FileRequest is left, nor a lock or damage in the repository.
func (l *library) closed() {
	l.T.Helper()
	l.Eventually("no FileRequest is left", func() bool {
		var left v1alpha1.FileRequestList
		if err := l.Client.List(l.Context(), &left, client.InNamespace(l.Namespace)); err != nil {
			l.T.Fatal(err)
		}
		return len(left.Items) == 0
	})
	l.completes(v1alpha1.TaskPrune) // a reader that was killed leaves a lock, which the prune removes
	if r := l.completes(v1alpha1.TaskCheck).Repositories[0]; r.Result != v1alpha1.RepositoryWhole {
		l.T.Errorf("%+v", r)
	}
}

func TestFileServerIsKilled(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "process killed while it serves a file and a directory, %s", uploader)
		t.Parallel()
		l := newLibrary(t, uploader, true)
		for _, path := range served {
			tasks := l.StartTasks(nil, alone)
			l.Store.Proxy.Limit(servingSpeed)
			g := l.get(path)
			l.midway(g)
			tasks.Kill()
			testenv.Eventually(t, "no worker survives its process", func() bool { return !l.hasWorker() })
			l.Store.Proxy.Limit(0)
			l.refused(g, path, "the connection to the files has ended before the answer was complete", "run the command again")
			kept := rig.Size(t, l.dest)

			since := time.Now()
			next := l.StartTasks(nil, alone)
			if kept < taskBytes {
				t.Errorf("of %q %d bytes are kept for the next command", path, kept)
			}
			l.gets(path)
			r.recovered(since)
			next.Stop()
		}
		l.StartTasks(nil, alone)
		l.closed()
	})
}

// TestFileServerLosesItsBucket: the command that runs completes when the bucket is back.
func TestFileServerLosesItsBucket(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "repository server unreachable for %s while a file and a directory are served, %s", taskOutage, uploader)
		t.Parallel()
		l := newLibrary(t, uploader, true)
		l.StartTasks(nil)
		for _, path := range served {
			l.Store.Proxy.Limit(servingSpeed)
			g := l.get(path)
			l.midway(g)
			l.Store.Proxy.Down()
			l.Store.Proxy.Limit(0)
			<-time.After(taskOutage)
			l.absent(path)
			l.Store.Proxy.Up(t)
			since := time.Now()
			l.arrives(g, path)
			r.recovered(since)
		}
		l.closed()
	})
}

// TestFilesWithAWrongPassword: what an interrupted command has kept stays, and is gone on with when the password is right.
func TestFilesWithAWrongPassword(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "file and directory got with a wrong password, %s", uploader)
		t.Parallel()
		l := newLibrary(t, uploader, true)
		l.StartTasks(nil)
		secret := &corev1.Secret{ObjectMeta: l.Meta("velero-repo-credentials")}
		for _, path := range served {
			before := l.files()
			l.Store.Proxy.Limit(servingSpeed)
			g := l.get(path)
			l.midway(g)
			if err := g.cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			l.refused(g, path)
			l.Store.Proxy.Limit(0)
			kept := names(t, l.dest)
			l.Patch(secret, `{"stringData":{"repository-password":"wrong"}}`)
			l.refused(l.get(path), path, "wrong repository password")
			if left := names(t, l.dest); strings.Join(left, " ") != strings.Join(kept, " ") || len(kept) == 0 {
				t.Errorf("%q was kept, and %q is left", kept, left)
			}
			l.Patch(secret, `{"stringData":{"repository-password":"`+rig.Password+`"}}`)
			since := time.Now()
			l.gets(path)
			r.recovered(since)
			l.Eventually("no reader holds a lock", func() bool { return len(l.Locks()) == 0 })
			l.unchanged(before)
		}
		l.closed()
	})
}

// TestFileOfADamagedPack: no byte of a damaged piece arrives, and the command names the pack, or the file. When the pack is as it was, the next command
// goes on with what came before.
func TestFileOfADamagedPack(t *testing.T) {
	eachUploader(t, func(t *testing.T, uploader string) {
		r := newRow(t, "file and directory got out of a damaged pack, then without it, %s", uploader)
		t.Parallel()
		l := newLibrary(t, uploader, false)
		l.StartTasks(nil)
		for _, path := range served {
			pack, undo, err := tree.FlipLargest(l.repository(), map[string]string{rig.Restic: "data/", rig.Kopia: "p"}[uploader])
			if err != nil {
				t.Fatal(err)
			}
			says := map[string]string{rig.Restic: filepath.Base(pack)[:8], rig.Kopia: hugeFile}[uploader]
			l.refused(l.get(path), path, says)
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			away := filepath.Join(t.TempDir(), "pack")
			if err := os.Rename(pack, away); err != nil {
				t.Fatal(err)
			}
			l.refused(l.get(path), path, says)
			if err := os.Rename(away, pack); err != nil {
				t.Fatal(err)
			}
			since := time.Now()
			l.gets(path)
			r.recovered(since)
		}
		l.closed()
	})
}
