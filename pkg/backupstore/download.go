package backupstore

import (
	"context"
	"fmt"
	"io"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

// DownloadURL returns a URL from which anybody can fetch what a DownloadRequest asks for until ttl has passed, as the
// velero CLI does; Velero gives it 10 minutes. It is ErrNoURL for a directory, for S3 with a customer key, and for identities of
// Azure and Google that have no key of their own: the controller then serves what OpenDownload reads. Whether the file
// exists is not looked at.
func (s *Store) DownloadURL(ctx context.Context, target velerov1.DownloadTarget, ttl time.Duration) (string, error) {
	key, err := s.downloadKey(target)
	if err != nil {
		return "", err
	}
	return s.bucket.url(ctx, key, ttl)
}

// OpenDownload reads what a DownloadRequest asks for, packed as it is stored, which is what the velero CLI expects.
func (s *Store) OpenDownload(ctx context.Context, target velerov1.DownloadTarget) (io.ReadCloser, error) {
	key, err := s.downloadKey(target)
	if err != nil {
		return nil, err
	}
	return s.bucket.open(ctx, key)
}

// downloadKey is the key of a file that the velero CLI can ask for.
func (s *Store) downloadKey(target velerov1.DownloadTarget) (string, error) {
	if file, ok := backupDownloads[target.Kind]; ok {
		b, err := s.Backup(target.Name)
		return b.key(b.name + file), err
	}
	if file, ok := restoreDownloads[target.Kind]; ok {
		r, err := s.Restore(target.Name)
		return r.key(file(r)), err
	}
	return "", fmt.Errorf("download of %q: %w", target.Kind, ErrNotFound)
}

var backupDownloads = map[velerov1.DownloadTargetKind]string{
	velerov1.DownloadTargetKindBackupLog:                       "-logs.gz",
	velerov1.DownloadTargetKindBackupContents:                  archiveFile,
	velerov1.DownloadTargetKindBackupVolumeSnapshots:           "-volumesnapshots.json.gz",
	velerov1.DownloadTargetKindBackupItemOperations:            "-itemoperations.json.gz",
	velerov1.DownloadTargetKindBackupResourceList:              "-resource-list.json.gz",
	velerov1.DownloadTargetKindBackupResults:                   "-results.gz",
	velerov1.DownloadTargetKindBackupVolumeInfos:               "-volumeinfo.json.gz",
	velerov1.DownloadTargetKindCSIBackupVolumeSnapshots:        "-csi-volumesnapshots.json.gz",
	velerov1.DownloadTargetKindCSIBackupVolumeSnapshotContents: "-csi-volumesnapshotcontents.json.gz",
}

var restoreDownloads = map[velerov1.DownloadTargetKind]func(Restore) string{
	velerov1.DownloadTargetKindRestoreLog:            Restore.logFile,
	velerov1.DownloadTargetKindRestoreResults:        Restore.resultsFile,
	velerov1.DownloadTargetKindRestoreResourceList:   Restore.resourceListFile,
	velerov1.DownloadTargetKindRestoreItemOperations: Restore.itemOperationsFile,
	velerov1.DownloadTargetKindRestoreVolumeInfo:     Restore.volumeInfoFile,
}
