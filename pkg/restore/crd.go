package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// errNotEstablished comes for a CustomResourceDefinition of which nothing can be created yet.
var errNotEstablished = errors.New("the API server has not established it")

// awaitEstablished waits until the API server has taken a CustomResourceDefinition in.
func (r *run) awaitEstablished(ctx context.Context, i *item) {
	for end := time.Now().Add(r.engine.config.ResourceTimeout); ; {
		crd, err := r.get(ctx, i)
		if err != nil {
			i.errors = append(i.errors, fmt.Sprintf("look whether it is established: %v", err))
			return
		}
		ready, reason := established(crd)
		if ready {
			r.expectKinds(crd)
			return
		}
		if reason != "" || time.Now().After(end) {
			i.errors = append(i.errors, fmt.Sprintf("%v: %s", errNotEstablished, reason))
			return
		}
		if apiretry.Sleep(ctx, pollInterval) != nil {
			return
		}
	}
}

// established reports whether a CustomResourceDefinition is, or why it never will be.
func established(crd *unstructured.Unstructured) (ready bool, reason string) {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	is := func(name string) (status, message any) {
		for _, c := range conditions {
			if condition, ok := c.(map[string]any); ok && condition["type"] == name {
				return condition["status"], condition["message"]
			}
		}
		return nil, nil
	}
	names, message := is("NamesAccepted")
	if names == string(metav1.ConditionFalse) {
		return false, fmt.Sprint(message)
	}
	up, _ := is("Established")
	return up == string(metav1.ConditionTrue) && names == string(metav1.ConditionTrue), ""
}

// expectKinds notes the kinds that a CustomResourceDefinition brings.
func (r *run) expectKinds(crd *unstructured.Unstructured) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range versions {
		if version, ok := v.(map[string]any); ok && version["served"] == true {
			r.expectedKinds = append(r.expectedKinds, schema.GroupVersionKind{Group: group, Version: fmt.Sprint(version["name"]), Kind: kind})
		}
	}
}

// awaitServed asks the API server again what it serves, until it serves what the restored CustomResourceDefinitions bring:
// it says so a little after it has established them.
func (r *run) awaitServed(ctx context.Context) error {
	if len(r.expectedKinds) == 0 {
		return nil
	}
	for end := time.Now().Add(r.engine.config.ResourceTimeout); ; {
		var known *catalog
		err := r.retry(ctx, customResourceDefinitions, func() (err error) {
			known, err = readCatalog(r.engine.discovery)
			return err
		})
		if err != nil {
			return err
		}
		missing := func(kind schema.GroupVersionKind) bool { _, ok := known.kinds[kind]; return !ok }
		if !slices.ContainsFunc(r.expectedKinds, missing) || time.Now().After(end) {
			r.catalog, r.expectedKinds = known, nil // what is missing says so item by item
			return nil
		}
		if err := apiretry.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}
