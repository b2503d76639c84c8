//go:build chaos

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

const (
	// limit is how long an operation may take to its end, with all its faults, on a machine that is very busy.
	limit = 4 * time.Minute
	// volumeName is the name of each pod's volume.
	volumeName = "data"
)

// run is one run of a plan.
type run struct {
	t        *recorder
	p        plan
	f        *rig.Fixture
	sabotage sabotage

	mu    sync.Mutex // held while an agent begins or ends
	agent *rig.Agent
	down  bool       // a fault has ended the agent, and will start the next
	clock *rig.Clock // of the agent, if it can be set

	repo     *mount // nil unless the repository is in a FUSE directory
	volumes  map[operation]*mount
	mounts   []*mount
	kubelets []*kubelet
	object   client.Object
}

// play runs a plan. What it finds are the recorder's violations.
func play(t *recorder, p plan, server *s3.Server, s sabotage) {
	r := &run{t: t, p: p, sabotage: s, volumes: map[operation]*mount{}}
	r.f = rig.NewFixture(t)
	r.f.SharedStore = true // a killed agent may leave a lock, as docs/faults.md says
	t.Cleanup(r.clean)
	r.setUpStore(server)
	source := r.pod("source", p.source, backup)
	if err := p.volume.fill(r.volumes[backup].dir); err != nil {
		t.Fatalf("fill the volume: %v", err)
	}
	r.startAgent()
	stored, ok := r.backUp(source)
	if !ok {
		return
	}
	if r.restore("target", p.target, stored, p.restore) {
		return
	}
	r.restore("second", onDisk, stored, nil) // what was stored must be there, whatever happened to the first restore
}

func (r *run) setUpStore(server *s3.Server) {
	switch r.p.store {
	case inBucket:
		r.f.UseBucket(server, server.Bucket(r.t))
		return
	case inFUSE:
		dir := filepath.Join(r.f.Dir, "repository")
		if err := os.Mkdir(dir, 0o755); err != nil {
			r.t.Fatal(err)
		}
		r.repo = newMount(r.t, onFUSE, dir, dir+"-backing")
		r.mounts = append(r.mounts, r.repo)
		r.f.UseDirectory(dir)
		return
	}
	r.f.UseDirectory(r.t.TempDir())
}

// pod makes a pod with a volume on which something is mounted.
func (r *run) pod(name, kind string, op operation) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.f.Namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName:       r.f.Node,
			InitContainers: []corev1.Container{{Name: "restore-wait", Image: "agent"}},
			Containers:     []corev1.Container{{Name: "main", Image: "main"}},
		},
	}
	source, plugin := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, "kubernetes.io~empty-dir/"+volumeName
	if kind != onDisk {
		source, plugin = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "chaos.example.com"}}, "kubernetes.io~csi/"+volumeName+"/mount"
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: volumeName, VolumeSource: source}}
	r.f.Create(pod)
	dir := filepath.Join(r.f.HostPods, string(pod.UID), "volumes", plugin)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	r.volumes[op] = newMount(r.t, kind, dir, filepath.Join(r.f.Dir, name+"-backing"))
	r.mounts = append(r.mounts, r.volumes[op])
	return pod
}

// backUp runs the backup, and returns what it has stored, if it has.
func (r *run) backUp(pod *corev1.Pod) (rig.Snapshot, bool) {
	before := r.listing(backup)
	stop := make(chan struct{})
	var changing sync.WaitGroup
	if r.p.volume.changing {
		changing.Go(func() { change(r.volumes[backup].files(), r.p.seed, stop) })
	}
	pvb := r.f.NewBackup(pod, volumeName, r.p.uploader)
	v := r.operate(backup, pvb, r.p.backup)
	close(stop)
	changing.Wait()
	r.judgeSource(before)
	r.judgeEnd(backup, v, r.p.backup)
	if v.Phase != rig.Completed {
		return rig.Snapshot{}, false
	}
	r.judgeUnreadable(v)
	return rig.SnapshotOf(v), true
}

// restore runs a restore into a pod of its own, and reports whether it was completed.
func (r *run) restore(name, kind string, stored rig.Snapshot, faults []fault) bool {
	target := r.pod(name, kind, restore)
	k := r.startKubelet(target, r.volumes[restore].dir)
	pvr := r.f.NewRestore(target, volumeName, stored)
	k.uid = string(pvr.OwnerReferences[0].UID)
	k.begin()
	v := r.operate(restore, pvr, faults)
	r.judgeEnd(restore, v, faults)
	if v.Phase == rig.Completed {
		r.sabotage.strike(r)
		r.judgeRestored(k)
	} else {
		r.judgeNotRestored(k)
	}
	return v.Phase == rig.Completed
}

// operate lets the agent do an operation while the faults strike, and returns its end.
func (r *run) operate(op operation, o client.Object, faults []fault) rig.Version {
	r.object = o
	ended := make(chan struct{})
	var going sync.WaitGroup
	w := newWatcher(r, op)
	// The first write to an object comes after Create has returned its name.
	created := make(chan struct{})
	for _, f := range faults {
		reached, struck := w.await(f.at)
		going.Go(func() { r.letHappen(f, op, created, reached, struck, ended) })
	}
	w.begin()
	r.f.Create(o)
	close(created)
	defer r.logVersions(o)
	v := r.awaitEnd(op, o)
	close(ended)
	going.Wait()
	w.end()
	r.startAgent() // if the last fault has ended it
	return v
}

// letHappen lets a fault strike when its event is there, and heals it.
func (r *run) letHappen(f fault, op operation, created, reached <-chan struct{}, struck chan<- struct{}, ended <-chan struct{}) {
	<-created
	select {
	case <-reached:
	case <-ended:
		close(struck)
		return
	}
	r.t.Logf("%s strikes", f)
	tally.strikes(f.kind.name)
	heal := f.kind.strike(r, f, op)
	close(struck)
	if heal == nil {
		return
	}
	if f.kind.recoverable {
		select {
		case <-time.After(f.lasts):
		case <-ended:
		}
	} else {
		<-ended
	}
	heal()
}

// awaitEnd waits for the terminal version of an object.
func (r *run) awaitEnd(op operation, o client.Object) rig.Version {
	deadline := time.After(r.sabotage.limit())
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if v := rig.Last(r.f.History.Of(o)); v.Terminal() {
			return v
		}
		r.restartAgent()
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("the %s did not end: %v", op, rig.Last(r.f.History.Of(o)))
		}
	}
}

// logVersions logs what was said of an object.
func (r *run) logVersions(o client.Object) {
	for _, v := range r.f.History.Of(o) {
		r.t.Logf("%s %s: %s %d of %d, %+v", v.Seen.Format("05.000"), o.GetName(), v.Phase, v.Done, v.Total, v.Snapshot)
	}
}

// restartAgent does what kubelet does for an agent that has ended by itself: without an API server none begins.
func (r *run) restartAgent() {
	r.mu.Lock()
	ended := !r.down && !r.agent.Running()
	r.mu.Unlock()
	if ended {
		r.startAgent()
	}
}

// startAgent starts an agent if none runs.
func (r *run) startAgent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
	if r.agent != nil && r.agent.Running() {
		return
	}
	o := rig.AgentOptions{Flags: []string{
		"--max-attempts=12", "--retry-delay=200ms", "--idle-timeout=30s", "--stall-after=2s", "--progress-interval=100ms",
		"--data-mover-prepare-timeout=2m",
	}}
	if r.sabotage.noAgent() {
		o.Node = "another node"
	}
	r.clockOf(&o)
	r.agent = r.f.StartWith(o)
}

// patch patches the object of the operation. The answer goes into a copy: others read the object meanwhile.
func (r *run) patch(text string) {
	r.f.Patch(r.object.DeepCopyObject().(client.Object), text)
}

func (r *run) endAgent(end func(*rig.Agent)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent.Running() {
		r.down = true
		end(r.agent)
	}
}

// workers returns the agent's child processes.
func (r *run) workers() []int {
	r.mu.Lock()
	pid := r.agent.Cmd.Process.Pid
	r.mu.Unlock()
	return workersOf(pid)
}

// workersOf returns the child processes of an agent.
func workersOf(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var pids []int
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may be gone
		for field := range bytes.FieldsSeq(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// awaitWorkers returns the workers when there are any, and none if that takes longer than the fault would last.
func (r *run) awaitWorkers(f fault) []int {
	deadline := time.After(f.lasts)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if pids := r.workers(); len(pids) > 0 {
			return pids
		}
		select {
		case <-tick.C:
		case <-deadline:
			return nil
		}
	}
}

func (r *run) killWorkers(f fault) {
	for _, pid := range r.awaitWorkers(f) {
		_ = unix.Kill(-pid, unix.SIGKILL) // it may be gone
	}
}

// processes returns the agent and its workers.
func (r *run) processes() []int {
	r.mu.Lock()
	pid := r.agent.Cmd.Process.Pid
	r.mu.Unlock()
	return append(r.workers(), pid)
}

// freeze stops processes until they are healed.
func (r *run) freeze(pids []int) func() {
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGSTOP) // it may be gone
	}
	return func() {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
}

// remount lets a volume's driver die, and mounts the volume again.
func (r *run) remount(op operation) func() {
	m := r.volumes[op]
	if err := m.driver().Abort(); err != nil {
		r.t.Error(err)
	}
	return func() {
		if err := errors.Join(m.unmount(), m.mount()); err != nil {
			r.t.Error(err)
		}
		r.restartKubelets()
	}
}

// losePower takes the node away in the middle of what it does, with all that had not yet reached the disk.
func (r *run) losePower(op operation) {
	r.mu.Lock() // until the end: another fault would wait for the frozen agent to stop
	defer r.mu.Unlock()
	running := r.agent.Running()
	if running {
		pid := r.agent.Cmd.Process.Pid
		r.freeze(append(workersOf(pid), pid))
	}
	for _, k := range r.kubelets {
		k.end()
	}
	r.volumes[op].losePower(r.t)
	if running {
		r.down = true
		r.agent.Kill()
	}
	r.restartKubelets()
}

// clean ends what runs besides the agents, and takes the mounts away.
func (r *run) clean() {
	for _, k := range r.kubelets {
		k.end()
	}
	for _, m := range r.mounts {
		if err := m.unmount(); err != nil {
			r.t.Error(err)
		}
	}
}

// watcher sees the events of an operation.
type watcher struct {
	r      *run
	op     operation
	quit   chan struct{}
	ends   sync.WaitGroup
	ignore []func() // ends the observation of the proxies

	mu     sync.Mutex
	counts map[string]int
	waits  []*wait
}

type wait struct {
	trigger
	reached chan struct{} // closed at the event
	struck  chan struct{} // closed when the fault is there
	done    bool
}

func newWatcher(r *run, op operation) *watcher {
	return &watcher{r: r, op: op, quit: make(chan struct{}), counts: map[string]int{}}
}

// await returns a channel that is closed at the event, and one to close when the fault is there: until then, the event's
// request waits.
func (w *watcher) await(t trigger) (reached <-chan struct{}, struck chan<- struct{}) {
	n := &wait{trigger: t, reached: make(chan struct{}), struck: make(chan struct{})}
	w.waits = append(w.waits, n)
	return n.reached, n.struck
}

func (w *watcher) begin() {
	resource := map[operation]string{backup: "/podvolumebackups/", restore: "/podvolumerestores/"}[w.op]
	w.ignore = append(w.ignore, w.r.f.API.Observe(func(req *http.Request) {
		if !rig.IsWrite(req) || !strings.Contains(req.URL.Path, resource) {
			return
		}
		w.happen(req, atWrite)
		if rig.IsTerminalWrite(req) {
			w.happen(req, atEnd)
		}
	}))
	if p := w.r.f.Store.Proxy; p != nil {
		w.ignore = append(w.ignore, p.Observe(func(req *http.Request) { w.happen(req, atStore) }))
	}
	if w.r.repo != nil {
		w.follow(w.r.repo, atRepo)
	}
	if m := w.r.volumes[w.op]; m.kind == onFUSE {
		w.follow(m, atVolume)
	}
}

func (w *watcher) end() {
	for _, stop := range w.ignore {
		stop()
	}
	close(w.quit)
	w.ends.Wait()
}

// happen counts an event. The request waits until the fault is there.
func (w *watcher) happen(req *http.Request, event string) {
	w.mu.Lock()
	w.counts[event]++
	hits := w.due(event, w.counts[event])
	w.mu.Unlock()
	for _, n := range hits {
		select {
		case <-n.struck:
		case <-req.Context().Done():
		}
	}
}

// due closes what waits for the event. w.mu is held.
func (w *watcher) due(event string, count int) (hits []*wait) {
	for _, n := range w.waits {
		if !n.done && n.event == event && count >= n.n {
			n.done = true
			close(n.reached)
			hits = append(hits, n)
		}
	}
	return hits
}

// follow counts the calls of a file system, as long as it is the one that is mounted.
func (w *watcher) follow(m *mount, event string) {
	fs := m.driver()
	before := fs.Calls("")
	waits := false
	for _, n := range w.waits {
		waits = waits || n.event == event
	}
	if !waits {
		return
	}
	w.ends.Go(func() {
		for {
			changed := fs.Changed()
			w.mu.Lock()
			w.due(event, fs.Calls("")-before)
			w.mu.Unlock()
			select {
			case <-changed:
			case <-w.quit:
				return
			}
		}
	})
}
