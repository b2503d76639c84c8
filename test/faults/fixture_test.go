//go:build faults

package faults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/tree"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	restic = "restic"
	kopia  = "kopia"

	restoreWait = "restore-wait" // the init container that Velero gives to restored pods
	backupName  = "b1"
	restoreName = "r1"
)

// fixture is a namespace with a Velero server's objects and a node without kubelet, of which the case plays the parts.
// No agent runs until start.
type fixture struct {
	t        *testing.T
	dir      string           // everything of the case on disk but the buckets of an S3 server
	client   client.WithWatch // goes to the API server directly
	api      *apiProxy        // what agents talk to
	ns, node string
	hostPods string
	store    store
	backup   *velerov1.Backup // InProgress until endBackup
	restore  *velerov1.Restore
	history  *history
	agents   []*agent

	sharedStore bool // other cases use it at the same time, or have left locks there
}

// newFixture makes a namespace without a location: useDirectory or useBucket comes next.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, veleroLatest)
}

// newFixtureOn is newFixture with the CRDs of a version of Velero.
func newFixtureOn(t *testing.T, version string) *fixture {
	t.Helper()
	config := apiServer(t, version)
	f := &fixture{t: t, dir: t.TempDir()}
	f.hostPods = filepath.Join(f.dir, "pods")
	if err := os.Mkdir(f.hostPods, 0o755); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), velerov1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	f.api = newAPIProxy(t, f.dir, config)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "faults-"}}
	f.create(namespace)
	f.ns = namespace.Name
	f.node = "node-" + f.ns
	f.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "velero-repo-credentials"},
		StringData: map[string]string{"repository-password": password},
	})
	f.backup = &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: backupName},
		Status:     velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	f.restore = &velerov1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: restoreName}, Spec: velerov1.RestoreSpec{BackupName: backupName},
	}
	f.create(f.backup)
	f.create(f.restore)
	f.history = f.watch()
	t.Cleanup(f.check) // after the agents have stopped: cleanups run backwards
	return f
}

// check holds what must be so at the end of every case.
func (f *fixture) check() {
	f.history.check(f)
	f.checkLeftovers()
	for _, a := range f.agents {
		a.checkLog()
	}
}

func (f *fixture) context() context.Context { return context.WithoutCancel(f.t.Context()) }

func (f *fixture) create(o client.Object) {
	f.t.Helper()
	begin := time.Now()
	if err := f.client.Create(f.context(), o); err != nil {
		f.t.Fatal(err)
	}
	if f.history != nil {
		f.history.created(o, begin)
	}
}

// patch is a JSON merge patch.
func (f *fixture) patch(o client.Object, patch string) {
	f.t.Helper()
	if err := f.client.Patch(f.context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		f.t.Fatal(err)
	}
}

// endBackup ends the Backup, as a Velero server does when it is restarted.
func (f *fixture) endBackup(phase velerov1.BackupPhase) {
	f.t.Helper()
	f.history.backupEnds()
	f.patch(f.backup, `{"status":{"phase":"`+string(phase)+`"}}`)
}

// pod makes a running pod with emptyDir volumes and their directories on the host.
func (f *fixture) pod(name string, volumes ...string) *corev1.Pod {
	f.t.Helper()
	return f.podOn(f.node, name, volumes...)
}

func (f *fixture) podOn(node, name string, volumes ...string) *corev1.Pod {
	f.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name},
		Spec: corev1.PodSpec{
			NodeName:       node,
			InitContainers: []corev1.Container{{Name: restoreWait, Image: "agent"}},
			Containers:     []corev1.Container{{Name: "main", Image: "main"}},
		},
	}
	for _, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: v, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		})
	}
	f.create(pod)
	for _, v := range volumes {
		if err := os.MkdirAll(f.volume(pod, v), 0o755); err != nil {
			f.t.Fatal(err)
		}
	}
	return pod
}

// waitingPod makes a pod whose init container waits for its volumes.
func (f *fixture) waitingPod(name string, volumes ...string) *corev1.Pod {
	f.t.Helper()
	pod := f.pod(name, volumes...)
	f.setInitContainer(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	return pod
}

// setInitContainer reports the state of the pod's init container, as kubelet does.
func (f *fixture) setInitContainer(pod *corev1.Pod, state corev1.ContainerState) {
	f.t.Helper()
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodPending
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: restoreWait, State: state, Image: "agent", ImageID: "agent"}}
	if err := f.client.Status().Patch(f.context(), pod, before); err != nil {
		f.t.Fatal(err)
	}
}

// volume is where kubelet has an emptyDir volume.
func (f *fixture) volume(pod *corev1.Pod, name string) string {
	return filepath.Join(f.hostPods, string(pod.UID), "volumes", "kubernetes.io~empty-dir", name)
}

// podOf returns the pod that a PodVolumeBackup is about.
func (f *fixture) podOf(pvb *velerov1.PodVolumeBackup) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pvb.Spec.Pod.Namespace, Name: pvb.Spec.Pod.Name, UID: pvb.Spec.Pod.UID}}
}

// newBackup returns a PodVolumeBackup as a Velero server makes it.
func (f *fixture) newBackup(pod *corev1.Pod, volume, uploader string) *velerov1.PodVolumeBackup {
	return velero.PodVolumeBackup(f.backup, pod, volume, uploader)
}

// newRestore returns a PodVolumeRestore as a Velero server makes it, of what s says.
func (f *fixture) newRestore(pod *corev1.Pod, volume string, s snapshot) *velerov1.PodVolumeRestore {
	pvr := velero.PodVolumeRestore(f.restore, pod, volume, s.uploader, s.id, s.namespace)
	pvr.Spec.SnapshotSize = s.bytes
	return pvr
}

// snapshot is what a backup has stored.
type snapshot struct {
	uploader, id, namespace string
	bytes                   int64
}

// snapshotOf returns what a PodVolumeBackup that has completed has stored.
func snapshotOf(v version) snapshot {
	pvb := v.object.(*velerov1.PodVolumeBackup)
	return snapshot{pvb.Spec.UploaderType, pvb.Status.SnapshotID, pvb.Spec.Pod.Namespace, pvb.Status.Progress.TotalBytes}
}

// checkRestored compares a restored volume with what was backed up, and looks for the note to the init container.
func (f *fixture) checkRestored(original, restored, uploader string) {
	f.t.Helper()
	notes := filepath.Join(restored, ".velero")
	if info, err := os.Stat(filepath.Join(notes, string(f.restore.UID))); err != nil || info.Size() != 0 {
		f.t.Errorf("the init container is not told that its volume is there: %v", err)
	}
	if err := os.RemoveAll(notes); err != nil {
		f.t.Fatal(err)
	}
	differences, err := tree.Compare(original, restored, tree.Options{Plain: uploader == kopia})
	if err != nil {
		f.t.Fatal(err)
	}
	// The note is written into the volume's root directory, which restic restores with the rest.
	differences = slices.DeleteFunc(differences, func(d string) bool { return strings.HasPrefix(d, `".":`) || strings.HasPrefix(d, ".:") })
	if len(differences) > 0 {
		f.t.Errorf("the restored volume differs:\n%s", strings.Join(differences[:min(len(differences), 20)], "\n"))
	}
}

// checkLeftovers looks for what an agent must not leave behind.
func (f *fixture) checkLeftovers() {
	f.t.Helper()
	var left []process
	for deadline := time.Now().Add(patience); ; {
		if left = processes(f.t, f.dir); len(left) == 0 || time.Now().After(deadline) {
			break
		}
		<-time.After(20 * time.Millisecond) // a killed process takes a moment
	}
	for _, p := range left {
		f.t.Errorf("process %s was left behind: %s", p.pid, p.command)
	}
	f.checkLocks()
}

// checkLocks looks for locks of restic that nobody holds any more: no agent works on the store now.
func (f *fixture) checkLocks() {
	f.t.Helper()
	if locks := f.locks(); len(locks) > 0 && !f.sharedStore {
		f.t.Errorf("locks were left behind: %v", locks)
	}
}

// locks returns the locks of restic in the store, where each is a file.
func (f *fixture) locks() []string {
	f.t.Helper()
	var locks []string
	for _, pattern := range []string{"restic/*/locks/*", "*/restic/*/locks/*"} {
		found, err := filepath.Glob(filepath.Join(f.store.dir, pattern))
		if err != nil {
			f.t.Fatal(err)
		}
		locks = append(locks, found...)
	}
	return locks
}
