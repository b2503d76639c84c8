package tree

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Digest says how many files a directory has, and the SHA-256 of their names and contents.
func Digest(dir string) (string, error) {
	files, sum := 0, sha256.New()
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer file.Close()
		files++
		fmt.Fprintf(sum, "%q ", name)
		_, err = io.Copy(sum, file)
		return err
	})
	return fmt.Sprintf("%d files, %x", files, sum.Sum(nil)), err
}
