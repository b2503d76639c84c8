package restic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// listedSnapshot is what restic snapshots prints of one.
type listedSnapshot struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Tags    []string  `json:"tags"`
	Summary *struct {
		TotalBytesProcessed uint64 `json:"total_bytes_processed"`
	} `json:"summary"` // of snapshots that restic 0.17 or later has made
}

// recorded returns the size that the repository or the caller has recorded.
func (m *measurement) recorded(s *listedSnapshot) (bytes int64, known bool) {
	switch {
	case s.Summary != nil:
		return count(s.Summary.TotalBytesProcessed), true
	case m.request.Size != nil:
		return m.request.Size(s.ID)
	default:
		return 0, false
	}
}

// snapshots lists the snapshots, in the order of their times. restic leaves out those that it cannot read, and ends without an error: so
// their files are listed, too.
func (m *measurement) snapshots(ctx context.Context) ([]listedSnapshot, error) {
	files, err := m.snapshotFiles(ctx)
	if err != nil {
		return nil, err
	}
	var printed bytes.Buffer
	err = m.Uploader.run(ctx, m.workspace, invocation{command: "snapshots", args: append([]string{jsonFlag}, lockArgs(m.repository)...), output: &printed})
	if err != nil {
		return nil, err
	}
	var listed []listedSnapshot
	if err := json.Unmarshal(printed.Bytes(), &listed); err != nil {
		return nil, fmt.Errorf("read what restic snapshots prints: %w", err)
	}
	for i := range listed {
		delete(files, listed[i].ID)
	}
	if len(files) > 0 {
		left, err := m.snapshotFiles(ctx)
		if err != nil {
			return nil, err
		}
		for id := range files {
			if left[id] { // else it was removed meanwhile
				return nil, fmt.Errorf("%s cannot be read, such as %s: 'kubectl plimsoll repository check' shows whether they are damaged", text.Count(len(files), "snapshot", "snapshots"), id)
			}
		}
	}
	slices.SortStableFunc(listed, func(a, b listedSnapshot) int { return a.Time.Compare(b.Time) })
	return listed, nil
}

// snapshotFiles returns the ids of all snapshots that the storage lists.
func (m *measurement) snapshotFiles(ctx context.Context) (map[string]bool, error) {
	files := map[string]bool{}
	if err := m.listIDs(ctx, m.workspace, "snapshots", func(id string) { files[id] = true }); err != nil {
		return nil, err
	}
	return files, nil
}

// directorySize counts the files of a repository in the file system. What vanishes meanwhile does not count.
func directorySize(ctx context.Context, dir string) (uploader.StorageSize, error) {
	var size uploader.StorageSize
	root, err := os.OpenRoot(dir)
	if err != nil {
		return size, fmt.Errorf("list the storage: %w", err)
	}
	defer root.Close()
	for _, part := range repositoryParts {
		err := fs.WalkDir(root.FS(), strings.TrimSuffix(part, "/"), func(name string, entry fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil && entry.Type().IsRegular() {
				var info fs.FileInfo
				if info, err = entry.Info(); err == nil {
					size.Add(info.Size(), strings.HasPrefix(name, packParts))
				}
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			return uploader.StorageSize{}, fmt.Errorf("list the storage: %w", err)
		}
	}
	return size, nil
}
