package restore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// Annotations that ask Velero for hooks.
const (
	execHookCommand = "post.hook.restore.velero.io/command"
	initHookImage   = "init.hook.restore.velero.io/container-image"
)

// warnOfHooks says of a pod that its restore hooks are not run.
func warnOfHooks(_ context.Context, s *session, in *actionInput) (actionOutput, error) {
	hooks := s.hooksOf(in.item)
	if len(hooks) == 0 {
		return actionOutput{}, nil
	}
	return actionOutput{warnings: []string{fmt.Sprintf(
		"its restore hooks are not run (%s): Plimsoll runs none; do by hand what they do", strings.Join(hooks, ", "),
	)}}, nil
}

// hooksOf names the hooks that Velero would run for a pod.
func (s *session) hooksOf(pod *unstructured.Unstructured) []string {
	var hooks []string
	for _, name := range []string{execHookCommand, initHookImage} {
		if _, ok := pod.GetAnnotations()[name]; ok {
			hooks = append(hooks, "annotation "+name)
		}
	}
	for _, hook := range s.Restore.Spec.Hooks.Resources {
		if len(hook.PostHooks) > 0 && hookMatches(&hook, pod) {
			hooks = append(hooks, fmt.Sprintf("%q in the Restore's spec.hooks", hook.Name))
		}
	}
	return hooks
}

// hookMatches says whether a hook is for a pod, which is still in its original namespace. What cannot be read
// matches: it is better to warn of one pod too many.
func hookMatches(hook *velerov1.RestoreResourceHookSpec, pod *unstructured.Unstructured) bool {
	namespaces, err := newFilter(hook.IncludedNamespaces, hook.ExcludedNamespaces)
	if err == nil && !namespaces.takes(pod.GetNamespace()) {
		return false
	}
	names := []string{"*", pods.Resource, "pod", "po"}
	namesPods := func(entry string) bool { return slices.Contains(names, entry) }
	if len(hook.IncludedResources) > 0 && !slices.ContainsFunc(hook.IncludedResources, namesPods) ||
		slices.ContainsFunc(hook.ExcludedResources, namesPods) {
		return false
	}
	if hook.LabelSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(hook.LabelSelector)
	return err != nil || selector.Matches(labels.Set(pod.GetLabels()))
}
