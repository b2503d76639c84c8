package restore

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// action prepares items of some kinds for the cluster that they are restored into, as Velero's restore item action of the
// same name does. Actions run in the order of the list actions, on an item whose metadata and status were reset and which
// is still in its original namespace.
type action struct {
	name      string   // as Velero names it, such as "velero.io/service"
	resources []string // group resources, such as "services" or "deployments.apps"
	apply     func(ctx context.Context, s *scope, in *actionInput) (actionOutput, error)
}

// actionInput is the item that an action looks at and changes.
type actionInput struct {
	resource schema.GroupResource
	item     *unstructured.Unstructured // to be changed
	original *unstructured.Unstructured // as the backup has it, with its status: to be read only
}

// actionOutput is what an action says besides.
type actionOutput struct {
	skip       string // why the item is not restored; empty if it is
	additional []key  // what must be restored before this item
	warnings   []string
	errors     []string                   // what the item lacks if it is created
	unfilled   *volumeinfo.RestoredVolume // what is known of the volume of a claim into which no data comes
}

// key names an item in the backup.
type key struct {
	resource  schema.GroupResource
	namespace string // the original one
	name      string
}

var (
	forPods    = []string{"pods"}
	forClaims  = []string{"persistentvolumeclaims"}
	forVolumes = []string{"persistentvolumes"}
)

// actions are what prepares items, in the order in which they run: Velero's, sorted as Velero sorts them, around ours that
// decide about volumes.
var actions = []action{
	{"plimsoll.io/persistent-volume", forVolumes, preparePersistentVolume},
	{"velero.io/add-pvc-from-pod", forPods, addClaims},
	{"velero.io/admission-webhook-configuration", []string{
		"mutatingwebhookconfigurations.admissionregistration.k8s.io", "validatingwebhookconfigurations.admissionregistration.k8s.io",
	}, correctSideEffects},
	{"velero.io/apiservice", []string{"apiservices.apiregistration.k8s.io"}, skipManagedAPIService},
	{"velero.io/change-image-name", []string{
		"deployments.apps", "statefulsets.apps", "daemonsets.apps", "replicasets.apps", "replicationcontrollers", "jobs.batch", "cronjobs.batch", "pods",
	}, changeImages},
	{"velero.io/change-storage-class", []string{"persistentvolumeclaims", "persistentvolumes", "statefulsets.apps"}, changeStorageClass},
	{"velero.io/cluster-role-bindings", []string{"clusterrolebindings.rbac.authorization.k8s.io"}, mapSubjects},
	{"velero.io/crd-preserve-fields", []string{"customresourcedefinitions.apiextensions.k8s.io"}, preserveFields},
	{"velero.io/dataupload", []string{"datauploads.velero.io"}, skipDataUpload},
	{"velero.io/init-restore-hook", forPods, addInitHooks},
	{"velero.io/job", []string{"jobs.batch"}, forgetController},
	{"velero.io/pod", forPods, releasePod},
	{"velero.io/pod-volume-restore", forPods, waitForVolumes},
	{"velero.io/pvc", forClaims, prepareClaim},
	{"velero.io/role-bindings", []string{"rolebindings.rbac.authorization.k8s.io"}, mapSubjects},
	{"velero.io/secret", []string{"secrets"}, prepareToken},
	{"velero.io/service", []string{"services"}, releaseAddresses},
	{"velero.io/service-account", []string{"serviceaccounts"}, forgetTokens},
	{"velero.io/csi-pvc-restorer", forClaims, prepareClaimVolume},
	{"velero.io/csi-volumesnapshot-restorer", []string{"volumesnapshots.snapshot.storage.k8s.io"}, prepareSnapshot},
	{"velero.io/csi-volumesnapshotclass-restorer", []string{"volumesnapshotclasses.snapshot.storage.k8s.io"}, prepareSnapshotClass},
	{"velero.io/csi-volumesnapshotcontent-restorer", []string{"volumesnapshotcontents.snapshot.storage.k8s.io"}, prepareSnapshotContent},
	{"plimsoll.io/group-snapshot", []string{
		"volumegroupsnapshots.groupsnapshot.storage.k8s.io", "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
	}, skipGroupSnapshot},
}
