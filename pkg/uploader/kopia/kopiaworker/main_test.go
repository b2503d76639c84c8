package kopiaworker

import (
	"bytes"
	"encoding/gob"
	"io"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// TestServeRefuses: whoever calls the worker by hand is told so, and an agent that asks for what the worker may not know.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	var older bytes.Buffer
	if err := gob.NewEncoder(&older).Encode(protocol.Request{Form: "of last year", Operation: protocol.OpInitialize}); err != nil {
		t.Fatal(err)
	}
	for name, stdin := range map[string]io.Reader{"by hand": strings.NewReader("hello"), "an agent of another version": &older} {
		var out bytes.Buffer
		if code := serve(stdin, &out); code != 2 || out.Len() > 0 {
			t.Errorf("%s: exit code %d, said %q", name, code, &out)
		}
	}
}
