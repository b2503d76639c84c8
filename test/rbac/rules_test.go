package rbac

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// right is one verb on one resource.
type right struct {
	namespace string // empty: all namespaces, and what is in none
	group     string
	resource  string // a subresource is behind a slash
	verb      string
}

func (r right) String() string {
	return strings.Join([]string{cmp.Or(r.namespace, "(cluster)"), cmp.Or(r.group, "(core)"), r.resource, r.verb}, "\t")
}

// request is what the audit log says of one.
type request struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  *struct{ Namespace, Name, APIGroup, Resource, Subresource string }
	Response   struct {
		Code    int
		Message string
	} `json:"responseStatus"`
}

// right returns what the request needs, and false if it is not about a resource.
func (r request) right() (right, bool) {
	if r.ObjectRef == nil {
		return right{}, false
	}
	o := r.ObjectRef
	if o.Subresource != "" {
		o.Resource += "/" + o.Subresource
	}
	return right{namespace: o.Namespace, group: o.APIGroup, resource: o.Resource, verb: r.Verb}, true
}

// readObjects reads the objects of a file of YAML documents.
func readObjects(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		object := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(document, &object.Object)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// granted expands the roles among objects.
func granted(t *testing.T, objects []*unstructured.Unstructured) []right {
	t.Helper()
	var rights []right
	for _, o := range objects {
		if kind := o.GetKind(); kind != "Role" && kind != "ClusterRole" {
			continue
		}
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			if len(rule.ResourceNames)+len(rule.NonResourceURLs) > 0 {
				t.Errorf("%s %s: this test does not understand rule %v", o.GetKind(), o.GetName(), rule)
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						rights = append(rights, right{o.GetNamespace(), group, resource, verb})
					}
				}
			}
		}
	}
	return rights
}

// readRequests reads the requests of a user from the audit log.
func readRequests(t *testing.T, path, user string) []request {
	t.Helper()
	log, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var requests []request
	for lines := json.NewDecoder(log); ; {
		var r request
		if err := lines.Decode(&r); errors.Is(err, io.EOF) {
			return requests
		} else if err != nil {
			t.Fatal(err)
		}
		if r.User.Username == user {
			requests = append(requests, r)
		}
	}
}

// judge fails the test for each request that was forbidden and each right that was of no use, and prints all rights.
func judge(t *testing.T, rights []right, requests []request) {
	t.Helper()
	used := map[right]int{}
	for _, r := range requests {
		if r.Response.Code == http.StatusForbidden {
			t.Errorf("forbidden: %s %s: %s", r.Verb, r.RequestURI, r.Response.Message)
		}
		wanted, ok := r.right()
		if !ok {
			continue // discovery, which every user may read
		}
		everywhere := wanted
		everywhere.namespace = ""
		for _, granted := range []right{wanted, everywhere} {
			if slices.Contains(rights, granted) {
				used[granted]++
			}
		}
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "namespace\tgroup\tresource\tverb\trequests")
	for _, r := range rights {
		fmt.Fprintf(w, "%s\t%d\n", r, used[r])
		if used[r] == 0 {
			t.Errorf("a right that nothing needs: %s", strings.ReplaceAll(r.String(), "\t", " "))
		}
	}
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests\n%s", len(requests), table.String())
}

// apply creates the objects in the order of the file.
func (c *cluster) apply(objects []*unstructured.Unstructured) {
	c.t.Helper()
	for _, o := range objects {
		c.Create(o.DeepCopy())
	}
}

// accountIn returns the name and namespace of the only ServiceAccount among objects.
func accountIn(t *testing.T, objects []*unstructured.Unstructured) client.ObjectKey {
	t.Helper()
	found := map[client.ObjectKey]bool{}
	for _, o := range objects {
		if o.GetKind() == "ServiceAccount" {
			found[client.ObjectKeyFromObject(o)] = true
		}
	}
	keys := slices.Collect(maps.Keys(found))
	if len(keys) != 1 {
		t.Fatalf("got service accounts %v, want one", keys)
	}
	return keys[0]
}
