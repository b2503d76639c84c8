package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

const (
	selfCheckTimeout   = 40 * time.Second // of one request, with all its locations
	selfCheckLocations = 16
	// selfCheckPause follows each check of locations: the endpoint may be open to the cluster's network, and the checks run
	// restic and kopia.
	selfCheckPause = time.Second
)

// SelfCheck looks at the agent and its node, and opens repositories of the BackupStorageLocations, one check at a time. A
// location without a repository is checked with the uploader.
func (a *Agent) SelfCheck(ctx context.Context, locations []string, uploader string) v1alpha1.SelfCheck {
	ctx, cancel := context.WithTimeout(ctx, selfCheckTimeout)
	defer cancel()
	s := v1alpha1.SelfCheck{
		Node: a.cfg.NodeName, Versions: a.cfg.Versions, StartTime: a.startTime.UTC(),
		Landlock: worker.LandlockABI(), MetadataGuard: worker.GuardsMetadata(),
		HostPods: a.checkHostPods(ctx), Locations: a.checkLocations(ctx, locations, uploader),
	}
	ahead, known, err := a.env.ClockAhead(ctx)
	if known {
		s.ClockAheadSeconds = new(int64(ahead.Round(time.Second) / time.Second))
	} else if err != nil {
		a.cfg.Logger.Debug("Self-check: the API server's time is not known", "error", err)
	}
	if a.cfg.LastScrape != nil {
		if last := a.cfg.LastScrape(); !last.IsZero() {
			s.LastScrape = new(last.UTC())
		}
	}
	return s
}

// checkLocations is one at a time for the whole agent.
func (a *Agent) checkLocations(ctx context.Context, names []string, uploader string) []v1alpha1.LocationCheck {
	checks := []v1alpha1.LocationCheck{}
	if len(names) == 0 {
		return checks
	}
	busy := false
	select {
	case a.selfChecking <- struct{}{}:
		defer time.AfterFunc(selfCheckPause, func() { <-a.selfChecking })
	case <-ctx.Done():
		busy = true
	}
	for _, name := range names {
		if ctx.Err() != nil {
			cause := "there was no time for it"
			if busy {
				cause = "the node agent is busy with other checks"
			}
			checks = append(checks, v1alpha1.LocationCheck{Location: name, Outcome: v1alpha1.LocationNotChecked, Cause: cause})
			continue
		}
		checks = append(checks, a.env.CheckLocation(ctx, name, uploader)...)
	}
	return checks
}

// checkHostPods compares kubelet's pods directory with the pods of the node. The agent's own pod is among them.
func (a *Agent) checkHostPods(ctx context.Context) v1alpha1.HostPodsCheck {
	_, err := os.ReadDir(a.cfg.HostPods)
	check := v1alpha1.HostPodsCheck{Readable: err == nil}
	if check.Propagation, err = volume.Propagation(filepath.Clean(a.cfg.HostPods)); err != nil {
		a.cfg.Logger.Debug("Self-check: the mounts cannot be read", "error", err)
	}
	var pods corev1.PodList
	if err := a.client.List(ctx, &pods); err != nil {
		a.cfg.Logger.Debug("Self-check: the pods cannot be read", "error", err)
		return check
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil || !filepath.IsLocal(string(pod.UID)) {
			continue
		}
		check.RunningPods++
		if _, err := os.Lstat(filepath.Join(a.cfg.HostPods, string(pod.UID))); err == nil {
			check.FoundPods++
		}
	}
	return check
}

// ServeSelfCheck is the endpoint /self-check: a v1alpha1.SelfCheck with the BackupStorageLocations that the query's
// location names. Unless Config.ShowPaths is set, it omits the texts of errors, which may have addresses.
func (a *Agent) ServeSelfCheck(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if n := len(query["location"]); n > selfCheckLocations {
		http.Error(w, fmt.Sprintf("%d locations: at most %d can be checked at a time", n, selfCheckLocations), http.StatusBadRequest)
		return
	}
	s := a.SelfCheck(r.Context(), query["location"], query.Get("uploader"))
	for i := range s.Locations {
		if !a.cfg.ShowPaths {
			s.Locations[i].Message = ""
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(s); err != nil {
		a.cfg.Logger.Debug("Self-check was not sent", "error", err)
	}
}
