package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// RestoreTarget is where a task restores volumes to prove that they can be restored: into PersistentVolumeClaims in the namespace of the
// task, one at a time. Each is deleted when its volume is done.
type RestoreTarget struct {
	// StorageClassName is the StorageClass of the claims. Empty: the cluster's default class.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName,omitempty"`

	// Storage is how much storage each claim requests. Absent: the size of the volume's files and a quarter, and at least 1Gi. Volumes of many small
	// files need more.
	//
	// +optional
	Storage *resource.Quantity `json:"storage,omitempty"`
}
