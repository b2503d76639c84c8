package restic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.UsageReader = (*Uploader)(nil)

// Usage runs restic stats without a lock. Its pieces are restic's blobs that the snapshots need, directories included.
//
// The numbers come from several runs of restic, and backups and forget may change the repository between them. They count if they are
// of one set of snapshots, and are asked for again otherwise. The error is uploader.ErrUnconfirmed if that never comes about.
func (u *Uploader) Usage(ctx context.Context, req uploader.UsageRequest, p progress.Sink) (uploader.UsageResult, error) {
	req.Repository.ReadOnly = true
	var result uploader.UsageResult
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		m := &measurement{Uploader: u, workspace: w, request: req, sink: orDiscard(p), measured: map[string]int64{}}
		var err error
		if result, err = m.run(ctx); err != nil {
			return err
		}
		result.Locks, result.LockError = u.locks(ctx, w)
		return ctx.Err()
	})
	if err != nil {
		return uploader.UsageResult{}, fmt.Errorf("measure: %w", err)
	}
	return result, nil
}

// measurement measures one repository.
type measurement struct {
	*Uploader
	*workspace

	request  uploader.UsageRequest
	sink     progress.Sink
	measured map[string]int64 // sizes of snapshots that have no record of it
}

// errChanged says that the repository was changed between two runs.
var errChanged = errors.New("the repository was changed meanwhile")

func (m *measurement) run(ctx context.Context) (uploader.UsageResult, error) {
	var result uploader.UsageResult
	var err error
	for range maxLooks {
		if result, err = m.once(ctx); !errors.Is(err, errChanged) {
			return result, err
		}
	}
	return uploader.UsageResult{}, fmt.Errorf("%w: in %d attempts: %w", uploader.ErrUnconfirmed, maxLooks, err)
}

func (m *measurement) once(ctx context.Context) (uploader.UsageResult, error) {
	before, err := m.snapshots(ctx)
	if err != nil {
		return uploader.UsageResult{}, err
	}
	raw, err := m.stats(ctx, len(before), "raw-data")
	if err != nil {
		return uploader.UsageResult{}, err
	}
	after, err := m.snapshots(ctx)
	if err != nil {
		return uploader.UsageResult{}, err
	}
	counted := before
	switch {
	case !isPart(before, after):
		return uploader.UsageResult{}, fmt.Errorf("%w: a snapshot was removed", errChanged)
	case raw.SnapshotsCount == len(after):
		counted = after
	case raw.SnapshotsCount != len(before):
		return uploader.UsageResult{}, fmt.Errorf("%w: restic stats counted %s, and there were %d before it and %d after it", errChanged,
			text.Count(raw.SnapshotsCount, "snapshot", "snapshots"), len(before), len(after))
	}
	result := uploader.UsageResult{Pieces: count(raw.TotalBlobCount), DataBytes: count(raw.TotalSize)}
	if result.Snapshots, err = m.sized(ctx, counted); err != nil {
		return uploader.UsageResult{}, err
	}
	if err := m.addRawBytes(ctx, &result, raw); err != nil {
		return uploader.UsageResult{}, err
	}
	return result, m.addStorage(ctx, &result)
}

// isPart reports whether after has all snapshots of before.
func isPart(before, after []listedSnapshot) bool {
	has := map[string]bool{}
	for i := range after {
		has[after[i].ID] = true
	}
	return !slices.ContainsFunc(before, func(s listedSnapshot) bool { return !has[s.ID] })
}

// resticStats is what restic stats prints.
type resticStats struct {
	TotalSize         uint64 `json:"total_size"`
	TotalUncompressed uint64 `json:"total_uncompressed_size"` // since 0.16, of repositories of version 2
	TotalBlobCount    uint64 `json:"total_blob_count"`
	SnapshotsCount    int    `json:"snapshots_count"`
}

// stats runs restic stats over the named snapshots, or all. It says nothing until it has read all their directories.
func (m *measurement) stats(ctx context.Context, n int, mode string, ids ...string) (resticStats, error) {
	m.sink.Report(progress.Reading{Stage: progress.StageWaiting, Message: "for restic stats, which reads the directories of " + text.Count(n, "snapshot", "snapshots") + " and does not say how far it is"})
	var last []byte  // restic 0.19 prints text before the JSON
	var first string // what restic 0.16 says, before a stack trace
	args := append(append([]string{jsonFlag, "--mode", mode}, lockArgs(m.repository)...), ids...)
	err := m.Uploader.run(ctx, m.workspace, invocation{command: "stats", args: args, complete: true, stdout: func(line []byte) {
		if len(line) > 0 {
			last = append(last[:0], line...)
		}
	}, said: func(line string) {
		if first == "" && !strings.Contains(line, "retrying") {
			first = printable(m.hide(line))
		}
	}})
	var s resticStats
	if err != nil && !strings.Contains(err.Error(), first) {
		err = fmt.Errorf("%s: %w", first, err)
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(last, &s); err != nil {
		return s, fmt.Errorf("read what restic stats prints: %w", err)
	}
	return s, nil
}

// addRawBytes adds the size before compression, which restic says since 0.16. Repositories of version 1, as restic makes them up to 0.13,
// have no compression.
func (m *measurement) addRawBytes(ctx context.Context, result *uploader.UsageResult, raw resticStats) error {
	if raw.TotalUncompressed > 0 || raw.TotalSize == 0 {
		result.RawBytes = new(count(raw.TotalUncompressed))
		return nil
	}
	var config struct {
		Version int `json:"version"`
	}
	if err := m.readObject(ctx, m.workspace, &config, "config"); err != nil {
		return fmt.Errorf("read the repository's configuration: %w", err)
	}
	if config.Version == 1 {
		result.RawBytes = &result.DataBytes
		return nil
	}
	result.NotKnown = append(result.NotKnown, "the size before compression: restic "+m.version.String()+" does not say it, restic 0.16 and later do")
	return nil
}

// addStorage adds what the storage lists.
func (m *measurement) addStorage(ctx context.Context, result *uploader.UsageResult) error {
	size, err := m.storageSize(ctx)
	switch {
	case errors.Is(err, uploader.ErrUnsupported):
		result.NotKnown = append(result.NotKnown, "what the storage holds: "+printable(m.hide(err.Error())))
	case err != nil:
		return err
	default:
		result.Storage = &size
	}
	return nil
}

// packParts is how the names of packs begin.
const packParts = "data/"

func (m *measurement) storageSize(ctx context.Context) (uploader.StorageSize, error) {
	if dir, local := m.repository.Local(); local {
		return directorySize(ctx, dir)
	}
	storage := storageOf(m.repository)
	if storage == nil || m.options.MeasureStorage == nil {
		return uploader.StorageSize{}, fmt.Errorf("list %s: %w", m.repository.Address(), uploader.ErrUnsupported)
	}
	repo := m.repository
	repo.Storage = storage
	return m.options.MeasureStorage(ctx, repo, repositoryParts, packParts)
}

// sized returns the sizes of snapshots. restic records them since 0.17. restic stats measures those that nobody has recorded.
func (m *measurement) sized(ctx context.Context, listed []listedSnapshot) ([]uploader.SnapshotSize, error) {
	sizes := make([]uploader.SnapshotSize, len(listed))
	var unknown []int
	for i := range listed {
		s := &listed[i]
		sizes[i] = uploader.SnapshotSize{ID: s.ID, Time: s.Time}
		if bytes, known := m.recorded(s); known {
			sizes[i].Bytes = &bytes
			continue
		}
		unknown = append(unknown, i)
	}
	for _, i := range unknown {
		bytes, known := m.measured[listed[i].ID]
		if !known {
			s, err := m.stats(ctx, 1, "restore-size", listed[i].ID)
			if err != nil {
				return nil, err
			}
			if s.SnapshotsCount != 1 { // restic ends without an error
				return nil, fmt.Errorf("%w: snapshot %s is not there any more", errChanged, listed[i].ID)
			}
			bytes = count(s.TotalSize)
			m.measured[listed[i].ID] = bytes
		}
		sizes[i].Bytes = &bytes
	}
	return sizes, nil
}
