//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// exitFailed is the plugin's exit code for an operation that has failed.
const exitFailed = 3

// plimsollFails runs the plugin for something that must fail, and returns all that it says.
func (c *cluster) plimsollFails(t *testing.T, args ...string) string {
	t.Helper()
	said, err := c.plimsollCommand(t, args...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitFailed {
		t.Errorf("kubectl plimsoll %s: %v, want exit code %d\n%s", strings.Join(args, " "), err, exitFailed, said)
	}
	return string(said)
}

// keepLast acknowledges a policy, and then has backups by a schedule with it push out the one before. It returns the backup that is left of each data path.
func (c *cluster) keepLast(t *testing.T, a *app, histories map[string]*history) map[string]string {
	t.Helper()
	volume := a.namespace + "/" + a.name
	forget := []string{"forget", "--keep-last", "1", "--location", location, "--volume", volume + ":" + local}
	plan := c.repositoryTask(t, forget...).Status.Retention
	c.repositoryTask(t, append(forget, "--yes", "--acknowledge", plan.Wave)...)
	left := map[string]string{}
	for uploader, h := range histories {
		if got := c.listed(t, volume, local, uploader); !slices.Equal(got, []string{h.newer}) {
			t.Errorf("%s: the policy has left %q, want %s", uploader, got, h.newer)
		}
		c.runSchedule(t, c.plimsoll(t, "volume", "backup", volume, local, "--to", location, "--uploader", uploader, "--keep-last", "1", "--schedule", "0 3 1 1 *"))
		got := c.listed(t, volume, local, uploader)
		if len(got) != 1 || got[0] == h.newer {
			t.Fatalf("%s: after a scheduled backup with --keep-last 1 there are %q", uploader, got)
		}
		left[uploader] = got[0]
	}
	return left
}

// listed returns the PodVolumeBackups of a volume by a data path that the plugin lists, the newest first.
func (c *cluster) listed(t *testing.T, pod, volume, uploader string) []string {
	t.Helper()
	var list []struct{ Name, Uploader string }
	c.decode(t, &list, "volume", "list", pod, volume, "-o", "json")
	var names []string
	for _, v := range list {
		if v.Uploader == uploader {
			names = append(names, v.Name)
		}
	}
	return names
}

// mendRepository takes the index of a repository away in the bucket, has it written again, removes a stale lock, frees what was forgotten, and
// gets the same files out of it as before.
func (c *cluster) mendRepository(t *testing.T, a *app, h *history, backup string) {
	t.Helper()
	repository := func(args ...string) []string {
		return slices.Concat([]string{"repository"}, args, []string{"--from", backup})
	}
	says := func(want string, args ...string) {
		t.Helper()
		if said := c.plimsoll(t, repository(args...)...); !strings.Contains(said, want) {
			t.Errorf("%s: repository %s says nothing of %q:\n%s", h.uploader, strings.Join(args, " "), want, said)
		}
	}
	c.loseIndex(t, a, h.uploader)
	c.plimsollFails(t, repository("check")...)
	says("Repaired", "repair", "--index")
	says("Whole", "check", "--read-data")
	if h.uploader == restic {
		c.plantLock(t, a)
		says("1 lock removed: PID 7 on node-b", "repair", "--unlock")
		says("Pruned", "prune", "--max-unused", "0", "--yes")
	} else {
		says("it had no stale lock", "repair", "--unlock")
		says("Planned", "prune", "--full")
		says("Pruned", "prune", "--full", "--yes")
	}
	says("Verified", "verify")
	dir := filepath.Join(t.TempDir(), "big")
	c.plimsoll(t, "repository", "get", "--from", backup, "big", "-o", dir)
	if got := digestOfDir(t, dir); got != h.big {
		t.Errorf("%s: big has %s, want %s", h.uploader, got, h.big)
	}
}

// loseIndex removes all files of a repository's index from the bucket.
func (c *cluster) loseIndex(t *testing.T, a *app, uploader string) {
	t.Helper()
	c.removeStored(t, path.Join("e2e", uploader, a.namespace)+map[string]string{restic: "/index/", kopia: "/x"}[uploader])
}

// removeStored removes all objects from the bucket whose keys begin so.
func (c *cluster) removeStored(t *testing.T, prefix string) {
	t.Helper()
	removed := 0
	for object := range c.storage(t).ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if err := errors.Join(object.Err, c.storage(t).RemoveObject(t.Context(), bucket, object.Key, minio.RemoveObjectOptions{})); err != nil {
			t.Fatal(err)
		}
		removed++
	}
	if removed == 0 {
		t.Fatalf("the bucket has nothing below %s", prefix)
	}
}

// plantLock puts a lock into a restic repository in the bucket, of a process elsewhere that has not renewed it for an hour.
func (c *cluster) plantLock(t *testing.T, a *app) {
	t.Helper()
	lock := resticrepo.Lock{Time: time.Now().Add(-time.Hour), Exclusive: true, Hostname: "node-b", Username: "root", PID: 7}
	name, sealed, err := lock.Seal([]byte(c.restic(t, a.namespace, "--no-lock", "cat", "masterkey")))
	if err != nil {
		t.Fatal(err)
	}
	key := path.Join("e2e", restic, a.namespace, "locks", name)
	if _, err := c.storage(t).PutObject(t.Context(), bucket, key, bytes.NewReader(sealed), int64(len(sealed)), minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

// forgetOrphans forgets a restic snapshot of a Backup that is nowhere, and lists one of kopia that has just lost its PodVolumeBackup.
func (c *cluster) forgetOrphans(t *testing.T, a *app) {
	t.Helper()
	c.restic(t, a.namespace, "backup", "/etc", "--time", "2026-01-01 00:00:00", "--host", "velero",
		"--tag", "backup=e2e-gone", "--tag", "ns="+a.namespace, "--tag", "pod="+a.name, "--tag", "volume="+local)
	before := c.resticSnapshots(t, a)
	young := c.listed(t, a.namespace+"/"+a.name, local, kopia)[0]
	c.delete(t, &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: veleroNamespace, Name: young}})

	forget := []string{"forget", "--orphans", "--sole-cluster", "--volume", a.namespace}
	plan := c.repositoryTask(t, forget...).Status.Retention
	said := map[string]string{}
	for _, v := range plan.Volumes {
		for _, s := range v.Snapshots {
			said[v.Uploader] += fmt.Sprint(s.Result, s.Rules, s.Backup)
		}
	}
	if said[restic] != "Pending[]e2e-gone" || !strings.Contains(said[kopia], "Kept[Young]") {
		t.Fatalf("the orphans are %v", said)
	}
	done := c.repositoryTask(t, append(forget, "--yes", "--acknowledge", plan.Wave)...)
	after := c.resticSnapshots(t, a)
	if done.Status.Phase != v1alpha1.PhaseCompleted || len(before) != 2 || len(after) != 1 || !slices.Contains(before, after[0]) {
		t.Errorf("%+v: there were %q, there are %q", done.Status, before, after)
	}
	left := c.listed(t, a.namespace+"/"+a.name, local, restic)[0]
	if said := c.plimsoll(t, "repository", "verify", "--from", left); !strings.Contains(said, "1 pod volume verified") {
		t.Errorf("what is left: %s", said)
	}
}

func (c *cluster) resticSnapshots(t *testing.T, a *app) []string {
	t.Helper()
	var snapshots []struct{ ID string }
	text := c.restic(t, a.namespace, "--no-lock", "snapshots", "--json")
	if err := json.Unmarshal([]byte(text), &snapshots); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var ids []string
	for _, s := range snapshots {
		ids = append(ids, s.ID)
	}
	return ids
}
