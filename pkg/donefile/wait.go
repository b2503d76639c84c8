package donefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrRestoreFailed is returned by Wait when the restore of a volume failed.
var ErrRestoreFailed = errors.New("restore of a volume failed")

// Wait is the work of the init container restore-wait: it blocks until every volume below root (/restores in a pod) has the
// done file of the restore. Then it removes these files; where it lacks the permission, the agent does that. The error wraps
// ErrRestoreFailed if the restore of one of them failed, and the cause of ctx if that ends. It looks once a second: not every file
// system sends inotify events for a file that was written through another mount.
func Wait(ctx context.Context, root string, uid types.UID, log func(message string)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last string
	for {
		volumes, pending, err := Pending(root, uid)
		if err != nil {
			return err
		}
		if len(pending) == 0 {
			for _, v := range volumes {
				_ = removeMarkersIn(v, uid) // this user may lack the permission; the data is complete in any case
			}
			return nil
		}
		if now := strings.Join(pending, ", "); now != last {
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

// Pending returns the paths of the volumes below root, and the names of those without a done file. The error wraps
// ErrRestoreFailed if the restore of one of them failed.
func Pending(root string, uid types.UID) (volumes, pending []string, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, nil, fmt.Errorf("list the restored volumes: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(root, e.Name())
		volumes = append(volumes, path)
		marker := filepath.Join(path, Dir, string(uid))
		if message, err := readMarker(marker + failedSuffix); err == nil {
			return nil, nil, fmt.Errorf("volume %s: %w: %s", e.Name(), ErrRestoreFailed, cmp.Or(message, "see its PodVolumeRestore"))
		}
		if _, err := os.Lstat(marker); err != nil {
			pending = append(pending, e.Name())
		}
	}
	return volumes, pending, nil
}

func readMarker(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxNote))
	return strings.TrimSpace(string(b)), err
}

func removeMarkersIn(path string, uid types.UID) error {
	volume, err := os.Open(path)
	if err != nil {
		return err
	}
	defer volume.Close()
	if err := checkMarkerName(uid); err != nil {
		return err
	}
	return removeMarkers(volume, uid) // what a restore has reserved is the agent's, which locks the volume
}
