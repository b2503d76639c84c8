//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// forgetOld keeps backups of a volume that belong to no Backup, in the repository of each data path: of three those of the last seconds, and of these the
// last one of each day, week and month. It proves what is left.
func (c *cluster) forgetOld(t *testing.T) {
	t.Helper()
	for _, uploader := range []string{restic, restic, kopia, kopia} {
		c.plimsoll(t, "volume", "backup", kubectlApp, disk, "--to", location, "--uploader", uploader)
	}
	within, sameDay := time.Second, true
	for uploader, began := range c.beganAlone(t) {
		if len(began) != 3 {
			t.Fatalf("%s: backups began at %v, want 3", uploader, began)
		}
		within = max(within, began[0].Sub(began[1]))
		sameDay = sameDay && began[0].Format(time.DateOnly) == began[1].Format(time.DateOnly)
	}
	c.forgetBy(t, [][]string{{"Within"}, {"Within"}, nil}, "--keep-within", within.String())
	days := [][]string{{"Daily", "Weekly", "Monthly"}, nil}
	if !sameDay { // the suite runs at midnight
		days = [][]string{{"Daily", "Weekly", "Monthly"}, {"Daily"}}
	}
	for uploader, left := range c.forgetBy(t, days, "--keep-daily", "2", "--keep-weekly", "1", "--keep-monthly", "1") {
		if said := c.plimsoll(t, "repository", "verify", "--from", left); !strings.Contains(said, "1 pod volume verified") {
			t.Errorf("%s: of what is left is proven: %s", uploader, said)
		}
	}
}

// beganAlone returns when the backups of a volume began that belong to no Backup, for each data path, the last one first.
func (c *cluster) beganAlone(t *testing.T) map[string][]time.Time {
	t.Helper()
	var all velerov1.PodVolumeBackupList
	if err := c.client.List(t.Context(), &all, client.InNamespace(veleroNamespace)); err != nil {
		t.Fatal(err)
	}
	began := map[string][]time.Time{}
	for i := range all.Items {
		pvb := &all.Items[i]
		if pvb.Labels[velerov1.BackupNameLabel] == "" && pvb.Spec.Pod.Namespace+"/"+pvb.Spec.Pod.Name == kubectlApp {
			began[pvb.Spec.UploaderType] = append(began[pvb.Spec.UploaderType], pvb.Status.StartTimestamp.UTC())
		}
	}
	for _, times := range began {
		slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
	}
	return began
}

// forgetBy plans a policy, and then carries it out. Of each data path the backups with these rules must stay, the newest first, and those without any must
// go. It returns the newest one of each data path.
func (c *cluster) forgetBy(t *testing.T, rules [][]string, policy ...string) map[string]string {
	t.Helper()
	forget := slices.Concat([]string{"forget", "--volume", kubectlApp + ":" + disk}, policy)
	plan := c.repositoryTask(t, forget...).Status.Retention
	c.checkRetention(t, plan, v1alpha1.RetentionPending, rules)
	done := c.repositoryTask(t, append(forget, "--yes", "--acknowledge", plan.Wave)...).Status.Retention
	return c.checkRetention(t, done, v1alpha1.RetentionForgotten, rules)
}

// checkRetention holds what a task says of backups, and whether their PodVolumeBackups are there, and returns the newest one of each data path. gone is the
// result of those that no rule keeps.
func (c *cluster) checkRetention(t *testing.T, r *v1alpha1.RepositoryRetention, gone v1alpha1.RetentionResult, rules [][]string) map[string]string {
	t.Helper()
	newest := map[string]string{}
	for _, v := range r.Volumes {
		if len(v.Snapshots) != len(rules) {
			t.Fatalf("%s has %+v, want %d", v.Uploader, v.Snapshots, len(rules))
		}
		newest[v.Uploader] = v.Snapshots[0].PodVolumeBackup
		for i, s := range v.Snapshots {
			want := v1alpha1.RetentionKept
			if rules[i] == nil {
				want = gone
			}
			pvb := &velerov1.PodVolumeBackup{}
			err := c.client.Get(t.Context(), client.ObjectKey{Namespace: veleroNamespace, Name: s.PodVolumeBackup}, pvb)
			if s.Result != want || !hasAll(s.Rules, rules[i]) || err != nil != (want == v1alpha1.RetentionForgotten) || client.IgnoreNotFound(err) != nil {
				t.Errorf("%s, backup %d is %+v, want %s by %v; its PodVolumeBackup: %v", v.Uploader, i, s, want, rules[i], err)
			}
		}
	}
	if newest[restic] == "" || newest[kopia] == "" || len(r.Volumes) != 2 {
		t.Fatalf("the volumes are %+v", r.Volumes)
	}
	return newest
}

func hasAll(rules, want []string) bool {
	return !slices.ContainsFunc(want, func(rule string) bool { return !slices.Contains(rules, rule) })
}
