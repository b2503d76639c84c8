package monitoring

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// standalone is the namespace of the restore controller; the other one is that of a Velero server, which the test plays.
const standalone = "plimsoll"

// cluster is a control plane with a restore controller, and with a keeper of records, each in its namespace.
type cluster struct {
	*testenv.Env

	t       *testing.T
	program string
	store   string // a bucket that is a directory
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Env: testenv.New(t, testenv.Options{Namespace: standalone}), t: t, program: parts.RestoreController(t), store: t.TempDir()}
	c.CreateNamespaces(namespace, shop)
	theirs := c.DirectoryLocation("default", c.store)
	theirs.Namespace = namespace
	c.Create(c.DirectoryLocation("default", c.store), c.DirectoryLocation("gone", filepath.Join(c.store, "no", "such", "directory")), theirs)
	return c
}

// stored puts a backup of one ConfigMap into the store.
func (c *cluster) stored(name, configMap, data string) {
	c.t.Helper()
	ended := metav1.Now()
	err := velero.Stored{
		Version: velero.V1_18,
		Backup: &velerov1.Backup{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted, StartTimestamp: &ended, CompletionTimestamp: &ended},
		},
		Items: []velero.Item{{Resource: "configmaps", Object: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": configMap, "namespace": shop}, "data": map[string]any{data: "x"},
		}}}},
	}.Write(c.store)
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) put(name string, content []byte) {
	c.t.Helper()
	path := filepath.Join(c.store, "backups", name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
		c.t.Fatal(err)
	}
}

// start starts the program with one of its commands, until the test or kill ends it.
func (c *cluster) start(command, address string, flags ...string) (kill func()) {
	c.t.Helper()
	dir := c.t.TempDir()
	cmd := exec.Command(c.program, append([]string{command, "--kubeconfig=" + c.Plane.Kubeconfig(), "--metrics-address=" + address}, flags...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	ended := run(c.t, cmd, filepath.Join(dir, command+".log"), unix.SIGKILL)
	return func() {
		if err := cmd.Process.Kill(); err != nil {
			c.t.Fatal(err)
		}
		<-ended
	}
}

// TestRealRestores has a Prometheus scrape a restore controller, a keeper of records and what does RepositoryTasks, to which happens what
// the alerts are about.
func TestRealRestores(t *testing.T) {
	t.Parallel()
	parts.Prometheus(t, "promtool")
	parts.Prometheus(t, "prometheus")
	c := newCluster(t)
	controller, records, tasks := loopback.ForTest(t), loopback.ForTest(t), loopback.ForTest(t)
	s := startPrometheus(t, hastened(readRules(t, ofController, ofRecords, ofTasks)),
		scraped{"plimsoll-restore-controller", controller, map[string]string{"namespace": standalone, "pod": "restore-controller-a"}},
		scraped{"plimsoll-records", records, map[string]string{"namespace": namespace, "pod": "plimsoll-records-a"}},
		scraped{"plimsoll-repository-tasks", tasks, map[string]string{"namespace": namespace, "pod": "plimsoll-repository-tasks-a"}})
	killController := c.start("server", controller, "--namespace="+standalone, "--restore-helper-image=agent", "--download-address=",
		"--backup-sync-period=1s", "--store-validation-frequency=1s", "--concurrency=2", "--resource-timeout=1h")
	killRecords := c.start("records", records, "--namespace="+namespace)
	killTasks := c.start("repository-tasks", tasks, "--namespace="+namespace, "--restic-path="+parts.Restic(t, parts.DefaultRestic))

	c.restoreBadly()
	c.recordInVain()
	c.verifyNothing()
	awaitAlerts(t, s, "PlimsollRestoreIncomplete", "PlimsollRestoreStuck", "PlimsollLocationUnavailable", "PlimsollBackupSyncFails", "PlimsollRecordsNotWritten",
		"PlimsollRepositoryTaskFailed")
	for name, labels := range map[string]map[string]string{
		"PlimsollRestoreIncomplete":    {"namespace": standalone, "phase": "PartiallyFailed"},
		"PlimsollRestoreStuck":         {"namespace": standalone, "restore": "waits"},
		"PlimsollLocationUnavailable":  {"namespace": standalone, "location": "gone"},
		"PlimsollBackupSyncFails":      {"namespace": standalone, "location": "default"},
		"PlimsollRecordsNotWritten":    {"namespace": namespace, "location": "default"},
		"PlimsollRepositoryTaskFailed": {"namespace": namespace, "type": "Verify"},
	} {
		for _, a := range s.firing(t)[name] {
			for label, want := range labels {
				if a.Labels[label] != want {
					t.Errorf("%s fires with labels %v, want %v", name, a.Labels, labels)
				}
			}
		}
	}
	checkSelectors(t, s, readRules(t, ofController, ofRecords), 10)
	killController()
	killRecords()
	killTasks()
	awaitAlerts(t, s, "PlimsollRestoreControllerAbsent", "PlimsollRecordsAbsent", "PlimsollRepositoryTasksAbsent")
}

// restoreBadly has the controller meet a backup that is damaged, one with an item that the API server refuses, and one whose
// item is in the way of one that does not go.
func (c *cluster) restoreBadly() {
	c.t.Helper()
	c.put("damaged/velero-backup.json", []byte("no JSON"))
	c.stored("refused", "settings", "no key!")
	c.stored("waits", "held", "key")
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "held", Finalizers: []string{"example.com/held"}}}
	c.Create(held)
	c.Delete(held)
	for _, name := range []string{"refused", "waits"} {
		testenv.Eventually(c.t, "backup "+name+" is in the cluster", func() bool {
			return c.Client.Get(c.t.Context(), client.ObjectKey{Namespace: standalone, Name: name}, &velerov1.Backup{}) == nil
		})
		c.Create(&velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: standalone, Name: name}, Spec: velerov1.RestoreSpec{BackupName: name}})
	}
}

// recordInVain makes the record of a backup whose files are not in the store.
func (c *cluster) recordInVain() {
	c.t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "nightly"}
	c.Create(&velerov1.Backup{
		ObjectMeta: meta, Spec: velerov1.BackupSpec{StorageLocation: "default"}, Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted},
	})
	c.Create(&v1alpha1.VolumePluginBackup{
		ObjectMeta: meta, Spec: v1alpha1.VolumePluginBackupSpec{Backup: "nightly", Volume: "pv-1", Plugin: "example.io/disks"},
	})
}

// verifyNothing makes a task that cannot be done.
func (c *cluster) verifyNothing() {
	c.t.Helper()
	c.Create(&v1alpha1.RepositoryTask{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "verify-none"}, Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, Backup: "none"},
	})
}
