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

	"k8s.io/apimachinery/pkg/types"
)

// ErrRestoreFailed comes from WaitForRestore when the agent could not restore one of the volumes.
var ErrRestoreFailed = errors.New("restore of a volume failed")

// WaitForRestore is what the init container restore-wait does: it waits until every volume below root, /restores in a
// pod, has the done file of the restore, and then removes these files where it may; elsewhere the agent does that. The error
// wraps ErrRestoreFailed when the agent reports that a volume failed; Velero's helper would wait for ever. It looks once a
// second: the done file comes through a mount of its own, and not every file system tells inotify of that.
func WaitForRestore(ctx context.Context, root string, uid types.UID, log func(message string)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last string
	for {
		volumes, missing, err := lookForMarkers(root, uid)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			for _, v := range volumes {
				_ = removeMarkersIn(v, uid) // this user may not have the right to: the data is there anyway
			}
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

// lookForMarkers returns the paths of the volumes, and the names of those that have no done file yet.
func lookForMarkers(root string, uid types.UID) (volumes, missing []string, err error) {
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
		marker := filepath.Join(path, markerDir, string(uid))
		if message, err := readMarker(marker + failedSuffix); err == nil {
			return nil, nil, fmt.Errorf("volume %s: %w: %s", e.Name(), ErrRestoreFailed, message)
		}
		if _, err := os.Lstat(marker); err != nil {
			missing = append(missing, e.Name())
		}
	}
	return volumes, missing, nil
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
	return removeMarkers(volume, uid)
}
