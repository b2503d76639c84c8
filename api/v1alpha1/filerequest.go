package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FileRequestSpec says which snapshots may be listed and read, and by whom: who has the token.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.podVolumeBackup) || !has(self.backup) && !has(self.volume)",message="podVolumeBackup cannot be combined with backup or volume"
type FileRequestSpec struct {
	// TokenHash is the SHA-256 of a random token, in hexadecimal digits. The client keeps the token, and shows it with each
	// question. A token is used for one FileRequest.
	//
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	TokenHash string `json:"tokenHash"`

	// Backup is the name of a Velero Backup of the namespace. Absent: all Backups.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Backup string `json:"backup,omitempty"`

	// Volume selects volumes of the backups. Absent: all pod volumes.
	//
	// +optional
	Volume *PodVolumeSelector `json:"volume,omitempty"`

	// PodVolumeBackup is the name of the one PodVolumeBackup whose snapshot is wanted.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PodVolumeBackup string `json:"podVolumeBackup,omitempty"`

	// Other selects what the backups are compared with. Absent: nothing.
	//
	// +optional
	Other *FileSelection `json:"other,omitempty"`
}

// FileSelection selects backups of volumes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.podVolumeBackup) || !has(self.backup) && !has(self.volume)",message="podVolumeBackup cannot be combined with backup or volume"
type FileSelection struct {
	// Backup is the name of a Velero Backup of the namespace. Absent: all Backups.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Backup string `json:"backup,omitempty"`

	// Volume selects volumes of the backups. Absent: all pod volumes.
	//
	// +optional
	Volume *PodVolumeSelector `json:"volume,omitempty"`

	// PodVolumeBackup is the name of the one PodVolumeBackup whose snapshot is wanted.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PodVolumeBackup string `json:"podVolumeBackup,omitempty"`
}

// FileRequestPhase is how far a FileRequest is.
//
// +kubebuilder:validation:Enum=Ready;Failed
type FileRequestPhase string

// The phases. Before them it is empty.
const (
	FileRequestReady  FileRequestPhase = "Ready"  // a pod answers questions
	FileRequestFailed FileRequestPhase = "Failed" // none will
)

// FileRequestStatus says where questions are answered.
type FileRequestStatus struct {
	// +optional
	Phase FileRequestPhase `json:"phase,omitempty"`

	// Pod is the name of the pod that answers, in the namespace of the FileRequest.
	//
	// +optional
	Pod string `json:"pod,omitempty"`

	// Port is that of the pod's loopback address. Only a port-forward reaches it.
	//
	// +optional
	Port int32 `json:"port,omitempty"`

	// Reason is one word for programs: why it has failed,
	// or, if it is Ready, why volumes may be missing.
	//
	// +optional
	Reason Reason `json:"reason,omitempty"`

	// Message is the same for people.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// ExpirationTimestamp is when the FileRequest is deleted. An answer that has begun may end later.
	//
	// +optional
	// +nullable
	ExpirationTimestamp *metav1.Time `json:"expirationTimestamp,omitempty"`
}

// FileRequest asks for a session in which the files of backups are listed and read. It is deleted at the session's end, and
// deleting it ends the session.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Backup",type=string,JSONPath=`.spec.backup`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.pod`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type FileRequest struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FileRequestSpec `json:"spec"`
	// +optional
	Status FileRequestStatus `json:"status,omitzero"`
}

// FileRequestList is a list of FileRequests.
//
// +kubebuilder:object:root=true
type FileRequestList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FileRequest `json:"items"`
}
