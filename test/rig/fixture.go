package rig

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// The data paths.
const (
	Restic = "restic"
	Kopia  = "kopia"

	backupName  = "b1"
	restoreName = "r1"
)

// Fixture is a namespace with a Velero server's objects and a node without kubelet, of which the case plays the parts.
// No agent runs until start.
type Fixture struct {
	*testenv.Env // goes to the API server directly

	Dir      string    // everything of the case on disk but the buckets of an S3 server
	API      *apiProxy // what agents talk to
	Node     string
	HostPods string
	Store    Store
	Backup   *velerov1.Backup // InProgress until EndBackup
	restore  *velerov1.Restore
	History  *History
	Agents   []*Agent

	SharedStore bool // other cases use it at the same time, or have left locks there
}

// NewFixture makes a namespace without a location: useDirectory or useBucket comes next.
func NewFixture(tb testing.TB) *Fixture {
	tb.Helper()
	return NewFixtureOn(tb, "")
}

// NewFixtureOn is NewFixture with the CRDs of a version of Velero.
func NewFixtureOn(tb testing.TB, version string) *Fixture {
	tb.Helper()
	f := &Fixture{Env: testenv.New(tb, testenv.Options{Velero: version}), Dir: tb.TempDir()}
	f.HostPods, f.Node = filepath.Join(f.Dir, "pods"), "node-"+f.Namespace
	if err := os.Mkdir(f.HostPods, 0o755); err != nil {
		tb.Fatal(err)
	}
	f.API = newAPIProxy(f.Env)
	f.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": Password})
	f.Backup = &velerov1.Backup{
		ObjectMeta: f.Meta(backupName),
		Status:     velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	f.restore = &velerov1.Restore{ObjectMeta: f.Meta(restoreName), Spec: velerov1.RestoreSpec{BackupName: backupName}}
	f.Create(f.Backup)
	f.Create(f.restore)
	f.History = f.Watch()
	tb.Cleanup(f.Check) // after the agents have stopped: cleanups run backwards
	return f
}

// Check holds what must be so at the end of every case.
func (f *Fixture) Check() {
	f.History.Check(f)
	f.CheckLeftovers()
	for _, a := range f.Agents {
		a.checkLog()
	}
}

// Create creates an object, and puts down when.
func (f *Fixture) Create(o client.Object) {
	f.T.Helper()
	begin := time.Now()
	f.Env.Create(o)
	if f.History != nil {
		f.History.created(o, begin)
	}
}

// EndBackup ends the Backup, as a Velero server does when it is restarted.
func (f *Fixture) EndBackup(phase velerov1.BackupPhase) {
	f.T.Helper()
	f.History.backupEnds()
	f.Patch(f.Backup, `{"status":{"phase":"`+string(phase)+`"}}`)
}

// Pod makes a running pod with emptyDir volumes and their directories on the host.
func (f *Fixture) Pod(name string, volumes ...string) *corev1.Pod {
	f.T.Helper()
	return f.PodOn(f.Node, name, volumes...)
}

// PodOn is Pod on another node.
func (f *Fixture) PodOn(node, name string, volumes ...string) *corev1.Pod {
	f.T.Helper()
	return f.NewNode(node, f.HostPods).RestorablePod(name, volumes...)
}

// WaitingPod makes a pod whose init container waits for its volumes.
func (f *Fixture) WaitingPod(name string, volumes ...string) *corev1.Pod {
	f.T.Helper()
	pod := f.Pod(name, volumes...)
	f.SetInitContainer(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	return pod
}

// Volume is where kubelet has an emptyDir volume.
func (f *Fixture) Volume(pod *corev1.Pod, name string) string {
	return f.NewNode(f.Node, f.HostPods).Volume(pod, name)
}

// PodOf returns the pod that a PodVolumeBackup is about.
func (f *Fixture) PodOf(pvb *velerov1.PodVolumeBackup) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pvb.Spec.Pod.Namespace, Name: pvb.Spec.Pod.Name, UID: pvb.Spec.Pod.UID}}
}

// NewBackup returns a PodVolumeBackup as a Velero server makes it.
func (f *Fixture) NewBackup(pod *corev1.Pod, volume, uploader string) *velerov1.PodVolumeBackup {
	return velero.PodVolumeBackup(f.Backup, pod, volume, uploader)
}

// NewRestore returns a PodVolumeRestore as a Velero server makes it, of what s says.
func (f *Fixture) NewRestore(pod *corev1.Pod, volume string, s Snapshot) *velerov1.PodVolumeRestore {
	pvr := velero.PodVolumeRestore(f.restore, pod, volume, s.Uploader, s.ID, s.Namespace)
	pvr.Spec.SnapshotSize = s.Bytes
	return pvr
}

// Snapshot is what a backup has stored.
type Snapshot struct {
	Uploader, ID, Namespace string
	Bytes                   int64
}

// SnapshotOf returns what a PodVolumeBackup that has completed has stored.
func SnapshotOf(v Version) Snapshot {
	pvb := v.Object.(*velerov1.PodVolumeBackup)
	return Snapshot{pvb.Spec.UploaderType, pvb.Status.SnapshotID, pvb.Spec.Pod.Namespace, pvb.Status.Progress.TotalBytes}
}

// CheckRestored compares a restored volume with what was backed up, once its pod has begun: then nothing of the agent's may be
// in it any more.
func (f *Fixture) CheckRestored(original, restored, uploader string) {
	f.T.Helper()
	marker := filepath.Join(restored, ".velero")
	if info, err := os.Stat(filepath.Join(marker, string(f.restore.UID))); err != nil || info.Size() != 0 {
		f.T.Errorf("the init container is not told that its volume is there: %v", err)
	}
	f.SetInitContainer(f.podOfVolume(restored), corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	f.Eventually("nothing of the agent's is in the restored volume", func() bool {
		_, err := os.Lstat(marker)
		return errors.Is(err, os.ErrNotExist)
	})
	differences, err := tree.Compare(original, restored, tree.Options{Plain: uploader == Kopia})
	if err != nil {
		f.T.Fatal(err)
	}
	if len(differences) > 0 {
		f.T.Errorf("the restored volume differs:\n%s", strings.Join(differences[:min(len(differences), 20)], "\n"))
	}
}

// podOfVolume returns the pod in whose directory a volume lies.
func (f *Fixture) podOfVolume(dir string) *corev1.Pod {
	f.T.Helper()
	var pods corev1.PodList
	if err := f.Client.List(f.Context(), &pods, client.InNamespace(f.Namespace)); err != nil {
		f.T.Fatal(err)
	}
	for i := range pods.Items {
		if strings.HasPrefix(dir, filepath.Join(f.HostPods, string(pods.Items[i].UID))+"/") {
			return &pods.Items[i]
		}
	}
	f.T.Fatalf("%s is no pod's", dir)
	return nil
}

// CheckLeftovers looks for what an agent must not leave behind.
func (f *Fixture) CheckLeftovers() {
	f.T.Helper()
	var left []Process
	for deadline := time.Now().Add(testenv.Patience); ; {
		if left = Processes(f.T, f.Dir); len(left) == 0 || time.Now().After(deadline) {
			break
		}
		<-time.After(20 * time.Millisecond) // a killed process takes a moment
	}
	for _, p := range left {
		f.T.Errorf("process %s was left behind: %s", p.pid, p.command)
	}
	f.CheckLocks()
}

// CheckLocks looks for locks of restic that nobody holds any more: no agent works on the store now.
func (f *Fixture) CheckLocks() {
	f.T.Helper()
	if locks := f.Locks(); len(locks) > 0 && !f.SharedStore {
		f.T.Errorf("locks were left behind: %v", locks)
	}
}

// Locks returns the locks of restic in the store, where each is a file.
func (f *Fixture) Locks() []string {
	f.T.Helper()
	var locks []string
	for _, pattern := range []string{"restic/*/locks/*", "*/restic/*/locks/*"} {
		found, err := filepath.Glob(filepath.Join(f.Store.Dir, pattern))
		if err != nil {
			f.T.Fatal(err)
		}
		locks = append(locks, found...)
	}
	return locks
}
