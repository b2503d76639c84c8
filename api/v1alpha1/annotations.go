package v1alpha1

// Annotations of Velero's objects: what people ask of Plimsoll, and what it says.
const (
	// AnnotationProgress is how far a PodVolumeBackup or PodVolumeRestore (a VolumeProgress) or a Restore (a RestoreProgress) is,
	// as JSON.
	AnnotationProgress = "plimsoll.io/progress"

	// AnnotationPartial of a Backup, Restore, PodVolumeBackup or PodVolumeRestore says how many of its files a Completed volume
	// may lack: complete, fail or a percentage. It is used in place of the node agent's --partial and --partial-restore.
	AnnotationPartial = "plimsoll.io/partial"

	// AnnotationMaxOperations of a BackupStorageLocation is how many volumes of the cluster may move to and from it at the same time: a
	// positive number.
	AnnotationMaxOperations = "plimsoll.io/max-operations"

	// AnnotationMaxBytesPerSecond of a BackupStorageLocation is how much all these volumes together may send to it in a second, and how much they may
	// receive: a quantity, such as 200Mi. LocationLimitOf divides it by AnnotationMaxOperations.
	AnnotationMaxBytesPerSecond = "plimsoll.io/max-bytes-per-second"

	// AnnotationProgressMode of a Restore chooses how its progress is counted. With ProgressModeOnePhase the total comes from
	// the Backup's status and items are restored at once, without a look at all of them before: where the backup is so large
	// that this takes long.
	AnnotationProgressMode = "plimsoll.io/progress-mode"
	ProgressModeOnePhase   = "one-phase"

	// AnnotationDryRun of a Restore asks with "true" only what would be restored.
	AnnotationDryRun = "plimsoll.io/dry-run"

	// AnnotationKeepNativeVolumes of a Restore asks with "true" for the PersistentVolumes of which the backup has a native
	// snapshot: they are restored as they were, and lead to the disks that they led to, not to the snapshots.
	AnnotationKeepNativeVolumes = "plimsoll.io/keep-native-volumes"

	// AnnotationStorageLocation is on a Restore that was begun: the backup storage location that its files are in. The Backup,
	// which says the same, may be gone before the Restore.
	AnnotationStorageLocation = "plimsoll.io/storage-location"

	// AnnotationRestorePaths of a PodVolumeRestore has the paths to restore, in place of the whole volume: a RestorePaths, as JSON. Its
	// spec.snapshotID begins with SnapshotIDPathsPrefix.
	AnnotationRestorePaths = "plimsoll.io/restore-paths"

	// AnnotationCompare of a PodVolumeRestore asks with "true" that the node agent compare the restored volume with the snapshot, before it hands
	// the volume over. The restore fails if they differ. Its progress counts the bytes that are restored and those that are compared. It is for
	// scratch volumes: one that held files before has some too many.
	AnnotationCompare = "plimsoll.io/compare"

	// AnnotationComparison is on a PodVolumeRestore with AnnotationCompare whose volume was compared: a Comparison, as JSON. Agents that do not
	// know AnnotationCompare leave none.
	AnnotationComparison = "plimsoll.io/comparison"

	// AnnotationVerified is on a PodVolumeBackup whose snapshot was proven to be restorable when it was last verified, and AnnotationDamaged on one
	// that was found damaged or lost, or, if it is the newest of its volume, whose repository is damaged nobody knows where: each with the time, in
	// the format of RFC 3339. As long as a PodVolumeBackup of a repository is marked as damaged, the node agent reads each new backup in that
	// repository back before it is Completed: it may have taken over what is lost.
	AnnotationVerified = "plimsoll.io/verified"
	AnnotationDamaged  = "plimsoll.io/damaged"

	// AnnotationOwesMarks is "true" on a RepositoryTask that has found damage in a backup whose Backup ran, until it is noted there.
	AnnotationOwesMarks = "plimsoll.io/owes-marks"

	// AnnotationDamagedRepositories is on a RepositoryTask with LabelDamaged: the repositories in which it has found damaged content, and that nobody has proven to be whole
	// since, as JSON, a list of RepositoryKey. The node agent reads new backups in these back, as for AnnotationDamaged, whether
	// the backup that is damaged is still there or not.
	AnnotationDamagedRepositories = "plimsoll.io/damaged-repositories"

	// AnnotationSynced is on a Backup whose records have all been brought into the cluster: how many there are, as JSON. A
	// Backup with fewer is repaired.
	AnnotationSynced = "plimsoll.io/synced"

	// AnnotationMigratedFrom names, on the copy of a Backup whose volumes were migrated to kopia, the Backup that it is a copy of.
	AnnotationMigratedFrom = "plimsoll.io/migrated-from"
)

// FinalizerPodVolume keeps a PodVolumeBackup or PodVolumeRestore that a node agent has claimed until its end is written: a
// server that waits for it does not notice that an object vanishes, only how it ends (docs/contracts/velero-node-agent.md 2.4, 5.6).
const FinalizerPodVolume = "plimsoll.io/pod-volume-finalizer"

// ContainerRestoreWait is the init container that holds a pod back until its volumes are restored (docs/contracts/velero-restore.md 3.8).
const ContainerRestoreWait = "restore-wait"
