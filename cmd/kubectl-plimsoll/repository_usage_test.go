package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

// TestRepositoryUsage measures a repository, shows that again without a second task, and names what cannot be measured.
func TestRepositoryUsage(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	data, err := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.store, "restic", "shop")
	resticrepo.Create(t, dir)
	c.storeWithRestic(data, dir)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, UsageReaders: map[string]uploader.UsageReader{"restic": data}, Verifiers: map[string]uploader.Verifier{"restic": data},
			ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})
	out, errOut, code := c.run("repository", "usage")
	t.Log(out, errOut)
	row := regexp.MustCompile(`(?m)^default/shop  restic    Measured  1\.\d MiB  -       1          .* ago  .* ago  1\.0 MiB  1\.00           1\.00         -$`)
	volume := regexp.MustCompile(`(?m)^shop/db-0:data  default   restic    1          .* ago  1\.0 MiB  -       -      1\.0 MiB  -$`)
	if code != 0 || !row.MatchString(out) || !volume.MatchString(out) || !strings.Contains(out, "1 repository measured: 1 snapshot, 1.") {
		t.Errorf("code %d", code)
	}
	tasks := func() int {
		t.Helper()
		var list v1alpha1.RepositoryTaskList
		if err := c.Client.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range list.Items {
			if list.Items[i].Namespace == c.Namespace && list.Items[i].Spec.Type == v1alpha1.TaskUsage {
				n++
			}
		}
		return n
	}
	out, errOut, code = c.run("repository", "usage")
	if code != 0 || tasks() != 1 || !row.MatchString(out) || !strings.HasPrefix(errOut, "Measured ") || !strings.Contains(errOut, " ago by RepositoryTask usage-latest-") {
		t.Errorf("shown again: code %d, %d tasks: %s%s", code, tasks(), out, errOut)
	}
	if _, errOut, code := c.run("repository", "verify", "--latest"); code != 0 {
		t.Errorf("verify: code %d: %s", code, errOut)
	}
	proven := func(want string) {
		t.Helper()
		out, errOut, code := c.run("repository", "usage")
		if code != 0 || tasks() != 1 || !regexp.MustCompile(`(?m)^shop/db-0:data  .*  1\.0 MiB  `+want+`$`).MatchString(out) || strings.Contains(errOut, "those of then") {
			t.Errorf("code %d, %d tasks: %s%s", code, tasks(), out, errOut)
		}
	}
	proven(`\d+s ago`)
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: c.Meta("nightly-1")}
	c.Patch(pvb, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":"`+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+`"}}}`)
	proven("Damaged")
	c.Patch(pvb, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":null}}}`)
	out, errOut, code = c.run("repository", "usage", "--refresh", "-o", "json")
	var task v1alpha1.RepositoryTask
	if err := json.Unmarshal([]byte(out), &task); err != nil || code != 0 || tasks() != 2 {
		t.Fatalf("code %d, %d tasks, %v: %s%s", code, tasks(), err, out, errOut)
	}
	u := task.Status.Repositories[0].Usage
	if u.GrowthBytes == nil || *u.GrowthBytes != 0 || u.Volumes[0].VerifiedTimestamp == nil || *u.LogicalBytes != 1<<20 {
		t.Errorf("%+v", u)
	}
	out, _, code = c.run("explain", "repositorytask", task.Name)
	if code != 0 || !strings.Contains(out, "every repository was measured") {
		t.Errorf("explain: code %d: %s", code, out)
	}

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	out, errOut, code = c.run("repository", "usage", "--backup", "nightly") // nobody has measured that selection
	if code != exitFailed || !strings.Contains(errOut, "not measured (RepositoryNotFound)") || !strings.Contains(out, "default/shop  restic    Failed  ?") {
		t.Errorf("without a repository: code %d: %s%s", code, out, errOut)
	}
	if _, _, code := c.run("repository", "usage", "--backup", "nightly"); code != exitFailed || tasks() != 4 {
		t.Errorf("a failed measurement counts as one: code %d, %d tasks", code, tasks())
	}
	for _, args := range [][]string{{"--max-age", "0s"}, {"--backup", "a", "--from", "b"}, {"--backup", "a", "--schedule", "@daily"}, {"--latest", "--from", "b"}} {
		if _, errOut, code := c.run(append([]string{"repository", "usage"}, args...)...); code != 2 {
			t.Errorf("%q: code %d: %s", args, code, errOut)
		}
	}
	c.Create(c.tasksDeployment("registry.example.com/plimsoll:v1"))
	out, errOut, code = c.run("repository", "usage", "--schedule", "0 6 * * *")
	if code != 0 || !strings.Contains(out, "name: plimsoll-usage-latest") || !strings.Contains(out, "- usage\n") || !strings.Contains(out, "- --refresh\n") || strings.Contains(out, "- list\n") {
		t.Errorf("code %d: %s%s", code, out, errOut)
	}
}

// TestPrintUsage: what nobody knows is no number.
func TestPrintUsage(t *testing.T) {
	t.Parallel()
	now := time.Now()
	task := v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Repositories: []v1alpha1.RepositoryTaskRepository{
		{
			BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic", Result: v1alpha1.RepositoryMeasured, Usage: &v1alpha1.RepositoryUsage{
				DataBytes: 7, Snapshots: 3, UnknownSnapshots: 1, UnfinishedSnapshots: 2, MissingSnapshots: 2, OmittedVolumes: 1, GrowthBytes: new(int64(-1024)), Damaged: true,
				NotKnown: []string{"what the storage holds: evil\x1b[31m"}, Volumes: []v1alpha1.VolumeUsage{{Namespace: "shop", Pod: "db-0", Volume: "data", MissingSnapshots: 2}},
			},
		},
		{BackupStorageLocation: "default", VolumeNamespace: "bank", Uploader: "kopia", Result: v1alpha1.RepositoryFailed, Message: "wrong password"},
	}}}
	var out strings.Builder
	if err := printUsage(&out, &task, now); err != nil {
		t.Fatal(err)
	}
	want := `REPOSITORY    UPLOADER  RESULT    STORED  GROWTH    SNAPSHOTS  OLDEST  NEWEST  LOGICAL  DEDUPLICATION  COMPRESSION  CHECKED
default/shop  restic    Measured  -       -1.0 KiB  3          -       -       -        -              -            Damaged
default/bank  kopia     Failed    ?       ?         ?          ?       ?       ?        ?              ?            ?

VOLUME          LOCATION  UPLOADER  SNAPSHOTS  NEWEST  SIZE  GROWTH  ADDED  LOGICAL  PROVEN
shop/db-0:data  default   restic    0          -       -     -       -      -        -
default/shop: 1 snapshot is of no PodVolumeBackup in this namespace
default/shop: 2 more snapshots are of unfinished backups
default/shop: 2 snapshots of completed PodVolumeBackups are not there
  2 of shop/db-0:data
default/shop: 1 smaller volume is not shown
default/shop: not known: what the storage holds: evil\x1b[31m
default/bank: wrong password
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
