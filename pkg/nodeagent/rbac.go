package nodeagent

// The rights of the agent's service account, from which `make generate` makes deploy/node-agent/rbac.yaml: in the agent's
// own namespace first. deploy/ puts another namespace in place of velero where the agent runs elsewhere.
//
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=podvolumebackups;podvolumerestores,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backupstoragelocations;backups;restores,verbs=get
// +kubebuilder:rbac:groups=velero.io,namespace=velero,resources=backuprepositories,verbs=list
// +kubebuilder:rbac:groups=plimsoll.io,namespace=velero,resources=repositorytasks,verbs=list
// +kubebuilder:rbac:groups="",namespace=velero,resources=secrets;configmaps,verbs=get
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=velero,resources=leases,verbs=get;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,namespace=velero,resources=events,verbs=create

// In the whole cluster, since volumes of all namespaces are backed up.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes;nodes,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers,verbs=get
