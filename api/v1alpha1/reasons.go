package v1alpha1

// Reason is one word for programs: why a volume waits, is stalled, has failed or has completed without some of its files.
// The message beside it is for people, and may change at any time.
type Reason string

// The reasons of volumes that wait.
const (
	ReasonVolumeNotMounted       Reason = "VolumeNotMounted"       // kubelet or the driver has yet to mount the volume
	ReasonVolumeBusy             Reason = "VolumeBusy"             // another restore writes into the same directory
	ReasonLocationBusy           Reason = "LocationBusy"           // as many volumes of the cluster move to or from the location as may
	ReasonAPIServerUnavailable   Reason = "APIServerUnavailable"   // the API server does not answer
	ReasonRepositoryInitializing Reason = "RepositoryInitializing" // the agent creates the repository
)

// The reasons of volumes that are stalled.
const (
	ReasonScanStalled     Reason = "ScanStalled"     // the scan finds nothing more, no byte moves, and no other work is done
	ReasonTransferStalled Reason = "TransferStalled" // no byte moves, and no other work is done
	ReasonFinishStalled   Reason = "FinishStalled"   // all data is read; the last of it is not stored
)

// The reasons of volumes that have failed, of attempts that have, and of volumes that completed without some files. A volume that
// waits for its next attempt, a lock or the API server has one of them, too.
const (
	ReasonCanceled              Reason = "Canceled"              // spec.cancel was set
	ReasonDeleted               Reason = "Deleted"               // the PodVolumeBackup or PodVolumeRestore was deleted
	ReasonDeadline              Reason = "Deadline"              // the server would have stopped waiting for all volumes
	ReasonAgentLost             Reason = "AgentLost"             // the node agent of the volume's node does not report, and cannot or did not come back
	ReasonAPIServer             Reason = "APIServer"             // the API server fails with one object, such as a Secret that it cannot decrypt
	ReasonPodNotReady           Reason = "PodNotReady"           // the pod's init container did not start
	ReasonPodGone               Reason = "PodGone"               // the pod was deleted, replaced or has ended
	ReasonVolumeNotFound        Reason = "VolumeNotFound"        // nothing, or more than one thing, where the volume should be
	ReasonUnsupportedVolume     Reason = "UnsupportedVolume"     // block device, hostPath
	ReasonUnsupported           Reason = "Unsupported"           // uploader type or option that this agent does not have
	ReasonInvalidSettings       Reason = "InvalidSettings"       // uploaderSettings that cannot be read
	ReasonInvalidLocation       Reason = "InvalidLocation"       // BackupStorageLocation, Secret or credentials missing or unusable
	ReasonRepositoryNotFound    Reason = "RepositoryNotFound"    // no repository at the address
	ReasonRepositoryIncomplete  Reason = "RepositoryIncomplete"  // data at the address, without the repository's configuration or keys
	ReasonWrongPassword         Reason = "WrongPassword"         // the repository's password is another one
	ReasonRepositoryLocked      Reason = "RepositoryLocked"      // somebody else held the lock for too long
	ReasonRepositoryUnavailable Reason = "RepositoryUnavailable" // the repository does not open
	ReasonSnapshotNotFound      Reason = "SnapshotNotFound"      // the repository does not know the snapshot
	ReasonReusedDamage          Reason = "ReusedDamage"          // the new snapshot reuses data that is damaged in the repository
	ReasonPathNotFound          Reason = "PathNotFound"          // the snapshot does not have a path that was to be restored
	ReasonPathConflict          Reason = "PathConflict"          // something that cannot be replaced lies in the volume where a path was to be restored
	ReasonNoSpace               Reason = "NoSpace"               // the volume or the repository is full
	ReasonFlush                 Reason = "Flush"                 // the volume's disk has lost what was written
	ReasonOutOfMemory           Reason = "OutOfMemory"           // the worker was killed for its memory
	ReasonIdle                  Reason = "Idle"                  // no byte moved and no other work was done for the idle timeout
	ReasonVolumeIO              Reason = "VolumeIO"              // the volume's file system failed: disk, driver or server
	ReasonUnreadableFiles       Reason = "UnreadableFiles"       // files were unreadable: more than --partial allows, or the reason of result partial
	ReasonUnwrittenFiles        Reason = "UnwrittenFiles"        // files could not be written: more than --partial-restore allows, or the reason of result partial
	ReasonMissingData           Reason = "MissingData"           // the files of a restored volume are smaller than the snapshot's, without an error
	ReasonVanishedFiles         Reason = "VanishedFiles"         // the reason of result partial: many files vanished while the volume was read
	ReasonVolumeBecameEmpty     Reason = "VolumeBecameEmpty"     // the reason of result partial: the volume has no data, and had some in an earlier backup
	ReasonUncheckedRestore      Reason = "UncheckedRestore"      // the reason of result partial: it is not known whether all bytes of a restore are in the volume
	ReasonRefusedAttributes     Reason = "RefusedAttributes"     // the reason of result partial: the volume did not take all owners, modes, times or extended attributes of a restore
	ReasonUnreadableAttributes  Reason = "UnreadableAttributes"  // the reason of result partial: extended attributes could not be read, and a backup lacks them
	ReasonRestoreMismatch       Reason = "RestoreMismatch"       // the restored volume was compared with the snapshot, and is not the same
	ReasonTooManyAttempts       Reason = "TooManyAttempts"       // the agent ended once too often while it ran
	ReasonDataPath              Reason = "DataPath"              // anything else that restic or kopia says
)

// The reasons of RepositoryTasks, beside those of volumes.
const (
	ReasonVerified                Reason = "Verified"                // every file was compared, and is what it should be
	ReasonSampled                 Reason = "Sampled"                 // the content whose turn it was is what it should be; the rest was not read
	ReasonMismatched              Reason = "Mismatched"              // files of a backup are damaged or missing in the repository, or have another size
	ReasonWhole                   Reason = "Whole"                   // every repository was checked, and is whole
	ReasonDamaged                 Reason = "Damaged"                 // a repository has lost data, or holds damaged data
	ReasonMeasured                Reason = "Measured"                // every repository was measured
	ReasonPlanned                 Reason = "Planned"                 // the task says what it would forget or remove
	ReasonForgotten               Reason = "Forgotten"               // what the policy does not keep is gone
	ReasonPruned                  Reason = "Pruned"                  // what no snapshot needs is gone, of kopia as far as its maintenance goes
	ReasonRepaired                Reason = "Repaired"                // the index is that of the packs which are there and the repository is whole, or no stale lock is left
	ReasonRepositoryBusy          Reason = "RepositoryBusy"          // another task works on the repository
	ReasonMaintenanceOwner        Reason = "MaintenanceOwner"        // kopia's maintenance belongs to another user
	ReasonNotAcknowledged         Reason = "NotAcknowledged"         // more would be forgotten than new backups explain, or something else than was acknowledged
	ReasonMigrated                Reason = "Migrated"                // every selected snapshot is in the kopia repository, and was compared
	ReasonNotMigrated             Reason = "NotMigrated"             // a backup has volumes that are not migrated yet, so it has no copy
	ReasonUnconfirmed             Reason = "Unconfirmed"             // each look at a repository found something else
	ReasonBackupNotFound          Reason = "BackupNotFound"          // the cluster has no such Backup
	ReasonBackupDamaged           Reason = "BackupDamaged"           // a file of the Backup in its location is damaged or missing
	ReasonPodVolumeBackupNotFound Reason = "PodVolumeBackupNotFound" // the cluster has no such PodVolumeBackup
	ReasonNotReady                Reason = "NotReady"                // the Backup or PodVolumeBackup has not ended
	ReasonNoPodVolumes            Reason = "NoPodVolumes"            // no backup by restic or kopia is selected that can be worked on
	ReasonNotBackedUp             Reason = "NotBackedUp"             // the backup of the volume has failed, or was deleted meanwhile: there is no snapshot
	ReasonEmptyVolume             Reason = "EmptyVolume"             // the volume was empty: there is no snapshot
)

// The reason of FileRequests, beside those of RepositoryTasks.
const (
	ReasonTooManyFileRequests Reason = "TooManyFileRequests" // the server keeps no more of them open
)

// The reasons of the Events on PodVolumeBackups and PodVolumeRestores. VolumePluginBackups and VolumePluginRestores have some of them, too.
const (
	EventQueued               = "Queued"
	EventStarted              = "Started"
	EventProgress             = "Progress" // at 25, 50 and 75 %
	EventStalled              = "Stalled"
	EventResumed              = "Resumed" // bytes move again, or another agent or process has taken over
	EventRetrying             = "Retrying"
	EventWaiting              = "Waiting"      // for a repository that does not open
	EventLimitNotKept         = "LimitNotKept" // a limit of the location
	EventPartial              = "Partial"      // completed, without some files or in another way that people should look at
	EventCompleted            = "Completed"
	EventRefusedAttributes    = "RefusedAttributes"    // completed, without some owners, modes, times or extended attributes
	EventUnreadableAttributes = "UnreadableAttributes" // completed, without some extended attributes
	EventFailed               = "Failed"
	EventCanceled             = "Canceled"
)
