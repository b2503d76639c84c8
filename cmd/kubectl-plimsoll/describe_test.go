package main

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/pkg/restorecontroller"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// newBackup makes a Backup that runs, as a Velero server does.
func (c *cluster) newBackup(name string) *velerov1.Backup {
	c.t.Helper()
	b := &velerov1.Backup{
		ObjectMeta: c.Meta(name), Spec: velerov1.BackupSpec{StorageLocation: "default"},
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now()), Progress: &velerov1.BackupProgress{TotalItems: 40, ItemsBackedUp: 10},
		},
	}
	c.Create(b)
	return b
}

// backUp makes a PodVolumeBackup of a new pod's volume with one file.
func (c *cluster) backUp(b *velerov1.Backup, pod string, size int) *velerov1.PodVolumeBackup {
	c.t.Helper()
	p := c.node.Pod(pod, "data")
	content := make([]byte, size)
	_, _ = rand.Read(content)
	if err := os.WriteFile(filepath.Join(c.node.Volume(p, "data"), "file"), content, 0o600); err != nil {
		c.t.Fatal(err)
	}
	pvb := velero.PodVolumeBackup(b, p, "data", "restic")
	c.Create(pvb)
	return pvb
}

func snapshotOf(o client.Object) (s progress.Snapshot) {
	_ = json.Unmarshal([]byte(o.GetAnnotations()[v1alpha1.AnnotationProgress]), &s)
	return s
}

// slowly is an upload limit with which bigSize does not end while a test runs.
const (
	slowly  = 64 << 10
	bigSize = 48 << 20
)

// TestDescribeBackup describes a Backup with a volume that completed, one that failed, one that runs and one that waits for
// its slot, all by a real agent.
func TestDescribeBackup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startAgent(slowly)
	b := c.newBackup("nightly")
	testenv.EventuallyGet(c.Env, c.backUp(b, "small", 1<<10), "completed", func(p *velerov1.PodVolumeBackup, _ error) bool {
		return p.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted
	})

	secret := &corev1.Secret{ObjectMeta: c.Meta("velero-repo-credentials")}
	c.Change(secret, func() { secret.Data = map[string][]byte{"repository-password": []byte("of another cluster")} })
	failed := testenv.EventuallyGet(c.Env, c.backUp(b, "locked-out", 1<<10), "failed", func(p *velerov1.PodVolumeBackup, _ error) bool {
		return p.Status.Phase == velerov1.PodVolumeBackupPhaseFailed
	})
	c.Change(secret, func() { secret.Data = map[string][]byte{"repository-password": []byte(resticrepo.Password)} })

	testenv.EventuallyGet(c.Env, c.backUp(b, "big", bigSize), "moving", func(p *velerov1.PodVolumeBackup, _ error) bool { return snapshotOf(p).BytesDone > bigSize/100 })
	queued := c.backUp(b, "patient", 1<<10)
	testenv.EventuallyGet(c.Env, queued, "queued", func(p *velerov1.PodVolumeBackup, _ error) bool { return snapshotOf(p).QueuePosition == 1 })

	out, errOut, code := c.run("describe", "backup", "nightly")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	for _, want := range []string{
		"Backup:    " + c.Namespace + "/nightly\n", "Items:     10 of 40 (25%)\n", "Volumes:   4: ", "1 Failed", "1 Queued", "1 Completed",
		"volume data of pod " + c.Namespace + "/small", "Snapshot:", " of 48.0 MiB (", "Queued, position 1", "Time left:", "Last moved:",
		failed.Status.Message, "velero-repo-credentials",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}

	var told describe.Description
	out, errOut, code = c.run("describe", "backup/nightly", "-o", "json")
	if err := json.Unmarshal([]byte(out), &told); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s %s", code, err, out, errOut)
	}
	checkVolumes(t, &told)
	if out, _, code = c.run("describe", "backups.velero.io", "nightly", "-o", "yaml"); code != 0 || yaml.Unmarshal([]byte(out), &told) != nil {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func checkVolumes(t *testing.T, told *describe.Description) {
	t.Helper()
	for _, v := range told.Volumes {
		switch v.Pod {
		case "small":
			if v.Percent == nil || *v.Percent != 100 || v.Progress.State != progress.StateCompleted {
				t.Errorf("completed volume: %+v", v)
			}
		case "big":
			if v.Percent == nil || *v.Percent < 1 || *v.Percent > 99 || v.Ended() {
				t.Errorf("running volume: %+v", v)
			}
		case "locked-out":
			if v.Progress.State != progress.StateFailed || v.Message == "" {
				t.Errorf("failed volume: %+v", v)
			}
		}
	}
	if told.Totals.Volumes != 4 || told.ItemPercent == nil || *told.ItemPercent != 25 {
		t.Errorf("totals: %+v, items: %v", told.Totals, told.ItemPercent)
	}
}

// TestDescribeErrors holds exit codes and that errors say what to do.
func TestDescribeErrors(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nothing there":   {[]string{"describe", "backup", "nope"}, 1, "there is no Backup nope in namespace " + c.Namespace},
		"no name":         {[]string{"describe", "backup"}, 2, "KIND NAME"},
		"another kind":    {[]string{"describe", "pod", "x"}, 2, `"pod" is none of`},
		"kind to explain": {[]string{"describe", "pvb/x"}, 2, "explain"},
		"format":          {[]string{"describe", "backup", "x", "-o", "xml"}, 2, "--output=xml"},
		"timeout":         {[]string{"describe", "backup", "x", "--download-timeout=0s"}, 2, "--download-timeout"},
	} {
		out, errOut, code := c.run(test.args...)
		if code != test.code || !strings.Contains(errOut, test.want) || strings.Count(errOut, "\n") != 1 || out != "" {
			t.Errorf("%s: exit code %d, want %d, with %q: %s%s", name, code, test.code, test.want, out, errOut)
		}
	}
}

// stored is a Restore that has ended with errors, whose files a real restore controller signs URLs for on a real S3 server.
type stored struct {
	*cluster
	restore *velerov1.Restore
	dir     string // of the restore in the bucket
}

func newStored(t *testing.T) *stored {
	t.Helper()
	server := s3.Start(t)
	bucket := server.Bucket(t)
	c := newCluster(t)
	location := c.BucketLocation("s3", server, bucket)
	location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: bucket, CACertRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "authority"}, Key: "ca.crt",
	}}
	c.Create(&corev1.Secret{ObjectMeta: c.Meta("authority"), Data: map[string][]byte{"ca.crt": server.CACert}})
	c.Create(location)
	s := &stored{cluster: c, dir: filepath.Join(server.Dir(bucket), "restores", "shop"), restore: &velerov1.Restore{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "shop", Annotations: map[string]string{v1alpha1.AnnotationStorageLocation: "s3"}},
		Spec:       velerov1.RestoreSpec{BackupName: "nightly"},
		Status:     velerov1.RestoreStatus{Phase: velerov1.RestorePhasePartiallyFailed, Errors: 1},
	}}
	c.Create(s.restore)
	return s
}

// put stores a file of the restore.
func (s *stored) put(name string, content []byte) {
	s.t.Helper()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, name), content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func pack(content string) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return packed.Bytes()
}

func (s *stored) startController() {
	s.t.Helper()
	scheme, err := newScheme()
	if err != nil {
		s.t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(s.Config, ctrl.Options{
		Scheme: scheme, Cache: restorecontroller.CacheOptions(s.Namespace), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	files := httptest.NewUnstartedServer(nil)
	controller, err := restorecontroller.SetUp(mgr, restorecontroller.Config{
		Namespace: s.Namespace, Version: "dev", Engine: &restore.Engine{}, TempDir: s.t.TempDir(), // no restore is begun here
		DownloadURLBase: "http://" + files.Listener.Addr().String(), Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	files.Config.Handler = controller
	files.Start()
	s.t.Cleanup(files.Close)
	done := make(chan struct{})
	ctx := s.t.Context() // ends before cleanups run
	go func() {
		defer close(done)
		if err := mgr.Start(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	s.t.Cleanup(func() { <-done })
}

// requests counts the DownloadRequests that are left.
func (s *stored) requests() int {
	s.t.Helper()
	var list velerov1.DownloadRequestList
	if err := s.Client.List(s.t.Context(), &list, client.InNamespace(s.Namespace)); err != nil {
		s.t.Fatal(err)
	}
	return len(list.Items)
}

const storedList = `[
  {"pvcName": "data", "pvcNamespace": "shop", "pvName": "pv-1", "restoreMethod": "PodVolumeRestore", "snapshotDataMoved": false, "ofLaterVelero": [1],
   "pvrInfo": {"snapshotHandle": "4f3c1d2e", "size": 8589934592, "uploaderType": "restic", "volumeName": "data", "podName": "web-0", "podNamespace": "shop", "Phase": "Completed"}},
  {"pvcName": "cache", "pvcNamespace": "shop", "snapshotDataMoved": false, "plimsollOutcome": "ProvisionedEmpty", "plimsollReason": "it was not backed up"}
]`

// TestDescribeRestoreFromStore describes a Restore with what a real controller offers from a real S3 server, whose
// certificate only the BackupStorageLocation knows.
func TestDescribeRestoreFromStore(t *testing.T) {
	t.Parallel()
	s := newStored(t)
	s.put("shop-volumeinfo.json.gz", pack(storedList))
	s.put("restore-shop-results.gz", pack(`{"errors": {"namespaces": {"shop": ["cannot create web"]}}, "warnings": {"velero": ["odd\u001b[2J"]}}`))
	s.Create(&v1alpha1.VolumePluginRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "snap-9", Labels: map[string]string{v1alpha1.LabelBackup: "nightly"}},
		Spec:       v1alpha1.VolumePluginRestoreSpec{SnapshotID: "snap-9", Backup: "nightly", Plugin: "example.io/disks"},
	})
	s.startController()

	out, errOut, code := s.run("describe", "restore", "shop", "--download-timeout", testenv.Patience.String())
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	for _, want := range []string{
		"Volumes as stored with the restore:", "shop/data (pv-1)", "snapshot 4f3c1d2e, uploader restic", "8.0 GiB", "provisioned empty: no data was restored",
		"it was not backed up", "Namespace shop:\n    - cannot create web", `- odd\x1b[2J`, "Volumes of plugins:", "example.io/disks",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "Notes:") {
		t.Errorf("there is nothing to note:\n%s", out)
	}
	if n := s.requests(); n != 0 {
		t.Errorf("%d DownloadRequests are left", n)
	}
	out, _, _ = s.run("describe", "restore", "shop", "-o", "json", "--download-timeout", testenv.Patience.String())
	if !strings.Contains(out, `"ofLaterVelero": [`) {
		t.Errorf("a field of a later Velero is lost: %s", out)
	}
}

// TestDescribeWhatIsNotStored looks at files that are damaged, missing, or served by nobody.
func TestDescribeWhatIsNotStored(t *testing.T) {
	t.Parallel()
	s := newStored(t)
	out, errOut, code := s.run("describe", "restore", "shop", "--download-timeout", "300ms")
	if code != 0 || strings.Count(out, "the DownloadRequest was not answered") != 1 {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
	if n := s.requests(); n != 0 {
		t.Errorf("%d DownloadRequests are left", n)
	}
	if out, _, code = s.run("describe", "restore", "shop", "--downloads=false"); code != 0 || strings.Contains(out, "Notes:") {
		t.Errorf("exit code %d: %s", code, out)
	}

	s.startController()
	asked := func() string {
		t.Helper()
		out, errOut, code := s.run("describe", "restore", "shop", "--download-timeout", testenv.Patience.String())
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, errOut)
		}
		return out
	}
	if out := asked(); !strings.Contains(out, "no list of volumes is stored") || !strings.Contains(out, "the stored errors and warnings cannot be read: there is no such file") {
		t.Error(out)
	}
	for name, damaged := range map[string][]byte{
		"cut off":           pack(storedList)[:150],
		"not packed":        []byte(storedList),
		"an element broken": pack(strings.Replace(storedList, `"pvcName": "cache"`, `"pvcName": 7`, 1)),
	} {
		s.put("shop-volumeinfo.json.gz", damaged)
		out := asked()
		if strings.Count(out, "the stored list of volumes is incomplete") != 1 || !strings.Contains(out, "damaged") {
			t.Errorf("%s: %s", name, out)
		}
		if name == "an element broken" && !strings.Contains(out, "shop/data (pv-1)") {
			t.Errorf("what could be read is missing: %s", out)
		}
	}
}

// TestDescribeWithOldVelero describes a Restore where the CRDs know neither the file of volumes nor plugins.
func TestDescribeWithOldVelero(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	parts.ControlPlane(t)
	crds, err := controlplane.VeleroCRDs("1.10.3")
	if err != nil {
		t.Fatal(err)
	}
	c := newClusterOn(t, controlplane.ForTest(t, controlplane.Options{CRDs: crds, Dir: t.TempDir()}))
	c.Create(&velerov1.Restore{
		ObjectMeta: c.Meta("shop"), Spec: velerov1.RestoreSpec{BackupName: "nightly"},
		Status: velerov1.RestoreStatus{Phase: velerov1.RestorePhaseCompleted},
	})
	out, errOut, code := c.run("describe", "restore", "shop")
	if code != 0 || !strings.Contains(out, "Phase:     Completed") || strings.Count(out, "\n  - ") != 1 || !strings.Contains(out, "no list of volumes is stored") {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
}

// TestNoList: who is told why there is no list of volumes must be told the right reason.
func TestNoList(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]describe.Operation{
		"since 1.13":     {Kind: describe.KindBackup},
		"since 1.14":     {Kind: describe.KindRestore},
		"a dry run":      {Kind: describe.KindRestore, Items: describe.Items{Step: "Done", DryRun: true}},
		"in the cluster": {Kind: describe.KindRestore, Items: describe.Items{Step: "Done"}},
	} {
		if got := noList(&o); !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
}
