package kopiaworker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// identity is the user and the host of everything that Velero keeps in kopia repositories.
const identity = "default"

// meteredType is the type of a storage behind the job's meter, in kopia's registry of storages.
const meteredType = "plimsoll"

// meteredOptions is the configuration of such a storage: the storage behind it.
type meteredOptions struct {
	Storage blob.ConnectionInfo `json:"storage"`
}

// registerStorage makes kopia open storages through the job's meter.
func (j *job) registerStorage() {
	blob.AddSupportedStorage(meteredType, meteredOptions{},
		func(ctx context.Context, o *meteredOptions, isCreate bool) (blob.Storage, error) {
			st, err := blob.NewStorage(ctx, o.Storage, isCreate)
			if err != nil {
				return nil, err
			}
			m := &metered{Storage: st, meter: &j.meter}
			if j.CacheDir == "" {
				m.packs = &packMemory{}
			}
			return m, nil
		})
}

// open opens the repository. That writes nothing that needs much space but the cache, which is no reason to fail.
func (j *job) open(ctx context.Context) (repo.DirectRepository, error) {
	r, err := j.openCached(ctx)
	if errors.Is(err, syscall.ENOSPC) && j.CacheDir != "" {
		j.note(slog.LevelWarn, "the cache's disk is full, going on without a cache: "+err.Error())
		j.CacheDir = ""
		r, err = j.openCached(ctx)
	}
	return r, err
}

// openCached opens the repository with the cache in CacheDir.
//
// It writes kopia's configuration file itself. repo.Connect would open the repository once more than necessary, would end
// the process for certain errors, and would remove the cache, which others use too, whenever the storage does not answer.
func (j *job) openCached(ctx context.Context) (repo.DirectRepository, error) {
	storage, err := j.storage()
	if err != nil {
		return nil, err
	}
	j.registerStorage()
	config, err := json.Marshal(repo.LocalConfig{
		Storage: &blob.ConnectionInfo{Type: meteredType, Config: meteredOptions{Storage: storage}},
		Caching: j.caching(),
		ClientOptions: repo.ClientOptions{
			Username: identity, Hostname: identity, ReadOnly: j.ReadOnly, Description: "Plimsoll",
			// Do not trust a cached copy of the repository's own description: it may have been made anew.
			FormatBlobCacheDuration: -1,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("describe the repository: %w", err)
	}
	if err := os.WriteFile(j.ConfigFile, config, 0o600); err != nil {
		return nil, fmt.Errorf("describe the repository: %w", err)
	}
	r, err := repo.Open(ctx, j.ConfigFile, j.Password, &repo.Options{
		DisableRepositoryLog: true,
		DoNotWaitForUpgrade:  true,
		// The default ends the process without a word.
		OnFatalError: func(err error) { panic(fmt.Sprintf("kopia cannot go on with the repository: %v", err)) },
	})
	switch {
	case errors.Is(err, blob.ErrBlobNotFound), j.Storage == nil && errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w (%w)", uploader.ErrRepositoryNotFound, err)
	case err != nil:
		return nil, fmt.Errorf("open repository: %w", err)
	}
	direct, ok := r.(repo.DirectRepository)
	if !ok {
		return nil, errors.Join(fmt.Errorf("repository behind a kopia server: %w", uploader.ErrUnsupported), r.Close(ctx))
	}
	return direct, nil
}

// maxDataCache bounds the cache for the contents of files. A restore reads each content once and a backup none, so what
// it is good for are contents that repeat. Velero's bound of 4 GB would write as much to the node's disk as a restore
// writes to the volume.
const maxDataCache = 64 << 20

// caching divides the cache's limit as Velero does: four fifths for data, as far as maxDataCache permits, one for
// metadata, and each is swept down to four fifths of its part. Unlike Velero's, lists of blobs are never taken from the
// cache: a snapshot that another node has just made would not be found.
func (j *job) caching() *content.CachingOptions {
	if j.CacheDir == "" {
		return &content.CachingOptions{}
	}
	data, metadata := min(j.CacheLimit/5*4, maxDataCache), j.CacheLimit/5
	return &content.CachingOptions{
		CacheDirectory:              j.CacheDir,
		ContentCacheSizeBytes:       data / 5 * 4,
		ContentCacheSizeLimitBytes:  data,
		MetadataCacheSizeBytes:      metadata / 5 * 4,
		MetadataCacheSizeLimitBytes: metadata,
	}
}

// openOnly opens the repository and closes it.
func (j *job) openOnly(ctx context.Context) error {
	r, err := j.open(ctx)
	if err != nil {
		return err
	}
	return r.Close(ctx)
}

// initialize creates the repository with kopia's defaults for everything, as Velero does, and makes Velero's identity the
// owner of its maintenance. Servers up to 1.17 rely on that, later ones check it.
func (j *job) initialize(ctx context.Context) (err error) {
	r, err := j.open(ctx)
	if errors.Is(err, uploader.ErrRepositoryNotFound) {
		created := j.create(ctx)
		r, err = j.open(ctx) // which works, too, if another process has created it a moment ago
		if created != nil && err != nil {
			return fmt.Errorf("create repository: %w", created)
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(ctx)) }()
	has, err := maintenance.HasParams(ctx, r)
	if err != nil {
		return fmt.Errorf("read maintenance parameters: %w", err)
	}
	if has {
		return nil
	}
	return repo.DirectWriteSession(ctx, r, repo.WriteSessionOptions{Purpose: "set init parameters"},
		func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			params := maintenance.DefaultParams()
			params.Owner = w.ClientOptions().UsernameAtHost()
			return maintenance.SetParams(ctx, w, &params)
		})
}

// create makes the repository where the storage is empty, but for what an unfinished creation has left.
func (j *job) create(ctx context.Context) error {
	info, err := j.storage()
	if err != nil {
		return err
	}
	st, err := blob.NewStorage(ctx, info, true)
	if err != nil {
		return err
	}
	if err = j.clear(ctx, st, []string{""}, firstBlob); err == nil {
		err = repo.Initialize(ctx, st, &repo.NewRepositoryOptions{}, j.Password)
	}
	return errors.Join(err, st.Close(ctx))
}
