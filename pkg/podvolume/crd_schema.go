package podvolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// veleroSchema is what was read of the schema of velero.io/v1, which has 600 KiB and changes only with an update of Velero.
type veleroSchema struct {
	mu        sync.Mutex
	address   string // with a hash of its content; empty: not read yet
	hasCancel bool
}

// crdHasCancel reports whether PodVolumeBackups have spec.cancel, which came with Velero 1.17. The schema is published to
// every authenticated client, so that this needs no right to read CustomResourceDefinitions.
func (e *Environment) crdHasCancel(ctx context.Context) (bool, error) {
	d, err := discovery.NewDiscoveryClientForConfig(e.rest)
	if err != nil {
		return false, fmt.Errorf("make a client for the API schema: %w", err)
	}
	e.schema.mu.Lock()
	defer e.schema.mu.Unlock()
	if err := e.schema.read(ctx, d.RESTClient()); err != nil {
		return false, fmt.Errorf("read the schema of velero.io/v1: %w", err)
	}
	return e.schema.hasCancel, nil
}

// read reads the schema unless it is the one that was read last.
func (s *veleroSchema) read(ctx context.Context, server rest.Interface) error {
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := getJSON(ctx, server, "/openapi/v3", &index); err != nil {
		return err
	}
	address := index.Paths["apis/velero.io/v1"].ServerRelativeURL
	switch address {
	case "":
		return errors.New("the API server has none: are Velero's CustomResourceDefinitions installed?")
	case s.address:
		return nil
	}
	var schema struct {
		Components struct {
			Schemas map[string]struct {
				Properties struct {
					Spec struct {
						Properties map[string]json.RawMessage `json:"properties"`
					} `json:"spec"`
				} `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := getJSON(ctx, server, address, &schema); err != nil {
		return err
	}
	// While CustomResourceDefinitions are installed, the API server publishes the schema before it has all of them.
	backups, ok := schema.Components.Schemas["io.velero.v1.PodVolumeBackup"]
	if !ok {
		return errors.New("the API server has not published that of PodVolumeBackups yet")
	}
	_, s.hasCancel = backups.Properties.Spec.Properties["cancel"]
	s.address = address
	return nil
}

// getJSON reads a document of the API server, and waits until it answers.
func getJSON(ctx context.Context, server rest.Interface, address string, document any) error {
	var raw []byte
	err := untilAnswered(ctx, defaultReadDelay, func() (err error) {
		raw, err = server.Get().RequestURI(address).Do(ctx).Raw()
		return err
	})
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, document)
}
