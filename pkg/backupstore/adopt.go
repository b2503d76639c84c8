package backupstore

import (
	"maps"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Adopt prepares an object of another cluster for being created in namespace: it removes what only the other cluster's API
// server knows, the owners (such as a Schedule) and the finalizers.
func Adopt(object metav1.Object, namespace string) {
	object.SetNamespace(namespace)
	object.SetUID("")
	object.SetResourceVersion("")
	object.SetGenerateName("")
	object.SetGeneration(0)
	object.SetCreationTimestamp(metav1.Time{})
	object.SetDeletionTimestamp(nil)
	object.SetManagedFields(nil)
	object.SetOwnerReferences(nil)
	object.SetFinalizers(nil)
}

// AdoptRecord adopts a record of backup into the backup's namespace, and makes the Backup its owner: the API server deletes
// the record with it.
func AdoptRecord(record metav1.Object, backup *velerov1.Backup) {
	Adopt(record, backup.Namespace)
	record.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "Backup", Name: backup.Name, UID: backup.UID, Controller: new(true),
	}})
	SetLabel(record, velerov1.BackupNameLabel, v1alpha1.LabelValue(backup.Name))
}

// SetLabel sets one label, in a map of the object's own.
func SetLabel(object metav1.Object, key, value string) {
	labels := maps.Clone(object.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	object.SetLabels(labels)
}
