package restore

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/gobwas/glob"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// ErrInvalidModifiers comes from ParseModifiers for a ConfigMap that holds no rules that can be understood.
var ErrInvalidModifiers = errors.New("invalid resource modifiers")

// Modifiers change items as the rules of a resource modifier ConfigMap say. It is safe for concurrent use.
type Modifiers struct{ rules []modifierRule }

// modifierRule changes the items that meet all conditions, by patches of one of the three kinds.
type modifierRule struct {
	number     int    // from 1, as people count
	pattern    string // of conditions.groupResource
	resources  glob.Glob
	namespaces filter
	name       *regexp.Regexp
	labels     labels.Selector
	matches    []patchOperation // tests
	operations []patchOperation
	merges     []map[string]any
	strategic  []map[string]any
}

// The format "v1" of Velero's documentation (restore-resource-modifiers).
type modifiersText struct {
	Version string `json:"version"`
	Rules   []struct {
		Conditions       conditionsText   `json:"conditions"`
		Patches          []patchText      `json:"patches,omitempty"`
		MergePatches     []mergePatchText `json:"mergePatches,omitempty"`
		StrategicPatches []mergePatchText `json:"strategicPatches,omitempty"`
	} `json:"resourceModifierRules"`
}

type conditionsText struct {
	Namespaces        []string              `json:"namespaces,omitempty"`
	GroupResource     string                `json:"groupResource"`
	ResourceNameRegex string                `json:"resourceNameRegex,omitempty"`
	LabelSelector     *metav1.LabelSelector `json:"labelSelector,omitempty"`
	Matches           []struct {
		Path  string `json:"path,omitempty"`
		Value string `json:"value,omitempty"`
	} `json:"matches,omitempty"`
}

type patchText struct {
	Operation string `json:"operation"`
	From      string `json:"from,omitempty"`
	Path      string `json:"path"`
	Value     string `json:"value,omitempty"`
}

type mergePatchText struct {
	PatchData string `json:"patchData,omitempty"`
}

// ParseModifiers reads the rules that a Restore's spec.resourceModifier leads to, in the format that Velero documents as v1:
// the ConfigMap has one key, whose value is YAML. The error wraps ErrInvalidModifiers. Everything is looked at here that
// does not depend on an item.
func ParseModifiers(configMap *corev1.ConfigMap) (*Modifiers, error) {
	if len(configMap.Data) != 1 {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w: it has %d keys, it must have one", configMap.Namespace, configMap.Name, ErrInvalidModifiers, len(configMap.Data))
	}
	for key, text := range configMap.Data {
		m, err := parseModifiers([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s, key %s: %w: %w", configMap.Namespace, configMap.Name, key, ErrInvalidModifiers, err)
		}
		return m, nil
	}
	return nil, nil //nolint:nilnil // there is one key
}

func parseModifiers(data []byte) (*Modifiers, error) {
	var text modifiersText
	if err := yaml.UnmarshalStrict(data, &text); err != nil {
		return nil, err
	}
	if !strings.EqualFold(text.Version, "v1") {
		return nil, fmt.Errorf("version %q is not known, only v1 is", text.Version)
	}
	if len(text.Rules) == 0 {
		return nil, errors.New("no resourceModifierRules")
	}
	m := &Modifiers{}
	for i, t := range text.Rules {
		rule := modifierRule{number: i + 1}
		err := errors.Join(rule.parseConditions(t.Conditions), rule.parsePatches(t.Patches, t.MergePatches, t.StrategicPatches))
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", rule.number, err)
		}
		m.rules = append(m.rules, rule)
	}
	return m, nil
}

func (r *modifierRule) parseConditions(text conditionsText) (err error) {
	if text.GroupResource == "" {
		return errors.New("conditions.groupResource is missing, such as deployments.apps")
	}
	r.pattern = text.GroupResource
	// Velero's library and separator: "*" stops at a dot, "**" does not, and braces have alternatives.
	if r.resources, err = glob.Compile(r.pattern, '.'); err != nil {
		return fmt.Errorf("conditions.groupResource %q: %w", r.pattern, err)
	}
	if r.namespaces, err = newFilter(text.Namespaces, nil); err != nil {
		return fmt.Errorf("conditions.namespaces: %w", err)
	}
	if r.name, err = regexp.Compile(text.ResourceNameRegex); err != nil {
		return fmt.Errorf("conditions.resourceNameRegex: %w", err)
	}
	r.labels = labels.Everything()
	if text.LabelSelector != nil {
		if r.labels, err = metav1.LabelSelectorAsSelector(text.LabelSelector); err != nil {
			return fmt.Errorf("conditions.labelSelector: %w", err)
		}
	}
	for _, match := range text.Matches {
		test, err := parseOperation(patchText{Operation: "test", Path: match.Path, Value: match.Value})
		if err != nil {
			return fmt.Errorf("conditions.matches: %w", err)
		}
		r.matches = append(r.matches, test)
	}
	return nil
}

func (r *modifierRule) parsePatches(patches []patchText, merges, strategic []mergePatchText) error {
	var err error
	for _, patch := range patches {
		operation, parseErr := parseOperation(patch)
		r.operations, err = append(r.operations, operation), errors.Join(err, parseErr)
	}
	for _, merge := range merges {
		patch, parseErr := parseMergePatch(merge.PatchData)
		r.merges, err = append(r.merges, patch), errors.Join(err, parseErr)
	}
	for _, merge := range strategic {
		patch, parseErr := parseMergePatch(merge.PatchData)
		r.strategic, err = append(r.strategic, patch), errors.Join(err, parseErr)
	}
	if err != nil {
		return err
	}
	kinds := slices.DeleteFunc([]int{len(patches), len(merges), len(strategic)}, func(n int) bool { return n == 0 })
	if len(kinds) != 1 {
		return errors.New("a rule has one of patches, mergePatches and strategicPatches")
	}
	return nil
}

// parseMergePatch reads a patch in YAML or JSON.
func parseMergePatch(text string) (map[string]any, error) {
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("patchData: %w", err)
	}
	var patch map[string]any
	if err := utiljson.Unmarshal(data, &patch); err != nil {
		return nil, fmt.Errorf("patchData is no object: %w", err)
	}
	if patch == nil {
		return nil, errors.New("patchData is empty")
	}
	return patch, nil
}

// apply changes an item, which is still in its original namespace, by every rule whose conditions it meets. nil changes
// nothing. The rules' conditions are about the item as it comes, so that no rule hides it from another. The errors name the
// rules that could not be applied, and have changed nothing; the others have.
func (m *Modifiers) apply(resource schema.GroupResource, item *unstructured.Unstructured) []error {
	if m == nil {
		return nil
	}
	original := item.DeepCopy()
	var errs []error
	for i := range m.rules {
		rule := &m.rules[i]
		meets, err := rule.meets(resource, original)
		if err == nil && meets {
			err = rule.applyTo(item)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("resource modifier rule %d: %w", rule.number, err))
		}
	}
	return errs
}

func (r *modifierRule) applyTo(item *unstructured.Unstructured) error {
	changed, err := r.change(item.Object)
	if err == nil {
		item.Object = changed
	}
	return err
}

// unmatched returns a warning for each rule whose groupResource matches none of the resources.
func (m *Modifiers) unmatched(resources []schema.GroupResource) []string {
	if m == nil {
		return nil
	}
	var warnings []string
	for i := range m.rules {
		rule := &m.rules[i]
		if !slices.ContainsFunc(resources, rule.includes) {
			warnings = append(warnings, fmt.Sprintf("resource modifier rule %d changes nothing: no resource of the backup or of the cluster matches conditions.groupResource %q",
				rule.number, rule.pattern))
		}
	}
	return warnings
}

// meets reports whether an item meets the conditions. The error says that conditions.matches cannot be evaluated.
func (r *modifierRule) meets(resource schema.GroupResource, item *unstructured.Unstructured) (bool, error) {
	if namespace := item.GetNamespace(); namespace != "" && !r.namespaces.takes(namespace) {
		return false, nil
	}
	if !r.includes(resource) || !r.name.MatchString(item.GetName()) || !r.labels.Matches(labels.Set(item.GetLabels())) {
		return false, nil
	}
	_, err := patchJSON(item.Object, r.matches)
	if errors.Is(err, jsonpatch.ErrTestFailed) || errors.Is(err, jsonpatch.ErrMissing) {
		return false, nil
	}
	return err == nil, err
}

// concern reports whether a rule is for a resource. nil has none.
func (m *Modifiers) concern(resource schema.GroupResource) bool {
	return m != nil && slices.ContainsFunc(m.rules, func(rule modifierRule) bool { return rule.includes(resource) })
}

// includes reports whether the rule is for a resource, such as "deployments.apps".
func (r *modifierRule) includes(resource schema.GroupResource) bool {
	return r.resources.Match(resource.String())
}

// change returns an item's content as the rule's patches make it, or an error. The content that it is given stays as it is.
func (r *modifierRule) change(content map[string]any) (map[string]any, error) {
	changed, err := patchJSON(content, r.operations)
	if errors.Is(err, jsonpatch.ErrTestFailed) {
		return content, nil // documented: then the rule is not for this item. A path that leads nowhere is an error
	}
	if err != nil {
		return nil, err
	}
	for _, patch := range r.merges {
		if changed, err = mergeJSON(changed, patch); err != nil {
			return nil, err
		}
	}
	for _, patch := range r.strategic {
		if changed, err = mergeStrategic(changed, patch); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// mergeStrategic merges a patch as kubectl does for kinds that Kubernetes itself has.
func mergeStrategic(content, patch map[string]any) (map[string]any, error) {
	kind := (&unstructured.Unstructured{Object: content}).GroupVersionKind()
	typed, err := clientgoscheme.Scheme.New(kind)
	if err != nil {
		return nil, fmt.Errorf("strategicPatches are for Kubernetes' own kinds, not for %s: use mergePatches: %w", kind, err)
	}
	merged, err := strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(content), runtime.DeepCopyJSON(patch), typed)
	if err != nil {
		return nil, fmt.Errorf("strategic merge patch: %w", err)
	}
	return merged, nil
}
