package restore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Annotations that ask for hooks. Those of a pod count more than the Restore's (docs/contracts/velero-restore.md 3.10).
const (
	execHookAnnotation = "post.hook.restore.velero.io/"
	initHookAnnotation = "init.hook.restore.velero.io/"
)

// fromAnnotation is how Velero names a hook of an annotation.
const fromAnnotation = "<from-annotation>"

// execHook is a command that is run in a container of a restored pod.
type execHook struct {
	name         string
	container    string
	command      []string
	onError      velerov1.HookErrorMode
	execTimeout  time.Duration // 0: defaultExecTimeout
	waitTimeout  time.Duration // for the container; 0: as long as the restore waits
	waitForReady bool
}

// addInitHooks puts the init containers of a pod's restore hooks before its own. waitForVolumes puts the one that waits for
// volumes before them. A backup of a restored pod has them already: those are replaced.
func addInitHooks(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	spec, ok := fieldOf[map[string]any](in.item.Object, "spec")
	if !ok {
		return actionOutput{}, nil
	}
	containers, err := s.initHooks(in.item)
	if err != nil || len(containers) == 0 {
		return actionOutput{}, err
	}
	removeObjects(spec, "initContainers", func(own map[string]any) bool {
		return slices.ContainsFunc(containers, func(hook any) bool { return nameOf(hook) == nameOf(own) })
	})
	own, _ := spec["initContainers"].([]any)
	spec["initContainers"] = append(containers, own...)
	return actionOutput{}, nil
}

// initHooks returns the init containers that annotations or the Restore ask for. The pod is in its original namespace.
func (s *scope) initHooks(pod *unstructured.Unstructured) (containers []any, err error) {
	annotation := func(name string) string { return pod.GetAnnotations()[initHookAnnotation+name] }
	if image := annotation("container-image"); image != "" {
		name := cmp.Or(annotation("container-name"), "velero-restore-init-hook")
		container := map[string]any{"name": name, "image": image}
		if command := annotation("command"); command != "" {
			container["command"] = anySlice(parseCommand(command))
		}
		return []any{container}, nil
	}
	for hook := range s.hooksFor(s.targetNamespace(pod.GetNamespace()), pod.GetLabels()) {
		if hook.Init == nil {
			continue
		}
		for _, raw := range hook.Init.InitContainers {
			var container map[string]any
			if err := utiljson.Unmarshal(raw.Raw, &container); err != nil {
				return nil, fmt.Errorf("init container in the Restore's spec.hooks: %w", err)
			}
			containers = append(containers, container)
		}
	}
	return containers, nil
}

// execHooks returns the commands that annotations or the Restore ask for in a pod that was created, and warnings of what
// cannot be read, which is then not set.
func (s *scope) execHooks(pod *unstructured.Unstructured) (hooks []execHook, warnings []string) {
	var first string
	for container := range objectsOf(pod.Object, "spec", "containers") {
		first = textOf(container, "name")
		break
	}
	if command := pod.GetAnnotations()[execHookAnnotation+"command"]; command != "" {
		hook, warnings := annotatedExecHook(pod.GetAnnotations())
		if hook.container == "" {
			hook.container = first
		}
		return []execHook{hook}, warnings
	}
	for hook, name := range s.hooksFor(pod.GetNamespace(), pod.GetLabels()) {
		if hook.Exec == nil {
			continue
		}
		e := execHook{
			name: name, container: hook.Exec.Container, command: hook.Exec.Command, onError: hook.Exec.OnError,
			execTimeout: hook.Exec.ExecTimeout.Duration, waitTimeout: hook.Exec.WaitTimeout.Duration,
			waitForReady: hook.Exec.WaitForReady != nil && *hook.Exec.WaitForReady,
		}
		if e.container == "" {
			e.container = first
		}
		hooks = append(hooks, e)
	}
	return hooks, nil
}

func annotatedExecHook(annotations map[string]string) (hook execHook, warnings []string) {
	text := func(name string) string { return annotations[execHookAnnotation+name] }
	note := func(name string, err error) {
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("its annotation %s%s cannot be read and is ignored: %v", execHookAnnotation, name, err))
		}
	}
	duration := func(name string) (d time.Duration) {
		if text(name) != "" {
			var err error
			d, err = time.ParseDuration(text(name))
			note(name, err)
		}
		return d
	}
	hook = execHook{
		name: fromAnnotation, container: text("container"), command: parseCommand(text("command")), onError: velerov1.HookErrorMode(text("on-error")),
		execTimeout: duration("exec-timeout"), waitTimeout: duration("wait-timeout"),
	}
	if ready := text("wait-for-ready"); ready != "" {
		var err error
		hook.waitForReady, err = strconv.ParseBool(ready)
		note("wait-for-ready", err)
	}
	return hook, warnings
}

// parseCommand reads a command as annotations have it: a JSON list, or else one word.
func parseCommand(text string) []string {
	var command []string
	if strings.HasPrefix(text, "[") && json.Unmarshal([]byte(text), &command) == nil {
		return command
	}
	return []string{text}
}

func anySlice(texts []string) []any {
	list := make([]any, 0, len(texts))
	for _, text := range texts {
		list = append(list, text)
	}
	return list
}

// hooksFor yields the Restore's hooks for a pod, with their names. The namespace is where the pod is restored to, as in Velero.
func (s *scope) hooksFor(namespace string, podLabels map[string]string) func(yield func(velerov1.RestoreResourceHook, string) bool) {
	return func(yield func(velerov1.RestoreResourceHook, string) bool) {
		for i := range s.Restore.Spec.Hooks.Resources {
			resource := &s.Restore.Spec.Hooks.Resources[i]
			if !hookMatches(resource, namespace, podLabels) {
				continue
			}
			for _, hook := range resource.PostHooks {
				if !yield(hook, resource.Name) {
					return
				}
			}
		}
	}
}

// checkHooks returns an error if it cannot be understood which pods the Restore's hooks are for.
func checkHooks(spec *velerov1.RestoreSpec) error {
	for i := range spec.Hooks.Resources {
		hooks := &spec.Hooks.Resources[i]
		_, err := newFilter(hooks.IncludedNamespaces, hooks.ExcludedNamespaces)
		if err == nil && hooks.LabelSelector != nil {
			_, err = metav1.LabelSelectorAsSelector(hooks.LabelSelector)
		}
		if err != nil {
			return fmt.Errorf("spec.hooks %q: %w", hooks.Name, err)
		}
	}
	return nil
}

// hookMatches reports whether hooks, which were checked, are for a pod. Their lists of resources do not count, as in Velero
// (GetRestoreHooksFromSpec in internal/hook/item_hook_handler.go, 1.17.2): hooks run in pods only.
func hookMatches(resource *velerov1.RestoreResourceHookSpec, namespace string, podLabels map[string]string) bool {
	namespaces, err := newFilter(resource.IncludedNamespaces, resource.ExcludedNamespaces)
	if err != nil || !namespaces.takes(namespace) {
		return false
	}
	if resource.LabelSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(resource.LabelSelector)
	return err == nil && selector.Matches(labels.Set(podLabels))
}
