package kopiaworker

import (
	"testing"

	kopiafs "github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/fs/virtualfs"
)

// TestWalkRefusesForgedNames walks directories with names that only a forged repository has.
func TestWalkRefusesForgedNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"..", ".", "", "../../etc/cron.d/job", "/etc/passwd", "a/b", "nul\x00"} {
		root := virtualfs.NewStaticDirectory("", []kopiafs.Entry{virtualfs.NewStaticDirectory(name, nil)})
		err := walkDirectory(t.Context(), nil, node{Entry: root}, root, func(n node) (bool, error) {
			t.Errorf("%q is visited as %q", name, n.path)
			return false, nil
		})
		if err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}
