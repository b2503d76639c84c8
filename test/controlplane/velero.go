package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// LatestVelero is the newest of VeleroVersions.
const LatestVelero = "1.18.3"

// VeleroVersions returns the versions that VeleroCRDs knows, oldest first. The shapes differ at 1.13 (uploader
// settings), 1.17 (more phases, cancel) and 1.18 (sizes); see docs/contracts/velero-node-agent.md 1.
func VeleroVersions() []string { return []string{"1.10.3", "1.14.1", "1.16.2", "1.17.2", LatestVelero} }

// VeleroCRDs returns all CRDs that a Velero of the version installs, those of data movement (v2alpha1) included. They are read from Velero's
// module; it is downloaded if it is not in Go's module cache yet, where `make velero-crds` puts it.
func VeleroCRDs(version string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	dir, err := veleroModule(version)
	if err != nil {
		return nil, fmt.Errorf("CRDs of Velero %s: %w", version, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "config", "crd", "*", "bases", "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("CRDs of Velero %s: %w", version, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("CRDs of Velero %s: none in %s", version, dir)
	}
	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("CRDs of Velero %s: %w", version, err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			return nil, fmt.Errorf("CRDs of Velero %s: %s: %w", version, filepath.Base(file), err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}

// veleroModule returns the folder of Velero's module in Go's module cache.
func veleroModule(version string) (string, error) {
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/vmware-tanzu/velero") //nolint:noctx // instant from the cache; a download has the go command's own time limits
	cmd.Dir = filepath.Join(root, "test", "controlplane", "velero", version)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, runErr := cmd.Output()
	var module struct{ Dir, Error string }
	if err := json.Unmarshal(out, &module); err != nil || module.Dir == "" {
		return "", fmt.Errorf("%s: %w: %s%s", cmd, errors.Join(runErr, err), module.Error, stderr.Bytes())
	}
	return module.Dir, nil
}
