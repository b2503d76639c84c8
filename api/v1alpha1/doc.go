// Package v1alpha1 holds the objects of group plimsoll.io/v1alpha1: VolumePluginBackup and VolumePluginRestore, in which
// plugins for Velero's volume snapshots say how far they are (package volumeplugin writes them), RepositoryTask, work on
// the backups of volumes that package repositorytask does, and FileRequest, a look at their files that package filerequest gives.
//
// +kubebuilder:object:generate=true
// +groupName=plimsoll.io
package v1alpha1
