package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestRepositories(t *testing.T) {
	t.Parallel()
	want := `
# HELP plimsoll_repositories_unavailable Number of repositories that do not open and for which volumes wait.
# TYPE plimsoll_repositories_unavailable gauge
plimsoll_repositories_unavailable 2
`
	if err := testutil.CollectAndCompare(NewRepositories(func() int { return 2 }), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
