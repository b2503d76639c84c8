package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestDirectoryLocations installs in both ways that docs/repositories.md shows for a location that is a directory: each program that opens
// repositories has it, at the same path, and no mount without its volume.
func TestDirectoryLocations(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(deployDir(t), "..", "docs", "repositories.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)\n### Locations that are directories\n.*?```yaml\n(.*?)```.*?```yaml\n(.*?)```").FindSubmatch(page)
	if shown == nil {
		t.Fatal("docs/repositories.md shows no patches and no values")
	}
	patches, values := string(shown[1]), string(shown[2])
	tests := map[string]struct {
		text []byte
		want []string
	}{
		"kustomize": {
			kustomizeText(t, "resources: [../node-agent, ../repository-tasks]\n"+patches),
			[]string{"node-agent", "plimsoll-repository-tasks"},
		},
		"kustomize, standalone": {
			kustomizeText(t, "resources: [../standalone, ../repository-tasks]\nnamespace: plimsoll\n"+patches),
			[]string{"node-agent", "plimsoll-repository-tasks", "restore-controller"},
		},
		"chart": {
			chart(t, "velero", "--set", "repositoryTasks.install=true", "--values", writeFile(t, values)),
			[]string{"node-agent", "plimsoll-repository-tasks"},
		},
		"chart, standalone": {
			chart(t, "plimsoll", "--set", "restoreController.install=true,repositoryTasks.install=true", "--values", writeFile(t, values)),
			[]string{"node-agent", "plimsoll-repository-tasks", "restore-controller"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, object := range objects(t, tc.text) {
				if pod := podSpec(t, object); pod != nil && mountsBackups(t, object.GetName(), pod) {
					got = append(got, object.GetName())
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v mount the directory, want %v", got, tc.want)
			}
		})
	}
}

// podSpec returns that of a DaemonSet or Deployment, and nil of other objects.
func podSpec(t *testing.T, object *unstructured.Unstructured) *corev1.PodSpec {
	t.Helper()
	var daemonSet appsv1.DaemonSet
	var deployment appsv1.Deployment
	var err error
	pod := &daemonSet.Spec.Template.Spec
	switch object.GetKind() {
	case "DaemonSet":
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &daemonSet)
	case "Deployment":
		pod = &deployment.Spec.Template.Spec
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment)
	default:
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// mountsBackups reports whether the pod's only container mounts the NFS volume of the page at /backups, beside what it mounted before.
func mountsBackups(t *testing.T, name string, pod *corev1.PodSpec) bool {
	t.Helper()
	volumes := map[string]corev1.Volume{}
	for i := range pod.Volumes {
		volumes[pod.Volumes[i].Name] = pod.Volumes[i]
	}
	found := false
	for _, mount := range pod.Containers[0].VolumeMounts {
		volume, ok := volumes[mount.Name]
		if !ok {
			t.Errorf("%s mounts %s, which is no volume", name, mount.Name)
		}
		if mount.MountPath == "/backups" {
			found = volume.NFS != nil && !mount.ReadOnly
		}
	}
	if found && (volumes["tmp"].EmptyDir == nil || len(pod.Volumes) < 3) {
		t.Errorf("%s has lost volumes of its own: %v", name, pod.Volumes)
	}
	return found
}
