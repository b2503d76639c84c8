package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	volumesnapshotter "github.com/vmware-tanzu/velero/pkg/plugin/velero/volumesnapshotter/v1"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

// burst is how many bytes are copied in one go.
const burst = 64 << 10

// directories is a VolumeSnapshotter that knows nothing of progress but how to ask for it.
//
// Each copy has a file beside it that says from where to where; it is removed when the copy is complete. So another process
// can go on.
type directories struct {
	volumes, snapshots string
	limiter            *rate.Limiter
	start              func(c *copying) // in a goroutine that wait waits for
	group              sync.WaitGroup

	mu     sync.Mutex
	copies map[string]*copying // by the name of their target
}

var _ volumesnapshotter.VolumeSnapshotter = (*directories)(nil)

// newDirectories returns a plugin that makes one copy after the other, limit bytes a second, until ctx ends.
func newDirectories(ctx context.Context, volumes, snapshots string, limit int) *directories {
	d := &directories{volumes: volumes, snapshots: snapshots, limiter: rate.NewLimiter(rate.Inf, burst), copies: map[string]*copying{}}
	if limit > 0 {
		d.limiter.SetLimit(rate.Limit(limit))
	}
	turn := make(chan struct{}, 1)
	d.start = func(c *copying) { d.group.Go(func() { c.run(ctx, d.limiter, turn) }) }
	return d
}

// wait waits for all copies.
func (d *directories) wait() { d.group.Wait() }

// Init goes on with the copies that an earlier process has left.
func (d *directories) Init(map[string]string) error {
	notes, err := filepath.Glob(filepath.Join(d.snapshots, "*"+noteSuffix))
	if err != nil {
		return err
	}
	for _, name := range notes {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read what an earlier process has left: %w", err)
		}
		var n note
		if err := json.Unmarshal(text, &n); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		d.begin(newCopying(n, name))
	}
	return nil
}

func (d *directories) begin(c *copying) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := filepath.Base(c.To)
	if d.copies[name] == nil {
		d.copies[name] = c
		d.start(c)
	}
}

// CreateSnapshot begins a copy and returns, as the storage of a cloud does.
func (d *directories) CreateSnapshot(volumeID, _ string, _ map[string]string) (string, error) {
	if !filepath.IsLocal(volumeID) {
		return "", fmt.Errorf("%q is no volume", volumeID)
	}
	id := volumeID + "-" + strings.ToLower(rand.Text()[:8])
	_, err := d.copy(filepath.Join(d.volumes, volumeID), filepath.Join(d.snapshots, id))
	return id, err
}

// CreateVolumeFromSnapshot copies a snapshot to a new directory. It returns when the copy is complete: Velero ends the
// process after a restore, and pods would start with what is there by then.
func (d *directories) CreateVolumeFromSnapshot(snapshotID, _, _ string, _ *int64) (string, error) {
	if !filepath.IsLocal(snapshotID) {
		return "", fmt.Errorf("%q is no snapshot", snapshotID)
	}
	id := snapshotID + "-restored-" + strings.ToLower(rand.Text()[:8])
	c, err := d.copy(filepath.Join(d.snapshots, snapshotID), filepath.Join(d.volumes, id))
	if err != nil {
		return "", err
	}
	<-c.ended
	switch _, _, err := c.progress(); {
	case err == nil:
		return "", fmt.Errorf("copy snapshot %s to volume %s: interrupted", snapshotID, id)
	case !errors.Is(err, volumeplugin.ErrCompleted):
		return "", fmt.Errorf("copy snapshot %s to volume %s: %w", snapshotID, id, err)
	}
	return id, nil
}

func (d *directories) copy(from, to string) (*copying, error) {
	if err := os.MkdirAll(d.snapshots, 0o700); err != nil {
		return nil, err
	}
	total, err := size(from)
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", from, err)
	}
	c := newCopying(note{From: from, To: to, Total: total}, filepath.Join(d.snapshots, filepath.Base(to)+noteSuffix))
	text, err := json.Marshal(c.note)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.path, text, 0o600); err != nil {
		return nil, err
	}
	d.begin(c)
	return c, nil
}

// backupProgress is what a plugin has to write to be followed: how far is the snapshot?
func (d *directories) backupProgress(_ context.Context, snapshotID string) (done, total int64, err error) {
	return d.progressOf(d.snapshots, snapshotID)
}

// restoreProgress is the same for a volume. A snapshot may be restored more than once: the volume tells which of its copies is meant, and while that
// has no id yet it is the one that is not complete.
func (d *directories) restoreProgress(_ context.Context, snapshotID, volumeID string) (done, total int64, err error) {
	if volumeID != "" {
		return d.progressOf(d.volumes, volumeID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.copies {
		if filepath.Base(c.From) == snapshotID && !c.hasEnded() {
			return c.progress()
		}
	}
	return 0, 0, fmt.Errorf("no copy of snapshot %s is under way", snapshotID)
}

// progressOf returns how far the copy to a directory is, in bytes.
func (d *directories) progressOf(parent, name string) (done, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.copies[name]; c != nil {
		return c.progress()
	}
	// No process has left it unfinished, see Init.
	if _, err := os.Stat(filepath.Join(parent, name)); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", volumeplugin.ErrFailed, err)
	}
	return 0, 0, volumeplugin.ErrCompleted
}

// DeleteSnapshot removes the copy.
func (d *directories) DeleteSnapshot(snapshotID string) error {
	if !filepath.IsLocal(snapshotID) {
		return fmt.Errorf("%q is no snapshot", snapshotID)
	}
	dir := filepath.Join(d.snapshots, snapshotID)
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+noteSuffix))
}

// GetVolumeInfo returns nothing: directories have no type.
func (d *directories) GetVolumeInfo(_, _ string) (string, *int64, error) { return "", nil, nil }

// GetVolumeID returns the name of the directory of a local volume.
func (d *directories) GetVolumeID(pv runtime.Unstructured) (string, error) {
	var volume corev1.PersistentVolume
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pv.UnstructuredContent(), &volume); err != nil {
		return "", err
	}
	if volume.Spec.Local == nil {
		return "", nil // not ours
	}
	return filepath.Base(volume.Spec.Local.Path), nil
}

// SetVolumeID puts the name of another directory into a local volume.
func (d *directories) SetVolumeID(pv runtime.Unstructured, volumeID string) (runtime.Unstructured, error) {
	content := runtime.DeepCopyJSON(pv.UnstructuredContent())
	if err := unstructured.SetNestedField(content, filepath.Join(d.volumes, volumeID), "spec", "local", "path"); err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: content}, nil
}
