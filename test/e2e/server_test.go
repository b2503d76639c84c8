//go:build e2e

package e2e

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	beside       = "e2e-beside" // the namespace, and what names of Backups and Restores begin with
	besidePrefix = "beside"     // of the bucket
)

// TestBesideVelero does what docs/install.md says: a real Velero server is there, our node agent joins it. Then the server
// goes, and the restore controller restores what it has left in the bucket.
func TestBesideVelero(t *testing.T) {
	c := connect(t)
	s := c.newBesideApps()
	if step(t, "install beside a Velero server", c.installBesideVelero) {
		step(t, "the server backs up", func(t *testing.T) { c.testServerBacksUp(t, s) })
		step(t, "the server restores", func(t *testing.T) { c.testServerRestores(t, s) })
		step(t, "the server deletes a backup", c.testServerDeletes)
		step(t, "the server's plugin reports", c.testServerPlugin)
		step(t, "the server is gone", func(t *testing.T) { c.testServerIsGone(t, s) })
	}
	if t.Failed() {
		c.diagnose(t)
	}
	step(t, "uninstall with the server", c.uninstallBesideVelero)
}

// besideApps are pods on two nodes, one with a volume that goes with it and one with a claim.
type besideApps []*app

func (c *cluster) newBesideApps() besideApps {
	return besideApps{
		{namespace: beside, name: "web", node: c.nodes[0], uploader: kopia, volumes: []string{disk}, bytes: 40 << 20, seed: 8000},
		{namespace: beside, name: "db", node: c.nodes[1], uploader: kopia, volumes: []string{local}, bytes: 40 << 20, seed: 9000},
	}
}

// in returns the apps as a restore brings them into another namespace, and has a local volume there for those who need one.
func (s besideApps) in(t *testing.T, c *cluster, namespace string) besideApps {
	t.Helper()
	c.mu.Lock()
	c.namespaces = append(c.namespaces, namespace)
	c.mu.Unlock()
	var restored besideApps
	for _, a := range s {
		into := *a
		into.namespace = namespace
		if into.volumes[0] == local {
			c.makeLocalVolume(t, &into)
		}
		restored = append(restored, &into)
	}
	return restored
}

// installBesideVelero runs `velero install` without Velero's node agent, and installs ours.
func (c *cluster) installBesideVelero(t *testing.T) {
	c.startStorage(t)
	secret := filepath.Join(t.TempDir(), "cloud")
	if err := os.WriteFile(secret, []byte(s3Credentials), 0o600); err != nil {
		t.Fatal(err)
	}
	c.velero(t, "install", "--image", c.server, "--plugins", c.server, "--provider", "aws", "--bucket", bucket, "--prefix", besidePrefix,
		"--secret-file", secret, "--backup-location-config", "region=us-east-1,s3ForcePathStyle=true,s3Url="+c.s3,
		"--use-volume-snapshots=false", "--velero-pod-cpu-request=0", "--velero-pod-mem-request=0")
	for _, object := range c.manifests(t, "node-agent") {
		c.apply(t, object)
	}
	c.awaitAgents(t)
	eventually(t, "the server takes its backup location", func(ctx context.Context) (bool, error) {
		var store velerov1.BackupStorageLocation
		err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: location}, &store)
		return store.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable, errors.Join(err, errors.New(store.Status.Message))
	})
}

// testServerBacksUp makes two backups: the second one of what has not changed.
func (c *cluster) testServerBacksUp(t *testing.T, s besideApps) {
	c.createNamespace(t, beside)
	for _, a := range s {
		template := c.shopTemplate(a)
		template.Namespace, template.Name = a.namespace, a.name
		if volume := a.volumes[0]; volume != disk {
			template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: c.volumeSource(t, a, volume)})
		}
		c.create(t, &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec})
	}
	for _, a := range s {
		a.pod = c.awaitShopPod(t, a)
	}
	for _, name := range []string{beside + "-1", beside + "-2"} {
		c.velero(t, "backup", "create", name, "--include-namespaces", beside, "--default-volumes-to-fs-backup")
		backup := &velerov1.Backup{}
		if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: veleroNamespace, Name: name}, backup); err != nil {
			t.Fatal(err)
		}
		described := ""
		volumes := c.followBackups(t, backup, len(s), func(volumes map[types.UID]*volumeHistory) {
			if described == "" && isMoving(volumes) {
				described = percentOf.FindString(c.velero(t, "backup", "describe", name, "--details"))
			}
		})
		for _, v := range volumes {
			v.checkCompleted(t)
		}
		if changed := name == beside+"-1"; changed && described == "" {
			t.Errorf("velero backup describe --details of %s showed no percentage while the volumes moved", name)
		}
		c.checkServerBackup(t, backup, volumes)
	}
}

// percentOf matches a volume under way in what Velero's CLI prints, such as "disk (42.17%)".
var percentOf = regexp.MustCompile(`(disk|local) \(\d+\.\d\d%\)`)

// isMoving reports whether a volume is between nothing and all.
func isMoving(volumes map[types.UID]*volumeHistory) bool {
	for _, v := range volumes {
		if r := v.last(); !r.ended() && r.percent() > 0 && r.percent() < 100 {
			return true
		}
	}
	return false
}

// checkServerBackup waits for the server's end of a backup, and holds that it has taken everything from our objects.
func (c *cluster) checkServerBackup(t *testing.T, backup *velerov1.Backup, volumes map[types.UID]*volumeHistory) {
	t.Helper()
	eventually(t, "the server has completed Backup "+backup.Name, func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(backup), backup)
		return backup.Status.CompletionTimestamp != nil, errors.Join(err, errors.New(string(backup.Status.Phase)))
	})
	if backup.Status.Phase != velerov1.BackupPhaseCompleted || backup.Status.Errors > 0 || backup.Status.Warnings > 0 {
		t.Errorf("Backup %s is %s with %d errors and %d warnings:\n%s", backup.Name, backup.Status.Phase, backup.Status.Errors, backup.Status.Warnings,
			c.velero(t, "backup", "logs", backup.Name))
	}
	want := map[string]string{}
	for _, v := range volumes {
		c.checkUntouched(t, v)
		pvb := v.object.(*velerov1.PodVolumeBackup)
		want[pvb.Spec.Pod.Name] = pvb.Status.SnapshotID
	}
	got := map[string]string{}
	var stored []velerov1.PodVolumeBackup
	c.readStored(t, backup.Name, "podvolumebackups", &stored)
	for _, pvb := range stored {
		got[pvb.Spec.Pod.Name] = pvb.Status.SnapshotID
	}
	if !maps.Equal(got, want) || len(slices.Compact(slices.Sorted(maps.Values(got)))) != len(volumes) {
		t.Errorf("the bucket has snapshots %v, the cluster %v", got, want)
	}
	for what, text := range map[string]string{
		"velero backup describe":           c.velero(t, "backup", "describe", backup.Name, "--details"),
		"kubectl plimsoll describe backup": c.plimsoll(t, "describe", "backup", backup.Name),
	} {
		for _, want := range []string{"Completed", "web", disk, "db", local} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q:\n%s", what, want, text)
			}
		}
	}
}

// readStored reads one of the lists that a backup has in the bucket.
func (c *cluster) readStored(t *testing.T, backup, list string, into any) {
	t.Helper()
	key := path.Join(besidePrefix, "backups", backup, backup+"-"+list+".json.gz")
	object, err := c.storage(t).GetObject(t.Context(), bucket, key, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer object.Close()
	unpacked, err := gzip.NewReader(object)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	if err := json.NewDecoder(unpacked).Decode(into); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
}

func (c *cluster) testServerRestores(t *testing.T, s besideApps) {
	name := beside + "-restored"
	restored := s.in(t, c, name)
	c.velero(t, "restore", "create", name, "--from-backup", beside+"-2", "--namespace-mappings", beside+":"+name, "--write-sparse-files")
	restore := &velerov1.Restore{}
	if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: veleroNamespace, Name: name}, restore); err != nil {
		t.Fatal(err)
	}
	for _, v := range c.followRestores(t, restore, len(s)) {
		v.checkCompleted(t)
	}
	for _, a := range restored {
		c.checkRestoredPod(t, a)
		c.restartPod(t, a)
	}
	eventually(t, "the server has completed the Restore", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(restore), restore)
		return restore.Status.CompletionTimestamp != nil, errors.Join(err, errors.New(string(restore.Status.Phase)))
	})
	if restore.Status.Phase != velerov1.RestorePhaseCompleted || restore.Status.Errors > 0 {
		t.Errorf("the Restore is %s with %d errors:\n%s", restore.Status.Phase, restore.Status.Errors, c.velero(t, "restore", "logs", name))
	}
	described := c.velero(t, "restore", "describe", name, "--details")
	for _, want := range []string{beside + "-restored/web: disk (size: ", beside + "-restored/db: local (size: "} {
		if !strings.Contains(described, want) {
			t.Errorf("velero restore describe does not say %q:\n%s", want, described)
		}
	}
}

// testServerDeletes deletes the first backup: the server removes its objects, its files and its snapshots.
func (c *cluster) testServerDeletes(t *testing.T) {
	name := beside + "-1"
	c.velero(t, "backup", "delete", name, "--confirm")
	eventually(t, "Backup "+name+" and its PodVolumeBackups are gone", func(ctx context.Context) (bool, error) {
		var backups velerov1.BackupList
		var volumes velerov1.PodVolumeBackupList
		if err := errors.Join(
			c.client.List(ctx, &backups, client.InNamespace(veleroNamespace)),
			c.client.List(ctx, &volumes, client.InNamespace(veleroNamespace), client.MatchingLabels{velerov1.BackupNameLabel: name}),
		); err != nil {
			return false, err
		}
		return len(backups.Items) == 1 && len(volumes.Items) == 0, fmt.Errorf("%d Backups and %d PodVolumeBackups are left", len(backups.Items), len(volumes.Items))
	})
	for object := range c.storage(t).ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Prefix: path.Join(besidePrefix, "backups", name) + "/", Recursive: true}) {
		t.Errorf("the bucket still has %s (%v)", object.Key, object.Err)
	}
}

// testServerIsGone restores the other backup with the restore controller, in the server's place.
func (c *cluster) testServerIsGone(t *testing.T, s besideApps) {
	server := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: "velero"}}
	c.delete(t, server)
	eventually(t, "the server's pod is gone", func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		err := c.client.List(ctx, &pods, client.InNamespace(veleroNamespace), client.MatchingLabels{"deploy": "velero"})
		return err == nil && len(pods.Items) == 0, err
	})
	c.installRestoreController(t)
	name := beside + "-again"
	restored := s.in(t, c, name)
	c.velero(t, "restore", "create", name, "--from-backup", beside+"-2", "--namespace-mappings", beside+":"+name, "--write-sparse-files")
	restore, _ := c.followRestore(t, name)
	if restore.Status.Phase != velerov1.RestorePhaseCompleted || restore.Status.Errors > 0 {
		t.Errorf("the Restore is %s with %d errors: %s\n%s", restore.Status.Phase, restore.Status.Errors, restore.Status.FailureReason,
			c.velero(t, "restore", "logs", name))
	}
	for _, a := range restored {
		c.checkRestoredPod(t, a)
	}
}

// uninstallBesideVelero removes our parts, then Velero's with Velero's own command.
func (c *cluster) uninstallBesideVelero(t *testing.T) {
	c.forgetOperations(t)
	c.deleteManifests(t, "node-agent")
	c.velero(t, "uninstall", "--force")
	c.removeRest(t)
}
