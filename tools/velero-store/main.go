// Command velero-store runs Velero's own code for a backup store, on a directory: tests of pkg/backupstore write a backup
// with it and have it read what they wrote. It is a module of its own because that code takes modules that nothing else
// here does.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/persistence"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
)

const usage = `usage: velero-store put-backup DIRECTORY NAME < {"metadata": BASE64, "contents": BASE64, ...}
       velero-store get-backup DIRECTORY NAME
       velero-store delete-backup DIRECTORY NAME
       velero-store get-restore DIRECTORY NAME
       velero-store delete DIRECTORY NAME`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "velero-store:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("%s", usage)
	}
	store, err := open(args[1])
	if err != nil {
		return err
	}
	switch name := args[2]; args[0] {
	case "put-backup":
		return putBackup(store, name)
	case "get-backup":
		return getBackup(store, name)
	case "delete-backup":
		return store.DeleteBackup(name)
	case "get-restore":
		return getRestore(store, name)
	case "delete":
		return store.DeleteRestore(name)
	default:
		return fmt.Errorf("%s", usage)
	}
}

// open returns Velero's store in the directory, whose parent is the bucket and whose name the prefix.
func open(dir string) (persistence.BackupStore, error) {
	location := &velerov1.BackupStorageLocation{}
	location.Spec.Provider = "directory"
	location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "bucket", Prefix: filepath.Base(dir)}
	logger := logrus.New()
	return persistence.NewObjectBackupStoreGetter(nil).Get(location, directory(filepath.Dir(dir)), logger)
}

// putBackup stores a backup from the files on standard input, each as Velero's server hands it over.
func putBackup(store persistence.BackupStore, name string) error {
	var files map[string][]byte
	if err := json.NewDecoder(os.Stdin).Decode(&files); err != nil {
		return err
	}
	file := func(name string) io.Reader {
		if content, ok := files[name]; ok {
			return bytes.NewReader(content)
		}
		return nil
	}
	return store.PutBackup(persistence.BackupInfo{
		Name: name, Metadata: file("metadata"), Contents: file("contents"), Log: file("log"), BackupResults: file("results"),
		PodVolumeBackups: file("podVolumeBackups"), VolumeSnapshots: file("volumeSnapshots"), BackupItemOperations: file("itemOperations"),
		BackupResourceList: file("resourceList"), BackupVolumeInfo: file("volumeInfo"),
	})
}

// getBackup prints what Velero's backup sync makes of a backup: its name among those of the store, its phase, and how many
// snapshots and volumes it has.
func getBackup(store persistence.BackupStore, name string) error {
	names, err := store.ListBackups()
	if err != nil {
		return err
	}
	metadata, err := store.GetBackupMetadata(name)
	if err != nil {
		return err
	}
	snapshots, err := store.GetBackupVolumeSnapshots(name)
	if err != nil {
		return err
	}
	volumes, err := store.GetPodVolumeBackups(name)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"names": names, "phase": metadata.Status.Phase, "snapshots": len(snapshots), "podVolumeBackups": len(volumes),
	})
}

// getRestore prints what Velero reads of a restore, and whether the store is valid to it.
func getRestore(store persistence.BackupStore, name string) error {
	if err := store.IsValid(); err != nil {
		return err
	}
	results, err := store.GetRestoreResults(name)
	if err != nil {
		return err
	}
	list, err := store.GetRestoredResourceList(name)
	if err != nil {
		return err
	}
	operations, err := store.GetRestoreItemOperations(name)
	if err != nil {
		return err
	}
	urls := map[velerov1.DownloadTargetKind]string{}
	for _, kind := range []velerov1.DownloadTargetKind{
		velerov1.DownloadTargetKindRestoreLog, velerov1.DownloadTargetKindRestoreResults, velerov1.DownloadTargetKindRestoreResourceList,
		velerov1.DownloadTargetKindRestoreItemOperations, velerov1.DownloadTargetKindRestoreVolumeInfo,
	} {
		if urls[kind], err = store.GetDownloadURL(velerov1.DownloadTarget{Kind: kind, Name: name}); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"results": results, "resourceList": list, "itemOperations": operations, "urls": urls,
	})
}

// directory is an object store in a directory. It has one bucket.
type directory string

var _ velero.ObjectStore = directory("")

// GetObjectStore returns d, whatever the provider.
func (d directory) GetObjectStore(string) (velero.ObjectStore, error) { return d, nil }

// Init does nothing.
func (d directory) Init(map[string]string) error { return nil }

func (d directory) path(key string) string { return filepath.Join(string(d), key) }

// PutObject writes a file.
func (d directory) PutObject(_, key string, body io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(d.path(key)), 0o700); err != nil {
		return err
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	return os.WriteFile(d.path(key), content, 0o600)
}

// ObjectExists looks for a file.
func (d directory) ObjectExists(_, key string) (bool, error) {
	_, err := os.Stat(d.path(key))
	if os.IsNotExist(err) {
		return false, nil
	}
	return err == nil, err
}

// GetObject opens a file.
func (d directory) GetObject(_, key string) (io.ReadCloser, error) { return os.Open(d.path(key)) }

// ListCommonPrefixes lists directories.
func (d directory) ListCommonPrefixes(bucket, prefix, delimiter string) ([]string, error) {
	keys, err := d.ListObjects(bucket, prefix)
	var prefixes []string
	for _, key := range keys {
		if name, _, ok := strings.Cut(strings.TrimPrefix(key, prefix), delimiter); ok && !slices.Contains(prefixes, prefix+name+delimiter) {
			prefixes = append(prefixes, prefix+name+delimiter)
		}
	}
	return prefixes, err
}

// ListObjects lists files, those in directories too.
func (d directory) ListObjects(_, prefix string) ([]string, error) {
	var keys []string
	err := fs.WalkDir(os.DirFS(string(d)), ".", func(key string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
		return err
	})
	return keys, err
}

// DeleteObject removes a file.
func (d directory) DeleteObject(_, key string) error { return os.Remove(d.path(key)) }

// CreateSignedURL returns the key, for the test to see.
func (d directory) CreateSignedURL(_, key string, _ time.Duration) (string, error) { return key, nil }
