package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the objects in this package.
var GroupVersion = schema.GroupVersion{Group: "plimsoll.io", Version: "v1alpha1"}

// AddToScheme makes a scheme know the objects of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &VolumePluginBackup{}, &VolumePluginBackupList{}, &VolumePluginRestore{}, &VolumePluginRestoreList{}, &RepositoryTask{}, &RepositoryTaskList{},
		&FileRequest{}, &FileRequestList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
