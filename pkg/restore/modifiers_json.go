package restore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Patches of RFC 6902 (JSON Patch) and RFC 7386 (JSON Merge Patch), on content as Kubernetes' decoder leaves it: whole
// numbers are int64. What is patched and the patch stay as they are.

// maxGrowth bounds in bytes what copies can make of an item: each may double it.
const maxGrowth = 1 << 20

// patchOperation is one operation of a JSON Patch.
type patchOperation struct {
	Operation string          `json:"op"`
	Path      string          `json:"path"`
	From      string          `json:"from,omitempty"`
	Value     json.RawMessage `json:"value,omitempty"`
}

// parseOperation reads an operation as a resource modifier has it.
func parseOperation(text patchText) (patchOperation, error) {
	o := patchOperation{Operation: strings.ToLower(text.Operation), Path: text.Path, From: text.From}
	if !slices.Contains([]string{"add", "remove", "replace", "move", "copy", "test"}, o.Operation) {
		return o, fmt.Errorf("operation %q is none of add, remove, replace, move, copy and test", text.Operation)
	}
	if err := checkPointer(o.Path); err != nil {
		return o, fmt.Errorf("path %w", err)
	}
	if o.Operation == "move" || o.Operation == "copy" {
		if err := checkPointer(o.From); err != nil {
			return o, fmt.Errorf("from %w", err)
		}
		if o.Operation == "move" && strings.HasPrefix(o.Path, o.From+"/") {
			return o, fmt.Errorf("move of %s into itself", text.From)
		}
	}
	value, err := parseValue(text.Value)
	if err != nil {
		return o, fmt.Errorf("value %q: %w", text.Value, err)
	}
	o.Value, err = json.Marshal(value)
	return o, err
}

// checkPointer looks whether a text can be a JSON Pointer (RFC 6901) to a part of a document.
func checkPointer(text string) error {
	if !strings.HasPrefix(text, "/") {
		return fmt.Errorf("%q does not begin with a slash", text)
	}
	return nil
}

// parseValue reads a value as Velero documents it: JSON, or else a text. A text that looks like JSON is put into quotes.
func parseValue(text string) (any, error) {
	var value any
	err := utiljson.Unmarshal([]byte(text), &value)
	switch {
	case err == nil:
		return value, nil
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		return nil, err
	default:
		return text, nil
	}
}

// patchJSON applies operations one after the other, all or none. The error wraps jsonpatch.ErrTestFailed when a "test" finds
// another value, or none in an object or list that exists, and jsonpatch.ErrMissing where that does not exist either.
func patchJSON(content map[string]any, operations []patchOperation) (map[string]any, error) {
	if len(operations) == 0 {
		return content, nil
	}
	document, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	for _, o := range operations {
		if document, err = o.apply(document); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.Operation, o.Path, err)
		}
	}
	return decodeContent(document)
}

func (o *patchOperation) apply(document []byte) ([]byte, error) {
	text, err := json.Marshal([]*patchOperation{o})
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, err
	}
	options := jsonpatch.NewApplyOptions() // with negative indices, as in Velero: -1 is the last element
	options.AccumulatedCopySizeLimit = maxGrowth
	return patch.ApplyWithOptions(document, options)
}

// mergeJSON merges a patch into content: null takes a field away, objects are merged, anything else is put in.
func mergeJSON(content, patch map[string]any) (map[string]any, error) {
	document, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	merged, err := jsonpatch.MergePatch(document, text)
	if err != nil {
		return nil, fmt.Errorf("merge patch: %w", err)
	}
	return decodeContent(merged)
}

func decodeContent(document []byte) (map[string]any, error) {
	var content map[string]any
	if err := utiljson.Unmarshal(document, &content); err != nil {
		return nil, err
	}
	return content, nil
}
