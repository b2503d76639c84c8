package kopiaworker

import (
	"bytes"
	"strings"
	"testing"
)

// TestServeRefuses: whoever calls the worker by hand is told so.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := serve(strings.NewReader("hello"), &out); code == 0 || out.Len() > 0 {
		t.Errorf("exit code %d, said %q", code, &out)
	}
}
