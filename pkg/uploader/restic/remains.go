package restic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// firstFiles is where restic init stores the key, before the configuration and before anything else (restic 0.14 to 0.19).
const firstFiles = "keys/"

// repositoryParts is what a repository consists of. Nothing else at its address is looked at.
var repositoryParts = []string{"config", "data/", "index/", "snapshots/", "locks/", "keys/"}

// clearRemains removes what a restic init has left that was killed half-way, and returns ErrRepositoryIncomplete if data of an
// earlier repository is left.
//
// Where the agent cannot list the storage, it is left to restic, which looks for keys and snapshots from 0.17 on; 0.14 and 0.16
// write a new configuration beside the old data, so they may not make a repository there.
func (u *Uploader) clearRemains(ctx context.Context, repo uploader.Repository) error {
	if dir, local := repo.Local(); local {
		return u.clearDirectory(ctx, dir)
	}
	err := fmt.Errorf("list %s: %w", repo.Address(), uploader.ErrUnsupported)
	if storage := storageOf(repo); storage != nil && u.options.ClearUnfinished != nil {
		repo.Storage = storage
		err = u.options.ClearUnfinished(ctx, repo, repositoryParts, firstFiles)
	}
	switch {
	case !errors.Is(err, uploader.ErrUnsupported):
		return err
	case u.version.looksBeforeInit():
		u.options.Logger.Info("Cannot list the storage before the repository is created; restic looks for keys and snapshots there", "error", err)
		return nil
	default:
		return fmt.Errorf("restic %v does not look for data of an earlier repository before it makes one: %w; "+
			"use restic 0.17 or later, or run \"restic init\" where there is no data", u.version, err)
	}
}

// clearDirectory is clearRemains for a directory.
func (u *Uploader) clearDirectory(ctx context.Context, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("look for data of an earlier repository: %w", err)
	}
	defer root.Close()
	return uploader.Remains{
		List:       func(context.Context) ([]string, error) { return remains(root.FS()) },
		Remove:     func(_ context.Context, name string) error { return root.Remove(name) },
		Unfinished: firstFiles,
		Quiet:      u.options.CreationQuiet,
		Removing: func(names []string) {
			u.options.Logger.Warn("The creation of the repository was interrupted; removing what it has left", "repository", dir, "files", names)
		},
	}.Clear(ctx)
}

// remains lists the files of a repository without a configuration, uploader.MaxRemains of them at most.
func remains(dir fs.FS) ([]string, error) {
	var names []string
	for _, part := range repositoryParts {
		part = strings.TrimSuffix(part, "/")
		err := fs.WalkDir(dir, part, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case name == part && errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil || entry.IsDir():
				return err
			}
			if names = append(names, name); len(names) >= uploader.MaxRemains {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(names) >= uploader.MaxRemains {
			break
		}
	}
	slices.Sort(names)
	return names, nil
}

// storageOf is the bucket that a restic address leads to, nil where it leads to none (restic's manual, "Preparing a new
// repository").
func storageOf(repo uploader.Repository) *uploader.Storage {
	scheme, rest, _ := strings.Cut(repo.URL, ":")
	s := &uploader.Storage{}
	dir := ""
	switch scheme {
	case "s3":
		s.Type = uploader.StorageS3
		s.Region = cmp.Or(repo.Env["AWS_DEFAULT_REGION"], repo.Env["AWS_REGION"]).Reveal()
		if !strings.HasPrefix(rest, "http") {
			rest = "https://" + strings.TrimPrefix(rest, "//")
		}
		address, err := url.Parse(rest)
		if err != nil {
			return nil
		}
		s.Endpoint, s.DisableTLS = address.Host, address.Scheme == "http"
		s.Bucket, dir, _ = strings.Cut(strings.TrimPrefix(address.Path, "/"), "/")
	case "azure", "gs":
		s.Type = map[string]uploader.StorageType{"azure": uploader.StorageAzure, "gs": uploader.StorageGCS}[scheme]
		s.Bucket, dir, _ = strings.Cut(rest, ":")
	}
	if s.Bucket == "" {
		return nil
	}
	if dir = strings.TrimPrefix(path.Clean("/"+dir), "/"); dir != "" {
		s.Prefix = dir + "/"
	}
	return s
}
