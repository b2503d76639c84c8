package volumeplugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestAPIServer runs what needs the API server and no other than the documented rights, on one API server.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.GrantPluginRights()
	for name, test := range map[string]func(t *testing.T, c *cluster){
		"schema and rules":           rules,
		"life of a backup":           lifeOfABackup,
		"restart":                    restart,
		"outage":                     outage,
		"end of somebody else":       endOfSomebodyElse,
		"two writers":                twoWriters,
		"deleted object":             deletedObject,
		"many operations at once":    manyAtOnce,
		"wrapped plugin":             wrapped,
		"wrapped plugin that fails":  wrappedFailure,
		"wrapped plugin is resumed":  wrappedIsResumed,
		"wrapped restore is retried": wrappedRestoreAfterAFailedOne,
		"wrapped restore is written": wrappedRestoreIsWrittenAtItsEnd,
		"wrapped restore's volume":   wrappedRestoreAsksForItsVolume,
		"abandoned operations":       abandoned,
		"table has percent and rate": table,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &cluster{c.For(t)})
		})
	}
}

// rules sends what people and programs get wrong.
func rules(t *testing.T, c *cluster) {
	b := &v1alpha1.VolumePluginBackup{
		ObjectMeta: c.Meta("rules"),
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: "pv", Backup: "b", Plugin: "p"},
	}
	c.Create(b)
	status := func(patch, refusedFor string) {
		t.Helper()
		err := c.Client.Status().Patch(t.Context(), b.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status": `+patch+`}`)))
		switch {
		case refusedFor == "" && err != nil:
			t.Errorf("%s is refused: %v", patch, err)
		case refusedFor != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), refusedFor)):
			t.Errorf("%s: got %v, want that it is refused for %q", patch, err, refusedFor)
		}
	}
	status(`{"phase": "Done"}`, "Unsupported value")
	status(`{"progress": {"bytesDone": 2, "totalBytes": 1}}`, "must not be greater")
	status(`{"progress": {"bytesDone": -1}}`, "greater than or equal to 0")
	status(`{"percent": 101}`, "less than or equal to 100")
	status(`{"message": "`+strings.Repeat("x", 1025)+`"}`, "1024")
	status(`{"phase": "InProgress", "progress": {"bytesDone": 5}}`, "") // the total is not known yet
	status(`{"progress": {"totalBytes": 10}}`, "")
	status(`{"progress": {"bytesDone": 4}}`, "must not fall")
	status(`{"progress": {"totalBytes": 4}}`, "must not be greater")
	status(`{"phase": "Failed", "message": "no"}`, "")
	status(`{"phase": "InProgress"}`, "must not change")
	status(`{"phase": "Completed"}`, "must not change")
	status(`{"message": "yes"}`, "must not change")
	status(`null`, "must not change")

	for patch, refusedFor := range map[string]string{
		`{"spec": {"volume": "other"}}`:         "immutable",
		`{"spec": {"backup": "other"}}`:         "immutable",
		`{"spec": {"plugin": ""}}`:              "immutable",
		`{"spec": {"pluginSpecific": {"a":1}}}`: "string",
	} {
		err := c.Client.Patch(t.Context(), b.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch)))
		if err == nil || !strings.Contains(err.Error(), refusedFor) {
			t.Errorf("%s: got %v, want %q", patch, err, refusedFor)
		}
	}
	if err := c.Client.Create(t.Context(), &v1alpha1.VolumePluginBackup{ObjectMeta: c.Meta("empty")}); !apierrors.IsInvalid(err) {
		t.Errorf("an empty spec: got %v, want that it is refused", err)
	}
	r := &v1alpha1.VolumePluginRestore{
		ObjectMeta: c.Meta("rules"),
		Spec:       v1alpha1.VolumePluginRestoreSpec{SnapshotID: "s", Plugin: "p"}, // a plugin does not know the backup
	}
	c.Create(r)
	for _, step := range []struct {
		patch   string
		refused bool
	}{
		{`{"phase": "Completed", "progress": {"totalBytes": 1, "bytesDone": 1}}`, false}, {`{"volumeID": "late"}`, true},
	} {
		err := c.Client.Status().Patch(t.Context(), r.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status": `+step.patch+`}`)))
		if step.refused != apierrors.IsInvalid(err) {
			t.Errorf("restore: %s: %v", step.patch, err)
		}
	}
}

func lifeOfABackup(t *testing.T, c *cluster) {
	const id = "/subscriptions/AB-12/providers/Microsoft.Compute/snapshots/Snap_1"
	parent := &velerov1.Backup{ObjectMeta: c.Meta("life")}
	c.Create(parent)

	r := c.newRecorder(t)
	op := r.BeginBackup(volumeplugin.BackupRequest{Backup: "life", Volume: "life-pv", SnapshotID: id})
	op.Update(1<<20, 4<<20)
	b := c.untilBackup(t, "life-pv", "says bytes", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Progress.BytesDone > 0 })
	if s := b.Status; s.Phase != v1alpha1.PhaseInProgress || s.SnapshotID != id || s.Progress.TotalBytes != 4<<20 || *s.Percent != 25 {
		t.Errorf("in progress it is %+v", s)
	}
	if want := volumeplugin.NameOf(id); b.Name != want || !strings.HasPrefix(b.Name, "subscriptions-ab-12-providers-microsoft-compute-snapshots-snap-1-") {
		t.Errorf("name %s, want %s", b.Name, want)
	}
	if len(b.OwnerReferences) != 1 || b.OwnerReferences[0].UID != parent.UID {
		t.Errorf("owners %+v, want the Backup", b.OwnerReferences)
	}
	op.Update(3<<20, 4<<20)
	c.untilBackup(t, "life-pv", "says 75 %", func(s v1alpha1.VolumePluginBackupStatus) bool { return *s.Percent == 75 })
	op.Complete()
	b, _ = c.backup(t, "life-pv")
	if s := b.Status; s.Phase != v1alpha1.PhaseCompleted || s.Progress.BytesDone != 4<<20 || *s.Percent != 100 || s.CompletionTimestamp == nil {
		t.Errorf("in the end it is %+v", s)
	}
	want := map[string]int{"Started": 1, "Progress": 2, "Completed": 1}
	if got := c.reasons(t, b.Name); !cmp.Equal(got, want) {
		t.Errorf("Events %v, want %v", got, want)
	}
}

// restart ends the plugin in the middle and goes on in another process.
func restart(t *testing.T, c *cluster) {
	req := volumeplugin.BackupRequest{Backup: "restart", Volume: "restart-pv"}
	first := c.newRecorder(t)
	op := first.BeginBackup(req)
	op.SetID("restart-snap")
	op.Update(600, 1000)
	before := c.untilBackup(t, "restart-pv", "says bytes", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Progress.BytesDone == 600 })
	first.end(t)

	op = c.newRecorder(t).BeginBackup(req)
	op.Update(100, 1000) // it counts from the begin again
	after := c.untilBackup(t, "restart-pv", "goes on", func(v1alpha1.VolumePluginBackupStatus) bool { return c.reasons(t, before.Name)["Resumed"] == 1 })
	if after.Status.Progress.BytesDone != 600 || !after.Status.StartTimestamp.Equal(before.Status.StartTimestamp) || after.Name != before.Name {
		t.Errorf("after the restart %+v, before %+v", after.Status, before.Status)
	}
	op.Update(900, 1000)
	c.untilBackup(t, "restart-pv", "moves on", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Progress.BytesDone == 900 })
	op.Complete()
	if b, _ := c.backup(t, "restart-pv"); b.Status.Phase != v1alpha1.PhaseCompleted || b.Status.SnapshotID != "restart-snap" {
		t.Errorf("in the end it is %+v", b.Status)
	}
}

// outage drops the connections in the middle and at the end of an operation.
func outage(t *testing.T, c *cluster) {
	r := c.newRecorder(t)
	op := r.BeginBackup(volumeplugin.BackupRequest{Backup: "outage", Volume: "outage-pv"})
	op.Update(100, 1000)
	c.untilBackup(t, "outage-pv", "says bytes", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Progress.BytesDone == 100 })
	r.fault.broken.Store(true)
	op.Update(800, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		op.Complete()
	}()
	testenv.Eventually(t, "the end is tried twice", func() bool { return r.fault.dropped.Load() >= 2 })
	if b, _ := c.backup(t, "outage-pv"); b.Status.Phase != v1alpha1.PhaseInProgress || b.Status.Progress.BytesDone != 100 {
		t.Errorf("in the outage it is %+v", b.Status)
	}
	r.fault.broken.Store(false)
	<-ended
	if b, _ := c.backup(t, "outage-pv"); b.Status.Phase != v1alpha1.PhaseCompleted || b.Status.Progress.BytesDone != 1000 {
		t.Errorf("after the outage it is %+v", b.Status)
	}
	if n := r.log.count("not recorded"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func endOfSomebodyElse(t *testing.T, c *cluster) {
	r := c.newRecorder(t)
	op := r.BeginBackup(volumeplugin.BackupRequest{Backup: "ended", Volume: "ended-pv"})
	b := c.untilBackup(t, "ended-pv", "has begun", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Phase == v1alpha1.PhaseInProgress })
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"phase": "Failed", "message": "by hand"}}`))
	if err := c.Client.Status().Patch(t.Context(), &b, patch); err != nil {
		t.Fatal(err)
	}
	op.Update(10, 20)
	op.Complete()
	if b, _ := c.backup(t, "ended-pv"); b.Status.Phase != v1alpha1.PhaseFailed || b.Status.Message != "by hand" || b.Status.Progress.BytesDone != 0 {
		t.Errorf("it is %+v", b.Status)
	}
}

// twoWriters has two processes that know different numbers.
func twoWriters(t *testing.T, c *cluster) {
	req := volumeplugin.BackupRequest{Backup: "two", Volume: "two-pv"}
	first, second := c.newRecorder(t), c.newRecorder(t)
	a := first.BeginBackup(req)
	c.untilBackup(t, "two-pv", "has begun", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Phase != "" })
	b := second.BeginBackup(req)
	highest := int64(0)
	for i := range int64(20) {
		a.Update(i*40, 1000)
		b.Update(i*50, 1200)
		got, _ := c.backup(t, "two-pv")
		if p := got.Status.Progress; p.BytesDone < highest || p.BytesDone > p.TotalBytes && p.TotalBytes > 0 {
			t.Errorf("%+v after %d bytes", p, highest)
		}
		highest = got.Status.Progress.BytesDone
	}
	c.untilBackup(t, "two-pv", "has the higher number", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Progress.BytesDone == 950 })
	a.Fail("of the first")
	b.Complete()
	if got, _ := c.backup(t, "two-pv"); got.Status.Phase != v1alpha1.PhaseFailed || got.Status.Progress.BytesDone != 950 {
		t.Errorf("it is %+v", got.Status)
	}
}

func deletedObject(t *testing.T, c *cluster) {
	r := c.newRecorder(t)
	op := r.BeginBackup(volumeplugin.BackupRequest{Backup: "deleted", Volume: "deleted-pv"})
	b := c.untilBackup(t, "deleted-pv", "has begun", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Phase != "" })
	c.Delete(&b)
	op.Update(5, 10)
	op.Complete()
	if _, ok := c.backup(t, "deleted-pv"); ok {
		t.Error("the object is made again")
	}
}

func manyAtOnce(t *testing.T, c *cluster) {
	r := c.newRecorder(t)
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			op := r.BeginBackup(volumeplugin.BackupRequest{Backup: "many", Volume: fmt.Sprintf("many-%d", i)})
			for n := range int64(1000) {
				op.Update(n, 1000)
			}
			op.Complete()
		})
	}
	group.Wait()
	for i := range 40 {
		if b, _ := c.backup(t, fmt.Sprintf("many-%d", i)); b.Status.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("volume %d is %+v", i, b.Status)
		}
	}
}

// cloud is a plugin whose snapshots and volumes go on being copied after its methods have returned.
type cloud struct {
	name   string
	done   atomic.Int64
	fail   atomic.Bool
	inits  atomic.Int64
	unable error
}

func (p *cloud) Init(map[string]string) error                      { p.inits.Add(1); return nil }
func (p *cloud) GetVolumeID(runtime.Unstructured) (string, error)  { return "vol-1", nil }
func (p *cloud) DeleteSnapshot(string) error                       { return nil }
func (p *cloud) GetVolumeInfo(_, _ string) (string, *int64, error) { return "ssd", nil, nil }
func (p *cloud) CreateSnapshot(_, _ string, _ map[string]string) (string, error) {
	return "snap/" + p.name, p.unable
}

func (p *cloud) SetVolumeID(pv runtime.Unstructured, _ string) (runtime.Unstructured, error) {
	return pv, nil
}

func (p *cloud) CreateVolumeFromSnapshot(_, _, _ string, _ *int64) (string, error) {
	return "vol-of-" + p.name, p.unable
}

func (p *cloud) poll(_ context.Context, id string) (done, total int64, err error) {
	switch {
	case id != "snap/"+p.name:
		return 0, 0, fmt.Errorf("asked about %s", id)
	case p.fail.Load():
		return 0, 0, fmt.Errorf("storage says no: %w", volumeplugin.ErrFailed)
	}
	return p.done.Load(), 1000, nil
}

func tags(name string) map[string]string {
	return map[string]string{"velero.io/backup": name, "velero.io/pv": name + "-pv", "team": "storage"}
}

func wrapped(t *testing.T, c *cluster) {
	inner := &cloud{name: "wrapped"}
	s := volumeplugin.Wrap(inner, c.newRecorder(t).Recorder, volumeplugin.WrapOptions{Backups: inner.poll, Restores: inner.poll})
	if err := s.Init(nil); err != nil || inner.inits.Load() != 1 {
		t.Fatal("init:", err)
	}
	id, err := s.CreateSnapshot("vol-1", "zone-a", tags("wrapped"))
	if err != nil || id != "snap/wrapped" {
		t.Fatal(id, err)
	}
	inner.done.Store(300)
	b := c.untilBackup(t, "wrapped-pv", "says 30 %", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Percent != nil && *s.Percent == 30 })
	if b.Status.SnapshotID != id || b.Spec.PluginSpecific["volumeID"] != "vol-1" || b.Labels[v1alpha1.LabelSnapshotID] != "snap_wrapped" {
		t.Errorf("it is %+v", b)
	}
	inner.done.Store(1000)
	c.untilBackup(t, "wrapped-pv", "completes", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Phase == v1alpha1.PhaseCompleted })

	inner.done.Store(0)
	volume, err := s.CreateVolumeFromSnapshot(id, "ssd", "zone-a", nil)
	if err != nil || volume != "vol-of-wrapped" {
		t.Fatal(volume, err)
	}
	restore := func() v1alpha1.VolumePluginRestore {
		list := &v1alpha1.VolumePluginRestoreList{}
		if err := c.Client.List(t.Context(), list, client.InNamespace(c.Namespace), client.MatchingLabels{v1alpha1.LabelSnapshotID: "snap_wrapped"}); err != nil || len(list.Items) > 1 {
			t.Fatal(err, len(list.Items))
		}
		if len(list.Items) == 0 {
			return v1alpha1.VolumePluginRestore{}
		}
		return list.Items[0]
	}
	inner.done.Store(600)
	testenv.Eventually(t, "the restore says 60 %", func() bool { p := restore().Status.Percent; return p != nil && *p == 60 })
	if got := restore(); got.Spec.Backup != "wrapped" || got.Spec.Volume != "wrapped-pv" || got.Status.VolumeID != volume || got.Spec.SnapshotID != id {
		t.Errorf("the restore is %+v", got)
	}
	inner.done.Store(1000)
	testenv.Eventually(t, "the restore completes", func() bool { return restore().Status.Phase == v1alpha1.PhaseCompleted })
	pv := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "of-the-cluster"}}}
	if changed, err := s.SetVolumeID(pv, volume); err != nil || changed != runtime.Unstructured(pv) {
		t.Fatal(changed, err)
	}
	if got := restore(); got.Spec.Volume != "of-the-cluster" || got.Labels[v1alpha1.LabelVolume] != "of-the-cluster" || got.Status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("with its PersistentVolume the restore is %+v", got)
	}
}

// wrappedRestoreIsWrittenAtItsEnd has a storage that cannot be asked any more once the method has returned: Velero may end the
// plugin's process then.
func wrappedRestoreIsWrittenAtItsEnd(t *testing.T, c *cluster) {
	inner := &cloud{name: "short"}
	inner.done.Store(1000)
	var gone atomic.Bool
	poll := func(ctx context.Context, id string) (done, total int64, err error) {
		if gone.Load() {
			return 0, 0, errors.New("too late")
		}
		return inner.poll(ctx, id)
	}
	s := volumeplugin.Wrap(inner, c.newRecorder(t).Recorder, volumeplugin.WrapOptions{Restores: poll})
	_, err := s.CreateVolumeFromSnapshot("snap/short", "", "", nil)
	gone.Store(true)
	if err != nil {
		t.Fatal(err)
	}
	list := &v1alpha1.VolumePluginRestoreList{}
	if err := c.Client.List(t.Context(), list, client.InNamespace(c.Namespace), client.MatchingLabels{v1alpha1.LabelSnapshotID: "snap_short"}); err != nil || len(list.Items) != 1 {
		t.Fatal(err, len(list.Items))
	}
	if s := list.Items[0].Status; s.Phase != v1alpha1.PhaseCompleted || s.Progress.BytesDone != 1000 {
		t.Errorf("the restore is %+v", s)
	}
}

// retried is a cloud that still tells of an earlier restore of the snapshot, which has failed, until somebody has asked.
type retried struct {
	*cloud

	asked chan struct{}
	once  sync.Once
}

func (p *retried) CreateVolumeFromSnapshot(snapshotID, volumeType, az string, iops *int64) (string, error) {
	<-p.asked
	p.fail.Store(false)
	return p.cloud.CreateVolumeFromSnapshot(snapshotID, volumeType, az, iops)
}

func (p *retried) poll(ctx context.Context, id string) (done, total int64, err error) {
	defer p.once.Do(func() { close(p.asked) })
	return p.cloud.poll(ctx, id)
}

func wrappedRestoreAfterAFailedOne(t *testing.T, c *cluster) {
	inner := &retried{cloud: &cloud{name: "again"}, asked: make(chan struct{})}
	inner.done.Store(1000)
	inner.fail.Store(true)
	s := volumeplugin.Wrap(inner, c.newRecorder(t).Recorder, volumeplugin.WrapOptions{Restores: inner.poll})
	if _, err := s.CreateVolumeFromSnapshot("snap/again", "", "", nil); err != nil {
		t.Fatal(err)
	}
	list := &v1alpha1.VolumePluginRestoreList{}
	if err := c.Client.List(t.Context(), list, client.InNamespace(c.Namespace), client.MatchingLabels{v1alpha1.LabelSnapshotID: "snap_again"}); err != nil || len(list.Items) != 1 {
		t.Fatal(err, len(list.Items))
	}
	if s := list.Items[0].Status; s.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("the restore is %+v", s)
	}
}

// wrappedRestoreAsksForItsVolume has a storage that tells of an earlier volume of the snapshot, which is complete, until it is asked about the new one.
func wrappedRestoreAsksForItsVolume(t *testing.T, c *cluster) {
	inner := &cloud{name: "new"}
	s := volumeplugin.Wrap(inner, c.newRecorder(t).Recorder, volumeplugin.WrapOptions{
		RestoresTo: func(ctx context.Context, snapshotID, volumeID string) (done, total int64, err error) {
			if volumeID != "vol-of-new" {
				return 1000, 1000, nil
			}
			return inner.poll(ctx, snapshotID)
		},
	})
	inner.done.Store(400)
	if _, err := s.CreateVolumeFromSnapshot("snap/new", "", "", nil); err != nil {
		t.Fatal(err)
	}
	restore := func() v1alpha1.VolumePluginRestoreStatus {
		list := &v1alpha1.VolumePluginRestoreList{}
		if err := c.Client.List(t.Context(), list, client.InNamespace(c.Namespace), client.MatchingLabels{v1alpha1.LabelSnapshotID: "snap_new"}); err != nil || len(list.Items) != 1 {
			t.Fatal(err, len(list.Items))
		}
		return list.Items[0].Status
	}
	testenv.Eventually(t, "the restore says 40 %", func() bool { p := restore().Percent; return p != nil && *p == 40 })
	if got := restore(); got.Phase != v1alpha1.PhaseInProgress {
		t.Errorf("the restore is %+v", got)
	}
	inner.done.Store(1000)
	testenv.Eventually(t, "the restore completes", func() bool { return restore().Phase == v1alpha1.PhaseCompleted })
}

func wrappedFailure(t *testing.T, c *cluster) {
	refuses := &cloud{name: "refuses", unable: errors.New("quota exceeded")}
	r := c.newRecorder(t)
	s := volumeplugin.Wrap(refuses, r.Recorder, volumeplugin.WrapOptions{Backups: refuses.poll, Restores: refuses.poll})
	if _, err := s.CreateSnapshot("vol-1", "", tags("refuses")); !errors.Is(err, refuses.unable) {
		t.Errorf("got %v, want the plugin's own error", err)
	}
	if b, _ := c.backup(t, "refuses-pv"); b.Status.Phase != v1alpha1.PhaseFailed || b.Status.Message != "quota exceeded" {
		t.Errorf("it is %+v", b.Status)
	}
	if _, err := s.CreateVolumeFromSnapshot("snap/refuses", "", "", nil); !errors.Is(err, refuses.unable) {
		t.Errorf("got %v, want the plugin's own error", err)
	}

	later := &cloud{name: "later"}
	later.fail.Store(true)
	s = volumeplugin.Wrap(later, r.Recorder, volumeplugin.WrapOptions{Backups: later.poll, Wait: testenv.Patience})
	if _, err := s.CreateSnapshot("vol-1", "", tags("later")); err == nil || !strings.Contains(err.Error(), "storage says no") {
		t.Errorf("got %v for a snapshot that has failed while the call waited, want why", err)
	}
	if b, _ := c.backup(t, "later-pv"); b.Status.Phase != v1alpha1.PhaseFailed || !strings.Contains(b.Status.Message, "storage says no") {
		t.Errorf("it is %+v", b.Status)
	}

	silent := volumeplugin.Wrap(&cloud{name: "silent"}, r.Recorder, volumeplugin.WrapOptions{})
	if _, err := silent.CreateSnapshot("vol-1", "", tags("silent")); err != nil {
		t.Error(err)
	}
	if b, _ := c.backup(t, "silent-pv"); b.Status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("it is %+v", b.Status)
	}
	if id, err := silent.CreateSnapshot("vol-1", "", nil); err != nil || id != "snap/silent" {
		t.Errorf("without tags of Velero: %s %v", id, err)
	}
}

// wrappedIsResumed ends the plugin's process while the storage copies, as Velero does after a backup.
func wrappedIsResumed(t *testing.T, c *cluster) {
	inner := &cloud{name: "resumed"}
	options := volumeplugin.WrapOptions{Backups: inner.poll, Restores: inner.poll}
	first := c.newRecorder(t)
	if _, err := volumeplugin.Wrap(inner, first.Recorder, options).CreateSnapshot("vol-1", "", tags("resumed")); err != nil {
		t.Fatal(err)
	}
	inner.done.Store(400)
	c.untilBackup(t, "resumed-pv", "says 40 %", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Percent != nil && *s.Percent == 40 })
	first.end(t)

	inner.done.Store(700)
	if err := volumeplugin.Wrap(inner, c.newRecorder(t).Recorder, options).Init(nil); err != nil {
		t.Fatal(err)
	}
	c.untilBackup(t, "resumed-pv", "goes on", func(s v1alpha1.VolumePluginBackupStatus) bool { return *s.Percent == 70 })
	inner.done.Store(1000)
	c.untilBackup(t, "resumed-pv", "completes", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Phase == v1alpha1.PhaseCompleted })
}

// abandoned leaves what nobody can go on with; its own plugin's name keeps the other tests out.
func abandoned(t *testing.T, c *cluster) {
	old, young := metav1.NewTime(time.Now().Add(-time.Hour)), metav1.Now()
	for name, heartbeat := range map[string]*metav1.Time{"abandoned": &old, "alive": &young} {
		b := &v1alpha1.VolumePluginBackup{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPlugin: "lost", v1alpha1.LabelVolume: name}},
			Spec:       v1alpha1.VolumePluginBackupSpec{Volume: name, Backup: name, Plugin: "lost"},
		}
		c.Create(b)
		b.Status.Phase, b.Status.HeartbeatTimestamp = v1alpha1.PhaseInProgress, heartbeat
		if err := c.Client.Status().Update(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	r := volumeplugin.New(t.Context(), volumeplugin.Options{Plugin: "lost", Client: c.Client, Namespace: c.Namespace})
	defer r.Close(t.Context())
	r.Resume(nil, nil)
	b := c.untilBackup(t, "abandoned", "is failed", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Phase == v1alpha1.PhaseFailed })
	if !strings.Contains(b.Status.Message, "nobody has reported since") {
		t.Errorf("message %q", b.Status.Message)
	}
	if b, _ := c.backup(t, "alive"); b.Status.Phase != v1alpha1.PhaseInProgress {
		t.Errorf("what another process works on is %s", b.Status.Phase)
	}
}

// table asks for what kubectl prints.
func table(t *testing.T, c *cluster) {
	b := &v1alpha1.VolumePluginBackup{
		ObjectMeta: c.Meta("table"),
		Spec:       v1alpha1.VolumePluginBackupSpec{Volume: "table-pv", Backup: "table", Plugin: "p"},
	}
	c.Create(b)
	b.Status.Percent, b.Status.BytesPerSecond = new(int32(42)), 1234
	b.Status.Phase, b.Status.State = v1alpha1.PhaseInProgress, "Transferring"
	if err := c.Client.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	clientset, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientset.RESTClient().Get().SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		AbsPath("/apis/plimsoll.io/v1alpha1/namespaces/" + c.Namespace + "/volumepluginbackups/table").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got metav1.Table
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	row := map[string]any{}
	for i, column := range got.ColumnDefinitions {
		if column.Priority == 0 {
			row[column.Name] = got.Rows[0].Cells[i]
		}
	}
	delete(row, "Age")
	want := map[string]any{
		"Name": "table", "Backup": "table", "Volume": "table-pv", "Phase": "InProgress", "State": "Transferring", "Percent": 42.0, "Bytes/s": 1234.0,
	}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}

// TestForbidden has a plugin without rights: first without any, then without those that it can do without.
func TestForbidden(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	r := c.newRecorder(t)
	for _, volume := range []string{"pv-1", "pv-2", "pv-3"} {
		op := r.BeginBackup(volumeplugin.BackupRequest{Backup: "b", Volume: volume})
		op.Update(1, 2)
		op.Complete()
		r.BeginRestore(volumeplugin.RestoreRequest{SnapshotID: volume}).Complete()
	}
	if n := r.log.count("lacks rights"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
	if list := (&v1alpha1.VolumePluginBackupList{}); c.Client.List(t.Context(), list, client.InNamespace(c.Namespace)) != nil || len(list.Items) > 0 {
		t.Error("there are objects")
	}

	c.GrantPluginRights()
	role := &rbacv1.Role{ObjectMeta: c.Meta("plimsoll-volume-plugin")}
	if err := c.Client.Patch(t.Context(), role, client.RawPatch("application/json-patch+json", []byte(`[{"op": "remove", "path": "/rules/0"}]`))); err != nil {
		t.Fatal(err) // Events are the first rule
	}
	var op *volumeplugin.Operation
	testenv.Eventually(t, "rights are seen", func() bool {
		op = r.BeginBackup(volumeplugin.BackupRequest{Backup: "b", Volume: "pv-4"})
		op.Complete()
		_, ok := c.backup(t, "pv-4")
		return ok
	})
	if b, _ := c.backup(t, "pv-4"); b.Status.Phase != v1alpha1.PhaseCompleted || len(c.reasons(t, b.Name)) != 0 {
		t.Errorf("without the right to make Events it is %+v", b.Status)
	}
	if n := r.log.count("Events of volumes cannot be written"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
}

// TestMissingCRDs has no CRDs, and then has them.
func TestMissingCRDs(t *testing.T) {
	t.Parallel()
	c := &cluster{testenv.New(t, testenv.Options{Plane: controlplane.ForTest(t, controlplane.Options{})})}
	c.GrantPluginRights()
	r := c.newRecorder(t)
	inner := &cloud{name: "missing"}
	inner.done.Store(1000)
	s := volumeplugin.Wrap(inner, r.Recorder, volumeplugin.WrapOptions{Backups: inner.poll, Wait: testenv.Patience})
	if err := s.Init(nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if id, err := s.CreateSnapshot("vol-1", "", tags("missing")); err != nil || id != "snap/missing" {
			t.Errorf("%s %v", id, err)
		}
	}
	if n := r.log.count("the CRDs of plimsoll.io"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}

	crds, err := controlplane.OurCRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		c.Create(crd)
	}
	testenv.Eventually(t, "the CRDs are served", func() bool {
		_, err := s.CreateSnapshot("vol-1", "", tags("missing"))
		if err != nil {
			t.Fatal(err)
		}
		list := &v1alpha1.VolumePluginBackupList{}
		return c.Client.List(t.Context(), list, client.InNamespace(c.Namespace)) == nil && len(list.Items) > 0
	})
	c.untilBackup(t, "missing-pv", "completes", func(s v1alpha1.VolumePluginBackupStatus) bool { return s.Phase == v1alpha1.PhaseCompleted })
}
