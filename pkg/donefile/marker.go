// Package donefile tells the init container restore-wait of a pod how the restore of each volume went.
//
// Agent and init container share nothing but the volume, so the agent writes a marker into it: the done file
// .velero/<Restore UID>, which is Velero's protocol (docs/contracts/velero-node-agent.md 4.4), or the failed file
// .velero/<Restore UID>.failed, which is ours and which Velero's own helper ignores. What the agent has to know of a marker after
// a restart, of the node or of itself, is in a Record, in kubelet's directory of the pod.
package donefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// Dir is the directory of the markers in a volume.
const Dir = ".velero"

const (
	failedSuffix = ".failed"
	draftSuffix  = ".draft"
	maxNote      = 4096 // bytes of a failed file
)

// staleMarker matches the names of done files of other Restores, which a backup of a waiting pod's volume holds: Velero's
// helper and older agents left them.
var staleMarker = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.failed)?(\.draft)?$`)

// RestoreUID returns the UID that the markers are named after: that of the Restore that owns the PodVolumeRestore.
func RestoreUID(pvr *velerov1.PodVolumeRestore) types.UID {
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

// Name returns the name of the done file, or of the failed file if there is a failure.
func Name(uid types.UID, failure string) string {
	if failure != "" {
		return string(uid) + failedSuffix
	}
	return string(uid)
}

// doneDraft returns the name of a done file until it is complete.
func doneDraft(uid types.UID) string { return string(uid) + draftSuffix }

// Write writes the done file into a volume or, with a failure, the failed file. It replaces an earlier one of either kind, and uses the room that
// Reserve has taken.
func Write(volume *os.File, uid types.UID, failure string) error {
	if err := checkMarkerName(uid); err != nil {
		return err
	}
	if err := errors.Join(useReserved(volume, uid), makeMarkerDir(volume, doneDraft(uid))); err != nil {
		return err
	}
	dir, err := openMarkerDir(volume)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := Name(uid, failure)
	if err := errors.Join(removeFile(dir, string(uid)), removeFile(dir, string(uid)+failedSuffix)); err != nil {
		return err
	}
	draft := name + draftSuffix // renamed when complete: a reader never sees half of it
	if failure != "" || !isEmptyFile(dir, draft) {
		if err := errors.Join(removeFile(dir, doneDraft(uid)), removeFile(dir, draft), writeDraft(dir, draft, failure)); err != nil {
			return err
		}
	}
	return dir.Rename(draft, name)
}

// writeDraft creates a file. Where a volume has no room for what a failed file says, the file is empty, which says enough.
func writeDraft(dir *os.Root, draft, content string) error {
	f, err := dir.OpenFile(draft, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_ = f.Chmod(0o644) // whatever the umask: the init container is not root. Some file systems have one mode for all files
	_, err = f.WriteString(content)
	if err := errors.Join(err, f.Close()); err != nil && !IsFull(err) {
		return errors.Join(err, removeFile(dir, draft))
	}
	return nil
}

func isEmptyFile(dir *os.Root, name string) bool {
	info, err := dir.Lstat(name)
	return err == nil && info.Mode().IsRegular() && info.Size() == 0
}

// Exists reports whether a volume has a marker.
func Exists(volume *os.File, name string) (bool, error) {
	dir, err := openMarkerDir(volume)
	if err != nil {
		return false, ignoreNoMarkers(err)
	}
	defer dir.Close()
	info, err := dir.Lstat(name)
	return err == nil && info.Mode().IsRegular(), ignoreNoMarkers(err)
}

// Remove removes the markers of a Restore from a volume, with what was reserved for them, and their directory unless it holds something else.
// The volume must be locked.
func Remove(volume *os.File, uid types.UID) error {
	if err := checkMarkerName(uid); err != nil {
		return err
	}
	return errors.Join(removeMarkers(volume, uid), Unreserve(volume, uid))
}

func removeMarkers(volume *os.File, uid types.UID) error {
	dir, err := openMarkerDir(volume)
	if err != nil {
		return ignoreNoMarkers(err)
	}
	defer dir.Close()
	failed := string(uid) + failedSuffix
	for _, name := range []string{string(uid), failed, doneDraft(uid), failed + draftSuffix} {
		if err := removeFile(dir, name); err != nil {
			return err
		}
	}
	err = unix.Unlinkat(int(volume.Fd()), Dir, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return ignoreNoMarkers(pathError("rmdir", volume, err))
}

// openMarkerDir opens the directory of the markers.
func openMarkerDir(volume *os.File) (*os.Root, error) { return openTopDir(volume, Dir) }

// openTopDir opens a directory in a volume's top directory without following links.
func openTopDir(volume *os.File, name string) (*os.Root, error) {
	fd, err := unix.Openat(int(volume.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(volume.Name(), name), Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// ignoreNoMarkers drops the errors for a directory of markers that does not exist, or is something else.
func ignoreNoMarkers(err error) error {
	if errors.Is(err, fs.ErrNotExist) || isNoDir(err) {
		return nil
	}
	return err
}

// isNoDir reports whether an open failed because the name is not a directory: a link gives ENOTDIR with O_DIRECTORY, ELOOP without.
func isNoDir(err error) bool { return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) }

func pathError(op string, volume *os.File, err error) error {
	return &os.PathError{Op: op, Path: filepath.Join(volume.Name(), Dir), Err: err}
}

func removeFile(dir *os.Root, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func checkMarkerName(uid types.UID) error {
	if name := string(uid); name == "" || name == "." || name == ".." || name != filepath.Base(name) {
		return fmt.Errorf("restore UID %q is not a file name", uid)
	}
	return nil
}

// makeMarkerDir creates the directory of the markers, or prepares the one that exists. The restored data may hold anything of
// that name: a link or a file is removed, as in Velero. A directory stays with its content, except for markers of other
// Restores: draft is of this one.
func makeMarkerDir(volume *os.File, draft string) error {
	err := unix.Mkdirat(int(volume.Fd()), Dir, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return pathError("mkdir", volume, err)
	}
	fd, err := unix.Openat(int(volume.Fd()), Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if isNoDir(err) {
		if err := unix.Unlinkat(int(volume.Fd()), Dir, 0); err != nil {
			return pathError("remove", volume, err)
		}
		return makeMarkerDir(volume, draft)
	}
	if err != nil {
		return pathError("open", volume, err)
	}
	dir := os.NewFile(uintptr(fd), filepath.Join(volume.Name(), Dir))
	defer dir.Close()
	others, err := removeStale(dir, draft)
	if err != nil {
		return err
	}
	return admitInitContainer(volume, dir, !others)
}

// stalePasses bounds how often a directory is read for markers while somebody goes on to make some.
const stalePasses = 10

// removeStale removes the markers of other Restores from the directory, and reports whether it holds files besides those and draft. It reads the
// directory again until nothing is left to remove: file systems may leave entries out of a directory that changes.
func removeStale(dir *os.File, draft string) (others bool, err error) {
	for range stalePasses {
		removed := false
		for name, err := range volume.Names(dir) {
			if err == nil && name == draft {
				continue
			}
			stale := false
			if err == nil {
				stale, err = removeIfStale(dir, name)
			}
			if err != nil {
				return others, err
			}
			removed, others = removed || stale, others || !stale
		}
		if !removed {
			break
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return others, err
		}
	}
	return others, nil
}

// removeIfStale removes a marker of another Restore, and reports whether it was one.
func removeIfStale(dir *os.File, name string) (bool, error) {
	if !staleMarker.MatchString(name) {
		return false, nil
	}
	var stat unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && (stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Size > maxNote) {
		return false, nil
	}
	if err == nil {
		err = unix.Unlinkat(int(dir.Fd()), name, 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove the marker %s of an earlier restore: %w", name, err)
	}
	return true, nil
}

// admitInitContainer makes the markers visible to the init container, whichever user it runs as. If the directory holds only
// markers, it gets the owner and write permissions of the volume's top directory, so that Velero's helper and ours can remove
// it before the application starts. A directory that came with the backup keeps its owner.
func admitInitContainer(volume, dir *os.File, ours bool) error {
	var top, now unix.Stat_t
	if err := errors.Join(unix.Fstat(int(volume.Fd()), &top), unix.Fstat(int(dir.Fd()), &now)); err != nil {
		return fmt.Errorf("stat %s: %w", dir.Name(), err)
	}
	mode := now.Mode&0o7777 | 0o111
	if ours {
		_ = dir.Chown(int(top.Uid), int(top.Gid)) // a file server may refuse; then only the agent removes the directory
		mode = 0o755 | top.Mode&(0o022|unix.S_ISVTX)
	}
	if mode == now.Mode&0o7777 {
		return nil
	}
	if err := unix.Fchmod(int(dir.Fd()), mode); err != nil && now.Mode&0o001 == 0 {
		return pathError("chmod", volume, err)
	}
	return nil
}
