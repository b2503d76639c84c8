package v1alpha1

// UploaderName returns the uploader that the uploaderType of an object names. Objects from before Velero 1.10 have none, and mean restic.
func UploaderName(uploaderType string) string {
	if uploaderType == "" {
		return "restic"
	}
	return uploaderType
}
