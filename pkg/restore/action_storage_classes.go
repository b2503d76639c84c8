package restore

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var storageClasses = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}

// changeStorageClass replaces the storage classes of claims, volumes and StatefulSets' claim templates, as Velero's ConfigMap
// change-storage-class says. An item that would get a class which the cluster does not have is not restored.
func changeStorageClass(ctx context.Context, s *scope, in *actionInput) (actionOutput, error) {
	if in.resource.Resource != "statefulsets" {
		return actionOutput{}, s.changeStorageClass(ctx, in.item.Object)
	}
	for template := range objectsOf(in.item.Object, "spec", "volumeClaimTemplates") {
		if err := s.changeStorageClass(ctx, template); err != nil {
			return actionOutput{}, err
		}
	}
	return actionOutput{}, nil
}

func (s *scope) changeStorageClass(ctx context.Context, object map[string]any) error {
	spec, class := s.newStorageClass(object)
	if class == "" {
		return nil
	}
	_, err := s.findObject(ctx, storageClasses, types.NamespacedName{Name: class})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("storage class %q, which %q is to be replaced by, does not exist: make it, or correct the ConfigMap labeled velero.io/change-storage-class", class, spec["storageClassName"])
	}
	if err != nil {
		return fmt.Errorf("look for storage class %q: %w", class, err)
	}
	spec["storageClassName"] = class
	return nil
}

// newStorageClass returns the storage class that replaces that of an object, or "", and the spec that has it.
func (s *scope) newStorageClass(object map[string]any) (spec map[string]any, class string) {
	spec, _ = fieldOf[map[string]any](object, "spec")
	return spec, s.StorageClasses[textOf(spec, "storageClassName")]
}
