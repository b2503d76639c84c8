package monitoring

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
)

// someTasks is a namespace with one task of each type that has metrics of its own, and one that runs.
type someTasks struct{ client.Reader }

func (someTasks) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if backups, ok := list.(*velerov1.PodVolumeBackupList); ok {
		backups.Items = []velerov1.PodVolumeBackup{{
			Spec:   velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: "new-0"}, Volume: "data", BackupStorageLocation: "default"},
			Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: "1"},
		}}
		return nil
	}
	end := new(metav1.Now())
	one := new(int64(1))
	repository := v1alpha1.RepositoryTaskRepository{BackupStorageLocation: "default", VolumeNamespace: "shop", Uploader: "restic", CompletionTimestamp: end}
	checked, measured := repository, repository
	checked.Result, measured.Result = v1alpha1.RepositoryWhole, v1alpha1.RepositoryMeasured
	measured.Usage = &v1alpha1.RepositoryUsage{
		StoredBytes: one, StoredObjects: one, PackBytes: one, DataBytes: 1, RawBytes: one, LogicalBytes: one,
		Volumes: []v1alpha1.VolumeUsage{{Namespace: "shop", Pod: "db-0", Volume: "data", NewestBytes: one, AddedBytes: one, LogicalBytes: one}},
	}
	verified := v1alpha1.RepositoryTaskVolume{Namespace: "shop", Pod: "db-0", Volume: "data", BackupStorageLocation: "default", Result: v1alpha1.VolumeVerified, CompletionTimestamp: end}
	sampled := verified
	sampled.Pod, sampled.Uploader, sampled.Result, sampled.SamplePart, sampled.SampleParts = "web-0", "kopia", v1alpha1.VolumeSampled, 1, 20
	running := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify}}
	running.Status.Phase, running.Status.Percent, running.Status.ETASeconds = v1alpha1.PhaseInProgress, new(int32(1)), one
	running.Status.Progress = v1alpha1.VolumeOperationProgress{BytesDone: 1, TotalBytes: 100}
	failed := v1alpha1.RepositoryTask{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify}}
	failed.Status.Phase, failed.Status.CompletionTimestamp = v1alpha1.PhaseFailed, end
	list.(*v1alpha1.RepositoryTaskList).Items = []v1alpha1.RepositoryTask{
		{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskCheck}, Status: v1alpha1.RepositoryTaskStatus{Repositories: []v1alpha1.RepositoryTaskRepository{checked}}},
		{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskUsage}, Status: v1alpha1.RepositoryTaskStatus{Repositories: []v1alpha1.RepositoryTaskRepository{measured}}},
		{Spec: v1alpha1.RepositoryTaskSpec{Type: v1alpha1.TaskVerify}, Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{verified, sampled}}},
		running, failed,
	}
	for i := range 3 {
		list.(*v1alpha1.RepositoryTaskList).Items[i].Status.Phase = v1alpha1.PhaseCompleted
	}
	return nil
}

// servedTasks returns the metrics of RepositoryTasks, each with the labels of its first series.
func servedTasks(t *testing.T) map[string][]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	ofTasks := repositorytask.NewMetrics(someTasks{}, someTasks{}, "velero", func(err error) { t.Error(err) })
	ended, end := context.WithCancel(t.Context())
	end()
	if err := ofTasks.Start(ended); err != nil { // it lists the backups once
		t.Fatal(err)
	}
	registry.MustRegister(ofTasks, filerequest.NewMetrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, family := range families {
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels[family.GetName()] = append(labels[family.GetName()], label.GetName())
		}
	}
	return labels
}

// TestAlertsOfTasks: each metric that the alerts look at is served.
func TestAlertsOfTasks(t *testing.T) {
	t.Parallel()
	served, found := servedTasks(t), 0
	for _, rule := range alerts(readRules(t, ofTasks)) {
		for _, name := range metricName.FindAllString(rule.Expr, -1) {
			found++
			if served[name] == nil {
				t.Errorf("%s looks at %s, which nobody serves", rule.Alert, name)
			}
		}
	}
	if found < 6 {
		t.Errorf("the alerts look at %d metrics", found)
	}
}

// metricName is that of a metric of plimsoll_.
var metricName = regexp.MustCompile(`\bplimsoll_\w+`)

// TestDashboardOfUsage: each metric of repositories that the dashboard asks for is served, with the labels that it groups by.
func TestDashboardOfUsage(t *testing.T) {
	t.Parallel()
	labels := servedTasks(t)
	grouped := regexp.MustCompile(`max by \(([a-z_, ]+)\) \((plimsoll_(?:repository|backup)_\w+)(?:\{(\w+)=~"\$namespace"\})?\)`)
	name := regexp.MustCompile(`plimsoll_(?:repository|backup)_\w+`)
	found := 0
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			groups := grouped.FindAllStringSubmatch(q.Expr, -1)
			if len(groups) != len(name.FindAllString(q.Expr, -1)) {
				t.Errorf("panel %q: not every metric is grouped by its labels: two pods may serve it: %s", p.Title, q.Expr)
			}
			for _, m := range groups {
				found++
				for _, label := range append(strings.Split(m[1], ", "), m[3]) {
					if label != "" && !slices.Contains(labels[m[2]], label) {
						t.Errorf("panel %q: metric %s has labels %v, and not %s", p.Title, m[2], labels[m[2]], label)
					}
				}
			}
		}
	}
	if found < 19 {
		t.Errorf("the dashboard asks for %d metrics of repositories", found)
	}
}
