package volumeplugin

// The rights that the service account of a plugin needs, from which `make generate` makes deploy/volume-plugin/rbac.yaml.
// Without the last two a plugin runs as well: its objects are not deleted with their Backup, and have no Events.
//
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=volumepluginbackups,verbs=get;list;create;patch
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=volumepluginrestores,verbs=get;list;create;patch
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=volumepluginbackups/status;volumepluginrestores/status,verbs=patch
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backups,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,namespace=velero,resources=events,verbs=create
