package v1alpha1

import "slices"

// ReasonInfo is what people are told about a Reason. docs/node-agent.md and docs/troubleshooting.md have tables of all of them,
// which are made from here: go test ./api/v1alpha1 -update.
//
// +kubebuilder:object:generate=false
type ReasonInfo struct {
	Reason  Reason
	Meaning string // what happened, in a few words that follow "it has failed: "
	Detail  string // the same as the documentation has it, where there is more to say
	Retried string // whether the node agent tries again; empty: nothing has failed
	Remedy  string // what to do, in words that may follow a message; empty: the message says it, or there is nothing to do
	Page    string // where the documentation goes on, below docs/
}

// The pages that reasons lead to.
const (
	pageBegin       = "troubleshooting.md#a-backup-does-not-begin"
	pageStalled     = "troubleshooting.md#a-backup-does-not-move"
	pageFails       = "troubleshooting.md#a-backup-fails"
	pageLacks       = "troubleshooting.md#a-backup-lacks-files-or-volumes"
	pageInit        = "troubleshooting.md#a-restored-pod-stays-in-init"
	pageLocks       = "node-agent.md#locks"
	pageLimit       = "node-agent.md#limit-a-location"
	pageUnavailable = "node-agent.md#repositories-that-do-not-open"
	pageDeadline    = "node-agent.md#deadlines"
	pageStates      = "node-agent.md#states"
	pageMessages    = "node-agent.md#troubleshooting"
	pageTasks       = "repositories.md#reasons"
	pageScratch     = "repositories.md#restore-into-a-scratch-volume"

	pageRestorePaths = "kubectl.md#restore-single-paths"
)

// Info returns what people are told about r; false for a reason of a later version.
func (r Reason) Info() (ReasonInfo, bool) {
	for _, list := range [][]ReasonInfo{waitReasons(), stallReasons(), failureReasons(), taskReasons()} {
		if at := slices.IndexFunc(list, func(i ReasonInfo) bool { return i.Reason == r }); at >= 0 {
			return list[at], true
		}
	}
	return ReasonInfo{}, false
}

// Remedy returns what to do about r, empty if that is not known.
func (r Reason) Remedy() string {
	info, _ := r.Info()
	return info.Remedy
}

func waitReasons() []ReasonInfo {
	return []ReasonInfo{
		{
			Reason: ReasonVolumeNotMounted, Meaning: "the volume is not mounted yet", Detail: "the volume is not mounted yet, as after a start of the node; after `--data-mover-prepare-timeout` it fails as VolumeNotFound",
			Remedy: "look at the driver's pod on the node, and at the events of the volume's pod", Page: pageBegin,
		},
		{Reason: ReasonVolumeBusy, Meaning: "another restore writes into the same directory", Detail: "another restore writes into the same directory, as where a pod has two volumes of one claim; this one begins after it", Page: pageStates},
		{
			Reason: ReasonAPIServerUnavailable, Meaning: "the API server does not answer", Detail: "the API server does not answer, or does not take the agent's writes; the agent tries until it does",
			Remedy: "check the API server, and the network from the node to it", Page: pageBegin,
		},
		{
			Reason: ReasonLocationBusy, Meaning: "as many volumes of the cluster move to or from the location as may", Detail: "as many volumes of the cluster move to or from the location as its annotation [allows](#limit-a-location); the volume waits without a slot",
			Remedy: "wait; if the storage can take more, raise the annotation plimsoll.io/max-operations of the BackupStorageLocation", Page: pageLimit,
		},
		{Reason: ReasonRepositoryInitializing, Meaning: "the agent creates the repository", Detail: "the agent creates the repository, or waits for the agent of another node that does", Page: pageStates},
	}
}

func stallReasons() []ReasonInfo {
	return []ReasonInfo{
		{
			Reason: ReasonScanStalled, Meaning: "no byte moved and no other work was done, and the size is not known yet",
			Remedy: "look at the volume first: an NFS server that is gone, a frozen file system, a disk with errors; if the volume answers, at the storage and the network to it", Page: pageStalled,
		},
		{
			Reason: ReasonTransferStalled, Meaning: "no byte moved and no other work was done",
			Remedy: "look at the volume (does ls in the pod hang, too?), and at the storage and the network to it; after --idle-timeout the attempt ends and the next one begins", Page: pageStalled,
		},
		{
			Reason: ReasonFinishStalled, Meaning: "all data is read, and the last of it is not stored",
			Remedy: "look at the storage and the network to it; for a restore, at the volume's disk", Page: pageStalled,
		},
	}
}

const (
	retriedNo  = "no"
	retriedYes = "yes"
)

func failureReasons() []ReasonInfo {
	return slices.Concat(objectFailures(), volumeFailures(), repositoryFailures())
}

// taskReasons are about RepositoryTasks.
func taskReasons() []ReasonInfo {
	return []ReasonInfo{
		{Reason: ReasonVerified, Meaning: "every file was compared, and is what it should be", Page: pageTasks},
		{Reason: ReasonSampled, Meaning: "the part of the content whose turn it was is what it should be; the rest was not read", Page: pageTasks},
		{
			Reason: ReasonMismatched, Meaning: "files are damaged or missing in the repository, or have another size", Retried: retriedNo,
			Remedy: "verify older backups, and back the volume up into another BackupStorageLocation at once: a new backup into this repository reuses what is damaged, and fails for it; then check the bucket's storage and its lifecycle rules", Page: pageTasks,
		},
		{Reason: ReasonWhole, Meaning: "every repository was checked, and is whole", Page: pageTasks},
		{
			Reason: ReasonDamaged, Meaning: "a repository has lost data, or holds damaged data", Retried: retriedNo,
			Remedy: "back the volumes up into another BackupStorageLocation at once, bring lost objects back from the bucket's versions, and only then run the commands that the task names; verify the backups that it names", Page: pageTasks,
		},
		{Reason: ReasonMeasured, Meaning: "every repository was measured", Page: pageTasks},
		{Reason: ReasonPlanned, Meaning: "the task says what it would forget, remove or migrate, and has changed nothing", Page: pageTasks},
		{Reason: ReasonForgotten, Meaning: "the snapshots that the policy does not keep are gone, and the others are there", Page: pageTasks},
		{Reason: ReasonPruned, Meaning: "what no snapshot needs is gone from every restic repository, as far as the limits allow, kopia's maintenance has run, and every snapshot is there", Page: pageTasks},
		{Reason: ReasonRepaired, Meaning: "the index of every repository was written again, and a check of its structure has found it whole; or no stale lock is left", Page: pageTasks},
		{
			Reason: ReasonRepositoryBusy, Meaning: "another task works on a repository that the task needs",
			Detail: "never a failure: another task works on a repository that the task needs, and the message names it. The task [waits](#several-tasks) without a place, and begins when that one has done with the repository",
			Remedy: "wait, or delete the task that the message names, which ends it within a minute", Page: pageTasks,
		},
		{
			Reason: ReasonMaintenanceOwner, Meaning: "kopia's maintenance of the repository belongs to another user than Velero's, and is left to that one", Retried: retriedNo,
			Remedy: "run 'kopia maintenance run' as its owner; if that one does not exist any more, 'kopia maintenance set --owner default@default' gives it to Velero's user", Page: pageTasks,
		},
		{
			Reason: ReasonNotAcknowledged, Meaning: "more would be forgotten than new backups explain", Retried: retriedNo,
			Detail: "more snapshots would be forgotten than new backups explain since the same policy was last applied, or other ones than were acknowledged. Nothing was forgotten",
			Remedy: "look at the snapshots that the task lists as Pending; if they may go, run 'kubectl plimsoll repository forget' with the same policy, --volume and --location, and --yes --acknowledge WAVE", Page: pageTasks,
		},
		{Reason: ReasonMigrated, Meaning: "every selected snapshot is in the kopia repository, and each of its entries was compared", Page: pageTasks},
		{
			Reason: ReasonNotMigrated, Meaning: "the backup has volumes that are not migrated, so there is no copy of it", Retried: retriedNo,
			Remedy: "migrate all volumes of the backup", Page: pageTasks,
		},
		{
			Reason: ReasonUnconfirmed, Meaning: "each look at the repository found something else", Detail: "each look at the repository found something else, as when backups and prune change it faster than it is read, or the storage answers differently each time", Retried: retriedNo,
			Remedy: "check again when no backup and no maintenance runs; if it happens again, check the storage", Page: pageTasks,
		},
		{Reason: ReasonBackupNotFound, Meaning: "the namespace has no Backup of that name", Retried: retriedNo, Remedy: "'velero backup get' lists the backups", Page: pageTasks},
		{
			Reason: ReasonBackupDamaged, Meaning: "a file of the Backup in its BackupStorageLocation is damaged, missing or incomplete", Retried: retriedNo,
			Detail: "a file of the Backup in its BackupStorageLocation is damaged or missing, or its list of volumes lacks some that the cluster has: without that list nobody knows whether the task has looked at all of them, and without its other files it cannot be copied",
			Remedy: "bring the file that the message names back from the bucket's versions, check the bucket's storage and its lifecycle rules, and create the task again; if there is no other version, make a new backup", Page: pageTasks,
		},
		{
			Reason: ReasonPodVolumeBackupNotFound, Meaning: "the namespace has no such PodVolumeBackup", Detail: "the namespace has no PodVolumeBackup of that name, or none of a volume that the bucket lists for the Backup", Retried: retriedNo,
			Remedy: "'kubectl -n velero get podvolumebackups' lists them", Page: pageTasks,
		},
		{Reason: ReasonNotReady, Meaning: "the Backup or PodVolumeBackup has not ended yet", Retried: retriedNo, Remedy: "create the task again when it has", Page: pageTasks},
		{
			Reason: ReasonNoPodVolumes, Meaning: "no backup by restic or kopia is selected that can be worked on", Retried: retriedNo,
			Detail: "there is no PodVolumeBackup that can be worked on: the Backup has no such volume, or none whose files restic or kopia have backed up; no volume that `--volume` selects was backed up; or `check`, `usage` and `prune` find no snapshot, `migrate` none of restic, `forget` none that belongs to no Backup",
			Remedy: "'kubectl -n velero get podvolumebackups -L velero.io/backup-name' lists what restic and kopia have backed up, and for which Backup; if you have named a Backup, 'kubectl plimsoll describe backup NAME' lists all its volumes: " +
				"those of plugins and CSI snapshots are not in a repository that can be read", Page: pageTasks,
		},
		{
			Reason: ReasonNotBackedUp, Meaning: "the backup of the volume has not completed, or was deleted meanwhile, so there is no snapshot", Retried: retriedNo,
			Remedy: "'kubectl plimsoll explain backup NAME' tells why, or 'kubectl plimsoll explain podvolumebackup NAME' if you have named a PodVolumeBackup", Page: pageTasks,
		},
		{Reason: ReasonEmptyVolume, Meaning: "the volume was empty when it was backed up, so there is no snapshot", Page: pageTasks},
		{
			Reason: ReasonTooManyFileRequests, Meaning: "as many FileRequests are open as the server keeps", Retried: retriedNo,
			Remedy: "try again when one has ended; 'kubectl get filerequests' lists them, and deleting one ends it", Page: pageTasks,
		},
	}
}

// objectFailures are about objects, pods, agents and time.
func objectFailures() []ReasonInfo {
	return []ReasonInfo{
		{
			Reason: ReasonDeadline, Meaning: "the server was about to give up on all volumes of the Backup", Detail: "the backup was not done shortly before the server would have given up on all volumes of the Backup", Retried: retriedNo,
			Remedy: "raise --fs-backup-timeout of the Velero server and of the node agent, or set annotation velero.io/pod-volume-timeout on Backups", Page: pageDeadline,
		},
		{
			Reason: ReasonAgentLost, Meaning: "the node agent of the volume's node does not report", Detail: "the node agent of a backup's node does not report, and the node or the pod no longer exists, or the server was about to give up. The agent of another node failed the volume, so that the Backup keeps the records of its other volumes",
			Retried: retriedNo, Remedy: "look at the node with 'kubectl get node', and at the node agent's pod there; the next backup has the volume", Page: pageFails,
		},
		{
			Reason: ReasonAPIServer, Meaning: "the API server fails with one object", Detail: "the API server returned errors for one object, such as a Secret that it cannot decrypt, for `--data-mover-prepare-timeout`, while it served others",
			Retried: retriedNo, Remedy: "read the named object with 'kubectl get': where that fails, too, see the API server's log, and its encryption at rest (KMS)", Page: pageFails,
		},
		{
			Reason: ReasonPodNotReady, Meaning: "the pod of a restore did not start its init container", Detail: "the pod of a restore did not start its init container within `--data-mover-prepare-timeout`, initially or after a start of the node",
			Retried: retriedNo, Remedy: "look at the pod's events with 'kubectl describe pod', and at its init container restore-wait", Page: pageInit,
		},
		{
			Reason: ReasonPodGone, Meaning: "the pod was deleted, replaced or has ended, or does not wait for its volumes", Detail: "the pod was deleted or replaced, has ended (for example by eviction), or does not wait for its volumes",
			Retried: retriedNo, Remedy: "make sure that the pod stays while its volumes are moved, and try again", Page: pageFails,
		},
		{Reason: ReasonInvalidSettings, Meaning: "`uploaderSettings` are no number or no truth value", Detail: "a value in `uploaderSettings` is not a number, or not true or false", Retried: retriedNo, Page: pageFails},
		{
			Reason: ReasonOutOfMemory, Meaning: "the kernel ended the worker, because its memory ran out", Detail: "the kernel ended the worker", Retried: retriedYes,
			Remedy: "raise the memory limit of the node agent, or lower its concurrency", Page: pageFails,
		},
		{
			Reason: ReasonTooManyAttempts, Meaning: "the agent ended in the last attempt", Detail: "the agent crashed or was killed during the last attempt", Retried: retriedNo,
			Remedy: "raise the memory limit of the node agent, and find out why its pod was restarted", Page: pageFails,
		},
		{Reason: ReasonCanceled, Meaning: "`spec.cancel` was set", Detail: "`spec.cancel` was set, as Velero servers do it when they are restarted", Retried: retriedNo, Page: pageStates},
		{Reason: ReasonDeleted, Meaning: "the object was deleted", Retried: retriedNo, Page: pageStates},
	}
}

// volumeFailures are about the volume and its files.
func volumeFailures() []ReasonInfo {
	return []ReasonInfo{
		{
			Reason: ReasonVolumeNotFound, Meaning: "the volume was not found", Detail: "the volume's directory is missing (retried), was not a mount point for `--data-mover-prepare-timeout`, is a symbolic link, or there is more than one",
			Retried: "only if it is missing", Remedy: "look at the events of the volume's pod, and at the driver's pod on the node", Page: pageMessages,
		},
		{Reason: ReasonUnsupportedVolume, Meaning: "the volume is a block device, a hostPath or an image", Detail: "block device, hostPath, image", Retried: retriedNo, Page: pageMessages},
		{Reason: ReasonUnsupported, Meaning: "the agent does not have this uploader type, storage or option", Detail: "the agent does not support the uploader type, storage or option", Retried: retriedNo, Page: pageMessages},
		{
			Reason: ReasonNoSpace, Meaning: "the volume (restore) or the repository (backup) is full", Retried: retriedNo,
			Remedy: "make room, or use a larger volume, and try again", Page: pageFails,
		},
		{
			Reason: ReasonPathConflict, Meaning: "something that cannot be replaced lies where a path was to be restored", Detail: "a link, a file or a mount of the volume lies where a directory was to be restored, or a directory where a file was; unless the volume changed meanwhile, nothing was written",
			Retried: retriedNo, Remedy: "rename or remove what the message names, or restore into another claim", Page: pageRestorePaths,
		},
		{
			Reason: ReasonFlush, Meaning: "the volume's disk has lost what was restored", Detail: "the volume's disk has lost restored data (fsync failed)", Retried: retriedNo,
			Remedy: "restore into a new volume: this one's disk has lost data, or has no room behind it", Page: pageMessages,
		},
		{
			Reason: ReasonVolumeIO, Meaning: "the volume's file system failed", Detail: "the volume's file system failed: disk, driver or server (EIO, ENOTCONN, ESTALE, ESHUTDOWN, EREMOTEIO)", Retried: retriedYes,
			Remedy: "check the volume's driver on this node, its disk or its server, and the kernel's log of the node", Page: pageMessages,
		},
		{
			Reason: ReasonUnreadableFiles, Meaning: "files could not be read", Detail: "more files were unreadable than `--partial` allows, a directory, or all of them; also the reason of result `partial`", Retried: retriedNo,
			Remedy: "make the files readable, or accept a backup without them: annotate the Backup with " + AnnotationPartial + "=complete, or run the node agent with --partial=complete", Page: pageLacks,
		},
		{
			Reason: ReasonUnwrittenFiles, Meaning: "files could not be written", Detail: "the restore could not write more paths than `--partial-restore` allows; also the reason of result `partial`", Retried: "once, unless the same paths fail again",
			Remedy: "the other files are in the volume; to let the pod start without these, delete the pod and restore it again with " +
				"'velero restore create --annotations " + AnnotationPartial + "=complete ...', or run the node agent with --partial-restore=complete", Page: pageLacks,
		},
		{
			Reason: ReasonMissingData, Meaning: "the files of a restored volume have fewer bytes than the snapshot", Detail: "the files of a restored volume have fewer bytes than the snapshot, although every write succeeded: the volume's driver or disk loses writes, or another process removes files",
			Retried: "yes, unless the same number of bytes is missing again; `--partial-restore=complete` accepts it",
			Remedy: "check the volume's driver, its disk or server, and whether another program removes files from it; to let the pod start with what there is, delete the pod and restore it again with " +
				"'velero restore create --annotations " + AnnotationPartial + "=complete ...'", Page: pageLacks,
		},
		{
			Reason: ReasonRestoreMismatch, Meaning: "the restored volume is not what the snapshot says", Detail: "a scratch volume was compared with its snapshot after the restore, and files are missing or too many, or differ in content, mode, owner, time or target (`repository verify --restore-to`)",
			Retried: retriedNo, Remedy: "all data was read from the repository, so look at the storage class: a volume of it does not keep what is written, or not the owners, modes and times", Page: pageScratch,
		},
		{
			Reason: ReasonUncheckedRestore, Meaning: "it is not known whether all restored bytes are in the volume",
			Detail: "never a failure: the reason of result `partial` when no write of a restore has failed, and the sizes of its files in the volume could not all be looked at, because that took too long or another mount lies in the volume",
			Remedy: "look at the data in the pod; where it matters, back the volume up again and compare the two backups with 'kubectl plimsoll repository diff'", Page: pageLacks,
		},
		{
			Reason: ReasonRefusedAttributes, Meaning: "the volume did not take all owners, modes, times or extended attributes",
			Detail: "never a failure: the reason of result `partial` when a restore by kopia is complete but for owners, modes or times that the volume did not take, or one by restic but for extended attributes (ACLs, capabilities)",
			Remedy: "the data is there: check that the application can use it, or restore to a volume that keeps them; FAT, SMB and NFS do not keep all", Page: pageLacks,
		},
		{
			Reason: ReasonUnreadableAttributes, Meaning: "extended attributes could not be read, and the backup lacks them",
			Detail: "never a failure: the reason of result `partial` when a backup by restic is complete but for extended attributes, such as ACLs, that could not be read",
			Remedy: "the files are in the backup: look with 'getfattr -d -m - FILE' on the node why the attributes cannot be read", Page: pageLacks,
		},
		{Reason: ReasonVanishedFiles, Meaning: "many files vanished while the volume was read", Detail: "never a failure: the reason of result `partial` when many files vanished while the volume was read", Page: pageLacks},
		{
			Reason: ReasonVolumeBecameEmpty, Meaning: "the volume has no data, and had some in an earlier backup",
			Detail: "never a failure: the reason of result `partial` when a volume has no data, and an earlier backup of its claim that still exists has some",
			Remedy: "check that the volume's disk or share is mounted on the node, such as that of a local PersistentVolume after a restart, and whether the application has removed its files; the earlier backup has them", Page: pageLacks,
		},
		{
			Reason: ReasonIdle, Meaning: "no byte moved and no other work was done for `--idle-timeout`", Retried: retriedYes,
			Remedy: "check the storage and the network of this node, or raise --idle-timeout", Page: pageStalled,
		},
	}
}

// repositoryFailures are about repository and storage.
func repositoryFailures() []ReasonInfo {
	return []ReasonInfo{
		{
			Reason: ReasonInvalidLocation, Meaning: "BackupStorageLocation, Secret or credentials are missing or wrong", Retried: retriedNo,
			Remedy: "check the BackupStorageLocation and its Secret", Page: pageFails,
		},
		{
			Reason: ReasonRepositoryNotFound, Meaning: "there is no repository at the address", Detail: "the repository does not exist, and the agent may not create it: for a restore, in a read-only location, or with `--init-repositories=false`", Retried: retriedNo,
			Remedy: "check bucket and prefix of the BackupStorageLocation; the agent makes missing repositories only for backups, and not with --init-repositories=false", Page: pageFails,
		},
		{
			Reason: ReasonRepositoryIncomplete, Meaning: "the repository has lost its configuration or keys, and still holds data", Detail: "the repository has lost its configuration or keys but still holds data; the agent creates no new repository over it. A usual cause is a lifecycle rule of the bucket that deletes old objects. If only a restic key or `kopia.blobcfg` exists, an earlier creation was interrupted: the next backup waits for a minute, removes it and creates the repository", Retried: retriedNo,
			Remedy: "bring the missing objects back from the bucket's versions, and take this prefix out of its lifecycle rules; to begin anew, empty the prefix or use another one", Page: pageFails,
		},
		{
			Reason: ReasonWrongPassword, Meaning: "the repository was made with another password", Retried: retriedNo,
			Remedy: "check key repository-password of Secret velero-repo-credentials: it must be the password that the repository was made with", Page: pageFails,
		},
		{
			Reason: ReasonRepositoryLocked, Meaning: "somebody else holds the repository's lock", Detail: "another process held the lock for longer than `--lock-wait`", Retried: retriedNo,
			Remedy: "wait while its owner runs; the lock of a dead one goes after 30 minutes, or by 'restic unlock --remove-all' if nothing uses the repository", Page: pageLocks,
		},
		{
			Reason: ReasonRepositoryUnavailable, Meaning: "the repository does not open", Detail: "the repository does not open: the storage does not answer or refuses, or the password is wrong. Its volumes [wait](#repositories-that-do-not-open) for it, at most for `--fs-backup-timeout`", Retried: retriedNo,
			Remedy: "check the storage, the network to it and the credentials of the BackupStorageLocation, with 'kubectl plimsoll doctor'; the volumes go on by themselves", Page: pageUnavailable,
		},
		{
			Reason: ReasonSnapshotNotFound, Meaning: "the repository does not have the snapshot", Detail: "the snapshot was forgotten or pruned, or is in another repository", Retried: retriedNo,
			Remedy: "it may have been forgotten or pruned; 'restic snapshots' lists what is there", Page: pageFails,
		},
		{
			Reason: ReasonReusedDamage, Meaning: "the new snapshot reuses data that is damaged in the repository", Detail: "an earlier backup in the repository was found damaged by `repository verify` or `check`, so the new snapshot was [read back](repositories.md#what-each-check-proves): files of it cannot be restored", Retried: retriedNo,
			Remedy: "back the volume up into another location at once; 'kubectl plimsoll repository check --read-data' names what is damaged and how to repair it", Page: pageFails,
		},
		{
			Reason: ReasonPathNotFound, Meaning: "the snapshot does not have a path that was to be restored", Detail: "the snapshot does not have a path that was to be restored; nothing was written", Retried: retriedNo,
			Remedy: "'kubectl plimsoll repository ls' and 'find' list what the backup has", Page: pageRestorePaths,
		},
		{Reason: ReasonDataPath, Meaning: "restic or kopia failed", Detail: "any other error: network, storage, no space for temporary files, other errors of restic or kopia", Retried: retriedYes, Page: pageFails},
	}
}
