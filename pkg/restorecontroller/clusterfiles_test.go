package restorecontroller

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// keptFiles are the kinds of files of a Restore that the cluster keeps, with the ConfigMaps of each.
func (c *cluster) keptFiles(r *velerov1.Restore) map[string][]corev1.ConfigMap {
	c.t.Helper()
	var list corev1.ConfigMapList
	if err := c.Client.List(c.t.Context(), &list, client.InNamespace(c.Namespace), client.MatchingLabels{clusterFileRestoreLabel: string(r.UID)}); err != nil {
		c.t.Fatal(err)
	}
	kept := map[string][]corev1.ConfigMap{}
	for _, o := range list.Items {
		kept[o.Labels[clusterFileKindLabel]] = append(kept[o.Labels[clusterFileKindLabel]], o)
	}
	return kept
}

// velero runs Velero's own CLI as an administrator.
func (c *cluster) velero(args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), parts.Velero(c.t), append(args, "--namespace="+c.Namespace, "--kubeconfig="+c.Plane.Kubeconfig())...)
	cmd.Env = []string{"HOME=" + c.t.TempDir()}
	output, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Errorf("velero %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// TestReadOnlyLocation restores from a location that nobody may write to: log, results and lists are in the cluster, belong to the
// Restore, and Velero's own CLI shows them.
func TestReadOnlyLocation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.Patch(c.location, `{"spec":{"accessMode":"ReadOnly"}}`)
	engine := &script{run: func(_ context.Context, _ *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		p := restore.Progress{Total: 1, Restored: 1, Counts: restore.Counts{Created: 1}}
		report(p)
		outcome := &restore.Outcome{Progress: p, Resources: map[string][]string{"v1/ConfigMap": {"shop/settings(created)"}}}
		outcome.Results.Warnings.Cluster = []string{"a finalizer was there"}
		return outcome, nil
	}}
	base, serve := serveDownloads(t)
	controller, _ := restorable(c, engine, func(cfg *Config) { cfg.DownloadURLBase = base })
	serve(controller)
	r := c.created("r1")
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.Warnings != 1 || c.has("restores") {
		t.Errorf("%+v", r.Status)
	}
	kept := c.keptFiles(r)
	for _, kind := range []velerov1.DownloadTargetKind{
		velerov1.DownloadTargetKindRestoreLog, velerov1.DownloadTargetKindRestoreResults,
		velerov1.DownloadTargetKindRestoreResourceList, velerov1.DownloadTargetKindRestoreVolumeInfo,
	} {
		objects := kept[string(kind)]
		if len(objects) != 1 {
			t.Fatalf("%s: %d ConfigMaps", kind, len(objects))
		}
		if owners := objects[0].OwnerReferences; len(owners) != 1 || owners[0].UID != r.UID {
			t.Errorf("%s: owners %+v", kind, owners)
		}
	}
	if log := c.velero("restore", "logs", r.Name); !strings.Contains(log, "a finalizer was there") {
		t.Errorf("velero restore logs: %s", log)
	}
	if text := c.velero("restore", "describe", r.Name, "--details"); !strings.Contains(text, "a finalizer was there") || !strings.Contains(text, "shop/settings(created)") {
		t.Errorf("velero restore describe: %s", text)
	}
	c.Delete(r)
	testenv.EventuallyGet(c.Env, r, "gone", func(_ *velerov1.Restore, err error) bool { return client.IgnoreNotFound(err) == nil && err != nil })
}

// TestAccessModeChanges makes the location read-only, or writable, while items are restored: the end of the Restore goes by that.
// It does not follow a location that leads elsewhere by then, where files of another restore of this name may be.
func TestAccessModeChanges(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, after string // fields of the location's spec
		kept          int
	}{
		"read-only": {`"accessMode":"ReadWrite"`, `"accessMode":"ReadOnly"`, 4},
		"writable":  {`"accessMode":"ReadOnly"`, `"accessMode":"ReadWrite"`, 0},
		"elsewhere": {`"accessMode":"ReadWrite"`, `"objectStorage":{"prefix":"other"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			change := func(fields string) { c.Patch(c.location, `{"spec":{`+fields+`}}`) }
			change(tc.before)
			restorable(c, &script{finalize: func(context.Context, *restore.Plan, *restore.Outcome) error {
				change(tc.after)
				return nil
			}}, nil)
			r := c.created("r1")
			if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted {
				t.Errorf("%+v", r.Status)
			}
			if kept := c.keptFiles(r); len(kept) != tc.kept {
				t.Errorf("the cluster keeps %d files, want %d", len(kept), tc.kept)
			}
			if !c.has("restores/r1/restore-r1-logs.gz") {
				t.Error("the location has no log")
			}
		})
	}
}

// TestReadOnlyDryRun has its plan in the log, which the cluster keeps.
func TestReadOnlyDryRun(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.Patch(c.location, `{"spec":{"accessMode":"ReadOnly"}}`)
	engine, err := restore.New(restore.Config{REST: c.Config})
	if err != nil {
		t.Fatal(err)
	}
	base, serve := serveDownloads(t)
	controller, _ := restorable(c, engine, func(cfg *Config) { cfg.DownloadURLBase = base })
	serve(controller)
	r := c.newRestore("r1", func(r *velerov1.Restore) { r.Annotations = map[string]string{v1alpha1.AnnotationDryRun: "true"} })
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || r.Status.Warnings != 0 {
		t.Errorf("%+v", r.Status)
	}
	status, content := c.get(c.request(velerov1.DownloadTargetKindRestoreLog, "r1").Status.DownloadURL)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, content)
	}
	if log := unpack(t, content); !strings.Contains(log, "settings") {
		t.Errorf("the plan is not in the log: %s", log)
	}
}

// TestKeep keeps a file in several parts, and another version of it.
func TestKeep(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	controller, _ := c.start(nil)
	r := c.newRestore("r1", func(r *velerov1.Restore) { r.Status.Phase = velerov1.RestorePhaseCompleted })
	c.Create(r)
	const kind = velerov1.DownloadTargetKindRestoreLog
	content := func(seed byte, size int) []byte {
		b := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
		return b
	}
	check := func(what string, want []byte) {
		t.Helper()
		got, err := controller.loadFromCluster(t.Context(), r.UID, kind)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, want %d", what, len(got), len(want))
		}
	}
	check("nothing", nil)
	for seed, size := range map[byte]int{1: clusterFileLimit, 2: partBytes, 3: 2*partBytes + 1} {
		want := content(seed, size)
		if err := controller.saveInCluster(t.Context(), r, kind, want); err != nil {
			t.Fatal(err)
		}
		check("kept", want)
		if parts := c.keptFiles(r)[string(kind)]; len(parts) != (size+partBytes-1)/partBytes {
			t.Errorf("%d ConfigMaps for %d bytes: older ones are still there", len(parts), size)
		}
	}
	last := content(4, 2*partBytes)
	if err := controller.saveInCluster(t.Context(), r, kind, last); err != nil {
		t.Fatal(err)
	}
	newer := controller.clusterFilePart(r, kind, "9223372036854775807", 1, 2, []byte("and no second part"))
	c.Create(newer)
	check("a version that is not whole", last)
	if err := controller.saveInCluster(t.Context(), r, kind, make([]byte, clusterFileLimit+1)); err == nil || !strings.Contains(err.Error(), "too big") {
		t.Errorf("too much: %v", err)
	}
	if err := controller.deleteFromCluster(t.Context(), r.UID, kind, ""); err != nil {
		t.Fatal(err)
	}
	check("forgotten", nil)
}

// TestStoredAfterAll has a location that takes nothing when the items were tried, and an API server that keeps the files instead but
// refuses to delete older ones. At the end the location takes them: what the cluster still has must not hide them.
func TestStoredAfterAll(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var refuse atomic.Bool
	c.Intercept.DeleteAllOf = func(ctx context.Context, inner client.WithWatch, o client.Object, options ...client.DeleteAllOfOption) error {
		if refuse.Load() {
			return apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("a webhook says no"))
		}
		return inner.DeleteAllOf(ctx, o, options...)
	}
	engine, obstacle := withVolumes(c), filepath.Join(c.dir, "restores")
	items := engine.run
	engine.run = func(ctx context.Context, plan *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
		outcome, err := items(ctx, plan, report)
		refuse.Store(true)
		return outcome, errors.Join(err, os.WriteFile(obstacle, nil, 0o600)) // a file where a directory would be
	}
	restorable(c, engine, nil)
	r := c.created("r1")
	c.waitForItems(r)
	if kept := c.keptFiles(r); len(kept) != 4 {
		t.Fatalf("%d files are kept", len(kept))
	}
	refuse.Store(false)
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	c.Patch(c.volume("a"), `{"status":{"phase":"Failed","message":"no space"}}`)
	c.Patch(c.volume("b"), `{"status":{"phase":"Completed"}}`)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 1 {
		t.Errorf("%+v", r.Status)
	}
	if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "no space") {
		t.Error(results)
	}
	if kept := c.keptFiles(r); len(kept) > 0 {
		t.Errorf("the cluster still has, and shows, what the restore said before it ended: %d files", len(kept))
	}
}

func TestPackLog(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	for name, tc := range map[string]struct {
		log []byte
		cut bool
	}{"empty": {nil, false}, "short": {[]byte("one line\n"), false}, "in bounds": {noise[:900<<10], false}, "too long": {noise, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit = 1 << 20
			packed, cut, err := packLog(bytes.NewReader(tc.log), limit)
			if err != nil || cut != tc.cut || len(packed) > limit {
				t.Fatalf("cut %v, %d bytes, error %v", cut, len(packed), err)
			}
			text := unpack(t, packed)
			if tc.cut {
				head, _, told := strings.Cut(text, "\ntime=")
				if !told || !strings.Contains(text, "The log is cut off here") || !strings.HasPrefix(string(tc.log), head) {
					t.Error("it does not say that it is cut off")
				}
				return
			}
			if diff := cmp.Diff(string(tc.log), text); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
