package backupstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// ErrNotCopyable is returned by CopyTo for a backup with volumes that two backups must not share: who deletes one of them would delete
// the volumes of both.
var ErrNotCopyable = errors.New("the backup cannot be copied")

// Copied says how the copy of a backup differs from it.
type Copied struct {
	Name string // of the copy
	// Snapshot returns the kopia snapshot that takes the place of a restic snapshot.
	Snapshot func(pvb *velerov1.PodVolumeBackup) (string, error)
	DryRun   bool // write nothing, but look at all that would be copied
}

// CopyTo stores the backup again under another name, with its items, log and lists as they are, and with records of its pod volumes that
// lead to kopia's snapshots. Nothing of the backup itself is changed. The file that makes the directory a backup comes last: until then
// no server sees the copy, and a copy that was cut off is written again. One that is complete stays as it is. made reports whether
// it was written now, or would have been.
func (b Backup) CopyTo(ctx context.Context, c Copied) (made bool, err error) {
	to, err := b.store.Backup(c.Name)
	if err != nil {
		return false, err
	}
	if b.store.readOnly {
		return false, fmt.Errorf("write %s: %w", to.key(metadataFile), ErrReadOnly)
	}
	metadata, err := b.Metadata(ctx)
	if err != nil {
		return false, err
	}
	if err := CheckRestorable(&metadata.Typed); err != nil {
		return false, err
	}
	if err := b.checkOnlyPodVolumes(ctx); err != nil {
		return false, err
	}
	records, snapshots, err := b.copiedRecords(ctx, c)
	if err != nil {
		return false, err
	}
	if there, err := to.isCopyOf(ctx, b.name, records); there || err != nil {
		return false, err
	}
	if err := b.checkArchive(ctx); err != nil || c.DryRun {
		return err == nil, err
	}
	if err := b.copyFiles(ctx, to); err != nil {
		return false, err
	}
	if err := to.put(ctx, to.name+podVolumeBackups, records); err != nil {
		return false, err
	}
	if err := b.copyVolumeInfos(ctx, to, snapshots); err != nil {
		return false, err
	}
	return true, to.putMetadata(ctx, &metadata.Content, b.name)
}

// checkArchive refuses a backup whose items cannot be read: its copy could not be restored.
func (b Backup) checkArchive(ctx context.Context) error {
	archive, err := b.OpenArchive(ctx, ArchiveOptions{})
	if err != nil {
		return err
	}
	return archive.Close()
}

// checkOnlyPodVolumes refuses a backup with snapshots of other kinds.
func (b Backup) checkOnlyPodVolumes(ctx context.Context) error {
	for _, kind := range []struct {
		what  string
		count func() (int, error)
	}{
		{"volume snapshots", counter(ctx, b.NativeSnapshots)},
		{"CSI snapshots", counter(ctx, b.CSIVolumeSnapshots)},
		{"asynchronous operations, such as moved CSI snapshots,", counter(ctx, b.ItemOperations)},
		{"volumes of plugins", counter(ctx, b.VolumePluginBackups)},
	} {
		n, err := kind.count()
		if err != nil {
			return err
		}
		if n > 0 {
			return fmt.Errorf("%w: it has %s, and deleting one of two backups that share them would delete them: restore it with its own name", ErrNotCopyable, kind.what)
		}
	}
	return nil
}

func counter[T any](ctx context.Context, list func(context.Context) ([]T, error)) func() (int, error) {
	return func() (int, error) {
		found, err := list(ctx)
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return len(found), err
	}
}

// copiedRecords returns the records of the copy's pod volumes, and the new snapshot of each old one.
func (b Backup) copiedRecords(ctx context.Context, c Copied) ([]unstructured.Unstructured, map[string]string, error) {
	records, err := b.PodVolumeBackups(ctx)
	if err != nil {
		return nil, nil, err
	}
	copies := make([]unstructured.Unstructured, 0, len(records))
	snapshots := map[string]string{}
	for i := range records {
		pvb := &records[i].Typed
		if kind := v1alpha1.UploaderName(pvb.Spec.UploaderType); kind != "restic" {
			return nil, nil, fmt.Errorf("%w: volume %s of pod %s/%s was backed up with %s", ErrNotCopyable, pvb.Spec.Volume, pvb.Spec.Pod.Namespace, pvb.Spec.Pod.Name, kind)
		}
		id := ""
		if pvb.Status.SnapshotID != "" && pvb.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted {
			if id, err = c.Snapshot(pvb); err != nil {
				return nil, nil, err
			}
			snapshots[pvb.Status.SnapshotID] = id
		}
		record := unstructured.Unstructured{Object: records[i].Content.DeepCopy().Object}
		if err := moveRecord(&record, pvb.Name, b.name, c.Name, id); err != nil {
			return nil, nil, err
		}
		copies = append(copies, record)
	}
	return copies, snapshots, nil
}

// moveRecord makes the record of a restic snapshot one of a kopia snapshot of another backup. Its name is another one, too: a server
// that syncs the copy keeps the object that is there.
func moveRecord(record *unstructured.Unstructured, name, from, to, snapshot string) error {
	sum := sha256.Sum256([]byte(name))
	Adopt(record, record.GetNamespace())
	record.SetName(to + "-" + hex.EncodeToString(sum[:5]))
	labels, annotations := record.GetLabels(), record.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[velerov1.BackupNameLabel] = v1alpha1.LabelValue(to)
	labels[velerov1.BackupUIDLabel] = "" // a server that syncs the record fills it in
	delete(labels, v1alpha1.LabelDamaged)
	record.SetLabels(labels)
	for _, ofOriginal := range []string{v1alpha1.AnnotationProgress, v1alpha1.AnnotationVerified, v1alpha1.AnnotationDamaged, v1alpha1.AnnotationForgetting} {
		delete(annotations, ofOriginal)
	}
	record.SetAnnotations(annotations)
	// A server that syncs the record fills in the UID of the Backup that it has made.
	owner := map[string]any{"apiVersion": velerov1.SchemeGroupVersion.String(), "kind": "Backup", "name": to, "uid": "", "controller": true}
	fields := []struct {
		value any
		path  []string
	}{
		{[]any{owner}, []string{"metadata", "ownerReferences"}},
		{"kopia", []string{"spec", "uploaderType"}},
		{"", []string{"spec", "repoIdentifier"}},
		{snapshot, []string{"status", "snapshotID"}},
	}
	if tags, ok, _ := unstructured.NestedStringMap(record.Object, "spec", "tags"); ok && tags["backup"] == from {
		fields = append(fields, struct {
			value any
			path  []string
		}{to, []string{"spec", "tags", "backup"}})
	}
	for _, field := range fields {
		if err := unstructured.SetNestedField(record.Object, field.value, field.path...); err != nil {
			return fmt.Errorf("the record of PodVolumeBackup %s: %w", name, err)
		}
	}
	return nil
}

// isCopyOf reports whether the copy is there already, with items that can be read. What is there under its name and is another backup, or has other snapshots, is an error.
func (b Backup) isCopyOf(ctx context.Context, from string, records []unstructured.Unstructured) (bool, error) {
	metadata, err := b.Metadata(ctx)
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case metadata.Typed.Annotations[v1alpha1.AnnotationMigratedFrom] != from:
		return false, fmt.Errorf("%w: there is a backup %q that is no copy of %q", ErrNotCopyable, b.name, from)
	}
	if err := b.checkArchive(ctx); errors.Is(err, ErrNotFound) || errors.Is(err, ErrDamaged) {
		return false, nil // it is written again
	} else if err != nil {
		return false, err
	}
	there, err := b.PodVolumeBackups(ctx)
	if err != nil {
		return false, err
	}
	want := map[string]string{}
	for i := range records {
		want[records[i].GetName()], _, _ = unstructured.NestedString(records[i].Object, "status", "snapshotID")
	}
	for i := range there {
		if id, ok := want[there[i].Typed.Name]; !ok || id != there[i].Typed.Status.SnapshotID {
			return false, fmt.Errorf("%w: backup %q is a copy with other snapshots: delete it first", ErrNotCopyable, b.name)
		}
	}
	if len(there) != len(want) {
		return false, fmt.Errorf("%w: backup %q is a copy with other volumes: delete it first", ErrNotCopyable, b.name)
	}
	return true, nil
}

// copyFiles copies all files that say nothing of snapshots.
func (b Backup) copyFiles(ctx context.Context, to Backup) error {
	files, err := b.Files(ctx)
	if err != nil {
		return err
	}
	for _, file := range files {
		rest, ok := strings.CutPrefix(file.Name, b.name)
		if !ok || rest == podVolumeBackups || rest == volumeInfos || strings.Contains(rest, "/") {
			continue
		}
		if err := b.store.copyObject(ctx, b.key(file.Name), to.key(to.name+rest)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) copyObject(ctx context.Context, from, to string) error {
	content, err := s.bucket.open(ctx, from)
	if err != nil {
		return err
	}
	defer content.Close()
	return s.bucket.write(ctx, to, func(w io.Writer) error {
		_, err := io.Copy(w, content)
		return err
	})
}

// copyVolumeInfos changes the uploader and the snapshots in the list of how volumes were backed up.
func (b Backup) copyVolumeInfos(ctx context.Context, to Backup, snapshots map[string]string) error {
	infos, err := records[map[string]any](ctx, b.directory, b.name+volumeInfos)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, info := range infos {
		pvb, ok := info["pvbInfo"].(map[string]any)
		if !ok {
			continue
		}
		pvb["uploaderType"] = "kopia"
		if handle, ok := pvb["snapshotHandle"].(string); ok {
			pvb["snapshotHandle"] = snapshots[handle]
		}
	}
	return to.put(ctx, to.name+volumeInfos, infos)
}

// putMetadata stores the file that makes the directory a backup.
func (b Backup) putMetadata(ctx context.Context, original *unstructured.Unstructured, from string) error {
	metadata := original.DeepCopy()
	Adopt(metadata, metadata.GetNamespace())
	metadata.SetName(b.name)
	annotations := metadata.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationMigratedFrom] = from
	metadata.SetAnnotations(annotations)
	return b.store.bucket.write(ctx, b.key(metadataFile), func(w io.Writer) error {
		return json.NewEncoder(w).Encode(metadata.Object)
	})
}

const (
	podVolumeBackups = "-podvolumebackups.json.gz"
	volumeInfos      = "-volumeinfo.json.gz"
)
