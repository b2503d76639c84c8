package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The files with which the agent tells a pod's init container how the restore of a volume went. The done file is
// Velero's protocol (contracts/velero-node-agent.md 4.4); the failed file is ours, Velero's own helper ignores it.
const (
	handOverDir  = ".velero"
	failedSuffix = ".failed"
)

// ErrRestoreFailed comes from WaitForRestore when the agent could not restore one of the volumes.
var ErrRestoreFailed = errors.New("restore of a volume failed")

// restoreUID names the done file: the UID of the Restore that owns the PodVolumeRestore.
func restoreUID(pvr *velerov1.PodVolumeRestore) types.UID {
	for _, owner := range pvr.OwnerReferences {
		if owner.Controller != nil && *owner.Controller {
			return owner.UID
		}
	}
	if len(pvr.OwnerReferences) > 0 {
		return pvr.OwnerReferences[0].UID
	}
	return pvr.UID
}

// handOver tells the init container that the volume is complete.
func handOver(dir *os.File, uid types.UID) error { return leaveNote(dir, string(uid), "") }

// handOverFailure tells our own init container that the volume will not be complete.
func handOverFailure(dir *os.File, uid types.UID, message string) error {
	return leaveNote(dir, string(uid)+failedSuffix, message)
}

// handedOver says whether the volume has its done file: an earlier agent has restored it, and did not live to say so on
// the object. The pod may be using the files already.
func handedOver(dir *os.File, uid types.UID) bool {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return false
	}
	defer root.Close()
	info, err := root.Lstat(filepath.Join(handOverDir, filepath.Base(string(uid))))
	return err == nil && info.Mode().IsRegular()
}

// leaveNote writes a file into the volume's hand-over directory, which may hold anything that the backup held: os.Root
// keeps links in it from leading anywhere else.
func leaveNote(dir *os.File, name, content string) error {
	if name == "" || name != filepath.Base(name) || name == ".." {
		return fmt.Errorf("restore UID %q is not a file name", name)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return fmt.Errorf("open volume: %w", err)
	}
	defer root.Close()
	if err := root.RemoveAll(handOverDir); err != nil {
		return fmt.Errorf("remove what is left of an earlier restore: %w", err)
	}
	if err := root.Mkdir(handOverDir, 0o755); err != nil {
		return err
	}
	if err := root.Chmod(handOverDir, 0o755); err != nil { // whatever the umask: the init container is not root
		return err
	}
	// Renamed, so that nobody reads half of it.
	draft := filepath.Join(handOverDir, name+".draft")
	if err := root.WriteFile(draft, []byte(content), 0o644); err != nil {
		return err
	}
	return root.Rename(draft, filepath.Join(handOverDir, name))
}

// WaitForRestore is what the init container restore-wait does: it waits until every volume below root, /restores in a
// pod, has the done file of the restore. The error wraps ErrRestoreFailed when the agent says that a volume failed; a Velero
// helper would wait for ever. The done files stay, other than with Velero's helper: kubelet runs init containers again after
// a start of the node, when nobody would make new ones. It looks once a second: the done file comes through a mount of its
// own, and not every file system tells inotify of that.
func WaitForRestore(ctx context.Context, root string, uid types.UID, log func(message string)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last string
	for {
		missing, err := pendingVolumes(root, string(uid))
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		if now := strings.Join(missing, ", "); now != last {
			log("waiting for the restore of: " + now)
			last = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the restore of %s: %w", last, context.Cause(ctx))
		}
	}
}

// pendingVolumes returns the volumes that have no done file yet.
func pendingVolumes(root, uid string) ([]string, error) {
	volumes, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list the restored volumes: %w", err)
	}
	var missing []string
	for _, v := range volumes {
		if !v.IsDir() {
			continue
		}
		note := filepath.Join(root, v.Name(), handOverDir, uid)
		if message, err := readNote(note + failedSuffix); err == nil {
			return nil, fmt.Errorf("volume %s: %w: %s", v.Name(), ErrRestoreFailed, message)
		}
		if _, err := os.Lstat(note); err != nil {
			missing = append(missing, v.Name())
		}
	}
	return missing, nil
}

func readNote(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	return strings.TrimSpace(string(b)), err
}

// RemoveNotes removes the hand-over directories below root, for a pod whose init container does not have to run again. The
// caller may lack the right to: the data is complete anyway.
func RemoveNotes(root string) error {
	volumes, err := os.ReadDir(root)
	for _, v := range volumes {
		if v.IsDir() {
			err = errors.Join(err, os.RemoveAll(filepath.Join(root, v.Name(), handOverDir)))
		}
	}
	if err != nil {
		return fmt.Errorf("remove the hand-over directories: %w", err)
	}
	return nil
}
