package volumeplugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLogIsReadByVelero(t *testing.T) {
	t.Parallel()
	out := &bytes.Buffer{}
	(&complaints{log: NewLog(out).With("plugin", plugin)}).unwritten(errors.New("connection refused"))
	var got map[string]string // the server takes no other types for the first two
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	want := map[string]string{
		"@message": "Progress of volumes is not recorded; snapshots are made all the same", "@level": "warn",
		"plugin": plugin, "reason": unreachable, "error": "connection refused",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}
