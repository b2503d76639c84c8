//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

const (
	migrated       = "e2e-migrate" // the namespace, and the name of its Backup
	migratedCopy   = migrated + "-kopia"
	migratedPrefix = "migrate" // of the bucket
)

// TestMigrate takes the way of a cluster whose Velero makes its backups with restic: a server and node agents of 1.16 back up,
// `repository migrate` copies, and a server and node agents of 1.18 restore the copy. They know the backup from the bucket only. Our node
// agent is not installed.
func TestMigrate(t *testing.T) {
	c := connect(t)
	a := &app{namespace: migrated, name: "web", node: c.nodes[0], uploader: kopia, volumes: []string{disk}, kopiaTimes: true, bytes: 20 << 20, seed: 10000}
	c.startStorage(t)
	passed := step(t, "Velero 1.16 backs up with restic", func(t *testing.T) { c.testOldServerBacksUp(t, a) }) &&
		step(t, "migrate", c.testMigrate) &&
		step(t, "Velero 1.18 restores the copy", func(t *testing.T) { c.testNewServerRestores(t, a) })
	if !passed {
		c.diagnose(t)
	}
	step(t, "uninstall Velero 1.18", func(t *testing.T) {
		c.velero(t, "uninstall", "--force")
		c.removeRest(t)
	})
}

func (c *cluster) testOldServerBacksUp(t *testing.T, a *app) {
	c.installVelero(t, parts.Velero116(t), c.oldServer, "restic")
	c.createNamespace(t, a.namespace)
	template := c.shopTemplate(a)
	template.Namespace, template.Name = a.namespace, a.name
	// Velero's restore helper is user 1000 and cannot remove the directory of its node agent, which is root.
	tidy := c.container(a, "tidy", []string{"remove", "/volumes/" + disk + "/.velero"})
	template.Spec.InitContainers = slices.Insert(template.Spec.InitContainers, 0, tidy)
	c.create(t, &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec})
	a.pod = c.awaitShopPod(t, a)
	c.runVelero(t, parts.Velero116(t), "backup", "create", migrated, "--include-namespaces", migrated, "--default-volumes-to-fs-backup")
	c.awaitServersBackup(t, migrated)
	pvb := c.onlyPodVolumeBackup(t, migrated)
	if pvb.Spec.UploaderType != restic || pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted || pvb.Status.SnapshotID == "" {
		t.Fatalf("the PodVolumeBackup of Velero 1.16 is %+v, %+v", pvb.Spec, pvb.Status)
	}
}

// testMigrate reads the Backup out of the restic repository and the bucket, copies it, and removes Velero 1.16 with all of its objects.
func (c *cluster) testMigrate(t *testing.T) {
	for _, dir := range []string{"../../deploy/crds", "repository-tasks"} {
		for _, object := range c.manifests(t, dir) {
			c.apply(t, object)
		}
		defer c.deleteManifests(t, dir)
	}
	c.awaitDeployment(t, "plimsoll-repository-tasks")
	c.readByBackup(t)
	t.Log(c.plimsoll(t, "repository", "migrate", "--backup", migrated))
	c.plimsoll(t, "repository", "migrate", "--all", "--dry-run") // which fails where something is left
	c.runVelero(t, parts.Velero116(t), "uninstall", "--force")
	c.awaitGone(t, []string{veleroNamespace})
}

// readByBackup names a Backup of a server in place of a PodVolumeBackup, so that its list of volumes in the bucket is read, too.
func (c *cluster) readByBackup(t *testing.T) {
	t.Helper()
	if said := c.plimsoll(t, "repository", "verify", "--backup", migrated); !strings.Contains(said, "1 pod volume verified") {
		t.Errorf("verify --backup says %s", said)
	}
	volume := []string{"--backup", migrated, "--volume", migrated + "/web:" + disk}
	dir := filepath.Join(t.TempDir(), "big")
	c.plimsoll(t, slices.Concat([]string{"repository", "get"}, volume, []string{"big", "-o", dir})...)
	if got, want := digestOfDir(t, dir), c.inApp(t, &app{namespace: migrated, name: "web"}, "digest", "/volumes/"+disk+"/big"); got != want {
		t.Errorf("get --backup brings %s, want %s", got, want)
	}
	for _, args := range [][]string{{"ls", "big"}, {"find", "--name", "half"}} {
		if said := c.plimsoll(t, slices.Concat([]string{"repository"}, args, volume)...); !strings.Contains(said, "big/half") {
			t.Errorf("repository %s --backup says %s", args[0], said)
		}
	}
}

func (c *cluster) testNewServerRestores(t *testing.T, a *app) {
	c.installVelero(t, parts.Velero(t), c.server, "kopia")
	eventually(t, "Velero 1.18 knows the copy", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: migratedCopy}, &velerov1.Backup{})
		return err == nil, err
	})
	into := *a
	into.namespace = migrated + restoredSuffix
	c.mu.Lock()
	c.namespaces = append(c.namespaces, into.namespace)
	c.mu.Unlock()
	c.velero(t, "restore", "create", migratedCopy, "--from-backup", migratedCopy, "--namespace-mappings", migrated+":"+into.namespace, "--write-sparse-files")
	restore := &velerov1.Restore{}
	eventually(t, "Velero 1.18 has ended the Restore", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: migratedCopy}, restore)
		return restore.Status.CompletionTimestamp != nil, errors.Join(err, errors.New(string(restore.Status.Phase)))
	})
	// There may be one warning: Kubernetes gives each new namespace a ConfigMap kube-root-ca.crt, and Velero finds it there.
	if restore.Status.Phase != velerov1.RestorePhaseCompleted || restore.Status.Errors > 0 || restore.Status.Warnings > 1 {
		t.Errorf("the Restore is %s with %d errors and %d warnings:\n%s", restore.Status.Phase, restore.Status.Errors, restore.Status.Warnings, c.velero(t, "restore", "logs", restore.Name))
	}
	c.checkRestoredPod(t, &into)
	c.checkRestoredByVelero(t, &into)
}

// checkRestoredByVelero holds that the data has come through Velero's own programs, and out of a kopia snapshot.
func (c *cluster) checkRestoredByVelero(t *testing.T, a *app) {
	t.Helper()
	wait := c.awaitShopPod(t, a).Spec.InitContainers[0]
	if wait.Name != "restore-wait" || wait.Image != c.server {
		t.Errorf("the first init container is %s of image %s, want restore-wait of %s", wait.Name, wait.Image, c.server)
	}
	var volumes velerov1.PodVolumeRestoreList
	if err := c.client.List(t.Context(), &volumes, client.InNamespace(veleroNamespace)); err != nil {
		t.Fatal(err)
	}
	if len(volumes.Items) != 1 {
		t.Fatalf("there are %d PodVolumeRestores, want 1", len(volumes.Items))
	}
	pvr, pvb := volumes.Items[0], c.onlyPodVolumeBackup(t, migratedCopy)
	if pvr.Spec.UploaderType != kopia || pvr.Spec.SnapshotID != pvb.Status.SnapshotID || pvr.Status.Phase != velerov1.PodVolumeRestorePhaseCompleted {
		t.Errorf("the PodVolumeRestore is %+v, %+v; its PodVolumeBackup has snapshot %s", pvr.Spec, pvr.Status, pvb.Status.SnapshotID)
	}
}

// installVelero runs `velero install` with Velero's own node agent, and waits until server, agents and location are ready.
func (c *cluster) installVelero(t *testing.T, program, image, uploader string) {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "cloud")
	if err := os.WriteFile(secret, []byte(s3Credentials), 0o600); err != nil {
		t.Fatal(err)
	}
	c.runVelero(t, program, "install", "--image", image, "--plugins", image, "--provider", "aws", "--bucket", bucket, "--prefix", migratedPrefix,
		"--secret-file", secret, "--backup-location-config", "region=us-east-1,s3ForcePathStyle=true,s3Url="+c.s3,
		"--use-volume-snapshots=false", "--use-node-agent", "--uploader-type", uploader,
		"--velero-pod-cpu-request=0", "--velero-pod-mem-request=0", "--node-agent-pod-cpu-request=0", "--node-agent-pod-mem-request=0")
	c.awaitDeployment(t, "velero")
	c.awaitAgents(t)
	eventually(t, "the server takes its backup location", func(ctx context.Context) (bool, error) {
		var store velerov1.BackupStorageLocation
		err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: location}, &store)
		return store.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable, errors.Join(err, errors.New(store.Status.Message))
	})
}

func (c *cluster) awaitDeployment(t *testing.T, name string) {
	t.Helper()
	eventually(t, "Deployment "+name+" is available", func(ctx context.Context) (bool, error) {
		var now appsv1.Deployment
		err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: name}, &now)
		return now.Status.AvailableReplicas > 0 && now.Status.ObservedGeneration == now.Generation, errors.Join(err, fmt.Errorf("%+v", now.Status))
	})
}

// awaitServersBackup waits for the end of a Backup, which must be without errors.
func (c *cluster) awaitServersBackup(t *testing.T, name string) {
	t.Helper()
	backup := &velerov1.Backup{}
	eventually(t, "the server has completed Backup "+name, func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, types.NamespacedName{Namespace: veleroNamespace, Name: name}, backup)
		return backup.Status.CompletionTimestamp != nil, errors.Join(err, errors.New(string(backup.Status.Phase)))
	})
	if backup.Status.Phase != velerov1.BackupPhaseCompleted || backup.Status.Errors > 0 {
		t.Fatalf("Backup %s is %s with %d errors: %s", name, backup.Status.Phase, backup.Status.Errors, strings.Join(backup.Status.ValidationErrors, ", "))
	}
}

// onlyPodVolumeBackup returns the one PodVolumeBackup that a Backup has.
func (c *cluster) onlyPodVolumeBackup(t *testing.T, backup string) *velerov1.PodVolumeBackup {
	t.Helper()
	var volumes velerov1.PodVolumeBackupList
	if err := c.client.List(t.Context(), &volumes, client.InNamespace(veleroNamespace), client.MatchingLabels{velerov1.BackupNameLabel: backup}); err != nil {
		t.Fatal(err)
	}
	if len(volumes.Items) != 1 {
		t.Fatalf("Backup %s has %d PodVolumeBackups, want 1", backup, len(volumes.Items))
	}
	return &volumes.Items[0]
}
