// Package kopiarepo makes kopia repositories that are cheap to make.
//
// Making one takes kopia half a second of a processor, and several beside other tests: it starts a worker, which derives a key from the password
// more than once. The first Create of a process does that, as the node agent does, and the others copy what it has left. Tests that are not about creating repositories use them.
package kopiarepo

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// Password opens each repository of this package. It is the password of Velero's repositories, too.
const Password = "static-passw0rd"

// empty has the files of the repository that the others are copied from.
var empty struct {
	sync.Mutex
	files fstest.MapFS // nil until the first Create
}

// Create makes an empty repository in a directory, which it creates. All repositories of a process have the same id, so two of them must not
// share a cache directory.
func Create(tb testing.TB, dir string) {
	tb.Helper()
	if err := os.CopyFS(dir, files(tb)); err != nil {
		tb.Fatalf("create a kopia repository: %v", err)
	}
}

func files(tb testing.TB) fs.FS {
	tb.Helper()
	empty.Lock()
	defer empty.Unlock()
	if empty.files == nil {
		empty.files = initialize(tb)
	}
	return empty.files
}

// initialize returns the files that kopia leaves in a new repository.
func initialize(tb testing.TB) fstest.MapFS {
	tb.Helper()
	u, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(tb), TempDir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(tb.TempDir(), "repository")
	if err := u.Initialize(tb.Context(), uploader.Repository{URL: dir, Password: Password}); err != nil {
		tb.Fatalf("create a kopia repository: %v", err)
	}
	made := fstest.MapFS{}
	repository := os.DirFS(dir)
	err = fs.WalkDir(repository, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(repository, name)
		made[name] = &fstest.MapFile{Data: content}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return made
}
