package describe

import "time"

// View is what is known of some volumes at one moment.
type View struct {
	At        time.Time  `json:"at"`
	Operation *Operation `json:"operation,omitempty"` // whose volumes these are; absent: those of all
	Volumes   []Volume   `json:"volumes"`
	Nodes     []Node     `json:"nodes,omitempty"`
	Notes     []string   `json:"notes,omitempty"` // what could not be found out, and why
}

// Node is a node with a node agent.
type Node struct {
	Name  string `json:"name"`
	Agent string `json:"agent"` // the pod
	Ready bool   `json:"ready"`
	// Live reports whether the agent itself tells how far its volumes are.
	Live bool `json:"live"`
}
