package nodeagent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/kopiarepo"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

func newRestic(t *testing.T) uploader.Uploader {
	t.Helper()
	u, err := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{CacheDir: t.TempDir(), TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// newRestic is newRestic with a repository for volumes of the cluster's namespace.
func (c *cluster) newRestic(t *testing.T) uploader.Uploader {
	t.Helper()
	resticrepo.Create(t, filepath.Join(c.repos, "restic", c.Namespace))
	return newRestic(t)
}

// newKopia is newKopia with a repository for volumes of the cluster's namespace.
func (c *cluster) newKopia(t *testing.T) uploader.Uploader {
	t.Helper()
	kopiarepo.Create(t, filepath.Join(c.repos, "kopia", c.Namespace))
	return newKopia(t)
}

func newKopia(t *testing.T) uploader.Uploader {
	t.Helper()
	u, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), CacheDir: t.TempDir(), TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestLifeOfAVolume backs a volume up and restores it, with real data paths and the CRDs of each generation of Velero.
func TestLifeOfAVolume(t *testing.T) {
	t.Parallel()
	for _, velero := range []string{"1.14.1", "1.16.2", "1.18.3"} {
		for _, data := range []string{"restic", "kopia"} {
			t.Run(velero+"/"+data, func(t *testing.T) {
				if velero != controlplane.LatestVelero {
					parts.Slow(t)
				}
				t.Parallel()
				testLifeOfAVolume(t, velero, data)
			})
		}
	}
}

func testLifeOfAVolume(t *testing.T, velero, data string) {
	c := newCluster(t, velero)
	both := func(cfg *Config) {
		cfg.Uploaders = map[string]uploader.Uploader{"restic": newRestic(t), "kopia": newKopia(t)}
	}
	agent, _ := c.startAgent(nil, both)
	source := c.pod("source", "data")
	spec := tree.Spec{Bytes: 4 << 20, Plain: data == "kopia"}
	if err := tree.Make(c.dir(source, "data"), spec); err != nil {
		t.Fatal(err)
	}
	pvb := c.newBackup(source, "data")
	pvb.Spec.UploaderType = data
	c.Create(pvb)
	backed := c.end(pvb).Object.(*velerov1.PodVolumeBackup)
	checkBackup(t, backed, c.dir(source, "data"))
	if velero == controlplane.LatestVelero && backed.Status.IncrementalBytes == 0 {
		t.Error("incrementalBytes is missing although the CRD has it")
	}

	target := c.pod("target", "data")
	pvr := c.newRestore(target, "data", backed.Status.SnapshotID)
	pvr.Spec.UploaderType = data
	c.Create(pvr)
	c.setInitContainer(target, running)
	restored := c.end(pvr)
	if restored.Phase != podvolume.PhaseCompleted || restored.BytesDone != restored.TotalBytes || restored.TotalBytes == 0 {
		t.Fatalf("restore ended as %s", describe([]podvolume.PodVolume{restored}))
	}
	if !marked(t, c.dir(target, "data"), string(c.restore.UID)) {
		t.Error("no done file")
	}
	c.setInitContainer(target, exited)
	testenv.Eventually(t, "nothing of ours is in the volume", func() bool {
		_, err := os.Lstat(filepath.Join(c.dir(target, "data"), donefile.Dir))
		return errors.Is(err, os.ErrNotExist)
	})
	differences, err := tree.Compare(c.dir(source, "data"), c.dir(target, "data"), tree.Options{Plain: spec.Plain})
	if err != nil {
		t.Fatal(err)
	}
	if len(differences) > 0 {
		t.Errorf("restored volume differs:\n%s", strings.Join(differences, "\n"))
	}
	c.event(pvb, v1alpha1.EventCompleted)
	c.event(pvr, v1alpha1.EventStarted)
	if list := agent.Operations(); len(list) != 0 {
		t.Errorf("operations left: %+v", list)
	}
}

func checkBackup(t *testing.T, b *velerov1.PodVolumeBackup, dir string) {
	t.Helper()
	s := b.Status
	if s.Phase != velerov1.PodVolumeBackupPhaseCompleted || s.SnapshotID == "" || s.Path != dir || s.Message != "" {
		t.Fatalf("backup ended as %+v", s)
	}
	if s.StartTimestamp == nil || s.CompletionTimestamp == nil || s.Progress.TotalBytes == 0 || s.Progress.BytesDone != s.Progress.TotalBytes {
		t.Errorf("terminal write lacks something: %+v", s)
	}
	if early := s.CompletionTimestamp.Sub(b.CreationTimestamp.Time); early < 0 {
		t.Errorf("completed %s before its creation", -early)
	}
	if p := annotated(t, podvolume.FromBackup(b)); p.State != progress.StateCompleted || p.Attempt != 1 || p.BytesDone != s.Progress.BytesDone {
		t.Errorf("annotation says %+v", p)
	}
}

// TestTerminalWriteIsNotTooEarly holds the terminal write against the servers that crash over a fast one.
func TestTerminalWriteIsNotTooEarly(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "1.14.1")
	c.startAgent(c.newRestic(t), func(cfg *Config) { cfg.MinBackupAge = 0 }) // the default
	pvb := c.newBackup(c.pod("source", "data"), "data")                      // empty: nothing takes less time
	c.Create(pvb)
	end := c.end(pvb)
	if message(end) != "volume was empty so no snapshot was taken" || end.Phase != podvolume.PhaseCompleted {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	var written time.Time
	for _, f := range end.Object.GetManagedFields() {
		if f.Time != nil && f.Time.After(written) {
			written = f.Time.Time
		}
	}
	if took := written.Sub(end.Object.GetCreationTimestamp().Time); took < 2*time.Second {
		t.Errorf("terminal write %s after the creation", took)
	}
}

func TestIncrementalBackupUsesTheClaimsLastSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.startAgent(c.newRestic(t), nil)
	pod := c.pod("source", "data")
	write(t, filepath.Join(c.dir(pod, "data"), "file"), strings.Repeat("x", 1<<20))
	labeled := func() *velerov1.PodVolumeBackup {
		pvb := c.newBackup(pod, "data")
		pvb.Labels[velerov1.PVCUIDLabel] = "claim-1"
		c.Create(pvb)
		return c.end(pvb).Object.(*velerov1.PodVolumeBackup)
	}
	first, second := labeled(), labeled()
	if first.Status.IncrementalBytes == 0 || second.Status.IncrementalBytes >= first.Status.IncrementalBytes {
		t.Errorf("first backup added %d bytes, an unchanged second one %d", first.Status.IncrementalBytes, second.Status.IncrementalBytes)
	}
}

// TestVolumeIsComparedWithItself: a claim outlives its pods and keeps its chain. Another volume gets neither its parent nor its identity, although pod
// and volume have the same names.
func TestVolumeIsComparedWithItself(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	c.startAgent(data, nil)
	backUp := func(pod *corev1.Pod, claim string) (req uploader.BackupRequest, snapshot string) {
		write(t, filepath.Join(c.dir(pod, "data"), "file"), "content")
		pvb := c.newBackup(pod, "data")
		if claim != "" {
			pvb.Labels[velerov1.PVCUIDLabel] = claim
		}
		c.Create(pvb)
		snapshot = c.end(pvb).Object.(*velerov1.PodVolumeBackup).Status.SnapshotID
		for _, call := range data.Calls() {
			if call.Backup != nil {
				req = *call.Backup
			}
		}
		return req, snapshot
	}
	pod := c.pod("web-0", "data")
	first, snapshot := backUp(pod, "claim-1")
	second, _ := backUp(pod, "claim-1")
	if first.Parent != "" || second.Parent != snapshot || first.VolumeID != "claim-1" || second.VolumeID != "claim-1" {
		t.Errorf("the claim's parents are %q and %q, want none and %q; it is called %q and %q", first.Parent, second.Parent, snapshot, first.VolumeID, second.VolumeID)
	}
	if anew, _ := backUp(pod, "claim-2"); anew.Parent != "" || anew.VolumeID != "claim-2" {
		t.Errorf("a claim made anew: parent %q, called %q", anew.Parent, anew.VolumeID)
	}
	if without, _ := backUp(pod, ""); without.Parent != "" || without.VolumeID != string(pod.UID)+"/data" {
		t.Errorf("without a claim: parent %q, called %q", without.Parent, without.VolumeID)
	}
}

func TestProgressEndpoint(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	hold := newHolding()
	agent, _ := c.startAgent(hold.fake(t), nil)
	pvb := c.newBackup(c.pod("source", "data"), "data")
	c.Create(pvb)
	<-hold.started
	rec := httptest.NewRecorder()
	agent.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/progress", http.NoBody))
	for _, want := range []string{`"kind":"backup"`, `"volume":"data"`, `"state":"Transferring"`, `"bytesDone":50`, `"node":"` + c.node} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("/progress lacks %s: %s", want, rec.Body)
		}
	}
	close(hold.release)
	c.end(pvb)
}
