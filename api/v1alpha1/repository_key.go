package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RepositoryKey tells repositories apart: each namespace with volumes has one for restic, and one for kopia, in a BackupStorageLocation.
type RepositoryKey struct {
	BackupStorageLocation string `json:"backupStorageLocation"`
	VolumeNamespace       string `json:"volumeNamespace"`
	Uploader              string `json:"uploader"`
}

// DamagedRepositories returns those of a RepositoryTask's annotation. What cannot be read counts as none.
func DamagedRepositories(task metav1.Object) []RepositoryKey {
	var damaged []RepositoryKey
	if json.Unmarshal([]byte(task.GetAnnotations()[AnnotationDamagedRepositories]), &damaged) != nil {
		return nil
	}
	return damaged
}
