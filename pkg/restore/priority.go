package restore

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// restoredFirst are the resources that others need, in Velero's order. Names are resolved by what the cluster serves: one of
// them is a singular.
var restoredFirst = []string{
	"customresourcedefinitions",
	"namespaces",
	"storageclasses",
	"volumesnapshotclass.snapshot.storage.k8s.io",
	"volumesnapshotcontents.snapshot.storage.k8s.io",
	"volumesnapshots.snapshot.storage.k8s.io",
	"datauploads.velero.io",
	"persistentvolumes",
	"persistentvolumeclaims",
	"clusterroles",
	"roles",
	"serviceaccounts",
	"clusterrolebindings",
	"rolebindings",
	"secrets",
	"configmaps",
	"limitranges",
	"priorityclasses",
	// Pods come before what would make them anew without their volumes.
	"pods",
	"replicasets.apps",
	"clusterclasses.cluster.x-k8s.io",
	"endpoints",
	"services",
}

// restoredLast are the resources whose controllers need everything else, in Velero's order.
var restoredLast = []string{
	"clusterbootstraps.run.tanzu.vmware.com",
	"clusters.cluster.x-k8s.io",
	"clusterresourcesets.addons.cluster.x-k8s.io",
	"apps.kappctrl.k14s.io",
	"packageinstalls.packaging.carvel.dev",
}

// inOrder returns the resources in the order in which they are restored: by the two tables, and between them by name.
func inOrder(resources []schema.GroupResource, known *catalog) []schema.GroupResource {
	left := slices.Clone(resources)
	take := func(names []string) (taken []schema.GroupResource) {
		for _, name := range names {
			resource := known.resolve(name)
			if i := slices.Index(left, resource); i >= 0 {
				taken = append(taken, resource)
				left = slices.Delete(left, i, i+1)
			}
		}
		return taken
	}
	first, last := take(restoredFirst), take(restoredLast)
	slices.SortFunc(left, compareResources)
	return slices.Concat(first, left, last)
}
