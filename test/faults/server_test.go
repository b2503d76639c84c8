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
)

// generation is how the servers of some versions of Velero count the volumes that they wait for
// (contracts/velero-node-agent.md 2.4 and 2.5).
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
	{versions: "1.14.0 to 1.15.2", crds: "1.14.1", uploader: restic, countsLate: true, countsUpdates: true, countsRestores: true},
	{versions: "1.15.3 to 1.16.0", crds: "1.14.1", uploader: kopia, countsUpdates: true, countsRestores: true},
	{versions: "1.16.1 to 1.16.2", crds: "1.16.2", uploader: restic, countsRestores: true},
	{versions: "1.17.0", crds: "1.17.2", uploader: kopia, countsRestores: true, cancels: true},
	{versions: "1.17.1 to 1.18.2", crds: "1.17.2", uploader: kopia, cancels: true},
	{versions: "1.18.3", crds: "1.18.3", uploader: kopia, countsCanceled: true, cancels: true},
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
	f.t.Helper()
	s := &server{
		generation: v, f: f, changed: make(chan struct{}),
		backups: map[types.UID]*velerov1.PodVolumeBackup{}, restores: map[types.UID]int{}, seen: map[types.UID]string{},
	}
	informers, err := cache.New(apiServer(f.t, v.crds), cache.Options{
		Scheme: f.client.Scheme(), DefaultNamespaces: map[string]cache.Config{f.ns: {}},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.context())
	var running sync.WaitGroup
	running.Go(func() { _ = informers.Start(ctx) }) // ends with ctx only
	f.t.Cleanup(func() {                            // once the agents have ended
		s.settle()
		cancel()
		running.Wait()
		s.check()
	})
	backups, err := informers.GetInformer(ctx, &velerov1.PodVolumeBackup{})
	if err != nil {
		f.t.Fatal(err)
	}
	restores, err := informers.GetInformer(ctx, &velerov1.PodVolumeRestore{})
	if err != nil {
		f.t.Fatal(err)
	}
	// Servers look at updates only: neither at new objects nor at deleted ones.
	_, err = backups.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) {
		s.backupUpdated(now.(*velerov1.PodVolumeBackup))
	}})
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = restores.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, now any) {
		s.restoreUpdated(before.(*velerov1.PodVolumeRestore), now.(*velerov1.PodVolumeRestore))
	}})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// lateness is how long a create call may take to return to the server, as seen by a node agent that is quick.
const lateness = 1500 * time.Millisecond

// createBackup creates a PodVolumeBackup and counts it.
func (s *server) createBackup(pvb *velerov1.PodVolumeBackup) {
	s.f.t.Helper()
	if !s.countsLate {
		s.add(1)
		s.f.create(pvb)
		return
	}
	s.f.create(pvb)
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
	if pvb.Labels[velerov1.BackupUIDLabel] != string(s.f.backup.UID) || !isTerminal(phase) || (phase == canceled && !s.countsCanceled) {
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
	if !isTerminal(string(now.Status.Phase)) || (!s.countsRestores && before.Status.Phase == now.Status.Phase) {
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
	s.f.t.Helper()
	if !s.until(limit, func() bool { return s.waiting <= 0 }) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.backups))
}

// waitForRestores waits until some PodVolumeRestores were counted.
func (s *server) waitForRestores(n int) {
	s.f.t.Helper()
	if !s.until(patience, func() bool { return len(s.restores) >= n }) {
		s.f.t.Fatalf("the server hangs: %d of %d PodVolumeRestores have ended for it", len(s.restores), n)
	}
}

// until waits until a condition holds, which is asked under the lock, and says whether it did in time.
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
	s.f.t.Helper()
	var objects []client.Object
	var backups velerov1.PodVolumeBackupList
	var restores velerov1.PodVolumeRestoreList
	for _, list := range []client.ObjectList{&backups, &restores} {
		if err := s.f.client.List(s.f.context(), list, client.InNamespace(s.f.ns)); err != nil {
			s.f.t.Error(err)
		}
	}
	for i := range backups.Items {
		objects = append(objects, &backups.Items[i])
	}
	for i := range restores.Items {
		objects = append(objects, &restores.Items[i])
	}
	for _, o := range objects {
		await(s.f.t, "the server has seen the last update of "+o.GetName(), func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.seen[o.GetUID()] == o.GetResourceVersion()
		})
	}
}

// check holds that the server has not crashed, and that no restore was counted twice.
func (s *server) check() {
	s.f.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, n := range s.restores {
		if n > 1 {
			s.problems = append(s.problems, fmt.Sprintf("PodVolumeRestore %s was counted %d times: the server hangs", uid, n))
		}
	}
	for _, p := range s.problems {
		s.f.t.Errorf("a server of Velero %s: %s", s.versions, p)
	}
}

func TestServersCount(t *testing.T) {
	t.Parallel()
	for _, v := range generations {
		t.Run(v.versions, func(t *testing.T) {
			newRow(t, "quirks of the server of Velero %s, %s", v.versions, v.uploader)
			t.Parallel()
			f := newFixtureOn(t, v.crds)
			f.useDirectory(t.TempDir())
			server := f.newServer(v)
			f.start("--concurrency=2", "--upload-limit=6000000", "--download-limit=6000000")
			stored := serverBacksUp(f, server)
			serverRestores(f, server, stored)
		})
	}
}

// slowBytes take a while at the speed of TestServersCount.
const slowBytes = 24 << 20

// makeUnreadable puts a file into a volume that nobody can read.
func (f *fixture) makeUnreadable(pod *corev1.Pod, volume string) {
	f.t.Helper()
	file := filepath.Join(f.volume(pod, volume), "unreadable")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/mem", file, "", unix.MS_BIND, ""); err != nil {
		f.t.Skipf("*** cannot make an unreadable file: %v ***", err)
	}
	f.t.Cleanup(func() {
		if err := unix.Unmount(file, 0); err != nil {
			f.t.Errorf("unmount %s: %v", file, err)
		}
	})
}

// serverBacksUp makes PodVolumeBackups that end in all ways, and waits for them as the server does. It returns the
// snapshot of one that takes a while to restore.
func serverBacksUp(f *fixture, s *server) snapshot {
	f.t.Helper()
	source := f.pod("source", "large", "small", "empty", "partial")
	fillFiles(f.t, f.volume(source, "large"), slowBytes)
	f.fillSmall(source, "small", s.uploader)
	f.fillSmall(source, "partial", s.uploader)
	want := map[string]string{"large": completed, "small": completed, "empty": completed, "partial": completed, "missing": failed}
	f.makeUnreadable(source, "partial")
	backups := map[string]*velerov1.PodVolumeBackup{}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		backups[name] = f.newBackup(source, name, s.uploader)
		s.createBackup(backups[name])
	}
	if s.cancels {
		other := f.pod("canceled", "canceled")
		fillFiles(f.t, f.volume(other, "canceled"), slowBytes)
		backups["canceled"], want["canceled"] = f.newBackup(other, "canceled", s.uploader), failed
		s.createBackup(backups["canceled"])
		f.until(backups["canceled"], "in progress", func(v version) bool { return v.phase == inProgress })
		f.patch(backups["canceled"], `{"spec":{"cancel":true}}`)
	}
	records := s.waitForBackups(patience)
	got := map[string]string{}
	for _, pvb := range records {
		got[pvb.Spec.Volume] = string(pvb.Status.Phase)
	}
	if !maps.Equal(got, want) {
		f.t.Fatalf("the server of Velero %s has got %v, want %v", s.versions, got, want)
	}
	for name, pvb := range backups {
		// What is in the terminal version is what a server stores.
		status := f.end(pvb).object.(*velerov1.PodVolumeBackup).Status
		if (status.SnapshotID == "") != (want[name] == failed || name == "empty") || status.CompletionTimestamp == nil || status.StartTimestamp == nil {
			f.t.Errorf("%s ended with %+v", name, status)
		}
	}
	if v := f.end(backups["partial"]); v.snapshot.Errors != 1 {
		f.t.Errorf("the volume with one unreadable file ended as %v", v)
	}
	return snapshotOf(f.complete(backups["large"]))
}

// serverRestores makes PodVolumeRestores that end in all ways, and waits for them as the server does.
func serverRestores(f *fixture, s *server, stored snapshot) {
	f.t.Helper()
	target := f.waitingPod("target", "large", "failed", "canceled")
	unknown := stored
	unknown.id = "0123456789abcdef0123456789abcdef"
	restores := map[string]*velerov1.PodVolumeRestore{
		"large": f.newRestore(target, "large", stored), "failed": f.newRestore(target, "failed", unknown),
	}
	want := map[string]string{"large": completed, "failed": failed}
	for _, pvr := range restores {
		f.create(pvr)
	}
	if s.cancels {
		restores["canceled"], want["canceled"] = f.newRestore(target, "canceled", stored), canceled
		f.create(restores["canceled"])
		f.until(restores["canceled"], "in progress", func(v version) bool { return v.phase == inProgress })
		f.patch(restores["canceled"], `{"spec":{"cancel":true}}`)
	}
	s.waitForRestores(len(restores))
	for name, pvr := range restores {
		if v := f.end(pvr); v.phase != want[name] {
			f.t.Errorf("%s ended as %v", name, v)
		}
	}
}
