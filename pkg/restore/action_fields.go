package restore

import (
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Nobody has checked the items of a backup: a field may be missing, or of any type. The functions here take a field of
// another type for a missing one, and the API server says the rest. Actions change items in place, instead of by way of the
// Go types, so that fields which these do not know stay.

// fieldOf returns the value at a path if it has the type. It is the object's own, not a copy.
func fieldOf[T any](object map[string]any, path ...string) (T, bool) {
	var value any = object
	for _, name := range path {
		fields, _ := value.(map[string]any)
		value = fields[name]
	}
	typed, ok := value.(T)
	return typed, ok
}

// textOf returns the string at a path, or "".
func textOf(object map[string]any, path ...string) string {
	text, _ := fieldOf[string](object, path...)
	return text
}

// numberOf returns the whole number at a path, or 0.
func numberOf(object map[string]any, path ...string) int64 {
	switch number, _ := fieldOf[any](object, path...); number := number.(type) {
	case int64:
		return number
	case float64:
		return int64(number)
	default:
		return 0
	}
}

// objectsOf are the objects in the list at a path.
func objectsOf(object map[string]any, path ...string) iter.Seq[map[string]any] {
	list, _ := fieldOf[[]any](object, path...)
	return func(yield func(map[string]any) bool) {
		for _, element := range list {
			if fields, ok := element.(map[string]any); ok && !yield(fields) {
				return
			}
		}
	}
}

// removeObjects takes the objects that match out of the list that is a field of object, and the field if none is left.
func removeObjects(object map[string]any, field string, match func(map[string]any) bool) {
	list, ok := object[field].([]any)
	if !ok {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(list), func(element any) bool {
		fields, ok := element.(map[string]any)
		return ok && match(fields)
	})
	if len(kept) == 0 {
		delete(object, field)
	} else {
		object[field] = kept
	}
}

// annotate sets an annotation.
func annotate(item *unstructured.Unstructured, name, value string) {
	annotations := item.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	item.SetAnnotations(annotations)
}

// removeAnnotations takes annotations away.
func removeAnnotations(item *unstructured.Unstructured, names ...string) {
	annotations, _ := fieldOf[map[string]any](item.Object, "metadata", "annotations")
	for _, name := range names {
		delete(annotations, name)
	}
}
