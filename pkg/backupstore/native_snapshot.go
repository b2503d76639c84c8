package backupstore

// NativeSnapshot is a snapshot that a volume snapshotter plugin has made. Velero's type is internal to it.
type NativeSnapshot struct {
	Spec   NativeSnapshotSpec   `json:"spec"`
	Status NativeSnapshotStatus `json:"status"`
}

// NativeSnapshotSpec says of what.
type NativeSnapshotSpec struct {
	BackupName           string `json:"backupName"`
	BackupUID            string `json:"backupUID"`
	Location             string `json:"location"` // the VolumeSnapshotLocation's name
	PersistentVolumeName string `json:"persistentVolumeName"`
	ProviderVolumeID     string `json:"providerVolumeID"`
	VolumeType           string `json:"volumeType"`
	VolumeAZ             string `json:"volumeAZ,omitempty"`
	VolumeIOPS           *int64 `json:"volumeIOPS,omitempty"`
}

// NativeSnapshotStatus is its state.
type NativeSnapshotStatus struct {
	ProviderSnapshotID string `json:"providerSnapshotID,omitempty"`
	Phase              string `json:"phase,omitempty"` // New, Completed or Failed
}
