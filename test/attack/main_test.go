// Package attack holds the tests that try to lead a backup or a restore out of its volume, with every data path, confined
// as the node agent confines them: nothing outside is read into a snapshot, and nothing outside is written.
package attack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/afero"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/kopiaworker"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

func TestMain(m *testing.M) {
	worker.Main()
	kopiaworker.Main()
	parts.UseWorkerExec()
	if request := os.Getenv(moveVariable); request != "" {
		if err := runMove(ctrl.SetupSignalHandler(), request); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// patience is how long a backup or restore may take that something in the volume might block.
const patience = 10 * time.Minute

// dataPath is a way to move a volume, with a repository of its own.
type dataPath struct {
	name    string
	program string // restic; empty: kopia
	uploader.Uploader
	repository uploader.Repository
	plain      bool // it stores no hard links, FIFOs and devices
}

const (
	oldRestic     = "restic-0.14.0"
	defaultRestic = "restic-" + parts.DefaultRestic
	kopiaPath     = "kopia"
)

// eachDataPath runs a test with the oldest and the default restic, and with kopia.
func eachDataPath(t *testing.T, test func(t *testing.T, p dataPath)) {
	t.Helper()
	eachOf(t, []string{oldRestic, defaultRestic, kopiaPath}, test)
}

func eachOf(t *testing.T, names []string, test func(t *testing.T, p dataPath)) {
	t.Helper()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newDataPath(t, name)
			p.create(t)
			test(t, p)
		})
	}
}

// create creates the repository.
func (p dataPath) create(t *testing.T) {
	t.Helper()
	if p.program != "" {
		resticrepo.Create(t, p.repository.URL)
	} else if err := p.Initialize(t.Context(), p.repository); err != nil {
		t.Fatal(err)
	}
}

func newDataPath(t *testing.T, name string) dataPath {
	t.Helper()
	program := ""
	if name != kopiaPath {
		program = parts.Restic(t, strings.TrimPrefix(name, "restic-"))
	}
	u, err := newUploader(t.Context(), program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	repository := uploader.Repository{URL: filepath.Join(t.TempDir(), "repository"), Password: resticrepo.Password}
	return dataPath{name: name, program: program, Uploader: u, repository: repository, plain: name == kopiaPath}
}

// newUploader makes the uploader that runs restic, or kopia's where that is empty.
func newUploader(ctx context.Context, program, dir string) (uploader.Uploader, error) {
	if program == "" {
		return kopia.New(kopia.Options{CacheDir: filepath.Join(dir, "cache"), TempDir: dir})
	}
	return restic.New(ctx, program, restic.Options{CacheDir: filepath.Join(dir, "cache"), TempDir: dir})
}

// store makes a snapshot of a volume. Files that cannot be read are no error.
func (p dataPath) store(t *testing.T, dir *os.File) uploader.BackupResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	result, err := p.Backup(ctx, uploader.BackupRequest{Repository: p.repository, Volume: dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if result.SnapshotID == "" {
		t.Fatal("there is no snapshot: nothing was tested")
	}
	for _, path := range result.FailedPaths {
		t.Log("was not read:", path)
	}
	return result
}

// load restores a snapshot, for as long as a test is patient.
func (p dataPath) load(t *testing.T, dir *os.File, snapshot string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := p.Restore(ctx, uploader.RestoreRequest{Repository: p.repository, Volume: dir, SnapshotID: snapshot}, nil)
	if ctx.Err() != nil {
		t.Errorf("the restore hangs: %v", err)
	}
	return err
}

// scene is a node with the volume of an attacker and that of somebody else.
type scene struct {
	t       *testing.T
	pods    string // kubelet's pods directory
	volume  string // the attacker's
	outside string // the other's, with canaries
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, pods: t.TempDir()}
	s.volume = filepath.Join(s.pods, "attacker", "volumes", "kubernetes.io~empty-dir", "data")
	s.outside = filepath.Join(s.pods, "victim", "volumes", "kubernetes.io~empty-dir", "data")
	for _, dir := range []string{s.volume, s.outside} {
		s.must(os.MkdirAll(dir, 0o755))
	}
	s.plantCanaries()
	return s
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// open opens the attacker's volume as the node agent does.
func (s *scene) open() *os.File {
	s.t.Helper()
	dir, err := volume.NewPods(afero.NewOsFs(), s.pods).Open(types.UID("attacker"), volume.Dir{Name: "data"})
	s.must(err)
	s.t.Cleanup(func() { dir.Close() })
	return dir
}

// in returns a path in the volume whose parent directory is there.
func (s *scene) in(name string) string {
	s.t.Helper()
	path := filepath.Join(s.volume, name)
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	return path
}

// write makes a file in the volume.
func (s *scene) write(name, content string) {
	s.t.Helper()
	s.must(os.WriteFile(s.in(name), []byte(content), 0o644))
}

// link makes a symbolic link in the volume.
func (s *scene) link(name, target string) {
	s.t.Helper()
	s.must(os.Symlink(target, s.in(name)))
}

// needLandlock skips a test of what nothing but Landlock prevents.
func needLandlock(t *testing.T) {
	t.Helper()
	if abi := worker.LandlockABI(); abi < 2 {
		t.Skipf("NOT TESTED: this kernel has version %d of Landlock, and nothing else prevents this attack", abi)
	}
}
