package uploadertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Fake is a data path that keeps snapshots as copies in a directory. It passes the suite, so it behaves as the real
// ones do; for the tests of callers each of its methods can be replaced. A test that needs a backup that hangs until it
// is told to go on:
//
//	release := make(chan struct{})
//	fake := uploadertest.NewFake(t.TempDir())
//	fake.OnBackup = func(ctx context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
//		p.Report(progress.Reading{BytesDone: 5, TotalBytes: 10, TotalFinal: true})
//		select {
//		case <-release:
//			return uploader.BackupResult{SnapshotID: "1234abcd", TotalBytes: 10}, nil
//		case <-ctx.Done():
//			return uploader.BackupResult{}, context.Cause(ctx)
//		}
//	}
//
// It is safe for concurrent use; set its fields before.
type Fake struct {
	// OnBackup, OnRestore and OnInitialize replace a method. Their sink is never nil.
	OnBackup     func(ctx context.Context, req uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error)
	OnRestore    func(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error)
	OnInitialize func(ctx context.Context, repo uploader.Repository) error

	// BytesPerSecond bounds how fast files are copied; 0: not at all.
	BytesPerSecond int64

	dir   string
	mu    sync.Mutex
	calls []Call
	next  int
}

// Call is one call of a Fake's method: exactly one of its fields is set.
type Call struct {
	Backup     *uploader.BackupRequest
	Restore    *uploader.RestoreRequest
	Initialize *uploader.Repository
}

var _ uploader.Uploader = (*Fake)(nil)

// NewFake returns a Fake that keeps its repositories, whatever their addresses are, in a directory. Fakes that share a
// directory share the repositories.
func NewFake(dir string) *Fake { return &Fake{dir: dir} }

// Calls returns all calls so far, in order of their beginning.
func (f *Fake) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *Fake) called(c Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, c)
}

// Backup copies the volume.
func (f *Fake) Backup(ctx context.Context, req uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
	f.called(Call{Backup: &req})
	if p == nil {
		p = progress.Discard
	}
	if f.OnBackup != nil {
		return f.OnBackup(ctx, req, p)
	}
	repo, err := f.open(ctx, req.Repository)
	if err != nil {
		return uploader.BackupResult{}, fmt.Errorf("back up: %w", err)
	}
	volume, err := os.OpenRoot(req.Volume.Name())
	if err != nil {
		return uploader.BackupResult{}, fmt.Errorf("back up: %w", err)
	}
	defer volume.Close()
	c := &copying{ctx: ctx, sink: p, rate: f.BytesPerSecond, volume: volume}
	switch empty, err := c.measure(req.Volume.Name()); {
	case err != nil:
		return uploader.BackupResult{}, fmt.Errorf("back up: %w", err)
	case empty:
		return uploader.BackupResult{}, nil
	}
	unfinished, err := os.MkdirTemp(repo, "unfinished-")
	if err != nil {
		return uploader.BackupResult{}, fmt.Errorf("back up: %w", err)
	}
	if err := c.tree(req.Volume.Name(), unfinished); err != nil {
		return uploader.BackupResult{}, errors.Join(fmt.Errorf("back up: %w", err), os.RemoveAll(unfinished))
	}
	id := f.newID()
	if err := os.Rename(unfinished, filepath.Join(repo, id)); err != nil {
		return uploader.BackupResult{}, fmt.Errorf("back up: %w", err)
	}
	c.finish()
	added := c.reading.BytesDone
	if req.Parent != "" {
		added = 0 // it does not know better: enough for a caller
	}
	return uploader.BackupResult{
		SnapshotID: id, TotalBytes: c.reading.BytesDone, BytesUploaded: added,
		Errors: c.reading.Errors, FailedPaths: c.failed, UnreadableDirectories: c.dirs,
	}, nil
}

// Restore copies a snapshot into the volume.
func (f *Fake) Restore(ctx context.Context, req uploader.RestoreRequest, p progress.Sink) (uploader.RestoreResult, error) {
	f.called(Call{Restore: &req})
	if p == nil {
		p = progress.Discard
	}
	if f.OnRestore != nil {
		return f.OnRestore(ctx, req, p)
	}
	repo, err := f.open(ctx, req.Repository)
	if err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore: %w", err)
	}
	snapshot := filepath.Join(repo, req.SnapshotID)
	if _, err := os.Stat(snapshot); err != nil || !hexadecimal.MatchString(req.SnapshotID) {
		return uploader.RestoreResult{}, fmt.Errorf("restore: %w", uploader.ErrSnapshotNotFound)
	}
	c := &copying{ctx: ctx, sink: p, rate: f.BytesPerSecond}
	if _, err := c.measure(snapshot); err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore: %w", err)
	}
	if err := c.tree(snapshot, req.Volume.Name()); err != nil {
		return uploader.RestoreResult{}, fmt.Errorf("restore: %w", err)
	}
	c.finish()
	return uploader.RestoreResult{TotalBytes: c.reading.BytesDone}, nil
}

// Initialize makes a repository.
func (f *Fake) Initialize(ctx context.Context, repo uploader.Repository) error {
	f.called(Call{Initialize: &repo})
	if f.OnInitialize != nil {
		return f.OnInitialize(ctx, repo)
	}
	_, err := f.open(ctx, repo)
	if !errors.Is(err, uploader.ErrRepositoryNotFound) {
		return err
	}
	// As with the real ones, a repository is there with its password or not at all: somebody else may open it meanwhile.
	unfinished, err := os.MkdirTemp(f.dir, "unfinished-")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(unfinished, "password"), []byte(repo.Password.Reveal()), 0o600); err != nil {
		return err
	}
	return os.Rename(unfinished, f.repository(repo))
}

var hexadecimal = regexp.MustCompile(`^[0-9a-f]{8,}$`)

// Open makes sure that the password is right.
func (f *Fake) Open(ctx context.Context, repo uploader.Repository) error {
	_, err := f.open(ctx, repo)
	return err
}

func (f *Fake) newID() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	sum := sha256.Sum256([]byte(strconv.Itoa(os.Getpid()) + fmt.Sprintf("%p", f) + strconv.Itoa(f.next)))
	return hex.EncodeToString(sum[:])
}

// repository is the directory for an address.
func (f *Fake) repository(repo uploader.Repository) string {
	sum := sha256.Sum256([]byte(repo.URL))
	return filepath.Join(f.dir, hex.EncodeToString(sum[:8]))
}

// open returns the repository's directory, if the password is right.
func (f *Fake) open(ctx context.Context, repo uploader.Repository) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	dir := f.repository(repo)
	password, err := os.ReadFile(filepath.Join(dir, "password"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", uploader.ErrRepositoryNotFound
	case err != nil:
		return "", err
	case string(password) != repo.Password.Reveal():
		return "", uploader.ErrWrongPassword
	}
	return dir, nil
}
