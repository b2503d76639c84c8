package repositorytask

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/retention"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// otherLocation makes location "other", which leads to the directory of the first one, or to a copy of it, and returns the directory.
func (s *site) otherLocation(isCopy bool) string {
	s.t.Helper()
	dir := s.dir
	if isCopy {
		dir = s.t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Create(s.DirectoryLocation("other", dir))
	return dir
}

// throughOther makes a PodVolumeBackup one of location "other".
func (s *site) throughOther(pvb *velerov1.PodVolumeBackup) *velerov1.PodVolumeBackup {
	s.t.Helper()
	pvb.Spec.BackupStorageLocation = "other"
	s.update(pvb)
	return pvb
}

// ofPod limits a task to the volumes of a pod in namespace shop.
func ofPod(task *v1alpha1.RepositoryTask, pod string) *v1alpha1.RepositoryTask {
	task.Spec.Volume = &v1alpha1.PodVolumeSelector{Namespace: "shop", Pod: pod}
	return task
}

// ticking is a configuration whose clock goes on by a second with each look: in objects a second is one moment.
func (s *site) ticking() Config {
	cfg := s.pruning()
	began, ticks := time.Now(), new(atomic.Int64)
	cfg.Now = func() time.Time { return began.Add(time.Duration(ticks.Add(1)) * time.Second) }
	return cfg
}

// damageThroughOther makes a location that leads to the repository of the first one, or to a copy, with a backup of which a pack is damaged until undo is
// called, and a backup through the first location that is made afterwards.
func (s *site) damageThroughOther(isCopy bool) (there *velerov1.PodVolumeBackup, undo func() error) {
	s.t.Helper()
	there = s.store(&velerov1.Backup{ObjectMeta: s.Meta("own")}, "restic", "shop", "db-0")
	dir := s.otherLocation(isCopy)
	s.throughOther(there)
	_, undo, err := tree.FlipLargest(filepath.Join(dir, "restic", "shop"), "data")
	if err != nil {
		s.t.Fatal(err)
	}
	s.storeInto(s.backup("nightly"), "restic", "shop", "web-0")
	return there, undo
}

// TestPruneAfterDamageThroughAnotherLocation: two locations lead to one directory. Damage that was found through one of them is in the repository that is
// pruned through the other, as long as the task is there and as long as the note is; a check through that one ends it. Damage in a copy is none here.
func TestPruneAfterDamageThroughAnotherLocation(t *testing.T) {
	t.Parallel()
	for name, isCopy := range map[string]bool{"one directory": false, "a copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			there, undo := s.damageThroughOther(isCopy)
			s.forgetAnother(s.repository("restic", "shop"), "shop")
			cfg := s.ticking()
			s.start(cfg)
			found := &v1alpha1.RepositoryTask{ObjectMeta: s.Meta("found"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: there.Name}}
			if v := s.ended(found).Status.Volumes[0]; v.Result != v1alpha1.VolumeMismatched || v.BackupStorageLocation != "other" {
				t.Fatalf("%+v", v)
			}
			prune := func(name, refusal string) {
				t.Helper()
				got := s.ended(ofPod(s.pruneTask(name, true), "web-0")).Status
				isRefused := got.Phase == v1alpha1.PhaseFailed && got.Reason == v1alpha1.ReasonDamaged && strings.Contains(got.Message, refusal)
				if len(got.Repositories) != 1 || got.Repositories[0].BackupStorageLocation != "default" || isRefused != (refusal != "") || !isRefused && got.Phase != v1alpha1.PhaseCompleted {
					t.Errorf("%s: %+v", name, got)
				}
			}
			if isCopy {
				prune("beside-a-copy", "")
				return
			}
			prune("after-damage", "a backup of volume shop/db-0:data was found damaged or lost (PodVolumeBackup "+there.Name+"): nothing is pruned before a backup of the volume that is as new is proven. "+
				"If the backups of that volume are of no use any more, delete them, and RepositoryTask found")
			s.Delete(found)
			prune("after-the-task", "damage is noted on PodVolumeBackup "+there.Name)
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if r := s.ended(s.checkTask("whole", "nightly", true)).Status.Repositories[0]; r.Result != v1alpha1.RepositoryWhole || r.BackupStorageLocation != "default" {
				t.Fatalf("%+v", r)
			}
			prune("whole-again", "")
		})
	}
}

// TestDamageIsNotedByBothNames: who backs up through either location reuses what is lost. The note of both ends with the damage, through whichever it is found
// to be gone. Of a copy nothing is noted, and nothing proven there ends the note.
func TestDamageIsNotedByBothNames(t *testing.T) {
	t.Parallel()
	for name, isCopy := range map[string]bool{"one directory": false, "a copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			there, undo := s.damageThroughOther(isCopy)
			cfg := s.ticking()
			s.start(cfg)
			reviewer := s.controller(cfg, s.Client)
			reviewer.repositories = NewRepositories(s.Client, s.Namespace)
			found := s.ended(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("found"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify, PodVolumeBackup: there.Name}})
			locations := func() (noted []string) {
				s.Get(found)
				for _, d := range v1alpha1.DamagedRepositories(found) {
					noted = append(noted, d.BackupStorageLocation)
				}
				return noted
			}
			want := []string{"other", "default"}
			if isCopy {
				want = want[:1]
			}
			if noted := locations(); !slices.Equal(noted, want) {
				t.Fatalf("%v, want %v: %+v", noted, want, found.Status)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"shallow", "deep"} {
				if r := s.ended(s.checkTask(name, "nightly", name == "deep")).Status.Repositories[0]; r.Result != v1alpha1.RepositoryWhole || r.BackupStorageLocation != "default" {
					t.Fatalf("%+v", r)
				}
				if err := reviewer.reviewDamage(t.Context()); err != nil {
					t.Fatal(err)
				}
				if noted := locations(); name == "deep" && !isCopy && len(noted) > 0 || (name == "shallow" || isCopy) && !slices.Equal(noted, want) {
					t.Errorf("after a %s check: %v", name, noted)
				}
			}
		})
	}
}

// TestUsageOfOneRepositoryInTwoLocations: the snapshots of both are in it, and those of a copy are not.
func TestUsageOfOneRepositoryInTwoLocations(t *testing.T) {
	t.Parallel()
	for name, isCopy := range map[string]bool{"one directory": false, "a copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.store(s.backup("nightly"), "restic", "shop", "web-0")
			of := &velerov1.Backup{ObjectMeta: s.Meta("own")}
			there, again := s.storeInto(of, "restic", "shop", "db-0"), s.storeInto(&velerov1.Backup{ObjectMeta: s.Meta("again")}, "restic", "shop", "web-0")
			lost := s.record(of, "restic", "shop", "lost-0", strings.Repeat("a", 64), velerov1.PodVolumeBackupPhaseCompleted)
			s.otherLocation(isCopy)
			for _, pvb := range []*velerov1.PodVolumeBackup{there, again, lost} {
				s.throughOther(pvb)
			}
			s.start(s.measuring())
			status := s.ended(ofPod(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("usage"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskUsage, Backup: "nightly"}}, "web-0")).Status
			if len(status.Repositories) != 1 || status.Repositories[0].Usage == nil {
				t.Fatalf("%+v", status)
			}
			u := status.Repositories[0].Usage
			pods := map[string]int64{}
			for _, v := range u.Volumes {
				pods[v.Pod] += v.Snapshots + v.MissingSnapshots
			}
			unknown, missing, volumes, ofWeb := int64(0), int64(1), 3, int64(2)
			if isCopy {
				unknown, missing, volumes, ofWeb = 2, 0, 1, 1
			}
			if u.Snapshots != 3 || u.UnknownSnapshots != unknown || u.MissingSnapshots != missing || len(u.Volumes) != volumes || pods["web-0"] != ofWeb {
				t.Errorf("%+v", u)
			}
		})
	}
}

// TestForgetAfterDamageThroughAnotherLocation: what a policy would forget of a volume is kept while damage in another backup of it stands, by whichever of
// two locations that lead to one directory it was found.
func TestForgetAfterDamageThroughAnotherLocation(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ isCopy, isNoted, kept bool }{
		"noted":          {false, true, true},
		"found":          {false, false, true},
		"noted, in copy": {true, true, false},
		"found, in copy": {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.newRepository("restic", "shop")
			var own [3]*velerov1.PodVolumeBackup
			for _, days := range []int{2, 1, 0} {
				own[days] = s.own("restic", "shop", "web-0", days)
			}
			dir := s.otherLocation(test.isCopy)
			there := s.throughOther(own[1])
			if test.isNoted {
				s.Patch(there, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":"2026-11-25T00:00:00Z"}}}`)
			} else {
				task := s.task("found", "nightly")
				s.Create(task)
				s.Change(task, func() {
					v := newVolume(there)
					v.Result, v.Reason, v.Address, v.CompletionTimestamp = v1alpha1.VolumeMismatched, v1alpha1.ReasonDamaged, filepath.Join(dir, "restic", "shop"), new(metav1.Now())
					task.Status.Phase, task.Status.CompletionTimestamp, task.Status.Volumes = v1alpha1.PhaseFailed, v.CompletionTimestamp, []v1alpha1.RepositoryTaskVolume{v}
				})
			}
			s.start(s.forgetting())
			plan := s.forgetTask("plan", 1, "")
			plan.Spec.Apply, plan.Spec.BackupStorageLocation = false, "default"
			got := becomes(s.ended(plan), own[2].Name)
			if isKept := got.Result == v1alpha1.RetentionKept; isKept != test.kept || !isKept && got.Result != v1alpha1.RetentionPending {
				t.Errorf("%+v", got)
			}
		})
	}
}

// unresolvedLocation makes location "other", which by its name leads to the directory of the first one and does not say whether it does: its credentials come
// from a program, or the Secret with them is missing.
func (s *site) unresolvedLocation(isMisconfigured bool) {
	s.t.Helper()
	location := &velerov1.BackupStorageLocation{ObjectMeta: s.Meta("default")}
	s.Get(location)
	s.Change(location, func() { delete(location.Spec.Config, "resticRepoPrefix") })
	other := s.DirectoryLocation("other", s.dir)
	other.Spec.Provider, other.Spec.Config = "velero.io/aws", map[string]string{"fspath": s.dir, "region": "eu-west-1"}
	other.Spec.Credential = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "cloud"}, Key: "aws"}
	if !isMisconfigured {
		s.CreateSecret("cloud", map[string]string{"aws": "[default]\ncredential_process = /bin/keys\n"})
	}
	s.Create(other)
}

// TestForgetBesideAnUnresolvedLocation: where nobody knows whether another location leads to the repository, damage that was found by its name counts, a proof
// by its name does not, and other volumes are forgotten as ever; also where it is the location itself that does not say where it leads.
func TestForgetBesideAnUnresolvedLocation(t *testing.T) {
	t.Parallel()
	const noted, proven = "2026-11-25T00:00:00Z", "2026-11-26T00:00:00Z"
	for name, test := range map[string]struct {
		damaged, verified, plan string // locations; verified may be empty
		isFound                 bool   // by a task; else noted
	}{
		"noted here":                     {"default", "", "default", false},
		"found here":                     {"default", "", "default", true},
		"noted here, proven by the name": {"default", "other", "default", false},
		"noted by the name":              {"other", "", "default", false},
		"found by the name":              {"other", "", "default", true},
		"noted there":                    {"other", "", "other", false},
		"found there":                    {"other", "", "other", true},
	} {
		for _, isMisconfigured := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", misconfigured"}[isMisconfigured], func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				s.unresolvedLocation(isMisconfigured)
				own := map[string][3]*velerov1.PodVolumeBackup{}
				for _, pod := range []string{"web-0", "db-0"} {
					var of [3]*velerov1.PodVolumeBackup
					for days := range of {
						of[days] = s.unstored("own", pod, test.plan, days)
					}
					own[pod] = of
				}
				there := s.unstored("there", "web-0", test.damaged, 1)
				if test.isFound {
					s.found(there)
				} else {
					s.Patch(there, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":"`+noted+`"}}}`)
				}
				if test.verified != "" {
					s.Patch(s.unstored("proven", "web-0", test.verified, 0), `{"metadata":{"annotations":{"`+v1alpha1.AnnotationVerified+`":"`+proven+`"}}}`)
				}
				s.start(s.forgetting())
				plan := s.forgetTask("plan", 1, "")
				plan.Spec.Apply, plan.Spec.BackupStorageLocation = false, test.plan
				task := s.ended(plan)
				if task.Status.Phase != v1alpha1.PhaseCompleted {
					t.Fatalf("%+v", task.Status)
				}
				if got := becomes(task, own["web-0"][2].Name); !slices.Equal(got.Rules, []string{retention.RuleDamaged}) {
					t.Errorf("the damaged volume: %+v", got)
				}
				if got := becomes(task, own["db-0"][2].Name); got.Result != v1alpha1.RetentionPending {
					t.Errorf("another volume: %+v", got)
				}
			})
		}
	}
}

// unstored is a PodVolumeBackup that belongs to no Backup, in a location, made so many days ago. Its snapshot does not exist.
func (s *site) unstored(name, pod, location string, days int) *velerov1.PodVolumeBackup {
	s.t.Helper()
	name = fmt.Sprintf("%s-%s-%d", name, pod, days)
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: s.Meta(name),
		Spec: velerov1.PodVolumeBackupSpec{
			Pod: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod}, Volume: "data", BackupStorageLocation: location, UploaderType: "restic", Node: "n",
		},
		Status: velerov1.PodVolumeBackupStatus{
			Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: fmt.Sprintf("%x", sha256.Sum256([]byte(name))), StartTimestamp: new(metav1.NewTime(time.Now().AddDate(0, 0, -days))),
		},
	}
	s.Create(pvb)
	return pvb
}

// found makes a task that has found damage in a backup where its address was not known.
func (s *site) found(pvb *velerov1.PodVolumeBackup) {
	s.t.Helper()
	task := s.task("found", "nightly")
	s.Create(task)
	s.Change(task, func() {
		v := newVolume(pvb)
		v.Result, v.Reason, v.CompletionTimestamp = v1alpha1.VolumeMismatched, v1alpha1.ReasonMismatched, new(metav1.Now())
		task.Status.Phase, task.Status.CompletionTimestamp, task.Status.Volumes = v1alpha1.PhaseFailed, v.CompletionTimestamp, []v1alpha1.RepositoryTaskVolume{v}
	})
}

// TestVerifyBesideAnUnresolvedLocation: damage is written and noted, also by the name of a location that nobody knows to lead elsewhere. A check looks for no
// snapshots of that one, and clears nothing of it; nothing is pruned as long as its note is there.
func TestVerifyBesideAnUnresolvedLocation(t *testing.T) {
	t.Parallel()
	for name, isMisconfigured := range map[string]bool{"no address": false, "misconfigured": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.unresolvedLocation(isMisconfigured)
			b := s.backup("nightly")
			pvb := s.store(b, "restic", "shop", "web-0")
			there := s.unstored("there", "db-0", "other", 1)
			s.Patch(there, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationDamaged+`":"2026-11-25T00:00:00Z"},"labels":{"`+v1alpha1.LabelDamaged+`":"true"}}}`)
			_, undo, err := tree.FlipLargest(filepath.Join(s.dir, "restic", "shop"), "data")
			if err != nil {
				t.Fatal(err)
			}
			cfg := s.ticking()
			cfg.UsageReaders = s.measuring().UsageReaders
			s.start(cfg)
			found := s.ended(s.task("found", "nightly"))
			if v := found.Status.Volumes; len(v) != 1 || v[0].Result != v1alpha1.VolumeMismatched || v[0].PodVolumeBackup != pvb.Name {
				t.Fatalf("%+v", found.Status)
			}
			var noted []string
			for _, d := range v1alpha1.DamagedRepositories(found) {
				noted = append(noted, d.BackupStorageLocation)
			}
			if !slices.Equal(noted, []string{"default", "other"}) {
				t.Errorf("noted: %v", noted)
			}
			if s.Get(pvb); pvb.Annotations[v1alpha1.AnnotationDamaged] == "" {
				t.Error("the damage is not noted on the PodVolumeBackup")
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if r := s.ended(s.checkTask("whole", "nightly", true)).Status.Repositories; len(r) != 1 || r[0].Result != v1alpha1.RepositoryWhole {
				t.Fatalf("%+v", r)
			}
			if v := s.ended(s.task("again", "nightly")).Status.Volumes; len(v) != 1 || v[0].Result != v1alpha1.VolumeVerified {
				t.Fatalf("%+v", v)
			}
			usage := s.ended(&v1alpha1.RepositoryTask{ObjectMeta: s.Meta("usage"), Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskUsage, Backup: "nightly"}}).Status.Repositories
			if len(usage) != 1 || usage[0].Usage == nil || usage[0].Usage.MissingSnapshots != 0 {
				t.Errorf("%+v", usage)
			}
			if s.Get(there); there.Annotations[v1alpha1.AnnotationDamaged] == "" {
				t.Error("a check of another location has removed the note")
			}
			if got := s.ended(ofPod(s.pruneTask("refused", true), "web-0")).Status; got.Reason != v1alpha1.ReasonDamaged || !strings.Contains(got.Message, there.Name) {
				t.Errorf("%+v", got)
			}
			s.Delete(there)
			if got := s.ended(ofPod(s.pruneTask("prune", true), "web-0")).Status; got.Phase != v1alpha1.PhaseCompleted {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestSharedWithAnUnresolvedLocation: it may lead there.
func TestSharedWithAnUnresolvedLocation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.unresolvedLocation(false)
	location := &velerov1.BackupStorageLocation{ObjectMeta: s.Meta("default")}
	s.Get(location)
	key := v1alpha1.RepositoryKey{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic"}
	if shared, err := NewRepositories(s.Client, s.Namespace).isShared(t.Context(), location, key); err != nil || !shared {
		t.Errorf("%v, %v", shared, err)
	}
}

// TestLocationsWithoutAnAnswer: that the API server does not answer says nothing of where a location leads.
func TestLocationsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.unresolvedLocation(false)
	key := v1alpha1.RepositoryKey{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic"}
	busy := apierrors.NewServiceUnavailable("busy")
	for name, refused := range map[string]error{"none": nil, "velero-repo-credentials": busy, "cloud": busy, "other": busy} {
		api := interceptor.NewClient(s.Client, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if key.Name == name {
					return refused
				}
				return c.Get(ctx, key, o, opts...)
			},
		})
		c := s.controller(s.config(), s.Client)
		c.repositories = NewRepositories(api, s.Namespace)
		leading, possible, err := c.newRun(s.task("any", "nightly")).leadingTo(t.Context(), key)
		if !errors.Is(err, refused) {
			t.Errorf("%q: %v", name, err)
		}
		if refused == nil && (!slices.Equal(leading, []string{"default"}) || !slices.Equal(possible, []string{"other"})) {
			t.Errorf("%v, %v", leading, possible)
		}
	}
}
