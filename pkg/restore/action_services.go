package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// lastApplied is the annotation in which kubectl apply keeps what it was given.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// releaseAddresses takes away the addresses and ports that the source cluster has chosen for a Service. Those that somebody
// has asked for stay: by kubectl apply, server-side apply, or in the Restore (spec.preserveNodePorts).
func releaseAddresses(_ context.Context, s *scope, in *actionInput) (actionOutput, error) {
	spec, ok := fieldOf[map[string]any](in.item.Object, "spec")
	if !ok {
		return actionOutput{}, nil
	}
	if textOf(spec, "clusterIP") != "None" {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	if preserve := s.Restore.Spec.PreserveNodePorts; preserve != nil && *preserve {
		return actionOutput{}, nil
	}
	var out actionOutput
	wanted, err := portsAskedFor(in.original)
	if err != nil {
		out.warnings = append(out.warnings, err.Error())
	}
	for port := range objectsOf(spec, "ports") {
		if !wanted.nodePort(port) {
			delete(port, "nodePort")
		}
	}
	// Of other Services the API server refuses the field, or keeps it at 0.
	if textOf(spec, "type") == "LoadBalancer" && textOf(spec, "externalTrafficPolicy") == "Local" && !wanted.healthCheck {
		delete(spec, "healthCheckNodePort")
	}
	return out, nil
}

// askedPorts are the node ports that a user has asked for.
type askedPorts struct {
	applied     bool            // kubectl apply says all there is to say of the ports
	names       map[string]bool // of ports that have a node port in it
	numbers     map[int64]bool  // the node ports in it of ports without a name
	keys        map[string]bool // of ports whose node port a user manages, as managedFields spell them
	healthCheck bool
}

// nodePort reports whether the node port of a Service's port was asked for.
func (a askedPorts) nodePort(port map[string]any) bool {
	if !a.applied {
		return a.keys[portKey(port)]
	}
	if name := textOf(port, "name"); name != "" {
		return a.names[name]
	}
	return a.numbers[numberOf(port, "nodePort")]
}

// portKey is how managedFields name an element of spec.ports.
func portKey(port map[string]any) string {
	return fmt.Sprintf(`k:{"port":%d,"protocol":%q}`, numberOf(port, "port"), textOf(port, "protocol"))
}

// portsAskedFor finds what kubectl apply left in an annotation, and server-side apply in managedFields. The error says that
// the annotation cannot be read, and counts as none.
func portsAskedFor(service *unstructured.Unstructured) (askedPorts, error) {
	asked := askedPorts{names: map[string]bool{}, numbers: map[int64]bool{}, keys: map[string]bool{}}
	for entry := range objectsOf(service.Object, "metadata", "managedFields") {
		asked.readManaged(entry)
	}
	text, ok := service.GetAnnotations()[lastApplied]
	if !ok {
		return asked, nil
	}
	var applied map[string]any
	if err := json.Unmarshal([]byte(text), &applied); err != nil {
		return asked, fmt.Errorf("annotation %s, which says what node ports to keep, cannot be read: %w", lastApplied, err)
	}
	asked.readApplied(applied)
	return asked, nil
}

func (a *askedPorts) readApplied(applied map[string]any) {
	a.applied = true
	a.healthCheck = a.healthCheck || numberOf(applied, "spec", "healthCheckNodePort") != 0
	for port := range objectsOf(applied, "spec", "ports") {
		number := numberOf(port, "nodePort")
		if text := textOf(port, "nodePort"); text != "" {
			number, _ = strconv.ParseInt(text, 10, 32)
		}
		if number <= 0 {
			continue
		}
		if name := textOf(port, "name"); name != "" {
			a.names[name] = true
		} else {
			a.numbers[number] = true
		}
	}
}

func (a *askedPorts) readManaged(entry map[string]any) {
	if _, ok := fieldOf[any](entry, "fieldsV1", "f:spec", "f:healthCheckNodePort"); ok {
		a.healthCheck = true
	}
	ports, _ := fieldOf[map[string]any](entry, "fieldsV1", "f:spec", "f:ports")
	for key := range ports {
		if _, ok := fieldOf[any](ports, key, "f:nodePort"); ok {
			a.keys[key] = true
		}
	}
}
