package rbac

import (
	"errors"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestRightsOfRepositoryTasks does tasks and answers FileRequests as the service account of deploy/repository-tasks. Nothing may be
// forbidden, and each right must have been needed. The plugin's part is in TestRepositoryFiles, with no right but those of its role.
func TestRightsOfRepositoryTasks(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	runtime.LockOSThread() // as in TestRights
	defer runtime.UnlockOSThread()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	program, restic := parts.RestoreController(t), parts.Restic(t, parts.DefaultRestic)
	audit := filepath.Join(t.TempDir(), "audit.log")
	c := newCluster(t, audit)
	roles := readObjects(t, filepath.Join(root, "deploy", "repository-tasks", "rbac.yaml"))
	objects := append(readObjects(t, filepath.Join(root, "deploy", "repository-tasks", "serviceaccount.yaml")), roles...)
	account := accountIn(t, objects)
	c.apply(objects)
	completed := velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted}
	c.CreateSecret("velero-repo-credentials", map[string]string{"repository-password": resticrepo.Password})
	store := t.TempDir()
	measured, whole := filepath.Join(store, "restic", "bank"), filepath.Join(store, "restic", "vault")
	resticrepo.Create(t, measured)
	resticrepo.Create(t, whole)
	c.Create(
		c.DirectoryLocation("default", store),
		&velerov1.Backup{ObjectMeta: c.Meta("lost"), Status: completed}, &velerov1.Backup{ObjectMeta: c.Meta("empty"), Status: completed},
	)
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: c.Meta("lost-1"),
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia", Node: "n",
		},
		Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: strings.Repeat("a", 32)},
	}
	pvb.Labels = map[string]string{velerov1.BackupNameLabel: "lost"}
	running := &velerov1.Backup{ObjectMeta: c.Meta("running"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress}}
	c.Create(running)
	inRunning := pvb.DeepCopy()
	inRunning.Name, inRunning.Labels = "running-1", nil
	inRunning.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: running.Name, UID: running.UID}}
	inRestic := pvb.DeepCopy()
	inRestic.Name, inRestic.Spec.Pod.Namespace, inRestic.Spec.UploaderType, inRestic.Spec.RepoIdentifier = "measured-1", "bank", "restic", measured
	inRestic.Labels = nil
	migrated := inRestic.DeepCopy()
	migrated.Name, migrated.Labels, migrated.Status.SnapshotID = "migrated-1", map[string]string{velerov1.BackupNameLabel: "migrated"}, backUp(t, restic, measured)
	pruned := inRestic.DeepCopy()
	pruned.Name, pruned.Spec.Pod.Namespace, pruned.Spec.RepoIdentifier, pruned.Status.SnapshotID = "pruned-1", "vault", whole, backUp(t, restic, whole)
	c.Create(pvb, inRunning, inRestic, migrated, pruned, &velerov1.Backup{ObjectMeta: c.Meta("migrated"), Status: completed})
	stored := backUp(t, restic, measured)

	// The second one fills its caches as one does whose API server is older than Kubernetes 1.34.
	for name, variable := range map[string]string{"t1": "", "t2": "KUBE_FEATURE_WatchListClient=false"} {
		address := loopback.ForTest(t)
		stop := startAgent(t, program, []string{
			"repository-tasks", "--kubeconfig=" + testenv.Kubeconfig(t, c.WithToken(account)), "--namespace=" + namespace, "--metrics-address=" + address, "--restic-path=" + restic,
		}, variable)
		awaitReady(t, "http://"+address+"/readyz")
		for backup, reason := range map[string]v1alpha1.Reason{"lost": v1alpha1.ReasonRepositoryNotFound, "empty": v1alpha1.ReasonNoPodVolumes} {
			task := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-" + backup), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Backup: backup}}
			c.Create(task)
			testenv.EventuallyGet(c.Env, task, "the end of the task", func(task *v1alpha1.RepositoryTask, err error) bool {
				return err == nil && task.Status.Reason == reason
			})
		}
		from := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-from"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: "lost-1"}}
		c.Create(from)
		testenv.EventuallyGet(c.Env, from, "the end of the task", func(task *v1alpha1.RepositoryTask, err error) bool {
			return err == nil && task.Status.Reason == v1alpha1.ReasonRepositoryNotFound
		})
		owing := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-owing"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: "running-1"}}
		c.Create(owing)
		testenv.EventuallyGet(c.Env, owing, "the note that damage is not noted yet", func(task *v1alpha1.RepositoryTask, err error) bool {
			return err == nil && task.Status.Phase == v1alpha1.PhaseFailed && task.Annotations[v1alpha1.AnnotationOwesMarks] != ""
		})
		usage := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-usage"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskUsage, PodVolumeBackup: "measured-1"}}
		c.Create(usage)
		testenv.EventuallyGet(c.Env, usage, "the numbers of a repository that lacks a snapshot", func(task *v1alpha1.RepositoryTask, err error) bool {
			return err == nil && task.Status.Phase == v1alpha1.PhaseCompleted && task.Status.Repositories[0].Usage.MissingSnapshots == 1
		})
		prune := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-prune"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskPrune, PodVolumeBackup: "pruned-1", Apply: true}}
		c.Create(prune)
		testenv.EventuallyGet(c.Env, prune, "what was freed", func(task *v1alpha1.RepositoryTask, err error) bool {
			return err == nil && task.Status.Phase == v1alpha1.PhaseCompleted && task.Status.Repositories[0].Prune.FreedBytes != nil
		})
		for _, cure := range []v1alpha1.RepairKind{v1alpha1.RepairIndex, v1alpha1.RepairUnlock} {
			repair := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-" + strings.ToLower(string(cure))), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskRepair, PodVolumeBackup: "pruned-1", Repair: cure}}
			c.Create(repair)
			testenv.EventuallyGet(c.Env, repair, "the end of a repair", func(task *v1alpha1.RepositoryTask, err error) bool {
				return err == nil && task.Status.Phase == v1alpha1.PhaseCompleted
			})
		}
		// It creates the kopia repository. The Backup is not in the bucket, so it gets no copy.
		migration := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-migrate"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskMigrate, All: true}}
		c.Create(migration)
		testenv.EventuallyGet(c.Env, migration, "the copy of a snapshot", func(task *v1alpha1.RepositoryTask, err error) bool {
			return err == nil && task.Status.Phase.Terminal() && len(task.Status.Volumes) == 1 && task.Status.Volumes[0].Result == v1alpha1.VolumeMigrated
		})
		c.forgetInterrupted(t, name, inRestic, stored)
		orphans := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-orphans"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskForget, Orphans: v1alpha1.OrphansOfBackups}}
		c.Create(orphans)
		testenv.EventuallyGet(c.Env, orphans, "a plan for orphans", func(task *v1alpha1.RepositoryTask, err error) bool {
			return err == nil && task.Status.Phase == v1alpha1.PhaseCompleted
		})
		brief := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-brief"), Spec: v1alpha1.RepositoryTaskSpec{
			Type: v1alpha1.TaskVerify, Backup: "empty", TTL: &metav1.Duration{Duration: time.Nanosecond},
		}}
		c.Create(brief)
		testenv.EventuallyGet(c.Env, brief, "its deletion", func(_ *v1alpha1.RepositoryTask, err error) bool { return err != nil })
		for kind, spec := range map[string]v1alpha1.FileRequestSpec{"one": {PodVolumeBackup: "lost-1"}, "all": {Backup: "lost"}} {
			files := &v1alpha1.FileRequest{ObjectMeta: c.Meta(name + "-" + kind), Spec: spec}
			files.Spec.TokenHash = strings.Repeat("0", 64)
			c.Create(files)
			testenv.EventuallyGet(c.Env, files, "the answer to a FileRequest", func(r *v1alpha1.FileRequest, err error) bool {
				return err == nil && r.Status.Phase == v1alpha1.FileRequestReady
			})
		}
		c.Eventually("the deletion of FileRequests whose process has ended", func() bool {
			var open v1alpha1.FileRequestList
			return c.Client.List(t.Context(), &open, client.InNamespace(namespace)) == nil && len(open.Items) == 2
		})
		if code, body, err := get(t.Context(), "http://"+address+"/metrics", ""); err != nil || code != http.StatusOK || !strings.Contains(body, `plimsoll_repository_tasks{phase="Failed",type="Verify"}`) {
			t.Errorf("metrics: %d, %v: %.500s", code, err, body)
		}
		stop()
	}
	judge(t, granted(t, roles), readRequests(t, audit, "system:serviceaccount:"+account.Namespace+":"+account.Name))
}

// TestRightsToRestore restores into a scratch claim as the service account of deploy/repository-tasks with the rights of
// deploy/repository-tasks-restore, each of which must have been needed: one claim is never mounted, and the test fails the restore into the other.
func TestRightsToRestore(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	runtime.LockOSThread() // as in TestRights
	defer runtime.UnlockOSThread()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	program, restic := parts.RestoreController(t), parts.Restic(t, parts.DefaultRestic)
	audit := filepath.Join(t.TempDir(), "audit.log")
	c := newCluster(t, audit)
	tasks, restores := filepath.Join(root, "deploy", "repository-tasks"), filepath.Join(root, "deploy", "repository-tasks-restore")
	rights := readObjects(t, filepath.Join(restores, "role.yaml"))
	objects := append(readObjects(t, filepath.Join(tasks, "serviceaccount.yaml")), readObjects(t, filepath.Join(tasks, "rbac.yaml"))...)
	account := accountIn(t, objects)
	c.apply(append(append(objects, rights...), readObjects(t, filepath.Join(restores, "rolebinding.yaml"))...))
	c.Create(c.DirectoryLocation("default", t.TempDir()), &corev1.Pod{ObjectMeta: c.Meta("tasks"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "tasks", Image: "plimsoll"}}}},
		&velerov1.PodVolumeBackup{
			ObjectMeta: c.Meta("one"),
			Spec: velerov1.PodVolumeBackupSpec{
				Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}, Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia", Node: "n",
			},
			Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: strings.Repeat("a", 32)},
		})
	stop := startAgent(t, program, []string{
		"repository-tasks", "--kubeconfig=" + testenv.Kubeconfig(t, c.WithToken(account)), "--namespace=" + namespace, "--metrics-address=" + loopback.ForTest(t), "--restic-path=" + restic,
		"--scratch-timeout=15s", "--progress-interval=200ms",
	}, "POD_NAME=tasks")
	ends := func(name string, reason v1alpha1.Reason) {
		task := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name), Spec: v1alpha1.RepositoryTaskSpec{
			Type: v1alpha1.TaskVerify, PodVolumeBackup: "one", RestoreTo: &v1alpha1.RestoreTarget{StorageClassName: "none"},
		}}
		c.Create(task)
		testenv.EventuallyGet(c.Env, task, "the end of the task", func(task *v1alpha1.RepositoryTask, err error) bool {
			if name == "fails" {
				c.failRestore()
			}
			return err == nil && task.Status.Reason == reason
		})
	}
	ends("unbound", v1alpha1.ReasonPodNotReady)
	ends("fails", v1alpha1.ReasonDataPath)
	stop()
	judge(t, granted(t, rights), readRequests(t, audit, "system:serviceaccount:"+account.Namespace+":"+account.Name))
}

// failRestore lets the pod of a scratch claim wait for its volume, and fails the restore into it.
func (c *cluster) failRestore() {
	c.t.Helper()
	var pods corev1.PodList
	var restores velerov1.PodVolumeRestoreList
	if err := errors.Join(c.Client.List(c.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/name": "plimsoll-scratch"}), c.Client.List(c.Context(), &restores, client.InNamespace(namespace))); err != nil {
		c.t.Fatal(err)
	}
	for i := range pods.Items {
		if len(pods.Items[i].Status.InitContainerStatuses) == 0 {
			c.SetInitContainer(&pods.Items[i], corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
		}
	}
	for i := range restores.Items {
		if restores.Items[i].Status.Phase == "" {
			c.Patch(&restores.Items[i], `{"status": {"phase": "Failed", "message": "by the test"}}`)
		}
	}
}

// backUp makes a snapshot with restic, and returns its id.
func backUp(t *testing.T, restic, repository string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), restic, "-r", repository, "--no-cache", "backup", "--json", t.TempDir())
	cmd.Env = []string{"RESTIC_PASSWORD=" + resticrepo.Password, "HOME=" + t.TempDir()}
	output, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	_, id, found := strings.Cut(string(output), `"snapshot_id":"`)
	if !found {
		t.Fatalf("restic says %s", output)
	}
	return id[:64]
}

// forgetInterrupted has a task end what another one has begun: one snapshot is there, and its record loses the mark; the other is not, and
// its record is deleted.
func (c *cluster) forgetInterrupted(t *testing.T, name string, like *velerov1.PodVolumeBackup, stored string) {
	t.Helper()
	for suffix, id := range map[string]string{"-there": stored, "-gone": strings.Repeat("b", 64)} {
		pvb := like.DeepCopy()
		pvb.ObjectMeta = c.Meta(name + suffix)
		pvb.Annotations = map[string]string{v1alpha1.AnnotationForgetting: "another task"}
		pvb.Spec.Pod.Name, pvb.Status.SnapshotID = name, id
		c.Create(pvb)
	}
	task := &v1alpha1.RepositoryTask{ObjectMeta: c.Meta(name + "-forget"), Spec: v1alpha1.RepositoryTaskSpec{
		Type: v1alpha1.TaskForget, Apply: true, Keep: &v1alpha1.RetentionPolicy{Last: 1}, Volume: &v1alpha1.PodVolumeSelector{Namespace: "bank", Pod: name},
	}}
	c.Create(task)
	testenv.EventuallyGet(c.Env, task, "the end of the task", func(task *v1alpha1.RepositoryTask, err error) bool {
		return err == nil && task.Status.Phase == v1alpha1.PhaseCompleted && task.Status.Repositories[0].Snapshots == 1
	})
}
