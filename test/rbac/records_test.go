package rbac

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// pluginSite is a cluster with a Velero server's namespace and what is installed for volume snapshotter plugins.
type pluginSite struct {
	*cluster

	audit, program, deploy string
	account                client.ObjectKey
	roles                  []*unstructured.Unstructured // of deploy/records
}

func newPluginSite(t *testing.T) *pluginSite {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	s := &pluginSite{audit: filepath.Join(t.TempDir(), "audit.log"), program: parts.RestoreController(t), deploy: filepath.Join(root, "deploy")}
	s.cluster = newCluster(t, s.audit)
	s.roles = s.read("records/rbac.yaml")
	objects := append(s.read("records/serviceaccount.yaml"), s.roles...)
	s.account = accountIn(t, objects)
	s.apply(objects)
	return s
}

func (s *pluginSite) read(name string) []*unstructured.Unstructured {
	s.t.Helper()
	return readObjects(s.t, filepath.Join(s.deploy, name))
}

// start runs `restore-controller records` as its service account, and returns where its metrics are.
func (s *pluginSite) start(variable string, args ...string) (metrics string, stop func()) {
	s.t.Helper()
	address := loopback.ForTest(s.t)
	stop = startAgent(s.t, s.program, append([]string{
		"records", "--kubeconfig=" + testenv.Kubeconfig(s.t, s.WithToken(s.account)), "--namespace=" + namespace, "--metrics-address=" + address,
	}, args...), variable)
	awaitReady(s.t, "http://"+address+"/readyz")
	return "http://" + address + "/metrics", stop
}

// backup makes a Backup that Velero has stored in dir, with a plugin's record in the object and none in the store.
func (s *pluginSite) backup(name, dir string) (records string) {
	s.t.Helper()
	text := `{"apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": "` + name + `"}, "status": {"phase": "Completed"}}`
	dir = filepath.Join(dir, "backups", name)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "velero-backup.json"), []byte(text), 0o600)); err != nil {
		s.t.Fatal(err)
	}
	meta := s.Meta(name)
	s.Create(
		&velerov1.Backup{ObjectMeta: meta, Spec: velerov1.BackupSpec{StorageLocation: "default"}, Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted}},
		&v1alpha1.VolumePluginBackup{ObjectMeta: meta, Spec: v1alpha1.VolumePluginBackupSpec{Backup: name, Volume: "pv", Plugin: "example.io/disks"}},
	)
	return filepath.Join(dir, name+"-volumepluginbackups.json.gz")
}

// importsBackup makes a Backup as the server's backup sync does, with two records in dir, of which the cluster has an object of
// the name known already, and waits until the other one is there.
func (s *pluginSite) importsBackup(name, known, dir string) {
	s.t.Helper()
	record := func(name string) string {
		return `{"apiVersion": "plimsoll.io/v1alpha1", "kind": "VolumePluginBackup", "metadata": {"name": "` + name + `"},
			"spec": {"backup": "elsewhere", "volume": "pv", "plugin": "example.io/disks"}, "status": {"phase": "Completed", "snapshotID": "snap"}}`
	}
	var packed bytes.Buffer
	packer := gzip.NewWriter(&packed)
	_, err := packer.Write([]byte("[" + record(known) + "," + record(name) + "]"))
	dir = filepath.Join(dir, "backups", name)
	file := filepath.Join(dir, name+"-volumepluginbackups.json.gz")
	err = errors.Join(err, packer.Close(), os.MkdirAll(dir, 0o700))
	if err := errors.Join(err, os.WriteFile(file, packed.Bytes(), 0o600)); err != nil {
		s.t.Fatal(err)
	}
	meta := s.Meta(name)
	s.Create(&velerov1.Backup{
		ObjectMeta: meta, Spec: velerov1.BackupSpec{StorageLocation: "default"},
		Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted, VolumeSnapshotsAttempted: 1},
	})
	imported := &v1alpha1.VolumePluginBackup{ObjectMeta: meta}
	testenv.EventuallyGet(s.Env, imported, "imported", func(_ *v1alpha1.VolumePluginBackup, err error) bool {
		return err == nil && imported.Status.SnapshotID == "snap"
	})
}

// TestRightsOfRecords keeps records as the service account of deploy/records, with credentials in a Secret. Nothing may be
// forbidden, and each right must have been needed.
func TestRightsOfRecords(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	runtime.LockOSThread() // as in TestRights
	defer runtime.UnlockOSThread()
	server := s3.Start(t)
	s := newPluginSite(t)
	bucket := server.Bucket(t)
	s.Create(s.BucketLocation("default", server, bucket))

	// The second one fills its caches as one does whose API server is older than Kubernetes 1.34.
	for backup, variable := range map[string]string{"b1": "", "b2": "KUBE_FEATURE_WatchListClient=false"} {
		metrics, stop := s.start(variable)
		file := s.backup(backup, server.Dir(bucket))
		s.exists(file)
		s.importsBackup("from-elsewhere-"+backup, backup, server.Dir(bucket))
		if code, body, err := get(t.Context(), metrics, ""); err != nil || code != http.StatusOK || !strings.Contains(body, `plimsoll_volume_plugin_operations{`) {
			t.Errorf("metrics: %d, %v: %.500s", code, err, body)
		}
		stop()
	}
	judge(t, granted(t, s.roles), readRequests(t, s.audit, "system:serviceaccount:"+s.account.Namespace+":"+s.account.Name))
}

// exists waits for a file.
func (s *pluginSite) exists(path string) {
	s.t.Helper()
	s.Eventually(path+" is there", func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// TestRightsOfPlugins reports as the service account of the Velero server, in whose name plugins run and which has the rights
// of deploy/volume-plugin. Nothing may be forbidden, and each right must have been needed.
func TestRightsOfPlugins(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	runtime.LockOSThread() // as in TestRights
	defer runtime.UnlockOSThread()
	s := newPluginSite(t)
	roles := s.read("volume-plugin/rbac.yaml")
	server := client.ObjectKey{Namespace: namespace, Name: "velero"}
	s.Create(
		&corev1.ServiceAccount{ObjectMeta: s.Meta(server.Name)},
		&velerov1.Backup{ObjectMeta: s.Meta("nightly")},
	)
	s.GrantPluginRights()
	kubeconfig := testenv.Kubeconfig(s.t, s.WithToken(server))
	s.report(kubeconfig)

	// What a plugin asks for when it starts.
	sample := exec.CommandContext(t.Context(), parts.VolumePlugin(t), "-dir="+t.TempDir(), "-kubeconfig="+kubeconfig, "resume")
	sample.Env = append(os.Environ(), "VELERO_NAMESPACE="+namespace)
	if output, err := sample.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	judge(t, granted(t, roles), readRequests(t, s.audit, "system:serviceaccount:"+server.Namespace+":"+server.Name))
}

// report backs up a volume and restores it, each twice: the second time the name is taken, and the object is read.
func (s *pluginSite) report(kubeconfig string) {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	api, err := volumeplugin.NewClient(config)
	if err != nil {
		s.t.Fatal(err)
	}
	recorder := volumeplugin.New(s.t.Context(), volumeplugin.Options{
		Plugin: "example.io/array", Client: api, Namespace: namespace, FlushTimeout: testenv.Patience, Log: s.Logger(),
	})
	defer recorder.Close(s.t.Context())
	for range 2 {
		backup := recorder.BeginBackup(volumeplugin.BackupRequest{Backup: "nightly", Volume: "pv-1"})
		backup.SetID("snap-1")
		backup.Update(1, 2)
		backup.Complete()
		restore := recorder.BeginRestore(volumeplugin.RestoreRequest{SnapshotID: "snap-1", VolumeID: "vol-1"})
		restore.Fail("no room")
		restore.SetVolume("pv-2")
	}
	var backups v1alpha1.VolumePluginBackupList
	if err := s.Client.List(s.t.Context(), &backups, client.InNamespace(namespace)); err != nil || len(backups.Items) != 2 {
		s.t.Fatalf("%d VolumePluginBackups, want 2: %v", len(backups.Items), err)
	}
	for i := range backups.Items {
		if o := &backups.Items[i]; o.Status.Phase != v1alpha1.PhaseCompleted || o.Status.SnapshotID != "snap-1" || len(o.OwnerReferences) != 1 {
			s.t.Errorf("VolumePluginBackup %+v", o)
		}
	}
	var restores v1alpha1.VolumePluginRestoreList
	if err := s.Client.List(s.t.Context(), &restores, client.InNamespace(namespace)); err != nil || len(restores.Items) != 1 || restores.Items[0].Status.Phase != v1alpha1.PhaseFailed ||
		restores.Items[0].Spec.Volume != "pv-2" {
		s.t.Errorf("VolumePluginRestores %+v: %v", restores.Items, err)
	}
}
