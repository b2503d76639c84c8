package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// CRDs returns the CRDs of a version of Velero, and ours.
func CRDs(velero string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	theirs, err := VeleroCRDs(velero)
	if err != nil {
		return nil, err
	}
	ours, err := OurCRDs()
	if err != nil {
		return nil, err
	}
	return slices.Concat(theirs, ours), nil
}

// OurCRDs are the CRDs in deploy/crds.
func OurCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	root, err := parts.Root()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "deploy", "crds")
	files, err := filepath.Glob(filepath.Join(dir, "plimsoll.io_*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no CRDs in %s: %w", dir, err)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}
