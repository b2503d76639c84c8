package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// Shared is a control plane that the tests of one package share, each in namespaces of its own. It starts when the first of
// them asks for it, and ends with Main. It is safe for concurrent use.
type Shared struct {
	CRDs func() ([]*apiextensionsv1.CustomResourceDefinition, error) // nil: none

	once    sync.Once
	running *ControlPlane
	err     error
}

// Get returns the control plane. It skips or fails the test where parts.ControlPlane does.
func (s *Shared) Get(tb testing.TB) *ControlPlane {
	tb.Helper()
	parts.ControlPlane(tb)
	s.once.Do(func() {
		var o Options
		if s.CRDs != nil {
			if o.CRDs, s.err = s.CRDs(); s.err != nil {
				return
			}
		}
		s.running, s.err = Start(o)
	})
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.running
}

// Main runs the tests, stops the control plane, and returns the exit code: for TestMain.
func (s *Shared) Main(m *testing.M) int {
	code := m.Run()
	if s.running == nil {
		return code
	}
	if err := s.running.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// LatestVeleroCRDs are the CRDs of the newest of VeleroVersions.
func LatestVeleroCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	versions := VeleroVersions()
	return VeleroCRDs(versions[len(versions)-1])
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

// AllCRDs are those of LatestVeleroCRDs and OurCRDs.
func AllCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	velero, err := LatestVeleroCRDs()
	if err != nil {
		return nil, err
	}
	ours, err := OurCRDs()
	return slices.Concat(velero, ours), err
}
