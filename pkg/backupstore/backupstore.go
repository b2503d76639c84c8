// Package backupstore knows what lies where in the bucket of a BackupStorageLocation. It reads the backups that Velero has
// left there, of every version since 1.0, and writes what belongs to a restore.
//
//	store, err := backupstore.Open(ctx, resolver, location)
//	names, err := store.Backups(ctx)
//	backup, err := store.Backup(names[0])
//	metadata, err := backup.Metadata(ctx)
//	archive, err := backup.OpenArchive(ctx, backupstore.ArchiveOptions{})
//	for item := range archive.Items() {
//		object, err := archive.Object(item)
//	}
//
// What a bucket holds is not trusted: names are checked before they become part of a key, documents and archives are
// bounded in size, and no name of an archive's entries becomes the name of a file. Nothing is written or deleted but below
// the directory of one backup or one restore.
//
// Nothing is guaranteed between two calls: Velero may write or delete the same backup at the same time. A backup's
// metadata is there before its archive is (PutBackup writes it first), so look at its phase with CheckRestorable.
package backupstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// Store is what a BackupStorageLocation leads to. It is safe for concurrent use. It keeps the credentials that it was
// opened with: open one for each piece of work, and close it.
type Store struct {
	bucket   bucket
	address  string
	readOnly bool
}

// Open returns the store of a location. The resolver supplies its credentials and certificates. Only a directory, of the
// provider velero.io/fs, is looked at already here, and must exist: ErrNoBucket. An error that wraps
// repository.ErrMisconfigured stays until the location is changed, its Secrets or the mounted files.
func Open(ctx context.Context, resolver *repository.Resolver, location *velerov1.BackupStorageLocation) (*Store, error) {
	found, err := resolver.Bucket(ctx, location)
	if err != nil {
		return nil, err
	}
	b, err := openBucket(ctx, found, location.Spec.Config)
	if err != nil {
		return nil, fmt.Errorf("backup storage location %q: %w", location.Name, err)
	}
	return &Store{bucket: b, address: found.Address(), readOnly: found.ReadOnly}, nil
}

// Close ends the store's connections. Readers that it has given out must be closed before.
func (s *Store) Close() error { return s.bucket.close() }

// String is the store's address, without secrets.
func (s *Store) String() string { return s.address }

// ReadOnly reports whether the location's access mode forbids writes: then every writing method returns ErrReadOnly.
func (s *Store) ReadOnly() bool { return s.readOnly }

// Validate checks that the bucket can be listed and holds nothing but what Velero puts there: at the top, below the
// location's prefix, no directories but Velero's own (files do not matter). It returns ErrInvalidLayout, ErrNoBucket,
// ErrAccessDenied or what the network says.
func (s *Store) Validate(ctx context.Context) error {
	var unknown []string
	for entry, err := range s.bucket.list(ctx, "", false) {
		if err != nil {
			return fmt.Errorf("validate: %w", err)
		}
		if name, ok := strings.CutSuffix(entry.key, "/"); ok && !slices.Contains(topDirectories, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s has directories that are not Velero's, %s: %w", s, strings.Join(shorten(unknown), ", "), ErrInvalidLayout)
	}
	return nil
}

// Backups returns the names of the backups, sorted: of the directories below backups/ whose name can be a backup's. A
// directory may turn out to be none, or not to be one yet: then Backup.Metadata gives ErrNotFound. To look into each of
// them would cost a request for each backup and minute.
func (s *Store) Backups(ctx context.Context) ([]string, error) {
	return s.directories(ctx, backupsDirectory)
}

// Restores returns the names of the restores that have files in the store, sorted.
func (s *Store) Restores(ctx context.Context) ([]string, error) {
	return s.directories(ctx, restoresDirectory)
}

// RepositoryNamespaces returns the namespaces that have a directory for a repository of restic or kopia, sorted. The directory may be empty.
func (s *Store) RepositoryNamespaces(ctx context.Context, uploaderType string) ([]string, error) {
	return s.directories(ctx, uploaderType)
}

func (s *Store) directories(ctx context.Context, parent string) ([]string, error) {
	var names []string
	for entry, err := range s.bucket.list(ctx, parent+"/", false) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", parent, err)
		}
		name, ok := strings.CutSuffix(strings.TrimPrefix(entry.key, parent+"/"), "/")
		if ok && checkName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// directory is the part of a store that belongs to one backup or one restore. Every key that is read or written is made
// by its method key.
type directory struct {
	store *Store
	path  string // such as backups/nightly
}

// open returns the directory of a backup or restore.
func (s *Store) open(parent, name string) (directory, error) {
	if err := checkName(name); err != nil {
		return directory{}, err
	}
	return directory{store: s, path: parent + "/" + name}, nil
}

// checkName refuses what is no name of a Kubernetes object: it comes from objects that others write, and must not lead
// into another directory.
func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%q: %w: %s", name, ErrInvalidName, problems[0])
	}
	return nil
}

func (d directory) key(file string) string { return d.path + "/" + file }

// File is an object in the directory of a backup or a restore.
type File struct {
	Name string // without the directory
	Size int64  // bytes
	// Tag changes when the content does: the storage's ETag, or size and time of a file.
	Tag string
}

// files lists the directory.
func (d directory) files(ctx context.Context) ([]File, error) {
	var files []File
	for entry, err := range d.store.bucket.list(ctx, d.path+"/", true) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", d.path, err)
		}
		// Consoles make an object for the directory itself, which is no file but has to go with the others.
		files = append(files, File{Name: strings.TrimPrefix(entry.key, d.path+"/"), Size: entry.size, Tag: entry.tag})
	}
	return files, nil
}

// remove deletes every object of the directory. What has gone already is no error.
func (d directory) remove(ctx context.Context) error {
	if d.store.readOnly {
		return fmt.Errorf("delete %s: %w", d.path, ErrReadOnly)
	}
	files, err := d.files(ctx)
	if err != nil {
		return err
	}
	// Backwards, because some S3 servers have an object for the directory itself, and want it to go last.
	for _, file := range slices.Backward(files) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("delete %s: %w", d.path, context.Cause(ctx))
		}
		if err := d.store.bucket.remove(ctx, d.key(file.Name)); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

// shorten keeps a message readable whatever the bucket holds.
func shorten(names []string) []string {
	const most = 5
	if len(names) <= most {
		return names
	}
	return append(slices.Clip(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
}

// The directories below a location's prefix. Velero calls a bucket with any other one invalid, so none may be added.
const (
	backupsDirectory  = "backups"
	restoresDirectory = "restores"
)

var topDirectories = []string{backupsDirectory, restoresDirectory, "restic", "metadata", "plugins", "kopia"}
