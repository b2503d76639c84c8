package backupstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/itemoperation"
	"github.com/vmware-tanzu/velero/pkg/util/results"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// metadataFile is the file that makes a directory a backup. It alone is not packed.
const metadataFile = "velero-backup.json"

// Backup is the directory of a backup, which need not exist. Its methods give ErrNotFound for a file that does not, which
// is normal for each but the metadata and the archive, and ErrDamaged or ErrTooLarge for what cannot be read.
type Backup struct {
	directory

	name string
}

// Backup returns the backup of that name, or ErrInvalidName. Nothing is sent.
func (s *Store) Backup(name string) (Backup, error) {
	d, err := s.open(backupsDirectory, name)
	return Backup{directory: d, name: name}, err
}

// Name is the backup's name.
func (b Backup) Name() string { return b.name }

// Files lists what the backup consists of.
func (b Backup) Files(ctx context.Context) ([]File, error) { return b.files(ctx) }

// Metadata is the Backup object as Velero stored it, with the namespace and the location's name of the cluster that made
// it. Velero stores it before the archive, and again when asynchronous operations have ended.
func (b Backup) Metadata(ctx context.Context) (Object[velerov1.Backup], error) {
	var metadata Object[velerov1.Backup]
	if err := b.document(ctx, metadataFile, false, &metadata); err != nil {
		return Object[velerov1.Backup]{}, err
	}
	kind := metadata.Content.GroupVersionKind()
	switch {
	case kind != velerov1.SchemeGroupVersion.WithKind("Backup"):
		return Object[velerov1.Backup]{}, damaged(b.key(metadataFile), "it is %q of %q, want a Backup of %q", kind.Kind, kind.GroupVersion(), velerov1.SchemeGroupVersion)
	case metadata.Typed.Name != b.name:
		// Every other file's name has the backup's name in it, so a renamed directory is no backup of the new name.
		return Object[velerov1.Backup]{}, damaged(b.key(metadataFile), "it is of backup %q", metadata.Typed.Name)
	}
	return metadata, nil
}

// CheckRestorable refuses, with ErrNotRestorable and the reason, a backup that has not ended, has failed or is being
// deleted. Velero itself relies on such backups not being there.
func CheckRestorable(backup *velerov1.Backup) error {
	switch phase := backup.Status.Phase; phase {
	case velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed:
		return nil
	case velerov1.BackupPhaseFailed, velerov1.BackupPhaseFailedValidation:
		return fmt.Errorf("backup %q is in phase %s, so it is incomplete: %w", backup.Name, phase, ErrNotRestorable)
	case velerov1.BackupPhaseDeleting:
		return fmt.Errorf("backup %q is being deleted: %w", backup.Name, ErrNotRestorable)
	default:
		return fmt.Errorf("backup %q has not ended, its phase is %q: %w", backup.Name, phase, ErrNotRestorable)
	}
}

// PodVolumeBackups are the records of what restic and kopia have stored, in the cluster's namespace and with its UIDs. A file without content gives
// ErrDamaged: Velero stores null for a backup without pod volumes.
func (b Backup) PodVolumeBackups(ctx context.Context) ([]Object[velerov1.PodVolumeBackup], error) {
	list, err := readRecords[Object[velerov1.PodVolumeBackup]](ctx, b.directory, b.name+podVolumeBackups)
	if err == nil && !list.present {
		return nil, damaged(b.key(b.name+podVolumeBackups), "it is empty")
	}
	return list.records, err
}

// VolumePluginBackups are the records of volume snapshotter plugins that report progress, plimsoll.io's own addition.
func (b Backup) VolumePluginBackups(ctx context.Context) ([]Object[v1alpha1.VolumePluginBackup], error) {
	return records[Object[v1alpha1.VolumePluginBackup]](ctx, b.directory, b.name+volumePluginBackups)
}

const volumePluginBackups = "-volumepluginbackups.json.gz"

// PutVolumePluginBackups makes or replaces the records. In a read-only location it gives ErrReadOnly.
func (b Backup) PutVolumePluginBackups(ctx context.Context, records []v1alpha1.VolumePluginBackup) error {
	return b.put(ctx, b.name+volumePluginBackups, records)
}

// RemoveVolumePluginBackups removes the records, for who finds after writing them that the backup has been deleted. Where
// there are none it succeeds.
func (b Backup) RemoveVolumePluginBackups(ctx context.Context) error {
	key := b.key(b.name + volumePluginBackups)
	if b.store.readOnly {
		return fmt.Errorf("delete %s: %w", key, ErrReadOnly)
	}
	if err := b.store.bucket.remove(ctx, key); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// NativeSnapshots are the snapshots that volume snapshotter plugins have made.
func (b Backup) NativeSnapshots(ctx context.Context) ([]NativeSnapshot, error) {
	return records[NativeSnapshot](ctx, b.directory, b.name+"-volumesnapshots.json.gz")
}

// VolumeInfos say how each volume was backed up, since Velero 1.13.
func (b Backup) VolumeInfos(ctx context.Context) ([]volumeinfo.BackupVolume, error) {
	return records[volumeinfo.BackupVolume](ctx, b.directory, b.name+volumeInfos)
}

// CSIVolumeSnapshots are the CSI objects that Velero 1.4 to 1.16 stored beside the archive.
func (b Backup) CSIVolumeSnapshots(ctx context.Context) ([]unstructured.Unstructured, error) {
	return objects(ctx, b.directory, b.name+"-csi-volumesnapshots.json.gz")
}

// CSIVolumeSnapshotContents are like CSIVolumeSnapshots.
func (b Backup) CSIVolumeSnapshotContents(ctx context.Context) ([]unstructured.Unstructured, error) {
	return objects(ctx, b.directory, b.name+"-csi-volumesnapshotcontents.json.gz")
}

// CSIVolumeSnapshotClasses are like CSIVolumeSnapshots, of Velero 1.9 to 1.17.
func (b Backup) CSIVolumeSnapshotClasses(ctx context.Context) ([]unstructured.Unstructured, error) {
	return objects(ctx, b.directory, b.name+"-csi-volumesnapshotclasses.json.gz")
}

// ItemOperations are the asynchronous operations of backup item actions, since Velero 1.11.
func (b Backup) ItemOperations(ctx context.Context) ([]itemoperation.BackupOperation, error) {
	return packed[[]itemoperation.BackupOperation](ctx, b.directory, b.name+"-itemoperations.json.gz")
}

// ResourceList has the names of the items, such as "shop/web", for each group version and kind, such as "apps/v1/Deployment".
func (b Backup) ResourceList(ctx context.Context) (map[string][]string, error) {
	return packed[map[string][]string](ctx, b.directory, b.name+"-resource-list.json.gz")
}

// Results are the warnings and errors of the backup, since Velero 1.10.
func (b Backup) Results(ctx context.Context) (Results, error) {
	return packed[Results](ctx, b.directory, b.name+"-results.gz")
}

// Results are the warnings and errors of a backup or a restore.
type Results struct {
	Warnings results.Result `json:"warnings"`
	Errors   results.Result `json:"errors"`
}

// OpenLog reads the backup's log, unpacked: lines of text or of JSON, as the server's --log-format said.
func (b Backup) OpenLog(ctx context.Context) (io.ReadCloser, error) {
	key := b.key(b.name + "-logs.gz")
	raw, err := b.store.bucket.open(ctx, key)
	if err != nil {
		return nil, err
	}
	content, err := unpack(key, raw)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{content, raw}, nil
}

// OpenArchive reads the backup's items into a temporary file and returns their index. It takes as long as reading the
// whole archive. Close it.
func (b Backup) OpenArchive(ctx context.Context, options ArchiveOptions) (*Archive, error) {
	key := b.key(b.name + archiveFile)
	raw, err := b.store.bucket.open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	return OpenArchive(ctx, key, raw, options)
}

const archiveFile = ".tar.gz"

// packed reads a packed document.
func packed[T any](ctx context.Context, d directory, file string) (T, error) {
	var value, none T
	if err := d.document(ctx, file, true, &value); err != nil {
		return none, err
	}
	return value, nil
}

// maxRecords is how many records of volumes a file may have: an empty one takes three bytes in it, and near a kilobyte in
// memory.
const maxRecords = 50_000

// records reads a packed array of what a backup has of its volumes.
func records[T any](ctx context.Context, d directory, file string) ([]T, error) {
	list, err := readRecords[T](ctx, d, file)
	return list.records, err
}

func readRecords[T any](ctx context.Context, d directory, file string) (recordList[T], error) {
	var list recordList[T]
	if err := d.document(ctx, file, true, &list); err != nil {
		return recordList[T]{}, err
	}
	if list.over {
		return recordList[T]{}, fmt.Errorf("%s has more than %d records: %w", d.key(file), maxRecords, ErrTooLarge)
	}
	return list, nil
}

// recordList is an array that is read up to maxRecords.
type recordList[T any] struct {
	records []T
	present bool // the file has an array or null
	over    bool
}

// UnmarshalJSON reads one record after the other.
func (b *recordList[T]) UnmarshalJSON(data []byte) error {
	b.present = true
	d := json.NewDecoder(bytes.NewReader(data))
	opening, err := d.Token()
	if err != nil || opening == nil {
		return err
	}
	if opening != json.Delim('[') {
		return fmt.Errorf("it begins with %v", opening)
	}
	for d.More() {
		if b.over = len(b.records) == maxRecords; b.over {
			b.records = nil
			return nil
		}
		var record T
		if err := d.Decode(&record); err != nil {
			return err
		}
		b.records = append(b.records, record)
	}
	return nil
}

// objects reads a packed array of Kubernetes objects.
func objects(ctx context.Context, d directory, file string) ([]unstructured.Unstructured, error) {
	list, err := packed[[]Object[struct{}]](ctx, d, file)
	if err != nil {
		return nil, err
	}
	contents := make([]unstructured.Unstructured, 0, len(list))
	for _, object := range list {
		contents = append(contents, object.Content)
	}
	return contents, nil
}
