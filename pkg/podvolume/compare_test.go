package podvolume

import (
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// TestComparisonBeyondLimits: what a comparison cannot do it cannot do the next time either.
func TestComparisonBeyondLimits(t *testing.T) {
	t.Parallel()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := volume.NewComparison(dir, func(int64, int64, string) {})
	defer c.Close()
	err = c.Entry(volume.Recorded{Path: strings.Repeat("d/", 10_000) + "file", Mode: fs.FileMode(0o600)})
	if err == nil {
		t.Fatal("no limit is left")
	}
	if failed := classify(err); failed.reason != v1alpha1.ReasonUnsupported || !failed.final {
		t.Errorf("%v: reason %s, final %t", err, failed.reason, failed.final)
	}
}
