package nodeagent

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/metrics"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

// Operations returns what this agent works on, oldest first, as it is now.
func (a *Agent) Operations() []v1alpha1.AgentOperation {
	a.mu.Lock()
	running := make([]*podvolume.Operation, 0, len(a.operations))
	for _, op := range a.operations {
		running = append(running, op)
	}
	a.mu.Unlock()
	slices.SortFunc(running, func(x, y *podvolume.Operation) int {
		return cmp.Or(x.Began.Compare(y.Began), cmp.Compare(x.Object.GetName(), y.Object.GetName()))
	})
	list := make([]v1alpha1.AgentOperation, len(running))
	for i, op := range running {
		list[i] = v1alpha1.AgentOperation{
			Kind: string(op.Kind), Name: op.Object.GetName(), UID: string(op.Object.GetUID()),
			PodNamespace: op.Pod.Namespace, Pod: op.Pod.Name, Volume: op.Volume,
			Uploader: op.UploaderName(), Deadline: op.Deadline(), Progress: op.Snapshot(),
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
			Operation: o.Kind, Uploader: o.Uploader,
			Namespace: o.PodNamespace, Pod: o.Pod, Name: o.Volume, Progress: o.Progress,
		}
		if o.Deadline != nil {
			list[i].Deadline = *o.Deadline
		}
	}
	return list
}

// UnavailableRepositories returns the number of repositories that do not open and for which volumes wait.
func (a *Agent) UnavailableRepositories() int { return a.env.UnavailableRepositories() }

// ServeHTTP is the endpoint /progress: a v1alpha1.AgentProgress, as of now. Unless Config.ShowPaths is set, it omits fields that
// may have names of files.
func (a *Agent) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	operations := a.Operations()
	for i := range operations {
		if p := &operations[i].Progress; !a.cfg.ShowPaths {
			p.CurrentItem, p.LastError, p.Message = "", "", ""
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	err := json.NewEncoder(w).Encode(v1alpha1.AgentProgress{Node: a.cfg.NodeName, Operations: operations})
	if err != nil {
		a.cfg.Logger.Debug("Progress was not sent", "error", err)
	}
}
