package restore

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// Plan is what a restore will do: the names of its items in the order in which they are restored, not the items. People can
// read it, as JSON or by WriteText, before anything is done.
type Plan struct {
	// Resources are in the order in which they are restored; everything of one is restored before the next. In one-phase
	// mode they are found while the restore runs, and there are none yet.
	Resources []PlannedResource `json:"resources"`
	// TotalItems is the number of items, each counted once; in one-phase mode what the Backup says, or 0.
	TotalItems int `json:"totalItems"`
	// Estimate reports that TotalItems is one: one-phase mode.
	Estimate bool `json:"estimate,omitempty"`
	// LeftOut is the number of the backup's items that filters and selectors leave out, or that are never restored, such as
	// pods that have ended. In one-phase mode it is not known yet.
	LeftOut int `json:"leftOut"`
	// VolumeBytes is the size of the data in the volumes of the plan's pods, as far as their PodVolumeBackups say. In one-phase mode
	// it is not known yet.
	VolumeBytes int64 `json:"volumeBytes,omitempty"`
	// Problems are the items of the backup that cannot be read, what the archive's reader has left out, and that the backup is incomplete.
	Problems []string `json:"problems,omitempty"`
	// Results are what RestoreItems will say is wrong with the backup, whatever becomes of the items. In one-phase mode they are not known yet.
	Results backupstore.Results `json:"-"`
}

// PlannedResource is what is restored of one resource.
type PlannedResource struct {
	Resource   schema.GroupResource
	TotalItems int
	// Namespaces are sorted by their name in the backup.
	Namespaces []PlannedNamespace
}

// PlannedNamespace is what is restored of one resource in one namespace.
type PlannedNamespace struct {
	Namespace string   `json:"namespace,omitempty"`       // in the backup; empty for what belongs to the cluster
	Target    string   `json:"targetNamespace,omitempty"` // in the cluster
	Items     []string `json:"items"`                     // sorted
}

// MarshalJSON writes the resource as one name, such as "deployments.apps".
func (r PlannedResource) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Resource   string             `json:"resource"`
		TotalItems int                `json:"totalItems"`
		Namespaces []PlannedNamespace `json:"namespaces"`
	}{r.Resource.String(), r.TotalItems, r.Namespaces})
}

// WriteText writes the plan for people.
func (p *Plan) WriteText(w io.Writer) error {
	var page strings.Builder
	fmt.Fprintf(&page, "%s restored, %s left out.\n", text.Count(p.TotalItems, "item is", "items are"), text.Count(p.LeftOut, "is", "are"))
	for _, resource := range p.Resources {
		fmt.Fprintf(&page, "\n%s: %d\n", resource.Resource, resource.TotalItems)
		for _, namespace := range resource.Namespaces {
			fmt.Fprintf(&page, "  %s%s\n", namespace.heading(), strings.Join(namespace.Items, " "))
		}
	}
	if len(p.Problems) > 0 {
		fmt.Fprintf(&page, "\nproblems: %d\n  %s\n", len(p.Problems), strings.Join(p.Problems, "\n  "))
	}
	_, err := io.WriteString(w, page.String())
	return err
}

func (n PlannedNamespace) heading() string {
	switch n.Namespace {
	case "":
		return ""
	case n.Target:
		return n.Namespace + ": "
	default:
		return n.Namespace + " -> " + n.Target + ": "
	}
}

// add appends an item. Items come sorted by namespace and name.
func (r *PlannedResource) add(namespace, target, name string) {
	last := len(r.Namespaces) - 1
	if last < 0 || r.Namespaces[last].Namespace != namespace {
		r.Namespaces = append(r.Namespaces, PlannedNamespace{Namespace: namespace, Target: target})
		last++
	}
	r.Namespaces[last].Items = append(r.Namespaces[last].Items, name)
	r.TotalItems++
}

// items yields all items in their order.
func (r *PlannedResource) items(yield func(key) bool) {
	for _, namespace := range r.Namespaces {
		for _, name := range namespace.Items {
			if !yield(key{r.Resource, namespace.Namespace, name}) {
				return
			}
		}
	}
}

// each yields the resources in the order in which they are restored.
func (p *Plan) each(yield func(*PlannedResource) bool) {
	for i := range p.Resources {
		if !yield(&p.Resources[i]) {
			return
		}
	}
}

// items yields the items of all resources.
func (p *Plan) items(yield func(key) bool) {
	for resource := range p.each {
		for item := range resource.items {
			if !yield(item) {
				return
			}
		}
	}
}

// addNamespaces plans the namespaces into which something is restored besides those that are restored themselves. Like
// those they come before everything but CustomResourceDefinitions.
func (p *Plan) addNamespaces() {
	var names []string
	i, at := -1, 0
	for n, resource := range p.Resources {
		switch resource.Resource {
		case namespaces:
			i = n
			for item := range resource.items {
				names = append(names, item.name)
			}
		case customResourceDefinitions:
			at = n + 1
		default:
			for _, namespace := range resource.Namespaces {
				if namespace.Namespace != "" {
					names = append(names, namespace.Namespace)
				}
			}
		}
	}
	if len(names) == 0 {
		return
	}
	if i < 0 {
		i = at
		p.Resources = slices.Insert(p.Resources, i, PlannedResource{})
	}
	slices.Sort(names)
	names = slices.Compact(names)
	p.Resources[i] = PlannedResource{Resource: namespaces, TotalItems: len(names), Namespaces: []PlannedNamespace{{Items: names}}}
}
