package pluginrecords

// The rights of the service account, from which `make generate` makes deploy/records/rbac.yaml. Which Secrets the locations
// name for their credentials and certificates is not known before. The restores are for the metrics.
//
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=volumepluginbackups,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=volumepluginbackups/status,verbs=patch
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=volumepluginrestores,verbs=list;watch
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backups,verbs=get;list;watch
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backupstoragelocations,verbs=get
// +kubebuilder:rbac:groups="",namespace=velero,resources=secrets,verbs=get
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=velero,resources=leases,verbs=get;create;update
