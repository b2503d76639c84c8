package repositorytask

// The rights of the service account, from which `make generate` makes deploy/repository-tasks/rbac.yaml. Which Secrets the
// locations name for their credentials and certificates is not known before. Nothing but the tasks' status is written, a
// note on tasks that are owed something, and PodVolumeBackups: a verification notes on them what it has found, and a task of type Forget marks and
// deletes those of no Backup. The rights to restore are in
// deploy/repository-tasks-restore, since not everybody gives them.
//
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=repositorytasks,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=repositorytasks/status,verbs=patch
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=volumepluginbackups,verbs=list
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backupstoragelocations,verbs=get;list
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backups,verbs=get;list
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backuprepositories,verbs=list
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=podvolumebackups,verbs=get;list;patch;delete
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=podvolumerestores,verbs=list
// +kubebuilder:rbac:groups="",namespace=velero,resources=secrets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,namespace=velero,resources=events,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=velero,resources=leases,verbs=get;create;update;delete
