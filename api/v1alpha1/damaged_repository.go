package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DamagedRepository is one of AnnotationDamagedRepositories: that of the volumes of a namespace, in a BackupStorageLocation.
type DamagedRepository struct {
	BackupStorageLocation string `json:"backupStorageLocation"`
	VolumeNamespace       string `json:"volumeNamespace"`
	Uploader              string `json:"uploader"`
}

// DamagedRepositories returns those of a RepositoryTask's annotation. What cannot be read counts as none.
func DamagedRepositories(task metav1.Object) []DamagedRepository {
	var damaged []DamagedRepository
	if json.Unmarshal([]byte(task.GetAnnotations()[AnnotationDamagedRepositories]), &damaged) != nil {
		return nil
	}
	return damaged
}
