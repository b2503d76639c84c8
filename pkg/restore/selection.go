package restore

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// neverRestored are the resources that a cluster makes itself, and those that make a Velero server or an agent act: a
// DeleteBackupRequest that comes back would delete a backup, and a RepositoryTask would forget snapshots again.
var neverRestored = []string{
	// Velero's own list.
	"nodes",
	"events",
	"events.events.k8s.io",
	"backups.velero.io",
	"restores.velero.io",
	"resticrepositories.velero.io",
	"csinodes.storage.k8s.io",
	"volumeattachments.storage.k8s.io",
	"backuprepositories.velero.io",
	// Ours. A location that comes back would have the controller read whatever bucket the backup names, and a lease would take
	// the leadership from whoever has it.
	"backupstoragelocations.velero.io",
	"datadownloads.velero.io",
	"deletebackuprequests.velero.io",
	"downloadrequests.velero.io",
	"filerequests.plimsoll.io",
	"leases.coordination.k8s.io",
	"podvolumebackups.velero.io",
	"podvolumerestores.velero.io",
	"repositorytasks.plimsoll.io",
	"schedules.velero.io",
	"serverstatusrequests.velero.io",
	"volumepluginbackups.plimsoll.io",
	"volumepluginrestores.plimsoll.io",
}

// alwaysTaken are the resources that volumes need, whatever the filters say.
var alwaysTaken = []string{"datauploads.velero.io", "volumesnapshotcontents.snapshot.storage.k8s.io"}

// NeverRestored returns the resources, such as "events.events.k8s.io", that are not restored whatever spec.includedResources
// says: a Restore that includes one of them by name is invalid.
func NeverRestored() []string { return slices.Clone(neverRestored) }

// selection decides which items of a backup are restored, by the spec of a Restore.
type selection struct {
	resources  filter
	namespaces filter // by what they are called in the backup
	statuses   *filter
	cluster    *bool
	all        labels.Selector
	any        []labels.Selector
}

// newSelection returns an error if a pattern or a selector cannot be understood: an exclude that is not would restore what
// was to be left alone.
func newSelection(spec *velerov1.RestoreSpec, known *catalog) (*selection, error) {
	s := &selection{cluster: spec.IncludeClusterResources, all: labels.Everything()}
	var err error
	if s.resources, err = newResourceFilter(spec.IncludedResources, spec.ExcludedResources, known); err != nil {
		return nil, fmt.Errorf("spec.includedResources, spec.excludedResources: %w", err)
	}
	if s.namespaces, err = newFilter(spec.IncludedNamespaces, spec.ExcludedNamespaces); err != nil {
		return nil, fmt.Errorf("spec.includedNamespaces, spec.excludedNamespaces: %w", err)
	}
	if status := spec.RestoreStatus; status != nil {
		f, err := newResourceFilter(status.IncludedResources, status.ExcludedResources, known)
		if err != nil {
			return nil, fmt.Errorf("spec.restoreStatus: %w", err)
		}
		s.statuses = &f
	}
	return s, s.setSelectors(spec)
}

func (s *selection) setSelectors(spec *velerov1.RestoreSpec) (err error) {
	if spec.LabelSelector != nil {
		if s.all, err = metav1.LabelSelectorAsSelector(spec.LabelSelector); err != nil {
			return fmt.Errorf("spec.labelSelector: %w", err)
		}
	}
	for i, alternative := range spec.OrLabelSelectors {
		selector, err := metav1.LabelSelectorAsSelector(alternative)
		if err != nil {
			return fmt.Errorf("spec.orLabelSelectors[%d]: %w", i, err)
		}
		s.any = append(s.any, selector)
	}
	return nil
}

// takesResource reports whether items of a resource are restored at all.
func (s *selection) takesResource(resource schema.GroupResource) bool {
	name := resource.String()
	switch {
	case slices.Contains(neverRestored, name):
		return false
	case slices.Contains(alwaysTaken, name):
		return true
	default:
		return s.resources.takes(name)
	}
}

// takesNamespace reports whether items of a resource are restored from a namespace of the backup or, if that is empty, from
// what belongs to the cluster.
func (s *selection) takesNamespace(resource schema.GroupResource, namespace string) bool {
	switch {
	case namespace != "":
		return s.namespaces.takes(namespace) || slices.Contains(alwaysTaken, resource.String())
	case s.cluster != nil:
		return *s.cluster
	default:
		return s.namespaces.everything()
	}
}

// takesLabels reports whether an item is restored by its labels.
func (s *selection) takesLabels(resource schema.GroupResource, item map[string]string) bool {
	if slices.Contains(alwaysTaken, resource.String()) {
		return true
	}
	set := labels.Set(item)
	matches := func(alternative labels.Selector) bool { return alternative.Matches(set) }
	return s.all.Matches(set) && (len(s.any) == 0 || slices.ContainsFunc(s.any, matches))
}

// takesAdditional reports whether an item that another one needs is restored. Labels do not count, and what belongs to the
// cluster comes along unless the restore says that nothing of that kind may: that is how volumes follow their claims.
func (s *selection) takesAdditional(item key) bool {
	if item.resource.Group == snapshotGroup {
		return true // of it a claim is made, which would wait for it for ever
	}
	if !s.takesResource(item.resource) {
		return false
	}
	if item.namespace == "" {
		return s.cluster == nil || *s.cluster
	}
	return s.takesNamespace(item.resource, item.namespace)
}

// restoresStatus reports whether an item's status is restored, too. What the item itself says in Velero's annotation counts
// more than the spec.
func (s *selection) restoresStatus(resource schema.GroupResource, annotations map[string]string) bool {
	switch strings.ToLower(strings.TrimSpace(annotations["velero.io/restore-status"])) {
	case "true":
		return true
	case "false":
		return false
	default:
		return s.statuses != nil && s.statuses.takes(resource.String())
	}
}

// filter is a list of what is taken and one of what is not, of names and of patterns as in package path.
type filter struct{ includes, excludes []string }

var errBraces = errors.New("braces are no pattern here: write one entry for each alternative")

func newFilter(includes, excludes []string) (filter, error) {
	f := filter{includes: slices.Clone(includes), excludes: slices.Clone(excludes)}
	for _, list := range [][]string{f.includes, f.excludes} {
		for i, pattern := range list {
			if strings.ContainsAny(pattern, "{}") {
				return filter{}, fmt.Errorf("%q: %w", pattern, errBraces)
			}
			list[i] = strings.ReplaceAll(pattern, "[!", "[^")
			if _, err := path.Match(list[i], ""); err != nil {
				return filter{}, fmt.Errorf("%q: %w", pattern, err)
			}
		}
	}
	return f, nil
}

// newResourceFilter is newFilter for resources: names without a pattern are those that the cluster knows.
func newResourceFilter(includes, excludes []string, known *catalog) (filter, error) {
	f, err := newFilter(includes, excludes)
	for _, list := range [][]string{f.includes, f.excludes} {
		for i, name := range list {
			if !strings.ContainsAny(name, `*?[\`) {
				list[i] = known.resolve(name).String()
			}
		}
	}
	return f, err
}

// takes reports whether a name is in the filter. Excludes win, and no includes are all.
func (f filter) takes(name string) bool {
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	}
	return !slices.ContainsFunc(f.excludes, matches) && (len(f.includes) == 0 || slices.ContainsFunc(f.includes, matches))
}

// everything reports whether the filter leaves nothing out.
func (f filter) everything() bool {
	return len(f.excludes) == 0 && (len(f.includes) == 0 || slices.Equal(f.includes, []string{"*"}))
}
