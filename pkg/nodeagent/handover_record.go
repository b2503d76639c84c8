package nodeagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// handOverRecord is what the agent knows of a volume that it has handed over to a pod's init container, or cannot. kubelet
// runs init containers again after a start of the node, when volume and cluster may have forgotten it.
type handOverRecord struct {
	Volume           string     `json:"volume"` // name in the pod
	Restore          types.UID  `json:"restore"`
	PodVolumeRestore types.UID  `json:"podVolumeRestore"`
	Dir              volume.Dir `json:"dir"`
	Boot             string     `json:"boot"`              // of the node, in which the volume was restored
	Failure          string     `json:"failure,omitempty"` // why the volume is not complete; empty: it is
	Marked           bool       `json:"marked"`            // the marker may lie in the volume
	Used             bool       `json:"used"`              // the init container has ended well since: the pod has begun to use the volume
}

// lost reports whether the volume, which was in memory, was lost when the node was started again.
func (rec handOverRecord) lost(dir *os.File) bool {
	var stat unix.Statfs_t
	inMemory := unix.Fstatfs(int(dir.Fd()), &stat) == nil && (stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC)
	return inMemory && rec.Boot != bootID()
}

// recordsDir is where the records of a pod lie, in kubelet's directory of the pod: each plugin of kubelet's may keep its own
// things there, kubelet removes them with the pod, and no container sees them.
const recordsDir = "plugins/plimsoll.io~node-agent"

// handOverRecords keeps the records of one node agent; those of several Velero namespaces may serve a pod.
type handOverRecords struct {
	pods      string // kubelet's pods directory
	namespace string // the agent's
}

// bootID names the node's run since it was started last, empty if the kernel does not tell.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// file returns where a record lies below the pods directory. Names of namespaces and volumes have no underscore.
func (r handOverRecords) file(pod types.UID, rec handOverRecord) string {
	return path.Join(string(pod), recordsDir, r.namespace+"_"+rec.Volume+"_"+string(rec.Restore))
}

// save stores a record so that it survives a loss of power.
func (r handOverRecords) save(pod types.UID, rec handOverRecord) error {
	if err := r.write(pod, rec); err != nil {
		return fmt.Errorf("remember the hand-over of volume %q in kubelet's directory of the pod: %w", rec.Volume, err)
	}
	return nil
}

func (r handOverRecords) write(pod types.UID, rec handOverRecord) error {
	if err := errors.Join(checkMarkerName(pod), checkMarkerName(rec.Restore)); err != nil {
		return err
	}
	content, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(r.pods)
	if err != nil {
		return err
	}
	defer root.Close()
	dir := path.Join(string(pod), recordsDir)
	for _, d := range []string{path.Dir(dir), dir} { // kubelet makes the pod's own, and shall not find it after it has removed it
		if err := root.Mkdir(d, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	file := r.file(pod, rec)
	if err := writeDurably(root, file+".draft", content); err != nil {
		return err
	}
	if err := root.Rename(file+".draft", file); err != nil {
		return err
	}
	for _, d := range []string{dir, path.Dir(dir), string(pod)} {
		if err := syncDir(root, d); err != nil {
			return err
		}
	}
	return nil
}

func writeDurably(root *os.Root, name string, content []byte) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove forgets a record. There may be none.
func (r handOverRecords) remove(pod types.UID, rec handOverRecord) error {
	root, err := os.OpenRoot(r.pods)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := removeFile(root, r.file(pod, rec)); err != nil {
		return fmt.Errorf("forget the earlier hand-over of volume %q: %w", rec.Volume, err)
	}
	return nil
}

// list returns the records of a pod, by volume.
func (r handOverRecords) list(pod types.UID) ([]handOverRecord, error) {
	if err := checkMarkerName(pod); err != nil {
		return nil, err
	}
	dir := filepath.Join(r.pods, string(pod), recordsDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the volumes that were handed over: %w", err)
	}
	var found []handOverRecord
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), r.namespace+"_") || strings.HasSuffix(e.Name(), ".draft") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read a record of a hand-over: %w", err)
		}
		var rec handOverRecord
		if err := json.Unmarshal(content, &rec); err != nil {
			return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, e.Name()), err)
		}
		found = append(found, rec)
	}
	return found, nil
}

// handedOver returns the record of a PodVolumeRestore whose data is complete in the pod's volume, nil if there is none.
func (r handOverRecords) handedOver(pod types.UID, pvr *velerov1.PodVolumeRestore) (*handOverRecord, error) {
	if pod == "" {
		return nil, nil
	}
	records, err := r.list(pod)
	for i := range records {
		if rec := &records[i]; rec.PodVolumeRestore == pvr.UID && rec.Volume == pvr.Spec.Volume && rec.Failure == "" {
			return rec, nil
		}
	}
	return nil, err
}
