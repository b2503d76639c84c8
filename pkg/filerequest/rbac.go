package filerequest

// The rights that it needs beside those of package repositorytask, with which `make generate` makes
// deploy/repository-tasks/rbac.yaml.
//
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=filerequests,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=filerequests/status,verbs=patch
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=podvolumebackups,verbs=get
