//go:build faults

package faults

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// generation is how the servers of some versions of Velero count the volumes that they wait for
// (docs/contracts/velero-node-agent.md 2.4 and 2.5).
type generation struct {
	versions string
	crds     string // the version whose CRDs are used
	uploader string // the one that these servers make PodVolumeBackups for

	countsLate     bool // a PodVolumeBackup only when its create call has returned, which may take
	countsUpdates  bool // each update of a terminal PodVolumeBackup, and panics when there are too many
	countsCanceled bool // Canceled PodVolumeBackups at all
	countsRestores bool // each update of a terminal PodVolumeRestore, and hangs when there are too many
	cancels        bool // there is spec.cancel, and phase Canceled
}

var generations = []generation{
	{versions: "1.14.0 to 1.15.2", crds: "1.14.1", uploader: rig.Restic, countsLate: true, countsUpdates: true, countsRestores: true},
	{versions: "1.15.3 to 1.16.0", crds: "1.14.1", uploader: rig.Kopia, countsUpdates: true, countsRestores: true},
	{versions: "1.16.1 to 1.16.2", crds: "1.16.2", uploader: rig.Restic, countsRestores: true},
	{versions: "1.17.0", crds: "1.17.2", uploader: rig.Kopia, countsRestores: true, cancels: true},
	{versions: "1.17.1 to 1.18.2", crds: "1.17.2", uploader: rig.Kopia, cancels: true},
	{versions: "1.18.3", crds: "1.18.3", uploader: rig.Kopia, countsCanceled: true, cancels: true},
}

// server is a Velero server, as far as it waits for node agents.
type server struct {
	generation
	f *fixture

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced with each count
	waiting  int           // the counter of the server's WaitGroup
	backups  map[types.UID]*velerov1.PodVolumeBackup
	restores map[types.UID]int    // how often each was counted
	seen     map[types.UID]string // the resource version of the last update of each object
	problems []string
}

// newServer starts a server that watches the fixture's namespace until the test ends. It is checked then.
func (f *fixture) newServer(v generation) *server {
	f.T.Helper()
	s := &server{
		generation: v, f: f, changed: make(chan struct{}),
		backups: map[types.UID]*velerov1.PodVolumeBackup{}, restores: map[types.UID]int{}, seen: map[types.UID]string{},
	}
	informers, err := cache.New(f.Config, cache.Options{
		Scheme: f.Client.Scheme(), DefaultNamespaces: map[string]cache.Config{f.Namespace: {}},
	})
	if err != nil {
		f.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = informers.Start(ctx) }) // ends with ctx only
	f.T.Cleanup(func() {                            // once the agents have ended
		s.settle()
		cancel()
		running.Wait()
		s.check()
	})
	backups, err := informers.GetInformer(ctx, &velerov1.PodVolumeBackup{})
	if err != nil {
		f.T.Fatal(err)
	}
	restores, err := informers.GetInformer(ctx, &velerov1.PodVolumeRestore{})
	if err != nil {
		f.T.Fatal(err)
	}
	// Servers look at updates only: neither at new objects nor at deleted ones.
	_, err = backups.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) {
		s.backupUpdated(now.(*velerov1.PodVolumeBackup))
	}})
	if err != nil {
		f.T.Fatal(err)
	}
	_, err = restores.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, now any) {
		s.restoreUpdated(before.(*velerov1.PodVolumeRestore), now.(*velerov1.PodVolumeRestore))
	}})
	if err != nil {
		f.T.Fatal(err)
	}
	return s
}

// lateness is how long a create call may take to return to the server, as seen by a node agent that is quick.
const lateness = 1500 * time.Millisecond

// createBackup creates a PodVolumeBackup and counts it.
func (s *server) createBackup(pvb *velerov1.PodVolumeBackup) {
	s.f.T.Helper()
	if !s.countsLate {
		s.add(1)
		s.f.Create(pvb)
		return
	}
	s.f.Create(pvb)
	<-time.After(lateness)
	s.add(1)
}

func (s *server) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting += n; s.waiting < 0 {
		s.problems = append(s.problems, "sync: negative WaitGroup counter: the server has crashed")
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) backupUpdated(pvb *velerov1.PodVolumeBackup) {
	defer s.saw(pvb)
	phase := string(pvb.Status.Phase)
	if pvb.Labels[velerov1.BackupUIDLabel] != string(s.f.Backup.UID) || !rig.IsTerminal(phase) || (phase == rig.Canceled && !s.countsCanceled) {
		return
	}
	s.mu.Lock()
	known := s.backups[pvb.UID] != nil
	s.backups[pvb.UID] = pvb
	s.mu.Unlock()
	if !known || s.countsUpdates {
		s.add(-1)
	}
}

func (s *server) restoreUpdated(before, now *velerov1.PodVolumeRestore) {
	defer s.saw(now)
	if !rig.IsTerminal(string(now.Status.Phase)) || (!s.countsRestores && before.Status.Phase == now.Status.Phase) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restores[now.UID]++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) saw(o client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[o.GetUID()] = o.GetResourceVersion()
}

// waitForBackups waits for all PodVolumeBackups, and returns what would be stored of them: nothing if it took too long.
func (s *server) waitForBackups(limit time.Duration) []*velerov1.PodVolumeBackup {
	s.f.T.Helper()
	if !s.until(limit, func() bool { return s.waiting <= 0 }) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.backups))
}

// waitForRestores waits until some PodVolumeRestores were counted.
func (s *server) waitForRestores(n int) {
	s.f.T.Helper()
	if !s.until(testenv.Patience, func() bool { return len(s.restores) >= n }) {
		s.f.T.Fatalf("the server hangs: %d of %d PodVolumeRestores have ended for it", len(s.restores), n)
	}
}

// until waits until a condition holds, which is asked under the lock, and reports whether it did in time.
func (s *server) until(limit time.Duration, holds func() bool) bool {
	timeout := time.After(limit)
	for {
		s.mu.Lock()
		ok, changed := holds(), s.changed
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-timeout:
			return false
		}
	}
}

// settle waits until the server has seen all there is to see.
func (s *server) settle() {
	s.f.T.Helper()
	var objects []client.Object
	var backups velerov1.PodVolumeBackupList
	var restores velerov1.PodVolumeRestoreList
	for _, list := range []client.ObjectList{&backups, &restores} {
		if err := s.f.Client.List(s.f.Context(), list, client.InNamespace(s.f.Namespace)); err != nil {
			s.f.T.Error(err)
		}
	}
	for i := range backups.Items {
		objects = append(objects, &backups.Items[i])
	}
	for i := range restores.Items {
		objects = append(objects, &restores.Items[i])
	}
	for _, o := range objects {
		testenv.Eventually(s.f.T, "the server has seen the last update of "+o.GetName(), func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.seen[o.GetUID()] == o.GetResourceVersion()
		})
	}
}

// check holds that the server has not crashed, and that no restore was counted twice.
func (s *server) check() {
	s.f.T.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, n := range s.restores {
		if n > 1 {
			s.problems = append(s.problems, fmt.Sprintf("PodVolumeRestore %s was counted %d times: the server hangs", uid, n))
		}
	}
	for _, p := range s.problems {
		s.f.T.Errorf("a server of Velero %s: %s", s.versions, p)
	}
}

func TestServersCount(t *testing.T) {
	t.Parallel()
	for _, v := range generations {
		t.Run(v.versions, func(t *testing.T) {
			newRow(t, "quirks of the server of Velero %s, %s", v.versions, v.uploader)
			t.Parallel()
			f := newFixtureOn(t, v.crds)
			f.UseDirectory(t.TempDir())
			server := f.newServer(v)
			f.Start("--concurrency=2", "--upload-limit=6000000", "--download-limit=6000000")
			stored := serverBacksUp(f, server)
			serverRestores(f, server, stored)
		})
	}
}

// slowBytes take a while at the speed of TestServersCount.
const slowBytes = 24 << 20

// makeUnreadable puts a file into a volume that nobody can read.
func (f *fixture) makeUnreadable(pod *corev1.Pod, volume string) {
	f.T.Helper()
	file := filepath.Join(f.Volume(pod, volume), "unreadable")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		f.T.Fatal(err)
	}
	if err := unix.Mount("/proc/self/mem", file, "", unix.MS_BIND, ""); err != nil {
		f.T.Skipf("*** cannot make an unreadable file: %v ***", err)
	}
	f.T.Cleanup(func() {
		if err := unix.Unmount(file, 0); err != nil {
			f.T.Errorf("unmount %s: %v", file, err)
		}
	})
}

// serverBacksUp makes PodVolumeBackups that end in all ways, and waits for them as the server does. It returns the
// snapshot of one that takes a while to restore.
func serverBacksUp(f *fixture, s *server) rig.Snapshot {
	f.T.Helper()
	source := f.Pod("source", "large", "small", "empty", "partial")
	fillFiles(f.T, f.Volume(source, "large"), slowBytes)
	f.fillSmall(source, "small", s.uploader)
	f.fillSmall(source, "partial", s.uploader)
	want := map[string]string{"large": rig.Completed, "small": rig.Completed, "empty": rig.Completed, "partial": rig.Completed, "missing": rig.Failed}
	f.makeUnreadable(source, "partial")
	backups := map[string]*velerov1.PodVolumeBackup{}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		backups[name] = f.NewBackup(source, name, s.uploader)
		s.createBackup(backups[name])
	}
	if s.cancels {
		other := f.Pod("canceled", "canceled")
		fillFiles(f.T, f.Volume(other, "canceled"), slowBytes)
		backups["canceled"], want["canceled"] = f.NewBackup(other, "canceled", s.uploader), rig.Failed
		s.createBackup(backups["canceled"])
		f.Until(backups["canceled"], "in progress", func(v rig.Version) bool { return v.Phase == rig.InProgress })
		f.Patch(backups["canceled"], `{"spec":{"cancel":true}}`)
	}
	records := s.waitForBackups(testenv.Patience)
	got := map[string]string{}
	for _, pvb := range records {
		got[pvb.Spec.Volume] = string(pvb.Status.Phase)
	}
	if !maps.Equal(got, want) {
		f.T.Fatalf("the server of Velero %s has got %v, want %v", s.versions, got, want)
	}
	for name, pvb := range backups {
		// What is in the terminal version is what a server stores.
		status := f.End(pvb).Object.(*velerov1.PodVolumeBackup).Status
		if (status.SnapshotID == "") != (want[name] == rig.Failed || name == "empty") || status.CompletionTimestamp == nil || status.StartTimestamp == nil {
			f.T.Errorf("%s ended with %+v", name, status)
		}
	}
	if v := f.End(backups["partial"]); v.Snapshot.Errors != 1 {
		f.T.Errorf("the volume with one unreadable file ended as %v", v)
	}
	return rig.SnapshotOf(f.Complete(backups["large"]))
}

// serverRestores makes PodVolumeRestores that end in all ways, and waits for them as the server does.
func serverRestores(f *fixture, s *server, stored rig.Snapshot) {
	f.T.Helper()
	target := f.WaitingPod("target", "large", "failed", "canceled")
	unknown := stored
	unknown.ID = "0123456789abcdef0123456789abcdef"
	restores := map[string]*velerov1.PodVolumeRestore{
		"large": f.NewRestore(target, "large", stored), "failed": f.NewRestore(target, "failed", unknown),
	}
	want := map[string]string{"large": rig.Completed, "failed": rig.Failed}
	for _, pvr := range restores {
		f.Create(pvr)
	}
	if s.cancels {
		restores["canceled"], want["canceled"] = f.NewRestore(target, "canceled", stored), rig.Canceled
		f.Create(restores["canceled"])
		f.Until(restores["canceled"], "in progress", func(v rig.Version) bool { return v.Phase == rig.InProgress })
		f.Patch(restores["canceled"], `{"spec":{"cancel":true}}`)
	}
	s.waitForRestores(len(restores))
	for name, pvr := range restores {
		if v := f.End(pvr); v.Phase != want[name] {
			f.T.Errorf("%s ended as %v", name, v)
		}
	}
}
