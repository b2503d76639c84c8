package restore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// changeImages replaces parts of the names of images, as Velero's ConfigMap change-image-name says. Of the parts that an
// image has, the longest counts; in Velero any one does.
func changeImages(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	if len(s.Images) == 0 {
		return actionOutput{}, nil
	}
	spec := podSpec(in.item)
	parts := slices.SortedFunc(maps.Keys(s.Images), func(a, b string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	})
	for _, field := range containerFields {
		for container := range objectsOf(spec, field) {
			image := textOf(container, "image")
			for _, part := range parts {
				if part != "" && strings.Contains(image, part) {
					container["image"] = strings.ReplaceAll(image, part, s.Images[part])
					break
				}
			}
		}
	}
	return actionOutput{}, nil
}

// podSpec is the spec of a pod, or of the pods that a workload makes.
func podSpec(item *unstructured.Unstructured) map[string]any {
	var spec map[string]any
	switch item.GetKind() {
	case "Pod":
		spec, _ = fieldOf[map[string]any](item.Object, "spec")
	case "CronJob":
		spec, _ = fieldOf[map[string]any](item.Object, "spec", "jobTemplate", "spec", "template", "spec")
	default:
		spec, _ = fieldOf[map[string]any](item.Object, "spec", "template", "spec")
	}
	return spec
}
