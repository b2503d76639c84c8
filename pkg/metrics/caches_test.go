package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestCaches(t *testing.T) {
	t.Parallel()
	want := `
# HELP plimsoll_cache_size_bytes Bytes that the caches of all repositories have on the node's disk, without what running volumes have added.
# TYPE plimsoll_cache_size_bytes gauge
plimsoll_cache_size_bytes 42
`
	if err := testutil.CollectAndCompare(NewCaches(func() int64 { return 42 }), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
