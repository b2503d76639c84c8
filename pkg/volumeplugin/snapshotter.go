package volumeplugin

import (
	"sync"
	"time"

	volumesnapshotter "github.com/vmware-tanzu/velero/pkg/plugin/velero/volumesnapshotter/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// The tags that Velero gives to a snapshot.
const (
	tagBackup = "velero.io/backup"
	tagVolume = "velero.io/pv"
)

// WrapOptions are what a Snapshotter can know besides what passes through it.
type WrapOptions struct {
	// Backups is asked about snapshots from the moment in which CreateSnapshot has returned their id. Without it a backup
	// counts as completed then.
	Backups Poller
	// Restores is asked about snapshots from the moment in which CreateVolumeFromSnapshot is called. Without it a restore
	// counts as completed when that returns.
	Restores Poller
	// RestoresTo is asked in place of Restores, if it is set, and told the new volume.
	RestoresTo RestorePoller
	// Wait is how long CreateSnapshot may wait until Backups says that the snapshot is complete; if it says that the snapshot
	// has failed, CreateSnapshot returns that as an error. Velero ends the processes of its plugins soon after a backup; what
	// is under way then is followed again only when the next one calls Init. 0: it does not wait.
	Wait time.Duration
}

// restores returns what asks about a restore, nil without a Poller.
func (o WrapOptions) restores() asker {
	if o.RestoresTo != nil {
		return o.RestoresTo.asker()
	}
	return o.Restores.asker()
}

// Snapshotter reports the backups and restores of another VolumeSnapshotter. It returns what that returns.
type Snapshotter struct {
	volumesnapshotter.VolumeSnapshotter

	recorder *Recorder
	options  WrapOptions

	mu       sync.Mutex
	restored map[string]*Operation // by volume id, until SetVolumeID tells the PersistentVolume
}

var _ volumesnapshotter.VolumeSnapshotter = (*Snapshotter)(nil)

// Wrap returns a VolumeSnapshotter that does what inner does, and reports it.
func Wrap(inner volumesnapshotter.VolumeSnapshotter, r *Recorder, o WrapOptions) *Snapshotter {
	return &Snapshotter{VolumeSnapshotter: inner, recorder: r, options: o, restored: map[string]*Operation{}}
}

// Init initialises the plugin, and goes on with what its earlier processes have left in progress.
func (s *Snapshotter) Init(config map[string]string) error {
	if err := s.VolumeSnapshotter.Init(config); err != nil {
		return err
	}
	s.recorder.ResumeWith(s.options)
	return nil
}

// CreateSnapshot makes a snapshot and reports it. A snapshot without Velero's tags is made and not reported.
func (s *Snapshotter) CreateSnapshot(volumeID, volumeAZ string, tags map[string]string) (string, error) {
	if tags[tagBackup] == "" || tags[tagVolume] == "" {
		return s.VolumeSnapshotter.CreateSnapshot(volumeID, volumeAZ, tags)
	}
	op := s.recorder.BeginBackup(BackupRequest{
		Backup: tags[tagBackup], Volume: tags[tagVolume], PluginSpecific: specific("volumeID", volumeID, "volumeAZ", volumeAZ),
	})
	id, err := s.VolumeSnapshotter.CreateSnapshot(volumeID, volumeAZ, tags)
	if err != nil {
		op.Fail(err.Error())
		return id, err
	}
	op.SetID(id)
	ask := s.options.Backups.asker()
	if ask == nil {
		op.Complete()
		return id, nil
	}
	ended := s.recorder.follow(op, ask(op, id), nil)
	if s.options.Wait > 0 {
		timer := time.NewTimer(s.options.Wait)
		defer timer.Stop()
		select {
		case <-ended:
			return id, op.failure()
		case <-timer.C:
		}
	}
	return id, nil
}

// CreateVolumeFromSnapshot makes a volume of a snapshot and reports it.
func (s *Snapshotter) CreateVolumeFromSnapshot(snapshotID, volumeType, volumeAZ string, iops *int64) (string, error) {
	op := s.recorder.BeginRestore(RestoreRequest{
		SnapshotID: snapshotID, PluginSpecific: specific("volumeType", volumeType, "volumeAZ", volumeAZ),
	})
	returned := make(chan struct{})
	ask := s.options.restores()
	if ask != nil {
		s.recorder.follow(op, ask(op, snapshotID), returned)
	}
	id, err := s.VolumeSnapshotter.CreateVolumeFromSnapshot(snapshotID, volumeType, volumeAZ, iops)
	if err != nil {
		op.Fail(err.Error())
		close(returned)
		return id, err
	}
	op.SetID(id)
	if ask == nil {
		op.Complete()
	} else {
		s.recorder.askNow(op, ask(op, snapshotID))
	}
	close(returned)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored[id] = op
	return id, nil
}

// SetVolumeID puts the volume into the PersistentVolume, and the name of that into the report of the volume's restore: Velero
// tells it here only, after CreateVolumeFromSnapshot (Velero 1.18.3, pkg/restore/pv_restorer.go).
func (s *Snapshotter) SetVolumeID(pv runtime.Unstructured, volumeID string) (runtime.Unstructured, error) {
	changed, err := s.VolumeSnapshotter.SetVolumeID(pv, volumeID)
	s.mu.Lock()
	op := s.restored[volumeID]
	delete(s.restored, volumeID)
	s.mu.Unlock()
	if err != nil || op == nil || changed == nil {
		return changed, err
	}
	if name, _, _ := unstructured.NestedString(changed.UnstructuredContent(), "metadata", "name"); name != "" {
		op.SetVolume(name)
	}
	return changed, nil
}

// specific makes a map of keys and values, without the values that are empty.
func specific(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			m[pairs[i]] = pairs[i+1]
		}
	}
	return m
}
