package restorecontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
)

// itemOperationTimeout is what Velero writes into a Restore that does not say.
const itemOperationTimeout = 4 * time.Hour

// origin is where a restore comes from.
type origin struct {
	backup    *velerov1.Backup
	location  *velerov1.BackupStorageLocation
	modifiers *restore.Modifiers // nil if there are none
}

// complete fills in what the Restore leaves open, as Velero does, and returns what is wrong with it, in Velero's words: the
// first ones by themselves, so that people see all mistakes at once. The error says that the API server could not be asked.
func (c *Controller) complete(ctx context.Context, r *velerov1.Restore) (from origin, problems []string, err error) {
	problems = checkSpec(r)
	for _, resource := range restore.NeverRestored() {
		if slices.Contains(r.Spec.IncludedResources, resource) {
			problems = append(problems, resource+" are non-restorable resources")
		}
		if !slices.Contains(r.Spec.ExcludedResources, resource) {
			r.Spec.ExcludedResources = append(r.Spec.ExcludedResources, resource)
		}
	}
	if r.Spec.ItemOperationTimeout.Duration == 0 {
		r.Spec.ItemOperationTimeout.Duration = itemOperationTimeout
	}
	if (r.Spec.BackupName == "") == (r.Spec.ScheduleName == "") {
		return from, append(problems, "Either a backup or schedule must be specified as a source for the restore, but not both"), nil
	}
	if r.Spec.BackupName == "" {
		problem, err := c.newestOf(ctx, r)
		if err != nil || problem != "" {
			return from, append(problems, problem), err
		}
	}
	from, problem, err := c.originOf(ctx, r.Spec.BackupName)
	if err != nil || problem != "" {
		return from, append(problems, problem), err
	}
	if r.Spec.ScheduleName == "" {
		r.Spec.ScheduleName = from.backup.Labels[velerov1.ScheduleNameLabel]
	}
	if from.modifiers, problem, err = c.modifiers(ctx, r); problem != "" {
		problems = append(problems, problem)
	}
	return from, problems, err
}

// modifiers reads the ConfigMap that the Restore names.
func (c *Controller) modifiers(ctx context.Context, r *velerov1.Restore) (m *restore.Modifiers, problem string, err error) {
	reference := r.Spec.ResourceModifier
	if reference == nil {
		return nil, "", nil
	}
	if !strings.EqualFold(reference.Kind, "configmap") { // Velero restores without any then
		return nil, fmt.Sprintf("spec.resourceModifier is a %q, and only a ConfigMap is known", reference.Kind), nil
	}
	var configMap corev1.ConfigMap
	if err := c.api.Get(ctx, c.name(reference.Name), &configMap); err != nil {
		return nil, fmt.Sprintf("failed to get resource modifiers configmap %s/%s", c.cfg.Namespace, reference.Name), client.IgnoreNotFound(err)
	}
	if m, err = restore.ParseModifiers(&configMap); err != nil {
		return nil, fmt.Sprintf("Error in parsing resource modifiers provided in configmap %s/%s: %v", c.cfg.Namespace, reference.Name, err), nil
	}
	return m, "", nil
}

// checkSpec checks what can be checked without looking elsewhere.
func checkSpec(r *velerov1.Restore) (problems []string) {
	complain := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, err := range checkLists(r.Spec.IncludedResources, r.Spec.ExcludedResources) {
		complain("Invalid included/excluded resource lists: %s", err)
	}
	for _, err := range checkLists(r.Spec.IncludedNamespaces, r.Spec.ExcludedNamespaces) {
		complain("Invalid included/excluded namespace lists: %s", err)
	}
	for _, err := range checkOwnNamespace(r) {
		complain("%s", err)
	}
	if r.Spec.OrLabelSelectors != nil && r.Spec.LabelSelector != nil {
		complain("encountered labelSelector as well as orLabelSelectors in restore spec, only one can be specified")
	}
	for _, selector := range append(slices.Clone(r.Spec.OrLabelSelectors), r.Spec.LabelSelector) {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			complain("invalid label selector: %v", err)
		}
	}
	for _, resource := range r.Spec.Hooks.Resources {
		for _, err := range checkInitHooks(resource.PostHooks) {
			complain("invalid init container in restore hook %q: %v", resource.Name, err)
		}
	}
	if policy := r.Spec.ExistingResourcePolicy; !isOneOf(policy, "", velerov1.PolicyTypeNone, velerov1.PolicyTypeUpdate) {
		complain("Invalid ExistingResourcePolicy: %s", policy)
	}
	if r.Spec.ResourcePolicy != nil { // to leave it out would restore what it forbids
		complain("spec.resourcePolicy is not supported by Plimsoll's restore controller: use the restore's filters instead")
	}
	for _, name := range []string{v1alpha1.AnnotationDryRun, v1alpha1.AnnotationKeepNativeVolumes} { // "True" would mean the opposite of what is meant
		if value := r.Annotations[name]; !isOneOf(value, "", "true", "false") {
			complain("invalid annotation %s: %q is neither \"true\" nor \"false\"", name, value)
		}
	}
	if mode := r.Annotations[v1alpha1.AnnotationProgressMode]; !isOneOf(mode, "", v1alpha1.ProgressModeOnePhase) {
		complain("invalid annotation %s: %q is not %q", v1alpha1.AnnotationProgressMode, mode, v1alpha1.ProgressModeOnePhase)
	}
	if text, ok := r.Annotations[velerov1.PodVolumeOperationTimeoutAnnotation]; ok {
		if _, err := time.ParseDuration(text); err != nil {
			complain("invalid annotation %s: %v", velerov1.PodVolumeOperationTimeoutAnnotation, err)
		}
	}
	return problems
}

// checkLists checks lists of names and patterns.
func checkLists(includes, excludes []string) (problems []string) {
	if len(includes) > 1 && slices.Contains(includes, "*") {
		problems = append(problems, "includes list must either contain '*' only, or a non-empty list of items")
	}
	if slices.Contains(excludes, "*") {
		problems = append(problems, "excludes list cannot contain '*'")
	}
	both := slices.Compact(slices.Sorted(slices.Values(excludes)))
	for _, item := range both {
		if slices.Contains(includes, item) {
			problems = append(problems, "excludes list cannot contain an item in the includes list: "+item)
		}
	}
	return problems
}

// checkOwnNamespace refuses what asks by name for a restore into the namespace of the controller. Where a pattern, or no list at
// all, leads there, the engine warns of each item.
func checkOwnNamespace(r *velerov1.Restore) (problems []string) {
	const reason = "nothing is restored into the restore controller's own namespace"
	if _, mapped := r.Spec.NamespaceMapping[r.Namespace]; !mapped && slices.Contains(r.Spec.IncludedNamespaces, r.Namespace) {
		problems = append(problems, fmt.Sprintf("Invalid included namespace %s: %s. To restore it into another one, use spec.namespaceMapping", r.Namespace, reason))
	}
	for _, from := range slices.Sorted(maps.Keys(r.Spec.NamespaceMapping)) {
		if r.Spec.NamespaceMapping[from] == r.Namespace {
			problems = append(problems, fmt.Sprintf("Invalid namespace mapping %s:%s: %s", from, r.Namespace, reason))
		}
	}
	return problems
}

func checkInitHooks(hooks []velerov1.RestoreResourceHook) (problems []error) {
	for _, hook := range hooks {
		if hook.Init == nil {
			continue
		}
		for _, raw := range hook.Init.InitContainers {
			var container corev1.Container
			if err := json.Unmarshal(raw.Raw, &container); err != nil {
				problems = append(problems, err)
			} else if container.Name == "" || container.Image == "" {
				problems = append(problems, fmt.Errorf("container %q needs a name and an image", container.Name))
			}
		}
	}
	return problems
}

// newestOf makes the newest completed backup of its schedule the Restore's backup.
func (c *Controller) newestOf(ctx context.Context, r *velerov1.Restore) (problem string, err error) {
	var list velerov1.BackupList
	if err := c.client.List(ctx, &list, client.MatchingLabels{velerov1.ScheduleNameLabel: r.Spec.ScheduleName}); err != nil {
		return "", fmt.Errorf("list the backups of schedule %q: %w", r.Spec.ScheduleName, err)
	}
	if len(list.Items) == 0 {
		return "No backups found for schedule", nil
	}
	var newest *velerov1.Backup
	for i := range list.Items {
		b := &list.Items[i]
		if b.Status.Phase == velerov1.BackupPhaseCompleted && b.Status.StartTimestamp != nil &&
			(newest == nil || newest.Status.StartTimestamp.Before(b.Status.StartTimestamp)) {
			newest = b
		}
	}
	if newest == nil {
		return "No completed backups found for schedule", nil
	}
	r.Spec.BackupName = newest.Name
	return "", nil
}

// originOf finds the backup and its location, which must be usable.
func (c *Controller) originOf(ctx context.Context, backupName string) (from origin, problem string, err error) {
	from.backup = &velerov1.Backup{}
	if err := c.client.Get(ctx, c.name(backupName), from.backup); err != nil {
		return from, fmt.Sprintf("Error retrieving backup: can't find backup %s/%s: %v", c.cfg.Namespace, backupName, err), client.IgnoreNotFound(err)
	}
	if err := backupstore.CheckRestorable(from.backup); err != nil {
		return from, fmt.Sprintf("Error retrieving backup: %v", err), nil
	}
	if from.location, err = c.location(ctx, from.backup.Spec.StorageLocation); err != nil {
		return from, fmt.Sprintf("Error retrieving backup: %v", err), client.IgnoreNotFound(err)
	}
	if from.location.Status.Phase != velerov1.BackupStorageLocationPhaseAvailable {
		return from, strings.TrimSpace(fmt.Sprintf("The BSL %s is unavailable, cannot retrieve the backup. %s", from.location.Name, from.location.Status.Message)), nil
	}
	return from, "", nil
}
