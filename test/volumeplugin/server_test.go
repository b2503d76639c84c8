package volumeplugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// server is a cluster for a real Velero server, which has the sample plugin in its plugin directory, with `records` beside it.
type server struct {
	*cluster

	velero  string
	plugins string // directory
}

// newServer starts `records`, and prepares what the Velero server needs. The sample plugin keeps its volumes and snapshots
// below dir.
func newServer(t *testing.T, bucket string, storage *s3.Server, dir string) *server {
	t.Helper()
	s := &server{cluster: newCluster(t, "velero", storage, bucket), velero: parts.Velero(t), plugins: t.TempDir()}
	s.Create(&velerov1.VolumeSnapshotLocation{ObjectMeta: s.Meta("default"), Spec: velerov1.VolumeSnapshotLocationSpec{
		Provider: "example.io/directories",
		Config:   map[string]string{"dir": dir, "kubeconfig": s.kubeconfig, "limit": "150000", "interval": "100ms"},
	}})
	s.Create(s.deployment())
	for name, path := range map[string]string{"velero-plugin-for-aws": parts.VeleroPluginForAWS(t), "volume-plugin": parts.VolumePlugin(t)} {
		if err := os.Symlink(path, filepath.Join(s.plugins, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.start(parts.RestoreController(t), "records", "--kubeconfig="+s.admin, "--metrics-address="+loopback.ForTest(t))
	return s
}

// deployment is the server's own, as `velero install` makes it: its restores read what image they run in.
func (s *server) deployment() *appsv1.Deployment {
	labels := map[string]string{"deploy": "velero"}
	return &appsv1.Deployment{ObjectMeta: s.Meta("velero"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "velero", Image: "velero/velero:v1.18.3"}}},
		},
	}}
}

// run runs the Velero server while do does something. Only one can run at a time: besides the addresses that flags set it
// always listens on port 8080, controller-runtime's default for metrics (Velero 1.18.3, pkg/cmd/server/server.go).
func (s *server) run(do func()) {
	s.t.Helper()
	p := s.start(s.velero, "server", "--kubeconfig="+s.admin, "--namespace="+s.Namespace, "--plugin-dir="+s.plugins, "--backup-sync-period=1s",
		"--metrics-address="+loopback.ForTest(s.t), "--profiler-address="+loopback.ForTest(s.t))
	ended := make(chan struct{})
	go func() { _ = p.wait(); close(ended) }()
	testenv.Eventually(s.t, "the server takes its location", func() bool {
		select {
		case <-ended:
			s.t.Fatal("the Velero server has ended: is port 8080 in use?")
		default:
		}
		location := &velerov1.BackupStorageLocation{}
		err := s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "default"}, location)
		return err == nil && location.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable
	})
	do()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil { // so that it ends its plugins
		s.t.Fatal(err)
	}
	<-ended
}

// command runs a command of Velero's CLI.
func (s *server) command(args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.velero, append(args, "--namespace="+s.Namespace, "--kubeconfig="+s.admin)...)
	cmd.Env = []string{"HOME=" + s.t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("velero %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// claim makes a claim in namespace shop that is bound to a local volume on path.
func (s *server) claim(path string) {
	s.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: "shop-data", StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}
	s.CreateNamespaces("shop")
	s.Create(claim)
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "shop-data"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data", UID: claim.UID},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-a"}}},
		}}}},
	}}
	s.Create(volume)
	// No controller manager binds them here.
	claim.Status.Phase, volume.Status.Phase = corev1.ClaimBound, corev1.VolumeBound
	for _, o := range []client.Object{claim, volume} {
		if err := s.Client.Status().Update(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestPluginOfRealServer lets one real Velero server back up a volume with the sample plugin, and another one, whose cluster
// shares nothing with the first but the bucket and the plugin's storage, restore it. Everything that the objects tell is
// written by the plugin that the servers started.
func TestPluginOfRealServer(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	runtime.LockOSThread() // the kernel ends a child when the thread ends that made it
	defer runtime.UnlockOSThread()
	storage := s3.Start(t)
	bucket := storage.Bucket(t)
	files := filepath.Join(storage.Dir(bucket), "backups", "nightly")
	dir := t.TempDir()
	fill(t, filepath.Join(dir, "volumes", "shop"))

	here, there := newServer(t, bucket, storage, dir), newServer(t, bucket, storage, dir)
	here.claim(filepath.Join(dir, "volumes", "shop"))
	var made v1alpha1.VolumePluginBackup
	here.run(func() { made = here.checkBackup(t) })
	record := filepath.Join(files, "nightly-volumepluginbackups.json.gz")
	testenv.Eventually(t, "the record is in the bucket", func() bool { return stored(t, record).Status.Phase == v1alpha1.PhaseCompleted })
	there.run(func() {
		there.checkSynced(t, &made)
		there.checkRestore(t, dir, made.Status.SnapshotID)
	})
	here.run(func() {
		here.command("backup", "delete", "nightly", "--confirm")
		testenv.Eventually(t, "snapshot and files are deleted with the backup", func() bool {
			_, inBucket := os.Stat(files)
			_, onStorage := os.Stat(filepath.Join(dir, "snapshots", made.Status.SnapshotID))
			return os.IsNotExist(inBucket) && os.IsNotExist(onStorage)
		})
	})
}

// checkBackup makes backup nightly, and returns its record.
func (s *server) checkBackup(t *testing.T) v1alpha1.VolumePluginBackup {
	t.Helper()
	s.command("backup", "create", "nightly", "--include-namespaces=shop")
	seen := map[int32]bool{}
	testenv.Eventually(t, "progress of the backup is seen", func() bool {
		if p := s.backup().Status.Percent; p != nil && *p < 100 {
			seen[*p] = true
		}
		return len(seen) >= 3
	})
	backup := &velerov1.Backup{}
	testenv.Eventually(t, "the backup is completed", func() bool {
		err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "nightly"}, backup)
		return err == nil && backup.Status.CompletionTimestamp != nil
	})
	if status := backup.Status; status.Phase != velerov1.BackupPhaseCompleted || status.VolumeSnapshotsCompleted != 1 {
		t.Fatalf("the backup is %+v:\n%s", status, s.command("backup", "logs", "nightly"))
	}
	made := s.backup()
	if status := made.Status; status.Phase != v1alpha1.PhaseCompleted || status.SnapshotID == "" || status.Progress.BytesDone != total ||
		made.Spec.Volume != "shop-data" || made.Spec.Backup != "nightly" || made.OwnerReferences[0].UID != backup.UID {
		t.Errorf("the record is %+v", made)
	}
	return made
}

// checkSynced waits until the backup and its record have come from the bucket.
func (s *server) checkSynced(t *testing.T, made *v1alpha1.VolumePluginBackup) {
	t.Helper()
	testenv.Eventually(t, "backup and record are synced", func() bool { return s.backup().Status.Phase == v1alpha1.PhaseCompleted })
	synced, owner := s.backup(), &velerov1.Backup{}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "nightly"}, owner); err != nil {
		t.Fatal(err)
	}
	if synced.Name != made.Name || synced.Status.SnapshotID != made.Status.SnapshotID || synced.Labels[v1alpha1.LabelSynced] != "default" ||
		len(synced.OwnerReferences) != 1 || synced.OwnerReferences[0].UID != owner.UID {
		t.Errorf("the record is synced as %+v", synced)
	}
}

// checkRestore restores the backup, and compares the new volume with volume shop.
func (s *server) checkRestore(t *testing.T, dir, snapshotID string) {
	t.Helper()
	s.command("restore", "create", "again", "--from-backup=nightly")
	seen := map[int32]bool{}
	testenv.Eventually(t, "progress of the restore is seen, with the size that the record has", func() bool {
		status := s.restore().Status
		if status.Percent != nil && *status.Percent < 100 && status.Progress.TotalBytes == total {
			seen[*status.Percent] = true
		}
		return len(seen) >= 3
	})
	restore := &velerov1.Restore{}
	testenv.Eventually(t, "the restore is completed", func() bool {
		err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: "again"}, restore)
		return err == nil && restore.Status.CompletionTimestamp != nil
	})
	if restore.Status.Phase != velerov1.RestorePhaseCompleted || restore.Status.Errors > 0 {
		t.Errorf("the restore is %+v:\n%s", restore.Status, s.command("restore", "logs", "again"))
	}
	volume := &corev1.PersistentVolume{}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: "shop-data"}, volume); err != nil {
		t.Fatal(err)
	}
	r := s.restore()
	if r.Status.Phase != v1alpha1.PhaseCompleted || r.Status.Progress.BytesDone != total || r.Spec.Backup != "nightly" ||
		r.Spec.SnapshotID != snapshotID || r.Spec.Volume != volume.Name || filepath.Base(volume.Spec.Local.Path) != r.Status.VolumeID {
		t.Errorf("the record of the restore is %+v, the volume is on %s", r, volume.Spec.Local.Path)
	}
	if diff := cmp.Diff(contents(t, filepath.Join(dir, "volumes", "shop")), contents(t, volume.Spec.Local.Path)); diff != "" {
		t.Errorf("the restored volume differs: %s", diff)
	}
}
