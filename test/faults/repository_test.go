//go:build faults

package faults

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// What goes wrong with the repository and with the disks that the data goes through.

func TestRepositoryIsLockedByALiveProcess(t *testing.T) {
	r := newRow(t, "repository locked by a live process, restic")
	t.Parallel()
	f, source := smallVolume(t, rig.Restic)
	f.Start("--concurrency=1")
	f.backUp(source, rig.Restic)
	holder := f.holdLock("")

	pvb := f.NewBackup(source, "data", rig.Restic)
	f.Create(pvb)
	owner := fmt.Sprintf("locked exclusively by PID %d on", holder.cmd.Process.Pid)
	f.Until(pvb, "waiting for the owner of the lock", func(v rig.Version) bool {
		return v.Snapshot.State == progress.StateWaiting && strings.Contains(v.Snapshot.Message, owner)
	})
	other := f.Pod("other", "data") // kopia has no locks: this volume has the only slot meanwhile
	f.fillSmall(other, "data", rig.Kopia)
	f.backUp(other, rig.Kopia)
	if v := rig.Last(f.History.Of(pvb)); v.Phase != rig.InProgress || v.Snapshot.State != progress.StateWaiting && v.Snapshot.State != progress.StateQueued {
		t.Errorf("the locked volume did not wait: %v", v)
	}

	since := time.Now()
	holder.release()
	v := f.Complete(pvb)
	r.recovered(since)
	if v.Snapshot.Attempt != 1 {
		t.Errorf("the wait for the lock was counted as %d attempts", v.Snapshot.Attempt)
	}
	f.restoreAndCompare(pvb)
}

func TestRepositoryIsLockedByADeadProcess(t *testing.T) {
	r := newRow(t, "repository locked by a dead process of this host, restic")
	t.Parallel()
	f, source := smallVolume(t, rig.Restic)
	f.Start()
	f.backUp(source, rig.Restic)
	f.holdLock("").kill()
	if len(f.Locks()) != 1 {
		t.Fatalf("the dead process has left the locks %v", f.Locks())
	}

	since := time.Now()
	pvb := f.backUp(source, rig.Restic)
	r.recovered(since)
	for _, v := range f.History.Of(pvb) {
		if v.Snapshot.State == progress.StateWaiting {
			t.Fatalf("it waited for a dead process: %v", v)
		}
	}
	f.restoreAndCompare(pvb)
}

func TestRepositoryIsLockedByAnotherHost(t *testing.T) {
	r := newRow(t, "repository locked by a process of another host, restic")
	t.Parallel()
	f, source := smallVolume(t, rig.Restic)
	f.Start("--lock-wait=6s")
	f.backUp(source, rig.Restic)
	holder := f.holdLock("elsewhere")
	holder.kill() // which nobody can know here

	pvb := f.NewBackup(source, "data", rig.Restic)
	f.Create(pvb)
	v := f.End(pvb)
	if v.Phase != rig.Failed || !strings.Contains(v.Message, "on elsewhere by") || !strings.Contains(v.Message, "restic unlock") {
		t.Errorf("it did not fail with the owner's name and advice: %v", v)
	}
	if locks := f.Locks(); len(locks) != 1 || locks[0] != holder.lock {
		t.Errorf("the lock of the other host was touched: there are %v", locks)
	}

	since := time.Now()
	holder.release()
	f.restoreAndCompare(f.backUp(source, rig.Restic))
	r.recovered(since)
}

// backUp makes a PodVolumeBackup of a volume "data" and waits until it is Completed.
func (f *fixture) backUp(pod *corev1.Pod, uploader string) *velerov1.PodVolumeBackup {
	f.T.Helper()
	pvb := f.NewBackup(pod, "data", uploader)
	f.Create(pvb)
	f.Complete(pvb)
	return pvb
}

// lockHolder is a restic that holds the exclusive lock of the case's repository.
type lockHolder struct {
	t    testing.TB
	cmd  *exec.Cmd
	lock string // the file
}

// holdLock starts a lockHolder on a host, empty for this one. It ends with the test.
func (f *fixture) holdLock(host string) *lockHolder {
	f.T.Helper()
	configs, err := filepath.Glob(filepath.Join(f.Store.Dir, "restic/*/config"))
	if err != nil || len(configs) != 1 {
		f.T.Fatalf("%s has the repositories %v, %v", f.Store.Dir, configs, err)
	}
	args := []string{parts.Restic(f.T, parts.DefaultRestic), "-r", filepath.Dir(configs[0]), "check", "--read-data", "--limit-download=1", "--no-cache"}
	h := &lockHolder{t: f.T, cmd: exec.Command(args[0], args[1:]...)}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if host != "" {
		h.cmd = exec.Command("/bin/sh", append([]string{"-c", `hostname "$0" && exec "$@"`, host}, args...)...)
		h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Cloneflags: unix.CLONE_NEWUTS}
	}
	h.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "RESTIC_PASSWORD=" + rig.Password, "HOME=" + f.Dir, "TMPDIR=" + f.T.TempDir()}
	if err := h.cmd.Start(); err != nil {
		if host != "" {
			f.T.Skipf("*** cannot pretend to be another host: %v ***", err)
		}
		f.T.Fatal(err)
	}
	f.T.Cleanup(h.kill)
	testenv.Eventually(f.T, "a restic holds the exclusive lock", func() bool { return len(f.Locks()) == 1 && !strings.Contains(f.Locks()[0], "-tmp-") })
	h.lock = f.Locks()[0]
	return h
}

// kill ends the process and leaves its lock.
func (h *lockHolder) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait() // it was killed
}

// release removes the lock as the process does when it ends by itself, and ends it.
func (h *lockHolder) release() {
	h.t.Helper()
	if err := os.Remove(h.lock); err != nil {
		h.t.Fatal(err)
	}
	h.kill()
}

// bucketVolume makes a fixture with a bucket as its location, and a pod with a volume "data".
func bucketVolume(t *testing.T, bytes int64) (*fixture, *corev1.Pod) {
	t.Helper()
	server := s3.Start(t)
	f := newFixture(t)
	f.UseBucket(server, server.Bucket(t))
	source := f.Pod("source", "data")
	fillFiles(t, f.Volume(source, "data"), bytes)
	return f, source
}

// bucketBytes is how much is in a volume that goes to a bucket, and bucketSpeed how many bytes a second may go there when
// something shall happen on the way. kopia is slow under the race detector.
var (
	bucketBytes = map[string]int64{rig.Restic: 64 << 20, rig.Kopia: 24 << 20}
	bucketSpeed = map[string]int64{rig.Restic: 8 << 20, rig.Kopia: 3 << 20}
)

// outage is how long a server is away.
const outage = 30 * time.Second

func TestStoreIsUnreachable(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "repository server unreachable for %s in a backup, %s", outage, uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.Start()
			store := f.Store.Proxy
			store.Limit(bucketSpeed[uploader])
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			testenv.Eventually(t, "a part is stored", func() bool { return store.Received.Load() > bucketBytes[uploader]/4 })
			f.loseStore(r, pvb)
			f.Complete(pvb)
			r.sentAgain(store.Received.Load()-rig.Size(t, f.Store.Dir), rig.Size(t, f.Store.Dir))
			store.Limit(0)
			f.restoreAndCompare(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "repository server unreachable for %s in a restore, %s", outage, uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.Start()
			stored := rig.SnapshotOf(f.Complete(f.backUp(source, uploader)))
			store := f.Store.Proxy
			before := store.Sent.Load()
			store.Limit(bucketSpeed[uploader])
			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.Create(pvr)
			testenv.Eventually(t, "a part is restored", func() bool { return store.Sent.Load()-before > bucketBytes[uploader]/4 })
			f.loseStore(r, pvr)
			f.Complete(pvr)
			r.sentAgain(store.Sent.Load()-before-rig.Size(t, f.Store.Dir), rig.Size(t, f.Store.Dir))
			f.CheckRestored(f.Volume(source, "data"), f.Volume(target, "data"), uploader)
		})
	}
}

// loseStore makes the repository's server unreachable for a while, and waits until o goes on.
func (f *fixture) loseStore(r *row, o client.Object) {
	f.T.Helper()
	f.Store.Proxy.Down()
	<-time.After(outage)
	if v := rig.Last(f.History.Of(o)); v.Terminal() {
		f.T.Fatalf("it was given up: %v", v)
	}
	before := rig.Last(f.History.Of(o)).Done
	since := time.Now()
	f.Store.Proxy.Up(f.T)
	f.UntilAfter(o, since, "moving again", func(v rig.Version) bool { return v.Done > before || v.Terminal() })
	r.recovered(since)
}

func TestStoreIsAwayBeforeABackup(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "repository server away before six backups begin, the seventh goes elsewhere, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, 1<<20)
			f.Create(f.DirectoryLocation("elsewhere", t.TempDir()))
			f.Start("--concurrency=1")
			f.backUp(source, uploader)
			f.Store.Proxy.Down()
			away := make([]*velerov1.PodVolumeBackup, 6)
			for i := range away {
				away[i] = f.NewBackup(source, "data", uploader)
				f.Create(away[i])
			}
			healthy := f.NewBackup(source, "data", uploader)
			healthy.Spec.BackupStorageLocation = "elsewhere"
			f.Create(healthy)
			f.Complete(healthy) // with the only slot
			for _, pvb := range away {
				f.Until(pvb, "waiting for its repository", func(v rig.Version) bool {
					return v.Snapshot.State == progress.StateWaiting && v.Snapshot.Reason == v1alpha1.ReasonRepositoryUnavailable
				})
			}
			since := time.Now()
			f.Store.Proxy.Up(t)
			for i, pvb := range away {
				if v := f.Complete(pvb); v.Snapshot.Attempt != 1 {
					t.Errorf("the wait was counted as %d attempts", v.Snapshot.Attempt)
				}
				if i == 0 {
					r.recovered(since)
				}
			}
			f.restoreAndCompare(away[0])
		})
	}
}

func TestStoreFailsNowAndThen(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "each 4th request to the repository server fails, %s", uploader)
			t.Parallel()
			f, source := bucketVolume(t, bucketBytes[uploader])
			f.Start()
			store := f.Store.Proxy
			faults := store.On(testenv.IsAny, eachFourth(rig.Unavailable, internalError, testenv.HangUp, testenv.CutAnswer))
			since := time.Now()
			pvb := f.backUp(source, uploader)
			r.recovered(since)
			r.sentAgain(store.Received.Load()-rig.Size(t, f.Store.Dir), rig.Size(t, f.Store.Dir))
			before := faults.Hits.Load()
			f.restoreAndCompare(pvb)
			if hits := faults.Hits.Load(); before < 8 || hits-before < 8 {
				t.Errorf("only %d and %d requests were made: too few to have failed", before, hits-before)
			}
		})
	}
}

// isData reports whether a store's client stores a pack of data.
func isData(r *http.Request) bool {
	return rig.IsPut(r) && (strings.Contains(r.URL.Path, "/data/") || strings.HasPrefix(path.Base(r.URL.Path), "p"))
}

// eachFourth has one of the faults after the other with each fourth request, and forwards the others.
func eachFourth(faults ...testenv.Fault) testenv.Fault {
	var count atomic.Int64
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		n := int(count.Add(1)) - 1
		if n%4 == 0 {
			faults[n/4%len(faults)](w, r, next)
		} else {
			next.ServeHTTP(w, r)
		}
	}
}

// internalError is the answer of an S3 server that is broken.
func internalError(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = io.WriteString(w, "<Error><Code>InternalError</Code><Message>made by the fault suite</Message></Error>")
}

// fullBytes is the size of volumes that do not fit.
var fullBytes = map[string]int64{rig.Restic: 64 << 20, rig.Kopia: 16 << 20}

func TestRepositoryIsFull(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "disk full in the repository, %s", uploader)
			t.Parallel()
			disk := t.TempDir()
			mountTmpfs(t, disk, fullBytes[uploader]/2)
			f := newFixture(t)
			f.UseDirectory(disk)
			source := f.Pod("source", "data")
			fillFiles(t, f.Volume(source, "data"), fullBytes[uploader])
			a := f.Start()
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			f.endForSpace(a, pvb)

			resizeTmpfs(t, disk)
			since := time.Now()
			f.restoreAndCompare(f.backUp(source, uploader))
			r.recovered(since)
		})
	}
}

func TestCacheIsFull(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			newRow(t, "disk full in the cache, %s", uploader)
			t.Parallel()
			cache := t.TempDir()
			mountTmpfs(t, cache, 128<<10)
			f, source := bucketVolume(t, 8<<20)
			f.Start("--cache-dir=" + cache)
			f.restoreAndCompare(f.backUp(source, uploader))
			f.restoreAndCompare(f.backUp(source, uploader))
		})
	}
}

func TestTargetIsFull(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "disk full in the target volume, %s", uploader)
			t.Parallel()
			f := newFixture(t)
			f.UseDirectory(t.TempDir())
			source := f.Pod("source", "data")
			fillFiles(t, f.Volume(source, "data"), fullBytes[uploader])
			a := f.Start("--download-limit=8000000") // so that going on to the end would take a while
			stored := rig.SnapshotOf(f.Complete(f.backUp(source, uploader)))
			target := f.WaitingPod("target", "data")
			mountTmpfs(t, f.Volume(target, "data"), fullBytes[uploader]/4)
			pvr := f.NewRestore(target, "data", stored)
			f.Create(pvr)
			v := f.endForSpace(a, pvr)
			if v.Done > v.Total*3/4 {
				t.Errorf("a quarter fitted, and it went on to %d of %d", v.Done, v.Total)
			}

			resizeTmpfs(t, f.Volume(target, "data"))
			since := time.Now()
			again := f.NewRestore(target, "data", stored)
			f.Create(again)
			f.Complete(again)
			r.recovered(since)
			f.CheckRestored(f.Volume(source, "data"), f.Volume(target, "data"), uploader)
		})
	}
}

// endForSpace waits for the end of o, which must be at the first sign of a full disk, and say so.
func (f *fixture) endForSpace(a *rig.Agent, o client.Object) rig.Version {
	f.T.Helper()
	v := f.End(o)
	if v.Phase != rig.Failed || !strings.Contains(v.Message, "no space left") || !strings.Contains(v.Message, "make room") {
		f.T.Errorf("a full disk made it end as %v", v)
	}
	if v.Snapshot.Attempt != 1 {
		f.T.Errorf("it was tried %d times to fill the disk", v.Snapshot.Attempt)
	}
	a.Said("reason=NoSpace")
	return v
}

// mountTmpfs makes a small file system, until the test ends. Where it must outlive the checks of a fixture it is to be
// mounted before that is made.
func mountTmpfs(t *testing.T, dir string, bytes int64, options ...string) {
	t.Helper()
	data := strings.Join(append(options, fmt.Sprintf("size=%d", bytes)), ",")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, data); err != nil {
		t.Skipf("*** cannot mount a small file system: %v ***", err)
	}
	t.Cleanup(func() {
		err := unix.Unmount(dir, 0)
		for range 100 { // kubelet tries again, too: the agent looks into volumes for a moment, to see whether the pod has its marker
			if !errors.Is(err, unix.EBUSY) {
				break
			}
			<-time.After(50 * time.Millisecond)
			err = unix.Unmount(dir, 0)
		}
		if err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
}

// resizeTmpfs makes room.
func resizeTmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=512m"); err != nil {
		t.Fatal(err)
	}
}
