package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// FlipLargest changes bytes in the middle of the largest file below dir whose path there begins with prefix, such as a pack of a
// repository. It returns the file's path, and a function that undoes it.
func FlipLargest(dir, prefix string) (path string, undo func() error, err error) {
	var size int64
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasPrefix(strings.TrimPrefix(file, dir+"/"), prefix) {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Size() > size {
			path, size = file, info.Size()
		}
		return err
	})
	if err == nil && path == "" {
		err = fmt.Errorf("%s has no file whose path begins with %s", dir, prefix)
	}
	if err != nil {
		return "", nil, err
	}
	before, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", nil, err
	}
	changed := append([]byte(nil), before...)
	for i := range 16 {
		changed[len(changed)/2+i] ^= 0xff
	}
	undo = func() error {
		return errors.Join(os.WriteFile(path, before, info.Mode().Perm()), os.Chtimes(path, info.ModTime(), info.ModTime()))
	}
	return path, undo, os.WriteFile(path, changed, info.Mode().Perm())
}
