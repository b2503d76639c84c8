package restore

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// catalog is what the API server serves, as it was asked once.
type catalog struct {
	kinds map[schema.GroupVersionKind]served
	names []resourceNames // in the API server's order of groups, so that the first of a name is meant
}

// served is how a kind is reached.
type served struct {
	resource   schema.GroupVersionResource
	namespaced bool
	status     bool // has a subresource for its status
}

// resourceNames are the ways of naming a resource.
type resourceNames struct {
	resource schema.GroupResource
	others   []string // singular and short names
}

// resources are all that are known.
func (c *catalog) resources() []schema.GroupResource {
	all := make([]schema.GroupResource, 0, len(c.names))
	for _, names := range c.names {
		all = append(all, names.resource)
	}
	return all
}

func (n resourceNames) inGroup(begin string) bool { return strings.HasPrefix(n.resource.Group, begin) }

// readCatalog asks the API server. Groups whose own server does not answer are left out.
func readCatalog(client discovery.DiscoveryInterface) (*catalog, error) {
	_, lists, err := client.ServerGroupsAndResources()
	if failed := (*discovery.ErrGroupDiscoveryFailed)(nil); err != nil && !errors.As(err, &failed) {
		return nil, fmt.Errorf("ask the API server what it serves: %w", err)
	}
	c := &catalog{kinds: map[schema.GroupVersionKind]served{}}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("ask the API server what it serves: %w", err)
		}
		c.add(version, list.APIResources)
	}
	return c, nil
}

func (c *catalog) add(version schema.GroupVersion, resources []metav1.APIResource) {
	for _, r := range resources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		c.kinds[version.WithKind(r.Kind)] = served{
			resource:   version.WithResource(r.Name),
			namespaced: r.Namespaced,
			status:     slices.ContainsFunc(resources, func(sub metav1.APIResource) bool { return sub.Name == r.Name+"/status" }),
		}
		c.names = append(c.names, resourceNames{
			resource: schema.GroupResource{Group: version.Group, Resource: r.Name},
			others:   append([]string{r.SingularName}, r.ShortNames...),
		})
	}
}

// addDefinitions adds the resources that the CustomResourceDefinitions of a backup define.
func (c *catalog) addDefinitions(archive *backupstore.Archive) {
	for item := range archive.ItemsOf(customResourceDefinitions.String()) {
		if crd, err := archive.Object(item); err == nil {
			c.addDefinition(crd)
		}
	}
}

// maxOtherNames is how many names of a resource are known besides its plural.
const maxOtherNames = 20

// addDefinition adds the names of a CustomResourceDefinition that is going to be restored, as far as an API server would take them:
// they are kept until the restore ends, and the archive may be made to harm.
func (c *catalog) addDefinition(crd *unstructured.Unstructured) {
	names := resourceNames{}
	names.resource.Group, _, _ = unstructured.NestedString(crd.Object, "spec", "group")
	names.resource.Resource, _, _ = unstructured.NestedString(crd.Object, "spec", "names", "plural")
	if !isSubdomain(names.resource.Group) || !isLabel(names.resource.Resource) {
		return
	}
	singular, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "singular")
	short, _, _ := unstructured.NestedStringSlice(crd.Object, "spec", "names", "shortNames")
	for _, name := range append([]string{singular}, short...) {
		if isLabel(name) && len(names.others) < maxOtherNames {
			names.others = append(names.others, name)
		}
	}
	c.names = append(c.names, names)
}

// isLabel reports whether a name may be that of a resource: it has at most 63 bytes.
func isLabel(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// isSubdomain reports whether a name may be that of a group or an object: it has at most 253 bytes.
func isSubdomain(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

// resolve returns the resource that a name means: plural, singular or short, with its group, the beginning of its group
// or, for the first of that name, without. A name that means nothing here is taken as it is: a filter by it must not become
// a filter by nothing.
func (c *catalog) resolve(name string) schema.GroupResource {
	wanted := schema.ParseGroupResource(strings.ToLower(name))
	// The short name of one thing must not hide the full name of another.
	for _, fits := range []func(n resourceNames) bool{
		func(n resourceNames) bool { return n.resource == wanted },
		func(n resourceNames) bool {
			return n.resource.Group == wanted.Group && slices.Contains(n.others, wanted.Resource)
		},
		func(n resourceNames) bool { return n.inGroup(wanted.Group) && n.resource.Resource == wanted.Resource },
		func(n resourceNames) bool {
			return n.inGroup(wanted.Group) && slices.Contains(n.others, wanted.Resource)
		},
	} {
		if i := slices.IndexFunc(c.names, fits); i >= 0 {
			return c.names[i].resource
		}
	}
	return wanted
}

// find returns how a kind is reached, or an error that says what the cluster has instead.
func (c *catalog) find(kind schema.GroupVersionKind) (served, error) {
	if s, ok := c.kinds[kind]; ok {
		return s, nil
	}
	var versions []string
	for k := range c.kinds {
		if k.GroupKind() == kind.GroupKind() {
			versions = append(versions, k.GroupVersion().String())
		}
	}
	slices.Sort(versions)
	if len(versions) == 0 {
		return served{}, fmt.Errorf("this cluster does not serve %s of %s: its CustomResourceDefinition or API server is missing", kind.Kind, kind.GroupVersion())
	}
	return served{}, fmt.Errorf("this cluster does not serve %s of %s, only of %s", kind.Kind, kind.GroupVersion(), strings.Join(versions, ", "))
}

// compareResources orders by the full name, such as "deployments.apps".
func compareResources(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) }
