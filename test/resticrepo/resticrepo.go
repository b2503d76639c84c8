// Package resticrepo makes restic repositories that are cheap to open.
//
// `restic init` chooses scrypt's parameters so that deriving the key from the password takes half a second and 64 MiB, and each
// start of restic derives it again. The parameters stand in the key file. In these repositories they are the smallest that scrypt
// has, and any restic opens them. Tests that are not about creating repositories use them.
//
// The folder repository is what restic 0.18.1 leaves after `init` with Password, if Calibrate in its package internal/crypto returns
// N=2, r=1 and p=1.
package resticrepo

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Password opens each repository of this package. It is the password of Velero's repositories, too.
const Password = "static-passw0rd"

//go:embed repository
var files embed.FS

// Create makes an empty repository in a directory, which it creates. In the directory of an S3 server's bucket it is a repository
// of the bucket. All repositories have the same id, so two of them must not share a cache directory.
func Create(tb testing.TB, dir string) {
	tb.Helper()
	if err := create(dir); err != nil {
		tb.Fatalf("create a restic repository: %v", err)
	}
}

func create(dir string) error {
	from, err := fs.Sub(files, "repository")
	if err != nil {
		return err
	}
	for i := range 256 {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, "data", fmt.Sprintf("%02x", i)), 0o700))
	}
	for _, name := range []string{"index", "locks", "snapshots"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	return errors.Join(err, os.CopyFS(dir, from))
}
