package restore

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// targetClaim returns where a claim of the backup goes. Resource modifiers may give it another name; they are applied here to the claim as
// it is when the restore creates it. Any process that goes on with the restore comes to the same name.
func (s *scope) targetClaim(claim types.NamespacedName) types.NamespacedName {
	target := types.NamespacedName{Namespace: s.targetNamespace(claim.Namespace), Name: claim.Name}
	if !s.Modifiers.concern(claimResource) {
		return target
	}
	original := findItem(s.Archive, key{claimResource, claim.Namespace, claim.Name})
	if original == nil {
		return target
	}
	in := &actionInput{resource: claimResource, original: &unstructured.Unstructured{Object: original}}
	in.item = in.original.DeepCopy()
	reset(in.item)
	if spec, class := s.newStorageClass(in.item.Object); class != "" {
		spec["storageClassName"] = class
	}
	forgetBinding(in.item)
	if from := s.sourceOfClaim(claim); from.dataFrom != fromElsewhere {
		s.fill(in, claim, target, from)
	}
	s.Modifiers.apply(claimResource, in.item) // prepare reports the errors
	if name := in.item.GetName(); isSubdomain(name) {
		target.Name = name
	}
	return target
}

// podClaim is the claim of a restored pod's volume.
type podClaim struct {
	name   string               // which the pod uses; "" for a volume that is none
	backup types.NamespacedName // which the pod of the backup uses
}

// checkRenamed refuses to fill the original of a claim that resource modifiers have renamed, which a pod still uses and this restore has
// not made: such a rename is made to spare it.
func (s *scope) checkRenamed(claim podClaim, object *unstructured.Unstructured) error {
	if claim.backup.Name == "" || !s.foreign(object) {
		return nil
	}
	target := s.targetClaim(claim.backup).Name
	if claim.name != claim.backup.Name || target == claim.name {
		return nil // the rules themselves have chosen it for the pod
	}
	return fmt.Errorf("no data goes into it: it is the claim %q, which this restore has not made, and the resource modifiers (spec.resourceModifier) restore the backup's claim %q as %q. "+
		"The pod waits for ever. Delete it, with an owner that this restore has made, and claim %q; add a rule that sets claimName to %q in the pod, and restore again",
		claim.name, claim.backup.Name, target, target, target)
}

// isExpectedName reports whether an item got the name that the actions took for granted. A claim may not: a rule may match only one that
// keeps the volume that it had, or give it a name that is none.
func (r *run) isExpectedName(i *item) bool {
	if i.resource != claimResource {
		return true
	}
	name, expected := i.object.GetName(), r.targetClaim(types.NamespacedName{Namespace: i.namespace, Name: i.key.name}).Name
	problems := validation.IsDNS1123Subdomain(name)
	switch {
	case name == expected:
		return true
	case name == "":
		i.fail("not restored: resource modifiers (spec.resourceModifier) take its name away")
	case len(problems) > 0:
		i.fail("not restored: resource modifiers (spec.resourceModifier) give it the name %q, which no object may have: %s", name, strings.Join(problems, "; "))
	default:
		i.fail("not restored: resource modifiers give it the name %q, but %q if it did not exist: the conditions of the rule that renames it "+
			"must not depend on spec.volumeName, dataSource, dataSourceRef, selector or resources", name, expected)
	}
	return false
}
