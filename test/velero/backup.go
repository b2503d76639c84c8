package velero

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Version is a version of Velero whose servers store backups in their own way (docs/contracts/velero-restore.md 0.1 and 1).
type Version int

// The versions that a store may hold backups of. What came in between writes as the one before it.
const (
	V1_0  Version = iota // the first one: an archive without API versions
	V1_6                 // an archive with API versions, a list of resources
	V1_14                // item operations, results, volume infos, CSI objects beside the archive
	V1_18                // without the CSI objects
)

// String is the version's number.
func (v Version) String() string { return [...]string{"1.0", "1.6", "1.14", "1.18"}[v] }

// Item is an object in a backup: as the API server had it, with its UID, managed fields and status.
type Item struct {
	Resource string // plural name and group, such as "deployments.apps"
	Object   *unstructured.Unstructured
}

// key is where the archive has it below one of the directories of its resource.
func (i Item) key() string {
	if namespace := i.Object.GetNamespace(); namespace != "" {
		return path.Join("namespaces", namespace, i.Object.GetName()+".json")
	}
	return path.Join("cluster", i.Object.GetName()+".json")
}

// Stored is a backup as a server of the version stores it when it has ended. It has the directory backups/<name>.
type Stored struct {
	Version          Version
	Backup           *velerov1.Backup
	Items            []Item
	PodVolumeBackups []velerov1.PodVolumeBackup
	VolumeInfos      any // a list, since 1.13
	VolumeSnapshots  any // a list: those of volume snapshotter plugins
	CSISnapshots     any // a list: 1.4 to 1.16
}

// Files are the contents of the backup's objects by key below the location's prefix.
func (s Stored) Files() (map[string][]byte, error) {
	archive, err := s.archive()
	if err != nil {
		return nil, err
	}
	backup := s.Backup.DeepCopy()
	backup.TypeMeta = metav1.TypeMeta{APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "Backup"}
	backup.Status.Version = 1
	if s.Version >= V1_6 {
		backup.Status.FormatVersion = "1.1.0"
		backup.Status.Progress = &velerov1.BackupProgress{TotalItems: len(s.Items), ItemsBackedUp: len(s.Items)}
	}
	metadata, err := json.MarshalIndent(backup, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode backup %s: %w", backup.Name, err)
	}
	files := map[string][]byte{"velero-backup.json": metadata, s.Backup.Name + ".tar.gz": archive}
	for name, content := range s.lists() {
		if files[s.Backup.Name+"-"+name], err = pack(content); err != nil {
			return nil, fmt.Errorf("encode %s of backup %s: %w", name, backup.Name, err)
		}
	}
	below := map[string][]byte{}
	for name, content := range files {
		below[path.Join("backups", s.Backup.Name, name)] = content
	}
	return below, nil
}

// Write makes the backup's files in a directory: the bucket of a local store, with the prefix.
func (s Stored) Write(dir string) error {
	files, err := s.Files()
	if err != nil {
		return err
	}
	for key, content := range files {
		file := filepath.Join(dir, filepath.FromSlash(key))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// text is a file that is no JSON.
type text string

// lists are the packed files beside the archive, by the rest of their names.
func (s Stored) lists() map[string]any {
	lists := map[string]any{
		"logs.gz":                  text("time=\"2019-05-20T10:00:00Z\" level=info msg=\"Backup completed\"\n"),
		"podvolumebackups.json.gz": s.PodVolumeBackups,
		"volumesnapshots.json.gz":  s.VolumeSnapshots,
	}
	if s.Version >= V1_6 {
		lists["resource-list.json.gz"] = s.resourceList()
	}
	if s.Version >= V1_14 {
		lists["itemoperations.json.gz"] = []any{}
		lists["results.gz"] = map[string]any{"errors": map[string]any{}, "warnings": map[string]any{}}
		lists["volumeinfo.json.gz"] = s.VolumeInfos
	}
	if s.Version == V1_14 {
		lists["csi-volumesnapshots.json.gz"] = s.CSISnapshots
		lists["csi-volumesnapshotcontents.json.gz"], lists["csi-volumesnapshotclasses.json.gz"] = nil, nil
	}
	return lists
}

// resourceList has the names of the items for each group version and kind.
func (s Stored) resourceList() map[string][]string {
	list := map[string][]string{}
	for _, item := range s.Items {
		kind := item.Object.GetAPIVersion() + "/" + item.Object.GetKind()
		list[kind] = append(list[kind], strings.TrimPrefix(item.Object.GetNamespace()+"/"+item.Object.GetName(), "/"))
	}
	for _, names := range list {
		slices.Sort(names)
	}
	return list
}

// archive has each item, since 1.4 a second time below its API version.
func (s Stored) archive() ([]byte, error) {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	add := func(name string, content []byte) error {
		header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	format := "1.1.0\n"
	if s.Version < V1_6 {
		format = "1\n"
	}
	if err := add("metadata/version", []byte(format)); err != nil {
		return nil, err
	}
	for _, item := range s.Items {
		content, err := item.Object.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", item.key(), err)
		}
		dirs := []string{""}
		if s.Version >= V1_6 {
			dirs = append(dirs, item.Object.GroupVersionKind().Version+"-preferredversion")
		}
		for _, dir := range dirs {
			if err := add(path.Join("resources", item.Resource, dir, item.key()), content); err != nil {
				return nil, err
			}
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// pack encodes a file's content as JSON, unless it is text, and compresses it.
func pack(content any) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	var err error
	if plain, ok := content.(text); ok {
		_, err = w.Write([]byte(plain))
	} else {
		err = json.NewEncoder(w).Encode(content)
	}
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
