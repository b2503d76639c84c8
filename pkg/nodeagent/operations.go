package nodeagent

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// OperationStatus is one operation as the endpoint /progress shows it.
type OperationStatus struct {
	Kind         Kind              `json:"kind"`
	Name         string            `json:"name"` // of the PodVolumeBackup or PodVolumeRestore
	UID          string            `json:"uid"`
	PodNamespace string            `json:"podNamespace"`
	Pod          string            `json:"pod"`
	Volume       string            `json:"volume"`
	Uploader     string            `json:"uploader"`
	Deadline     *time.Time        `json:"deadline,omitempty"` // a backup that has not ended by then is failed
	Progress     progress.Snapshot `json:"progress"`
}

// Operations returns what this agent works on, oldest first, as it is now.
func (a *Agent) Operations() []OperationStatus {
	a.mu.Lock()
	running := make([]*Operation, 0, len(a.operations))
	for _, op := range a.operations {
		running = append(running, op)
	}
	a.mu.Unlock()
	slices.SortFunc(running, func(x, y *Operation) int {
		return cmp.Or(x.began.Compare(y.began), cmp.Compare(x.Object.GetName(), y.Object.GetName()))
	})
	list := make([]OperationStatus, len(running))
	for i, op := range running {
		list[i] = OperationStatus{
			Kind: op.Kind, Name: op.Object.GetName(), UID: string(op.Object.GetUID()),
			PodNamespace: op.Pod.Namespace, Pod: op.Pod.Name, Volume: op.Volume,
			Uploader: op.UploaderName(), Deadline: op.deadline.Load(), Progress: op.tracker.Snapshot(),
		}
	}
	return list
}

// Volumes is Operations for a metrics.Volumes.
func (a *Agent) Volumes() []metrics.Volume {
	operations := a.Operations()
	list := make([]metrics.Volume, len(operations))
	for i, o := range operations {
		list[i] = metrics.Volume{
			Operation: string(o.Kind), Uploader: o.Uploader,
			Namespace: o.PodNamespace, Pod: o.Pod, Name: o.Volume, Progress: o.Progress,
		}
		if o.Deadline != nil {
			list[i].Deadline = *o.Deadline
		}
	}
	return list
}

// ServeHTTP is the endpoint /progress: {"node": ..., "operations": [...]}, fresh to the moment. Unless Config.ShowPaths is
// set it leaves out what may name files of a volume.
func (a *Agent) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	operations := a.Operations()
	for i := range operations {
		if p := &operations[i].Progress; !a.cfg.ShowPaths {
			p.CurrentItem, p.LastError, p.Reason = "", "", ""
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	err := json.NewEncoder(w).Encode(struct {
		Node       string            `json:"node"`
		Operations []OperationStatus `json:"operations"`
	}{a.cfg.NodeName, operations})
	if err != nil {
		a.cfg.Logger.Debug("Progress was not sent", "error", err)
	}
}
