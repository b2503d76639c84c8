//go:build e2e

package e2e

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// browser is a user who has the role plimsoll-repository-files, and no other right.
const browser = "e2e-browser"

// testRepository lists, compares and gets files out of backups that the steps before have made with both data paths, through the API server and
// kubelet.
func (c *cluster) testRepository(t *testing.T) {
	for _, dir := range []string{"../../deploy/crds", "repository-tasks"} {
		for _, object := range c.manifests(t, dir) {
			c.apply(t, object)
		}
		defer c.deleteManifests(t, dir)
	}
	eventually(t, "the API server knows FileRequests", func(ctx context.Context) (bool, error) {
		err := c.client.List(ctx, &v1alpha1.FileRequestList{}, client.InNamespace(veleroNamespace))
		return err == nil, err
	})
	c.create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: browser},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: browser}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "plimsoll-repository-files"},
	})
	var backups velerov1.PodVolumeBackupList
	if err := c.client.List(t.Context(), &backups, client.InNamespace(veleroNamespace)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]*velerov1.PodVolumeBackup{}
	for i := range backups.Items {
		pvb := &backups.Items[i]
		if kind := pvb.Spec.UploaderType; seen[kind] == nil && pvb.Spec.Volume == disk && strings.HasPrefix(pvb.Spec.Pod.Namespace, "e2e-"+kind) && pvb.Status.SnapshotID != "" {
			seen[kind] = pvb
			c.browse(t, pvb)
			c.compare(t, pvb, anotherOf(backups.Items, pvb))
		}
	}
	if len(seen) != 2 {
		t.Fatalf("backups were browsed of %v", seen)
	}
	c.proveBySchedule(t)
	c.proveBySample(t)
	c.proveByRestore(t, seen)
	c.maintain(t, seen)
	c.compareBackups(t)
	c.proveByBudget(t)
	c.forgetOld(t)
	c.resumeGet(t)
	c.testPaths(t)
}

// maintain finds a file, and checks, measures and prunes the repository of each data path on S3, next to the credentials.
func (c *cluster) maintain(t *testing.T, backups map[string]*velerov1.PodVolumeBackup) {
	t.Helper()
	for kind, pvb := range backups {
		for _, step := range []struct {
			result string
			args   []string
		}{
			{"Whole", []string{"check", "--read-data"}},
			{"Measured", []string{"usage", "--refresh"}},
			{"Planned", []string{"prune"}},
			{"Pruned", []string{"prune", "--yes"}},
			{"Whole", []string{"check"}},
			{"Verified", []string{"verify"}},
		} {
			said := c.plimsoll(t, slices.Concat([]string{"repository"}, step.args, []string{"--from", pvb.Name})...)
			t.Logf("%s: %s\n%s", kind, strings.Join(step.args, " "), said)
			if !strings.Contains(said, step.result) {
				t.Errorf("%s: repository %s says nothing of %s", kind, strings.Join(step.args, " "), step.result)
			}
		}
	}
	if said := c.plimsoll(t, "--as", browser, "repository", "find", "--latest", "--name", "*", "--volume", backups[kopia].Spec.Pod.Namespace+"/"+backups[kopia].Spec.Pod.Name+":"+disk); strings.Count(said, "\n") < 2 {
		t.Errorf("find: %s", said)
	}
}

// proveByRestore restores a backup of each data path into a scratch claim on a real node, through scheduler, kubelet and node agent, and compares it.
func (c *cluster) proveByRestore(t *testing.T, backups map[string]*velerov1.PodVolumeBackup) {
	t.Helper()
	for _, object := range c.manifests(t, "../../deploy/repository-tasks-restore") {
		c.apply(t, object)
	}
	defer c.deleteManifests(t, "../../deploy/repository-tasks-restore")
	for kind, pvb := range backups {
		// The class provisions nothing by itself: one local volume is free.
		c.makeLocalVolume(t, &app{namespace: ownNamespace, name: "scratch-" + kind, node: c.nodes[0]})
		task := c.repositoryTask(t, "verify", "--from", pvb.Name, "--restore-to", storageClass, "--restore-size", "1Gi")
		if v := task.Status.Volumes[0]; task.Status.Phase != v1alpha1.PhaseCompleted || v.Result != v1alpha1.VolumeVerified || v.StorageClassName != storageClass || v.Files == 0 {
			t.Errorf("%s: %+v", kind, task.Status)
		}
		var claims corev1.PersistentVolumeClaimList
		if err := c.client.List(t.Context(), &claims, client.InNamespace(veleroNamespace)); err != nil || len(claims.Items) > 0 {
			t.Errorf("%s: left are %v, %v", kind, claims.Items, err)
		}
	}
}

// proveBySchedule proves the newest backup of each volume as `repository verify --schedule` does, on real nodes and S3.
func (c *cluster) proveBySchedule(t *testing.T) {
	t.Helper()
	c.runSchedule(t, c.plimsoll(t, "repository", "verify", "--latest", "--schedule", "0 5 1 1 *"))
	var proofs []struct{ Volume, State string }
	text := c.plimsoll(t, "repository", "proofs", "-o", "json")
	if err := json.Unmarshal([]byte(text), &proofs); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, p := range proofs {
		if p.State != "Proven" && p.State != "Empty" {
			t.Errorf("%+v", p)
		}
	}
	t.Log(c.plimsoll(t, "repository", "proofs"))
}

// proveBySample reads half of what kopia has in the newest backup of each volume, and all of what restic has.
func (c *cluster) proveBySample(t *testing.T) {
	t.Helper()
	task := c.repositoryTask(t, "verify", "--latest", "--sample", "50%")
	results := map[v1alpha1.VolumeResult]int{}
	for _, v := range task.Status.Volumes {
		results[v.Result]++
	}
	if results[v1alpha1.VolumeSampled] == 0 || results[v1alpha1.VolumeVerified] == 0 || len(results) > 2 {
		t.Errorf("the results are %v", results)
	}
	if said := c.plimsoll(t, "repository", "proofs"); !strings.Contains(said, "SAMPLED") {
		t.Errorf("proofs:\n%s", said)
	}
}

// browse compares the list of a backup's files with its archive, and gets one of them.
func (c *cluster) browse(t *testing.T, pvb *velerov1.PodVolumeBackup) {
	t.Helper()
	repository := func(args ...string) string {
		return c.plimsoll(t, append([]string{"--as", browser, "repository"}, args...)...)
	}
	var files []struct {
		Path, Type string
		Size       int64
	}
	said := repository("ls", "--from", pvb.Name, "-R", "-o", "json")
	if err := json.Unmarshal([]byte(said), &files); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	var bytes, archived int64
	one := -1
	for i, f := range files {
		bytes += f.Size
		if f.Type == "file" && f.Size > 0 && !strings.ContainsRune(f.Path, '\uFFFD') {
			one = i
		}
	}
	for archive := tar.NewReader(strings.NewReader(repository("get", "--from", pvb.Name, "-o", "-"))); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		archived += header.Size
	}
	if one < 0 || bytes != archived {
		t.Fatalf("%s: %d entries with %d bytes are listed, and %d bytes are in the archive", pvb.Spec.UploaderType, len(files), bytes, archived)
	}
	into := filepath.Join(t.TempDir(), "file")
	repository("get", "--from", pvb.Name, files[one].Path, "-o", into)
	if info, err := os.Stat(into); err != nil || info.Size() != files[one].Size {
		t.Errorf("%s: %v, want %d bytes", files[one].Path, err, files[one].Size)
	}
}

// anotherOf returns another snapshot of the repository of one, of any volume; the same one if there is none.
func anotherOf(all []velerov1.PodVolumeBackup, one *velerov1.PodVolumeBackup) *velerov1.PodVolumeBackup {
	for i := range all {
		pvb := &all[i]
		if pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && pvb.Status.SnapshotID != "" && pvb.Status.SnapshotID != one.Status.SnapshotID && pvb.Spec.UploaderType == one.Spec.UploaderType &&
			pvb.Spec.BackupStorageLocation == one.Spec.BackupStorageLocation && pvb.Spec.Pod.Namespace == one.Spec.Pod.Namespace {
			return pvb
		}
	}
	return one
}

// compare holds the comparison of two snapshots against their lists.
func (c *cluster) compare(t *testing.T, from, to *velerov1.PodVolumeBackup) {
	t.Helper()
	read := func(into any, args ...string) {
		said := c.plimsoll(t, append(append([]string{"--as", browser, "repository"}, args...), "-o", "json")...)
		if err := json.Unmarshal([]byte(said), into); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
	}
	var older, newer []struct{ Path string }
	read(&older, "ls", "--from", from.Name, "-R")
	read(&newer, "ls", "--from", to.Name, "-R")
	var got struct {
		Changes []struct{ Path string }
		Totals  struct {
			Added, Removed struct{ Entries int }
			Changed        int
		}
	}
	read(&got, "diff", "--from", from.Name, "--to", to.Name)
	if sum := got.Totals; len(newer)-len(older) != sum.Added.Entries-sum.Removed.Entries || len(got.Changes) != sum.Added.Entries+sum.Removed.Entries+sum.Changed {
		t.Errorf("%s: of %d and %d entries %d differ: %+v", from.Spec.UploaderType, len(older), len(newer), len(got.Changes), sum)
	}
	if from == to && len(got.Changes) > 0 {
		t.Errorf("%s: a snapshot differs from itself: %v", from.Spec.UploaderType, got.Changes)
	}
}

// compareBackups changes a volume of each data path, backs both up again, and compares the two Backups of each by their names.
func (c *cluster) compareBackups(t *testing.T) {
	t.Helper()
	const later = "later"
	backup := c.beginBackup(t, later)
	volumes := map[string]*app{}
	for _, uploader := range []string{restic, kopia} {
		a := &app{namespace: "e2e-" + uploader, name: "app-" + c.nodes[0], node: c.nodes[0], uploader: uploader, volumes: []string{disk}, pod: &corev1.Pod{}}
		if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: a.namespace, Name: a.name}, a.pod); err != nil {
			t.Fatal(err)
		}
		c.inApp(t, a, "remove", "/volumes/disk/big/part-0")
		c.inApp(t, a, "write", "/volumes/disk/big/part-1", "changed", "2026-01-01T00:00:00Z")
		c.inApp(t, a, "write", "/volumes/disk/new/file", "added", "2026-01-01T00:00:00Z")
		c.requestBackups(t, backup, a)
		volumes[uploader] = a
	}
	for _, v := range c.followBackups(t, backup, len(volumes), nil) {
		v.checkCompleted(t)
	}
	c.endBackup(t, backup)
	for _, name := range []string{restic, kopia, later} {
		defer c.storeBackup(t, name)()
	}
	for uploader, a := range volumes {
		var diff struct {
			From, To struct{ Backup string }
			Changes  []struct{ Path, Change string }
		}
		diffing := c.plimsollCommand(t, "--as", browser, "repository", "diff", "--backup", uploader, "--to-backup", later, "--volume", a.namespace+"/"+a.name+":"+disk, "-o", "json")
		var problems strings.Builder
		diffing.Stderr = &problems
		said, err := diffing.Output()
		if err := errors.Join(err, json.Unmarshal(said, &diff)); err != nil || problems.Len() > 0 {
			t.Fatalf("%v\n%s%s", err, said, &problems)
		}
		changes := map[string]string{}
		for _, change := range diff.Changes {
			changes[change.Path] = change.Change
		}
		delete(changes, "big") // its time
		want := map[string]string{"big/part-0": "removed", "big/part-1": "changed", "new": "added", "new/file": "added"}
		if !maps.Equal(changes, want) || diff.From.Backup != uploader || diff.To.Backup != later {
			t.Errorf("%s: diff says %s", uploader, said)
		}
	}
}

// storeBackup puts what a server stores of a Backup into the bucket. remove takes it away.
func (c *cluster) storeBackup(t *testing.T, name string) (remove func()) {
	t.Helper()
	stored := velero.Stored{Version: velero.V1_18, Backup: &velerov1.Backup{}}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: veleroNamespace, Name: name}, stored.Backup); err != nil {
		t.Fatal(err)
	}
	var volumes velerov1.PodVolumeBackupList
	if err := c.client.List(t.Context(), &volumes, client.InNamespace(veleroNamespace), client.MatchingLabels{velerov1.BackupUIDLabel: string(stored.Backup.UID)}); err != nil {
		t.Fatal(err)
	}
	stored.PodVolumeBackups = volumes.Items
	c.upload(t, stored)
	return func() {
		c.removeStored(t, path.Join("e2e", "backups", name)+"/")
	}
}

// repositoryTask runs a command of `kubectl plimsoll repository`, and returns its RepositoryTask.
func (c *cluster) repositoryTask(t *testing.T, args ...string) *v1alpha1.RepositoryTask {
	t.Helper()
	task := &v1alpha1.RepositoryTask{}
	said := c.plimsoll(t, append(append([]string{"repository"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(said), task); err != nil {
		t.Fatalf("repository %s: %v\n%s", strings.Join(args, " "), err, said)
	}
	return task
}
