package v1alpha1

import "time"

// SelfCheck is the answer of a node agent's endpoint /self-check: what it finds when it looks at itself and its node. The
// endpoint may be open to all of the cluster's network, so the document has no secrets, addresses or file names.
//
// +kubebuilder:object:generate=false
type SelfCheck struct {
	Node      string        `json:"node"`
	Versions  AgentVersions `json:"versions"`
	StartTime time.Time     `json:"startTime"`

	Landlock      int  `json:"landlock"`      // the kernel's version of it; 0: no worker is confined, 1: restores are not
	MetadataGuard bool `json:"metadataGuard"` // the agent sets owners and modes in a restore's place

	HostPods HostPodsCheck `json:"hostPods"`
	// ClockAheadSeconds is how far the node's clock is ahead of the API server's; absent: not known.
	ClockAheadSeconds *int64     `json:"clockAheadSeconds,omitempty"`
	LastScrape        *time.Time `json:"lastScrape,omitempty"` // when /metrics was last read; absent: not since StartTime
	// Locations has the BackupStorageLocations that the request names, once for each uploader.
	Locations []LocationCheck `json:"locations"`
}

// AgentVersions are the versions of a node agent and its data paths.
//
// +kubebuilder:object:generate=false
type AgentVersions struct {
	Agent  string `json:"agent"`
	Commit string `json:"commit,omitempty"`
	Restic string `json:"restic,omitempty"`
	Kopia  string `json:"kopia,omitempty"`
}

// HostPodsCheck is how the agent sees kubelet's pods directory.
//
// +kubebuilder:object:generate=false
type HostPodsCheck struct {
	Readable    bool `json:"readable"`
	RunningPods int  `json:"runningPods"` // pods of the node that run, as the API server knows them
	FoundPods   int  `json:"foundPods"`   // those of them that have a directory
	// Propagation is how mounts of the host reach the agent: private (not at all), slave or shared; absent: the directory
	// is no mount point, as for an agent without a container.
	Propagation string `json:"propagation,omitempty"`
}

// LocationOutcome is what came of the attempt to open a repository.
type LocationOutcome string

// The outcomes.
const (
	LocationOpened       LocationOutcome = "Opened"       // the repository opens with the password
	LocationNoRepository LocationOutcome = "NoRepository" // the storage answers; there is no repository
	LocationFailed       LocationOutcome = "Failed"       // see Reason and Cause
	LocationNotChecked   LocationOutcome = "NotChecked"   // see Cause
)

// LocationCheck is what came of opening a repository of a BackupStorageLocation, without writing to it.
//
// +kubebuilder:object:generate=false
type LocationCheck struct {
	Location   string          `json:"location"`
	Uploader   string          `json:"uploader,omitempty"`
	Repository string          `json:"repository,omitempty"` // the namespace whose repository it is; absent: no BackupRepository names one
	Outcome    LocationOutcome `json:"outcome"`
	Reason     Reason          `json:"reason,omitempty"`
	Cause      string          `json:"cause,omitempty"`   // a few constant words, such as "connection refused"
	Message    string          `json:"message,omitempty"` // the whole error, only from an endpoint with authentication
}

// Severity is how bad a Finding is.
type Severity string

// The severities.
const (
	SeverityOK      Severity = "ok"
	SeverityInfo    Severity = "info"    // a setting leaves something out of the diagnosis, which is neither healthy nor a fault
	SeverityUnknown Severity = "unknown" // could not be checked
	SeverityWarning Severity = "warning"
	SeverityError   Severity = "error" // backups or restores fail, or lack data
)

// Diagnosis is what `kubectl plimsoll doctor -o json` prints.
//
// +kubebuilder:object:generate=false
type Diagnosis struct {
	At        time.Time `json:"at"`
	Namespace string    `json:"namespace"` // with Velero's objects
	Result    Severity  `json:"result"`    // the worst severity: error, unknown, warning, info, ok
	Findings  []Finding `json:"findings"`
}

// Finding is one result of a check.
//
// +kubebuilder:object:generate=false
type Finding struct {
	Check    string   `json:"check"` // such as agents or locations; docs/kubectl.md lists them
	Severity Severity `json:"severity"`
	Reason   string   `json:"reason"`           // constant, such as NodeWithoutAgent; OK where there is nothing to find
	Message  string   `json:"message"`          // for people
	Remedy   string   `json:"remedy,omitempty"` // what to do; absent where there is nothing to do
	Nodes    []string `json:"nodes,omitempty"`  // where it was found; absent: it is not about nodes
}
