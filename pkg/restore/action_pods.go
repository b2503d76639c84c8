package restore

import (
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var (
	priorityClasses = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	runtimeClasses  = schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}
	claimResource   = claimObjects.GroupResource()
	volumeResource  = volumeObjects.GroupResource()
	containerFields = []string{"containers", "initContainers"}
)

const defaultServiceAccount = "default"

// addClaims has a pod's claims restored before it.
func addClaims(_ context.Context, _ *scope, in *actionInput) (actionOutput, error) {
	var out actionOutput
	for volume := range objectsOf(in.item.Object, "spec", "volumes") {
		if claim := textOf(volume, "persistentVolumeClaim", "claimName"); claim != "" {
			out.additional = append(out.additional, key{claimResource, in.original.GetNamespace(), claim})
		}
	}
	return out, nil
}

// releasePod takes away what the source cluster has added to a pod: its node, its priority and overhead, which PriorityClass
// and RuntimeClass give again, and the token of its ServiceAccount. Ephemeral containers can only be added to pods that run.
func releasePod(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	spec, ok := fieldOf[map[string]any](in.item.Object, "spec")
	if !ok {
		return actionOutput{}, nil
	}
	delete(spec, "nodeName")
	delete(spec, "priority")
	var out actionOutput
	var ephemeral []string
	for container := range objectsOf(spec, "ephemeralContainers") {
		ephemeral = append(ephemeral, textOf(container, "name"))
	}
	if len(ephemeral) > 0 {
		out.warnings = []string{"its ephemeral containers are not restored, because no pod can be created with any: " + strings.Join(ephemeral, ", ")}
	}
	delete(spec, "ephemeralContainers")
	removeTokenVolumes(spec)
	if class := textOf(spec, "priorityClassName"); class != "" {
		out.additional = append(out.additional, key{resource: priorityClasses, name: class})
	}
	if class := textOf(spec, "runtimeClassName"); class != "" {
		delete(spec, "overhead")
		// Velero puts none into the backup of a namespace. That the cluster has none, either, the API server says.
		if k := (key{resource: runtimeClasses, name: class}); findItem(s.Archive, k) != nil {
			out.additional = append(out.additional, k)
		}
	}
	return out, nil
}

// removeTokenVolumes takes away the volume of the ServiceAccount's token, which Kubernetes before 1.22 added to pods, and its
// mounts. The Secret is not restored, see prepareToken; the cluster adds a volume of its own.
func removeTokenVolumes(spec map[string]any) {
	serviceAccount := textOf(spec, "serviceAccountName")
	if serviceAccount == "" {
		serviceAccount = defaultServiceAccount
	}
	names := map[string]bool{}
	removeObjects(spec, "volumes", func(volume map[string]any) bool {
		name := textOf(volume, "name")
		names[name] = generatedToken(serviceAccount, name) && textOf(volume, "secret", "secretName") == name
		return names[name]
	})
	for _, field := range containerFields {
		for container := range objectsOf(spec, field) {
			removeObjects(container, "volumeMounts", func(mount map[string]any) bool { return names[textOf(mount, "name")] })
		}
	}
}

// runsWindows reports whether a pod asks for a node with Windows.
func runsWindows(pod map[string]any) bool {
	return slices.Contains([]string{
		textOf(pod, "spec", "os", "name"), textOf(pod, "spec", "nodeSelector", "kubernetes.io/os"),
	}, "windows")
}

// admissionPatience is how long an item waits for admission to notice what has changed. Normally that takes milliseconds.
const admissionPatience = 30 * time.Second

// unnoticedClass reports whether a pod was refused for want of a PriorityClass that exists: admission looks into a cache, which
// does not have yet what was restored just before the pod.
func (s *scope) unnoticedClass(ctx context.Context, pod *unstructured.Unstructured, refusal error) bool {
	if !apierrors.IsForbidden(refusal) || !strings.Contains(refusal.Error(), "no PriorityClass") {
		return false
	}
	_, err := s.findObject(ctx, priorityClasses.WithVersion("v1"), types.NamespacedName{Name: textOf(pod.Object, "spec", "priorityClassName")})
	return err == nil
}
