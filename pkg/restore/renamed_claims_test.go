package restore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// renameRule is a resource modifier that gives claims whose names match another one.
func renameRule(pattern, to string) string {
	return fmt.Sprintf("- {conditions: {groupResource: persistentvolumeclaims, resourceNameRegex: %q}, patches: [{operation: replace, path: /metadata/name, value: %s}]}\n", pattern, to)
}

// claimOfBackup is claim shop/NAME, which was bound to a volume of its own.
func (a *attempt) claimOfBackup(name, annotations string) archived {
	return of("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: `+name+`, namespace: shop, annotations: {`+annotations+`}},
		spec: {volumeName: pv-`+name+`-`+a.id+`, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}`)
}

// createOriginal makes claim "data" as it was backed up.
func (a *attempt) createOriginal(shop string) {
	a.createNamespace(shop)
	a.create("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: `+shop+`},
		spec: {volumeName: pv-data-`+a.id+`, storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
}

// listedVolumes is the backup's list of volumes, of which each claim has one.
func (a *attempt) listedVolumes(method string, claims ...string) (infos []volumeinfo.BackupVolume) {
	for _, claim := range claims {
		infos = append(infos, volumeinfo.BackupVolume{PVName: "pv-" + claim + "-" + a.id, PVCName: claim, PVCNamespace: "shop", BackupMethod: method})
	}
	return infos
}

// TestRenamedClaimOfSnapshot: a resource modifier has a claim restored beside the original, from its CSI snapshot. What is known of the
// original does not count for it.
func TestRenamedClaimOfSnapshot(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createOriginal(shop)
	a.input.Restore.Spec.IncludedResources = []string{"persistentvolumeclaims", "persistentvolumes"}
	a.input.Modifiers = modifiersOf(t, renameRule("^data$", "data-copy"))
	a.input.VolumeInfos = a.listedVolumes(volumeinfo.MethodCSISnapshot, "data")
	a.backup(a.claimOfBackup("data", "velero.io/volume-snapshot-name: vs-1"))
	run := a.collect(a.engine())
	outcome, err := run.RestoreItems(t.Context(), a.report)
	if err != nil {
		t.Fatal(err)
	}
	claim := a.get("persistentvolumeclaims", shop, "data-copy")
	if claim == nil || textOf(claim.Object, "spec", "dataSource", "kind") != "VolumeSnapshot" || textOf(claim.Object, "spec", "volumeName") != "" {
		t.Fatalf("it is not made of the snapshot: %v\n%s", claim, resultsText(outcome))
	}
	if err := run.Finalize(t.Context(), outcome); err != nil {
		t.Fatal(err)
	}
	if want := "error " + shop + ": persistentvolumeclaims/data-copy: it gets no data: VolumeSnapshot"; !strings.Contains(resultsText(outcome), want) {
		t.Errorf("no %q in:\n%s", want, resultsText(outcome))
	}
}

// TestRenamedClaimIsFilled: a renamed claim gets its data if a pod that uses it is restored, and is an error otherwise, whoever finalizes
// the restore.
func TestRenamedClaimIsFilled(t *testing.T) {
	t.Parallel()
	const (
		usesCopy = `- {conditions: {groupResource: pods}, patches: [{operation: replace, path: /spec/volumes/0/persistentVolumeClaim/claimName, value: data-copy}]}` + "\n"
		empty    = "persistentvolumeclaims/data-copy: its new volume is empty: it would be filled through pod web"
	)
	for name, test := range map[string]struct {
		rules    string
		original bool // is still there
		leaveOut bool // the pod
		unfilled bool
	}{
		"without its pod":                      {leaveOut: true, unfilled: true},
		"without its pod, beside the original": {leaveOut: true, original: true, unfilled: true},
		"with a pod that uses the old name":    {unfilled: true},
		"with a pod that fills the original":   {original: true, unfilled: true},
		"with a pod that uses it":              {rules: usesCopy, original: true},
		"with a renamed pod that uses it": {
			rules: usesCopy + `- {conditions: {groupResource: pods}, patches: [{operation: replace, path: /metadata/name, value: web-copy}]}`, original: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			if test.original {
				a.createOriginal(shop)
			}
			if test.leaveOut {
				a.input.Restore.Spec.ExcludedResources = []string{"pods"}
			}
			a.input.Modifiers = modifiersOf(t, renameRule("^data$", "data-copy")+test.rules)
			a.input.VolumeInfos = a.listedVolumes(volumeinfo.MethodPodVolumeBackup, "data")
			a.input.VolumeInfos[0].PV = &volumeinfo.PVInfo{ReclaimPolicy: "Retain", Labels: map[string]string{"team": "web"}}
			a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("v", "data", "s1")}
			a.backup(a.claimOfBackup("data", ""), of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
				volumes: [{name: v, persistentVolumeClaim: {claimName: data}}], containers: [{name: a, image: a}]}}`))
			first := a.collect(a.engine())
			outcome, err := first.RestoreItems(t.Context(), a.report)
			if err != nil {
				t.Fatal(err)
			}
			a.bind(shop, "data-copy", "new-"+a.id)
			next := a.collect(a.engine())
			nextOutcome := &Outcome{Resources: outcome.Resources, PodVolumes: outcome.PodVolumes}
			for _, end := range []struct {
				run     *run
				outcome *Outcome
			}{{first, outcome}, {next, nextOutcome}} {
				if err := end.run.Finalize(t.Context(), end.outcome); err != nil {
					t.Fatal(err)
				}
				if said := resultsText(end.outcome); strings.Contains(said, empty) != test.unfilled || strings.Contains(said, "none of the backup's claims") {
					t.Errorf("says that the new volume is empty: want %t\n%s", test.unfilled, said)
				}
			}
			volume := a.get("persistentvolumes", "", "new-"+a.id)
			if policy := textOf(volume.Object, "spec", "persistentVolumeReclaimPolicy"); policy != "Retain" || volume.GetLabels()["team"] != "web" {
				t.Errorf("its volume has policy %q and labels %v", policy, volume.GetLabels())
			}
		})
	}
}

// TestOriginalOfRenamedClaimKeepsItsData: a pod that still uses the live original of a renamed claim gets no data into it, however old that
// is. Its other volumes are restored.
func TestOriginalOfRenamedClaimKeepsItsData(t *testing.T) {
	t.Parallel()
	for name, began := range map[string]*metav1.Time{
		"made before the restore": new(metav1.NewTime(time.Now().Add(time.Hour))),
		"as young as the restore": new(metav1.Now()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t)
			_, shop := a.inNamespaces()
			a.createOriginal(shop)
			a.input.Restore.Status.StartTimestamp = began
			a.input.Modifiers = modifiersOf(t, renameRule("^data$", "data-copy"))
			a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("v", "data", "s1"), podVolumeBackup("cache", "", "s2")}
			a.backup(a.claimOfBackup("data", ""), of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
				volumes: [{name: v, persistentVolumeClaim: {claimName: data}}, {name: cache, emptyDir: {}}], containers: [{name: a, image: a}]}}`))
			outcome := a.run()
			want := `restore volume "v" of pod ` + shop + `/web: no data goes into it: it is the claim "data", which this restore has not made, ` +
				`and the resource modifiers (spec.resourceModifier) restore the backup's claim "data" as "data-copy"`
			if said := resultsText(outcome); !strings.Contains(said, want) || strings.Contains(said, "files of the backup replace") {
				t.Errorf("want an error with %q and no warning of replaced files in:\n%s", want, said)
			}
			var filled []string
			for _, v := range a.podVolumeRestores() {
				filled = append(filled, v.Spec.Volume)
			}
			if diff := cmp.Diff([]string{"cache"}, filled); diff != "" {
				t.Errorf("volumes with PodVolumeRestores (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPreparedClaimOfRenamedOne: a pod whose claim the rules themselves have chosen, and which is neither the original nor the renamed one,
// is filled, with the warning that it was there before.
func TestPreparedClaimOfRenamedOne(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createNamespace(shop)
	a.create("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: prepared, namespace: `+shop+`},
		spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
	a.input.Restore.Status.StartTimestamp = new(metav1.NewTime(time.Now().Add(time.Hour)))
	a.input.Modifiers = modifiersOf(t, renameRule("^data$", "data-copy")+
		`- {conditions: {groupResource: pods}, patches: [{operation: replace, path: /spec/volumes/0/persistentVolumeClaim/claimName, value: prepared}]}`)
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("v", "data", "s1")}
	a.backup(a.claimOfBackup("data", ""), of("pods", `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
		volumes: [{name: v, persistentVolumeClaim: {claimName: data}}], containers: [{name: a, image: a}]}}`))
	said := resultsText(a.run())
	if want := `its volume "v" is the claim "prepared", which was there before this restore: files of the backup replace`; !strings.Contains(said, want) || strings.Contains(said, "no data goes into it") {
		t.Errorf("no %q, or an error, in:\n%s", want, said)
	}
	if made := a.podVolumeRestores(); len(made) != 1 || made[0].Spec.SnapshotID != "s1" {
		t.Errorf("PodVolumeRestores: %+v", made)
	}
}

// TestRenamedClaimsCollide has two claims of one new name, and one that a rule renames only if it is kept: none is lost without an error.
func TestRenamedClaimsCollide(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createOriginal(shop)
	a.input.Modifiers = modifiersOf(t, renameRule("^[ab]$", "both")+
		`- {conditions: {groupResource: persistentvolumeclaims, matches: [{path: /spec/volumeName, value: pv-data-`+a.id+`}]}, patches: [{operation: replace, path: /metadata/name, value: data-copy}]}`)
	a.input.VolumeInfos = a.listedVolumes(volumeinfo.MethodPodVolumeBackup, "a", "b", "data")
	a.input.PodVolumeBackups = []velerov1.PodVolumeBackup{podVolumeBackup("a", "a", "s1"), podVolumeBackup("b", "b", "s2"), podVolumeBackup("c", "data", "s3")}
	a.backup(a.claimOfBackup("a", ""), a.claimOfBackup("b", ""), a.claimOfBackup("data", ""))
	a.config.Concurrency = 1 // so that the first wins
	outcome := a.run()
	for _, want := range []string{
		"error " + shop + ": persistentvolumeclaims shop/b is not restored: persistentvolumeclaims shop/a has taken its place in namespace " + shop + " (spec.resourceModifier). Its data is not restored",
		"error " + shop + ": error restoring persistentvolumeclaims/" + shop + `/data: not restored: resource modifiers give it the name "data-copy"`,
	} {
		if !strings.Contains(resultsText(outcome), want) {
			t.Errorf("no %q in:\n%s", want, resultsText(outcome))
		}
	}
	if a.get("persistentvolumeclaims", shop, "both") == nil || a.get("persistentvolumeclaims", shop, "data-copy") != nil {
		t.Errorf("claims are not what was expected: %v", outcome.Resources)
	}
}

// TestClaimsOfUnusableNames: an error says what is wrong with the name that a rule gives to a claim.
func TestClaimsOfUnusableNames(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.createOriginal(shop)
	rename := func(name, to, conditions string) string {
		return `- {conditions: {groupResource: persistentvolumeclaims, resourceNameRegex: "^` + name + `$"` + conditions + `}, patches: [{operation: replace, path: /metadata/name, value: ` + to + `}]}` + "\n"
	}
	a.input.Modifiers = modifiersOf(t, rename("upper", "Copy", "")+rename("path", "../secrets/x", "")+rename("data", "copy-of-data", `, matches: [{path: /spec/volumeName, value: pv-data-`+a.id+`}]`)+
		`- {conditions: {groupResource: persistentvolumeclaims, resourceNameRegex: ^none$}, patches: [{operation: remove, path: /metadata/name}]}`)
	a.input.VolumeInfos = a.listedVolumes(volumeinfo.MethodPodVolumeBackup, "data")
	a.backup(a.claimOfBackup("upper", ""), a.claimOfBackup("path", ""), a.claimOfBackup("none", ""), a.claimOfBackup("data", ""))
	said := resultsText(a.run())
	for _, want := range []string{
		"persistentvolumeclaims/" + shop + `/upper: not restored: resource modifiers (spec.resourceModifier) give it the name "Copy", which no object may have: a lowercase RFC 1123 subdomain`,
		"persistentvolumeclaims/" + shop + `/path: not restored: resource modifiers (spec.resourceModifier) give it the name "../secrets/x", which no object may have: `,
		"persistentvolumeclaims/" + shop + "/none: not restored: resource modifiers (spec.resourceModifier) take its name away",
		"persistentvolumeclaims/" + shop + `/data: not restored: resource modifiers give it the name "copy-of-data", but "data" if it did not exist: the conditions of the rule that renames it ` +
			"must not depend on spec.volumeName, dataSource, dataSourceRef, selector or resources",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in:\n%s", want, said)
		}
	}
}

// TestUnknownCreatedClaim: a restore is finalized after its resource modifiers have changed. What cannot be checked is an error.
func TestUnknownCreatedClaim(t *testing.T) {
	t.Parallel()
	a := newAttempt(t)
	_, shop := a.inNamespaces()
	a.backup(a.claimOfBackup("data", ""))
	a.createNamespace(shop)
	a.create("persistentvolumeclaims", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data-copy, namespace: `+shop+`},
		spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
	outcome := &Outcome{Resources: map[string][]string{"v1/PersistentVolumeClaim": {shop + "/data-copy(created)", shop + "/gone-copy(created)", shop + "/other(skipped)"}}}
	if err := a.collect(a.engine()).Finalize(t.Context(), outcome); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(resultsText(outcome), "\n")
	want := []string{
		"error " + shop + ": persistentvolumeclaims/data-copy: it is none of the backup's claims",
		"error " + shop + ": persistentvolumeclaims/gone-copy: the claim was deleted since the restore created it. It is none of the backup's claims",
	}
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("results (-want +got):\n%s", cmp.Diff(want, lines))
	}
}

// TestTargetClaim has names that are none, and a claim that the backup does not have.
func TestTargetClaim(t *testing.T) {
	t.Parallel()
	s := scopeWith(bareCluster(t), Input{
		Archive: archiveOf(t, "1.1.0", map[string]string{
			"persistentvolumeclaims/namespaces/shop/data": `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {storageClassName: old}}`,
		}),
		StorageClasses: map[string]string{"old": "new"},
	})
	for name, test := range map[string]struct{ rules, claim, want string }{
		"renamed":             {renameRule("a", "copy"), "data", "copy"},
		"by its new class":    {`- {conditions: {groupResource: persistentvolumeclaims, matches: [{path: /spec/storageClassName, value: new}]}, mergePatches: [{patchData: '{metadata: {name: copy}}'}]}`, "data", "copy"},
		"not in the backup":   {renameRule("a", "copy"), "data2", "data2"},
		"no name":             {`- {conditions: {groupResource: persistentvolumeclaims}, patches: [{operation: remove, path: /metadata/name}]}`, "data", "data"},
		"a path":              {renameRule("a", "../secrets/x"), "data", "data"},
		"a rule for the pods": {`- {conditions: {groupResource: pods}, patches: [{operation: remove, path: /metadata/name}]}`, "data", "data"},
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.Modifiers = modifiersOf(t, test.rules)
			if got := s.targetClaim(types.NamespacedName{Namespace: "shop", Name: test.claim}); got != (types.NamespacedName{Namespace: "shop", Name: test.want}) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
