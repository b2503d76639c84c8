package kopiaworker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// clearOther makes room for a repository of another program (uploader.Remains).
func (j *job) clearOther(ctx context.Context) error {
	info, err := j.storage()
	if err != nil {
		return err
	}
	st, err := blob.NewStorage(ctx, info, false)
	if err != nil {
		return err
	}
	return errors.Join(j.clear(ctx, st, j.Parts, j.Unfinished), st.Close(ctx))
}

// clear removes what an unfinished creation has left in a storage, see uploader.Remains.
func (j *job) clear(ctx context.Context, st blob.Storage, parts []string, unfinished string) error {
	return uploader.Remains{
		List:       func(ctx context.Context) ([]string, error) { return remains(ctx, st, parts) },
		Remove:     func(ctx context.Context, name string) error { return st.DeleteBlob(ctx, blob.ID(name)) },
		Unfinished: unfinished,
		Quiet:      j.Quiet,
		Removing: func(names []string) {
			j.note(slog.LevelWarn, "the creation of the repository was interrupted: removing "+strings.Join(names, ", "))
		},
	}.Clear(ctx)
}

// errEnough ends a listing.
var errEnough = errors.New("enough")

// remains lists the objects whose names begin with one of the parts, sorted, uploader.MaxRemains of them at most.
func remains(ctx context.Context, st blob.Storage, parts []string) ([]string, error) {
	var names []string
	err := listObjects(ctx, st, parts, func(m blob.Metadata) error {
		names = append(names, string(m.BlobID))
		if len(names) >= uploader.MaxRemains {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// listObjects hands the objects whose names begin with one of the parts to found, until that returns an error. kopia's S3 storage names a directory with a slash in
// place of what is in it; consoles make an object of such a name, or of none, in the place of an empty directory.
func listObjects(ctx context.Context, st blob.Storage, parts []string, found func(blob.Metadata) error) error {
	for len(parts) > 0 {
		prefix := blob.ID(parts[0])
		parts = parts[1:]
		err := st.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
			name := string(m.BlobID)
			switch {
			case strings.HasSuffix(name, "/") && m.BlobID != prefix:
				parts = append(parts, name)
			case name != "" && !strings.HasSuffix(name, "/"):
				return found(m)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// firstBlob is what kopia writes first when it creates a repository, and nothing else follows before the repository can be
// opened (kopia 0.23, format.Initialize). It holds how long objects are locked.
const firstBlob = format.KopiaBlobCfgBlobID
