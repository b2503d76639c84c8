package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// SnapshotIDPathsPrefix begins spec.snapshotID of a PodVolumeRestore with AnnotationRestorePaths; the snapshot's id follows. An agent that does not
// know the annotation, of Velero or an earlier one of ours, finds no such snapshot and fails the restore, where it would else write the whole
// snapshot over a volume in use.
const SnapshotIDPathsPrefix = "paths-of-"

// RestorePaths is the document of AnnotationRestorePaths.
//
// +kubebuilder:object:generate=false
type RestorePaths struct {
	// Paths are relative to the volume, separated by slashes. A directory stands for everything in it.
	Paths []string `json:"paths"`
	// Overwrite is what happens with files that exist; empty: OverwriteNever.
	Overwrite Overwrite `json:"overwrite,omitempty"`
}

// Overwrite decides what a restore of paths does with a file or link that exists in the volume.
type Overwrite string

// The values of Overwrite, as restic names them.
const (
	OverwriteNever   Overwrite = "never"    // it stays as it is
	OverwriteIfNewer Overwrite = "if-newer" // it is replaced if the snapshot's has a later time of modification
	OverwriteAlways  Overwrite = "always"   // it is replaced
)

// Bounds of RestorePaths. An object has room for 256 KiB of annotations.
const (
	maxRestorePaths = 100
	maxPathBytes    = 4095
	maxPathsBytes   = 128 << 10
)

// ParseRestorePaths reads the document of AnnotationRestorePaths, strictly: an agent that leaves out what it does not know would restore
// something else than what was asked for.
func ParseRestorePaths(document string) (RestorePaths, error) {
	var r RestorePaths
	d := json.NewDecoder(strings.NewReader(document))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return RestorePaths{}, err
	}
	return r.Clean()
}

// Clean returns r with paths as snapshots have them, without slashes at either end, and with Overwrite set; or an error that says which path, or
// what else, is not valid.
func (r RestorePaths) Clean() (RestorePaths, error) {
	switch r.Overwrite {
	case "":
		r.Overwrite = OverwriteNever
	case OverwriteNever, OverwriteIfNewer, OverwriteAlways:
	default:
		return RestorePaths{}, fmt.Errorf("overwrite %.20q is neither %s, %s nor %s", r.Overwrite, OverwriteNever, OverwriteIfNewer, OverwriteAlways)
	}
	switch {
	case len(r.Paths) == 0:
		return RestorePaths{}, errors.New("there is no path to restore")
	case len(r.Paths) > maxRestorePaths:
		return RestorePaths{}, fmt.Errorf("%d paths are too many: at most %d can be restored at once; a directory stands for everything in it", len(r.Paths), maxRestorePaths)
	}
	size := 0
	cleaned := make([]string, len(r.Paths))
	for i, p := range r.Paths {
		var err error
		if cleaned[i], err = cleanPath(p); err != nil {
			return RestorePaths{}, fmt.Errorf("path %.200q %w", p, err)
		}
		size += len(p)
	}
	if size > maxPathsBytes {
		return RestorePaths{}, fmt.Errorf("the paths have %d bytes together: at most %d are possible", size, maxPathsBytes)
	}
	r.Paths = cleaned
	return r, r.checkNesting()
}

// cleanPath returns an error that follows the path.
func cleanPath(p string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+p), "/")
	switch {
	case clean == "":
		return "", errors.New("is the volume itself: restore it without paths")
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", errors.New("has a part \"..\"")
	case len(p) > maxPathBytes:
		return "", fmt.Errorf("has more than %d bytes", maxPathBytes)
	case strings.ContainsRune(p, 0):
		return "", errors.New("has a zero byte, which no name can have")
	case !utf8.ValidString(p), strings.ContainsRune(p, utf8.RuneError):
		return "", errors.New("is not valid UTF-8, and data paths do not tell such names apart: restore the directory that it is in")
	}
	return clean, nil
}

// checkNesting refuses paths that are the same, or beneath another.
func (r RestorePaths) checkNesting() error {
	for i, p := range r.Paths {
		for j, other := range r.Paths {
			if i != j && (p == other || strings.HasPrefix(p, other+"/")) {
				return fmt.Errorf("path %.200q is restored with %.200q already: give only one of them", p, other)
			}
		}
	}
	return nil
}

// Replaces reports whether a restored file replaces one that exists, by the times of the last change of both.
func (o Overwrite) Replaces(restored, existing time.Time) bool {
	switch o {
	case OverwriteAlways:
		return true
	case OverwriteIfNewer:
		return restored.After(existing)
	default:
		return false
	}
}
