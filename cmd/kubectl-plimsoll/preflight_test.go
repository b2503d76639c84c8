package main

import (
	"encoding/json"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestPreflight asks about a backup of a real API server's objects, in all the ways there are to ask.
func TestPreflight(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	location := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("default")}
	testenv.EventuallyGet(c.Env, location, "there", func(_ *velerov1.BackupStorageLocation, err error) bool { return err == nil })
	c.Change(location, func() { location.Status.Phase = velerov1.BackupStorageLocationPhaseAvailable })
	labels := map[string]string{"deploy": "velero"}
	c.Create(&appsv1.Deployment{ObjectMeta: c.Meta("velero"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "velero", Image: "velero/velero:v1.16.2", Args: []string{"server", "--uploader-type=restic"}}},
		}},
	}})
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	c.Create(shop)
	pod := c.sourceIn(shop.Name)
	c.Change(pod, func() {
		pod.Labels = map[string]string{"app": "db"}
		pod.Annotations = map[string]string{velerov1.VolumesToBackupAnnotation: "data"}
	})
	c.Create(&velerov1.Schedule{ObjectMeta: c.Meta("nightly"), Spec: velerov1.ScheduleSpec{
		Schedule: "0 3 * * *", Template: velerov1.BackupSpec{IncludedNamespaces: []string{shop.Name}, StorageLocation: "tape"},
	}})
	c.Create(&velerov1.Backup{ObjectMeta: c.Meta("b1"), Spec: velerov1.BackupSpec{
		IncludedNamespaces: []string{shop.Name}, DefaultVolumesToFsBackup: new(true),
	}})
	include := "--include-namespaces=" + shop.Name
	tests := map[string]struct {
		args      []string
		code      int
		decisions string // of the shop's volumes
		want      string // in what is printed
	}{
		"by annotation":    {[]string{include}, 0, "fs-backup", `"uploader": "restic"`},
		"all namespaces":   {nil, 0, "fs-backup", ""},
		"pattern":          {[]string{"--include-namespaces=shop-*"}, 0, "fs-backup", ""},
		"excluded":         {[]string{"--exclude-namespaces=" + shop.Name}, 0, "left out", "its namespace is excluded"},
		"selector":         {[]string{include, "-l", "app=db"}, 0, "fs-backup", ""},
		"another selector": {[]string{include, "-l", "app in (web)"}, 0, "left out", "the label selector does not match the pod"},
		"all volumes":      {[]string{include, "--default-volumes-to-fs-backup"}, 0, "fs-backup", "all volumes are asked for"},
		"another location": {[]string{include, "--storage-location=tape"}, 1, "fs-backup", "BackupStorageLocation tape does not exist"},
		"no namespace":     {[]string{"--include-namespaces=shpo," + shop.Name}, 1, "fs-backup", "namespace shpo is asked for and does not exist"},
		"schedule":         {[]string{"--from-schedule=nightly"}, 1, "fs-backup", "BackupStorageLocation tape does not exist"},
		"backup":           {[]string{"--from-backup=b1"}, 0, "fs-backup", "all volumes are asked for"},
		"uploader":         {[]string{include, "--uploader=kopia"}, 0, "fs-backup", `"uploader": "kopia"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := c.run(append([]string{"preflight", "backup", "-o", "json"}, tc.args...)...)
			var p describe.Preflight
			if err := json.Unmarshal([]byte(out), &p); err != nil || !strings.Contains(out, tc.want) {
				t.Fatalf("code %d, %v, want %q:\n%s%s", code, err, tc.want, out, errOut)
			}
			var decisions []string
			for _, v := range p.Volumes {
				if v.Namespace == shop.Name {
					decisions = append(decisions, string(v.Decision))
				}
			}
			// Other tests have pods in other namespaces, which an unfiltered backup would have as well.
			if strings.Contains(strings.Join(tc.args, " "), shop.Name) && code != tc.code || strings.Join(decisions, ",") != tc.decisions {
				t.Errorf("code %d, want %d; decisions %q, want %q: %s", code, tc.code, decisions, tc.decisions, errOut)
			}
		})
	}
	out, errOut, code := c.run("preflight", "backup", include)
	if code != 0 || !strings.Contains(out, "1 volume is backed up, 0 cannot be, 0 left out") {
		t.Errorf("code %d, %s%s", code, out, errOut)
	}
	for _, args := range [][]string{
		{"--from-schedule=nightly", "--from-backup=b1"}, {"--from-schedule=nightly", include}, {"--from-backup=b1", "-l", "app=db"}, {"-l", "app in"}, {"-o", "xml"}, {"b1"}, {"--uploader=rsync"},
	} {
		if out, errOut, code := c.run(append([]string{"preflight", "backup"}, args...)...); code != 2 || out != "" {
			t.Errorf("%q: code %d, %s%s", args, code, out, errOut)
		}
	}
	if _, errOut, code := c.run("preflight", "backup", "--from-schedule=weekly"); code != 1 || !strings.Contains(errOut, `there is no Schedule "weekly"`) {
		t.Errorf("code %d, %s", code, errOut)
	}
}
