package donefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Record is what the agent knows of the marker of one volume. After a restart of the node kubelet runs the init container
// again, when the volume may have lost its marker and the cluster the PodVolumeRestore.
type Record struct {
	Volume           string     `json:"volume"` // name in the pod
	Restore          types.UID  `json:"restore"`
	PodVolumeRestore types.UID  `json:"podVolumeRestore"`
	Dir              volume.Dir `json:"dir"`
	Boot             string     `json:"boot"`                // boot ID of the node when the volume was restored
	Failure          string     `json:"failure,omitempty"`   // why the restore failed; empty: the volume is complete
	Paths            bool       `json:"paths,omitempty"`     // single paths were restored, into a pod that runs: there is no marker
	Unflushed        bool       `json:"unflushed,omitempty"` // the paths are in their places, and it is not known whether the disk has them
	Errors           int64      `json:"errors,omitempty"`    // files that could not be written, which the user has accepted
	Unchecked        bool       `json:"unchecked,omitempty"` // it is not known whether all bytes are there
	Refused          bool       `json:"refused,omitempty"`   // the volume did not take all attributes
	Message          string     `json:"message,omitempty"`   // what the end of the restore has to say
	Marked           bool       `json:"marked"`              // the marker may lie in the volume
	Reserved         bool       `json:"reserved,omitempty"`  // the room of the marker may lie in the volume
	Used             bool       `json:"used"`                // the init container has ended with 0 since: the pod uses the volume

	// Overwritten means that another restore of the same Restore into the same claim has written into the directory since, and that none has completed
	// it after that.
	Overwritten bool `json:"overwritten,omitempty"`
	Inherited   bool `json:"inherited,omitempty"` // Failure is that of another restore into the same directory
}

// Complete reports whether the directory is complete.
func (rec Record) Complete() bool { return rec.Failure == "" && !rec.Overwritten }

// LostWithNode reports whether the volume is in memory and was lost when the node restarted.
func (rec Record) LostWithNode(dir *os.File) bool {
	var stat unix.Statfs_t
	inMemory := unix.Fstatfs(int(dir.Fd()), &stat) == nil && (stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC)
	return inMemory && rec.Boot != BootID()
}

// recordsDir is the directory of a pod's records, in kubelet's directory of the pod: kubelet gives each of its plugins such a
// directory and removes it with the pod, and no container sees it.
const recordsDir = "plugins/plimsoll.io~node-agent"

// Records stores the Records of one node agent. Agents of several Velero namespaces may have records of one pod.
type Records struct {
	PodsDir   string // kubelet's pods directory, as the agent sees it
	Namespace string // the agent's
}

// BootID returns the kernel's ID of the current boot, or an empty string if it cannot be read.
func BootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// file returns the path of a record below PodsDir. Names of namespaces and volumes have no underscore.
func (r Records) file(pod types.UID, rec Record) string {
	return path.Join(string(pod), recordsDir, r.Namespace+"_"+rec.Volume+"_"+string(rec.Restore))
}

// Save stores rec so that it survives a power failure.
func (r Records) Save(pod types.UID, rec Record) error {
	if err := r.write(pod, rec); err != nil {
		return fmt.Errorf("save the done-file record of volume %q in kubelet's directory of the pod: %w", rec.Volume, err)
	}
	return nil
}

func (r Records) write(pod types.UID, rec Record) error {
	if err := errors.Join(checkMarkerName(pod), checkMarkerName(rec.Restore)); err != nil {
		return err
	}
	content, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(r.PodsDir)
	if err != nil {
		return err
	}
	defer root.Close()
	dir := path.Join(string(pod), recordsDir)
	for _, d := range []string{path.Dir(dir), dir} { // not the pod's own: kubelet may just have removed that
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

// Remove removes a record. It is no error if there is none.
func (r Records) Remove(pod types.UID, rec Record) error {
	root, err := os.OpenRoot(r.PodsDir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := removeFile(root, r.file(pod, rec)); err != nil {
		return fmt.Errorf("remove the done-file record of volume %q: %w", rec.Volume, err)
	}
	return nil
}

// List returns the records of a pod, ordered by volume.
func (r Records) List(pod types.UID) ([]Record, error) {
	if err := checkMarkerName(pod); err != nil {
		return nil, err
	}
	dir := filepath.Join(r.PodsDir, string(pod), recordsDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list done-file records: %w", err)
	}
	var found []Record
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), r.Namespace+"_") || strings.HasSuffix(e.Name(), ".draft") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read done-file record: %w", err)
		}
		var rec Record
		if err := json.Unmarshal(content, &rec); err != nil {
			return nil, fmt.Errorf("decode done-file record %s: %w", filepath.Join(dir, e.Name()), err)
		}
		found = append(found, rec)
	}
	return found, nil
}

// Changed reports whether a record is another one now than rec, or is gone.
func (r Records) Changed(pod types.UID, rec Record) (bool, error) {
	records, err := r.List(pod)
	return err == nil && !slices.Contains(records, rec), err
}

// Complete returns the record that a PodVolumeRestore has completed its volume, nil if there is none.
func (r Records) Complete(pod types.UID, pvr *velerov1.PodVolumeRestore) (*Record, error) {
	if pod == "" {
		return nil, nil
	}
	records, err := r.List(pod)
	for i := range records {
		if rec := &records[i]; rec.PodVolumeRestore == pvr.UID && rec.Volume == pvr.Spec.Volume && rec.Complete() {
			return rec, nil
		}
	}
	return nil, err
}
