package restorecontroller

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// targets are the files that the velero CLI can ask for, by kind.
var targets = map[velerov1.DownloadTargetKind]string{
	velerov1.DownloadTargetKindBackupLog:                       "backups/b1/b1-logs.gz",
	velerov1.DownloadTargetKindBackupContents:                  "backups/b1/b1.tar.gz",
	velerov1.DownloadTargetKindBackupVolumeSnapshots:           "backups/b1/b1-volumesnapshots.json.gz",
	velerov1.DownloadTargetKindBackupItemOperations:            "backups/b1/b1-itemoperations.json.gz",
	velerov1.DownloadTargetKindBackupResourceList:              "backups/b1/b1-resource-list.json.gz",
	velerov1.DownloadTargetKindBackupResults:                   "backups/b1/b1-results.gz",
	velerov1.DownloadTargetKindBackupVolumeInfos:               "backups/b1/b1-volumeinfo.json.gz",
	velerov1.DownloadTargetKindCSIBackupVolumeSnapshots:        "backups/b1/b1-csi-volumesnapshots.json.gz",
	velerov1.DownloadTargetKindCSIBackupVolumeSnapshotContents: "backups/b1/b1-csi-volumesnapshotcontents.json.gz",
	velerov1.DownloadTargetKindRestoreLog:                      "restores/b1/restore-b1-logs.gz",
	velerov1.DownloadTargetKindRestoreResults:                  "restores/b1/restore-b1-results.gz",
	velerov1.DownloadTargetKindRestoreResourceList:             "restores/b1/restore-b1-resource-list.json.gz",
	velerov1.DownloadTargetKindRestoreItemOperations:           "restores/b1/restore-b1-itemoperations.json.gz",
	velerov1.DownloadTargetKindRestoreVolumeInfo:               "restores/b1/b1-volumeinfo.json.gz",
}

// request asks for a download as the CLI does, and returns the request when it was answered.
func (c *cluster) request(kind velerov1.DownloadTargetKind, name string) *velerov1.DownloadRequest {
	c.t.Helper()
	r := &velerov1.DownloadRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: name + "-"},
		Spec:       velerov1.DownloadRequestSpec{Target: velerov1.DownloadTarget{Kind: kind, Name: name}},
	}
	c.Create(r)
	return testenv.EventuallyGet(c.Env, r, "answered", func(r *velerov1.DownloadRequest, err error) bool {
		return err == nil && r.Status.Phase == velerov1.DownloadRequestPhaseProcessed && r.Status.DownloadURL != "" && r.Status.Expiration != nil
	})
}

// get fetches a URL as the CLI does.
func (c *cluster) get(url string) (status int, content []byte) {
	c.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.location.Spec.ObjectStorage.CACert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	c.t.Cleanup(transport.CloseIdleConnections)
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	if content, err = io.ReadAll(response.Body); err != nil {
		c.t.Fatal(err)
	}
	return response.StatusCode, content
}

// TestDownloads fetches each kind of file where the storage signs URLs, and where the controller serves them itself.
func TestDownloads(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(*testing.T) *cluster{"directory": newCluster, "S3": newClusterOnS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := place(t)
			c.backUp("b1", nil)
			for kind, key := range targets {
				c.put(key, pack(string(kind)))
			}
			c.Create(&velerov1.Restore{ // ended: nobody runs it
				ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "b1", Annotations: map[string]string{v1alpha1.AnnotationStorageLocation: "default"}},
				Spec:       velerov1.RestoreSpec{BackupName: "gone-since"},
				Status:     velerov1.RestoreStatus{Phase: velerov1.RestorePhaseCompleted},
			})
			base, serve := serveDownloads(t)
			controller, _ := c.start(func(cfg *Config) { cfg.DownloadURLBase = base })
			serve(controller)
			testenv.EventuallyGet(c.Env, c.newBackup("b1"), "there", func(_ *velerov1.Backup, err error) bool { return err == nil })
			for kind := range targets {
				url := c.request(kind, "b1").Status.DownloadURL
				if own := strings.HasPrefix(url, base+DownloadPath); own != (name == "directory") {
					t.Errorf("%s: URL %s", kind, url)
				}
				status, content := c.get(url)
				if status != http.StatusOK {
					t.Fatalf("%s: %d %s", kind, status, content)
				}
				if got := unpack(t, content); got != string(kind) {
					t.Errorf("%s: got %q", kind, got)
				}
				if status, _ := c.get(url); name == "directory" && status != http.StatusNotFound {
					t.Errorf("%s: a second fetch gives %d", kind, status)
				}
			}
		})
	}
}

func TestDownloadOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backUp("b1", nil)
	base, serve := serveDownloads(t)
	controller, _ := c.start(func(cfg *Config) { cfg.DownloadURLBase = base })
	serve(controller)
	testenv.EventuallyGet(c.Env, c.newBackup("b1"), "there", func(_ *velerov1.Backup, err error) bool { return err == nil })
	if status, content := c.get(c.request(velerov1.DownloadTargetKindBackupVolumeInfos, "b1").Status.DownloadURL); status != http.StatusNotFound {
		t.Errorf("%d %s, want that there is no such file, which the CLI takes for normal", status, content)
	}
	for _, path := range []string{"", "/", DownloadPath, DownloadPath + "guess", "/metrics"} {
		if status, _ := c.get(base + path); status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
	// Of a backup that is not known: it goes some time, as all do.
	r := &velerov1.DownloadRequest{
		ObjectMeta: c.Meta("unknown"),
		Spec:       velerov1.DownloadRequestSpec{Target: velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindBackupLog, Name: "nope"}},
	}
	c.Create(r)
	testenv.EventuallyGet(c.Env, r, "will expire", func(r *velerov1.DownloadRequest, err error) bool {
		return err == nil && r.Status.Expiration != nil && r.Status.DownloadURL == ""
	})
}

func TestExpiredRequestsGo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	past := metav1.NewTime(time.Now().Add(-time.Minute))
	download := &velerov1.DownloadRequest{
		ObjectMeta: c.Meta("old"),
		Spec:       velerov1.DownloadRequestSpec{Target: velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindBackupLog, Name: "b1"}},
		Status:     velerov1.DownloadRequestStatus{Phase: velerov1.DownloadRequestPhaseProcessed, Expiration: &past},
	}
	status := &velerov1.ServerStatusRequest{
		ObjectMeta: c.Meta("old"),
		Status:     velerov1.ServerStatusRequestStatus{Phase: velerov1.ServerStatusRequestPhaseProcessed, ProcessedTimestamp: &past},
	}
	c.Create(download)
	c.Create(status)
	c.start(nil)
	testenv.EventuallyGet(c.Env, download, "deleted", func(_ *velerov1.DownloadRequest, err error) bool { return apierrors.IsNotFound(err) })
	testenv.EventuallyGet(c.Env, status, "deleted", func(_ *velerov1.ServerStatusRequest, err error) bool { return apierrors.IsNotFound(err) })
}

func TestServerStatusIsAnswered(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start(nil)
	r := &velerov1.ServerStatusRequest{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: "velero-cli-"}}
	c.Create(r)
	testenv.EventuallyGet(c.Env, r, "answered", func(r *velerov1.ServerStatusRequest, err error) bool {
		return err == nil && r.Status.Phase == velerov1.ServerStatusRequestPhaseProcessed && r.Status.ServerVersion == "plimsoll v1.2.3"
	})
}
