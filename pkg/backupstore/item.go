package backupstore

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Archive is the index of a backup's items, whose content lies in a temporary file. It is safe for concurrent use.
type Archive struct {
	key       string
	spool     *os.File
	format    string
	items     []Item // sorted, each once
	resources []Resource
	warnings  []string
	warned    int
}

// Item is one object in a backup.
type Item struct {
	Resource  string // plural name and group in the source cluster, such as "pods" or "deployments.apps"
	Namespace string // empty for what belongs to the cluster
	Name      string

	offset, size int64
}

// String is where the archive has the item.
func (i Item) String() string {
	if i.Namespace == "" {
		return "resources/" + i.Resource + "/cluster/" + i.Name + ".json"
	}
	return "resources/" + i.Resource + "/namespaces/" + i.Namespace + "/" + i.Name + ".json"
}

// Size is that of the item's JSON in bytes.
func (i Item) Size() int64 { return i.size }

func (i Item) compare(j Item) int {
	return cmp.Or(strings.Compare(i.Resource, j.Resource), strings.Compare(i.Namespace, j.Namespace), strings.Compare(i.Name, j.Name))
}

// Resource is a kind of items in a backup.
type Resource struct {
	Name  string // as in Item
	Items int
	// PreferredVersion is the API version of the items, where the archive says so: since Velero 1.4.
	PreferredVersion string
	// Versions are all API versions in which the archive has them, sorted: more than one only where the server's feature
	// EnableAPIGroupVersions was on.
	Versions []string
}

// Close gives the temporary file back.
func (a *Archive) Close() error { return a.spool.Close() }

// FormatVersion is the version of the archive's layout, such as "1.1.0"; empty if the archive does not say.
func (a *Archive) FormatVersion() string { return a.format }

// Len is the number of items.
func (a *Archive) Len() int { return len(a.items) }

// Warnings returns what was left out of the archive: a bounded number of lines, sorted.
func (a *Archive) Warnings() []string { return slices.Clone(a.warnings) }

// Resources are the kinds of items, sorted by name.
func (a *Archive) Resources() []Resource { return slices.Clone(a.resources) }

// Items are all items, sorted by resource, namespace and name.
func (a *Archive) Items() iter.Seq[Item] { return slices.Values(a.items) }

// ItemsOf are the items of one resource, sorted by namespace and name.
func (a *Archive) ItemsOf(resource string) iter.Seq[Item] {
	begin, _ := slices.BinarySearchFunc(a.items, resource, func(i Item, resource string) int {
		return cmp.Or(strings.Compare(i.Resource, resource), 1)
	})
	end := begin
	for end < len(a.items) && a.items[end].Resource == resource {
		end++
	}
	return slices.Values(a.items[begin:end])
}

// Find returns the item of that resource, namespace and name.
func (a *Archive) Find(resource, namespace, name string) (Item, bool) {
	i, ok := slices.BinarySearchFunc(a.items, Item{Resource: resource, Namespace: namespace, Name: name}, Item.compare)
	if !ok {
		return Item{}, false
	}
	return a.items[i], true
}

// Read returns the item's JSON as it was stored. Nobody has looked at it yet.
func (a *Archive) Read(item Item) ([]byte, error) {
	data := make([]byte, item.size)
	if _, err := io.ReadFull(io.NewSectionReader(a.spool, item.offset, item.size), data); err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", item, a.key, err)
	}
	return data, nil
}

// MaxDecodedBytes is how much memory an item may take when it is decoded, by and large. An API server's largest objects take a
// third of that; an item of many small values that was made to harm would take fifty times its size.
const MaxDecodedBytes = 64 << 20

// decodedBytes is about the memory that JSON takes as maps and slices, or more.
func decodedBytes(data []byte) int64 {
	const object, element = 350, 40 // measured with Go 1.26
	size, inText := int64(len(data)), false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{':
			size += object
		case c == '[', c == ',':
			size += element
		}
	}
	return size
}

// Object returns the item decoded: an object with apiVersion and kind that has the name and the namespace under which it
// was found, or ErrDamaged. Otherwise filters by namespace and name would let through what they should not. What would take
// more than MaxDecodedBytes is ErrTooLarge.
func (a *Archive) Object(item Item) (*unstructured.Unstructured, error) {
	data, err := a.Read(item)
	if err != nil {
		return nil, err
	}
	if size := decodedBytes(data); size > MaxDecodedBytes {
		return nil, fmt.Errorf("%s: %s: %w: decoded, its %d bytes take about %d MiB of memory, the most is %d",
			a.key, item, ErrTooLarge, len(data), size>>20, MaxDecodedBytes>>20)
	}
	object := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &object.Object); err != nil {
		return nil, damaged(a.key, "%s: %w", item, err)
	}
	switch {
	case object.GetAPIVersion() == "" || object.GetKind() == "":
		return nil, damaged(a.key, "%s: no object with apiVersion and kind", item)
	case object.GetName() != item.Name || object.GetNamespace() != item.Namespace:
		return nil, damaged(a.key, "%s: it is %.300q of namespace %.300q", item, object.GetName(), object.GetNamespace())
	}
	return object, nil
}
