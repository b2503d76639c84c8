package restore

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// waitSettings are those of the init container that holds a pod until its volumes are there.
type waitSettings struct {
	image, command string
	resources      map[string]any
	security       map[string]any // nil: that of the pod, see waitSecurityContext
}

// parseWaitSettings reads the data of Velero's ConfigMap for the action velero.io/pod-volume-restore (docs/contracts/velero-restore.md
// 3.8). What cannot be read is left at its default, with a warning.
func parseWaitSettings(data map[string]string, defaultImage string) (w waitSettings, warnings []string) {
	w = waitSettings{image: defaultImage, command: cmp.Or(data["command"], restoreHelper)}
	var problems []error
	if image := data["image"]; strings.Contains(image, "/") {
		w.image = withTag(image, defaultImage)
	} else if image != "" {
		problems = append(problems, fmt.Errorf("image %q has no registry", image))
	}
	var err error
	if w.resources, err = waitResources(data); err != nil {
		problems = append(problems, err)
		w.resources, _ = waitResources(nil)
	}
	if w.security, err = parseSecurityContext(data); err != nil {
		problems = append(problems, err)
	}
	for _, problem := range problems {
		warnings = append(warnings, fmt.Sprintf("ConfigMap labelled velero.io/pod-volume-restore: %v; the default is used", problem))
	}
	return w, warnings
}

// withTag gives an image that has neither tag nor digest the tag of the default image, as Velero gives it its own.
func withTag(image, defaultImage string) string {
	if strings.Contains(image[strings.LastIndex(image, "/"):], ":") {
		return image
	}
	name, _, _ := strings.Cut(defaultImage, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		return image + name[i:]
	}
	return image
}

// waitResources are requests and limits; 0 leaves one out.
func waitResources(data map[string]string) (map[string]any, error) {
	lists := map[string]map[string]any{"limits": {}, "requests": {}}
	limits := map[string]resource.Quantity{}
	for _, r := range []struct{ kind, name, key, otherwise string }{
		{"limits", "cpu", "cpuLimit", "100m"},
		{"limits", "memory", "memLimit", "128Mi"},
		{"requests", "cpu", "cpuRequest", "100m"},
		{"requests", "memory", "memRequest", "128Mi"},
	} {
		text := cmp.Or(data[r.key], r.otherwise)
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", r.key, text, err)
		}
		if quantity.Sign() <= 0 {
			continue
		}
		if limit, limited := limits[r.name]; limited && quantity.Cmp(limit) > 0 {
			return nil, fmt.Errorf("%s %q is more than the limit %s", r.key, text, limit.String())
		}
		if r.kind == "limits" {
			limits[r.name] = quantity
		}
		lists[r.kind][r.name] = text
	}
	requirements := map[string]any{}
	for kind, list := range lists {
		if len(list) > 0 {
			requirements[kind] = list
		}
	}
	return requirements, nil
}

// parseSecurityContext reads Velero's keys; secCtx is YAML and counts more than the others. It returns nil if there are none.
func parseSecurityContext(data map[string]string) (map[string]any, error) {
	var c corev1.SecurityContext
	for key, field := range map[string]**int64{"secCtxRunAsUser": &c.RunAsUser, "secCtxRunAsGroup": &c.RunAsGroup} {
		if data[key] == "" {
			continue
		}
		id, err := strconv.ParseInt(data[key], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s %q is not a number", key, data[key])
		}
		*field = &id
	}
	if text := data["secCtxAllowPrivilegeEscalation"]; text != "" {
		allowed, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("secCtxAllowPrivilegeEscalation %q is neither true nor false", text)
		}
		c.AllowPrivilegeEscalation = &allowed
	}
	if err := yaml.UnmarshalStrict([]byte(data["secCtx"]), &c); err != nil {
		return nil, fmt.Errorf("secCtx: %w", err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
	if err != nil || len(fields) == 0 {
		return nil, err
	}
	return fields, nil
}
